"""decide: which fields a task does not need, and the smaller model with the evidence.

The stages, in their order: train with all fields, search, select, mask fields one after the other,
prune and fine-tune, compare; `_run` reads like that list.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from .._common.files import replace_file, replace_together
from .._common.plain import as_json, write_json
from ..data.files.task_findings import copied_rows, task_findings
from ..data.task import Task
from ..distributed import ranks
from ..evidence import Certificate, certify
from ..evidence.blocked import blocked_by
from ..evidence.certify import predictions, unit_of
from ..evidence.rehearsal import costs_saved, rehearse
from ..evidence.typical_training import typical_training
from ..export import Saved
from ..methods import Method
from ..methods import named as method_named
from ..models import Backbone
from ..models import named as backbone_named
from ..plugin import Plugin
from ..selection import Limits, Rule, Selection
from ..surgery.plan import plan_of
from ..training.fit import Hook, Training
from .checkpoint import claim, forget
from .evidence import (
    compare,
    curve_record,
    field_records,
    headline_of,
    known_metrics,
    masking_curve,
    path_curve,
    scoring_milliseconds,
    task_record,
    timed_rows,
    trajectories,
)
from .full import Compared, save_full, without_gates
from .job import Job, without_rule
from .pair import train_and_search
from .record import (
    CertificateRecord,
    CurveRecord,
    CutRecord,
    DecoysRecord,
    FindingRecord,
    MetricsRecord,
    PathRecord,
    SavingsRecord,
    SelectRecord,
)
from .repeat import RepeatBy
from .reruns import Reruns, Settings
from .retrain import seeded
from .search import SearchResult
from .serve import FULL as FULL_MODEL
from .serve import LAYOUT, MODEL, refuse_others, save_served
from .stages import OnStage, Stages

OF_HOOKS = ("gate_", "fall_std_")  # entries of the history that have one value per field


@dataclass(frozen=True)
class Decision:
    """Which fields to drop, the model without them, and the evidence.

    Attributes:
        selection: The fields that are kept and dropped, with their scores.
        model: The pruned and fine-tuned model.
        record: All that a report shows, as plain JSON: see `torchleap.pipeline.record`.
        task: The task that was decided on.
        certificate: Whether the smaller model may replace the full one; None where no field is
            dropped.
        full: The model of all fields that the pruned one was compared with; None if not kept.
    """

    selection: Selection
    model: nn.Module = field(repr=False)
    record: dict[str, Any] = field(repr=False)
    task: Task = field(repr=False)
    certificate: Certificate | None = field(repr=False, default=None)
    full: nn.Module | None = field(repr=False, default=None)

    def save(
        self,
        folder: str | os.PathLike[str],
        also: Callable[[Path], None] = lambda made: None,
        *,
        full: bool = True,
    ) -> Saved:
        """Write the result to a folder, all files or none.

        It warns if the model in it cannot be loaded without its code.

        The files are selection.json, model/, encoding/, full/, layout.json, metrics.json,
        history.jsonl and report.json.

        Args:
            folder: The folder, which is made if it does not exist; its other files stay.
            also: Writes more files to the folder that it is called with, which are put in place
                together with the others; by default there are none.
            full: Whether the model of all fields is kept, which `Served.check` compares with.

        Returns:
            Whether the model can be loaded without its code, and what is in the way.
        """
        refuse_others(Path(folder))
        with replace_together(folder, last=LAYOUT) as made:
            saved = replace(self._write(made, full), path=Path(folder) / MODEL)
            also(made)
        if not full:
            shutil.rmtree(Path(folder) / FULL_MODEL, ignore_errors=True)  # of a result before
        if not saved.loads_without_code:
            warnings.warn(str(saved), stacklevel=2)
        return saved

    def _write(self, folder: Path, full: bool) -> Saved:
        metrics = self.record["metrics"]
        by_name = {}
        for part in ("before", "after"):
            for name, value in metrics[part].items():
                by_name[f"{part}_{name}"] = value
        self.selection.save(folder / "selection.json")
        certificate = self.record["certificate"]
        digest = None
        if full and self.full is not None:
            saved_costs = costs_saved(self.task.costs, self.selection.dropped)
            compared = Compared.of(self.task, certificate or {}, saved_costs)
            digest = save_full(self.full, self.task, compared, folder / FULL_MODEL)
        saved = save_served(self.model, self.task, self.selection, folder, by_name, digest)
        write_json(folder / "metrics.json", {**metrics, "certificate": certificate}, indent=1)
        with replace_file(folder / "history.jsonl") as path:
            path.write_text("".join(map(as_json, self.record["history"])), encoding="utf-8")
        write_json(folder / "report.json", self.record)
        return saved


def decide(
    task: Task,
    *,
    model: str | Backbone = "wide_deep",
    method: str | Method = "leap",
    training: Training | None = None,
    threshold: float | None = None,
    share: float | None = None,
    dims: int | None = None,
    cost: float | None = None,
    worth: float | None = None,
    tolerance: float | str | None = None,
    fdr: float | None = None,
    margin: float = 0.001,
    relative: bool = False,
    repeats: int = 1,
    repeat_by: RepeatBy = "training",
    folds: int | None = None,
    slice_margin: float | None = None,
    slice_by: str | Sequence[str] = (),
    seed: int = 0,
    time_limit: float | None = None,
    callbacks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
    on_stage: OnStage = lambda stage: None,
    roles: Mapping[str, str] | None = None,
    findings: Sequence[Mapping[str, Any]] | None = None,
    source: str | None = None,
    command: str | None = None,
    ab: bool = False,
) -> Decision:
    """Score the fields, drop some by a rule, prune and fine-tune the model, and compare it.

    The pruned model is compared on the test rows with a model of all fields that was trained
    without any selection; `decision.certificate` says whether it may replace that model. No stage
    before the comparison reads the inputs of a test row. LeAP's own model is pruned, with the
    weights that it had on the path when it had adapted to about these fields; the scores of other
    methods are applied to the model of all fields. Where no field reaches a threshold, and, without
    a rule, where the rows are too few to decide, all fields are kept and `record["undecided"]` is
    the reason.

    On several ranks (`torchrun`) the ranks divide the trainings and all return the same decision;
    only the first one should save it.

    Args:
        task: The data.
        model: The backbone, or its name.
        method: The method, or its name.
        training: The settings of the trainings; None is the default with a suitable batch.
        threshold: Keep fields whose gate is at least this. One rule may be given; the default is
            a tolerance of one standard error on LeAP's path, a threshold of 0.5 for other gates,
            and half of the fields for other scores.
        share: Keep this share of the fields.
        dims: Keep at most this many dimensions.
        cost: Keep fields of at most this cost in total.
        worth: Keep fields that are worth at least this many nats.
        tolerance: Keep the fewest fields whose validation metric is within this of the best on
            the path; "1se" is one standard error. Permutation, SHARK and SFS then have a path by
            masking, see `search`.
        fdr: Keep as many fields as possible, of which at most this share is useless on average.
            The search then has decoys, which its models read, so that the model of all fields is
            pruned; see `search`.
        margin: The loss of the headline metric that is acceptable, above 0.
        relative: Whether the margin is a fraction of the metric of the model of all fields.
        repeats: The number of trainings that the certificate rests on: both models are trained
            again on the same fields, so that its interval also covers the chance of training.
        repeat_by: What differs between them: "training" is everything random, "weights" the
            initial weights alone.
        folds: The number of folds of a cross-fit: everything, the search included, is done once
            per fold on the rows of the others, and the certificate rests on all rows. None uses
            the test rows. The model is that of the task's own split in any case.
        slice_margin: The loss that is acceptable in a part of the rows, such as those of one
            country; None is the margin. See `certify`.
        slice_by: Names of fields by all of whose values the rows are divided as well.
        seed: The seed of all random choices.
        time_limit: About how many seconds everything may take: each stage then ends with the best
            that it has. None sets no limit.
        callbacks: Hooks that watch every training, as in `torchleap.callbacks`.
        checkpoint: A folder from which the same call resumes after a crash or Ctrl-C; the rule
            may differ. It is cleared at the end, unless the decision is open. None saves nothing.
        keep_checkpoint: Keep it: the same call, also with another rule, then loads the trainings.
        on_stage: Called with the name of each stage when it begins.
        roles: The role of each field for the report, where the ground truth is known.
        findings: Problems of the data: `asdict` of those of `data.inspect`. Some of them, such as a
            leak of the label, forbid the word "safe". None inspects the train rows of the task.
        source: The file of the data, or other words for it, for the report.
        command: The command line that decides the same again, for the report.
        ab: Whether to record how large an online A/B test for the same margin has to be.
    """
    given = None
    limits = Limits(
        threshold=threshold,
        share=share,
        dims=dims,
        cost=cost,
        worth=worth,
        tolerance=tolerance,
        fdr=fdr,
    )
    if any(limit is not None for limit in limits.values()):
        given = Rule.of(**limits)
    again = Settings(repeats, repeat_by, folds)
    job = Job(
        task=task,
        backbone=backbone_named(model),
        method=method_named(method),
        training=seeded(training, task, seed),
        given=given,
        margin=margin,
        relative=relative,
        slice_margin=slice_margin,
        slice_by=(slice_by,) if isinstance(slice_by, str) else tuple(slice_by),
        seed=seed,
        time_limit=time_limit,
        callbacks=callbacks,
        folder=None if checkpoint is None else Path(checkpoint),
        runs=again.runs,
    )
    job.check()
    reruns = Reruns(again, again.jobs(job))
    for one in reruns.jobs:
        one.check()
    for one in (job, *reruns.jobs):
        if one.folder is not None:
            claim(one.folder, one.settings(), given)
    if findings is None:
        findings = [asdict(one) for one in task_findings(task)]
    stages = Stages(on_stage)
    outcome = _run(job, stages, findings, reruns)
    full = without_gates(outcome.full, task)  # on all ranks, as its gates agree on their fields
    about = _About(roles or {}, source, command, ab)
    record = _record(job, outcome, about, stages.seconds)
    ranks.barrier()
    # An open decision may be followed by another rule, which needs no training.
    done = outcome.undecided is None and not keep_checkpoint
    if job.folder is not None and done and ranks.is_first():
        forget(job.folder)
    return Decision(
        outcome.selection,
        outcome.small,
        record.to_json(),
        task,
        certificate=outcome.certificate,
        full=full,
    )


@dataclass(frozen=True)
class _Outcome:
    """The results of all stages."""

    found: SearchResult
    selection: Selection
    undecided: str | None
    plugin: Plugin
    full: nn.Module
    small: nn.Module
    metrics: MetricsRecord
    curve: CurveRecord
    savings: SavingsRecord
    certificate: Certificate | None
    findings: Sequence[Mapping[str, Any]]
    reruns: Reruns


def _run(
    job: Job, stages: Stages, findings: Sequence[Mapping[str, Any]], reruns: Reruns
) -> _Outcome:
    """Do all stages of a decision, one after the other; only the last one reads test rows."""
    task = job.task
    full, history, run, found = train_and_search(job, stages)
    selection, undecided = job.select(found)
    with stages("preparing"):
        plugin = job.plugin(found, full, selection)
    with stages("masking"):
        if found.path is not None and found.path.points:
            points = path_curve(found.path, task)
        else:
            points = masking_curve(plugin, selection, task)
    with stages("fine-tuning"):
        small = job.prune(plugin, selection, run)
    reruns = reruns.run(selection, stages)
    with stages("comparing"):
        findings = [*findings, *map(asdict, copied_rows(task))]
        certificate = None
        if selection.dropped:
            certificate = certify(
                task,
                full,
                small,
                job.margin,
                relative=job.relative,
                blocked=blocked_by(findings, selection.dropped),
                typical_training=typical_training(history, headline_of(task)),
                slice_margin=job.slice_margin,
                slice_by=job.slice_by,
                **reruns.evidence(),
            )
        return _Outcome(
            found=found,
            selection=selection,
            undecided=undecided,
            plugin=plugin,
            full=full,
            small=small,
            metrics=compare(full, small, task),
            curve=curve_record(points, full, small, selection, task),
            savings=_savings(full, small, task),
            certificate=certificate,
            findings=findings,
            reruns=reruns,
        )


@dataclass(frozen=True)
class _About:
    """The part of a report that only the caller knows: see the arguments of `decide`."""

    roles: Mapping[str, str]
    source: str | None
    command: str | None
    ab: bool = False


def _rehearsal(job: Job, outcome: _Outcome) -> dict[str, Any]:
    """Return the size of an online test for the same margin, as plain JSON."""
    rows = job.task.test
    found = rehearse(
        job.task.objective,
        headline_of(job.task),
        predictions(outcome.full, rows),
        predictions(outcome.small, rows),
        job.margin,
        relative=job.relative,
        unit=unit_of(job.task),
        saved=costs_saved(job.task.costs, outcome.selection.dropped),
    )
    return found.to_json()


def _record(
    job: Job, outcome: _Outcome, about: _About, seconds: Mapping[str, float]
) -> SelectRecord:
    """Return all that a report shows of a decision."""
    task = job.task
    selection = outcome.selection
    plan = plan_of(outcome.small)
    path = outcome.found.path
    certificate = outcome.certificate
    return SelectRecord(
        title=f"Which fields are needed to predict {task.roles['label']!r}",
        command=about.command,
        task=task_record(task, about.source),
        method=selection.method,
        settings=without_rule(selection),
        model=type(job.backbone).__name__,
        model_settings=asdict(job.backbone),
        training=asdict(job.training),
        seed=job.seed,
        rule=selection.rule.to_json() if selection.rule else {},
        fields=field_records(
            task,
            selection,
            outcome.plugin,
            has_prices=job.trains_gates and not job.trains_plain,
            roles=about.roles,
            worth={} if path is None else path.worth,
        ),
        path=None if path is None or not path.points else PathRecord.of(path),
        decoys=DecoysRecord.of(selection, path),
        trajectories=trajectories(outcome.found.history, selection.fields),
        history=[_without_gates(entry) for entry in outcome.found.history],
        curve=outcome.curve,
        metrics=outcome.metrics,
        known_metrics=known_metrics(task),
        savings=outcome.savings,
        cuts=[CutRecord(c.path, c.before, c.after, c.parameters) for c in plan.cuts],
        notes=plan.notes,
        undecided=outcome.undecided,
        seconds=seconds,
        findings=[FindingRecord(**finding) for finding in outcome.findings],
        certificate=None if certificate is None else CertificateRecord.of(certificate),
        rehearsal=_rehearsal(job, outcome) if about.ab else None,
        reruns=outcome.reruns.record(selection),
    )


def _savings(full: nn.Module, small: nn.Module, task: Task) -> SavingsRecord:
    plan = plan_of(small)
    return SavingsRecord(
        parameters=plan.parameters,
        bytes=plan.bytes,
        multiply_adds=plan.multiply_adds,
        milliseconds=scoring_milliseconds(full, small, task),
        batch=timed_rows(task),
    )


def _without_gates(entry: Mapping[str, float]) -> dict[str, float]:
    """Return an evaluation without the values of single fields, which the trajectories have."""
    return {key: value for key, value in entry.items() if not key.startswith(OF_HOOKS)}
