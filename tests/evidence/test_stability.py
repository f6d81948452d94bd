"""Stability: how often fields are kept on other draws of the rows, without another training."""

import json
import re

import pytest

import torchleap as tl
from tests.data.frames import USEFUL, small_truth
from torchleap import SelectionError, TorchleapError
from torchleap.evidence.stability import Stability, stability
from torchleap.selection import Rule, select
from torchleap.training.fit import Training

TRAINING = Training(batch=128, lr=5e-3, epochs=4, patience=4)
FIELDS = tl.Fields({"age": 1, "zip": 8})


@pytest.fixture(scope="module")
def task():
    return small_truth()


@pytest.fixture(scope="module")
def found(task):
    return tl.search(task, model="mlp", training=TRAINING)


def test_fields_that_surely_matter_are_kept_in_all_replicas(found):
    counts = found.stability().kept_in
    assert [counts[name] for name in USEFUL] == [8, 8, 8]
    assert found.stability().frequency["item"] == 1.0


def test_replicas_change_no_score_and_repeat_for_a_seed(task, found):
    without = tl.search(task, model="mlp", training=TRAINING, replicas=0)
    assert (without.scores, without.path) == (found.scores, found.path)
    again = tl.search(task, model="mlp", training=TRAINING)
    assert again.stability() == found.stability()


def test_replicas_differ_in_what_is_uncertain(found):
    scores = {tuple(one.scores.items()) for one in found.replicas}
    assert len(scores) == len(found.replicas) == 8
    for one in found.replicas:
        assert one.path.points[0].kept == found.fields.names
        counts = [len(point.kept) for point in one.path.points]
        assert counts == [len(point.kept) for point in found.path.points]
        assert min(point.behind for point in one.path.points) == 0


@pytest.mark.parametrize("limits", [{"share": 0.5}, {"worth": 1e-3}, {"threshold": 0.5}])
def test_every_rule_is_applied_to_the_replicas(found, limits):
    selection = found.select(**limits)
    assert selection.replicas == 8
    assert found.stability(Rule.of(**limits)).kept_in == dict(
        zip(found.fields.names, selection.kept_in, strict=True)
    )
    assert {selection.kept_in[found.fields.index(name)] for name in USEFUL} == {8}


def test_a_search_with_decoys_has_replicas_without_them(task):
    found = tl.search(task, model="mlp", training=TRAINING, fdr=0.2, decoys=3)
    assert tuple(found.stability().kept_in) == task.fields.names
    assert {found.stability().kept_in[name] for name in USEFUL} <= {6, 7, 8}


def test_a_selection_with_replicas_survives_a_file(found, tmp_path):
    selection = found.select()
    selection.save(tmp_path / "selection.json")
    content = json.loads((tmp_path / "selection.json").read_text())
    assert content["replicas"] == 8
    assert content["fields"][0]["kept_in"] == selection.kept_in[0]
    assert tl.Selection.load(tmp_path / "selection.json").kept_in == selection.kept_in


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replicas": 0}, "but found 0 replicas and kept_in for 2 of 2 fields"),
        ({"replicas": 1.5}, "but found 1.5 replicas"),
        ({"replicas": 2}, "kept_in must be a whole number from 0 to 2, but is 3"),
    ],
)
def test_damaged_replicas_in_a_file_are_refused(tmp_path, change, message):
    selection = select(FIELDS, {"age": 1.0, "zip": 0.0})
    content = {**selection.to_json(), "replicas": 8}
    for record, count in zip(content["fields"], (3, 1), strict=True):
        record["kept_in"] = count
    path = tmp_path / "selection.json"
    path.write_text(json.dumps(content | change))
    with pytest.raises(SelectionError, match=re.escape(message)):
        tl.Selection.load(path)


def test_a_method_without_replicas_says_so(task):
    found = tl.search(task, model="mlp", method="random", training=TRAINING)
    with pytest.raises(SelectionError, match="Expected a search with replicas, but Random made"):
        found.stability()
    assert found.select(share=0.5).replicas == 0


def test_a_number_of_replicas_is_whole(task):
    with pytest.raises(TorchleapError, match="replicas must be a whole number"):
        tl.search(task, replicas=-1)


def test_a_replica_in_which_the_rule_keeps_nothing_keeps_nothing():
    def fails():
        raise SelectionError("nothing")

    found = stability(FIELDS, [lambda: select(FIELDS, {"age": 1.0, "zip": 0.0}), fails])
    assert found == Stability({"age": 1, "zip": 0}, 2)


def test_stability_prints_as_a_table():
    shown = str(Stability({"age": 8, "zip": 3}, 8)).splitlines()
    assert shown == ["field  kept in", "age     8 of 8", "zip     3 of 8"]
