"""torchleap select and demo: from a file to a smaller model and a page that says why."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..errors import TorchleapError
from ..text import plural
from .show import as_json, listed, names_of, numbers_by_name, progress, separator_of, show

if TYPE_CHECKING:
    from ..selecting import Decision

STATE = ".state"  # what a run that was broken off leaves in the folder
RESULTS = ("selection.json", "model", "encoding", "layout.json", "metrics.json", "history.jsonl", "report.json", "report.html")


def select(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="Parquet, CSV, TSV or Arrow; also a folder, or a pattern in quotes.")],
    label: Annotated[str, typer.Option(help="The column to predict, 0 or 1.")],
    out: Annotated[Path, typer.Option(help="The folder for the results.")],
    method: Annotated[str, typer.Option(help="How to score fields: leap, permutation, shark, ...")] = "leap",
    model: Annotated[str, typer.Option(help="The backbone: wide_deep, deepfm, dcn, fibinet, mlp, dlrm.")] = "wide_deep",
    threshold: Annotated[float | None, typer.Option(help="Keep fields that score at least this; 0.5 for gates.")] = None,
    share: Annotated[float | None, typer.Option(help="Keep this share of the fields.")] = None,
    dims: Annotated[int | None, typer.Option(help="Keep at most so many dimensions.")] = None,
    budget: Annotated[float | None, typer.Option(help="Keep at most so much cost; see --cost.")] = None,
    cost: Annotated[str | None, typer.Option(help="What fields cost to keep: name=2.5,other=1; else their width.")] = None,
    protect: Annotated[str | None, typer.Option(help="Fields that are always kept: a,b,c.")] = None,
    group: Annotated[str | None, typer.Option(help="The column of GAUC's groups, such as users.")] = None,
    time: Annotated[str | None, typer.Option(help="When a row happened: split by it.")] = None,
    drop: Annotated[str | None, typer.Option(help="Columns to leave out: a,b,c.")] = None,
    columns: Annotated[Path | None, typer.Option(help="A TOML file that says what columns are.")] = None,
    label_threshold: Annotated[float | None, typer.Option(help="The label is 1 above this, for ratings.")] = None,
    label_positive: Annotated[str | None, typer.Option(help="The label is 1 where it has this value.")] = None,
    batch: Annotated[int | None, typer.Option(min=2, help="Rows a step; by the number of rows if left out.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="At most so many; it stops when nothing gets better.")] = 30,
    lr: Annotated[float, typer.Option(help="The learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="The same seed gives the same selection.")] = 0,
    time_limit: Annotated[float | None, typer.Option(help="Seconds for the whole, about.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was broken off.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace results that are there.")] = False,
    separator: Annotated[str | None, typer.Option(help="Of CSV; found in its first line if left out.")] = None,
    names: Annotated[str | None, typer.Option(help="Of the columns of CSV without a header: a,b,c.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the fields that can go, cut them out, and write the smaller model with a report.

    Example: torchleap select clicks.parquet --label click --group user_id --out result
    """
    _check_folder(out, resume=resume, force=force)
    from ..data import read
    from ..searching import seeded
    from ..selecting import decide
    from ..train import Training

    with progress(context) as tell:
        task = read(
            file, label=label, threshold=label_threshold, positive=label_positive, group=group, time=time, drop=listed(drop),
            columns=columns, separator=separator_of(separator), names=names_of(names), seed=seed, progress=tell,
        )  # fmt: skip
    task = task.priced(costs=numbers_by_name(cost, "--cost"), protect=listed(protect))
    by_rows = seeded(None, task, seed).batch
    training = Training(batch=batch or by_rows, epochs=epochs, lr=lr, metric="gauc" if group else "auc", checkpoint_minutes=1.0)
    if not context.obj["quiet"] and not json:
        show(f"{task!r}\n")
    with _watch(context, json) as watch:
        decision = decide(
            task, model=model, method=method, training=training, threshold=threshold, share=share, dims=dims, cost=budget,
            seed=seed, time_limit=time_limit, checkpoint=out / STATE, callbacks=watch.callbacks, tell=watch.stage,
        )  # fmt: skip
    decision.record["task"]["source"] = file
    _write(decision, out)
    _tell(context, decision, out, json)


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder for the results.")] = Path("torchleap-demo"),
    rows: Annotated[int, typer.Option(min=5_000, help="Rows of the log.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Another seed gives another log.")] = 0,
) -> None:
    """The whole story on a made search-ranking log of which it is known what each field is for; about two minutes.

    Example: torchleap demo
    """
    from ..data.industrial import IndustrialLog, industrial
    from ..selecting import decide
    from ..train import Training

    with progress(context) as tell:
        task = industrial(rows, fields=64, dims=1_000, seed=seed, progress=tell)
    log = IndustrialLog(fields=64, dims=1_000, seed=seed)
    show(f"{task!r}\n")
    training = Training(batch=1024, epochs=12, metric="gauc", patience=2)
    with _watch(context, quiet=False) as watch:
        decision = decide(task, training=training, seed=seed, callbacks=watch.callbacks, tell=watch.stage, roles=log.role)
    decision.record["task"]["source"] = f"made: torchleap data make industrial log.parquet --rows {rows} --seed {seed}"
    _write(decision, out)
    show(f"\n{_truth(decision, log.useful, log.useless)}")
    _tell(context, decision, out, as_json_too=False)


