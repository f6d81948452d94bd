"""convert: the rows of a file, written in another format."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ..._common.errors import DataError, TorchleapError
from ..._common.files import replace_file
from .open import open_source
from .options import Progress, no_progress
from .paths import refuse_address
from .schema import LONG_ID, infer, present_text
from .source import DAMAGES, SAMPLE_ROWS, Source, explained, unpacked_bytes

SINKS: dict[str, Callable[..., None]] = {
    ".parquet": pl.LazyFrame.sink_parquet,
    ".arrow": pl.LazyFrame.sink_ipc,
    ".csv": pl.LazyFrame.sink_csv,
}


def convert(
    data: Any,
    out: str | os.PathLike[str],
    *,
    separator: str | None = None,
    names: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write the rows of a file to a .parquet, .arrow or .csv file, which is replaced atomically.

    Some rows are in memory at a time. Columns of CSV become Int64 or Float64 if they are numeric
    and every row agrees.

    Args:
        data: A file, a folder, a pattern or a frame, as for `read`.
        out: The file to write; its ending names the format.
        separator: The character between the columns of CSV; None finds it in the first line.
        names: The names of the columns of CSV files without a header; None if they have one.
        overwrite: Whether a file that exists is replaced; by default that is an error.
        progress: Called with the step, how many rows are done, and of about how many.

    Returns:
        The number of rows and of columns that were written.
    """
    target = Path(out)
    check_free(target, list(SINKS), overwrite=overwrite)
    source = open_source(data, separator=separator, names=names)
    schema = source.schema()
    nested = [name for name, dtype in schema.items() if dtype.is_nested()]
    if nested and target.suffix == ".csv":
        raise DataError(
            f"CSV cannot hold lists and vectors, as {', '.join(nested[:5])} do. "
            "Write .parquet or .arrow."
        )
    report = progress or no_progress
    types: dict[str, pl.DataType] = {}
    if source.text:
        rows, types = _types(source, report)
    else:
        rows = source.count()
    numbers = [present_text(name).cast(dtype) for name, dtype in types.items()]
    typed = source.frame.with_columns(numbers)
    _sink(_counted(typed, rows, report), target, source)
    return rows, len(schema)


def check_free(path: Path, endings: Sequence[str], *, overwrite: bool) -> None:
    """Refuse to write where a file exists, or cannot be.

    Args:
        path: The file to write.
        endings: The endings that it may have, such as ".csv".
        overwrite: Whether a file that exists may be replaced.
    """
    refuse_address(str(path))
    if path.suffix not in endings:
        raise DataError(
            f"Expected a new file that ends in {' or '.join(endings)}, but found {str(path)!r}."
        )
    if not path.parent.is_dir():
        raise DataError(f"There is no folder {path.parent} for {path.name}. Make it first.")
    if path.is_dir():
        raise DataError(f"{path} is there already. Name another file.")
    if path.exists() and not overwrite:
        raise DataError(
            f"{path} is there already. Name another file, or overwrite it: overwrite=True."
        )


def _types(source: Source, progress: Progress) -> tuple[int, dict[str, pl.DataType]]:
    """Return the number of rows, and the types of the columns that are numbers in all rows."""
    sample = source.head(SAMPLE_ROWS)
    columns = infer(sample, sample.columns, text=True)
    types: dict[str, pl.DataType] = {}
    for name, column in columns.items():
        if column.kind == "numeric":
            types[name] = pl.Int64()
    bytes_per_row = len(sample.write_csv().encode()) / max(1, len(sample))
    expected = int(unpacked_bytes(source) / bytes_per_row)
    rows = 0
    for block in source.blocks(sample.columns):
        present = block.select([present_text(name) for name in types])
        for name, so_far in types.items():
            types[name] = _narrowest(present[name].drop_nulls(), so_far)
        rows += len(block)
        progress("finding types", rows, max(rows, expected))
    return rows, {name: dtype for name, dtype in types.items() if dtype != pl.String}


def _narrowest(text: pl.Series, so_far: pl.DataType) -> pl.DataType:
    """Return Int64, Float64 or String: the type of this text, and of that before, without loss."""
    if so_far == pl.Int64 and not text.cast(pl.Int64, strict=False).null_count():
        return so_far
    is_number = not text.cast(pl.Float64, strict=False).null_count()
    if so_far == pl.String or not is_number or text.str.contains(LONG_ID).any():
        return pl.String()
    return pl.Float64()


def _counted(frame: pl.LazyFrame, rows: int, progress: Progress) -> pl.LazyFrame:
    """Return the same rows, which report their progress as they are read."""
    done = 0

    def count(block: pl.DataFrame) -> pl.DataFrame:
        nonlocal done
        done += len(block)
        progress("writing", done, rows)
        return block

    return frame.map_batches(count, streamable=True)


def _sink(frame: pl.LazyFrame, target: Path, source: Source) -> None:
    try:
        with replace_file(target) as temporary:
            SINKS[target.suffix](frame, temporary)
    except TorchleapError:
        raise
    except DAMAGES as error:
        raise explained(error, source) from error
