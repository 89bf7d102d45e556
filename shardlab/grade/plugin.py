"""What pytest loads (entry point `pytest11`): the gate to grading.

Every pytest run in this environment imports this file, also one of a project that has nothing to do with this course.
So it imports next to nothing, and outside a checkout of the course it adds no option, no fixture and no hook.
"""

import sys
from pathlib import Path

import pytest

_PARTS = ("runs", "marks", "skips", "scores", "fixtures")  # modules of this room with hooks or fixtures


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    root = Path(parser.extra_info.get("rootdir", ""))
    if _is_checkout(root):
        for part in _PARTS:
            pluginmanager.import_plugin(f"shardlab.grade.{part}")
    elif _checkout_above(Path.cwd()) is None:
        return
    group = parser.getgroup("shardlab", "Shardlab: grading")
    group.addoption("--submission", metavar="DIR", help="grade this folder, which mirrors labs/, not labs/ itself")
    group.addoption("--seed", default="0", help="inputs of the graded tests derive from this text (default: 0)")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start again, with our own configuration, where pytest took the folder after `--submission` for a test folder.

    pytest looks for its configuration before it knows this option; a submission outside the checkout leads it astray.
    """
    given = getattr(early_config.known_args_namespace, "submission", None)
    if given is not None and not _is_checkout(early_config.rootpath):
        root = _checkout_above(early_config.invocation_params.dir)
        sys.exit(pytest.main([f"--config-file={root / 'pyproject.toml'}", *early_config.invocation_params.args]))


def _is_checkout(folder: Path) -> bool:
    return (folder / "syllabus.toml").is_file() and (folder / "labs").is_dir()


def _checkout_above(folder: Path) -> Path | None:
    return next((parent for parent in (folder, *folder.parents) if _is_checkout(parent)), None)
