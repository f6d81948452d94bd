"""FSDP2: gates that are sharded over ranks, real processes, gloo."""

import copy
import re
import shutil
import warnings
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from torchleap.distributed import ranks
from torchleap.distributed.fsdp import HOOKS
from torchleap.gates import leap as gates_module
from torchleap.training.fit import Training

from .ranks_of import ROOT, keep, run
from .test_gates import FIELDS, own, rows, turned
from .test_stream import Endless, Net, outcome

ONE_FIELD = {"all": 44}  # fewer than ranks: the second one has none of the gates
HOW = ("whole", "layer")


def shard(model: nn.Module, how: str) -> nn.Module:
    """Shard as one unit, complete between forward and backward pass, or layer by layer."""
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


def learn(
    fields: dict[str, int], how: str | None, by: str, *, steps: int = 20, **settings: Any
) -> tuple[tl.Plugin, list[Tensor]]:
    """The plugin after training, and the gates after each step."""
    gates_module.mix = turned  # type: ignore[assignment]
    model, plugin = gated(fields, how, **settings)
    trainer = None
    if by == "trainer":
        trainer = plugin.trainer(steps, lr=1e-2)
    if by in ("penalty", "trainer"):  # its weight decay leaves the gates alone
        optimizers: list[Any] = [torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)]
    else:
        optimizers = [
            torch.optim.Adam(plugin.model_parameters(), lr=1e-2),
            plugin.optimizer(lr=1e-2),
        ]
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
        if trainer is not None:
            trainer.step()
        seen.append(ranks.full(plugin.gates.theta.detach()).clone())
    if trainer is not None:
        seen.append(torch.tensor(list(trainer.scores().values())))
    if by == "optimizer" and how is not None:
        state = optimizers[1].state[plugin.gates.theta]
        assert all(
            state[name].placements == plugin.gates.theta.placements
            for name in ("exp_avg", "exp_avg_sq")
        )
    return plugin, seen


CASES = [
    (how, by, fields)
    for how in HOW
    for by in ("penalty", "optimizer", "trainer")
    for fields in (FIELDS, ONE_FIELD)
]


def learnt(folder: Path) -> None:
    keep(folder, [learn(fields, how, by)[1] for how, by, fields in CASES])


def test_sharded_gates_learn_what_whole_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = run(learnt, tmp_path)
    monkeypatch.setattr(gates_module, "mix", turned)
    for case, one, other in zip(CASES, first, second, strict=True):
        alone = learn(case[2], None, case[1])[1]
        assert (alone[15] - alone[0]).abs().max() > 0.02
        for step in range(len(alone)):
            assert torch.equal(one[step], other[step]), (case, step)
            torch.testing.assert_close(
                one[step],
                alone[step],
                atol=1e-6,
                rtol=0,
                msg=lambda text, at=(case, step): f"{at} {text}",
            )


def warmed_up(folder: Path) -> None:
    keep(folder, [learn(FIELDS, how, "penalty", warmup=5)[1] for how in HOW])


def test_an_optimizer_does_not_count_the_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    selection = plugin.select(share=0.67 if len(fields) > 1 else 1.0)
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
    optimizer, gates = (
        torch.optim.SGD(plugin.model_parameters(), lr=0.1),
        plugin.optimizer(lr=0.05, optimism=0.25),
    )
    for step in range(8):
        (x, y), (other_x, other_y) = rows(step), rows(step + 100)
        with plugin.held_out():
            model(own(x))  # no backward pass puts the weights back
        binary_cross_entropy_with_logits(model(own(x))[:, 0], own(y)).backward()
        before = [(ranks.own_part(p.detach()).clone(), p.grad) for p in plugin.model_parameters()]
        assert all(gradient is not None for _, gradient in before)
        with torch.no_grad():
            model(own(x))  # may leave whole weights in the model
        with plugin.held_out():
            binary_cross_entropy_with_logits(model(own(other_x))[:, 0], own(other_y)).backward()
            gates.step()
        for parameter, (value, gradient) in zip(plugin.model_parameters(), before, strict=True):
            assert parameter.requires_grad
            assert parameter.grad is gradient
            assert torch.equal(ranks.own_part(parameter.detach()), value)
        optimizer.step()
        optimizer.zero_grad()
    return {
        "theta": ranks.full(plugin.gates.theta.detach()).clone(),
        "weight": ranks.full(model.state_dict()["3.weight"]),
    }


