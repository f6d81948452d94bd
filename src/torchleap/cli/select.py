"""torchleap select and demo: from a file to a smaller model and a report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .folder import STATE, alone, check_unused, check_writable, command_line, resumable
from .inputs import findings_of, show_opening
from .options import (
    CertificateOptions,
    CsvOptions,
    FieldOptions,
    ReadOptions,
    ResultOptions,
    RuleOptions,
    SearchOptions,
    Source,
)
from .show import progress, show
from .summary import against_truth, show_summary

if TYPE_CHECKING:
    from ..data.task import Task
    from ..pipeline.decide import Decision
    from ..training.fit import Training

CLOCK = 1.0  # seconds by which the times of files may be behind


def select(
    context: typer.Context,
    file: Source,
    reading: ReadOptions,
    csv: CsvOptions,
    search: SearchOptions,
    rules: RuleOptions,
    prices: FieldOptions,
    certificate: CertificateOptions,
    results: ResultOptions,
) -> None:
    """Find the fields that a model can do without, and write the smaller model with a report.

    Example: torchleap select clicks.parquet --label click --group user_id --out result

    On several processes: torchrun --nproc-per-node=2 -m torchleap.cli select ...
    """
    check_writable(results.out)
    context.with_resource(alone(results.out))
    check_unused(results.out, resume=results.resume, force=results.force)
    # checked before the data is read
    settings = {**_settings(search, rules), **certificate.settings()}
    started = time.time() - CLOCK
    task, findings = _read(context, file, reading, prices, csv, search.seed)
    settings["training"] = _suited(settings["training"], task, search.batch)
    about = {"findings": findings, "source": file, "command": command_line(context)}
    from ..distributed import ranks

    with ranks.joined(), resumable(context, results.out):
        opening = partial(show_opening, task, findings, file, started)
        with Watch(context, opening, quiet=results.json) as watch:
            decision = _decide(task, results, watch, **settings, **about)
        with ranks.first_before_others():
            if ranks.is_first():
                _write(decision, results.out)
                _forget_if_decided(decision, results.out)
                limit = search.time_limit
                show_summary(context, decision, results.out, json=results.json, time_limit=limit)


def _settings(search: SearchOptions, rules: RuleOptions) -> dict[str, Any]:
    """Return the settings of `decide` that do not depend on the data."""
    from .. import methods, models

    rule = rules.rule()
    limit = {} if rule is None else rule.to_json()
    price_by = {} if search.price_by is None else {"price_by": search.price_by}
    return {
        "method": methods.named(search.method, price_by),
        "model": models.named(search.model),
        "training": search.training(),
        "seed": search.seed,
        "time_limit": search.time_limit,
        **limit,
    }


def _read(
    context: typer.Context,
    file: str,
    reading: ReadOptions,
    prices: FieldOptions,
    csv: CsvOptions,
    seed: int,
) -> tuple[Task, list[dict[str, Any]]]:
    """Return the task of a file and the findings about its first rows."""
    from ..data import read

    of_fields = prices.settings()
    of_label = {**reading.label_settings(), **csv.settings()}
    of_roles = reading.role_settings()
    with progress(context) as on_progress:
        task = read(file, **of_label, **of_roles, seed=seed, progress=on_progress)
        task = task.priced(**of_fields)
        return task, findings_of(context, task, file, of_label)


def _suited(training: Training, task: Task, batch: int | None) -> Training:
    """Return the settings of the trainings with the metric and the batch that suit the task."""
    from ..pipeline.evidence import headline_of
    from ..pipeline.retrain import suited_batch

    return replace(training, metric=headline_of(task).name, batch=batch or suited_batch(task))


def _decide(task: Task, results: ResultOptions, watch: Watch, **settings: Any) -> Decision:
    """Return the decision; without --resume it starts from scratch."""
    from ..distributed import ranks
    from ..pipeline.checkpoint import forget
    from ..pipeline.decide import decide

    state = results.out / STATE
    with ranks.first_before_others():
        if ranks.is_first() and not results.resume:
            forget(state)
    return decide(
        task,
        **settings,
        checkpoint=state,
        keep_checkpoint=True,
        callbacks=watch.callbacks,
        on_stage=watch.stage,
    )


def _forget_if_decided(decision: Decision, out: Path) -> None:
    """Remove the checkpoints, unless another rule may follow, which then needs no training."""
    from ..pipeline.checkpoint import forget

    if decision.record["undecided"] is None:
        forget(out / STATE)


def _write(decision: Decision, out: Path) -> None:
    """Write the results with the report."""
    from ..report import Report

    report = Report(decision.record)
    decision.save(out, also=lambda made: report.write(made / "report.html"))


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder for the results.")] = Path("torchleap-demo"),
    rows: Annotated[int, typer.Option(min=5_000, help="The number of rows to draw.")] = 60_000,
    seed: Annotated[
        int,
        typer.Option(
            help="Another seed draws other data; "
            "a seed repeats on the same machine and thread count."
        ),
    ] = 0,
) -> None:
    """Select among 26 synthetic fields, 1 to 256 wide, and compare with the known ground truth.

    It takes about a minute.

    Example: torchleap demo
    """
    from ..data.synthetic.truth import KnownTruth, known_truth
    from ..pipeline.decide import decide
    from ..training.fit import Training

    check_writable(out)
    context.with_resource(alone(out))
    truth = KnownTruth(seed=seed)
    task = known_truth(truth, rows)
    with Watch(context, partial(show_opening, task, [], "", 0.0)) as watch:
        decision = decide(
            task,
            training=Training(batch=256, epochs=12, patience=2),
            seed=seed,
            callbacks=watch.callbacks,
            on_stage=watch.stage,
            roles=truth.role,
            source=f"synthetic: tl.data.known_truth(tl.data.KnownTruth(seed={seed}), {rows})",
            command=command_line(context),
        )
    _write(decision, out)
    show(f"\n{against_truth(decision.selection, truth)}")
    show_summary(context, decision, out)


class Watch:
    """Shows the stages of a decision, a bar with the time left, and the gates.

    Args:
        context: The context of the command; with --quiet nothing is shown.
        opening: Called once before the first stage, when all settings have been checked.
        quiet: Show nothing.
    """

    def __init__(
        self, context: typer.Context, opening: Callable[[], None], *, quiet: bool = False
    ) -> None:
        from ..callbacks import LiveGates, Progress

        self._console = Console(stderr=True)
        self._opening: Callable[[], None] | None = opening
        self._quiet = quiet or bool(context.obj["quiet"])
        self._gates = LiveGates(console=self._console)
        self._bar = Progress(self._console)
        self.callbacks = () if self._quiet else (self._gates, self._bar)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *problem: object) -> None:
        self._bar.__exit__(*problem)
        self._gates.__exit__(*problem)

    def stage(self, name: str) -> None:
        """Print the name of a stage that begins."""
        if self._quiet:
            return
        if self._opening is not None:
            self._opening()
            self._opening = None
        self._console.print(f"{name} ...", style="dim", highlight=False)
