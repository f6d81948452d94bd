"""What each open field is worth in the present model, pairs included."""

from types import SimpleNamespace

import pytest
import torch

from tests.methods.tasks import QUICK
from torchleap import models
from torchleap.data.synthetic.truth import KnownTruth, known_truth
from torchleap.methods import Search, worth_meter
from torchleap.methods.contributions import Contributions, Samples, contributions
from torchleap.methods.interactions import Interactions
from torchleap.methods.worth_meter import WorthMeter

NAMES = ("a", "b", "c")


def measured(monkeypatch, losses, gains, *, errors=0.0, on_train=None, meter=None):
    """Return the worth of three fields, of which a and b are a pair.

    Args:
        monkeypatch: Replaces the measurement on rows.
        losses: The loss without each field, and without both of the pair, in this order.
        gains: What the pair would still gain.
        errors: The standard error of each of these.
        on_train: The same losses on train rows.
        meter: A meter that has measured before.
    """
    if meter is None:
        meter = WorthMeter(None, None, SimpleNamespace(valid="valid", train="train"), 0.25)
    meter.interactions = SimpleNamespace(pairs=[("a", "b")], gains=lambda _: torch.tensor([gains]))

    def known(search, model, sample, *, gates, masks):
        assert masks == [("a",), ("b",), ("c",), ("a", "b")]
        found = losses if sample == "valid" or on_train is None else on_train
        rises = torch.tensor(found, dtype=torch.float64)
        return Contributions(
            torch.zeros(4, 1), rises, torch.full_like(rises, errors), torch.zeros(1)
        )

    monkeypatch.setattr(worth_meter, "contributions", known)
    return meter.measure(None, NAMES, torch.zeros(0)), meter


def test_two_fields_that_matter_only_together_share_what_both_are_worth(monkeypatch):
    found, meter = measured(monkeypatch, [0.06, 0.06, 0.01, 0.06], 0.0)
    assert meter.together == {("a", "b")}
    assert found["a"].alone == found["b"].alone == pytest.approx(0.06)
    assert found["a"].share == found["b"].share == pytest.approx(0.03)
    assert found["c"].share == found["c"].alone == pytest.approx(0.01)


def test_fields_that_matter_by_themselves_keep_their_worth(monkeypatch):
    _, before = measured(monkeypatch, [0.06, 0.06, 0.01, 0.06], 0.0)
    found, meter = measured(monkeypatch, [0.06, 0.01, 0.01, 0.06], 0.0, meter=before)
    assert meter.together == set(), "any more"
    assert found["a"].share == pytest.approx(0.06)
    assert found["b"].share == pytest.approx(0.01)


def test_what_a_pair_would_still_gain_counts_for_both(monkeypatch):
    found, meter = measured(monkeypatch, [0.0, 0.0, 0.01, 0.0], 0.04)
    assert found["a"].alone == pytest.approx(0.04)
    assert found["a"].share == found["b"].share == pytest.approx(0.02)
    found, _ = measured(monkeypatch, [0.03, 0.03, 0.01, 0.03], 0.03, meter=meter)
    assert found["a"].alone == pytest.approx(0.04), "no more than it would have gained at first"


def test_errors_are_those_of_both_samples_and_both_halves_have_the_same(monkeypatch):
    found, _ = measured(
        monkeypatch,
        [0.06, 0.06, 0.01, 0.06],
        0.0,
        errors=0.004,
        on_train=[0.06, 0.06, 0.05, 0.06],
    )
    error = 0.004 * (1.25**2 + 0.25**2) ** 0.5
    assert found["c"].error == found["a"].error == found["b"].error == pytest.approx(error)
    assert found["c"].alone == pytest.approx(0.01 - 0.25 * 0.04), "memorised"


def test_the_worth_of_a_trained_model_is_that_of_its_masks():
    world = KnownTruth(widths=(1, 4), pair_widths=(1,), seed=3)
    search = Search(known_truth(world, 6_000), models.benchmark("wide_deep"), QUICK)
    model = search.fit_plain()
    meter = WorthMeter(search, Interactions(search, model), Samples(search), optimism=0.0)
    names = world.fields.names[2:6]
    outputs = model.eval()(*search.task.valid.all().inputs).detach()
    found = meter.measure(model, names, outputs)
    assert tuple(found) == names
    alone = contributions(search, model, search.task.valid.all())
    for name in names:
        place = world.fields.names.index(name)
        if not any(name in pair for pair in meter.interactions.pairs):
            assert found[name].alone == pytest.approx(float(alone.rises[place]), abs=1e-9)


def test_what_fields_pay_one_after_the_other_adds_up_to_what_they_pay_together():
    world = KnownTruth(widths=(1, 4), pair_widths=(1,), seed=3)
    search = Search(known_truth(world, 6_000), models.benchmark("wide_deep"), QUICK)
    model = search.fit_plain()
    meter = WorthMeter(search, Interactions(search, model), Samples(search), optimism=0.0)
    names = world.fields.names
    first, last = (names[0], names[3]), (names[1],)
    paid = meter.paid(model, [first, last], names)
    joint = meter.paid(model, [(*first, *last)], names)
    together = sum(cost.nats for cost in paid.values())
    assert together == pytest.approx(joint[*first, *last].nats, abs=1e-6)
    assert paid[last].error > 0
    meter.together = {(names[1], names[2])}
    alone = meter.paid(model, [(names[1], names[2])], names)
    pair = meter.paid(model, [(names[1],), (names[2],)], names)
    for name in names[1:3]:
        assert pair[(name,)].nats == pytest.approx(alone[names[1], names[2]].nats, abs=1e-6)
    assert meter.paid(model, [], names) == {}
