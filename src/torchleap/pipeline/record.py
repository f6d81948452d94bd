"""Record: all that a report shows, as one schema that `decide` and the benchmarks fill in.

A record is made once and never changed: `to_json` returns it as plain JSON, which is written to
report.json and from which `torchleap.report` makes the page. When a record is loaded, each value
is checked against the types below. A new section of the report is one field here and one block of
a template: see report/README.md.
"""

import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from .._common.checks import Check, is_number, is_whole
from .._common.plain import plain
from .._common.text import plural

if TYPE_CHECKING:
    from ..evidence import Certificate
    from ..objectives import Metric
    from ..selection.path import Path

FORMAT = 1
VERDICTS = ("safe", "not safe", "undecided")


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that a chart can draw."""
    return is_number(value) and abs(value) < 1e300 and math.isfinite(value)


def _is_pair(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return all(item is None or is_finite(item) for item in value)


def _is_width(value: Any) -> bool:
    return is_whole(value) and 1 <= value < 1 << 53  # JavaScript counts exactly up to there


def _is_cell(value: Any) -> bool:
    return isinstance(value, str | bool) or is_number(value)


Width = Annotated[int, Check("a whole number of at least 1", _is_width)]
Pair = Annotated[Sequence[float | None], Check("two numbers", _is_pair)]
Cell = Annotated[str | float | bool | None, Check("text or a number", _is_cell)]
Words = Annotated[
    str | Sequence[str],
    Check("text or a list of it", lambda value: isinstance(value, str | list | tuple)),
]


def now() -> str:
    """Return the local time to the second, as ISO 8601 writes it."""
    return datetime.now().isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Return the versions of the packages that a result depends on."""
    packages = {name: version(name) for name in ("torchleap", "torch")}
    return {**packages, "python": platform.python_version()}


def machine() -> str:
    """Return the processor, the number of its cores and the system, in a few words."""
    return f"{platform.machine()}, {plural(os.cpu_count() or 1, 'core')}, {sys.platform}"


