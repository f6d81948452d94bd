"""SHARK equals its definition row by row, at once and in rounds."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from tests.data.frames import USEFUL
from tests.methods.tasks import QUICK, TRAINING
from torchleap import models
from torchleap.methods import Search, Shark
from torchleap.methods.shark import Changes, Means, mean_input


def test_shark_equals_its_definition_row_by_row_to_a_millionth(trained, task):
    search, model = trained
    rows = task.valid.all()
    with torch.no_grad():
        x = model.inputs(*rows.inputs)
    mean = x.double().mean(0).float()
    changes = []
    for own, label in zip(x.split(1), rows.label.split(1), strict=True):
        own = own.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(
            binary_cross_entropy_with_logits(model.net(own), label), own
        )
        parts = ((mean - own.detach()) * gradient)[0].split(task.fields.widths)
        changes.append(torch.stack([part.sum() for part in parts]).double())
    change = torch.stack(changes)  # (N, F)
    found = Shark().changes(search, model)
    for own, expected in (
        (found.size, change.abs().mean(0)),
        (found.mean, change.mean(0)),
        (found.error, change.std(0) / len(rows) ** 0.5),
    ):
        assert ((own - expected).abs().max() / expected.abs().max()).item() < 1e-6
    worth = found.worth(task.fields.index("item"))
    item = change[:, task.fields.index("item")]
    assert worth.nats == pytest.approx(item.mean().item(), rel=1e-5)
    assert worth.error == pytest.approx(item.std().item() / len(rows) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("rounds", [2, 3, 20])
@pytest.mark.parametrize("signed", [False, True])
def test_shark_in_rounds_ranks_by_round_and_then_by_score(task, rounds, signed, monkeypatch):
    """More rounds than fields drop one at a time; scores are raised no more than necessary."""
    lowest = -1.0 if signed else 0.0
    scores = torch.tensor([5.0, 1.0, lowest, 3.0, 2.0, 6.0, 4.0], dtype=torch.float64)
    search = Search(task, models.benchmark("wide_deep"), TRAINING)
    fitted = []
    dropped = []

    def changes(self, search, model):
        now = scores / 2 ** len(dropped)
        unused = torch.full_like(now, torch.nan)
        size, mean = (unused, now) if signed else (now, -now)
        return Changes(size, mean, mean.abs() / 10)

    monkeypatch.setattr(Shark, "changes", changes)

    def fit(self, model, *hooks, training=None):
        fitted.append(training)
        return SimpleNamespace(history=[])

    monkeypatch.setattr(Search, "fit", fit)
    monkeypatch.setattr(Means, "drop", lambda self, places, mean: dropped.append(places))
    by_name = Shark(signed=signed, rounds=rounds, epochs=2).score(search)
    found = torch.tensor(list(by_name.values()), dtype=torch.float64)
    assert torch.equal(found.argsort(), scores.argsort())
    assert len(found.unique()) == 7
    assert fitted == [None, *[replace(TRAINING, epochs=2)] * len(dropped)]
    in_order = [place for places in dropped for place in places]
    assert in_order == scores.argsort().tolist()[: len(in_order)]
    worth = list(search.path.worth.values())
    assert list(search.path.worth) == list(task.fields.names)
    first = next(number for number, places in enumerate(dropped) if places)
    assert worth[2].nats == pytest.approx(lowest / 2**first)  # as it was when it was dropped
    last = (1 if signed else -1) * 6.0 / 2 ** len(dropped)  # as it was last, without the lift
    assert worth[5].nats == pytest.approx(last)
    assert worth[5].error == pytest.approx(abs(last) / 10)
    if rounds == 2:
        assert len(dropped[0]) == 4
        rising = found.sort().values
        assert rising[:4].tolist() == scores.sort().values[:4].tolist()
        # 2.0 after 3.0 is raised to just above it.
        assert rising[4].item() == pytest.approx(rising[3].item(), abs=1e-4)
        assert (rising[5:] - rising[4:6]).tolist() == pytest.approx([0.5, 0.5])


def test_shark_in_rounds_ranks_the_useful_fields_no_worse(task):
    """On an easy set; on harder ones it need not."""
    for method in (Shark(), Shark(rounds=3), Shark(rounds=7)):
        result = tl.search(
            task, model=models.benchmark("wide_deep"), method=method, training=TRAINING
        )
        useful = [name in USEFUL for name in result.scores]
        assert tl.auc(useful, list(result.scores.values())) == 1
        if method.rounds == 1:
            search = Search(task, models.benchmark("wide_deep"), TRAINING)
            model = search.model()
            search.fit(model)
            changes = Shark().changes(search, model)
            assert result.scores == search.by_field(changes.size)
            signed = {name: changes.worth(place) for place, name in enumerate(task.fields.names)}
            assert result.worth == signed


def test_the_worth_of_shark_is_near_zero_even_for_fields_that_are_worth_much(task):
    """It is the slope of the loss where the loss is lowest; docs/methods.md has these numbers."""
    by_slope = tl.search(task, method="shark", training=TRAINING)
    by_shuffling = tl.search(task, method="permutation", training=TRAINING)
    for name in USEFUL:
        assert by_shuffling.worth[name].low > 0.18
        assert by_shuffling.worth[name].nats > 0.2
        assert abs(by_slope.worth[name].nats) < 0.05
        assert by_slope.worth[name].high < 0.1
        assert by_slope.scores[name] > 0.2


def test_the_rounds_of_shark_leave_the_plain_model_as_it_was_trained(task):
    search = Search(task, models.benchmark("wide_deep"), QUICK)
    Shark(rounds=2).score(search)
    alone = Search(task, models.benchmark("wide_deep"), QUICK)
    expected = alone.fit_plain().state_dict()
    found = search.plain.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert search.trained is not search.plain


def test_dropped_fields_are_their_means_from_then_on(trained, task):
    search, model = trained
    rows = task.valid.all()
    places = [task.fields.index("item"), task.fields.index("taste")]
    with torch.no_grad():
        x = model.inputs(*rows.inputs)
    layer = Means(search)
    assert torch.equal(layer(x), x)
    for place in places:
        layer.drop([place], mean_input(search, model))
    columns = torch.isin(search.column_field(), torch.tensor(places))
    assert torch.allclose(layer(x)[:, columns], x.mean(0)[columns].expand(len(x), -1), atol=1e-6)
    assert torch.equal(layer(x)[:, ~columns], x[:, ~columns])
