"""torchleap select and demo: from a file to a smaller model and a page that says why."""

from __future__ import annotations

import os
import shlex
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .._common.errors import TorchleapError
from .._common.locks import held
from .._common.text import plural
from .inputs import findings_of, show_findings, show_opening
from .show import (
    IN_QUOTES,
    as_json,
    joined,
    listed,
    names_of,
    numbers_by_name,
    progress,
    separator_of,
    show,
)

if TYPE_CHECKING:
    from ..data.synthetic.truth import KnownTruth
    from ..pipeline.decide import Decision
    from ..selection import Selection

STATE = ".state"  # what a run that was broken off leaves in the folder
RESULTS = (
    "selection.json",
    "model",
    "encoding",
    "layout.json",
    "metrics.json",
    "history.jsonl",
    "report.json",
    "report.html",
)


def select(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(help="Parquet, CSV, TSV or Arrow; also a folder, or a pattern in quotes."),
    ],
    label: Annotated[str, typer.Option(help="The column to predict, 0 or 1.")],
    out: Annotated[Path, typer.Option(help="The folder for the results.")],
    method: Annotated[
        str, typer.Option(help="How to score fields: leap, permutation, shark, ...")
    ] = "leap",
    model: Annotated[
        str, typer.Option(help="The backbone: wide_deep, deepfm, dcn, fibinet, mlp, dlrm.")
    ] = "wide_deep",
    threshold: Annotated[
        float | None, typer.Option(help="Keep fields that score at least this; 0.5 for gates.")
    ] = None,
    share: Annotated[float | None, typer.Option(help="Keep this share of the fields.")] = None,
    dims: Annotated[int | None, typer.Option(help="Keep at most so many dimensions.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Keep at most so much cost; see --cost.")
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            help="""What fields cost to keep: name=2.5,other=1, or '"a,b"=2,c=1'; else their width."""
        ),
    ] = None,
    protect: Annotated[
        str | None, typer.Option(help=f"Fields that are always kept: a,b,c; {IN_QUOTES}.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="The column of GAUC's groups, such as users.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="When a row happened: split by it.")] = None,
    drop: Annotated[
        str | None, typer.Option(help=f"Columns to leave out: a,b,c; {IN_QUOTES}.")
    ] = None,
    columns: Annotated[
        Path | None, typer.Option(help="A TOML file that says what columns are.")
    ] = None,
    label_threshold: Annotated[
        float | None, typer.Option(help="The label is 1 above this, for ratings.")
    ] = None,
    positive: Annotated[
        str | None, typer.Option(help="The label is 1 where it has this value.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=2, help="Rows per step; by the number of rows if left out.")
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="At most so many; it stops when nothing gets better.")
    ] = 30,
    lr: Annotated[float, typer.Option(help="The learning rate.")] = 1e-3,
    seed: Annotated[
        int,
        typer.Option(
            help="The same seed gives the same selection, on the same machine and thread count."
        ),
    ] = 0,
    time_limit: Annotated[float | None, typer.Option(help="Seconds for the whole, about.")] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue a run that was interrupted, or by another rule one that decided nothing.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace results that are there.")] = False,
    separator: Annotated[
        str | None, typer.Option(help="Of CSV; found in its first line if left out.")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(help=f"Of the columns of CSV without a header: a,b,c; {IN_QUOTES}."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the fields that can go, cut them out, and write the smaller model with a report.

    Example: torchleap select clicks.parquet --label click --group user_id --out result

    On several processes: torchrun --nproc-per-node=2 -m torchleap.cli select ...
    """
    _check_place(out)
    context.with_resource(_alone(out))
    _check_folder(out, resume=resume, force=force)
    _check_rule({"--threshold": threshold, "--share": share, "--dims": dims, "--budget": budget})
    costs = numbers_by_name(cost, "--cost")
    from .. import methods, models
    from ..data import read
    from ..distributed import ranks
    from ..pipeline.decide import decide, forget
    from ..pipeline.search import suited_batch
    from ..training.fit import Training

    chosen, backbone = methods.named(method), models.named(model)  # before the data is read
    training = Training(
        epochs=epochs, lr=lr, metric="gauc" if group else "auc", checkpoint_minutes=1.0
    )
    started = clock.time() - 1  # files are dated by a coarser clock
    reading: dict[str, Any] = {
        "label": label, "threshold": label_threshold, "positive": positive,
        "separator": separator_of(separator), "names": names_of(names),
    }  # fmt: skip
    with progress(context) as tell:
        task = read(
            file,
            **reading,
            group=group,
            time=time,
            drop=listed(drop),
            columns=columns,
            seed=seed,
            progress=tell,
        )
        task = task.priced(costs=costs, protect=listed(protect))
        findings = findings_of(context, task, file, reading)
    with ranks.joined(), _kept(context, out):
        with ranks.first_before_others():
            if ranks.is_first() and not resume:
                forget(out / STATE)
        opening = partial(show_opening, task, findings, file, started)
        with _watch(context, opening, quiet=json) as watch:
            decision = decide(
                task, model=backbone, method=chosen, training=replace(training, batch=batch or suited_batch(task)),
                threshold=threshold, share=share, dims=dims, cost=budget, seed=seed, time_limit=time_limit,
                checkpoint=out / STATE, keep_checkpoint=True, callbacks=watch.callbacks, on_stage=watch.stage, findings=findings,
            )  # fmt: skip
            decision.record["task"]["source"] = file
        with ranks.first_before_others():
            if ranks.is_first():
                _write(context, decision, out)
                if (
                    decision.record["undecided"] is None
                ):  # else another rule may follow, which needs no training
                    forget(out / STATE)
                _tell(context, decision, out, json, time_limit)


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder for the results.")] = Path("torchleap-demo"),
    rows: Annotated[int, typer.Option(min=5_000, help="Rows to draw.")] = 60_000,
    seed: Annotated[
        int,
        typer.Option(
            help="Another seed draws another world; it repeats on the same machine and threads."
        ),
    ] = 0,
) -> None:
    """Select among 26 fields of synthetic rows with known ground truth, 1 to 256 wide, and compare; about a minute.

    Example: torchleap demo
    """
    from ..data.synthetic.truth import KnownTruth, known_truth
    from ..pipeline.decide import decide
    from ..training.fit import Training

    _check_place(out)
    context.with_resource(_alone(out))
    truth = KnownTruth(seed=seed)
    task = known_truth(truth, rows)
    training = Training(batch=256, epochs=12, patience=2)
    with _watch(context, partial(show_opening, task, [], "", 0.0)) as watch:
        decision = decide(
            task,
            training=training,
            seed=seed,
            callbacks=watch.callbacks,
            on_stage=watch.stage,
            roles=truth.role,
        )
    decision.record["task"]["source"] = (
        f"synthetic: tl.data.known_truth(tl.data.KnownTruth(seed={seed}), {rows})"
    )
    _write(context, decision, out)
    show(f"\n{against_truth(decision.selection, truth)}")
    _tell(context, decision, out, as_json_too=False, time_limit=None)


def against_truth(selection: Selection, truth: KnownTruth) -> str:
    """Say what a selection got right, where the ground truth is known."""
    kept = set(selection.kept)
    lost = [name for name in truth.useful if name not in kept]
    dropped = [name for name in truth.useless if name not in kept]
    copies = [name for name in truth.source if name not in kept]
    counts = (
        f"Against the truth: {len(truth.useful) - len(lost)} of {plural(len(truth.useful), 'useful field')} kept, "
        f"{len(dropped)} of {plural(len(truth.useless), 'useless field')} dropped, "
        f"{len(copies)} of {len(truth.source)} redundant copies dropped."
    )
    return f"{counts} Useful, but dropped: {shortened(lost, 6, '')}." if lost else counts


def _alone(out: Path) -> AbstractContextManager[None]:
    """Hold the folder, by the first rank, so that no other run writes to it."""
    return held(out) if os.environ.get("RANK", "0") == "0" else nullcontext()


def _check_place(out: Path) -> None:
    """Refuse a folder that cannot be written to, before any work."""
    nearest = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "is not yours to write to" if nearest.is_dir() else "is a file"
        raise TorchleapError(
            f"The results cannot be written to {out}: {nearest} {reason}. Give another --out."
        )


def _check_folder(out: Path, *, resume: bool, force: bool) -> None:
    """Refuse a folder in which something would be lost, before any work."""
    state = (out / STATE / "full.pt").exists()  # as selecting.is_saved, which takes torch
    there = [name for name in RESULTS if (out / name).exists()]
    if resume and not state:
        done = "is done already" if there else "has no run to resume"
        raise TorchleapError(f"{out} {done}. Leave --resume out.")
    if state and not resume and not force:
        raise TorchleapError(
            f"{out} has a run that was not finished. Give --resume to continue it, or --force to start again."
        )
    if there and not force and not resume:
        raise TorchleapError(
            f"{out} has results already: {', '.join(there[:3])}. Give another --out, or --force to replace them."
        )


def _check_rule(rules: Mapping[str, float | None]) -> None:
    given = [option for option, value in rules.items() if value is not None]
    if len(given) > 1:
        raise TorchleapError(
            f"Expected one of {', '.join(rules)}, but found {' and '.join(given)}. Give one of them."
        )


@contextmanager
def _kept(context: typer.Context, out: Path) -> Iterator[None]:
    """Say how to resume a run that is interrupted."""
    from ..distributed import ranks
    from ..pipeline.decide import is_saved

    try:
        yield
    except KeyboardInterrupt:
        if ranks.is_first() and is_saved(out / STATE):
            Console(stderr=True).print(
                f"Saved; continue with: {_command(context, '--resume')}",
                markup=False,
                highlight=False,
                emoji=False,
                soft_wrap=True,
            )
        raise


def _command(context: typer.Context, *more: str) -> str:
    """What was called, to be called again."""
    words = [word for word in context.obj["words"] if word not in ("--resume", "--force")]
    count = os.environ.get("WORLD_SIZE", "1") if "LOCAL_RANK" in os.environ else "1"
    program = (
        ["torchleap"]
        if count == "1"
        else ["torchrun", f"--nproc-per-node={count}", "-m", "torchleap.cli"]
    )
    return shlex.join([*program, *words, *more])


def _write(context: typer.Context, decision: Decision, out: Path) -> None:
    from ..report import Report

    decision.record["command"] = _command(context)
    report = Report(decision.record)
    decision.save(out, also=lambda made: report.write(made / "report.html"))


def _tell(
    context: typer.Context,
    decision: Decision,
    out: Path,
    as_json_too: bool,
    time_limit: float | None,
) -> None:
    from ..report.verdict import advice, certainty, headline, savings

    record, selection = decision.record, decision.selection
    if as_json_too:
        keys = ("rule", "metrics", "savings", "seconds")
        found = {"findings": record["findings"], "undecided": record["undecided"], "out": str(out)}
        named = {"kept": selection.kept, "dropped": selection.dropped}
        as_json({**named, **{key: record[key] for key in keys}, **found})
        return
    if not context.obj["quiet"]:
        show("")
    show(headline(record), style="bold")
    show_findings(
        [one for one in record["findings"] if one["kind"] == "leak"], str(record["task"]["source"])
    )
    if selection.dropped:
        show(f"{measured(record)} {certainty(record)}\n{savings(record)}")
        show(f"Keep: {shortened(selection.kept)}.\nDrop: {shortened(selection.dropped)}.")
    elif record["undecided"]:
        show(
            f"{advice(record)} To keep the better half, without training again: --resume --share 0.5 in place of another rule."
        )
    else:
        show(
            f"{_why_all_stay(record, time_limit)} Another one drops some: torchleap select ... --share 0.5."
        )
    unsure = "" if record["undecided"] else least_sure(record)
    if unsure:
        show(f"Close calls: {unsure}.")
    if not context.obj["quiet"]:
        show(f"\nWrote {out}: the report is {out / 'report.html'}, the model {out / 'model'}.")
        scores = shlex.quote(str(out / "scores.parquet"))
        show(f"Next: torchleap predict {shlex.quote(str(out))} NEW_FILE --out {scores}")


def _why_all_stay(record: Mapping[str, Any], time_limit: float | None) -> str:
    if "threshold" not in record["rule"]:
        return "By this rule none of them has to go."
    early = (
        ""
        if time_limit is None
        else f" Gates close late: within {time_limit:g} seconds they may have had too few steps."
    )
    return f"No field that may go scores low enough by this rule.{early}"


def measured(record: Mapping[str, Any]) -> str:
    """The metric of both models, and on how many rows."""
    metric, rows = record["metrics"]["difference"]["metric"], record["task"]["rows"]["test"]
    before, after = (record["metrics"][part][metric] for part in ("before", "after"))
    return f"{metric.upper()} on {plural(rows, 'test row')}: {before:.4f} with all fields, {after:.4f} with those kept."


def shortened(names: Sequence[str], count: int = 12, where: str = ", see selection.json") -> str:
    """The first names, and how many there are besides."""
    more = f" and {len(names) - count:,} more{where}" if len(names) > count else ""
    return f"{joined(names[:count])}{more}" or "nothing"


def least_sure(record: Mapping[str, Any], count: int = 3, within: float = 0.2) -> str:
    """The fields whose gates ended near the threshold, where there is one."""
    from ..report.record import decision, threshold

    bar = threshold(record)
    if bar is None:
        return ""
    near = sorted(
        (abs(f["score"] - bar), f["name"], f) for f in record["fields"] if not f["protected"]
    )
    shown = [
        f"{name} ({f['score']:.2f}, {decision(f)})"
        for away, name, f in near[:count]
        if away <= within
    ]
    return f"{', '.join(shown)}; the threshold is {bar:g}" if shown else ""


class _watch:  # noqa: N801
    """Shows the stages, a bar with the time left, and the gates; nothing if the command is to be quiet."""

    def __init__(
        self, context: typer.Context, opening: Callable[[], None], *, quiet: bool = False
    ) -> None:
        from ..callbacks import LiveGates, Progress

        self.console = Console(stderr=True)
        self.opening: Callable[[], None] | None = (
            opening  # called once all settings have been found good
        )
        self.quiet = quiet or bool(context.obj["quiet"])
        self.gates, self.bar = LiveGates(console=self.console), Progress(self.console)
        self.callbacks = () if self.quiet else (self.gates, self.bar)

    def __enter__(self) -> _watch:
        return self

    def __exit__(self, *problem: object) -> None:
        self.bar.__exit__(*problem)
        self.gates.__exit__(*problem)

    def stage(self, name: str) -> None:
        """A new stage begins."""
        if not self.quiet:
            if self.opening is not None:
                self.opening()
                self.opening = None
            self.console.print(f"{name} ...", style="dim", highlight=False)
