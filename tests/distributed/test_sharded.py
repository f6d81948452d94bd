"""FSDP2: gates that are sharded over ranks, real processes, gloo."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from torchleap import gates as gates_module
from torchleap import ranks
from torchleap.train import Training

from .ranks_of import keep, run
from .test_gates import FIELDS, own, rows, turned
from .test_streaming import Endless, Net, outcome

ONE_FIELD = {"all": 44}  # fewer than ranks: the second one has none of the gates
HOW = ("whole", "layer")


def shard(model: nn.Module, how: str) -> nn.Module:
    """As one unit, which stays whole from its forward pass to its backward pass, or layer by layer, sharded between them."""
    from torch.distributed.fsdp import fully_shard

    if how == "layer":
        for layer in [layer for layer in model.modules() if isinstance(layer, nn.Linear)]:
            fully_shard(layer, reshard_after_forward=True)
    fully_shard(model)
    return model


def gated(fields: dict[str, int], how: str | None, **settings: Any) -> tuple[nn.Module, tl.Plugin]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(44, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).eval()
    plugin = tl.attach(model, fields, at="0", seed=0, alpha=0.05, **settings)
    if how is not None:
        shard(model, how)
    plugin.gates.train()  # batch norm stays in eval(): it sees other rows on each rank
    return model, plugin


def learn(fields: dict[str, int], how: str | None, by: str, *, steps: int = 20, **settings: Any) -> tuple[tl.Plugin, list[Tensor]]:
    """The plugin after training, and the gates after each step."""
    gates_module.mix = turned  # type: ignore[assignment]
    model, plugin = gated(fields, how, **settings)
    if by == "penalty":
        optimizers: list[Any] = [torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)]  # not on the gates
    else:
        optimizers = [torch.optim.Adam(plugin.model_parameters(), lr=1e-2), plugin.optimizer(lr=1e-2)]
    seen = []
    for step in range(steps):
        x, y = rows(step)
        loss = binary_cross_entropy_with_logits(model(own(x))[:, 0], own(y))
        if by == "penalty":
            assert hasattr(plugin.gates.theta, "full_tensor") == (how == "layer")
            loss = loss + plugin.penalty()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seen.append(ranks.whole(plugin.gates.theta.detach()).clone())
    if by == "optimizer" and how is not None:
        state = optimizers[1].state[plugin.gates.theta]
        assert all(state[name].placements == plugin.gates.theta.placements for name in ("exp_avg", "exp_avg_sq"))
    return plugin, seen


CASES = [(how, by, fields) for how in HOW for by in ("penalty", "optimizer") for fields in (FIELDS, ONE_FIELD)]


def learnt(folder: Path) -> None:
    keep(folder, [learn(fields, how, by)[1] for how, by, fields in CASES])


def test_sharded_gates_learn_what_whole_ones_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run(learnt, tmp_path)
    monkeypatch.setattr(gates_module, "mix", turned)
    for case, one, other in zip(CASES, first, second, strict=True):
        alone = learn(case[2], None, case[1])[1]
        assert (alone[-1] - alone[0]).abs().max() > 0.02
        for step in range(len(alone)):
            assert torch.equal(one[step], other[step]), (case, step)
            torch.testing.assert_close(one[step], alone[step], atol=1e-6, rtol=0, msg=lambda text, at=(case, step): f"{at} {text}")


def warmed_up(folder: Path) -> None:
    keep(folder, [learn(FIELDS, how, "penalty", warmup=5)[1] for how in HOW])


def test_an_optimizer_does_not_count_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(warmed_up, tmp_path)
    monkeypatch.setattr(gates_module, "mix", turned)
    alone = learn(FIELDS, None, "penalty", warmup=5)[1]
    assert torch.equal(alone[4], torch.ones(3))
    assert not torch.equal(alone[-1], torch.ones(3))
    for seen in (*found[0], *found[1]):
        torch.testing.assert_close(torch.stack(seen), torch.stack(alone), atol=1e-6, rtol=0)


def answers(fields: dict[str, int], how: str | None) -> dict[str, Any]:
    """All that can be asked of a plugin."""
    untouched = gated(fields, how)[1]
    plugin, _ = learn(fields, how, "optimizer")
    plugin.model.eval()
    x = rows(99)[0]
    selection = plugin.select(share=0.5)
    with torch.no_grad(), plugin.masked(selection):
        masked = plugin.model(x)
    again = plugin.optimizer()  # though the pass may have left whole gates there
    assert (how is None) or hasattr(again.param_groups[0]["params"][0], "full_tensor")
    return {
        "moved": [untouched.gates.moved, plugin.gates.moved],
        "told": [repr(untouched), repr(plugin)],
        "table": str(plugin),
        "scores": plugin.scores(),
        "kept": list(selection.kept),
        "penalty": plugin.penalty().detach(),
        "masked": masked,
    }


def asked(folder: Path) -> None:
    keep(folder, [answers(fields, how) for fields in (FIELDS, ONE_FIELD) for how in HOW])


def test_sharded_gates_can_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run(asked, tmp_path)
    monkeypatch.setattr(gates_module, "mix", turned)
    expected = [answers(fields, None) for fields in (FIELDS, FIELDS, ONE_FIELD, ONE_FIELD)]
    for one, other, alone in zip(first, second, expected, strict=True):
        assert one["moved"] == other["moved"] == [False, True]
        assert one["told"] == other["told"] == alone["told"]
        assert one["kept"] == other["kept"] == alone["kept"]
        assert one["scores"] == other["scores"] == pytest.approx(alone["scores"], abs=1e-5)
        assert one["table"] == other["table"]
        assert len(one["table"].splitlines()) == len(alone["table"].splitlines())
        torch.testing.assert_close(one["penalty"], alone["penalty"], rtol=1e-4, atol=0)
        assert torch.equal(one["masked"], other["masked"])


def by_held_out_rows(fields: dict[str, int], how: str | None) -> dict[str, Any]:
    gates_module.mix = turned  # type: ignore[assignment]
    model, plugin = gated(fields, how)
    optimizer, gates = torch.optim.SGD(plugin.model_parameters(), lr=0.1), plugin.optimizer(lr=0.05, optimism=0.25)
    for step in range(8):
        (x, y), (other_x, other_y) = rows(step), rows(step + 100)
        model(own(x))  # a pass without a step
        binary_cross_entropy_with_logits(model(own(x))[:, 0], own(y)).backward()
        before = [(ranks.own_part(p.detach()).clone(), p.grad) for p in plugin.model_parameters()]
        with plugin.held_out():
            binary_cross_entropy_with_logits(model(own(other_x))[:, 0], own(other_y)).backward()
            gates.step()
        for parameter, (value, gradient) in zip(plugin.model_parameters(), before, strict=True):
            assert parameter.requires_grad
            assert parameter.grad is gradient
            assert torch.equal(ranks.own_part(parameter.detach()), value)
        optimizer.step()
        optimizer.zero_grad()
    return {"theta": ranks.whole(plugin.gates.theta.detach()).clone(), "weight": ranks.whole(model.state_dict()["3.weight"])}


def held_out(folder: Path) -> None:
    with warnings.catch_warnings(action="error", category=UserWarning):
        keep(folder, [by_held_out_rows(fields, how) for fields in (FIELDS, ONE_FIELD) for how in HOW])


def test_sharded_gates_learn_from_held_out_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run(held_out, tmp_path)
    monkeypatch.setattr(gates_module, "mix", turned)
    expected = [by_held_out_rows(fields, None) for fields in (FIELDS, FIELDS, ONE_FIELD, ONE_FIELD)]
    for one, other, alone in zip(first, second, expected, strict=True):
        assert (alone["theta"] - 1).abs().max() > 0.05
        for name in alone:
            assert torch.equal(one[name], other[name])
            torch.testing.assert_close(one[name], alone[name], atol=1e-5, rtol=0)
