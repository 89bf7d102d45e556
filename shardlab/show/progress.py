"""A bar for work that takes longer than a reader's patience."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from shardlab.show.rank_zero import is_rank_zero


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on rank 0's terminal, if it has one, gone when the work is done.

        with progress("measuring", len(sizes)) as advance:
            for size in sizes:
                measure(size)
                advance()

    Args:
        title: what is going on.
        total: how many times the yielded function will be called, once after each piece of work.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (is_rank_zero() and console.is_terminal)) as bar:
        yield partial(bar.advance, bar.add_task(title, total=total))
