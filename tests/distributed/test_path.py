"""The price path on several ranks: DDP and FSDP2, real processes, gloo."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import torchleap as tl
from torchleap.distributed import ranks
from torchleap.gates import leap as gates_module
from torchleap.gates.path_trainer import PathTrainer

from .ranks_of import keep, run
from .test_gates import ROWS, own, turned
from .test_sharded import shard

FIELDS = {"strong": 2, "middle": 1, "weak": 1, "noise": 3, "other": 1}
WEIGHTS = (1.0, 1.0, 0.7, 0.3, 0.0, 0.0, 0.0, 0.0)  # of the columns
ONE_FIELD = {"all": 8}  # fewer gates than ranks: the second one has none
STEPS = 320
MIDDLE = 198  # between two steps of the gates, after the first closing
CASES = (("ddp", FIELDS), ("layer", FIELDS), ("whole", ONE_FIELD))


def rows(number: int) -> tuple[Tensor, Tensor]:
    """A batch of all ranks' rows."""
    rng = torch.Generator().manual_seed(number)
    x = torch.randn(ROWS, len(WEIGHTS), generator=rng)
    y = x @ torch.tensor(WEIGHTS) + 0.3 * torch.randn(ROWS, generator=rng)
    return own(x), own(y)


class Loop:
    """A user's loop along a path: unwrapped, in DDP, or sharded in one of the ways of `shard`."""

    def __init__(self, how: str | None, fields: dict[str, int]) -> None:
        gates_module.mix = turned  # type: ignore[assignment]
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(len(WEIGHTS), 1))
        with torch.no_grad():  # as after an ordinary training
            self.model[0].weight.copy_(torch.tensor([WEIGHTS]))
        self.plugin = tl.attach(self.model, fields, at="0", seed=0)
        self.called: nn.Module = self.model
        if how == "ddp":
            self.called = DistributedDataParallel(self.model)
        elif how is not None:
            shard(self.model, how)
        self.trainer = self.plugin.trainer(STEPS, path=True)
        self.optimizer = torch.optim.Adam(self.plugin.model_parameters(), lr=2e-2)
        self.number = 0

    def step(self) -> None:
        self.number += 1
        x, y = rows(self.number)
        mse_loss(self.called(x)[:, 0], y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        x, y = rows(1_000_000 + self.number)
        self.trainer.step(lambda: mse_loss(self.model(x)[:, 0], y))

    def run(self, until: int) -> "Loop":
        while self.number < until and not self.trainer.is_finished:
            self.step()
        return self

    def found(self) -> dict[str, Any]:
        """All that the ranks have to agree on."""
        trainer: PathTrainer = self.trainer
        weights = {name: ranks.full(one.detach()) for name, one in self.model.named_parameters()}
        return {
            "closings": [[one.gate, one.step, one.price] for one in trainer.closings],
            "worth": [[one.nats, one.low, one.high] for one in trainer.worth().values()],
            "scores": self.plugin.scores(),
            "steps": [self.number, trainer.done, trainer.is_finished],
            "weights": {name: one.clone() for name, one in weights.items()},
        }


def continued(state: dict[str, Any], how: str | None, fields: dict[str, int]) -> Loop:
    """A new loop that starts with a saved state."""
    loop = Loop(how, fields)
    loop.model.load_state_dict(copy.deepcopy(state["model"]))
    loop.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    loop.trainer.load_state_dict(copy.deepcopy(state["trainer"]))
    loop.number = MIDDLE
    return loop


def path(how: str | None, fields: dict[str, int]) -> dict[str, Any]:
    """The end of a path, the end of one that was stopped in the middle, and the state there."""
    part = Loop(how, fields).run(MIDDLE)
    trainer = part.trainer.state_dict()
    weights = part.model.state_dict()
    state = {"model": weights, "optimizer": part.optimizer.state_dict(), "trainer": trainer}
    return {
        "undisturbed": Loop(how, fields).run(4 * STEPS).found(),
        "resumed": continued(state, how, fields).run(4 * STEPS).found(),
        "trainer": trainer,
        "model": {name: ranks.full(one) for name, one in weights.items()},
    }


def paths(folder: Path) -> None:
    keep(folder, [path(how, fields) for how, fields in CASES])


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Assert that two paths are equal, bit for bit."""
    for name in ("closings", "worth", "scores", "steps"):
        assert one[name] == other[name], name
    for name, weight in one["weights"].items():
        assert torch.equal(weight, other["weights"][name]), name


def assert_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Assert that two paths close the same gates at the same steps, and agree up to rounding."""
    assert one["steps"] == other["steps"]
    assert [gate for gate, _, _ in one["closings"]] == [gate for gate, _, _ in other["closings"]]
    for mine, others in zip(one["closings"], other["closings"], strict=True):
        assert mine == pytest.approx(others, rel=1e-4)
    for mine, others in zip(one["worth"], other["worth"], strict=True):
        assert mine == pytest.approx(others, rel=1e-3, abs=1e-5)


def test_all_ranks_close_the_same_gates_at_the_same_steps_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = run(paths, tmp_path)
    monkeypatch.setattr(gates_module, "mix", turned)
    for (how, fields), mine, others in zip(CASES, first, second, strict=True):
        expected = Loop(None, fields).run(4 * STEPS).found()
        undisturbed = mine["undisturbed"]
        assert undisturbed["steps"][2], how
        assert len(undisturbed["closings"]) == len(fields) - 1
        assert how == "whole" or undisturbed["closings"][0][1] < MIDDLE
        assert_same(others["undisturbed"], undisturbed)
        assert_same(mine["resumed"], undisturbed)
        assert_same(others["resumed"], undisturbed)
        assert_alike(undisturbed, expected)
        assert_continues_alone(mine, fields, expected)


def assert_continues_alone(
    saved: dict[str, Any], fields: dict[str, int], expected: dict[str, Any]
) -> None:
    """Assert that a single process continues the path of two: the state has no shards."""
    optimizer = Loop(None, fields).run(MIDDLE).optimizer.state_dict()
    assert saved["trainer"]["train"] is not None
    assert_alike(
        continued({**saved, "optimizer": optimizer}, None, fields).run(4 * STEPS).found(), expected
    )
