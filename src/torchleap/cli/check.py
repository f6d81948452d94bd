"""torchleap check: is the smaller model of a result still safe, on new labelled rows?"""

from __future__ import annotations

from typing import Annotated

import typer

from .options import Ab, CsvOptions, Json, Results
from .show import progress, show, show_json

NOT_CERTIFIED = 3  # the exit code where the verdict is not "safe"
STYLES = {"safe": "bold green", "not safe": "bold red", "undecided": "bold yellow"}


def check(
    context: typer.Context,
    folder: Results,
    file: Annotated[
        str,
        typer.Argument(help="New rows with the label and all columns that select has read."),
    ],
    csv: CsvOptions,
    margin: Annotated[
        float | None,
        typer.Option(
            help="The loss of the metric that is acceptable; "
            "that of the result, or 0.001, if left out."
        ),
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help="The margin is a fraction of the metric.")
    ] = False,
    ab: Ab = False,
    json: Json = False,
) -> None:
    """Check whether the smaller model is still as good as the full one, on new labelled rows.

    The exit code is 0 if it is safe, 3 if that is not certified, and 2 on bad input.

    Example: torchleap check result yesterday.parquet --margin 0.001
    """
    from ..pipeline.serve import Served

    served = Served.load(folder)
    with progress(context) as on_progress:
        found = served.check(
            file,
            margin=margin,
            relative=relative,
            ab=ab,
            **csv.settings(),
            progress=on_progress,
        )
    certificate = found.certificate
    if json:
        show_json(found.to_json())
    else:
        headline, *others = str(found).splitlines()
        show(headline, style=STYLES[certificate.verdict])
        if others:
            show("\n".join(others))
    if not certificate.is_safe:
        raise typer.Exit(NOT_CERTIFIED)
