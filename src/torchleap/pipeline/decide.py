"""decide: which fields of a task can go, and the smaller model with the evidence: search, cut, fine-tune, compare."""

import copy
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._common.checks import is_number, refuse_settings
from .._common.errors import DataError, MetricError, shown
from .._common.files import make_folder, replace_file, replace_together, write_atomically
from ..data.task import Task, TaskColumn
from ..distributed import ranks
from ..fields import Fields
from ..methods import LeAPMethod, Method, named
from ..models import Backbone
from ..models import named as backbone_named
from ..objectives import Difference, auc, auc_difference, gauc, gauc_difference
from ..plugin import Plugin, attach, attached
from ..selection import Rule, Selection, removal_order, select
from ..surgery.plan import plan_of
from ..training.fit import Hook, Training, TrainingError, evaluate, fit, predict
from .search import RetrainResult, SearchResult, retrain, search, seeded
from .serve import LAYOUT, refuse_others, save_served

FORMAT = 1
POINTS = 24  # of the curve: fields are masked in that many steps at most
ENOUGH = 10  # rows of each class, below which an AUC is an accident
SERVED = 512  # rows of a batch whose time is measured
NOTE = "decision.json"  # what the checkpoints of a decision belong to
OnStage = Callable[[str], None]


@dataclass(frozen=True)
class Decision:
    """Which fields to drop, the model without them, and a record of everything that a report shows."""

    selection: Selection
    model: nn.Module = field(repr=False)
    record: dict[str, Any] = field(repr=False)
    task: Task = field(repr=False)

    def save(
        self, folder: str | os.PathLike[str], also: Callable[[Path], None] = lambda made: None
    ) -> None:
        """Write selection.json, model/, encoding/, layout.json, metrics.json, history.jsonl and report.json, all or none.

        Args:
            also: Writes more into the folder that it is given, to be put in place with the rest.
        """
        refuse_others(Path(folder))
        with replace_together(folder, last=LAYOUT) as made:
            self._write(made)
            also(made)

    def _write(self, target: Path) -> None:
        self.selection.save(target / "selection.json")
        metrics = self.record["metrics"]
        flat = {
            f"{part}_{name}": value
            for part in ("before", "after")
            for name, value in metrics[part].items()
        }
        save_served(self.model, self.task, self.selection, target, flat)
        write_atomically(
            target / "metrics.json", json.dumps(metrics, indent=1, allow_nan=False) + "\n"
        )
        with replace_file(target / "history.jsonl") as path:
            path.write_text(
                "".join(json.dumps(record) + "\n" for record in self.record["history"]),
                encoding="utf-8",
            )
        write_atomically(target / "report.json", json.dumps(self.record, allow_nan=False) + "\n")


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
    seed: int = 0,
    time_limit: float | None = None,
    callbacks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
    on_stage: OnStage = lambda stage: None,
    roles: Mapping[str, str] | None = None,
    findings: Sequence[Mapping[str, Any]] = (),
) -> Decision:
    """Score the fields, drop those that a rule says, cut them out of the model, fine-tune it, and compare on the test rows.

    "Before" is a model of all fields, trained without any selection. LeAP's own model is cut; other methods' scores are applied
    to the model of all fields. On several ranks (`torchrun`) the trainings are shared out and all ranks get the same decision;
    saving it is for the first one.

    Args:
        threshold, share, dims, cost: One rule, as in `select`; without one it is 0.5 for gates and half of the fields otherwise.
        time_limit: Seconds for all of it, about; each stage then ends with the best it has.
        checkpoint: A folder to go on from after a crash or Ctrl-C, with the same settings, but for the rule; what was saved
            there is removed at the end, unless nothing was decided.
        keep_checkpoint: Leave it instead: the same call, also by another rule, then loads what was trained.
        on_stage: Called with the name of each stage when it begins.
        roles: What each field is known to be for, where the truth is known; for the report.
        findings: What looks wrong with the data, `asdict` of those of `data.inspect`; for the report.

    Where no field reaches a threshold, and without a rule where the rows are too few to tell anything, all fields are kept and
    `record["undecided"]` says why.
    """
    work = _Work(
        task,
        backbone_named(model),
        named(method),
        seeded(training, task, seed),
        seed,
        callbacks,
        on_stage,
    )
    work.folder, work.time_limit = None if checkpoint is None else Path(checkpoint), time_limit
    rule = {"threshold": threshold, "share": share, "dims": dims, "cost": cost}
    work.has_rule = any(value is not None for value in rule.values())
    if not work.has_rule and not isinstance(work.method, LeAPMethod):
        rule["share"] = 0.5
    work.check(rule)
    decision = work.decide(rule, roles or {})
    decision.record["findings"] = [dict(finding) for finding in findings]
    ranks.barrier()
    done = (
        decision.record["undecided"] is None
    )  # else another rule may follow, which needs no training
    if work.folder is not None and done and not keep_checkpoint and ranks.is_first():
        forget(work.folder)
    return decision


