"""Decoys: useless copies of fields that take part in a search and leave no trace in its result."""

import pickle
import re
from dataclasses import replace

import pytest
import torch

import torchleap as tl
from tests.data.frames import USEFUL, log, small_truth
from torchleap import SelectionError, TorchleapError
from torchleap.evidence.decoys import MOST, Decoys, in_errors, suited_decoys
from torchleap.methods import LeAPBaseMethod
from torchleap.selection import Path, PathPoint, Worth
from torchleap.training.fit import Training

TRAINING = Training(batch=128, lr=5e-3, epochs=4, patience=4)


@pytest.fixture(scope="module")
def task():
    return small_truth()


@pytest.fixture(scope="module")
def found(task):
    return tl.search(task, model="mlp", training=TRAINING, fdr=0.2, decoys=3)


def test_each_field_has_decoys_of_its_width_cost_and_kind(task):
    priced = task.priced(costs={"price": 7.0}, protect=["item"])
    made = Decoys.of(priced, 2, seed=0)
    assert made.task.fields.names[: len(task.fields)] == task.fields.names
    assert len(made.task.fields) == 3 * len(task.fields)
    for name, own in made.names.items():
        for decoy in own:
            field = made.task.fields[decoy]
            assert (field.width, field.cost) == (
                priced.fields[name].width,
                priced.fields[name].cost,
            )
            assert not field.protected
    assert made.task.fields["item"].protected


def test_decoys_say_nothing_about_the_label_and_differ_from_each_other(task):
    made = Decoys.of(task, 2, seed=0)
    rows = made.task.train.all()
    slots = made.task.slots(ids=False)
    own, first, second = (
        rows.numbers[:, slots[name]].flatten() for name in ("price", *made.names["price"])
    )
    correlated = [
        abs(float(torch.corrcoef(torch.stack([x, rows.label]))[0, 1])) for x in (own, first, second)
    ]
    assert correlated[0] > 0.2
    assert max(correlated[1:]) < 0.05
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)


def test_decoys_are_the_same_for_a_seed_and_in_a_worker(task):
    one, same, other = (Decoys.of(task, 1, seed=seed).task for seed in (3, 3, 4))
    assert torch.equal(one.valid.all().numbers, same.valid.all().numbers)
    assert not torch.equal(one.valid.all().numbers, other.valid.all().numbers)
    again = pickle.loads(pickle.dumps(one))
    assert torch.equal(again.valid.all().ids, one.valid.all().ids)


def test_a_field_that_is_called_like_a_decoy_keeps_its_name():
    frame = log(400).select("click", "price", "age").rename({"age": "price (decoy 1)"})
    made = Decoys.of(tl.data.read(frame, label="click"), 1, seed=0)
    assert made.names["price"] == ("price (decoy 1)_",)


def test_a_search_keeps_useful_fields_and_none_that_lose_to_decoys(found):
    assert set(found.select().kept) == set(USEFUL)
    assert found.select().rule.to_json() == {"fdr": 0.2}
    assert found.select(fdr=0.2).kept == found.select().kept


def test_decoys_leave_no_trace_in_the_result(found, task):
    names = task.fields.names
    assert tuple(found.scores) == tuple(found.worth) == names
    assert found.fields == task.fields
    for point in found.path.points:
        assert set(point.kept) | set(point.closed) <= set(names)
        assert point.dims == sum(task.fields[name].width for name in point.kept)
    counts = [len(point.kept) for point in found.path.points]
    assert counts == sorted(set(counts), reverse=True)
    assert not any("decoy" in key for record in found.history for key in record)
    assert "decoy" not in repr(found.select())
    assert (found.model, found.run, found.plain, found.snapshots) == (None, None, None, ())


def test_decoys_are_worth_nothing_on_average(found):
    worth = found.worth
    assert abs(found.path.decoys.mean_worth) < 0.1 * min(worth[name].nats for name in USEFUL)
    assert found.path.decoys.high_worth < min(worth[name].nats for name in USEFUL)
    assert found.path.decoys.per_field == 3


def test_a_method_without_worth_compares_scores(task):
    found = tl.search(task, model="mlp", method="gbdt", training=TRAINING, fdr=0.2, decoys=3)
    assert set(USEFUL) <= set(found.select().kept)
    assert found.path.decoys.mean_worth is None
    assert found.path.worth == {}


