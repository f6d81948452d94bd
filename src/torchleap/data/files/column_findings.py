"""Findings about one column: constant, the same as another, an id, or text among numbers."""

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..._common.errors import shown
from ..._common.text import plural
from ...objectives import auc
from .findings import Finding, leave_out, text_findings
from .seen import SeenColumn
from .source import Source

LEAK = 0.99  # an AUC that no honest column reaches alone
NEARLY = 0.95  # the fraction of rows with a value of their own from which on categories are ids
ENOUGH = 10  # rows of each class, below which such an AUC may be luck
TESTED = 200_000  # rows, at most, that an AUC is measured on
Floats = NDArray[np.float64]


def column_findings(
    seen: SeenColumn, source: Source, target: pl.Series | None, known: dict[bytes, str]
) -> list[Finding]:
    """Return what a result may suffer from; nothing for the label itself.

    Args:
        seen: The column.
        source: The source that it is from.
        target: The label as numbers, by its name; None if there is none.
        known: The identities of the columns before, with their names; this one is added.
    """
    if target is not None and target.name == seen.name:
        known.setdefault(seen.identity(), seen.name)  # as it is in the file, before a threshold
        return []
    found = [
        *_constant_findings(seen),
        *_twin_findings(seen, target, known),
        *_mixed_findings(seen, source),
    ]
    if seen.kind == "categorical":
        values = seen.values.gather(seen.one_of_each).drop_nulls()
        found += text_findings(seen.name, values)
    if _is_an_id(seen) and not any(one.kind in ("number", "date") for one in found):
        cure = leave_out(seen.name, "It says nothing about other rows; leave it out")
        found.append(Finding("id", seen.name, "a value of its own in every row", cure))
    return found


def _constant_findings(seen: SeenColumn) -> Iterator[Finding]:
    """Yield a finding if all rows are the same."""
    if seen.is_constant:
        text = "all missing" if seen.values.null_count() else "constant"
        cure = leave_out(seen.name, "It says nothing; leave it out")
        yield Finding("constant", seen.name, text, cure)


def _twin_findings(
    seen: SeenColumn, target: pl.Series | None, known: dict[bytes, str]
) -> Iterator[Finding]:
    """Yield findings if the label or another column is the same, or nearly."""
    if seen.is_constant:
        return
    twin = known.setdefault(seen.identity(), seen.name)
    unless_known = leave_out(seen.name, "Unless it is known before the label is, leave it out")
    if target is not None and twin == target.name:
        yield Finding("leak", seen.name, f"same as the label {twin!r}", unless_known)
        return
    if twin != seen.name:
        cure = leave_out(seen.name, "One of the two is enough")
        yield Finding("twin", seen.name, f"same as {twin!r}", cure)
    if target is None:
        return
    found = _auc_of(seen, target.to_numpy())
    if found >= LEAK:
        yield Finding("leak", seen.name, f"tells the label: AUC {found:.3f}", unless_known)


def _auc_of(seen: SeenColumn, label: Floats) -> float:
    """Return how well a column alone predicts the label, as an AUC.

    A value is scored by the mean label of other rows with it, and a number also by itself.
    """
    # at random, not every second row: logs may alternate between 0 and 1
    order = np.random.default_rng(0).permutation(len(label))
    test, teach = np.split(order, [min(TESTED, len(label) // 2)])
    counts = np.bincount(seen.first[teach], minlength=len(label))
    ones = np.bincount(seen.first[teach], label[teach], minlength=len(label))
    means = (ones + label.mean()) / (counts + 1)  # an unseen value gets the base rate
    found = _auc(label[test], means[seen.first[test]])
    if seen.kind == "numeric":
        found = max(found, _auc(label[test], seen.numbers.to_numpy()[test]))
    return found


def _auc(label: Floats, scores: Floats) -> float:
    """Return the AUC of the finite scores or of their mirror; 0.5 where there are too few rows."""
    finite = np.isfinite(scores)
    ones = label[finite].sum()
    zeros = finite.sum() - ones
    if min(ones, zeros) < ENOUGH:
        return 0.5
    found = auc(label[finite], scores[finite])
    return max(found, 1 - found)


def _is_an_id(seen: SeenColumn) -> bool:
    """Return whether every row has its own value, as ids do; of categories a few may repeat."""
    rows = len(seen.values)
    if seen.values.dtype.is_nested() or seen.is_measured or rows < 2:
        return False
    if seen.distinct == rows:
        return True
    nearly = seen.distinct >= NEARLY * rows and rows >= 10 * ENOUGH
    return seen.kind == "categorical" and nearly


def _mixed_findings(seen: SeenColumn, source: Source) -> Iterator[Finding]:
    """Yield a finding if there is text among numbers."""
    if not source.text:
        return
    rows = seen.one_of_each
    values = seen.values.gather(rows)
    is_word = values.is_not_null() & values.cast(pl.Float64, strict=False).is_null()
    words = rows[is_word.arg_true().to_numpy()]
    wrong = int(seen.counts[words].sum())
    present = len(seen.values) - seen.values.null_count()
    # of hashes in hexadecimal, a common one may look like a number
    if 0 < wrong < present / 2 and len(words) < seen.distinct / 2:
        row = int(words[0])
        text = (
            f"numbers but for {plural(wrong, 'row')}, "
            f"such as {shown(seen.values[row])} in {source.row(row)}"
        )
        yield Finding("mixed", seen.name, text, "Correct these rows, or leave the cells empty.")
