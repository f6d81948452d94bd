"""Keyed tensors, jagged batches and collections, with stand-ins for TorchRec's classes."""

import copy
import pickle

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.doubles import Collection, Config, KeyedTensor, Lazy, Promise, Sharded, jagged, reordered
from torchleap.distributed.torchrec import (
    bags_of,
    blocks_of,
    is_jagged,
    kept_configs,
    keyed_values,
    take_rows,
    waited,
    when_ready,
)
from torchleap.sites.calls import few_rows

WIDTHS = {"f0": 2, "f1": 4, "f2": 1, "f3": 3}
TABLES = "tables"


def configs():
    return [Config(f"t{i}", width, 20, [name]) for i, (name, width) in enumerate(WIDTHS.items())]


class Model(nn.Module):
    def __init__(self, tables=None):
        super().__init__()
        self.tables = Collection(tables or configs())
        self.names = [bag.name for bag in bags_of(self.tables.embedding_bag_configs())]
        width = sum(bag.width for bag in bags_of(self.tables.embedding_bag_configs()))
        self.over = nn.Sequential(nn.Linear(width + 2, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense, sparse):
        blocks = self.tables(sparse).to_dict()
        return self.over(torch.cat([dense, *(blocks[name] for name in self.names)], dim=1))


def batch(rows=32, names=tuple(WIDTHS)):
    return torch.randn(rows, 2), jagged(names, rows)


def keyed(keys=tuple(WIDTHS), rows=6):
    values = {name: torch.randn(rows, width) for name, width in WIDTHS.items()}
    return KeyedTensor(
        list(keys), [WIDTHS[key] for key in keys], torch.cat([values[key] for key in keys], dim=1)
    )


def trained(model, plugin, steps=30, names=tuple(WIDTHS)):
    optimizer = torch.optim.Adam(plugin.parameter_groups(gate_lr=0.05), lr=1e-2)
    for _ in range(steps):
        dense, sparse = batch(names=names)
        optimizer.zero_grad()
        ((model(dense, sparse) - dense[:, :1]).square().mean() + plugin.penalty()).backward()
        optimizer.step()
    with torch.no_grad():
        plugin.gates.theta.add_(
            torch.linspace(-1.5, 0.5, len(plugin.gates.theta))
        )  # all gates differ
    return plugin


# Gating by name


def test_gates_belong_to_names_whatever_the_order_of_the_keys():
    model = nn.Identity()
    plugin = tl.attach(model, WIDTHS)
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.tensor([-1.0, 1.0, 0.2, -0.2]))
        plugin.gates.steps.fill_(1)
        plugin.gates.mean.copy_(torch.arange(10.0))
    model.eval()
    value = keyed()
    other = reordered(value, ["f2", "f0", "f3", "f1"])
    straight, shuffled = model(value), model(other)
    assert type(shuffled) is KeyedTensor
    assert shuffled.keys() == ["f2", "f0", "f3", "f1"]
    assert shuffled.length_per_key() == [1, 2, 3, 4]
    assert not torch.equal(straight.values(), value.values())
    for name in WIDTHS:
        assert torch.equal(straight.to_dict()[name], shuffled.to_dict()[name])


def test_fields_come_from_the_first_batch_and_keep_its_order():
    model = nn.Identity()
    plugin = tl.attach(model)
    model(reordered(keyed(), ["f3", "f0", "f1", "f2"]))
    model(keyed())
    assert plugin.fields.names == ("f3", "f0", "f1", "f2")
    assert int(plugin.gates.steps[0]) == 2


def test_gradient_reaches_gates_and_values_in_any_order():
    model = nn.Identity()
    plugin = tl.attach(model, WIDTHS)
    value = reordered(keyed(), ["f2", "f0", "f3", "f1"])
    value.values().requires_grad_()
    model(value).values().square().sum().backward()
    assert (plugin.gates.theta.grad != 0).all()
    assert (value.values().grad != 0).any(0).all()


def test_all_wrong_keys_are_told_in_one_error():
    model = nn.Identity()
    tl.attach(model, {**WIDTHS, "f9": 1, "f2": 7})
    wrong = KeyedTensor(["f0", "f1", "f2", "f3", "x"], [2, 4, 1, 3, 1], torch.randn(6, 11))
    with pytest.raises(
        tl.FieldError,
        match="'f2' should be 7 wide, but is 1; the field 'f9' is missing; 'x' is not a field",
    ):
        model(wrong)


