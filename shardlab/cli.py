"""The command line: `shardlab tour, lab, test, status, grade, doctor, slides, release`.

Every command imports what it needs when it runs, so that `--help` answers at once. Bad input is one sentence on
stderr and exit code 2.
"""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from shardlab.bad_input import BadInput
from shardlab.syllabus import ROOT, Lesson, lesson, lessons

app = typer.Typer(
    help="Distributed training of large models, learned by building it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback is for us, and plain it is easier to report
)

Which = Annotated[str | None, typer.Argument(metavar="LESSON", help='id or slug, as "1.3" or "collectives"')]


@app.command()
def tour() -> None:
    """Train a small GPT every way the course teaches, on 4 ranks, and compare; a minute or two."""
    from shardlab.tour.run import run_tour

    raise typer.Exit(run_tour())


@app.command()
def lab(
    which: Which = None,
    port: Annotated[int | None, typer.Option(help="only this port; without it the first free from 8888 on")] = None,
) -> None:
    """Open JupyterLab on the course, or on the notebook of one lesson."""
    from shardlab.lab import open_lab

    open_lab(ROOT, _ready(which).notebook if which else None, port)


@app.command()
def test(
    which: Which = None,
    submission: Annotated[Path | None, typer.Option(metavar="DIR", help="grade this folder, a mirror of labs/")] = None,
) -> None:
    """Run the graded tests of a lesson, or of all; closes with a table of points."""
    from shardlab.grade.status import run_tests

    raise typer.Exit(run_tests(_ready(which) if which is not None else None, submission))


@app.command()
def status() -> None:
    """Show your points per exercise, as your last tests left them."""
    from shardlab.grade.points import print_table
    from shardlab.grade.status import scores

    print_table(scores())


@app.command()
def grade(
    submissions: Annotated[
        Path | None, typer.Argument(help="folder with a file or folder per student: zip, tar, git bundle, folder")
    ] = None,
    roster: Annotated[Path | None, typer.Option(help="CSV with the columns id, name, email")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for gradebook, feedback and records")] = None,
    which: Annotated[str | None, typer.Option("--lessons", help='such as "1.3,2.1"; without it all')] = None,
    jobs: Annotated[int, typer.Option(min=1, help="submissions at a time; each may use several cores")] = 1,
    seed_file: Annotated[
        Path | None, typer.Option(help="secret that inputs derive from; without it one is made in OUT")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="STUDENT", help="grade this student alone")] = None,
    again: Annotated[bool, typer.Option("--again", help="judge also what has been judged before")] = False,
    self_test: Annotated[bool, typer.Option("--self-test", help="only try to break out of the sandbox")] = False,
) -> None:
    """Grade a class: strangers' code in a sandbox, marks, feedback. Goes on where it stopped; what changed is regraded.

    shardlab grade submissions/ --roster roster.csv --out grades/ --lessons 1.3,2.1
    """
    from shardlab.grade.batch.command import grade as run
    from shardlab.grade.batch.command import show_self_test

    if self_test:
        raise typer.Exit(show_self_test())
    if missing := [
        name for name, value in (("SUBMISSIONS", submissions), ("--roster", roster), ("--out", out)) if not value
    ]:
        raise BadInput(f"{' and '.join(missing)} missing; `shardlab grade --help` shows an example")
    chosen = tuple(_ready(name.strip()) for name in which.split(",")) if which else tuple(lessons(ready=True))
    raise typer.Exit(run(submissions, roster, out.resolve(), chosen, jobs, seed_file, only, again))


@app.command()
def doctor() -> None:
    """Say what works on this machine, what is missing, and the command that brings it."""
    from rich.console import Console

    from shardlab.doctor import examine, report

    raise typer.Exit(0 if report(examine(), Console()) else 1)


@app.command()
def slides() -> None:
    """Build every deck into build/slides: HTML, and PDF where Chromium is there."""
    from shardlab.slides import build

    decks = [each.slides for each in lessons(ready=True)]
    built = build(decks, ROOT / "build" / "slides")
    for page in (*built.html, *built.pdf):
        print(page.relative_to(ROOT))
    if not built.pdf:
        print("No PDF: Chromium was not found; `shardlab doctor` says how to install it.")


@app.command()
def release(
    check: Annotated[
        bool, typer.Option("--check", help="write nothing; exit code 1 when something has drifted")
    ] = False,
    student_edition: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write the course without solutions to this new folder")
    ] = None,
) -> None:
    """Write labs/ from solutions/, and the README's table of lessons from syllabus.toml (for authors).

    A lab in which exercises are written is a learner's work: it is never overwritten, and drift only where CI is set.
    """
    from shardlab.grade.student_edition import refuse_without_solutions, write_student_edition

    refuse_without_solutions(ROOT)
    if student_edition is not None:
        if check:
            raise BadInput("--check compares, --student-edition writes: give one of them")
        for line in write_student_edition(ROOT, student_edition.expanduser()):
            print(f"wrote {student_edition}/{line}")
        print(
            "Left out: solutions, the kit's own tests, benchmarks, what is planned only. Students begin with README.md."
        )
        return
    from shardlab.grade.release import begun_labs, drifted
    from shardlab.grade.release import release as write_labs
    from shardlab.upkeep import readme_is_fresh, refresh_readme

    if check:
        at_work = set() if os.environ.get("CI") else set(begun_labs(ROOT))
        stale = [path for path in drifted(ROOT) if path not in at_work]
        stale += [] if readme_is_fresh(ROOT) else [Path("README.md")]
        for path in stale:
            print(f"{path} is not what `make release` writes from solutions/ and syllabus.toml", file=sys.stderr)
        raise typer.Exit(1 if stale else 0)
    for path in write_labs(ROOT):
        print(f"wrote {path}")
    if refresh_readme(ROOT):
        print("wrote README.md")


def _ready(name: str) -> Lesson:
    """The lesson a person named; BadInput while it is only planned."""
    found = lesson(name)
    if not found.ready:
        ready = ", ".join(f"{each.id} {each.slug}" for each in lessons(ready=True))
        raise BadInput(f"lesson {found.id} {found.slug} is planned, not written yet; ready: {ready or 'none'}.")
    return found


def main() -> None:
    """Entry point of the `shardlab` command."""
    try:
        app()
    except BadInput as error:
        _refuse(str(error))
    except PermissionError as error:
        _refuse(f"{error.filename} may not be written; make it yours, or copy the course to a folder of your own.")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _refuse("the disk is full; free some room (`make clean` drops what can be made again) and run again.")


def _refuse(sentence: str) -> None:
    print(f"shardlab: {sentence}", file=sys.stderr)
    sys.exit(2)