def held_out(folder: Path) -> None:
    with warnings.catch_warnings(action="error", category=UserWarning):
        keep(
            folder, [by_held_out_rows(fields, how) for fields in (FIELDS, ONE_FIELD) for how in HOW]
        )


def test_sharded_gates_learn_from_held_out_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = run(held_out, tmp_path)
    monkeypatch.setattr(gates_module, "mix", turned)
    expected = [by_held_out_rows(fields, None) for fields in (FIELDS, FIELDS, ONE_FIELD, ONE_FIELD)]
    for one, other, alone in zip(first, second, expected, strict=True):
        assert (alone["theta"] - 1).abs().max() > 0.05
        for name in alone:
            assert torch.equal(one[name], other[name])
            torch.testing.assert_close(one[name], alone[name], atol=1e-5, rtol=0)


STREAMS = (
    ("layer", {"a": 1, "b": 1, "useless": 2}),
    ("whole", {"all": 4}),
)  # gates: more than ranks, and fewer


def streamed(
    steps: int, how: str | None, fields: dict[str, int], folder: Path | None
) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Net()
    plugin = tl.attach(model, fields, at="deep", seed=0)
    if how is not None:
        shard(model, how)
    hook = tl.LearnGates(plugin, lr=1e-2)
    training = Training(epochs=1, steps=steps, eval_every=50, lr=1e-2, checkpoint_steps=20, seed=3)
    place = None if folder is None else folder / f"{len(fields)}"
    done = tl.stream(
        model,
        Endless(),
        training,
        hooks=[hook],
        checkpoint=place,
        background=len(fields) > 1,
        keep=9,
    )
    assert (how is None) or all(
        hasattr(tensor, "full_tensor")
        for _, tensor in model.state_dict(keep_vars=True).items()
        if tensor.requires_grad
    )
    found = outcome(done)
    found["weights"] = {
        name: ranks.full(tensor).clone() for name, tensor in found["weights"].items()
    }
    moments = hook.optimizer.state[hook.optimizer.param_groups[0]["params"][0]]
    return found | {
        "moments": {name: ranks.full(tensor).clone() for name, tensor in moments.items()}
    }


def undisturbed(folder: Path) -> None:
    keep(folder, [streamed(110, *stream, None) for stream in STREAMS])


def until_70(folder: Path) -> None:
    keep(folder, [streamed(70, *stream, folder) for stream in STREAMS])


def until_110(folder: Path) -> None:
    keep(folder, [streamed(110, *stream, folder) for stream in STREAMS])


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["records"] == other["records"]
    for part in ("weights", "moments"):
        assert all(torch.equal(tensor, other[part][name]) for name, tensor in one[part].items())


def test_a_sharded_stream_resumes_exactly_and_goes_on_unsharded(tmp_path: Path) -> None:
    whole = run(undisturbed, tmp_path)
    halves = run(until_70, tmp_path)
    shutil.copytree(tmp_path / "1", tmp_path / "alone" / "1")
    shutil.copytree(tmp_path / "3", tmp_path / "alone" / "3")
    for one, expected in zip(run(until_110, tmp_path), whole, strict=True):
        for resumed, straight in zip(one, expected, strict=True):
            assert_same(resumed, straight)
    for place, (_, fields) in enumerate(STREAMS):
        assert_same(
            streamed(70, None, fields, tmp_path / "alone"), halves[0][place]
        )  # what it goes on from
        alone = streamed(110, None, fields, tmp_path / "alone")
        assert alone["step"] == 110
        expected = whole[0][place]
        assert alone["records"][1]["valid_auc"] == pytest.approx(
            expected["records"][1]["valid_auc"], abs=0.02
        )
        theta = "deep.0.torchleap.theta"
        torch.testing.assert_close(
            alone["weights"][theta], expected["weights"][theta], atol=0.1, rtol=0
        )