def test_a_key_that_comes_twice_and_other_key_dimensions_are_refused():
    model = nn.Identity()
    tl.attach(model, WIDTHS)
    with pytest.raises(
        tl.FieldError, match="expected each key once, but 'f0' appears more than once"
    ):
        model(KeyedTensor(["f0", "f0"], [2, 2], torch.randn(6, 4)))
    with pytest.raises(tl.FieldError, match="with key_dim=1, but found the shape"):
        model(KeyedTensor(["f0"], [6], torch.randn(6, 4), key_dim=0))


# Awaitables


def test_a_lazy_awaitable_is_gated_when_the_model_waits_for_it_and_once():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.ask = nn.Identity()

        def forward(self, value):
            self.promise = self.ask(value)
            self.waits = self.promise.waits
            return torch.cat([self.promise.values(), self.promise.values()])

    model = Asks()
    plugin = tl.attach(model, WIDTHS, at="ask", side="output")
    output = model(Lazy(keyed()))
    assert model.waits == 0
    assert model.promise.waits == 1
    assert int(plugin.gates.steps[0]) == 1
    assert torch.equal(*output.chunk(2))
    assert not torch.equal(output[:6], model.promise._value.values())


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_plain_promise_is_waited_for(side):
    model = nn.Identity()
    plugin = tl.attach(model, WIDTHS, side=side)
    assert isinstance(model(Promise(keyed())), KeyedTensor)
    assert int(plugin.gates.steps[0]) == 1


def test_an_awaitable_that_was_waited_for_is_gated_at_once_and_others_keep_the_original():
    model = nn.Identity()
    tl.attach(model, WIDTHS)
    promise = Lazy(keyed())
    before = promise.values()
    after = model(promise)
    assert promise.waits == 1
    assert promise.values() is before
    assert not torch.equal(after.values(), before)
    assert when_ready(promise, lambda value: value.keys()) == list(WIDTHS)
    assert waited(promise) is waited(promise)


# Jagged batches


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_a_jagged_batch_are_taken_with_all_their_ids(weighted):
    whole = jagged(WIDTHS, 9, weighted=weighted)
    chosen = torch.tensor([[4, 4, 0], [8, 1, 2], [0, 0, 0], [3, 2, 1]])
    part = take_rows(whole, chosen)
    assert part.stride() == 3
    for place, name in enumerate(WIDTHS):
        for new, old in enumerate(chosen[place].tolist()):
            for found, expected in zip(
                part.bags()[name][new], whole.bags()[name][old], strict=True
            ):
                assert (found is None and expected is None) or torch.equal(found, expected)


def test_an_example_keeps_few_rows_of_a_jagged_batch():
    (dense, sparse), _ = few_rows((batch(32), {}))
    assert is_jagged(sparse)
    assert len(dense) == sparse.stride() == 8
    (dense, sparse), _ = few_rows(((torch.randn(5, 2), jagged(WIDTHS, 32)), {}))
    assert (len(dense), sparse.stride()) == (5, 32)


# Collections


def test_a_feature_of_several_tables_is_named_with_its_table_while_it_has_several():
    tables = [Config("a", 2, 9, ["x", "y"]), Config("b", 3, 9, ["x"])]
    assert [bag.name for bag in bags_of(tables)] == ["x@a", "y", "x@b"]
    (left,) = kept_configs(tables, ["x@b"])
    assert left.feature_names == ["x"]
    assert [bag.name for bag in bags_of([left])] == ["x"]
    assert tables[0].feature_names == ["x", "y"]


def test_fields_of_a_collection_are_known_before_the_first_batch():
    model = Model()
    plugin = tl.attach(model, at=TABLES, side="output")
    assert dict(zip(plugin.fields.names, plugin.fields.widths, strict=True)) == WIDTHS
    assert "torchleap.theta" in model.state_dict()


def test_gates_survive_that_the_collection_is_replaced_by_a_sharded_one():
    model = Model()
    plugin = trained(model, tl.attach(model, at=TABLES, side="output"))
    dense, sparse = batch(7)
    before = model.eval()(dense, sparse)
    model.tables = Sharded(model.tables)
    assert torch.equal(model(dense, sparse), before)
    steps = int(plugin.gates.steps[0])
    model.train()(dense, sparse)
    assert int(plugin.gates.steps[0]) == steps + 1
    assert not model.tables._forward_hooks
    with pytest.raises(
        tl.SurgeryError,
        match="tables is sharded over several ranks. Build the model again without sharding",
    ):
        plugin.prune(plugin.select())
    plugin.detach()
    assert not torch.equal(model.eval()(dense, sparse), before)
    assert not [name for name in model.state_dict() if "torchleap" in name]


