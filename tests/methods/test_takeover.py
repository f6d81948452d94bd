"""What the other fields take over from dropped ones."""

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torchleap as tl
from torchleap import models
from torchleap.methods import Search, takeover
from torchleap.methods.contributions import contributions
from torchleap.methods.takeover import Columns, curvature, most_columns, rises_after_takeover
from torchleap.models import Ranker
from torchleap.models.inputs import FieldInputs
from torchleap.models.layers import Sum
from torchleap.objectives import OBJECTIVES
from torchleap.training.fit import Training

ROWS = 20_000
TWINS = 0.6 * torch.tensor([1.0, 1.0, 1.0])


@pytest.fixture(scope="module")
def task():
    """Return a task with two copies of a number, another number, and a vector that contains it."""
    rng = np.random.default_rng(0)
    twin = rng.normal(size=ROWS)
    other = rng.normal(size=ROWS)
    wide = rng.normal(size=(ROWS, 6)).astype(np.float32)
    wide[:, 2] = other
    logit = 1.2 * twin + 0.6 * other
    frame = pl.DataFrame(
        {
            "click": (rng.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(int),
            "one": twin,
            "twin": twin,
            "other": other,
            "wide": pl.Series(wide, dtype=pl.Array(pl.Float32, 6)),
        }
    )
    return tl.data.read(frame, label="click", split="order")


def linear_model(task):
    """Return a logistic regression that reads both copies alike, and not the vector."""
    linear = nn.Linear(task.fields.dims, 1)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.zero_()
        linear.weight[0, :3] = TWINS
    return Ranker(FieldInputs(task.columns), Sum(linear=linear)).eval()


def measured(task, masks, stay=None):
    """Return the mean rise of the loss by mask, before and after the takeover."""
    search = Search(task, models.benchmark("wide_deep"), Training())
    model = linear_model(task)
    rows = task.valid.all()
    found = contributions(search, model, rows, masks=masks)
    rises = rises_after_takeover(search, model, rows, found, masks, stay or task.fields.names)
    return found.rises, rises.mean(1)


def test_a_copy_is_taken_over_and_both_copies_together_are_not(task):
    before, after = measured(task, [("one",), ("one", "twin")])
    assert before[0] > 0.02
    assert abs(after[0]) < 1e-4
    assert after[1] == pytest.approx(float(before[1]), rel=0.05)


def test_a_field_inside_a_vector_is_taken_over_if_the_vector_stays(task):
    before, after = measured(task, [("other",), ("other", "wide")])
    assert abs(after[0]) < 1e-4
    assert after[1] == pytest.approx(float(before[1]), rel=0.05)
    _, without = measured(task, [("other",)], stay=("one", "twin", "other"))
    assert without[0] == pytest.approx(float(before[0]), rel=0.05)


def test_the_prediction_is_that_of_least_squares_by_hand(task, monkeypatch):
    monkeypatch.setattr(takeover, "RIDGE", 1e-9)
    search = Search(task, models.benchmark("wide_deep"), Training())
    model = linear_model(task)
    rows = task.valid.all()
    found = contributions(search, model, rows, masks=[("twin",)])
    rises = rises_after_takeover(search, model, rows, found, [("twin",)], ("twin", "wide"))
    x = Columns(task.fields, ("wide",), model).of(rows).double()
    chance = torch.sigmoid(found.outputs).double()
    weight = (chance * (1 - chance)).sqrt()
    fold = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)) % 2
    back = torch.zeros(len(rows), dtype=torch.float64)
    for part in (0, 1):
        inside = fold == part
        lost = found.changes[0].double()
        solved = torch.linalg.lstsq(
            (weight[:, None] * x)[~inside], (weight * lost)[~inside, None]
        ).solution
        back[inside] = (x[inside] @ solved).squeeze(1)
    trust = float((weight**2 * back * lost).sum() / (weight**2 * back**2).sum())
    outputs = found.outputs - found.changes[0] + min(max(trust, 0.0), 1.0) * back.float()
    loss = task.objective.row_losses
    expected = loss(outputs, rows.label) - loss(found.outputs, rows.label)
    assert torch.allclose(rises[0], expected.double(), atol=1e-5)


def test_a_prediction_that_only_fits_its_own_rows_is_not_added(monkeypatch):
    """Many columns and few rows: what is learned from one half is noise for the other."""
    rng = np.random.default_rng(0)
    count = 4000
    frame = pl.DataFrame(
        {
            "click": rng.integers(0, 2, count),
            **dict.fromkeys(("one", "twin", "other"), rng.normal(size=count)),
            "wide": pl.Series(rng.normal(size=(count, 100)), dtype=pl.Array(pl.Float64, 100)),
        }
    )
    task = tl.data.read(frame, label="click", split="order")
    before, after = measured(task, [("one",)], stay=("one", "wide"))
    monkeypatch.setattr(takeover, "_trust", lambda regained, *_: torch.ones(len(regained)))
    _, believed = measured(task, [("one",)], stay=("one", "wide"))
    assert believed[0] > before[0] + 0.005, "the noise of the prediction raises the loss"
    assert after[0] == pytest.approx(float(before[0]), abs=1e-3)


def test_two_rows_have_nothing_to_learn_a_takeover_from(task):
    search = Search(task, models.benchmark("wide_deep"), Training())
    rows = task.valid.all().take(slice(0, 2))
    model = linear_model(task)
    found = contributions(search, model, rows, masks=[("one",)])
    rises = rises_after_takeover(search, model, rows, found, [("one",)], task.fields.names)
    assert float(rises.mean()) == pytest.approx(float(found.rises[0]), abs=1e-6)


def test_a_wide_field_keeps_the_directions_that_the_model_reads(task, monkeypatch):
    monkeypatch.setattr(takeover, "COLUMNS", 4)
    model = linear_model(task)
    with torch.no_grad():
        model.net.linear.weight[0, 3 + 2] = 0.5
    columns = Columns(task.fields, task.fields.names, model)
    assert columns.count == 4
    values = columns.of(task.valid.all())
    x = model.inputs(*task.valid.all().inputs)
    correlation = torch.corrcoef(torch.stack([values[:, 3], x[:, 3 + 2]]))[0, 1]
    assert abs(float(correlation.detach())) > 0.999


def test_a_constant_column_is_0():
    frame = pl.DataFrame({"click": [0, 1] * 50, "same": [3.0] * 100, "x": list(range(100))})
    task = tl.data.read(frame, label="click", split="order")
    model = models.build("mlp", task).eval()
    values = Columns(task.fields, task.fields.names, model).of(task.valid.all())
    assert torch.equal(values[:, 0], torch.zeros(len(values)))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.integers(1, 500))
def test_as_many_columns_as_fit_are_used(widths, total):
    most = most_columns(widths, total)
    used = sum(min(width, most) for width in widths)
    assert most == 1 or used <= total
    one_more = sum(min(width, most + 1) for width in widths)
    assert one_more > total or one_more == used


def test_the_curvature_of_a_log_loss_is_that_of_its_formula():
    outputs = torch.linspace(-3, 3, 7)
    chance = torch.sigmoid(outputs)
    found = curvature(OBJECTIVES["binary"], outputs, torch.tensor([0.0, 1.0] * 3 + [1.0]))
    assert torch.allclose(found, chance * (1 - chance), atol=1e-6)
