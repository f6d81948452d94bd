"""Pruning models whose fields arrive at several places."""

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.rankers import CalledTwice, Encoders, FactorizationMachine, PerField, ids_by_name
from tests.surgery.helpers import FED
from torchleap import Place

NAMES = ("u", "i", "c", "n")


def opaque(kind):
    """The same model, with a branch that tracing does not follow."""

    class Opaque(kind):
        def forward(self, batch):
            first = next(iter(batch.values())) if isinstance(batch, dict) else batch
            if float(first.abs().sum()) < 0:
                raise ValueError
            return super().forward(batch)

    return Opaque


CASES = {
    "tables of all fields": (
        FactorizationMachine,
        {"at": {"table": dict.fromkeys(NAMES, 4), "linear": dict.fromkeys(NAMES, 1)}},
        lambda rows: torch.randint(10, (rows, 4)),
    ),
    "calls with other features": (
        CalledTwice,
        {
            "at": {
                Place("lookup", call=0): {"user": 3},
                Place("lookup", call=1): {"user": 3, "item": 3, "age": 1},
            }
        },
        ids_by_name,
    ),
    "calls with the same features": (
        lambda: CalledTwice(("user", "item"), ("user", "item"), ()),
        {"at": {"lookup": {"user": 3, "item": 3}}},
        ids_by_name,
    ),
    "one of two calls": (
        CalledTwice,
        {"at": {Place("lookup", call=1): {"user": 3, "item": 3, "age": 1}}},
        ids_by_name,
    ),
    "a part of a tuple": (
        Encoders,
        {"at": {Place("encoder", part=0): {"a": 4, "b": 4, "c": 4}}},
        lambda rows: torch.randn(rows, 3),
    ),
    "lists of tensors": (
        PerField,
        {"at": {"embedding": {"item": 4, "price": 2}, "linear": {"item": 1, "price": 1}}},
        lambda rows: torch.randint(10, (rows, 2)),
    ),
    "tables of each field": (
        PerField,
        {
            "fields": {
                "item": ["embedding.tables.0", "linear.tables.0"],
                "price": ["embedding.tables.1", "linear.tables.1"],
            }
        },
        lambda rows: torch.randint(10, (rows, 2)),
    ),
    "a part of a list and an input": (
        PerField,
        {
            "fields": {
                "item": [Place("embedding", part=0), Place("linear", part=0)],
                "price": [Place("embedding", part=-1), Place("linear", part=1)],
            }
        },
        lambda rows: torch.randint(10, (rows, 2)),
    ),
}


def trained(case, build=None, **settings):
    """A model whose gates and means look as after a training."""
    kind, arguments, make = CASES[case]
    torch.manual_seed(0)
    model = (build or kind)()
    warns = nullcontext()
    if case == "one of two calls":
        warns = pytest.warns(UserWarning, match="beside the gates")
    with warns:
        plugin = tl.attach(model, **arguments, side="output", example=make(8), **settings)
    for _ in range(3):
        model.train()(make(32))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, len(plugin.gates.theta)))
    return plugin, make


def assert_exact(plugin, selection, small, make):
    for rows in (32, 1, 7):
        batch = make(rows)
        with torch.no_grad(), plugin.masked(selection):
            expected = plugin.model.eval()(batch)
        torch.testing.assert_close(small.eval()(batch), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_opaque", [False, True])
def test_a_pruned_model_is_the_masked_one(case, is_opaque):
    kind = CASES[case][0]
    build = None
    if is_opaque:
        build = opaque(kind) if isinstance(kind, type) else lambda: fed_twin(kind())
    plugin, make = trained(case, build)
    names = plugin.fields.names
    for dropped in {names[0], names[-1]}:
        kept = tuple(name != dropped for name in names)
        selection = tl.Selection(plugin.fields, tuple(map(float, kept)), kept)
        small = plugin.prune(selection)
        assert (FED in str(tl.plan_of(small))) == is_opaque
        assert_exact(plugin, selection, small, make)
        assert_exact(plugin, selection, copy.deepcopy(small), make)
        plan = tl.plan_of(small)
        assert {name: len(means) for name, means in plan.means.items()} == {
            dropped: plugin.fields[dropped].width
        }


def fed_twin(model):
    """Make a model's class one that tracing does not follow."""
    model.__class__ = opaque(type(model))
    return model


@pytest.mark.parametrize("case", ["tables of all fields", "calls with other features"])
def test_gates_per_dimension_at_several_places(case):
    plugin, make = trained(case, per_dimension=True)
    selection = plugin.select(share=0.6)
    assert_exact(plugin, selection, plugin.prune(selection), make)


def test_the_table_of_a_dropped_field_is_gone_at_all_places():
    plugin, _ = trained("tables of each field")
    selection = tl.Selection(plugin.fields, (0.0, 1.0), (False, True))
    small = plugin.prune(selection)
    tables = [name for name, module in small.named_modules() if isinstance(module, nn.Embedding)]
    assert len(tables) == 2
    assert selection.dims == 3


def test_a_pruned_model_is_saved_and_loaded(tmp_path):
    plugin, make = trained("tables of all fields")
    selection = plugin.select(share=0.5)
    selection.save(tmp_path / "selection.json")
    assert tl.Selection.load(tmp_path / "selection.json") == selection
    small = plugin.prune(selection)
    tl.export.save(small, tmp_path / "model")
    loaded = tl.export.load(tmp_path / "model")
    batch = make(9)
    torch.testing.assert_close(loaded(batch), small.eval()(batch))


def test_a_fed_model_counts_its_calls_again_after_a_failed_pass():
    plugin, make = trained("calls with other features", opaque(CalledTwice))
    names = plugin.fields.names
    selection = tl.Selection(plugin.fields, (0.0, 1.0, 1.0), (False, True, True))
    small = plugin.prune(selection)
    assert names[0] == "user"
    handle = small.end.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        small(make(4))
    handle.remove()
    assert_exact(plugin, selection, small, make)


def test_an_unpickled_model_counts_its_own_calls():
    plugin, make = trained("calls with other features")
    model = pickle.loads(pickle.dumps(plugin.model))
    batch = make(6)
    assert torch.equal(model.eval()(batch), plugin.model.eval()(batch))
    twin = tl.attached(model)
    selection = twin.select(share=0.5)
    assert_exact(twin, selection, twin.prune(selection, example=batch), make)