def test_a_pass_that_fails_leaves_no_hook_behind():
    model = Model()
    tl.attach(model, at=TABLES, side="output")
    with pytest.raises(RuntimeError):
        model(torch.randn(3, 5), jagged(WIDTHS, 3))
    assert not model.tables._forward_hooks


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_gates_of_their_own(copied):
    model = Model()
    plugin = tl.attach(model, at=TABLES, side="output")
    twin = copied(model)
    twin(*batch())
    assert int(plugin.gates.steps[0]) == 0
    assert int(tl.attached(twin).gates.steps[0]) == 1


def test_gates_find_a_place_beside_a_collection_in_a_sequential():
    class Values(nn.Module):
        def forward(self, value):
            return value.values()

    model = nn.Sequential(Collection(configs()), Values(), nn.Linear(10, 1))
    plugin = tl.attach(model, at="0", side="output")
    assert model(jagged(WIDTHS, 5)).shape == (5, 1)
    assert int(plugin.gates.steps[0]) == 1
    with pytest.raises(tl.AttachError, match="at='0' stands alone in a container"):
        tl.attach(nn.Sequential(Collection(configs())), at="0", side="output")


def test_tables_on_the_meta_device_do_not_take_the_gates_along():
    model = Model()
    model.tables = Collection(configs(), device=torch.device("meta"))
    assert tl.attach(model, at=TABLES, side="output").gates.theta.device.type == "cpu"


def test_ids_cannot_be_gated_and_a_sharded_collection_needs_fields():
    with pytest.raises(tl.AttachError, match="which receives ids. Use side='output'"):
        tl.attach(Model(), at=TABLES)
    model = Model()
    model.tables = Sharded(model.tables)
    with pytest.raises(
        tl.AttachError, match="is sharded, and does not name its fields. Give fields="
    ):
        tl.attach(model, at=TABLES, side="output")
    assert not list(model._forward_pre_hooks)


def test_an_example_tells_the_fields_of_a_sharded_collection():
    model = Model()
    model.tables = Sharded(model.tables)
    plugin = tl.attach(model, at=TABLES, side="output", example=batch(4))
    assert plugin.fields.names == ("f3", "f2", "f1", "f0")
    model(*batch())
    assert int(plugin.gates.steps[0]) == 1


def test_a_sharded_collection_in_ddp_is_refused_with_the_cure():
    model = Model()
    model.tables = Sharded(model.tables)
    model._ddp_params_and_buffers_to_ignore = set()  # as DistributedModelParallel leaves it
    with pytest.raises(tl.AttachError, match="Attach before DistributedModelParallel"):
        tl.attach(model, WIDTHS, at=TABLES, side="output")


def test_a_field_that_already_has_our_name_is_told():
    model = Model()
    model.torchleap = nn.Identity()
    with pytest.raises(tl.AttachError, match="has an attribute 'torchleap' already"):
        tl.attach(model, at=TABLES, side="output")


def test_held_out_rows_teach_the_gates_and_send_no_gradient_to_the_tables():
    model = Model()
    plugin = trained(model, tl.attach(model, at=TABLES, side="output"))
    seen = []
    model.tables.register_forward_hook(
        lambda _, args, output: seen.append(output.values().register_hook(seen.append))
    )
    for parameter in model.tables.parameters():
        parameter.requires_grad_(True)
    optimizer, before = plugin.optimizer(), plugin.gates.theta.detach().clone()
    with plugin.held_out():
        for parameter in model.tables.parameters():
            parameter.requires_grad_(True)  # as those of a sharded table do, whatever they are told
        dense, sparse = batch()
        model(dense, sparse).square().mean().backward()
        optimizer.step()
    assert not torch.equal(before, plugin.gates.theta)
    assert not [found for found in seen if isinstance(found, torch.Tensor)]


