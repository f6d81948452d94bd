"""torchleap data: look at data, convert it, make some."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .._common.errors import TorchleapError
from .._common.text import plural, table
from .show import IN_QUOTES, as_json, by_role, names_of, progress, separator_of, show


def data_inspect(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(help="Parquet, CSV, TSV or Arrow; also a folder, or a pattern in quotes."),
    ],
    label: Annotated[
        str | None, typer.Option(help="The column to predict; then leaks are looked for, too.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="The label is 1 above this, for ratings.")
    ] = None,
    positive: Annotated[
        str | None, typer.Option(help="The label is 1 where it has this value.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Look at that many rows at most.")] = 1_000_000,
    separator: Annotated[
        str | None, typer.Option(help="Of CSV; found in its first line if left out.")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(help=f"Of the columns of CSV without a header: a,b,c; {IN_QUOTES}."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what each column holds, and which look wrong.

    Example: torchleap data inspect clicks.parquet --label click
    """
    from ..data.files.inspection import inspect

    with progress(context) as tell:
        found = inspect(
            file, label=label, threshold=threshold, positive=positive, rows=rows,
            separator=separator_of(separator), names=names_of(names), progress=tell,
        )  # fmt: skip
    if json:
        as_json(found.to_json())
        return
    title, columns, notes = str(found).split("\n\n")
    show(title, style="bold")
    show(f"\n{columns}\n")
    show(notes, style="yellow" if any(column.notes for column in found.columns) else "green")


def data_convert(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(help="Parquet, CSV, TSV or Arrow; also a folder, or a pattern in quotes."),
    ],
    out: Annotated[Path, typer.Argument(help="The new file: .parquet, .arrow or .csv.")],
    separator: Annotated[
        str | None, typer.Option(help="Of CSV; found in its first line if left out.")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(help=f"Of the columns of CSV without a header: a,b,c; {IN_QUOTES}."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write the rows of a file in another format, with numbers as numbers.

    Example: torchleap data convert clicks.csv clicks.parquet
    """
    from ..data.files.convert import convert

    with progress(context) as tell:
        rows, columns = convert(
            source,
            out,
            separator=separator_of(separator),
            names=names_of(names),
            overwrite=force,
            progress=tell,
        )
    if not context.obj["quiet"]:
        show(
            f"Wrote {out}: {plural(rows, 'row')}, {plural(columns, 'column')}, {out.stat().st_size / 1e6:,.1f} MB."
        )


def data_make_industrial(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="The new file, which ends in .parquet.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows to draw.")] = 100_000,
    fields: Annotated[int, typer.Option(help="Fields, of all roles.")] = 64,
    dims: Annotated[int, typer.Option(help="Dimensions of all fields in the model.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Another seed gives other effects and rows.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Make a synthetic search-ranking log with known ground truth.

    Example: torchleap data make industrial log.parquet --rows 100000 --fields 64 --dims 1000
    """
    import polars as pl

    from ..data.files.convert import check_free
    from ..data.synthetic.industrial import IndustrialLog

    log = IndustrialLog(fields=fields, dims=dims, seed=seed)
    check_free(out, [".parquet"], overwrite=force)
    with progress(context) as tell:
        log.write(out, rows, progress=lambda done: tell("writing", done, rows))
    if not context.obj["quiet"]:
        show(
            f"Wrote {out}: {plural(rows, 'row')}, {fields} fields, {dims:,} dims, {out.stat().st_size / 1e6:,.1f} MB."
        )
        share = pl.read_parquet(out, columns=["label"])["label"].to_numpy().mean()
        show(f"The label is 1 in {100 * share:.1f} % of rows.\n\n{by_role(log.role, log.widths)}\n")
        show(f"Next: torchleap data inspect {shlex.quote(str(out))} --label label")


def data_cache(
    context: typer.Context,
    place: Annotated[Path, typer.Argument(help="A folder with data, or a file.")] = Path(),
    clear: Annotated[
        bool,
        typer.Option("--clear", help="Remove what is listed; it is made again when it is needed."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the encoded copies of data that torchleap keeps to begin faster, here and in the user's cache.

    Example: torchleap data cache --clear
    """
    from ..data.files import caches
    from ..report import numbers

    if not place.exists():
        raise TorchleapError(f"There is no folder {place}.")
    found = []
    for folder in caches.cache_folders(place):
        found += list(caches.clear(folder)) if clear else caches.cached_in(folder)
    if json:
        as_json([asdict(one) | {"path": str(one.path)} for one in found])
        return
    if not found:
        show("Nothing is kept here or in the user's cache.")
        return
    cells = [
        [str(one.path), numbers.size(one.bytes), _age(one.changed), one.source or "unknown"]
        for one in found
    ]
    longest = max(len(source) for *_, source in cells)
    header = ["folder", "size", "age", "of".ljust(longest)]
    show(table(header, [[*most, source.ljust(longest)] for *most, source in cells]))
    total = f"{plural(len(found), 'folder')}, {numbers.size(sum(one.bytes for one in found))}"
    show(f"Removed {total}." if clear else f"{total}; --clear removes them.")


def _age(moment: float) -> str:
    from ..report import numbers

    seconds = max(0.0, time.time() - moment)
    return numbers.seconds(seconds) if seconds < 86_400 else plural(int(seconds / 86_400), "day")
