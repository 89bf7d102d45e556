"""Whether Python can load a lab, found out without running any of it.

Python's compiler needs minutes or gigabytes for text made to cost them, and may crash; so a child does it.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shardlab.grade.intake.limited import run_limited
from shardlab.grade.intake.members import shown

# Says for each file, in order: null, or the line (0: unknown), the words and whether it is no text
_CHILD = """
import json, sys, warnings
warnings.simplefilter("ignore")
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        source = file.read()
    said = None
    try:
        compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        said = error.lineno or 0, str(error.msg), "codec can't decode" in str(error.msg)
    except Exception as error:
        said = 0, str(error) or "it is nested too deep", False
    print(json.dumps(said), flush=True)
"""
_CONSEQUENCE = "As it is, none of its exercises can earn points"


def problems_of(folder: Path, files: Sequence[Path]) -> list[str]:
    """Sentences about those of `files`, relative to `folder`, that Python cannot load.

    Raises:
        OSError: Python itself cannot be run here.
    """
    command = [sys.executable, "-I", "-S", "-c", _CHILD, *(str((folder / file).resolve()) for file in files)]
    with tempfile.TemporaryDirectory(prefix="shardlab-syntax-") as place:
        outcome = run_limited(command, Path(place), {})
    answers = [json.loads(line) for line in outcome.printed.splitlines()]
    problems = [_sentence(file, *said) for file, said in zip(files, answers, strict=False) if said]
    if len(answers) < len(files):
        if outcome.code >= 0:
            raise OSError(f"{sys.executable} ended with exit code {outcome.code}: {outcome.errors.strip()}")
        stuck = files[len(answers)].as_posix()
        problems.append(f"{stuck}: Python needs more time or memory to read it than for any honest file")
    return problems


def _sentence(file: Path, line: int, words: str, is_no_text: bool) -> str:
    if is_no_text:
        return f"{file.as_posix()} is not UTF-8: save it as UTF-8. {_CONSEQUENCE}"
    where = f", line {line}" if line else ""
    return f"{file.as_posix()}{where}: {shown(words)}. {_CONSEQUENCE}"
