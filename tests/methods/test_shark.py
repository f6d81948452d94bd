"""SHARK equals its definition row by row, at once and in rounds."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from tests.data.frames import USEFUL
from tests.methods.tasks import TRAINING
from torchleap import models
from torchleap.methods import Search, Shark
from torchleap.methods.shark import Means, mean_input


@pytest.mark.parametrize("signed", [False, True])
def test_shark_equals_its_definition_row_by_row_to_a_millionth(trained, task, signed):
    search, model = trained
    rows = task.valid.all()
    with torch.no_grad():
        x = model.inputs(*rows.inputs)
    mean = x.double().mean(0).float()
    expected = torch.zeros(len(task.fields), dtype=torch.float64)
    for own, label in zip(x.split(1), rows.label.split(1), strict=True):
        own = own.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(
            binary_cross_entropy_with_logits(model.net(own), label), own
        )
        parts = ((mean - own.detach()) * gradient)[0].split(task.fields.widths)
        change = torch.stack([part.sum() for part in parts])
        if not signed:
            change = change.abs()
        expected += change.double() / len(rows)
    found = Shark(signed=signed).changes(search, model)
    assert ((found - expected).abs().max() / expected.abs().max()).item() < 1e-6


@pytest.mark.parametrize("rounds", [2, 3, 20])
@pytest.mark.parametrize("signed", [False, True])
def test_shark_in_rounds_ranks_by_round_and_then_by_score(task, rounds, signed, monkeypatch):
    """More rounds than fields drop one at a time; scores are raised no more than necessary."""
    lowest = -1.0 if signed else 0.0
    scores = torch.tensor([5.0, 1.0, lowest, 3.0, 2.0, 6.0, 4.0], dtype=torch.float64)
    search = Search(task, models.benchmark("wide_deep"), TRAINING)
    fitted = []
    dropped = []
    monkeypatch.setattr(Shark, "changes", lambda self, search, model: scores / 2 ** len(dropped))
    monkeypatch.setattr(
        Search, "fit", lambda self, model, *hooks, training=None: fitted.append(training)
    )
    monkeypatch.setattr(Means, "drop", lambda self, places, mean: dropped.append(places))
    by_name = Shark(signed=signed, rounds=rounds, epochs=2).score(search)
    found = torch.tensor(list(by_name.values()), dtype=torch.float64)
    assert torch.equal(found.argsort(), scores.argsort())
    assert len(found.unique()) == 7
    assert fitted == [None, *[replace(TRAINING, epochs=2)] * len(dropped)]
    in_order = [place for places in dropped for place in places]
    assert in_order == scores.argsort().tolist()[: len(in_order)]
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
            assert result.scores == search.by_field(Shark().changes(search, model))


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