def is_saved(checkpoint: str | os.PathLike[str]) -> bool:
    """Whether `decide` can go on from this folder."""
    return (Path(checkpoint) / "full.pt").exists()


def forget(checkpoint: str | os.PathLike[str]) -> None:
    """Remove what `decide` has saved in a folder, and the folder if nothing else is in it."""
    folder = Path(checkpoint)
    parts = folder / "search"
    for place, name in (
        (parts, "*.pt"),
        (parts, "search.txt"),
        (folder, "full.pt"),
        (folder, "fine.pt"),
        (folder, NOTE),
    ):
        for path in (
            *place.glob(name),
            *place.glob(f".{name}.*"),
        ):  # and what a kill has left of one
            path.unlink()
    for place in (parts, folder):
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()


@dataclass
class _Work:
    """The stages of a decision."""

    task: Task
    backbone: Backbone
    method: Method
    training: Training
    seed: int
    callbacks: Sequence[Hook]
    on_stage: OnStage
    folder: Path | None = None
    time_limit: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    has_rule: bool = True  # whether the user has given one

    def check(self, rule: Mapping[str, Any]) -> None:
        """All that can be known to be wrong before the first step."""
        limit = self.time_limit
        positive = limit is None or (is_number(limit) and 0 < limit < math.inf)
        refuse_settings({f"time_limit must be a number above 0, but is {limit!r}": positive})
        bar = rule["threshold"]
        score = float(bar) if is_number(bar) and math.isfinite(bar) else 1.0
        select(self.task.fields, dict.fromkeys(self.task.fields.names, score), **rule)
        rows, batch = len(self.task.train), self.training.batch
        if rows < batch:
            raise TrainingError(
                f"Expected at least one batch of {batch:,} train rows, but found {rows:,} rows. Lower batch=."
            )
        for part in (self.task.valid, self.task.test):
            label, group = part.label, part.group
            try:
                auc(label, label)
                if group is not None:
                    gauc(label, label, group)
            except MetricError as error:
                positives = sum(
                    int(rows.label.sum())
                    for rows in (self.task.train, self.task.valid, self.task.test)
                )
                cure = f"There are {positives:,} positives in all. Give more rows, or split them otherwise."
                raise DataError(
                    f"Models cannot be compared on these {part.part} rows: {error} {cure}"
                ) from error

    def decide(self, rule: Mapping[str, Any], roles: Mapping[str, str]) -> Decision:
        with ranks.first_before_others():
            if ranks.is_first():
                self._note(rule)
        full = self._stage("training with all fields", self._full)
        found = self._stage("searching", self._search)
        selection, undecided = self._selected(found, rule)
        plugin = self._stage("preparing", lambda: self._plugin(found, full))
        curve = self._stage("masking", lambda: self._curve(plugin, selection))
        small = self._stage("fine-tuning", lambda: self._small(plugin, selection))
        record = self._stage(
            "comparing", lambda: self._record(full, found, plugin, selection, small, curve, roles)
        )
        record["undecided"] = undecided
        record["seconds"] = dict(self.seconds)
        return Decision(selection, small, record, self.task)

    def _selected(
        self, found: SearchResult, rule: Mapping[str, Any]
    ) -> tuple[Selection, str | None]:
        """Return the fields to keep by the rule; all of them, and why, where nothing can be said."""
        few = None if self.has_rule else self._too_few()
        best = max(found.scores, key=lambda name: found.scores[name])
        bar = rule["threshold"]
        if bar is None and all(rule[name] is None for name in ("share", "dims", "cost")):
            bar = 0.5
        if few is None and (bar is None or self.task.protected or found.scores[best] >= bar):
            return found.select(**rule), None
        reason = (
            few
            or f"no field scores {bar:g} or more, the best is {best!r} with {found.scores[best]:.2f}"
        )
        every = found.select(threshold=min(found.scores.values()))
        kept_by = {name: value for name, value in every.settings.items() if name != "threshold"}
        wanted = Rule.of(threshold=bar or 0.5)
        return replace(every, settings={**kept_by, **wanted.to_json()}, rule=wanted), reason

    def _too_few(self) -> str | None:
        """Say why the rows that gates and comparison rest on are too few, if they are."""
        for rows in (self.task.test, self.task.valid):
            positives = int(rows.label.sum())
            if min(positives, len(rows) - positives) < ENOUGH:
                return f"{len(rows):,} {rows.part} rows, {positives:,} of them positive, are too few to tell"
        return None

    def _stage(self, name: str, work: Callable[[], Any]) -> Any:
        self.on_stage(name)
        started = time.monotonic()
        found = work()
        self.seconds[name] = time.monotonic() - started
        return found

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / name

    def _note(self, rule: Mapping[str, Any]) -> None:
        """Write what the checkpoints belong to; refuse those of another decision. Another rule only ends in another cut."""
        if self.folder is None:
            return
        make_folder(self.folder)
        path, ours = self.folder / NOTE, self._settings()
        theirs, rule_before = _read_note(path) if path.exists() else (ours, None)
        other = [name for name in ours if theirs.get(name) != ours[name]]
        if other:
            told = [
                "its data is another, or was changed"
                if name == "data"
                else f"its {name} is {theirs.get(name)}, not {ours[name]}"
                for name in other
            ]
            cure = "Go on with the same settings, or remove it to start anew."
            raise TrainingError(f"{self.folder} is of another run: {'; '.join(told[:3])}. {cure}")
        plain = {name: None if value is None else float(value) for name, value in rule.items()}
        if rule_before != plain:
            (self.folder / "fine.pt").unlink(missing_ok=True)
        write_atomically(path, json.dumps({"settings": ours, "rule": plain}) + "\n")

    def _settings(self) -> dict[str, Any]:
        """What a run must have in common with its checkpoints."""
        task = self.task
        found = {
            "model": repr(self.backbone), "method": repr(self.method), **asdict(self.training),
            "time_limit": self.training.time_limit if self.time_limit is None else self.time_limit,
            "protected": sorted(task.protected), "costs": dict(sorted(task.costs.items())), "data": task.fingerprint,
        }  # fmt: skip
        plain: dict[str, Any] = json.loads(json.dumps(found))
        return plain

    def _limited(self, share: float) -> Training:
        """The settings for a stage that may take this share of the time."""
        return (
            self.training
            if self.time_limit is None
            else replace(self.training, time_limit=share * self.time_limit)
        )

    def _full(self) -> RetrainResult:
        return retrain(
            self.task, model=self.backbone, training=self._limited(0.3), seed=self.seed, callbacks=self.callbacks,
            checkpoint=self._path("full.pt"), keep_checkpoint=True,
        )  # fmt: skip

    def _search(self) -> SearchResult:
        return search(
            self.task, model=self.backbone, method=self.method, training=self._limited(0.5), seed=self.seed,
            callbacks=self.callbacks, checkpoint=self._path("search"), keep_checkpoint=True,
        )  # fmt: skip

    def _plugin(self, found: SearchResult, full: RetrainResult) -> Plugin:
        """The gates of the model that is cut: LeAP's own, or open ones before a copy of the plain model's network."""
        if isinstance(self.method, LeAPMethod):
            assert found.model is not None
            return attached(found.model)
        return with_means(copy.deepcopy(full.model), self.task, self.seed)

    def _curve(self, plugin: Plugin, selection: Selection) -> dict[str, Any]:
        """The metric on validation rows while fields are masked, the worst first."""
        order = removal_order(selection.fields, selection.scores)
        removed = (
            [round(step * len(order) / POINTS) for step in range(POINTS + 1)]
            if len(order) > POINTS
            else range(len(order) + 1)
        )
        metric = self._metric()
        points = []
        for count in sorted({*removed}):
            gone = set(order[:count])
            masked = replace(
                selection, keep=tuple(name not in gone for name in selection.fields.names)
            )
            with plugin.masked(masked):
                value = evaluate(plugin.model, self.task.valid)[metric]
            points.append(
                {"fields": count, "dims": selection.fields.dims - masked.dims, "value": value}
            )
        return {"metric": metric, "order": order, "points": points, "retrained": []}

    def _metric(self) -> str:
        return "auc" if self.task.roles.get("group") is None else "gauc"

    def _small(self, plugin: Plugin, selection: Selection) -> nn.Module:
        """The model without the dropped fields, fine-tuned unless that makes it worse."""
        example = next(iter(self.task.valid.batches(min(64, len(self.task.valid))))).inputs
        small = plugin.prune(selection, example=example)
        before, cut = self._quality(small), copy.deepcopy(small.state_dict())
        steps = -(-len(self.task.train) // self.training.batch)
        training = replace(
            self._limited(0.1),
            epochs=2,
            eval_every=max(1, steps // 4),
            patience=3,
            lr=0.3 * self.training.lr,
        )
        fit(
            small,
            self.task,
            training,
            hooks=self.callbacks,
            checkpoint=self._path("fine.pt"),
            keep_checkpoint=True,
        )
        if ranks.from_first(self._quality(small) < before):
            small.load_state_dict(cut)
        return small.eval()

    def _quality(self, model: nn.Module) -> float:
        """What the best weights are chosen by, on validation rows; higher is better."""
        found = evaluate(model, self.task.valid)[self.training.metric]
        return -found if self.training.metric == "log_loss" else found

    def _record(
        self,
        full: RetrainResult,
        found: SearchResult,
        plugin: Plugin,
        selection: Selection,
        small: nn.Module,
        curve: dict[str, Any],
        roles: Mapping[str, str],
    ) -> dict[str, Any]:
        """Everything that a report shows, as plain JSON."""
        plan, dims = plan_of(small), selection.fields.dims - selection.dims
        metric = curve["metric"]
        curve["retrained"] = [
            {
                "dims": 0,
                "value": evaluate(full.model, self.task.valid)[metric],
                "interval": None,
                "label": "all fields",
            },
            {
                "dims": dims,
                "value": evaluate(small, self.task.valid)[metric],
                "interval": None,
                "label": "cut and fine-tuned",
            },
        ]
        return {
            "format": FORMAT,
            "kind": "select",
            "title": f"Which fields are needed to predict {self.task.roles['label']!r}",
            "created": datetime.now().isoformat(timespec="seconds"),
            "command": None,
            "versions": {name: version(name) for name in ("torchleap", "torch")}
            | {"python": platform.python_version()},
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {sys.platform}",
            "task": self._task(),
            "method": selection.method,
            "settings": {
                key: value
                for key, value in selection.settings.items()
                if key not in rule_of(selection)
            },
            "model": type(self.backbone).__name__,
            "model_settings": asdict(self.backbone),
            "training": asdict(self.training),
            "seed": self.seed,
            "rule": rule_of(selection),
            "fields": self._fields(plugin, selection, roles),
            "trajectories": trajectories(found.history, selection.fields),
            "history": [
                {k: v for k, v in record.items() if not k.startswith(("gate_", "fall_std_"))}
                for record in found.history
            ],
            "curve": curve,
            "metrics": self._metrics(full.model, small, metric),
            "savings": {
                "parameters": list(plan.parameters),
                "bytes": list(plan.bytes),
                "multiply_adds": list(plan.multiply_adds),
                "milliseconds": self._milliseconds(full.model, small),
                "batch": min(SERVED, len(self.task.test)),
            },
            "cuts": [
                {"layer": c.path, "before": c.before, "after": c.after, "parameters": c.parameters}
                for c in plan.cuts
            ],
            "notes": list(plan.notes),
        }

    def _task(self) -> dict[str, Any]:
        fields, roles = self.task.fields, self.task.roles
        size = {"rows": dict(self.task.rows), "fields": len(fields), "dims": fields.dims}
        parts = (self.task.train, self.task.valid, self.task.test)
        positives = {rows.part: int(rows.label.sum()) for rows in parts}
        label = {"label": roles["label"], "positive": roles.get("positive")}
        return {
            **label,
            "source": None,
            **size,
            "positives": positives,
            "group": roles.get("group"),
        }

    def _fields(
        self, plugin: Plugin, selection: Selection, roles: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        gates = isinstance(self.method, LeAPMethod)
        divergence, price = plugin.gates.divergences().tolist(), plugin.gates.weights().tolist()
        found = []
        for place, (column, field_, score, kept) in enumerate(
            zip(self.task.columns, selection.fields, selection.score, selection.keep, strict=True)
        ):
            known = {
                "kind": column.column.kind,
                "sparsity": column.common,
                "missing": column.missing,
                "bytes": _bytes(column),
            }
            measured = {
                "divergence": _finite(divergence[place]),
                "price": _finite(price[place]) if gates else None,
            }
            decided = {
                "score": score,
                "kept": kept,
                "role": roles.get(column.name),
                "ids": column.categories or None,
            }
            found.append({**asdict(field_), **known, **measured, **decided})
        return found

    def _metrics(self, full: nn.Module, small: nn.Module, metric: str) -> dict[str, Any]:
        rows = self.task.test
        label, group = rows.label, rows.group
        before, after = predict(full, rows), predict(small, rows)
        change: Difference
        if metric == "gauc" and group is not None:
            change = gauc_difference(label, before, after, group)
        else:
            change = auc_difference(label, before, after)
        interval = (
            [change.low, change.high] if change.low < change.high else None
        )  # of so few rows that none has moved
        difference = {"metric": metric, "value": change.value, "interval": interval}
        return {
            "before": evaluate(full, rows),
            "after": evaluate(small, rows),
            "difference": difference,
        }

    @torch.no_grad()
    def _milliseconds(self, full: nn.Module, small: nn.Module) -> list[float]:
        """Of a batch through each model, by turns."""
        inputs = next(iter(self.task.test.batches(min(SERVED, len(self.task.test))))).inputs
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(30):
            for model, own in zip((full.eval(), small.eval()), times, strict=True):
                started = time.perf_counter()
                model(*inputs)
                own.append(1e3 * (time.perf_counter() - started))
        return [statistics.median(own) for own in times]


def with_means(model: nn.Module, task: Task, seed: int) -> Plugin:
    """Open gates before the network of a trained model, which know the means of all fields: ready to mask and to prune."""
    plugin = attach(model, task.fields, at="net", init=100.0, seed=seed)
    batches = task.train.batches(min(4096, len(task.train)), shuffle=True, seed=seed)
    with torch.no_grad(), plugin.held_out():
        for _, batch in zip(range(50), batches, strict=False):
            model(*batch.inputs)
    return plugin


def rule_of(selection: Selection) -> dict[str, Any]:
    """The rule that a selection was made by."""
    return {} if selection.rule is None else {**selection.rule.to_json()}


def trajectories(history: Sequence[Mapping[str, float]], fields: Fields) -> dict[str, Any] | None:
    """The gates at each look, by field; None where the method has none."""
    looks = [record for record in history if any(key.startswith("gate_") for key in record)]
    if not looks:
        return None
    gates = {name: [record[f"gate_{name}"] for record in looks] for name in fields.names}
    return {"steps": [record["step"] for record in looks], "gates": gates}


def _bytes(column: TaskColumn) -> int:
    """Of the column's part of a table."""
    return 4 * column.categories * column.width


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _read_note(path: Path) -> tuple[dict[str, Any], Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return dict(content["settings"]), content["rule"]
    except (ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{path} is damaged: {shown(error, 120)}. Remove {path.parent} to start again."
        ) from error
