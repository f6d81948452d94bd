"""check: is the smaller model of a result still safe, on new labelled rows?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._common.checks import check_arguments, number
from .._common.errors import DataError, MetricError, nearest
from .._common.text import plural
from ..data.files.known_label import read_labels
from ..data.files.open import open_source
from ..data.files.source import Source
from ..data.sketch import Hashes, row_hashes
from ..data.task import Batch
from ..evidence.certificate import Certificate, Evidence, certificate_of
from ..evidence.change import change_of
from ..evidence.rehearsal import ROWS, Rehearsal, rehearse
from ..objectives import Objective, Predictions
from .full import Full, load_full
from .serve import FULL, Served, layout_problem, raw_outputs

if TYPE_CHECKING:
    from ..data.files.options import Progress

MARGIN = 0.001  # where none was certified at
NAMED = 5  # columns that a message names
FEW = 50  # rows of a sample, below which it says little about which rows were seen


@dataclass(frozen=True)
class Check:
    """The comparison of both models of a result on new rows.

    Attributes:
        certificate: The verdict, with the evidence.
        rehearsal: The size of an online test for the same margin; None unless it was asked for.
    """

    certificate: Certificate
    rehearsal: Rehearsal | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as plain JSON, with the rehearsal beside it if there is one."""
        found = self.certificate.to_json()
        if self.rehearsal is not None:
            found["rehearsal"] = self.rehearsal.to_json()
        return found

    def __str__(self) -> str:
        parts = [self.certificate, self.rehearsal]
        return "\n".join(str(part) for part in parts if part is not None)


def check(
    served: Served,
    data: Any,
    *,
    margin: float | None = None,
    relative: bool = False,
    ab: bool = False,
    separator: str | None = None,
    names: Sequence[str] | None = None,
    progress: "Progress | None" = None,
) -> Check:
    """Compare the smaller model of a result with the full one on new labelled rows.

    The rows are read in blocks; what stays in memory are the label, the group and two predictions
    of each. Rows that the models were trained on or chosen by are refused.

    Args:
        served: The result, from `Served.load`.
        data: A file, several files or a frame with all columns of the task and the label, and the
            column of the groups if the task has groups.
        margin: The loss of the metric that is acceptable, above 0; None is the margin that the
            result was certified at, or 0.001 if it was not.
        relative: Whether the margin is a fraction of the full model's metric.
        ab: Whether to say how large an online test for the same margin has to be.
        separator: As in `torchleap.data.read`, and likewise `names` and `progress`.
    """
    if margin is None and relative:
        raise DataError("relative=True needs the margin that is a fraction: margin=0.002.")
    full = _full_of(served)
    compared = full.compared
    if margin is None:
        margin = MARGIN if compared.margin is None else compared.margin
        relative = compared.relative
    check_arguments(margin=number(margin, above=0))
    source = open_source(data, separator=separator, names=names)
    _refuse_lacking(source, full)
    label, group = read_labels(source, compared.rule(served.objective), compared.group)
    _refuse_incomparable(served.objective, label, group, source.name)
    batches = full.encoding.batches(data, separator=separator, names=names, progress=progress)
    scored = _Scored(served, full, label)
    scored.read(batches, source.name)
    scored.refuse_seen(source.name)
    before = scored.predictions(scored.before, group)
    after = scored.predictions(scored.after, group)
    metric = served.objective.headline(group)
    change = change_of(metric, before, after, relative=margin if relative else 0.0)
    unit = compared.group or ROWS
    evidence = Evidence(
        rows=len(label),
        support=served.objective.support(label),
        unit=unit,
        typical_training=compared.typical_training,
        notes=scored.notes(),
    )
    absolute = margin * abs(change.before) if relative else margin
    fraction = margin if relative else None
    certificate = certificate_of(change, absolute, evidence, relative=fraction)
    if not ab:
        return Check(certificate)
    rehearsal = rehearse(
        served.objective,
        metric,
        before,
        after,
        margin,
        relative=relative,
        unit=unit,
        saved=compared.saved,
    )
    return Check(certificate, rehearsal)


def _full_of(served: Served) -> Full:
    """Return the full model that lies beside a result, which fits its layout."""
    if served.folder is None or not served.knows_full:
        raise DataError(
            "Expected a result that was loaded from a folder, with its full model, but this one "
            "is of an earlier version or was not loaded. Select again."
        )
    full = load_full(served.folder / FULL, served.full)
    problem = layout_problem(served.layout, full.encoding, complete=True)
    if problem:
        raise DataError(f"{served.folder / FULL} is damaged: {problem}. Select again.")
    return full


