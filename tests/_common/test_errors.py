import pickle

import pytest

import torchleap as tl
from torchleap._common.errors import RemovedTableError, nearest, shown


@pytest.mark.parametrize("kind", [tl.FieldError, tl.AttachError, tl.SelectionError, tl.MetricError])
def test_every_error_is_a_value_error_of_the_project(kind):
    assert issubclass(kind, tl.TorchleapError)
    assert issubclass(kind, ValueError)


def test_nearest_suggests_or_lists():
    assert nearest("user", ["user_id", "age"]) == "Did you mean 'user_id'?"
    assert nearest("zzz", ["user_id", "age"]) == "Known: 'user_id', 'age'."
    assert nearest("zzz", [f"f{i}" for i in range(20)]).endswith("'f7', ....")
    assert nearest("zzz", []) == "Known: none."


def test_a_long_value_is_shown_cut_and_in_quotes():
    assert shown("short") == "'short'"
    assert shown("line\nbreak") == "'line\\nbreak'"
    assert shown("a" * 100, most=12) == "'aaaaaaa...'"


def test_a_removed_table_error_survives_pickling():
    error = pickle.loads(pickle.dumps(RemovedTableError(["b", "a"], "item()")))
    assert error.tables == {"a", "b"}
    assert "item() needs 'a', 'b'. Prune with example=" in str(error)
