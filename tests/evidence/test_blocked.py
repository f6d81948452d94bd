"""Which findings forbid the word "safe"."""

from typing import get_args

import pytest

from torchleap.data.files.findings import Kind
from torchleap.evidence.blocked import ALWAYS, IF_DROPPED, blocked_by


def finding(kind, column="paid"):
    return {"kind": kind, "column": column, "text": "such as 'n/a'", "cure": "Leave it out."}


def test_a_leak_and_copied_rows_always_block():
    found = blocked_by([finding("leak"), finding("copies", None)], dropped=[])
    assert found == [
        "'paid' gives the label away: such as 'n/a'.",
        "The test rows are not new: such as 'n/a'.",
    ]


@pytest.mark.parametrize("kind", ["number", "mixed"])
def test_a_misread_column_blocks_only_if_it_would_be_dropped(kind):
    words = "'paid' would be dropped, but may have been misread: such as 'n/a'."
    assert blocked_by([finding(kind)], dropped=["paid", "age"]) == [words]
    assert blocked_by([finding(kind)], dropped=["age"]) == []


@pytest.mark.parametrize("kind", ["id", "twin", "constant", "date", "header", "renamed", "rows"])
def test_what_touches_both_models_alike_only_warns(kind):
    assert blocked_by([finding(kind)], dropped=["paid"]) == []


def test_every_kind_that_blocks_is_a_kind_of_finding():
    assert {*ALWAYS, *IF_DROPPED} <= set(get_args(Kind))