@dataclass(frozen=True, kw_only=True)
class Record:
    """The part of a record that every report has.

    Attributes:
        title: The heading of the report.
        created: The time at which the record was made.
        command: The command line that makes the same again; None if it was made from Python.
        versions: Versions by package.
        machine: The machine in a few words.
        settings: Settings by name: of the method, or of the benchmark.
    """

    kind: ClassVar[str]

    title: str
    created: str = field(default_factory=now)
    command: str | None = None
    versions: Mapping[str, Any] = field(default_factory=versions)
    machine: str = field(default_factory=machine)
    settings: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the record as a plain dict, with None for NaN and infinity."""
        content = {"format": FORMAT, "kind": self.kind, **asdict(self)}
        found: dict[str, Any] = plain(content, "record", nan_as_none=True)
        return found


# ---- a selection ----


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """The data: its label, its size, and how many of its rows are positive.

    Attributes:
        objective: The name of the task's objective.
        label: The name of the label's column.
        positive: The value that counts as positive, where the label is not 0 or 1.
        source: The file, or other words for where the rows come from; None if unknown.
        rows: Rows by part: train, valid and test.
        fields: The number of fields.
        dims: The sum of their widths.
        positives: Positive rows by part.
        group: The name of the column of groups; None if there is none.
    """

    objective: str = "binary"
    label: str
    positive: Cell = None
    source: str | None = None
    rows: Mapping[str, int]
    fields: int
    dims: int
    positives: Mapping[str, int]
    group: str | None = None


@dataclass(frozen=True, kw_only=True)
class FieldRecord:
    """A field: what it is, its score, and whether it is kept.

    Attributes:
        name: The name of the field.
        width: Its dimensions.
        cost: Its cost, in the unit of `Field.cost`.
        protected: Whether it is kept whatever its score is.
        group: The group that is kept or dropped as one; None if the field is alone.
        kind: The kind of its column, such as "numeric".
        sparsity: The fraction of rows with its most common value.
        missing: The fraction of rows without a value.
        bytes: Memory of its part of an embedding table.
        divergence: How far the field moves when its rows are shuffled.
        price: The price of its open gate in the paper's penalty; None without gates.
        score: The score of the method.
        kept: Whether the selection keeps it.
        role: Its role in the data, where the ground truth is known.
        ids: Different values of a column of ids.
        worth: What the field contributes: the rise of the held-out loss without it, in nats; None
            for a method that does not measure it.
        worth_low: The lower end of its 95 % interval.
        worth_high: The upper end.
    """

    name: str
    width: Width
    cost: float
    protected: bool
    group: str | None
    kind: str
    sparsity: float
    missing: float
    bytes: float
    divergence: float | None
    price: float | None
    score: float
    kept: bool
    role: str | None
    ids: int | None
    worth: float | None = None
    worth_low: float | None = None
    worth_high: float | None = None


@dataclass(frozen=True)
class TrajectoriesRecord:
    """The gates by field, one value per evaluation, and the steps of these evaluations."""

    steps: Sequence[float]
    gates: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class CurvePoint:
    """The metric on validation rows after some fields were masked."""

    fields: int
    dims: int
    value: float


@dataclass(frozen=True)
class TrainedPoint:
    """The metric on validation rows of a model that was trained without some dimensions."""

    dims: int
    value: float
    interval: Pair | None
    label: str


@dataclass(frozen=True)
class CurveRecord:
    """The metric while fields are masked in `order`, the worst first, and of trained models."""

    metric: str
    order: Sequence[str]
    points: Sequence[CurvePoint]
    retrained: Sequence[TrainedPoint]


@dataclass(frozen=True, kw_only=True)
class PathPointRecord:
    """A point of the path, with the attributes of `torchleap.selection.path.PathPoint`."""

    kept: Sequence[str]
    closed: Sequence[str]
    dims: int
    cost: float
    metric: float
    low: float
    high: float
    behind: float
    error: float
    loss: float
    price: float | None
    step: int | None


@dataclass(frozen=True, kw_only=True)
class SubstituteRecord:
    """A field whose worth rose, in nats, when another one closed."""

    closed: str
    field: str
    before: float
    after: float


@dataclass(frozen=True)
class PathRecord:
    """The metric of a model at each number of fields, and which fields took over.

    Attributes:
        metric: The name of the metric.
        points: The points, from all fields to the last one.
        substitutes: The fields that took over for others, the largest rise first.
        adapted: Whether the model adapted to the fields of each point, which it does not where
            fields are masked.
        together: Fields that are worth something only together.
    """

    metric: str
    points: Sequence[PathPointRecord]
    substitutes: Sequence[SubstituteRecord]
    adapted: bool = True
    together: Sequence[Sequence[str]] = ()

    @classmethod
    def of(cls, path: "Path") -> "PathRecord":
        """Return the record of a path; the worth of its fields belongs to their own records."""
        content = path.to_json()
        return cls(
            metric=content["metric"],
            points=[PathPointRecord(**point) for point in content["points"]],
            substitutes=[SubstituteRecord(**one) for one in content["substitutes"]],
            adapted=path.is_adapted,
            together=content["together"],
        )


@dataclass(frozen=True)
class DifferenceRecord:
    """The change of one metric on test rows, after minus before, with its 95 % interval."""

    metric: str
    value: float
    interval: Pair | None


@dataclass(frozen=True)
class MetricsRecord:
    """All metrics on test rows, of the model of all fields and of the pruned one."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    difference: DifferenceRecord


@dataclass(frozen=True)
class NeededRecord:
    """How much evidence would decide, with the attributes of `torchleap.evidence.Needed`."""

    units: float
    rows: float
    support: float


@dataclass(frozen=True)
class SliceRecord:
    """The change in a part of the rows, as `torchleap.evidence.certificate.SliceChange` has it."""

    name: str
    field: str
    dropped: bool
    rows: float
    change: float
    lowest: float
    p: float
    is_damaged: bool


@dataclass(frozen=True, kw_only=True)
class CertificateRecord:
    """Whether the smaller model may replace the full one, as `torchleap.Certificate` says it."""

    metric: str
    margin: float
    relative: float | None
    before: float
    after: float
    low: float
    high: float
    largest_loss: float
    verdict: Annotated[str, Check(f"one of {', '.join(VERDICTS)}", lambda value: value in VERDICTS)]
    rows: float
    support: float
    unit: str
    units: float
    needed: NeededRecord | None
    needed_as_measured: NeededRecord | None
    repeats: float
    training_deviation: float | None
    typical_training: float | None
    reasons: Sequence[str]
    notes: Sequence[str]
    slices: Sequence[SliceRecord]
    slices_examined: float
    slice_margin: float | None

    @classmethod
    def of(cls, certificate: "Certificate") -> "CertificateRecord":
        """Return the record of a certificate."""
        content = certificate.to_json()
        for key in ("needed", "needed_as_measured"):
            if content[key] is not None:
                content[key] = NeededRecord(**content[key])
        content["slices"] = [SliceRecord(**one) for one in content["slices"]]
        return cls(**content)


