"""torchleap report, predict, export and compare: what to do with the results of select."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._common.errors import TorchleapError
from .._common.files import replace_file
from .._common.text import plural, table
from .show import IN_QUOTES, as_json, listed, names_of, progress, separator_of, show

if TYPE_CHECKING:
    from ..selection import Selection


def report(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The results of select, or a report.json.")],
    png: Annotated[
        bool, typer.Option("--png", help="Also write each chart as a PNG, for papers.")
    ] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Also write each chart as an SVG.")] = False,
) -> None:
    """Render the report again, and its charts as pictures.

    Example: torchleap report result --png
    """
    from ..report import Report

    source = folder if folder.suffix == ".json" else folder / "report.json"
    if not source.exists():
        raise TorchleapError(
            f"{folder} holds no results: expected {source.name} in it. Run torchleap select first."
        )
    found = Report.load(source)
    page = source.with_name("report.html")
    found.write(page)
    written = [page]
    for wanted, draw in ((png, found.png), (svg, found.svg)):
        written += draw(source.parent / "charts") if wanted else []
    if not context.obj["quiet"]:
        show("\n".join(f"Wrote {path}" for path in written))


def predict(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The results of select.")],
    file: Annotated[str, typer.Argument(help="Rows to score; they need the kept columns alone.")],
    out: Annotated[
        Path,
        typer.Option(
            help="The scores: .parquet or .csv, a column 'score' in the order of the rows."
        ),
    ],
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help=f"Columns to carry along before the score: a,b,c; {IN_QUOTES}."),
    ] = None,
    separator: Annotated[
        str | None, typer.Option(help="Of CSV; found in its first line if left out.")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(help=f"Of the columns of CSV without a header: a,b,c; {IN_QUOTES}."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Score the rows of a file with the saved model.

    Example: torchleap predict result new.parquet --id user_id,item_id --out scores.parquet
    """
    from ..data.files.convert import check_free
    from ..pipeline.serve import Served

    served = Served.load(folder)
    check_free(out, [".parquet", ".csv"], overwrite=force)
    carried = [name for word in ids or () for name in listed(word)]
    with progress(context) as tell:
        scores = served.scored(
            file,
            ids=carried,
            separator=separator_of(separator),
            names=names_of(names),
            progress=tell,
        )
    with replace_file(out) as temporary:
        (scores.write_csv if out.suffix == ".csv" else scores.write_parquet)(temporary)
    if not context.obj["quiet"]:
        show(
            f"Wrote {out}: {plural(len(scores), 'score')}, mean {scores['score'].to_numpy().mean():.4f}."
        )


def export(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The results of select.")],
    program: Annotated[
        Path | None, typer.Option(help="Write a program of torch.export: model.pt2.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option(help="Write ONNX: model.onnx.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write the saved model as a program for another runtime.

    Example: torchleap export result --onnx model.onnx
    """
    import torch

    from ..data.files.convert import check_free
    from ..export import to_onnx, to_program
    from ..pipeline.serve import Served

    if program is None and onnx is None:
        raise TorchleapError("Expected --program FILE or --onnx FILE, but found neither.")
    for path, ending in ((program, ".pt2"), (onnx, ".onnx")):
        if path is not None:
            check_free(path, [ending], overwrite=force)
    served = Served.load(folder)
    widths = {
        kind: max((stop for _, stop in own.values()), default=0)
        for kind, own in served.layout.items()
    }
    example = (torch.ones(8, widths["ids"], dtype=torch.int32), torch.randn(8, widths["numbers"]))
    for path, write in ((program, to_program), (onnx, to_onnx)):
        if path is not None:
            write(served.model, path, example)
            if not context.obj["quiet"]:
                show(f"Wrote {path}, {path.stat().st_size / 1e6:,.1f} MB.")


def compare(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(help="A selection.json, or the results of select.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show on which fields two selections differ.

    Example: torchleap compare monday/selection.json tuesday/selection.json
    """
    from ..selection import Selection

    a, b = (
        Selection.load(path / "selection.json" if path.is_dir() else path)
        for path in (first, second)
    )
    known = dict.fromkeys((*a.fields.names, *b.fields.names))
    differing = [name for name in known if (name in a.kept) != (name in b.kept)]
    content = {
        "jaccard": a.jaccard(b),
        "kept_by_both": [name for name in known if name in a.kept and name in b.kept],
        "only_first": [name for name in differing if name in a.kept],
        "only_second": [name for name in differing if name in b.kept],
    }
    if json:
        as_json(content)
        return
    both = len(set(a.kept) & set(b.kept))
    either = both + len(differing)
    show(
        f"{first}: {a!r}\n{second}: {b!r}\nOf {plural(either, 'field')} that one of them keeps, both keep {both}."
    )
    if not differing:
        show("They keep the same fields.", style="green")
        return
    cells = [[name, *(_score(selection, name) for selection in (a, b))] for name in differing]
    show("\n" + table(["field", "first", "second"], cells))


def _score(selection: Selection, name: str) -> str:
    if name not in selection.fields.names:
        return "unknown"
    return f"{selection.scores[name]:z.3f} {'kept' if name in selection.kept else 'dropped'}"