def _refuse_lacking(source: Source, full: Full) -> None:
    """Refuse rows without a column that the comparison needs."""
    present = source.names()
    compared = full.compared
    inputs = [column.name for column in full.encoding.columns]
    others = [compared.label] if compared.group is None else [compared.label, compared.group]
    lacking = [name for name in dict.fromkeys((*others, *inputs)) if name not in present]
    if not lacking:
        return
    named = ", ".join(map(repr, lacking[:NAMED]))
    if len(lacking) > NAMED:
        named += f" and {len(lacking) - NAMED:,} more"
    column = "column" if len(lacking) == 1 else "columns"
    role = ", the label" if lacking == [compared.label] else ""
    cure = nearest(lacking[0], present) if len(lacking) == 1 else ""
    if source.text:
        cure += " If its first line is not a header, name the columns: names=[...]."
    raise DataError(
        f"{source.name} lacks the {column} {named}{role}: the full model is compared, so all "
        f"columns of the training and the label are needed. {cure}".rstrip()
    )


def _refuse_incomparable(
    objective: Objective, label: Tensor, group: Tensor | None, name: str
) -> None:
    """Refuse rows on which no two models can be compared, such as those of one class."""
    try:
        objective.check_comparable(label, group)
    except MetricError as error:
        raise DataError(
            f"Models cannot be compared on {name}: {error} It has "
            f"{objective.describe(label, 'labelled')}. Give more rows."
        ) from error
    if group is not None and len(torch.unique(group)) < 2:
        raise DataError(
            f"Expected at least two groups in {name}, to see how groups differ, but found one. "
            "Give rows of more groups."
        )


class _Scored:
    """The predictions of both models for new rows, and how many of these were seen before.

    Args:
        served: The result.
        full: Its full model.
        label: The label of each row.
    """

    def __init__(self, served: Served, full: Full, label: Tensor) -> None:
        self.served = served
        self.full = full
        self.label = label
        self.before = torch.empty(len(label))
        self.after = torch.empty(len(label))

    @torch.no_grad()
    def read(self, batches: Iterator[Batch], name: str) -> None:
        """Score all rows, some at a time.

        Args:
            batches: The encoded rows, with all columns.
            name: The file, for messages.
        """
        self.served.model.eval()
        self.full.model.eval()
        self.share = self.full.seen.share(self._hashes(batches, name))

    def _hashes(self, batches: Iterator[Batch], name: str) -> Iterator[Hashes]:
        """Yield the hashes of the rows while they are scored."""
        start = 0
        for batch in batches:
            rows = slice(start, start + len(batch))
            start += len(batch)
            labelled = Batch(batch.ids, batch.numbers, self.label[rows])
            if len(labelled.label) < len(batch):
                break
            self.before[rows] = raw_outputs(self.full.model, batch.inputs)
            self.after[rows] = raw_outputs(self.served.model, batch.inputs)
            yield row_hashes(labelled)
        if start != len(self.label):
            raise DataError(
                f"Expected {plural(len(self.label), 'row')} in {name}, but found {start:,} when "
                "it was read again. Wait until it is written."
            )

    def refuse_seen(self, name: str) -> None:
        """Raise a DataError if the models were trained on these rows, or chosen by them."""
        seen = self.share.seen_beyond(self.full.natural)
        if seen:
            raise DataError(
                f"Expected rows that the models have not seen, but about {seen:.0%} of those in "
                f"{name} are among the {self.full.seen.rows:,} rows that they were trained on "
                "and chosen by. Give newer rows."
            )

    def notes(self) -> tuple[str, ...]:
        """Return a note if it is not known whether the rows are new."""
        if min(self.share.rows, self.full.natural.rows) >= FEW:
            return ()
        return (
            "Too few rows were compared with the train rows to know whether the models have seen "
            f"them ({self.share.rows:,}, and {self.full.natural.rows:,} test rows for comparison).",
        )

    def predictions(self, outputs: Tensor, group: Tensor | None) -> Predictions:
        """Return the predictions of one of the models."""
        return self.served.objective.predictions(self.label, outputs, group)
