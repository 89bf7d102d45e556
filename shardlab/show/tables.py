"""Tables on the terminal, printed once however many ranks run the line."""

from collections.abc import Sequence

from shardlab.show.rank_zero import is_rank_zero

Cell = str | int | float
"""Text as it is; numbers with thousands separators, floats to four digits. A column of numbers is set right."""

UNLIMITED = 10_000  # characters


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table on rank 0; on other ranks do nothing.

    Args:
        title: what the table says, in a line. Units belong in the column names.
        columns: one name per column.
        rows: one cell per column.

    Raises:
        ValueError: a row with more or fewer cells than columns.
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(columns)} columns: {list(row)}")
    if not is_rank_zero():
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, cells in zip(columns, zip(*rows, strict=True) if rows else [()] * len(columns), strict=True):
        numeric = bool(cells) and all(is_number(cell) for cell in cells)
        words = " ".join([name, *(format_cell(cell) for cell in cells)]).split()
        longest = max(map(len, words), default=0)  # a narrow terminal breaks lines between words, never inside one
        drawn.add_column(Text(name), justify="right" if numeric else "left", min_width=longest)
    for row in rows:
        drawn.add_row(*(Text(format_cell(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:  # a log or a pipe has no width: give the table what it needs
        needed = Console(width=UNLIMITED).measure(drawn).maximum
        console = Console(width=max(needed, len(title)))
    console.print(drawn)


def is_number(cell: Cell) -> bool:
    """Whether a cell is a number, or a number that is written out already.

    >>> is_number(4), is_number("1.9e-07"), is_number("4 MiB")
    (True, True, False)
    """
    try:
        float(cell)
    except ValueError:
        return False
    return True


def format_cell(cell: Cell) -> str:
    """A cell as text.

    >>> format_cell(1234567), format_cell(0.123456), format_cell(12345.678), format_cell("ring")
    ('1,234,567', '0.1235', '12,346', 'ring')
    """
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    if cell == 0:
        return "0"
    if abs(cell) < 1e-4:
        return f"{cell:.3e}"
    digits = 4 if abs(cell) < 1 else max(0, 4 - len(str(int(abs(cell)))))
    return f"{cell:,.{digits}f}"
