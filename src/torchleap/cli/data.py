"""torchleap data: inspect data, convert it, make synthetic data, clear caches."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._common.errors import TorchleapError
from .._common.text import plural, table
from .options import CsvOptions, Force, InspectOptions, Json, Source
from .show import by_role, megabytes, progress, show, show_json

if TYPE_CHECKING:
    from ..data.files.caches import Cached

DAY = 86_400  # seconds


def data_inspect(
    context: typer.Context, file: Source, label: InspectOptions, csv: CsvOptions, json: Json = False
) -> None:
    """Show the content of each column, and which columns look wrong.

    Example: torchleap data inspect clicks.parquet --label click
    """
    from ..data.files.inspection import inspect

    with progress(context) as on_progress:
        found = inspect(file, **asdict(label), **csv.settings(), progress=on_progress)
    if json:
        show_json(found.to_json())
        return
    title, columns, notes = str(found).split("\n\n")
    has_notes = any(column.notes for column in found.columns)
    show(title, style="bold")
    show(f"\n{columns}\n")
    show(notes, style="yellow" if has_notes else "green")


def data_convert(
    context: typer.Context,
    source: Source,
    out: Annotated[Path, typer.Argument(help="The new file: .parquet, .arrow or .csv.")],
    csv: CsvOptions,
    force: Force = False,
) -> None:
    """Write the rows of a file in another format, with numbers as numbers.

    Example: torchleap data convert clicks.csv clicks.parquet
    """
    from ..data.files.convert import convert

    with progress(context) as on_progress:
        rows, columns = convert(
            source, out, **csv.settings(), overwrite=force, progress=on_progress
        )
    if not context.obj["quiet"]:
        counts = f"{plural(rows, 'row')}, {plural(columns, 'column')}"
        show(f"Wrote {out}: {counts}, {megabytes(out.stat().st_size)}.")


def data_make_industrial(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="The new file, which ends in .parquet.")],
    rows: Annotated[int, typer.Option(min=1, help="The number of rows to draw.")] = 100_000,
    fields: Annotated[int, typer.Option(help="The number of fields, of all roles.")] = 64,
    dims: Annotated[int, typer.Option(help="Dimensions of all fields in the model.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Another seed gives other effects and rows.")] = 0,
    force: Force = False,
) -> None:
    """Make a synthetic search-ranking log with known ground truth.

    Example: torchleap data make industrial log.parquet --rows 100000 --fields 64 --dims 1000
    """
    import polars as pl

    from ..data.files.convert import check_free
    from ..data.synthetic.industrial import IndustrialLog

    log = IndustrialLog(fields=fields, dims=dims, seed=seed)
    check_free(out, [".parquet"], overwrite=force)
    with progress(context) as on_progress:
        log.write(out, rows, progress=lambda done: on_progress("writing", done, rows))
    if context.obj["quiet"]:
        return
    size = megabytes(out.stat().st_size)
    show(f"Wrote {out}: {plural(rows, 'row')}, {fields} fields, {dims:,} dims, {size}.")
    positive = pl.read_parquet(out, columns=["label"])["label"].to_numpy().mean()
    show(f"The label is 1 in {100 * positive:.1f} % of rows.\n\n{by_role(log.role, log.widths)}\n")
    show(f"Next: torchleap data inspect {shlex.quote(str(out))} --label label")


def data_cache(
    context: typer.Context,
    place: Annotated[Path, typer.Argument(help="A folder with data, or a file.")] = Path(),
    clear: Annotated[
        bool,
        typer.Option("--clear", help="Remove the listed copies; they are made again when needed."),
    ] = False,
    json: Json = False,
) -> None:
    """List the encoded copies of data that speed up the next run, here and in the user's cache.

    Example: torchleap data cache --clear
    """
    from ..data.files import caches
    from ..report import numbers

    if not place.exists():
        raise TorchleapError(f"There is no folder {place}.")
    found: list[Cached] = []
    for folder in caches.cache_folders(place):
        found += caches.clear(folder) if clear else caches.cached_in(folder)
    if json:
        show_json([asdict(one) | {"path": str(one.path)} for one in found])
        return
    if not found:
        show("Nothing is kept here or in the user's cache.")
        return
    show(_cache_table(found))
    total = f"{plural(len(found), 'folder')}, {numbers.size(sum(one.bytes for one in found))}"
    show(f"Removed {total}." if clear else f"{total}; --clear removes them.")


def _cache_table(found: Sequence[Cached]) -> str:
    from ..report import numbers

    sources = [one.source or "unknown" for one in found]
    longest = max(map(len, sources))
    rows = []
    for one, source in zip(found, sources, strict=True):
        size = numbers.size(one.bytes)
        rows.append([str(one.path), size, _age(one.changed), source.ljust(longest)])
    return table(["folder", "size", "age", "of".ljust(longest)], rows)


def _age(moment: float) -> str:
    from ..report import numbers

    seconds = max(0.0, time.time() - moment)
    if seconds < DAY:
        return numbers.seconds(seconds)
    return plural(int(seconds / DAY), "day")
