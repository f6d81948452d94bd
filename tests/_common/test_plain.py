import json
import math
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest

from torchleap._common.errors import SelectionError, TorchleapError
from torchleap._common.plain import (
    as_json,
    fits_key,
    key_of,
    parse_json,
    plain,
    read_json,
    read_toml,
    with_key,
    write_json,
)


def test_a_plain_copy_equals_what_json_gives_back():
    value = MappingProxyType(
        {
            "alpha": np.float32(0.5),
            "steps": np.int64(3),
            "on": True,
            "none": None,
            "clip": (1, 2.5),
            "name": np.str_("x"),
            7: [{}],
            "half": Fraction(1, 2),
            "huge": 10**400,
        }
    )
    found = plain(value, "settings")
    assert found == {
        "alpha": 0.5,
        "steps": 3,
        "on": True,
        "none": None,
        "clip": [1, 2.5],
        "name": "x",
        "7": [{}],
        "half": 0.5,
        "huge": 10**400,
    }
    assert {type(one) for one in found.values()} <= {float, int, bool, type(None), list, str}
    assert json.loads(as_json(found)) == found


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": [0, {1}]}, r"but settings.a\[1\] is \{1\}, of type set"),
        (np.ones(()), "but settings is array.*, of type ndarray"),
        (np.bool_(True), "but settings is .*, of type bool"),
        ([math.nan], r"but settings\[0\] is nan, of type float"),
        (-math.inf, "but settings is -inf, of type float"),
    ],
)
def test_a_value_that_json_lacks_is_refused_with_its_place(value, sentence):
    with pytest.raises(
        SelectionError, match=f"^Expected finite numbers, text, lists and dicts, {sentence}.*$"
    ):
        plain(value, "settings", refused=SelectionError)


def test_numbers_that_are_not_finite_can_become_none():
    value = {"a": [math.nan, -math.inf, np.float32("nan"), 1.5]}
    assert plain(value, "record", nan_as_none=True) == {"a": [None, None, None, 1.5]}


def test_json_is_written_and_read_back(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": [1, None]}, indent=1)
    assert path.read_text() == '{\n "a": [\n  1,\n  null\n ]\n}\n'
    assert read_json(path, "a record") == {"a": [1, None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, math.nan)
    assert read_json(path, "a record") == {"a": [1, None]}


def test_a_file_that_is_not_json_is_named_with_the_cure(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"\xff{")
    with pytest.raises(
        SelectionError, match="x.json is not a model: expected JSON, but .*. Save it again.$"
    ):
        read_json(path, "a model", SelectionError, cure="Save it again.")
    with pytest.raises(TorchleapError, match=r"x.json is not a model: expected JSON, but [^.]*\.$"):
        read_json(path, "a model")


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "1" * 21, str(1 << 63), "[" * 100_000, '"\\ud800"', "{"]
)
def test_values_that_others_could_not_read_are_refused(text):
    with pytest.raises(ValueError, match="."):
        parse_json(text)


def test_a_toml_file_is_read(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("a = 1\n[b]\nday = 2026-01-01\n")
    assert read_toml(path)["a"] == 1
    path.write_text(f"a = {1 << 63}\n")
    with pytest.raises(SelectionError, match="x.toml is not TOML: found the number"):
        read_toml(path, SelectionError)


def test_a_key_depends_on_the_content_alone():
    assert key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1}) == "ae8a9a50524642753023cd4d"
    assert key_of({"a": 1}) != key_of({"a": 2})
    assert len(key_of(object)) == 24


def test_content_that_was_changed_does_not_fit_its_key():
    content = with_key({"format": 1, "files": ["a"]})
    assert fits_key(json.loads(json.dumps(content)))
    assert not fits_key({**content, "format": 2})
    assert not fits_key({"format": 1, "files": ["a"]})


def test_lists_in_lists_without_end_are_refused_in_one_sentence():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TorchleapError, match=r"but settings is deeper\. Make it again"):
        plain(deep, "settings")
    while deep:  # freed from the outside, as freeing it at once could end the process
        deep = deep[0]
