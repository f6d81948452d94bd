"""The manifest of encoded data is plain JSON, and is read without trust."""

import json

import pytest

import torchleap as tl
from tests.data.frames import log
from torchleap._common.plain import with_key


@pytest.fixture
def task():
    return tl.data.read(log(), label="click", split="order")


def change(task, **entries):
    """Change a manifest as somebody would who knows about its key; None removes an entry."""
    path = task.folder / "task.json"
    content = {**json.loads(path.read_text()), **entries}
    del content["key"]
    kept = {name: value for name, value in content.items() if value is not None}
    path.write_text(json.dumps(with_key(kept)))


def test_the_manifest_is_plain_json(task):
    content = json.loads((task.folder / "task.json").read_text())
    assert content["rows"] == {"train": 480, "valid": 60, "test": 60}
    assert content["objective"] == "binary"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "does not hold encoded data.*read the data again"),
        ("[" * 100_000, "does not hold encoded data: it is nested too deeply"),
        ("[]", "task.json is damaged: expected an object.*Remove"),
        ('{"format": 99}', "expected encoded data of format 2, but found 99"),
        ('{"format": 2}', "task.json is damaged.*Remove"),
        ('{"format": 2, "columns": [5]}', "task.json is damaged.*Remove"),
        ('{"format": 2, "columns": [{"learnt": {}}]}', "task.json is damaged.*Remove"),
    ],
)
def test_a_damaged_manifest_is_refused(content, message, task):
    (task.folder / "task.json").write_text(content)
    with pytest.raises(tl.DataError, match=message):
        tl.data.Task.load(task.folder)


def test_a_manifest_without_an_objective_is_binary(task):
    change(task, objective=None)
    again = tl.data.Task.load(task.folder)
    assert again.objective is task.objective
    assert again.fingerprint == task.fingerprint


def test_an_unknown_objective_is_refused_with_the_nearest(task):
    change(task, objective="binry")
    with pytest.raises(
        tl.DataError, match="task.json: There is no objective 'binry'. Did you mean 'binary'"
    ):
        tl.data.Task.load(task.folder)
