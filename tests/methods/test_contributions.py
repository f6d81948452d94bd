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
from torchleap.methods.contributions import alike, substitutes_of
from torchleap.selection import Worth
from torchleap.training.fit import Training


@pytest.mark.parametrize("backbone", ["wide_deep", "dcn"])
def test_contributions_are_those_of_full_passes(mixed, backbone, monkeypatch):
    monkeypatch.setattr(contributions, "rows_at_once", lambda width: 37)
    search = Search(mixed, models.benchmark(backbone), QUICK)
    model = search.fit_plain()
    found = contributions.contributions(search, model)
    label = mixed.valid.label
    complete = by_a_full_pass(model, mixed, [])
    worth = found.worth(mixed.fields.names, on_train=found.rises, optimism=0.25)
    for place, name in enumerate(mixed.fields.names):
        masked = by_a_full_pass(model, mixed, [name])
        assert torch.allclose(found.changes[place], complete - masked, atol=1e-5)
        rows = mixed.objective.row_losses(masked, label) - mixed.objective.row_losses(
            complete, label
        )
        assert worth[name].nats == pytest.approx(float(rows.mean()), abs=1e-6)
        assert worth[name].error == pytest.approx(float(rows.std()) / len(rows) ** 0.5, rel=1e-3)


def test_of_many_rows_some_evenly_spaced_ones_are_enough(mixed, monkeypatch):
    search = Search(mixed, models.benchmark("wide_deep"), QUICK)
    model = search.fit_plain()
    complete = contributions.contributions(search, model).changes
    monkeypatch.setattr(contributions, "ROWS", len(mixed.valid) // 3)
    monkeypatch.setattr(sample, "CHUNK", 2)  # fewer rows than the distance of two of them
    monkeypatch.setattr(contributions, "rows_at_once", lambda width: 37)
    part = contributions.contributions(search, model).changes
    assert torch.allclose(part, complete[:, ::3], atol=1e-5)


def test_fields_with_correlated_contributions_are_alike():
    first = torch.randn(500, generator=torch.Generator().manual_seed(0))
    other = torch.randn(500, generator=torch.Generator().manual_seed(1))
    changes = torch.stack([first, 0.3 * first + 0.2 * other, other, torch.zeros(500)])
    assert alike(changes, ["a", "b", "c", "d"]) == [("a", "b"), ("b", "c")], "most alike first"
    assert alike(changes[:1], ["a"]) == []


def test_the_field_of_a_pair_that_is_worth_more_took_over():
    worth = {"a": Worth(0.0, 0.0, 0.0), "b": Worth(0.3, 0.2, 0.4), "c": Worth(-0.1, -0.2, 0.0)}
    rises = dict.fromkeys(worth, 0.01)
    [found] = substitutes_of([("b", "a"), ("a", "c")], rises, worth)
    assert (found.closed, found.field, found.before, found.after) == ("a", "b", 0.01, 0.3)


def test_a_network_that_must_see_the_input_again_takes_fewer_rows(mixed, monkeypatch):
    monkeypatch.setattr(contributions, "SLOW_ROWS", 30)
    counts = []
    for backbone in ("wide_deep", "dcn"):
        search = Search(mixed, models.benchmark(backbone), QUICK)
        found = contributions.contributions(search, search.fit_plain())
        counts.append(found.changes.shape[1])
    assert counts == [90, 30]


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
    found = contributions.contributions(search, model)
    on_train = contributions.contributions(search, model, on_train=True).rises
    worth = found.worth(task.fields.names, on_train=on_train, optimism=0.25)
    stamp = task.fields.names.index("stamp")
    assert on_train[stamp] > found.rises[stamp] + 0.003
    assert worth["stamp"].nats < float(found.rises[stamp]) - 0.0005
    assert worth["user"].nats > 0.02
