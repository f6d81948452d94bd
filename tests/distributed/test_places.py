"""Fields at several places on several ranks: real processes, gloo."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import get_rank, is_initialized
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

import torchleap as tl
from tests.rankers import FactorizationMachine
from torchleap.gates import leap as gates_module

from .ranks_of import keep, run
from .test_gates import ROWS, own, state, turned

NAMES = ("u", "i", "c", "n")
AT = {"table": dict.fromkeys(NAMES, 4), "linear": dict.fromkeys(NAMES, 1)}
STEPS = 12


def rows(step: int) -> tuple[Tensor, Tensor]:
    """A batch of all ranks' rows."""
    rng = torch.Generator().manual_seed(step)
    ids = torch.randint(10, (ROWS, 4), generator=rng)
    return ids, (ids[:, 0] > 4).float()


def trained(counts: tuple[int, ...] = (STEPS, STEPS)) -> list[dict[str, Tensor]]:
    """The gates after each step, on one rank or on two with so many steps each."""
    torch.manual_seed(0)
    model = FactorizationMachine()
    plugin = tl.attach(model, at=AT, side="output", seed=0, alpha=0.05)
    called: Any = DistributedDataParallel(model) if is_initialized() else model
    optimizer = torch.optim.Adam(plugin.parameter_groups(gate_lr=1e-2), lr=1e-2)
    seen = []

    def step_on(step: int) -> None:
        ids, y = rows(step)
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(called(own(ids))[:, 0], own(y))
        (loss + plugin.penalty()).backward()
        optimizer.step()
        seen.append(state(plugin))

    if not is_initialized():
        for step in range(STEPS):
            step_on(step)
        return seen
    with plugin.join(called):
        for step in range(counts[get_rank()]):
            step_on(step)
    return [*seen, state(plugin)]


def even(folder: Path) -> None:
    gates_module.mix = turned  # type: ignore[assignment]
    keep(folder, trained())


def test_two_halves_are_one_batch_at_several_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = run(even, tmp_path)
    monkeypatch.setattr(gates_module, "mix", turned)
    alone = trained()
    for one, other, complete in zip(first, second, [*alone, alone[-1]], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
        torch.testing.assert_close(one["theta"], complete["theta"], atol=1e-5, rtol=0)
        torch.testing.assert_close(one["square"], complete["square"], atol=1e-5, rtol=1e-4)
        assert one["steps"].unique().numel() == 1


def uneven(folder: Path) -> None:
    keep(folder, trained((3, 0)))


def test_a_rank_without_rows_takes_part_once_for_all_places(tmp_path: Path) -> None:
    first, second = run(uneven, tmp_path)
    assert all(torch.equal(first[-1][name], second[-1][name]) for name in first[-1])
    assert first[-1]["steps"].tolist() == [3] * 4
