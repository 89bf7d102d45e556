"""What to do after the tour, from the list of lessons."""

from shardlab.syllabus import lessons


def next_steps() -> list[tuple[str, str]]:
    """What to do, in words, and the command for it."""
    ready = lessons(ready=True)
    steps = [("Open the course in JupyterLab:", "make lab")]
    if ready:
        first = ready[0]
        notebook, lab = (path.relative_to(first.root) for path in (first.notebook, first.lab))
        steps += [
            (f"Begin with lesson {first.id}, {first.title}: read and run", str(notebook)),
            ("Write your own where it says so, in", str(lab)),
            ("See how many points it has:", f".venv/bin/shardlab test {first.id}"),
        ]
    return [*steps, ("See what this machine can run, and what is missing:", ".venv/bin/shardlab doctor")]
