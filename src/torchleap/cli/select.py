"""torchleap select and demo: from a file to a smaller model and a page that says why."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..errors import SelectionError, TorchleapError
from ..text import held, plural
from .show import IN_QUOTES, as_json, joined, listed, names_of, numbers_by_name, progress, separator_of, show

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
    cost: Annotated[
        str | None, typer.Option(help="""What fields cost to keep: name=2.5,other=1, or '"a,b"=2,c=1'; else their width.""")
    ] = None,
    protect: Annotated[str | None, typer.Option(help=f"Fields that are always kept: a,b,c; {IN_QUOTES}.")] = None,
    group: Annotated[str | None, typer.Option(help="The column of GAUC's groups, such as users.")] = None,
    time: Annotated[str | None, typer.Option(help="When a row happened: split by it.")] = None,
    drop: Annotated[str | None, typer.Option(help=f"Columns to leave out: a,b,c; {IN_QUOTES}.")] = None,
    columns: Annotated[Path | None, typer.Option(help="A TOML file that says what columns are.")] = None,
    label_threshold: Annotated[float | None, typer.Option(help="The label is 1 above this, for ratings.")] = None,
    positive: Annotated[str | None, typer.Option(help="The label is 1 where it has this value.")] = None,
    batch: Annotated[int | None, typer.Option(min=2, help="Rows a step; by the number of rows if left out.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="At most so many; it stops when nothing gets better.")] = 30,
    lr: Annotated[float, typer.Option(help="The learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="The same seed gives the same selection.")] = 0,
    time_limit: Annotated[float | None, typer.Option(help="Seconds for the whole, about.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was broken off.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace results that are there.")] = False,
    separator: Annotated[str | None, typer.Option(help="Of CSV; found in its first line if left out.")] = None,
    names: Annotated[str | None, typer.Option(help=f"Of the columns of CSV without a header: a,b,c; {IN_QUOTES}.")] = None,
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
    from .. import methods, models, ranks
    from ..data import read
    from ..searching import suited_batch
    from ..selecting import decide, forget
    from ..train import Training

    chosen, backbone = methods.named(method), models.named(model)  # before the data is read
    training = Training(epochs=epochs, lr=lr, metric="gauc" if group else "auc", checkpoint_minutes=1.0)
    with progress(context) as tell:
        task = read(
            file, label=label, threshold=label_threshold, positive=positive, group=group, time=time, drop=listed(drop),
            columns=columns, separator=separator_of(separator), names=names_of(names), seed=seed, progress=tell,
        )  # fmt: skip
    task = task.priced(costs=costs, protect=listed(protect))
    with ranks.joined(), _kept(context, out):
        with ranks.first_before_others():
            if ranks.is_first() and not resume:
                forget(out / STATE)
        with _watch(context, repr(task), quiet=json) as watch:
            decision = decide(
                task, model=backbone, method=chosen, training=replace(training, batch=batch or suited_batch(task)),
                threshold=threshold, share=share, dims=dims, cost=budget, seed=seed, time_limit=time_limit,
                checkpoint=out / STATE, keep_checkpoint=True, callbacks=watch.callbacks, tell=watch.stage,
            )  # fmt: skip
            decision.record["task"]["source"] = file
        with ranks.first_before_others():
            if ranks.is_first():
                _write(context, decision, out)
                forget(out / STATE)
                _tell(context, decision, out, json, time_limit)


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder for the results.")] = Path("torchleap-demo"),
    rows: Annotated[int, typer.Option(min=5_000, help="Rows of the log.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Another seed gives another log.")] = 0,
) -> None:
    """The whole story on a made search-ranking log of which it is known what each field is for; about a minute.

    Example: torchleap demo
    """
    from ..data.industrial import IndustrialLog, industrial
    from ..selecting import decide
    from ..train import Training

    _check_place(out)
    context.with_resource(_alone(out))
    with progress(context) as tell:
        task = industrial(rows, fields=64, dims=1_000, seed=seed, progress=tell)
    log = IndustrialLog(fields=64, dims=1_000, seed=seed)
    training = Training(batch=1024, epochs=12, metric="gauc", patience=2)
    with _watch(context, repr(task)) as watch:
        decision = decide(task, training=training, seed=seed, callbacks=watch.callbacks, tell=watch.stage, roles=log.role)
    decision.record["task"]["source"] = f"made: torchleap data make industrial log.parquet --rows {rows} --seed {seed}"
    _write(context, decision, out)
    show(f"\n{_truth(decision, log.useful, log.useless)}")
    _tell(context, decision, out, as_json_too=False, time_limit=None)


def _truth(decision: Decision, useful: Sequence[str], useless: Sequence[str]) -> str:
    kept = set(decision.selection.kept)
    lost = [name for name in useful if name not in kept]
    return (
        f"Against the truth: {len(useful) - len(lost)} of {plural(len(useful), 'useful field')} kept, "
        f"{len([name for name in useless if name not in kept])} of {plural(len(useless), 'useless field')} dropped."
        + (f" Useful, but dropped: {', '.join(lost[:6])}." if lost else "")
    )


def _alone(out: Path) -> AbstractContextManager[None]:
    """Hold the folder, by the first rank, so that no other run writes to it."""
    return held(out) if os.environ.get("RANK", "0") == "0" else nullcontext()


def _check_place(out: Path) -> None:
    """Refuse a folder that cannot be written to, before any work."""
    nearest = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "is not yours to write to" if nearest.is_dir() else "is a file"
        raise TorchleapError(f"The results cannot be written to {out}: {nearest} {reason}. Give another --out.")


def _check_folder(out: Path, *, resume: bool, force: bool) -> None:
    """Refuse a folder in which something would be lost, before any work."""
    state = (out / STATE / "full.pt").exists()  # as selecting.is_saved, which takes torch
    there = [name for name in RESULTS if (out / name).exists()]
    if resume and not state:
        done = "is done already" if there else "has no run to go on with"
        raise TorchleapError(f"{out} {done}. Leave --resume out.")
    if state and not resume and not force:
        raise TorchleapError(f"{out} has a run that was broken off. Give --resume to go on, or --force to start anew.")
    if there and not force and not resume:
        raise TorchleapError(
            f"{out} has results already: {', '.join(there[:3])}. Give another --out, or --force to replace them."
        )


def _check_rule(rules: Mapping[str, float | None]) -> None:
    given = [option for option, value in rules.items() if value is not None]
    if len(given) > 1:
        raise TorchleapError(f"Expected one of {', '.join(rules)}, but found {' and '.join(given)}. Give one of them.")


@contextmanager
def _kept(context: typer.Context, out: Path) -> Iterator[None]:
    """Tell how to go on with a run that is broken off, or whose rule keeps no field."""
    from .. import ranks
    from ..selecting import is_saved

    try:
        yield
    except KeyboardInterrupt:
        if ranks.is_first() and is_saved(out / STATE):
            Console(stderr=True).print(
                f"Saved; go on with: {_command(context, '--resume')}", markup=False, highlight=False, emoji=False, soft_wrap=True
            )
        raise
    except SelectionError as error:
        if is_saved(out / STATE):
            raise TorchleapError(f"{error} The scores are saved: --resume with another rule trains nothing anew.") from error
        raise


def _command(context: typer.Context, *more: str) -> str:
    """What was called, to be called again."""
    words = [word for word in context.obj["words"] if word not in ("--resume", "--force")]
    count = os.environ.get("WORLD_SIZE", "1") if "LOCAL_RANK" in os.environ else "1"
    program = ["torchleap"] if count == "1" else ["torchrun", f"--nproc-per-node={count}", "-m", "torchleap.cli"]
    return shlex.join([*program, *words, *more])


def _write(context: typer.Context, decision: Decision, out: Path) -> None:
    from ..report import Report

    decision.record["command"] = _command(context)
    report = Report(decision.record)
    decision.save(out, also=lambda made: report.write(made / "report.html"))


def _tell(context: typer.Context, decision: Decision, out: Path, as_json_too: bool, time_limit: float | None) -> None:
    from ..report.verdict import certainty, headline, savings

    record, selection = decision.record, decision.selection
    if as_json_too:
        keys = ("rule", "metrics", "savings", "seconds")
        as_json({"kept": selection.kept, "dropped": selection.dropped, **{key: record[key] for key in keys}, "out": str(out)})
        return
    if not context.obj["quiet"]:
        show("")
    show(headline(record), style="bold")
    if selection.dropped:
        show(f"{measured(record)} {certainty(record)}\n{savings(record)}")
        show(f"Keep: {shortened(selection.kept)}.\nDrop: {shortened(selection.dropped)}.")
    else:
        show(f"{_why_all_stay(record, time_limit)} Another one drops some: torchleap select ... --share 0.5.")
    unsure = least_sure(record)
    if unsure:
        show(f"Close calls: {unsure}.")
    if not context.obj["quiet"]:
        show(f"\nWrote {out}: the report is {out / 'report.html'}, the model {out / 'model'}.")
        scores = shlex.quote(str(out / "scores.parquet"))
        show(f"Next: torchleap predict {shlex.quote(str(out))} NEW_FILE --out {scores}")


def _why_all_stay(record: Mapping[str, Any], time_limit: float | None) -> str:
    if "threshold" not in record["rule"]:
        return "By this rule none of them has to go."
    early = "" if time_limit is None else f" Gates close late: within {time_limit:g} seconds they may have had too few steps."
    return f"No field that may go scores low enough by this rule.{early}"


def measured(record: Mapping[str, Any]) -> str:
    """The metric of both models, and on how many rows."""
    metric, rows = record["metrics"]["difference"]["metric"], record["task"]["rows"]["test"]
    before, after = (record["metrics"][part][metric] for part in ("before", "after"))
    return f"{metric.upper()} on {plural(rows, 'test row')}: {before:.4f} with all fields, {after:.4f} with those kept."


def shortened(names: Sequence[str], count: int = 12) -> str:
    """The first names, and how many there are besides."""
    more = f" and {len(names) - count:,} more, see selection.json" if len(names) > count else ""
    return f"{joined(names[:count])}{more}" or "nothing"


def least_sure(record: Mapping[str, Any], count: int = 3, within: float = 0.2) -> str:
    """The fields whose gates ended near the threshold, where there is one."""
    from ..report.record import decision, threshold

    bar = threshold(record)
    if bar is None:
        return ""
    near = sorted((abs(f["score"] - bar), f["name"], f) for f in record["fields"] if not f["protected"])
    shown = [f"{name} ({f['score']:.2f}, {decision(f)})" for away, name, f in near[:count] if away <= within]
    return f"{', '.join(shown)}; the threshold is {bar:g}" if shown else ""


class _watch:  # noqa: N801
    """Shows the stages, a bar with the time left, and the gates; nothing if the command is to be quiet."""

    def __init__(self, context: typer.Context, title: str, *, quiet: bool = False) -> None:
        from ..callbacks import LiveGates, Progress

        self.console = Console(stderr=True)
        self.title = title  # shown once all settings have been found good
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
            if self.title:
                show(self.title)
                self.title = ""
            self.console.print(f"{name} ...", style="dim", highlight=False)
