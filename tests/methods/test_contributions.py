"""What each field contributes to a trained model, and which fields say the same."""

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from tests.methods.tasks import QUICK
from tests.methods.test_masking import by_a_full_pass
from torchleap import models
from torchleap.methods import Search, contributions, sample
from torchleap.methods.contributions import (
    Samples,
    affordable_rows,
    alike,
    substitutes_of,
    worth_of,
)
from torchleap.methods.interactions import Interactions
from torchleap.methods.worth_meter import WorthMeter
from torchleap.selection import Worth
from torchleap.training.fit import Training


@pytest.mark.parametrize("backbone", ["wide_deep", "dcn"])
def test_contributions_are_those_of_full_passes(mixed, backbone, monkeypatch):
    monkeypatch.setattr(contributions, "rows_at_once", lambda width: 37)
    search = Search(mixed, models.benchmark(backbone), QUICK)
    model = search.fit_plain()
    masks = [(name,) for name in mixed.fields.names] + [mixed.fields.names[1:3]]
    found = contributions.contributions(search, model, mixed.valid.all(), masks=masks)
    label = mixed.valid.label
    complete = by_a_full_pass(model, mixed, [])
    for place, mask in enumerate(masks):
        masked = by_a_full_pass(model, mixed, mask)
        assert torch.allclose(found.changes[place], complete - masked, atol=1e-5)
        rows = mixed.objective.row_losses(masked, label) - mixed.objective.row_losses(
            complete, label
        )
        assert float(found.rises[place]) == pytest.approx(float(rows.mean()), abs=1e-6)
        error = float(rows.std()) / len(rows) ** 0.5
        assert float(found.errors[place]) == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize("backbone", ["wide_deep", "dcn"])
def test_with_gates_a_field_becomes_the_mean_that_its_closed_gate_has(mixed, backbone):
    search = Search(mixed, models.benchmark(backbone), QUICK)
    model = search.fit_plain()
    plugin = tl.attach(model, mixed.fields, at="net", seed=0)
    rows = mixed.valid.all()
    model.train()
    model(*rows.inputs)
    names = mixed.fields.names
    with torch.no_grad():
        plugin.gates.theta[1] = -100.0
    model.eval()
    found = contributions.contributions(search, model, rows, gates=plugin.gates)
    complete = model(*rows.inputs)
    assert found.changes[1].abs().max() < 1e-6, "it is closed already"
    for place in (0, 2):
        with plugin.gates.masked([name for name in names if name != names[place]]):
            masked = model(*rows.inputs)
        assert torch.allclose(found.changes[place], (complete - masked).detach(), atol=1e-5)


def test_samples_are_evenly_spaced_validation_rows_and_a_quarter_as_many_train_rows(
    mixed, monkeypatch
):
    monkeypatch.setattr(sample, "CHUNK", 2)  # fewer rows than the distance of two of them
    search = Search(mixed, models.benchmark("wide_deep"), QUICK)
    count = len(mixed.valid) // 3
    samples = Samples(search, count)
    assert torch.equal(samples.valid.label, mixed.valid.label[::3])
    assert len(samples.train) == len(samples.valid) // 4
    monkeypatch.setattr(contributions, "NUMBERS", 20 * mixed.fields.dims)
    assert len(Samples(search, count).valid) <= 20, "wide inputs take fewer rows"


def test_fields_with_correlated_contributions_are_alike():
    first = torch.randn(500, generator=torch.Generator().manual_seed(0))
    other = torch.randn(500, generator=torch.Generator().manual_seed(1))
    changes = torch.stack([first, 0.3 * first + 0.2 * other, other, torch.zeros(500)])
    assert alike(changes, ["a", "b", "c", "d"]) == [("a", "b"), ("b", "c")], "most alike first"
    assert alike(changes[:1], ["a"]) == []


