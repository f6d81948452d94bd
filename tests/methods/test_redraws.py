"""Redraws: other draws of the rows move means as other rows of the same kind would."""

import pytest
import torch

from torchleap import Fields
from torchleap.methods.redraws import draws, moved_means, replica_of
from torchleap.objectives import METRICS
from torchleap.selection import Path, PathPoint, Worth

FIELDS = Fields({"a": 1, "b": 2, "c": 4})


def rng():
    return torch.Generator().manual_seed(0)


def test_a_draw_has_as_many_rows_as_there_are():
    found = draws(50, 20, rng())
    assert torch.equal(found.sum(0), torch.zeros(20))
    assert float(found.min()) == -1


def test_rows_of_a_group_are_drawn_together():
    group = torch.tensor([7, 7, 3, 3, 3, 9])
    found = draws(6, 30, rng(), group)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[4])
    assert not torch.equal(found[0], found[2])


def test_no_draws_and_no_rows_are_possible():
    assert draws(5, 0, rng()).shape == (5, 0)
    assert draws(0, 3, rng()).shape == (0, 3)


def test_means_move_by_their_standard_error():
    values = torch.randn(3, 4000, generator=rng(), dtype=torch.float64) + 5
    moved = moved_means(values, draws(4000, 400, rng()))
    assert moved.shape == (3, 400)
    expected = values.std(1) / 4000**0.5
    assert moved.std(1).tolist() == pytest.approx(expected.tolist(), rel=0.15)
    assert float(moved.mean().abs()) < 3 * float(expected[0]) / 20


def point(kept, metric, behind=0.0, error=0.0):
    return PathPoint(tuple(kept), (), 7, 7.0, metric, 0.6, 0.8, behind, error, 0.5, 1e-3, 1)


def test_a_replica_orders_fields_and_points_again():
    points = (point("abc", 0.8), point("ab", 0.79, 0.01, 0.004), point("a", 0.7, 0.1, 0.01))
    worth = {name: Worth(0.0, -1.0, 1.0) for name in FIELDS.names}
    path = Path("auc", worth, points, gates={"a": 1.0, "b": 0.9, "c": 0.8})
    scores = {"a": 0.1, "b": 0.2, "c": 0.3}
    moves = {"a": 0.5, "b": 0.0, "c": 0.0}
    found = replica_of(path, scores, moves, [0.0, 0.02, 0.0], FIELDS, METRICS["auc"]).path
    assert [one.kept for one in found.points] == [("a", "b", "c"), ("b", "c"), ("c",)]
    assert [one.closed for one in found.points] == [(), ("a",), ("b",)]
    assert [one.dims for one in found.points] == [7, 6, 4]
    assert [one.behind for one in found.points] == pytest.approx([0.0, 0.0, 0.11])
    assert [one.error for one in found.points] == [0.0, 0.0, 0.01]
    assert found.best.kept == ("b", "c")
    assert found.gates == {"a": 0.0, "b": 1.0, "c": 1.0}
    assert found.worth["a"] == Worth(0.5, -0.5, 1.5)


def test_a_lower_log_loss_is_a_gain():
    points = (point("abc", 0.5), point("ab", 0.51, 0.01, 0.004))
    path = Path("log_loss", {}, points)
    scores = {"a": 0.3, "b": 0.2, "c": 0.1}
    found = replica_of(path, scores, {}, [0.0, 0.02], FIELDS, METRICS["log_loss"]).path
    assert [one.metric for one in found.points] == pytest.approx([0.5, 0.49])
    assert found.best.kept == ("a", "b")
