"""Gates on several ranks: real processes, gloo."""

import copy
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import get_rank, get_world_size
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

import torchleap as tl
from torchleap.gates import leap as gates_module
from torchleap.gates.statistics import columns_in_turn
from torchleap.mix import Mixed

from .ranks_of import finish, keep, run, start

FIELDS = {"wide": 40, "useful": 3, "narrow": 1}
ROWS, STEPS = 32, 30


def rows(step: int) -> tuple[Tensor, Tensor]:
    """A batch of all ranks' rows."""
    rng = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, sum(FIELDS.values()), generator=rng) * 2 + 1
    return x, (x[:, 40:43].sum(1) > 3).float()


def own(rows: Tensor) -> Tensor:
    """This rank's half of them."""
    return rows.chunk(get_world_size())[get_rank()] if torch.distributed.is_initialized() else rows


def turned(x: Tensor, gate: Tensor, column_gate: Tensor, *rest: Any) -> Mixed:
    """Mix with a fixed permutation: each half of the batch of all ranks upside down."""
    halves = 2 if len(x) == ROWS else 1
    other = torch.cat([half.flip(0) for half in x.chunk(halves)])
    share = gate[column_gate]
    square = torch.zeros(len(x), len(gate)).index_add_(
        1, column_gate, (x - other).detach().square()
    )
    statistics = torch.stack(
        [square.sqrt().mean(0), square.mean(0), torch.zeros(len(gate)), torch.zeros(len(gate))]
    )
    return Mixed(share * x + (1 - share) * other, x.detach().mean(0), statistics)


def model_with_gates(**settings: Any) -> tuple[nn.Module, tl.Plugin]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(sum(FIELDS.values()), 8), nn.ReLU(), nn.Linear(8, 1))
    return model, tl.attach(model, FIELDS, at="0", seed=0, **settings)


def state(plugin: tl.Plugin) -> dict[str, Tensor]:
    return {
        name: tensor.clone()
        for name, tensor in plugin.gates.state_dict().items()
        if "extra" not in name
    }


def train(*, turn: bool = True, **settings: Any) -> list[dict[str, Tensor]]:
    """The gates after each step, on one rank or on many."""
    if turn:
        gates_module.mix = turned  # type: ignore[assignment]
    model, plugin = model_with_gates(alpha=0.05, **settings)
    several = torch.distributed.is_initialized()
    called: Any = DistributedDataParallel(model) if several else model
    optimizer = torch.optim.Adam(plugin.parameter_groups(gate_lr=1e-2), lr=1e-2)
    seen = []
    for step in range(STEPS):
        x, y = rows(step)
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(called(own(x))[:, 0], own(y))
        (loss + plugin.penalty()).backward()
        optimizer.step()
        seen.append(state(plugin))
    return seen


def same_everywhere(folder: Path) -> None:
    keep(folder, train())


def test_two_halves_are_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run(same_everywhere, tmp_path)
    monkeypatch.setattr(gates_module, "mix", turned)
    alone = train()
    for one, other in zip(first, second, strict=True):
        for name in one:
            assert torch.equal(one[name], other[name]), name  # at every step, bit for bit
    for step, (one, whole) in enumerate(zip(first, alone, strict=True)):
        torch.testing.assert_close(one["theta"], whole["theta"], atol=1e-6, rtol=0)
        for name in ("distance", "square"):
            torch.testing.assert_close(one[name], whole[name], atol=1e-6, rtol=1e-5)
        assert step or torch.allclose(one["mean"], whole["mean"], atol=1e-6)
    assert (first[-1]["theta"][0] - first[0]["theta"][0]).abs() > 0.1  # the gates have moved at all


def read_between(folder: Path) -> None:
    """What is read within a pass, where the other rank's statistics may still be under way."""
    reads = {
        "prices": lambda gates: gates.weights(),
        "sparsity": lambda gates: gates.sparsity(),
        "means": lambda gates: gates.means(),
        "saved": lambda gates: gates.state_dict()["square"].clone(),
        "copied": lambda gates: copy.deepcopy(gates).square,
        "moved": lambda gates: gates.double().square.float(),
        "evaluated": lambda gates: gates.eval()(own(rows(1)[0]))[:, :1].mean(),
    }
    found = {}
    for name, read in reads.items():
        early, late = tl.LeAP(FIELDS, seed=0, init=-10.0), tl.LeAP(FIELDS, seed=0, init=-10.0)
        for step in range(3):
            early.context.begin()  # as within a pass of a model whose sites they are
            early(own(rows(step)[0]))
            late(own(rows(step)[0]))
        assert early._synchronised._pending
        assert not late._synchronised._pending
        found[name] = [read(early).detach(), read(late).detach()]
    keep(folder, found)


