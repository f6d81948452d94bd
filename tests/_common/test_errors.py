import numpy as np
import pytest

import torchleap as tl
from torchleap._common.checks import is_number, is_whole, refuse_settings
from torchleap._common.errors import nearest


@pytest.mark.parametrize("kind", [tl.FieldError, tl.AttachError, tl.SelectionError, tl.MetricError])
def test_every_error_is_a_value_error_of_the_project(kind):
    assert issubclass(kind, tl.TorchleapError)
    assert issubclass(kind, ValueError)


def test_nearest_suggests_or_lists():
    assert nearest("user", ["user_id", "age"]) == "Did you mean 'user_id'?"
    assert nearest("zzz", ["user_id", "age"]) == "Known: 'user_id', 'age'."
    assert nearest("zzz", [f"f{i}" for i in range(20)]).endswith("'f7', ....")
    assert nearest("zzz", []) == "Known: none."


def test_only_what_does_not_hold_is_refused():
    refuse_settings({"fine": True})
    with pytest.raises(tl.TorchleapError, match="cannot be used: one; two"):
        refuse_settings({"one": False, "fine": True, "two": False})


@pytest.mark.parametrize(
    ("value", "number", "whole"),
    [
        (1, True, True),
        (1.5, True, False),
        (np.int64(3), True, True),
        (np.float32(3), True, False),
        (True, False, False),
        ("1", False, False),
    ],
)
def test_numbers(value, number, whole):
    assert (is_number(value), is_whole(value)) == (number, whole)
