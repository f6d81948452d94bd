"""Hostile results for `check`: nothing of them runs, and each is one sentence."""

import json
import shutil
from dataclasses import replace

import polars as pl
import pytest

import torchleap as tl
from tests.hostile.test_checkpoints import PICKLES
from tests.hostile.watch import watched
from torchleap._common.plain import write_json
from torchleap.data.sketch import Sketch
from torchleap.pipeline.decide import decide
from torchleap.pipeline.full import digest_of
from torchleap.pipeline.serve import Served, _digest

from ..pipeline.test_decide import COLUMNS, TRAINING, rows


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A good result, checked once, so that lazy imports are done."""
    folder = tmp_path_factory.mktemp("good") / "result"
    task = tl.data.read(rows(600), label="click", columns=COLUMNS)
    quick = replace(TRAINING, epochs=1)
    decide(task, model="mlp", method="random", training=quick, share=0.5).save(folder)
    Served.load(folder).check(rows(300, seed=5), margin=0.1, ab=True)
    return folder


@pytest.fixture
def result(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "result")


def sealed(folder):
    """Bind the parts of a result again, as somebody would who knows about its digests."""
    content = json.loads((folder / "layout.json").read_text())
    content.pop("result")
    content["full"] = digest_of(folder / "full")
    write_json(folder / "layout.json", {**content, "result": _digest(folder, content)})


def outcome_of(folder, data=None):
    """Check a result under the audit hook; return its verdict, or the message of its refusal."""
    new = rows(300, seed=5) if data is None else data
    with watched(folder, code=False) as seen:
        try:
            found = str(Served.load(folder).check(new, margin=0.1))
        except tl.TorchleapError as error:
            found = str(error)
    assert seen == []
    return found


VALUES = [
    ("label", None),
    ("label", 3),
    ("label", ["click"]),
    ("label", "__class__"),
    ("label", "price"),
    ("label", "\ud800"),
    ("group", 3),
    ("group", "../../etc/passwd"),
    ("margin", -1),
    ("margin", "1"),
    ("margin", True),
    ("relative", "yes"),
    ("threshold", "x"),
    ("threshold", [1]),
    ("positive", [1]),
    ("positive", {"a": 1}),
    ("positive", "x" * 100_000),
    ("typical_training", "0.1"),
    ("saved", [1]),
    ("saved", [1, "2"]),
    ("saved", 3),
    ("__init__", 3),
    ("rule", 3),
]


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_settings_may_hold_anything_and_end_in_a_sentence(result, name, value):
    path = result / "full" / "check.json"
    content = json.loads(path.read_text())
    content["compared"][name] = value
    path.write_text(json.dumps(content))
    sealed(result)
    found = outcome_of(result)
    sentences = (
        "damaged or of another version",
        "cannot be read",
        "lacks the column",
        "expected the label",
        "Models cannot be compared",
    )
    assert any(sentence in found for sentence in sentences), found
    assert len(found) < 1000


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "[" * 100_000, '{"format": 1}', '{"format": 2}', '"\\ud800"'),
        *('{"format": 1, "natural": [5, 1]}', '{"format": 1, "natural": [0, 1e400]}'),
        '{"format": 1, "natural": [0, 1], "compared": [], "seen": {}}',
    ],
)
def test_settings_that_are_something_else_are_refused(result, text):
    (result / "full" / "check.json").write_text(text)
    sealed(result)
    assert "Select again." in outcome_of(result)


@pytest.mark.parametrize(
    "seen",
    [
        *(None, [], {}, {"threshold": 1, "rows": 1}),
        {"threshold": 1 << 62, "rows": 5, "sha256": "0" * 64},
        {"threshold": 1.5, "rows": 5, "sha256": "0" * 64},
        {"threshold": 5, "rows": -5, "sha256": 3},
    ],
)
def test_a_description_of_rows_that_is_something_else_is_refused(result, seen):
    path = result / "full" / "check.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seen": seen}))
    sealed(result)
    assert "rows.sketch is damaged" in outcome_of(result)


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_in_the_place_of_rows_runs_nothing(result, name):
    (result / "full" / "rows.sketch").write_bytes(PICKLES[name])
    assert "rows.sketch is damaged" in outcome_of(result)


def test_a_sketch_outside_the_folder_is_not_read(result, tmp_path):
    path = result / "full" / "rows.sketch"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "rows.sketch is damaged: it cannot be read" in outcome_of(result)


def test_no_flipped_bit_of_the_full_model_is_accepted(result):
    for path in sorted((result / "full").rglob("*")):
        if path.is_dir():
            continue
        content = path.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            flipped = bytearray(content)
            flipped[place] ^= 1
            path.write_bytes(flipped)
            found = outcome_of(result)
            path.write_bytes(content)
            assert "again" in found, (path.name, place)


def test_a_sketch_that_claims_every_row_refuses_and_one_of_nothing_does_not(result):
    new = rows(300, seed=5)
    full = result / "full"
    path = full / "check.json"
    content = json.loads(path.read_text())
    content["seen"] = Sketch.of([]).save(full / "rows.sketch")
    path.write_text(json.dumps(content))
    sealed(result)
    assert "interval" in outcome_of(result, pl.concat([new, rows(600)]))
