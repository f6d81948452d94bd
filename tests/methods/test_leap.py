"""LeAP as a method: the price path from a plain model to the last field."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import torchleap as tl
from torchleap.callbacks.watcher import Watcher
from torchleap.data.synthetic.truth import KnownTruth, known_truth
from torchleap.gates.turn_trainer import TurnTrainer, turns_of
from torchleap.methods import LeAPMethod
from torchleap.methods.base import Search, Snapshot
from torchleap.methods.contributions import Samples
from torchleap.methods.interactions import Interactions
from torchleap.methods.leap import (
    LEAST,
    LONGEST,
    SNAPSHOTS,
    PathSteps,
    path_training,
    snapshot_for,
    suited_steps,
)
from torchleap.methods.worth_meter import WorthMeter
from torchleap.models import MLP
from torchleap.training.fit import Training

TRUTH = KnownTruth(widths=(1, 4), pair_widths=(), active=0.1, seed=0)
MODEL = MLP(hidden=(16,), dropout=0.0)
TRAINING = Training(batch=128, epochs=4, patience=2, lr=5e-3)
METHOD = LeAPMethod(steps=320)
TURN = 320 // turns_of(len(TRUTH.fields))


@pytest.fixture(scope="module")
def task():
    return known_truth(TRUTH, 8_000)


@pytest.fixture(scope="module")
def found(task):
    return tl.search(task, model=MODEL, method=METHOD, training=TRAINING, seed=0)


def test_the_path_leads_from_all_fields_to_one(found, task):
    counts = [len(point.kept) for point in found.path.points]
    assert counts[0] == len(task.fields)
    assert counts[-1] == 1
    assert counts == sorted(set(counts), reverse=True)
    for before, after in pairwise(found.path.points):
        assert set(after.kept) < set(before.kept)
        assert set(after.closed) == set(before.kept) - set(after.kept)
        assert after.price >= before.price
        assert after.step > before.step
        assert after.low <= after.metric <= after.high
    assert found.path.metric == "auc"


def test_worth_orders_the_useful_fields_before_noise(found, task):
    assert list(found.worth) == list(task.fields.names)
    useful = [name for name in TRUTH.useful if "dense" in name]
    useless = [name for name in TRUTH.useless if "dense" in name or "constant" in name]
    for name in useful:
        twins = [copy for copy, source in TRUTH.source.items() if source == name]
        best = max(found.scores[one] for one in (name, *twins))
        assert best > max(found.scores[one] for one in useless)
    for worth in found.worth.values():
        assert worth.low <= worth.nats <= worth.high


def test_without_a_rule_the_fewest_fields_within_one_standard_error_are_kept(found):
    selection = found.select()
    assert selection.rule.to_json() == {"tolerance": "1se"}
    assert selection.kept == found.path.smallest_within().kept
    assert found.select(worth=0.0).kept == tuple(
        name for name, worth in found.worth.items() if worth.nats >= 0
    )


def test_a_copy_is_a_substitute_of_its_original(found):
    pairs = {frozenset((one.closed, one.field)) for one in found.path.substitutes}
    for copy, source in TRUTH.source.items():
        assert frozenset((copy, source)) in pairs
    for one in found.path.substitutes:
        assert one.after == found.worth[one.field].nats > 0


def test_of_equivalent_fields_one_closes_before_all_others(found):
    closed = [name for point in found.path.points for name in point.closed]
    assert set(closed[: len(TRUTH.source)]) == set(TRUTH.source)
    assert found.path.points[0].step == 0
    for copy in TRUTH.source:
        assert found.worth[copy].nats == pytest.approx(0.0, abs=1e-6)


def test_the_plain_model_is_that_of_a_retraining(found, task):
    plain = tl.retrain(task, model=MODEL, training=TRAINING, seed=0).model
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, found.plain.state_dict()[name])


def test_snapshots_are_few_and_one_fits_every_selection(found):
    assert 2 <= len(found.snapshots) <= SNAPSHOTS
    counts = [len(one.kept) for one in found.snapshots]
    assert counts == sorted(set(counts), reverse=True)
    for share in (1.0, 0.5, 0.25):
        kept = found.select(share=share).kept
        snapshot = snapshot_for(found.snapshots, kept)
        assert set(kept) <= set(snapshot.kept)
    first = Snapshot(("a", "b", "c"), {})
    second = Snapshot(("a", "b"), {})
    assert snapshot_for([first, second], ["a"]) is second
    assert snapshot_for([first, second], ["c"]) is first


class Interrupt(Watcher):
    """Stops the training of the path at a step."""

    def __init__(self, step):
        self.step = step

    def after_step(self, run):
        if run.training.eval_every == TURN and run.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [101, 200])
def test_an_interrupted_path_resumes_with_the_same_bits(found, task, tmp_path, step):
    training = replace(TRAINING, checkpoint_steps=10)
    settings = {"model": MODEL, "method": METHOD, "training": training, "seed": 0}
    folder = tmp_path / "search"
    with pytest.raises(KeyboardInterrupt):
        tl.search(task, **settings, checkpoint=folder, callbacks=[Interrupt(step)])
    resumed = tl.search(task, **settings, checkpoint=folder)
    assert resumed.scores == found.scores
    assert resumed.path == found.path
    for one, other in zip(resumed.snapshots, found.snapshots, strict=True):
        assert one.kept == other.kept
        for name, tensor in one.weights.items():
            assert torch.equal(tensor, other.weights[name])


def test_a_decision_prunes_the_model_of_the_path(task):
    decision = tl.decide(task, model=MODEL, method=METHOD, training=TRAINING, seed=0)
    record = decision.record
    assert record["rule"] == {"tolerance": "1se"}
    assert [len(one["kept"]) for one in record["path"]["points"]][-1] == 1
    assert record["fields"][0]["worth"] is not None
    assert set(record["seconds"]) == {
        "searching",
        "preparing",
        "masking",
        "fine-tuning",
        "comparing",
    }
    kept = tl.search(task, model=MODEL, method=METHOD, training=TRAINING, seed=0).select().kept
    assert decision.selection.kept == kept


def test_the_steps_of_a_path_follow_those_of_the_training():
    assert suited_steps(1000) == 450
    assert suited_steps(1) == LEAST
    settings = path_training(replace(TRAINING, schedule="cosine", steps=7), 320, 16, limit=10.0)
    assert (settings.schedule, settings.steps) == ("constant", LONGEST * 320)
    assert settings.eval_every == 16
    assert settings.time_limit == 6.0


def test_a_slower_price_takes_more_steps(task):
    steps = {}
    for slowness in (0.5, 2.0):
        method = LeAPMethod(slowness=slowness)
        result = tl.search(task, model=MODEL, method=method, training=TRAINING, seed=0)
        steps[slowness] = result.path.points[-1].step
    assert steps[2.0] > 2 * steps[0.5]


def test_too_many_snapshots_lose_those_that_their_neighbours_replace(task):
    search = Search(task, MODEL, TRAINING)
    model = search.model()
    plugin = tl.attach(model, task.fields, at="net")
    trainer = TurnTrainer(model, plugin.gates, steps=40, turn=2)
    meter = WorthMeter(search, Interactions(search, search.model()), Samples(search), 0.25)
    hook = PathSteps(model, trainer, search, meter)
    for count in range(40, 0, -1):
        hook._keep_snapshot(Snapshot(tuple(map(str, range(count))), {}))
    counts = [len(one.kept) for one in hook.snapshots]
    assert len(counts) == SNAPSHOTS
    assert (counts[0], counts[-1]) == (40, 1)
    for more, fewer in pairwise(counts):
        assert more / fewer < 3.1


def test_a_method_without_a_path_has_no_worth(task):
    result = tl.search(task, model=MODEL, method="random", training=TRAINING)
    with pytest.raises(tl.TorchleapError, match="Random gives only scores"):
        _ = result.worth
    with pytest.raises(tl.TorchleapError, match="this one has none"):
        result.select(tolerance=0.01)


def test_costs_in_the_price_rank_by_worth_per_dimension(task):
    method = LeAPMethod(steps=320, price_by="dims")
    found = tl.search(task, model=MODEL, method=method, training=TRAINING, seed=0)
    narrow, wide = found.scores["main_dense_1"], found.scores["main_dense_4"]
    copies = {source: copy for copy, source in TRUTH.source.items()}
    narrow = max(narrow, found.scores[copies["main_dense_1"]])
    wide = max(wide, found.scores[copies["main_dense_4"]])
    assert narrow > wide