@pytest.mark.parametrize(
    ("theta", "left"), [((1, -1, -1, 1), [["t0"], ["t3"]]), ((-1, 1, -1, -1), [["t1"], None])]
)
def test_two_collections_are_gated_together(theta, left):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Collection(configs()[:2]), Collection(configs()[2:])
            self.over = nn.Linear(10, 1)

        def forward(self, sparse):
            return self.over(
                torch.cat([self.two(sparse).values(), self.one(sparse).values()], dim=1)
            )

    model = Two()
    plugin = tl.attach(model, WIDTHS, at=["one", "two"], side="output")
    for _ in range(3):
        model(jagged(WIDTHS, 16))
    assert plugin.gates.steps.tolist() == [3] * 4
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.tensor(theta))
    selection = plugin.select()
    small, sparse = plugin.prune(selection), jagged(WIDTHS, 5)
    with plugin.masked(selection):
        assert torch.allclose(small(sparse), model.eval()(sparse), atol=1e-6)
    assert [tables and list(tables.embedding_bags) for tables in (small.one, small.two)] == left


# Surgery


def test_tables_of_dropped_features_leave_the_collection_and_the_over_arch_narrows():
    model = Model()
    plugin = trained(model, tl.attach(model, at=TABLES, side="output"))
    selection = plugin.select(share=0.5)
    plan, small = plugin.plan(selection), plugin.prune(selection)
    dense, sparse = batch(11)
    with plugin.masked(selection), torch.no_grad():
        expected = model.eval()(dense, sparse)
        assert torch.allclose(small.eval()(dense, sparse), expected, atol=1e-6)
    kept = [f"t{list(WIDTHS).index(name)}" for name in selection.kept]
    assert (
        [config.name for config in small.tables.embedding_bag_configs()]
        == kept
        == list(small.tables.embedding_bags)
    )
    assert small.over[0].in_features == 2 + selection.dims
    assert not plan.notes
    assert {cut.path for cut in plan.cuts if cut.after == "removed"} == {
        f"tables.embedding_bags.t{list(WIDTHS).index(name)}" for name in selection.dropped
    }
    assert [str(unread) for unread in plan.unread] == [
        f"sparse[{name!r}]" for name in selection.dropped
    ]
    assert list(model.tables.embedding_bags) == ["t0", "t1", "t2", "t3"]


def test_a_pruned_model_takes_batches_without_the_dropped_features_and_can_be_sharded():
    model = Model()
    plugin = trained(model, tl.attach(model, at=TABLES, side="output"))
    selection = plugin.select(share=0.5)
    small = plugin.prune(selection).eval()
    dense, sparse = torch.randn(9, 2), jagged(selection.kept, 9)
    output = small(dense, sparse)
    for promise in (Lazy, Promise):
        twin = copy.deepcopy(small)
        twin.tables = Sharded(twin.tables, promise)
        assert torch.equal(twin(dense, sparse), output)


def test_a_table_stays_while_one_of_its_features_is_kept_and_names_follow():
    tables = [Config("a", 3, 20, ["x", "y"]), Config("b", 2, 20, ["x"]), Config("c", 4, 20, ["z"])]
    names = ("x@a", "y", "x@b", "z")
    model = Model(tables)
    plugin = trained(model, tl.attach(model, at=TABLES, side="output"), names=("x", "y", "z"))
    for kept in (["y", "x@b"], ["x@a"], ["x@a", "x@b", "z"], list(names)):
        with torch.no_grad():
            plugin.gates.theta.copy_(
                torch.tensor([0.6 if name in kept else -1.0 for name in names])
            )
        selection = plugin.select()
        assert list(selection.kept) == sorted(kept, key=names.index)
        small = plugin.prune(selection).eval()
        dense, sparse = batch(6, ("x", "y", "z"))
        with plugin.masked(selection):
            assert torch.allclose(small(dense, sparse), model.eval()(dense, sparse), atol=1e-6)
        wanted = {(bag.table, bag.feature) for bag in bags_of(tables) if bag.name in kept}
        assert {
            (c.name, f) for c in small.tables.embedding_bag_configs() for f in c.feature_names
        } == wanted


def test_tables_that_two_collections_share_stay_with_a_note():
    class Shares(Model):
        def forward(self, dense, sparse):
            return super().forward(dense, sparse) + self.other(sparse).values().mean()

    model = Model()
    model.other = Collection(configs())
    for name in model.tables.embedding_bags:
        model.other.embedding_bags[name] = model.tables.embedding_bags[name]
    forward = Model.forward
    model.__class__ = type(
        "Shares",
        (Model,),
        {"forward": lambda self, d, s: forward(self, d, s) + self.other(s).values().mean()},
    )
    plugin = trained(model, tl.attach(model, at=TABLES, side="output"))
    selection = plugin.select(share=0.5)
    plan, small = plugin.plan(selection), plugin.prune(selection).eval()
    dense, sparse = batch(6)
    with plugin.masked(selection):
        assert torch.allclose(small(dense, sparse), model.eval()(dense, sparse), atol=1e-6)
    assert any("its tables stay" in note for note in plan.notes)
    assert len(small.tables.embedding_bags) == 4