class Tables(nn.Module):
    """A table that two fields share, one that is theirs alone, and layers behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(11, 3) for name in ("bought", "user")})
        self.deep = nn.Sequential(
            nn.Linear(9, 8),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Linear(8, 8),
            nn.ReLU(),
            nn.Linear(8, 1),
        )
        self.deep[3].weight.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        bought, seen, user = (
            self.tables["bought"](ids[:, 0]),
            self.tables["bought"](ids[:, 1]),
            self.tables["user"](ids[:, 2]),
        )
        found: Tensor = self.deep(torch.cat([bought, seen, user], dim=1))[:, 0]
        return found


def sharded_tables(how: str) -> tuple[nn.Module, tl.Plugin, Any]:
    torch.manual_seed(0)
    model = Tables()
    plugin = tl.attach(model, {"bought": 3, "seen": 3, "user": 3}, at="deep", seed=0)
    shard(model, how)
    return model, plugin, torch.optim.Adam(plugin.parameter_groups(gate_lr=1e-1), lr=1e-2)


def ids(step: int) -> Tensor:
    return torch.randint(11, (32, 3), generator=torch.Generator().manual_seed(step))


def cut(how: str) -> dict[str, Any]:
    model, plugin, optimizer = sharded_tables(how)

    def step(number: int) -> None:
        rows = own(ids(number))
        (
            binary_cross_entropy_with_logits(model(rows), (rows[:, 0] > 5).float())
            + plugin.penalty()
        ).backward()
        optimizer.step()
        optimizer.zero_grad()

    for number in range(6):
        step(number)
    model.eval()
    for buffer in model.deep[1].buffers():  # batch norm has seen other rows on each rank
        ranks.broadcast(buffer)
    kinds, keys = (
        [type(module) for module in model.modules()],
        [set(vars(module)) for module in model.modules()],
    )
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    selection = plugin.select(share=0.34)
    with torch.no_grad(), plugin.masked(selection):
        expected = model(ids(50))
    plan = plugin.plan(selection)
    pruned = plugin.prune(selection, example=ids(51))
    assert kinds == [type(module) for module in model.modules()]
    assert keys == [set(vars(module)) for module in model.modules()]
    assert hooks == [len(module._forward_pre_hooks) for module in model.modules()]
    torch.testing.assert_close(pruned(ids(50)), expected, atol=1e-5, rtol=0)
    model.train()
    step(7)  # the sharded one goes on
    return {
        "kept": list(selection.kept),
        "plan": str(plan),
        "weights": pruned.state_dict(),
        "kinds": [kind.__name__ for module in pruned.modules() for kind in type(module).__mro__],
        "left": [
            key
            for module in pruned.modules()
            for key in vars(module)
            if "fsdp" in key or "composable" in key
        ],
        "hooks": [
            repr(hook)
            for module in pruned.modules()
            for name in HOOKS
            for hook in getattr(module, name).values()
        ],
        "frozen": not pruned.deep[3].weight.requires_grad,
        "copied": copy.deepcopy(pruned)(ids(50)).detach(),
        "output": pruned(ids(50)).detach(),
    }


def cut_both(folder: Path) -> None:
    keep(folder, [cut(how) for how in HOW])


def test_a_sharded_model_is_pruned_to_a_plain_one_on_all_ranks(tmp_path: Path) -> None:
    first, second = run(cut_both, tmp_path)
    for one, other in zip(first, second, strict=True):
        assert len(one["kept"]) == 1
        assert "=>" in one["plan"]
        assert (one["kept"], one["plan"]) == (other["kept"], other["plan"])
        assert one["weights"].keys() == other["weights"].keys()
        assert one["weights"]["deep.0.weight"].shape == (8, 3)
        for name, tensor in one["weights"].items():
            assert type(tensor) is Tensor
            assert torch.equal(tensor, other["weights"][name]), name
        assert not any("FSDP" in kind for kind in one["kinds"])
        assert (one["left"], one["hooks"], one["frozen"]) == ([], [], True)
        assert torch.equal(one["copied"], one["output"])


def differing_buffers(folder: Path) -> None:
    model, plugin, _ = sharded_tables("layer")
    model(own(ids(0)))
    plugin.gates.theta.detach().mul_(0.5)
    pruned = plugin.prune(plugin.select(share=1.0))
    keep(folder, [model.deep[1].running_mean, pruned.deep[1].running_mean])


def test_all_ranks_get_the_first_ones_buffers(tmp_path: Path) -> None:
    (first, cut_first), (second, cut_second) = run(differing_buffers, tmp_path)
    assert not torch.equal(first, second)
    assert torch.equal(cut_first, first)
    assert torch.equal(cut_second, first)


class Keeps(nn.Module):
    """What cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Linear(4, 1)
        self.lock = Lock()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.deep(x)
        return found


