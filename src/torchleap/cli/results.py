"""torchleap report, predict, export and compare: commands that use the results of select."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._common.errors import TorchleapError
from .._common.files import replace_file
from .._common.text import plural, table
from .lists import listed
from .options import IN_QUOTES, CsvOptions, Force, Json, Results
from .show import megabytes, progress, show, show_json

if TYPE_CHECKING:
    from ..pipeline.serve import Served
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
            f"{folder} contains no results: expected {source.name} in it. "
            "Run torchleap select first."
        )
    found = Report.load(source)
    page = source.with_name("report.html")
    charts = source.parent / "charts"
    found.write(page)
    written = [page]
    if png:
        written += found.png(charts)
    if svg:
        written += found.svg(charts)
    if not context.obj["quiet"]:
        show("\n".join(f"Wrote {path}" for path in written))


def predict(
    context: typer.Context,
    folder: Results,
    file: Annotated[
        str, typer.Argument(help="The rows to score; only the kept columns are needed.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The file for the scores, .parquet or .csv: "
            "a column 'score' in the order of the rows."
        ),
    ],
    csv: CsvOptions,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help=f"Columns to copy before the score: a,b,c; {IN_QUOTES}."),
    ] = None,
    force: Force = False,
) -> None:
    """Score the rows of a file with the saved model.

    Example: torchleap predict result new.parquet --id user_id,item_id --out scores.parquet
    """
    from ..data.files.convert import check_free
    from ..pipeline.serve import Served

    served = Served.load(folder)
    check_free(out, [".parquet", ".csv"], overwrite=force)
    copied = [name for word in ids or () for name in listed(word)]
    with progress(context) as on_progress:
        scores = served.scored(file, ids=copied, **csv.settings(), progress=on_progress)
    with replace_file(out) as temporary:
        if out.suffix == ".csv":
            scores.write_csv(temporary)
        else:
            scores.write_parquet(temporary)
    if not context.obj["quiet"]:
        mean = scores["score"].to_numpy().mean()
        show(f"Wrote {out}: {plural(len(scores), 'score')}, mean {mean:.4f}.")


def export(
    context: typer.Context,
    folder: Results,
    program: Annotated[
        Path | None, typer.Option(help="Write a program of torch.export: model.pt2.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option(help="Write ONNX: model.onnx.")] = None,
    force: Force = False,
) -> None:
    """Write the saved model as a program for another runtime.

    Example: torchleap export result --onnx model.onnx
    """
    from ..data.files.convert import check_free
    from ..export import to_onnx, to_program
    from ..pipeline.serve import Served

    if program is None and onnx is None:
        raise TorchleapError("Expected --program FILE or --onnx FILE, but found neither.")
    if program is not None:
        check_free(program, [".pt2"], overwrite=force)
    if onnx is not None:
        check_free(onnx, [".onnx"], overwrite=force)
    served = Served.load(folder)
    example = _example(served)
    for path, write in ((program, to_program), (onnx, to_onnx)):
        if path is not None:
            write(served.model, path, example)
            if not context.obj["quiet"]:
                show(f"Wrote {path}, {megabytes(path.stat().st_size)}.")


def _example(served: Served, rows: int = 8) -> tuple[Any, Any]:
    """Return inputs of the saved model: ids and numbers of a few rows."""
    import torch

    widths = {}
    for kind, own in served.layout.items():
        widths[kind] = max((stop for _, stop in own.values()), default=0)
    ids = torch.ones(rows, widths["ids"], dtype=torch.int32)
    return ids, torch.randn(rows, widths["numbers"])


def compare(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(help="A selection.json, or the results of select.")],
    second: Annotated[Path, typer.Argument(help="The selection to compare it with.")],
    json: Json = False,
) -> None:
    """Show the fields on which two selections differ.

    Example: torchleap compare monday/selection.json tuesday/selection.json
    """
    one = _load_selection(first)
    other = _load_selection(second)
    known = dict.fromkeys((*one.fields.names, *other.fields.names))
    both = [name for name in known if name in one.kept and name in other.kept]
    only_one = [name for name in known if name in one.kept and name not in other.kept]
    only_other = [name for name in known if name in other.kept and name not in one.kept]
    if json:
        lists = {"kept_by_both": both, "only_first": only_one, "only_second": only_other}
        show_json({"jaccard": one.jaccard(other), **lists})
        return
    either = plural(len(both) + len(only_one) + len(only_other), "field")
    show(f"{first}: {one!r}\n{second}: {other!r}")
    show(f"Of {either} that one of them keeps, both keep {len(both)}.")
    differing = [name for name in known if name in only_one or name in only_other]
    if not differing:
        show("They keep the same fields.", style="green")
        return
    cells = [[name, _score(one, name), _score(other, name)] for name in differing]
    show("\n" + table(["field", "first", "second"], cells))


def _load_selection(path: Path) -> Selection:
    from ..selection import Selection

    return Selection.load(path / "selection.json" if path.is_dir() else path)


def _score(selection: Selection, name: str) -> str:
    if name not in selection.fields.names:
        return "unknown"
    decision = "kept" if name in selection.kept else "dropped"
    return f"{selection.scores[name]:z.3f} {decision}"