def test_other_rules_apply_to_a_search_with_decoys(found):
    assert len(found.select(share=0.5).kept) == len(found.fields) // 2


def test_few_fields_get_more_decoys_each(task):
    assert suited_decoys(100, 0.1) == 1
    assert suited_decoys(12, 0.1) == 4
    assert suited_decoys(2, 0.1) == MOST


def test_too_few_fields_for_any_number_of_decoys_are_refused_before_the_search(task):
    few = task.only(["item", "price", "taste"])
    message = (
        "fdr=0.05 needs at least 4 fields that compete with 5 decoys each, but there are 3. "
        "Raise fdr= to 0.067 or more"
    )
    with pytest.raises(SelectionError, match=re.escape(message)):
        tl.search(few, fdr=0.05)
    with pytest.raises(SelectionError, match="but there are 2"):
        tl.search(few.priced(protect=["item"]), fdr=0.05)


def test_decoys_need_a_rate_and_a_possible_number(task):
    with pytest.raises(SelectionError, match=re.escape("decoys=2 needs the rate")):
        tl.search(task, decoys=2)
    with pytest.raises(TorchleapError, match="decoys must be a whole number"):
        tl.search(task, fdr=0.2, decoys=0)
    with pytest.raises(SelectionError, match="fdr must lie between 0 and 1"):
        tl.search(task, fdr=1.0)


def test_a_worth_of_rounding_is_zero():
    assert in_errors(Worth(1e-12, 0.0, 2e-12)) == 0.0
    assert in_errors(Worth(1.0, 1.0, 1.0)) == float("inf")


def _point(kept, behind=0.1):
    return PathPoint(tuple(kept), (), 9, 9.0, 0.7, 0.6, 0.8, behind, behind, 0.5, 1e-3, 1)


def test_points_that_differ_in_decoys_alone_are_one_point_the_best(task):
    made = Decoys.of(task, 1, seed=0)
    item, price = "item", "price"
    decoy = made.names[item][0]
    points = (
        _point([item, price, decoy]),
        replace(_point([item, price], behind=0.0), closed=(decoy,)),
        replace(_point([item, decoy]), closed=(price,)),
        replace(_point([decoy]), closed=(item,)),
    )
    path = Path("auc", {}, points)
    found = made.path_of_fields(path, dict.fromkeys(made.task.fields.names, 0.0), "auc").points
    assert [point.kept for point in found] == [(item, price), (item,)]
    assert [point.closed for point in found] == [(), (price,)]
    assert [point.behind for point in found] == [0.0, 0.1]


def test_a_decision_by_decoys_has_none_of_them(task, tmp_path):
    decision = tl.decide(task, model="mlp", training=TRAINING, fdr=0.2)
    kept = decision.selection.kept
    assert set(kept) == set(USEFUL)
    assert decision.record["rule"] == {"fdr": 0.2}
    assert decision.record["decoys"]["estimate"] <= 0.2
    assert [one["name"] for one in decision.record["fields"]] == list(task.fields.names)
    assert decision.record["undecided"] is None
    rows = task.test.all()
    outputs = decision.model(*rows.inputs)
    for name, place in task.slots(ids=False).items():
        if name not in kept:  # what it had read would show
            rows.numbers[:, place] = float("nan")
    assert torch.equal(decision.model(*rows.inputs), outputs)
    decision.save(tmp_path)
    served = tl.Served.load(tmp_path)
    assert "decoy" not in (tmp_path / "selection.json").read_text()
    assert "decoy" not in (tmp_path / "layout.json").read_text()
    assert served is not None


def test_a_decision_keeps_all_fields_where_none_is_clear(task):
    noise = task.only(["user", "noise", "blur"])
    decision = tl.decide(noise, model="mlp", training=replace(TRAINING, epochs=1), fdr=0.2)
    assert not decision.selection.dropped
    assert "needs at least" in decision.record["undecided"]


def test_gates_without_a_path_compete_too(task):
    method = LeAPBaseMethod()
    found = tl.search(task, model="mlp", method=method, training=TRAINING, fdr=0.3, decoys=2)
    assert found.path.points == ()
    assert found.path.decoys.per_field == 2