def refused(folder: Path) -> None:
    model = shard(nn.Linear(4, 2), "whole")
    with pytest.raises(tl.AttachError, match=r"attach\(\) before fully_shard\(\)"):
        tl.attach(model, {"a": 4})
    named = nn.Sequential(nn.Identity(), nn.Identity(), nn.Linear(2, 1))
    tl.attach(named, at="0")
    shard(named, "whole")
    with pytest.raises(
        tl.AttachError, match=r"before fully_shard\(\)\. Give attach\(\) fields= or example="
    ):
        named({"a": torch.randn(4, 2)})
    keeps = Keeps()
    plugin = tl.attach(keeps, {"a": 1, "b": 3}, at="deep")
    shard(keeps, "whole")
    keeps(torch.randn(4, 4)).sum().backward()
    plugin.gates.theta.detach().mul_(0.5)
    selection = plugin.select(dims=3)
    with pytest.raises(tl.SurgeryError, match=r"get_model_state_dict.* prune that"):
        plugin.prune(selection)
    assert type(keeps).__name__ == "FSDPKeeps"
    x = torch.ones(5, 4)
    with torch.no_grad(), plugin.masked(selection):
        expected = keeps.eval()(x)
    keep(folder, [pruned_by_the_cure(keeps, selection)(x).detach(), expected])


def pruned_by_the_cure(sharded: nn.Module, selection: tl.Selection) -> nn.Module:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    weights = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
    plain = Keeps()
    plain.lock = None  # type: ignore[assignment]
    plugin = tl.attach(plain, {"a": 1, "b": 3}, at="deep")
    plain.load_state_dict(weights)
    return plugin.prune(selection, example=torch.randn(4, 4)).eval()


def test_what_cannot_work_is_refused_with_its_cure(tmp_path: Path) -> None:
    for pruned, expected in run(refused, tmp_path):
        torch.testing.assert_close(pruned, expected, atol=1e-5, rtol=0)


def documented(folder: Path) -> None:
    (code,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/fsdp.md").read_text(), flags=re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(compile(code, "docs/fsdp.md", "exec"), names)
    keep(folder, {"kept": list(names["selection"].kept), "weights": names["small"].state_dict()})


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    first, second = run(documented, tmp_path)
    assert len(first["kept"]) == 2
    assert first["kept"] == second["kept"]
    assert all(
        torch.equal(tensor, second["weights"][name]) for name, tensor in first["weights"].items()
    )


def opened_and_carried(folder: Path) -> None:
    model, plugin, optimizer = sharded_tables("layer")
    gate_optimizer = plugin.optimizer(lr=0.3)
    drift = tl.Drift(plugin, optimizer=gate_optimizer, fraction=0.5, settle=0)
    for number in range(8):
        rows = own(ids(number))
        binary_cross_entropy_with_logits(model(rows), (rows[:, 0] > 5).float()).backward()
        gate_optimizer.step()
        optimizer.zero_grad()
        drift.step()
    drift.stop()
    before = ranks.full(plugin.gates.theta.detach()).clone()
    with torch.no_grad():
        drift._open(torch.tensor([False, True, False]))
    after, squares = (
        ranks.full(part).clone()
        for part in (
            plugin.gates.theta.detach(),
            gate_optimizer.state[plugin.gates.theta]["exp_avg_sq"],
        )
    )
    model(own(ids(9))).sum().backward()
    optimizer.step()
    selection = plugin.select(share=0.67)
    pruned = plugin.prune(selection, example=ids(51))
    carried = tl.carry_over(optimizer, model, pruned)
    kept = [place for place, name in enumerate(plugin.fields.names) if name in selection.kept]
    columns = torch.cat([torch.arange(3 * place, 3 * place + 3) for place in kept])
    whole = ranks.full(optimizer.state[model.deep[0].weight]["exp_avg_sq"])[:, columns]
    scale = (
        carried.state[pruned.deep[0].weight]["exp_avg_sq"] / whole
    )  # of each kept column: its gate is folded into the weight
    keep(
        folder,
        {
            "before": before,
            "after": after,
            "squares": squares,
            "scale": scale,
            "gates": plugin.gates.gate()[kept],
        },
    )


def test_sharded_gates_are_opened_again_and_optimizers_carried_over(tmp_path: Path) -> None:
    first, second = run(opened_and_carried, tmp_path)
    for one in (first, second):
        assert one["after"][1] == 1.0 != one["before"][1]
        assert torch.equal(one["after"][[0, 2]], one["before"][[0, 2]])
        assert one["squares"][1] == 0
        assert (one["squares"][[0, 2]] > 0).all()
        expected = one["gates"].repeat_interleave(3).expand(8, -1) ** -2
        torch.testing.assert_close(one["scale"], expected, rtol=1e-4, atol=0)
    assert torch.equal(first["after"], second["after"])
