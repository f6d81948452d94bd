"""Agreement: how often searches keep the same fields."""

import pytest

from torchleap.evidence.agreement import agreement_of
from torchleap.fields import Fields
from torchleap.selection import Selection, select
from torchleap.selection.rule import Rule

FIELDS = Fields({"a": 1, "b": 2, "c": 3})


def keeping(*names: str) -> Selection:
    scores = {name: float(name in names) for name in FIELDS.names}
    return select(FIELDS, scores, Rule.of(threshold=0.5))


def test_equal_selections_agree_completely():
    found = agreement_of([keeping("a", "b"), keeping("a", "b"), keeping("a", "b")])
    assert (found.selections, found.jaccard) == (3, 1.0)
    assert found.kept == {"a": 3, "b": 3, "c": 0}


def test_the_agreement_is_the_mean_over_all_pairs():
    found = agreement_of([keeping("a", "b"), keeping("a", "c"), keeping("a")])
    assert found.kept == {"a": 3, "b": 1, "c": 1}
    assert found.jaccard == pytest.approx((1 / 3 + 1 / 2 + 1 / 2) / 3)


def test_disjoint_selections_do_not_agree_at_all():
    assert agreement_of([keeping("a"), keeping("b")]).jaccard == 0
