"""Frames in memory, of pandas, polars or pyarrow, as frames of polars."""

from typing import Any

import polars as pl

from ..._common.errors import DataError
from ..._common.text import first_line


def as_frame(data: Any) -> pl.DataFrame:
    """Return a frame of pandas, polars or pyarrow as one of polars; refuse anything else."""
    kind = type(data)
    try:
        frame = _converted(data)
    except Exception as error:  # the three have errors of many classes for a column they lack
        package = kind.__module__.split(".")[0]
        raise DataError(f"The frame of {package} cannot be read: {first_line(error)}.") from error
    if frame is None:
        raise DataError(
            "Expected a path or a frame of pandas, polars or pyarrow, "
            f"but found {kind.__module__}.{kind.__name__}."
        )
    return frame


def _converted(data: Any) -> pl.DataFrame | None:
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if isinstance(data, pl.DataFrame):
        return data
    if type(data).__module__.split(".")[0] == "pandas":
        found = pl.from_pandas(data)
        return found if isinstance(found, pl.DataFrame) else None
    is_table = hasattr(data, "schema") or hasattr(data, "columns")  # and not one column of pyarrow
    if is_table and hasattr(data, "__arrow_c_stream__"):
        return pl.DataFrame(data)
    return None