def test_whoever_reads_statistics_within_a_pass_hears_all_ranks(tmp_path: Path) -> None:
    first, second = run(read_between, tmp_path)
    for name, (early, late) in first.items():
        assert torch.equal(early, late), name
        assert name == "evaluated" or torch.equal(early, second[name][0]), name


def own_permutations(folder: Path) -> None:
    gates = tl.LeAP({"a": 1}, seed=3, init=-10.0)  # closed: the output is the permuted copy
    x = torch.arange(64.0)[:, None]
    keep(folder, {"order": gates(x), "seed": gates.seed})


def test_each_rank_permutes_by_its_own_stream(tmp_path: Path) -> None:
    first, second = run(own_permutations, tmp_path)
    assert torch.equal(first["seed"], second["seed"])
    assert not torch.equal(first["order"], second["order"])
    gates = tl.LeAP({"a": 1}, seed=3, init=-10.0)
    assert torch.equal(
        gates(torch.arange(64.0)[:, None]), first["order"]
    )  # the first rank is what a single process is


def every_third(folder: Path) -> None:
    keep(folder, train(turn=False, sync_every=3))


def test_between_two_collectives_the_statistics_stand_still(tmp_path: Path) -> None:
    first, second = run(every_third, tmp_path)
    estimates = [one["square"] / (1 - 0.99 ** one["steps"]) for one in first]
    for step, (one, other) in enumerate(zip(first, second, strict=True)):
        assert all(torch.equal(one[name], other[name]) for name in one)
        if step % 3:
            torch.testing.assert_close(estimates[step], estimates[step - 1], rtol=1e-5, atol=0)
        elif step:
            assert not torch.allclose(estimates[step], estimates[step - 1])
    torch.testing.assert_close(
        first[-1]["mean"][:40] / (1 - 0.99**STEPS), torch.ones(40), atol=1.0, rtol=0
    )


def counted(folder: Path) -> None:
    sent: list[int] = []
    send = torch.distributed.all_reduce

    def count(tensor: Tensor, **settings: Any) -> Any:
        sent.append(tensor.numel() * tensor.element_size())
        return send(tensor, **settings)

    torch.distributed.all_reduce = count
    gates = tl.LeAP(FIELDS)
    for step in range(12):
        sent.clear()
        gates(own(rows(step)[0]))
        if step:  # in the first, fields are compared and all means are sent
            assert len(sent) == 1
            assert sent[0] <= 8 * 4 * len(FIELDS)
    means = gates.means()
    torch.testing.assert_close(means, torch.ones_like(means), atol=1.5, rtol=0)
    keep(folder, means)


def test_one_collective_of_32_bytes_a_field(tmp_path: Path) -> None:
    first, second = run(counted, tmp_path)
    assert torch.equal(first, second)