def test_the_input_of_an_over_arch_is_gated_and_pruned():
    class Over(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(10, 1)

        def forward(self, value):
            return self.linear(torch.cat([value.to_dict()[name] for name in WIDTHS], dim=1))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables, self.over = Collection(configs()), Over()

        def forward(self, dense, sparse):
            return self.over(self.tables(sparse))

    model = Outer()
    order = ["f2", "f0", "f3", "f1"]
    plugin = trained(model, tl.attach(model, {name: WIDTHS[name] for name in order}, at="over"))
    selection = plugin.select(share=0.5)
    small = plugin.prune(selection).eval()
    dense, sparse = batch(6)
    with plugin.masked(selection):
        assert torch.allclose(small(dense, sparse), model.eval()(dense, sparse), atol=1e-6)
    assert len(small.tables.embedding_bags) == len(selection.kept) < 4
    assert small.over.linear.in_features == selection.dims


def test_where_code_cannot_be_followed_constants_are_fed_and_tables_go():
    class Decides(Model):
        def forward(self, dense, sparse):
            value = self.tables(sparse)
            if value.values().sum() > 1e9:
                return dense
            return super().forward(dense, sparse)

    model = Decides()
    plugin = tl.attach(model, WIDTHS, at=TABLES, side="output")
    trained(model, plugin)
    selection = plugin.select(share=0.5)
    small = plugin.prune(selection).eval()
    dense, sparse = batch(6)
    with plugin.masked(selection):
        assert torch.allclose(small(dense, sparse), model.eval()(dense, sparse), atol=1e-6)
    assert sum(p.numel() for p in small.tables.parameters()) < sum(
        p.numel() for p in model.tables.parameters()
    )


def test_code_that_is_not_followed_receives_a_whole_keyed_tensor():
    class Decides(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(10, 1)

        def forward(self, value):
            return self.linear(value.values()) if value.values().sum() < 1e9 else value.values()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables, self.over = Collection(configs()), Decides()

        def forward(self, dense, sparse):
            return self.over(self.tables(sparse))

    model = Outer()
    plugin = trained(model, tl.attach(model, at=TABLES, side="output"))
    selection = plugin.select(share=0.5)
    plan, small = plugin.plan(selection), plugin.prune(selection).eval()
    dense, sparse = batch(6)
    with plugin.masked(selection):
        assert torch.allclose(small(dense, sparse), model.eval()(dense, sparse), atol=1e-6)
    assert len(small.tables.embedding_bags) == len(selection.kept)
    assert any("constants fed (exact)" in note for note in plan.notes)


@pytest.mark.parametrize("fill", ["mean", "zero"])
def test_interactions_between_dropped_fields_leave_the_over_arch(fill):
    class Dots(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = Collection([Config(f"t{i}", 4, 20, [f"f{i}"]) for i in range(4)])
            self.over = nn.Linear(16, 1)

        def forward(self, dense, sparse):
            tokens = self.tables(sparse).values().reshape(-1, 4, 4)
            return self.over(torch.bmm(tokens, tokens.transpose(1, 2)).flatten(1))

    model = Dots()
    plugin = trained(model, tl.attach(model, at=TABLES, side="output"))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.tensor([1.0, -1.0, 0.5, -1.0]))
    selection = plugin.select()
    small = plugin.prune(selection, fill=fill).eval()
    assert small.over.in_features == (16 - 4 if fill == "mean" else 4)
    if fill == "mean":
        dense, sparse = batch(6)
        with plugin.masked(selection):
            assert torch.allclose(small(dense, sparse), model.eval()(dense, sparse), atol=1e-6)


def test_values_are_read_in_the_order_of_the_names():
    value = keyed()
    order = ["f3", "f1"]
    expected = torch.cat([blocks_of(value, "")[name] for name in order], dim=1)
    assert torch.equal(keyed_values(value, order), expected)
    assert keyed_values(value, list(WIDTHS)) is value.values()
