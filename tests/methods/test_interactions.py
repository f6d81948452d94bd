"""Pairs of fields that matter through their product alone, found before a model has learned it."""

import math

import pytest
import torch

from tests.methods.tasks import QUICK
from torchleap import models
from torchleap.data.synthetic.truth import KnownTruth, known_truth
from torchleap.methods import Search, interactions
from torchleap.methods.interactions import Interactions, Values, residual, suspicious
from torchleap.objectives import OBJECTIVES

WORLD = KnownTruth(widths=(1, 12), pair_widths=(1, 4), seed=3)
BINARY = OBJECTIVES["binary"]


@pytest.fixture(scope="module")
def plain():
    """A search and a plain model that has had no time to learn pairs."""
    search = Search(known_truth(WORLD, 20_000), models.benchmark("wide_deep"), QUICK)
    return search, search.fit_plain()


@pytest.fixture(scope="module")
def found(plain):
    return Interactions(*plain)


def outputs_of(search, model):
    with torch.no_grad():
        return model.eval()(*search.task.valid.all().inputs).view(-1)


def test_exactly_the_pairs_are_found(found):
    assert sorted(found.pairs) == [("pair_1_a", "pair_1_b"), ("pair_4_a", "pair_4_b")]


def test_a_world_without_pairs_has_none():
    world = KnownTruth(widths=(1, 12), pair_widths=(), seed=3)
    search = Search(known_truth(world, 20_000), models.benchmark("wide_deep"), QUICK)
    nothing = Interactions(search, search.fit_plain())
    assert nothing.pairs == []
    assert nothing.gains(torch.zeros(len(search.task.valid))).tolist() == []


def test_a_gain_is_about_the_fall_of_the_loss_by_the_best_step_along_the_product(plain, found):
    search, model = plain
    outputs = outputs_of(search, model)
    label = search.task.valid.label
    before = float(BINARY.loss(outputs, label))
    for product, gain in zip(found.products, found.gains(outputs).tolist(), strict=True):
        unit = product / product.std()
        falls = []
        for step in torch.linspace(0, 2, 201):
            falls.append(before - float(BINARY.loss(outputs + step * unit, label)))
        assert gain == pytest.approx(max(falls), rel=0.25)
        assert gain > 0.01


def test_gains_vanish_once_the_model_has_learned_the_products(plain, found):
    search, model = plain
    outputs = outputs_of(search, model)
    learned = outputs.clone()
    for _ in range(60):
        for product in found.products:
            unit = product / product.std()
            learned += (
                0.5 * (residual(BINARY, learned, search.task.valid.label) * unit).mean() * unit
            )
    assert (found.gains(learned) < 0.1 * found.gains(outputs)).all()


def test_the_residual_is_the_label_minus_the_probability():
    outputs = torch.tensor([0.0, 2.0, -1.0])
    label = torch.tensor([1.0, 0.0, 1.0])
    expected = label - torch.sigmoid(outputs)
    assert torch.allclose(residual(BINARY, outputs, label), expected)


def test_products_and_t_values_are_those_of_plain_loops(plain, found):
    search, model = plain
    values = Values(search, model)
    valid = search.task.valid
    x, outputs = values.of(valid.all())
    place = [search.task.fields.names.index(name) for name in found.pairs[0]]
    one, other = (values.columns[number] for number in place)
    moments = torch.zeros(one.stop - one.start, other.stop - other.start)
    for row in range(len(values.x)):
        moments += values.residual[row] * torch.outer(values.x[row, one], values.x[row, other])
    moments /= len(values.x)
    slow = torch.stack([row[one] @ moments @ row[other] for row in x])
    slow -= slow.mean()
    assert torch.allclose(found.products[0], slow, atol=1e-4)
    scores = residual(BINARY, outputs, valid.label) * slow
    rms = math.sqrt(sum(float(score) ** 2 for score in scores) / len(scores))
    t = float(scores.mean()) / rms * math.sqrt(len(scores))
    gain = found.gains(outputs_of(search, model))[0]
    assert float(gain) == pytest.approx((t**2 - 1) / (2 * len(scores)), rel=1e-3)


def test_pairs_are_suspicious_by_the_sum_of_their_squared_moments(plain):
    values = Values(*plain)
    moments = values.x.T @ (values.residual[:, None] * values.x) / len(values.x)
    unit = float(values.residual.square().mean()) / len(values.x)
    expected = set()
    for one, first in enumerate(values.columns):
        for other in range(one + 1, len(values.columns)):
            block = moments[first, values.columns[other]]
            excess = (float(block.square().sum()) / unit - block.numel()) / math.sqrt(
                2 * block.numel()
            )
            if excess > interactions.SUSPICIOUS:
                expected.add((one, other))
    assert set(suspicious(moments, values)) == expected


def test_wide_fields_are_projected_and_constants_say_nothing(plain):
    search, model = plain
    values = Values(search, model)
    widths = [columns.stop - columns.start for columns in values.columns]
    assert widths == [min(interactions.WIDTH, width) for width in search.task.fields.widths]
    constant = search.task.fields.names.index("constant_1")
    assert not values.x[:, values.columns[constant]].any()
    assert float(values.x.abs().max()) <= interactions.EXTREME


def test_of_many_validation_rows_a_part_is_enough(plain, monkeypatch):
    monkeypatch.setattr(interactions, "VALID_ROWS", 700)
    search, model = plain
    part = Interactions(search, model)
    assert part.every == 3
    assert part.products.shape[1] == len(range(0, len(search.task.valid), 3))
    assert ("pair_1_a", "pair_1_b") in part.pairs


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_pairs_are_found_whatever_the_size_of_values(plain, scale, monkeypatch):
    search, model = plain
    inputs = model.inputs.forward
    net = model.net.forward
    monkeypatch.setattr(model.inputs, "forward", lambda *batch: scale * inputs(*batch) + scale)
    monkeypatch.setattr(model.net, "forward", lambda x: net((x - scale) / scale))
    assert len(Interactions(search, model).pairs) == 2