def test_the_means_of_all_columns_are_sent_in_turns() -> None:
    for columns, gates, every in ((44, 3, 4), (44, 3, 3), (7, 2, 5), (100, 1, 2)):
        sent = torch.zeros(columns, dtype=torch.int64)
        for turn in range(0, every * 200, every):
            part, parts = columns_in_turn(turn // every, columns, gates)
            sent[part] += 1
        assert sent.min() >= 200 // parts


def accumulated(folder: Path) -> None:
    """Two micro-batches, of which the first stays on its rank."""
    gates_module.mix = turned  # type: ignore[assignment]
    model, plugin = model_with_gates()
    ddp = DistributedDataParallel(model)
    halves = [half.chunk(2) for half in (own(rows(0)[0]), own(rows(0)[1]))]
    with ddp.no_sync():
        binary_cross_entropy_with_logits(ddp(halves[0][0])[:, 0], halves[1][0]).backward()
    binary_cross_entropy_with_logits(ddp(halves[0][1])[:, 0], halves[1][1]).backward()
    keep(
        folder,
        {
            "gradient": plugin.gates.theta.grad,
            "steps": plugin.gates.steps,
            "own": halves[0],
            "label": halves[1],
        },
    )


def test_gradients_accumulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run(accumulated, tmp_path)
    assert torch.equal(first["gradient"], second["gradient"])
    assert first["steps"].tolist() == [2, 2, 2]
    total = torch.zeros(3)
    monkeypatch.setattr(gates_module, "mix", turned)
    for rank in (first, second):
        for x, y in zip(rank["own"], rank["label"], strict=True):
            model, plugin = model_with_gates()
            binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
            assert plugin.gates.theta.grad is not None
            total += plugin.gates.theta.grad / 2
    torch.testing.assert_close(first["gradient"], total, atol=1e-6, rtol=1e-4)


def held_out(folder: Path) -> None:
    model, plugin = model_with_gates()
    ddp = DistributedDataParallel(model)
    optimizer, gates = (
        torch.optim.SGD(plugin.model_parameters(), lr=0.1),
        plugin.optimizer(lr=0.05, optimism=0.25),
    )
    for step in range(6):
        x, y = rows(step)
        binary_cross_entropy_with_logits(ddp(own(x))[:, 0], own(y)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with plugin.held_out():
            binary_cross_entropy_with_logits(
                model(own(y)[:, None] + own(x))[:, 0], own(y)
            ).backward()
            gates.step()
    with pytest.raises(tl.AttachError, match=r"ddp\.module"), plugin.held_out():
        ddp(own(x))
    with (
        pytest.raises(tl.AttachError, match=r"plugin\.join"),
        ddp.join(throw_on_early_termination=True),
    ):
        ddp(own(x))
    keep(folder, state(plugin) | {"moved": torch.tensor(plugin.gates.moved)})


def test_gates_that_learn_from_held_out_rows_agree(tmp_path: Path) -> None:
    first, second = run(held_out, tmp_path)
    assert first["moved"]
    assert all(torch.equal(first[name], second[name]) for name in first)


def by_trainer(*, holds_gates: bool, bucket_view: bool, held_out: bool) -> dict[str, Tensor]:
    """The gates after some steps, each of two micro-batches."""
    model, plugin = model_with_gates()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)
    parameters = list(model.parameters()) if holds_gates else plugin.model_parameters()
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    trainer = plugin.trainer(steps=20)
    for step in range(8):
        x, y = own(rows(2 * step)[0]), own(rows(2 * step)[1])
        with ddp.no_sync():
            binary_cross_entropy_with_logits(ddp(x)[:, 0], y).backward()
        x, y = own(rows(2 * step + 1)[0]), own(rows(2 * step + 1)[1])
        binary_cross_entropy_with_logits(ddp(x)[:, 0], y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if held_out:
            x, y = own(rows(1000 + step)[0]), own(rows(1000 + step)[1])
            trainer.step(lambda x=x, y=y: binary_cross_entropy_with_logits(model(x)[:, 0], y))
        else:
            trainer.step()
    return {**state(plugin), "weight": model[0].weight.detach().clone()}


def trainers(folder: Path) -> None:
    found = [
        by_trainer(holds_gates=holds, bucket_view=view, held_out=held_out)
        for held_out in (False, True)
        for holds, view in ((False, False), (True, False), (True, True))
    ]
    keep(folder, found)


def test_a_trainer_s_gates_agree_on_all_ranks_whatever_else_holds_them(tmp_path: Path) -> None:
    first, second = run(trainers, tmp_path)
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    for kind in (first[:3], first[3:]):
        assert not torch.equal(kind[0]["theta"], torch.ones(3))
        for other in kind[1:]:
            assert all(torch.equal(kind[0][name], other[name]) for name in other)


def uneven(folder: Path) -> None:
    """The second rank has no rows at all in the first epoch, and one batch less in the second."""
    model, plugin = model_with_gates()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(plugin.parameter_groups(gate_lr=1e-2), lr=1e-2)
    for counts in ((3, 0), (4, 3)):
        with plugin.join(ddp):
            for step in range(counts[get_rank()]):
                x, y = rows(step)
                optimizer.zero_grad()
                (
                    binary_cross_entropy_with_logits(ddp(own(x))[:, 0], own(y)) + plugin.penalty()
                ).backward()
                optimizer.step()
    keep(folder, state(plugin))


def test_uneven_ranks_do_not_hang(tmp_path: Path) -> None:
    first, second = run(uneven, tmp_path)
    assert first["steps"].tolist() == [7, 7, 7]
    assert all(torch.equal(first[name], second[name]) for name in first)


def other_fields(folder: Path) -> None:
    fields = {"a": 2, "b": 1} if get_rank() else {"a": 1, "b": 2}
    tl.LeAP(fields)(torch.randn(4, 3))


def test_other_fields_on_another_rank_are_refused(tmp_path: Path) -> None:
    told = finish(start(other_fields, tmp_path))
    assert all(code == 1 and "other fields than on another rank" in text for code, text in told)


def nan_on_one(folder: Path) -> None:
    x = rows(0)[0]
    if get_rank() == 1:
        x[3, 42] = torch.nan
    tl.LeAP(FIELDS)(x)


def nan_in_one_batch(folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(sum(FIELDS.values()), 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    plugin = tl.attach(
        model, FIELDS, at="0", seed=0, sync_every=2 if folder.name == "every second" else 1
    )
    ddp, optimizer = (
        DistributedDataParallel(model),
        torch.optim.SGD(plugin.model_parameters(), lr=1e-2),
    )
    gate_optimizer = plugin.optimizer()
    told, weights = [], [model[0].weight.detach().clone()]
    for step in range(5):
        x = own(rows(step)[0])
        if step == 1 and get_rank() == 1:
            x[3, 42] = torch.nan
        model.zero_grad()
        try:
            loss = ddp(x).sum()
            (loss + plugin.penalty() if folder.name == "penalty" else loss).backward()
            optimizer.step()
            if folder.name in ("pressure", "every second"):
                gate_optimizer.step()
        except tl.FieldError as error:
            told.append((step, str(error)))
        weights.append(model[0].weight.detach().clone())
    moved = [not torch.equal(one, other) for one, other in pairwise(weights)]
    keep(
        folder,
        {
            "told": told,
            "moved": moved,
            "weights": weights[-1],
            "norm": model[1].running_mean,
            "gates": state(plugin),
        },
    )


@pytest.mark.parametrize(
    ("how", "told_at", "moved"),
    [
        ("penalty", 1, [True, False, True, True, True]),
        ("pressure", 1, [True, True, True, True, True]),  # by the other values
        (
            "every second",
            2,
            [True, True, True, True, True],
        ),  # the statistics of the second step are not sent
        ("neither", 2, [True, True, False, True, True]),
    ],
)
def test_a_batch_with_a_nan_on_one_rank_is_refused_by_all_and_can_be_left_out(
    tmp_path: Path, how: str, told_at: int, moved: list[bool]
) -> None:
    folder = tmp_path / how
    folder.mkdir()
    first, second = run(nan_in_one_batch, folder)
    for one in (first, second):
        ((step, text),) = one["told"]
        assert step == told_at
        assert "'useful'" in text
        assert one["moved"] == moved
        assert one["norm"].isfinite().all()
        assert one["weights"].isfinite().all()
    assert torch.equal(first["weights"], second["weights"])
    assert all(torch.equal(first["gates"][name], second["gates"][name]) for name in first["gates"])
    assert first["gates"]["mean"].isfinite().all()


def test_a_nan_on_one_rank_is_told_by_all(tmp_path: Path) -> None:
    for code, text in finish(start(nan_on_one, tmp_path)):
        assert code == 1
        assert "NaN, infinity or values too large to square in field 'useful'" in text, (
            os.linesep + text
        )


def learns_by_itself(folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    plugin = tl.attach(model, {"useful": 2, "noise": 3, "other": 3}, at="0", seed=0)
    learner = plugin.learn(steps=150)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    for number in range(150):
        x = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(own(x))[:, 0], own(x[:, :2].sum(1))).backward()
        optimizer.step()
    keep(folder, {"theta": plugin.gates.theta.detach(), "done": learner.done})


def test_gates_that_learn_by_themselves_agree_under_ddp(tmp_path: Path) -> None:
    first, second = run(learns_by_itself, tmp_path)
    assert first["done"] == second["done"] == 150
    assert torch.equal(first["theta"], second["theta"])
    assert first["theta"][0] > 0 > first["theta"][1:].max()
