"""convert: the rows of a file in another format."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ..._common.errors import DataError, TorchleapError
from ..._common.files import replace_file
from .arrow import DAMAGES
from .encode import Progress
from .foreign import refuse_address
from .inspection import present_text
from .read import SAMPLE_ROWS
from .schema import infer
from .sources import PACKED, Source, explained, open_source

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
    """Write the rows of a file to a .parquet, .arrow or .csv file, which appears whole or not at all.

    Some rows are in memory at a time. Columns of CSV become Int64 or Float64 if they are numeric and every row agrees.

    Returns:
        How many rows and columns were written.
    """
    target = Path(out)
    check_free(target, list(SINKS), overwrite=overwrite)
    source = open_source(data, separator=separator, names=names)
    present = source.names()
    nested = [name for name, dtype in source.schema().items() if dtype.is_nested()]
    if nested and target.suffix == ".csv":
        raise DataError(
            f"CSV cannot hold lists and vectors, as {', '.join(nested[:5])} do. Write .parquet or .arrow."
        )
    tell = progress or (lambda *_: None)
    rows, types = _types(source, tell) if source.text else (source.count(), {})
    typed = source.frame.with_columns(
        [present_text(name).cast(dtype) for name, dtype in types.items() if dtype != pl.String]
    )
    _sink(_counted(typed, rows, tell), target, source)
    return rows, len(present)


def check_free(path: Path, endings: Sequence[str], *, overwrite: bool) -> None:
    """Refuse to write where a file is already, or cannot be."""
    refuse_address(str(path))
    if path.suffix not in endings:
        raise DataError(
            f"Expected a new file that ends in {' or '.join(endings)}, but found {str(path)!r}."
        )
    if not path.parent.is_dir():
        raise DataError(f"There is no folder {path.parent} for {path.name}. Make it first.")
    if path.is_dir() or (path.exists() and not overwrite):
        raise DataError(
            f"{path} is there already. Name another file{'' if path.is_dir() else ', or overwrite it: overwrite=True'}."
        )


def _types(source: Source, tell: Progress) -> tuple[int, dict[str, pl.DataType]]:
    """How many rows there are, and the types of numeric columns, by all rows."""
    sample = source.head(SAMPLE_ROWS)
    columns = infer(sample, sample.columns, text=True).items()
    types: dict[str, pl.DataType] = {
        name: pl.Int64() for name, column in columns if column.kind == "numeric"
    }
    bytes_read = sum(
        file.stat().st_size * (4 if file.suffix in PACKED else 1) for file in source.files
    )
    expected = int(bytes_read * len(sample) / len(sample.write_csv().encode()))
    rows = 0
    for block in source.blocks(sample.columns):
        present = block.select([present_text(name) for name in types])
        types = {
            name: _narrowest(present[name].drop_nulls(), so_far) for name, so_far in types.items()
        }
        rows += len(block)
        tell("finding types", rows, max(rows, expected))
    return rows, types


def _narrowest(text: pl.Series, so_far: pl.DataType) -> pl.DataType:
    """Int64, Float64 or String: what holds this text, and what came before, without loss."""
    if so_far == pl.Int64 and not text.cast(pl.Int64, strict=False).null_count():
        return so_far
    too_long = text.str.contains(
        r"^[+-]?\d{16,}$"
    ).any()  # an id, of which a float would lose digits
    return (
        pl.String()
        if so_far == pl.String or too_long or text.cast(pl.Float64, strict=False).null_count()
        else pl.Float64()
    )


def _counted(frame: pl.LazyFrame, rows: int, tell: Progress) -> pl.LazyFrame:
    """The same rows, told about as they pass."""
    done = 0

    def count(block: pl.DataFrame) -> pl.DataFrame:
        nonlocal done
        done += len(block)
        tell("writing", done, rows)
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