def test_the_field_of_a_pair_whose_worth_rose_took_over():
    after = {"a": Worth(0.0, 0.0, 0.0), "b": Worth(0.3, 0.2, 0.4), "c": Worth(-0.1, -0.2, 0.0)}
    before = dict.fromkeys(after, Worth(0.01, 0.0, 0.02))
    [found] = substitutes_of([("b", "a"), ("a", "c")], {}, before, after)
    assert (found.closed, found.field, found.before, found.after) == ("a", "b", 0.01, 0.3)


def test_a_worth_that_rises_by_chance_makes_no_substitute_but_a_copy_always_is_one():
    after = {"a": Worth(0.0, 0.0, 0.0), "b": Worth(0.03, 0.0, 0.06)}
    before = dict.fromkeys(after, Worth(0.01, -0.01, 0.03))
    assert substitutes_of([("a", "b")], {}, before, after) == ()
    [found] = substitutes_of([("a", "b")], {"a": "b"}, before, after)
    assert (found.closed, found.field) == ("a", "b")


def test_the_error_of_a_worth_is_that_of_rows_and_of_trainings():
    rises = torch.tensor([[0.1, 0.1, 0.1, 0.1], [0.1, 0.3, 0.1, 0.3]], dtype=torch.float64)
    worth = worth_of(["a", "b"], rises, noise=0.06)
    assert worth["a"].nats == pytest.approx(0.1)
    assert worth["a"].error == pytest.approx(0.06)
    assert worth["b"].nats == pytest.approx(0.2)
    of_rows = float(rises[1].std()) / 2
    assert worth["b"].error == pytest.approx((0.06**2 + of_rows**2) ** 0.5)


def test_masks_take_about_a_quarter_of_the_time_of_the_training(mixed, monkeypatch):
    monkeypatch.setattr(contributions, "FEWEST", 1)
    rows = {}
    for backbone in ("wide_deep", "dcn"):
        search = Search(mixed, models.benchmark(backbone), QUICK)
        rows[backbone] = affordable_rows(search, search.model(), steps=20, masks=400)
    passes = 3 * 20 * QUICK.batch  # of single rows; backward counts twice
    assert rows["dcn"] == pytest.approx(0.25 * passes / 400, abs=1), "it sees the input again"
    assert rows["wide_deep"] > 1.5 * rows["dcn"], "only the layers behind the first one count"
    assert affordable_rows(search, search.model(), steps=10**6, masks=1) == contributions.ROWS
    monkeypatch.setattr(contributions, "FEWEST", 77)
    assert affordable_rows(search, search.model(), steps=1, masks=1e6) == 77


def test_a_memorised_field_is_worth_less_than_the_model_loses_without_it():
    """A time stamp lowers the loss of train rows by much and of others by a little."""
    rng = np.random.default_rng(0)
    user = rng.integers(0, 8, 3000)
    frame = pl.DataFrame(
        {
            "click": (rng.random(3000) < 0.2 + 0.6 * (user % 2)).astype(int),
            "user": user,
            "stamp": np.arange(3000) // 2,
        }
    )
    columns = {name: {"kind": "categorical", "width": 4} for name in ("user", "stamp")}
    task = tl.data.read(frame, label="click", columns=columns, min_count=1)
    training = Training(batch=128, lr=2e-2, epochs=6, patience=6)
    search = Search(task, models.benchmark("mlp"), training)
    model = search.fit_plain()
    meter = WorthMeter(search, Interactions(search, model), Samples(search), optimism=0.25)
    outputs = model.eval()(*task.valid.all().inputs).detach()
    worth = meter.measure(model, task.fields.names, outputs)
    on_valid = contributions.contributions(search, model, meter.samples.valid)
    on_train = contributions.contributions(search, model, meter.samples.train)
    stamp = task.fields.names.index("stamp")
    assert on_train.rises[stamp] > on_valid.rises[stamp] + 0.003
    assert worth["stamp"].alone < float(on_valid.rises[stamp]) - 0.0005
    assert worth["user"].alone > 0.02
