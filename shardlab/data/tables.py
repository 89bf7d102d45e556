"""Reading the tables that the Hugging Face hub and its `datasets` library keep: Parquet files and Arrow streams."""

import re
from pathlib import Path

TABLE_SUFFIXES = (".parquet", ".arrow")


def split_files(folder: Path, split: str) -> list[Path]:
    """The table files of one split below a folder, in the order of their parts.

    Names look like train-00000-of-00002.parquet, wikitext-train.arrow or mnist-train-00000-of-00002.arrow.
    """
    named = re.compile(rf"(?:^|[-_]){split}(?:-\d+-of-\d+)?\.(?:parquet|arrow)")
    return sorted(path for path in folder.rglob("*") if named.search(path.name) and path.suffix in TABLE_SUFFIXES)


def read_columns(paths: list[Path], columns: tuple[str, ...]) -> tuple[list, ...]:
    """The values of these columns over all files, as Python lists.

    Raises:
        ValueError: a file that is no such table or lacks a column; the message names it.
    """
    import pyarrow

    values: tuple[list, ...] = tuple([] for _ in columns)
    for path in paths:
        try:
            table = read_table(path).select(list(columns))
        except (pyarrow.ArrowInvalid, KeyError) as error:
            raise ValueError(f"{path} is no table with the columns {', '.join(columns)}: {error}") from None
        for column, into in zip(columns, values, strict=True):
            into.extend(table[column].to_pylist())
    return values


def read_table(path: Path):
    """One file as a pyarrow Table."""
    import pyarrow.ipc
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return pyarrow.parquet.ParquetFile(path).read()
    with pyarrow.ipc.open_stream(path) as stream:
        return stream.read_all()
