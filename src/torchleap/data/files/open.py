"""Open any path, folder, pattern or frame as a Source."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .delimited import Layout
from .foreign import refuse_foreign
from .formats import FORMATS, format_of
from .frames import as_frame
from .paths import find_files, refuse_address
from .source import Source


def open_source(
    data: Any, *, separator: str | None = None, names: Sequence[str] | None = None
) -> Source:
    """Open a path, a folder, a pattern with * or a frame.

    Args:
        data: A path, or a frame of pandas, polars or pyarrow.
        separator: The character between the columns of CSV; None finds it in the first line.
        names: The names of the columns of a CSV file without a header; None if it has one.
    """
    layout = Layout(separator, names)
    if not isinstance(data, str | os.PathLike):
        return Source("the frame", as_frame(data).lazy())
    refuse_address(str(data))
    found = find_files(Path(data), FORMATS)
    for file in found.files:
        refuse_foreign(file, found.ending)
    return format_of(found.ending).open(found, layout)