@dataclass(frozen=True)
class KnownMetric:
    """The description of a metric, so that a report needs no list of metrics of its own."""

    title: str
    higher_is_better: bool

    @classmethod
    def of(cls, metric: "Metric") -> "KnownMetric":
        """Return the description of a metric."""
        return cls(metric.title, metric.higher_is_better)

    @property
    def sign(self) -> int:
        """Return 1 where higher is better, and -1 where lower is."""
        return 1 if self.higher_is_better else -1


@dataclass(frozen=True)
class SavingsRecord:
    """Sizes before and after pruning, and the milliseconds that `batch` rows take."""

    parameters: Pair
    bytes: Pair
    multiply_adds: Pair
    milliseconds: Pair
    batch: int


@dataclass(frozen=True)
class CutRecord:
    """A layer that surgery changed."""

    layer: str
    before: str
    after: str
    parameters: float


@dataclass(frozen=True)
class FindingRecord:
    """A problem of the data: as `torchleap.data.inspect` reports it."""

    kind: str
    column: str | None
    text: str
    cure: str


@dataclass(frozen=True, kw_only=True)
class SelectRecord(Record):
    """A decision: which fields are kept, and the evidence for it.

    Attributes:
        task: The data.
        method: The name of the method.
        model: The name of the backbone.
        model_settings: Its settings.
        training: The settings of the training.
        seed: The seed of all random choices.
        rule: The rule of the selection, as `Rule.to_json` returns it.
        fields: All fields in input order.
        trajectories: The gates over training; None for a method without gates.
        history: The evaluations of the search, without the gates.
        curve: The metric against the dimensions removed.
        metrics: The metrics of both models on test rows.
        known_metrics: Descriptions of these metrics by name.
        savings: The sizes of both models.
        cuts: The layers that surgery changed.
        notes: What surgery could not cut, and why.
        undecided: The reason why all fields were kept; None if the rule decided.
        seconds: Time by stage.
        findings: Problems of the data.
        path: The metric at each number of fields, of a model that adapted to these fields or in
            which the others are masked; None for a method that has no path.
        certificate: Whether the smaller model may replace the full one; None where nothing is
            dropped, and in records of versions that made none.
    """

    kind = "select"

    task: TaskRecord
    method: str
    model: str
    model_settings: Mapping[str, Any]
    training: Mapping[str, Any]
    seed: int
    rule: Mapping[str, Any]
    fields: Sequence[FieldRecord]
    trajectories: TrajectoriesRecord | None
    history: Sequence[Mapping[str, Any]]
    curve: CurveRecord
    metrics: MetricsRecord
    known_metrics: Mapping[str, KnownMetric]
    savings: SavingsRecord
    cuts: Sequence[CutRecord]
    notes: Sequence[str]
    undecided: str | None
    seconds: Mapping[str, float]
    findings: Sequence[FindingRecord]
    path: PathRecord | None = None
    certificate: CertificateRecord | None = None


# ---- a benchmark ----


@dataclass(frozen=True)
class TableRecord:
    """A table of results, with sentences below it."""

    title: str
    columns: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    notes: Words = ()


@dataclass(frozen=True)
class SeriesRecord:
    """A line of a chart; a point is (x, y), or (x, y, low, high) with an interval."""

    name: str
    points: Sequence[Sequence[float]]


@dataclass(frozen=True)
class LinesRecord:
    """A chart of several lines: its axes, and sentences below it."""

    title: str
    x: str
    y: str
    series: Sequence[SeriesRecord]
    notes: Words = ()

    @classmethod
    def of(cls, curve: Mapping[str, Any]) -> "LinesRecord":
        """Return the record of a curve that is given as a plain dict."""
        series = [SeriesRecord(**one) for one in curve["series"]]
        return cls(**{**curve, "series": series})


@dataclass(frozen=True, kw_only=True)
class BenchRecord(Record):
    """A benchmark: its tables and curves, with a summary above them."""

    kind = "bench"

    summary: Words = ()
    tables: Sequence[TableRecord]
    curves: Sequence[LinesRecord]


RECORDS: dict[str, type[Record]] = {"select": SelectRecord, "bench": BenchRecord}
