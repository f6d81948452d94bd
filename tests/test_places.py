"""Attached models whose fields arrive at several places: copies, compilers, trainers, selection."""

import copy
import pickle

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from tests.rankers import CalledTwice, FactorizationMachine, ids_by_name
from tests.test_plugin import replicate
from torchleap import Place

NAMES = ("first", "second", "noise", "more")
AT = {"table": dict.fromkeys(NAMES, 4), "linear": dict.fromkeys(NAMES, 1)}
CALLS = {
    Place("lookup", call=0): {"user": 3},
    Place("lookup", call=1): {"user": 3, "item": 3, "age": 1},
}
KINDS = [
    (FactorizationMachine, AT, lambda rows: torch.randint(10, (rows, 4))),
    (CalledTwice, CALLS, ids_by_name),
]


def rows(count=200):
    """Rows whose label reads the first two fields."""
    ids = torch.randint(10, (count, 4))
    return ids, ((ids[:, 0] > 4) != (ids[:, 1] > 4)).float()


def attach(model, at, **settings):
    return tl.attach(model, at=at, side="output", seed=0, **settings)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize(("build", "at", "make"), KINDS)
def test_copies_have_gates_of_their_own(clone, build, at, make):
    model = build()
    plugin = attach(model, at, init=0.0)
    model(make(8))
    twin = clone(model)
    batch = make(8)
    assert torch.equal(twin(batch), model(batch))
    twin(batch)
    assert plugin.gates.steps.unique().tolist() == [2]
    assert tl.attached(twin).gates.steps.unique().tolist() == [3]
    again = build()
    restored = attach(again, at)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(batch), model(batch))
    restored.detach()
    before = again.state_dict().keys()
    assert not any("torchleap" in name for name in before)
    assert torch.equal(again(batch), again(batch))


@pytest.mark.parametrize(("build", "at", "make"), KINDS)
def test_data_parallel_replicas_use_their_own_gates(build, at, make):
    model = build()
    plugin = attach(model, at, init=0.0)
    replica = replicate(model)
    replica(make(8)).sum().backward()
    assert plugin.gates.theta.grad.abs().min() > 0
    assert plugin.gates.steps.unique().tolist() == [0]
    assert tl.attached(replica).gates.steps.unique().tolist() == [1]


@pytest.mark.parametrize(("build", "at", "make"), KINDS)
def test_a_compiled_model_trains_as_the_eager_one(build, at, make):
    eager = build()
    twin = copy.deepcopy(eager)
    plugins = [attach(model, at, alpha=0.05) for model in (eager, twin)]
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-2) for model in (eager, twin)]
    for _ in range(4):
        batch = make(16)
        for run, plugin, optimizer in zip((eager, compiled), plugins, optimizers, strict=True):
            optimizer.zero_grad()
            (run(batch).square().mean() + plugin.penalty()).backward()
            optimizer.step()
    assert plugins[1].gates.steps.unique().tolist() == [4]
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(tensor, twin.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(compiled.eval()(batch), eager.eval()(batch), rtol=1e-4, atol=1e-5)


def step_of(plugin, optimizer):
    ids, y = rows()
    optimizer.zero_grad()
    binary_cross_entropy_with_logits(plugin.model(ids)[:, 0], y).backward()
    optimizer.step()


@pytest.mark.parametrize("how", ["trainer", "held out", "learn"])
def test_useless_fields_close_and_useful_ones_stay(how):
    torch.manual_seed(0)
    model = FactorizationMachine()
    plugin = attach(model, AT)
    optimizer = torch.optim.Adam(plugin.model_parameters(), lr=1e-2)
    trainer = plugin.learn(steps=400) if how == "learn" else plugin.trainer(steps=400)
    for _ in range(400):
        step_of(plugin, optimizer)
        if how == "trainer":
            trainer.step()
        elif how == "held out":
            ids, y = rows()
            trainer.step(lambda i=ids, y=y: binary_cross_entropy_with_logits(model(i)[:, 0], y))
    selection = plugin.select()
    assert selection.kept == ("first", "second")
    assert selection.dims == 10
    plan = plugin.plan(selection)
    model.eval()
    ids, _ = rows(50)
    with plugin.masked(selection), torch.no_grad():
        expected = model(ids)
    torch.testing.assert_close(plan.apply().eval()(ids), expected, rtol=1e-4, atol=1e-5)


FIELDS = [f"field {place}" for place in range(8)]  # the label reads the first two


def gates_by_hand(model, *, permutations):
    """Put a gate for each part of a field into a factorization machine."""
    parts = []
    for place, (name, width) in enumerate({"table": 4, "linear": 1}.items()):
        part = tl.LeAP(dict.fromkeys(FIELDS, width), seed=place if permutations == 2 else 0)
        table = model.get_submodule(name)
        table.add_module("gates", part)
        table.register_forward_hook(lambda m, args, output: m.gates(output))
        parts.append(part)
    return parts


def useless_and_open(kind, seed):
    """Train a factorization machine for 200 steps; return the useless fields with an open gate."""
    torch.manual_seed(seed)
    model = FactorizationMachine(len(FIELDS), 4, 40)
    if kind == "one gate, one permutation":
        at = {"table": dict.fromkeys(FIELDS, 4), "linear": dict.fromkeys(FIELDS, 1)}
        parts = [attach(model, at).gates]
    else:
        parts = gates_by_hand(model, permutations=2 if kind.endswith("two permutations") else 1)
    of_gates = {id(part.theta) for part in parts}
    others = [one for one in model.parameters() if id(one) not in of_gates]
    optimizers = [torch.optim.Adam(others, lr=1e-2)]
    optimizers += [tl.GateOptimizer(part, lr=2e-2, strength=0.4) for part in parts]
    effects = torch.randn(2, 40)
    for _ in range(200):
        ids = torch.randint(40, (200, len(FIELDS)))
        first, second = effects[0][ids[:, 0]], effects[1][ids[:, 1]]
        y = torch.bernoulli(torch.sigmoid(first + second + first * second))
        for optimizer in optimizers:
            optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(ids)[:, 0], y).backward()
        for optimizer in optimizers:
            optimizer.step()
    scores = [part.scores() for part in parts]
    assert all(max(one[name] for one in scores) > 0.5 for name in FIELDS[:2])
    return [name for name in FIELDS[2:] if max(one[name] for one in scores) > 0.5]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("one gate, one permutation", []),
        ("two gates, two permutations", FIELDS[2:]),
    ],
)
def test_useless_fields_close_with_one_gate_and_one_permutation_alone(kind, expected, seed):
    assert useless_and_open(kind, seed) == expected