def _truth(decision: Decision, useful: Sequence[str], useless: Sequence[str]) -> str:
    kept = set(decision.selection.kept)
    lost = [name for name in useful if name not in kept]
    return (
        f"Against the truth: {len(useful) - len(lost)} of {plural(len(useful), 'useful field')} kept, "
        f"{len([name for name in useless if name not in kept])} of {plural(len(useless), 'useless field')} dropped."
        + (f" Useful, but dropped: {', '.join(lost[:6])}." if lost else "")
    )


def _check_folder(out: Path, *, resume: bool, force: bool) -> None:
    """Before any work: is there anything that would be lost?"""
    there = [name for name in RESULTS if (out / name).exists()]
    if resume and not (out / STATE).exists():
        raise TorchleapError(f"{out} has no run to go on with. Leave --resume out.")
    if (out / STATE).exists() and not resume:
        if not force:
            raise TorchleapError(f"{out} has a run that was broken off. Give --resume to go on, or --force to start anew.")
        shutil.rmtree(out / STATE)
    if there and not force and not resume:
        raise TorchleapError(
            f"{out} has results already: {', '.join(there[:3])}. Give another --out, or --force to replace them."
        )
    out.mkdir(parents=True, exist_ok=True)


def _write(decision: Decision, out: Path) -> None:
    from ..report import Report

    decision.record["command"] = shlex.join(["torchleap", *sys.argv[1:]])
    decision.save(out)
    Report(decision.record).write(out / "report.html")


def _tell(context: typer.Context, decision: Decision, out: Path, as_json_too: bool) -> None:
    from ..report.verdict import certainty, headline, savings

    record, selection = decision.record, decision.selection
    if as_json_too:
        keys = ("rule", "metrics", "savings", "seconds")
        as_json({"kept": selection.kept, "dropped": selection.dropped, **{key: record[key] for key in keys}, "out": str(out)})
        return
    if not context.obj["quiet"]:
        show("")
    show(headline(record), style="bold")
    show(f"{certainty(record)}\n{savings(record)}")
    show(f"Drop: {', '.join(selection.dropped) or 'nothing'}.")
    unsure = least_sure(record)
    if unsure:
        show(f"Least sure: {unsure}.")
    if not context.obj["quiet"]:
        show(f"\nWrote {out}: the report is {out / 'report.html'}, the model {out / 'model'}.")
        show(f"Next: torchleap predict {shlex.quote(str(out))} NEW_FILE --out scores.parquet")


def least_sure(record: Mapping[str, Any], count: int = 3) -> str:
    """The fields whose scores lie nearest to the threshold, where there is one."""
    threshold = record["rule"].get("threshold")
    if threshold is None:
        return ""
    near = sorted(record["fields"], key=lambda f: abs(f["score"] - threshold))[:count]
    return ", ".join(f"{f['name']} ({f['score']:.2f})" for f in near)


class _watch:  # noqa: N801
    """Shows the stages, a bar with the time left, and the gates; nothing if the command is to be quiet."""

    def __init__(self, context: typer.Context, quiet: bool) -> None:
        from ..callbacks import LiveGates, Progress

        self.console = Console(stderr=True)
        self.quiet = quiet or bool(context.obj["quiet"])
        self.bar = Progress(self.console)
        self.callbacks = () if self.quiet else (LiveGates(console=self.console), self.bar)

    def __enter__(self) -> _watch:
        return self

    def __exit__(self, *problem: object) -> None:
        self.bar.__exit__(*problem)

    def stage(self, name: str) -> None:
        """A new stage begins."""
        if not self.quiet:
            self.console.print(f"{name} ...", style="dim", highlight=False)
