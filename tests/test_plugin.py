import copy
import io
import pickle
import shutil
from types import MappingProxyType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import torchleap as tl
from torchleap import AttachError, FieldError, LeAP, SelectionError

FIELDS = {"user_id": 4, "age": 1, "clicks": 3}


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))


class WideAndDeep(nn.Module):
    """One concatenation, read by two branches."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(10, width) for width in FIELDS.values()])
        self.wide = nn.Linear(8, 1)
        self.deep = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, ids):
        x = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], dim=1)
        return self.wide(x) + self.deep(x)


class TwoTowers(nn.Module):
    """Two inputs, each with columns of its own."""

    def __init__(self):
        super().__init__()
        self.user = nn.Linear(5, 4)
        self.item = nn.Linear(3, 4)

    def forward(self, x):
        return (self.user(x[:, :5]) * self.item(x[:, 5:])).sum(1, keepdim=True)


class ByName(nn.Module):
    """Reads a dict of fields."""

    def __init__(self):
        super().__init__()
        self.tower = Tower()

    def forward(self, batch):
        return self.tower(batch)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, batch):
        return self.linear(torch.cat([batch["user_id"], batch["age"].reshape(-1, 1), batch["clicks"]], 1))


def batch_by_name(rows=16):
    return {"user_id": torch.randn(rows, 4), "age": torch.randn(rows), "id": torch.arange(rows), "clicks": torch.randn(rows, 3)}


def train(model, plugin, steps=60, lr=2e-2, make=lambda: torch.randn(32, 8)):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        x = make()
        optimizer.zero_grad()
        (functional.mse_loss(model(x)[:, 0], x[:, 4]) + plugin.penalty()).backward()
        optimizer.step()


class Record(nn.Module):
    """Keeps what it is called with, and every place that can be a site."""

    def __init__(self):
        super().__init__()
        self.first = nn.Identity()
        self.second = nn.Identity()

    def forward(self, x):
        return self.second(self.first(x))


# Where the gates sit


@pytest.mark.parametrize(
    ("at", "side"), [("", "input"), ("", "output"), ("first", "input"), ("first", "output"), ("second", "input")]
)
def test_any_named_submodule_at_either_side(at, side):
    model = Record()
    plugin = tl.attach(model, FIELDS, at=at, side=side, init=-20.0, seed=0)
    alone = LeAP(FIELDS, init=-20.0, seed=0)
    x = torch.randn(16, 8)
    assert torch.equal(model(x), alone(x))
    assert not torch.equal(model(x), x)
    plugin.detach()
    assert torch.equal(model(x), x)


@given(
    widths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    rows=st.integers(2, 20),
    kind=st.sampled_from(["columns", "fields by width", "dict", "dict without fields"]),
    side=st.sampled_from(["input", "output"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_whatever_arrives_is_mixed_as_the_gates_alone_would(widths, rows, kind, side, dtype, seed):
    if kind == "fields by width":
        widths = [widths[0]] * len(widths)
    fields = {f"f{i}": width for i, width in enumerate(widths)}
    x = torch.randn(rows, sum(widths), generator=torch.Generator().manual_seed(seed)).to(dtype)
    expected = LeAP(fields, init=0.1, seed=seed)(x)
    model = Record()
    tl.attach(model, None if kind == "dict without fields" else fields, at="first", side=side, init=0.1, seed=seed)
    if kind.startswith("dict"):
        output = torch.cat(list(model(dict(zip(fields, x.split(widths, dim=1), strict=True))).values()), dim=1)
    else:
        output = model(x.unflatten(1, (len(widths), -1)) if kind == "fields by width" else x).flatten(1)
    assert output.dtype == dtype
    assert torch.equal(output, expected)


def test_keyword_arguments_are_gated_too():
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Record()

        def forward(self, x):
            return self.inner(x=x)

    model = Keywords()
    tl.attach(model, FIELDS, at="inner", init=-20.0, seed=0)
    x = torch.randn(16, 8)
    assert torch.equal(model(x), LeAP(FIELDS, init=-20.0, seed=0)(x))


def test_a_tensor_of_fields_by_width():
    model = Record()
    tl.attach(model, {"a": 4, "b": 4}, at="first", init=-20.0, seed=0)
    x = torch.randn(16, 2, 4)
    assert torch.equal(model(x), LeAP({"a": 4, "b": 4}, init=-20.0, seed=0)(x))


@pytest.mark.parametrize("at", ["", "tower"])
@pytest.mark.parametrize("given", ["fields", "example", "nothing"])
def test_a_dict_names_its_own_fields(at, given):
    model = ByName()
    batch = batch_by_name()
    plugin = tl.attach(
        model, FIELDS if given == "fields" else None, at=at, example=batch if given == "example" else None, init=0.0, seed=0
    )
    if given == "nothing":
        assert "fields come from the first batch" in str(plugin)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = model.tower.linear.weight.detach().clone()
    loss = model(batch).square().mean() + plugin.penalty()
    loss.backward()
    optimizer.step()
    assert plugin.fields == tl.Fields(FIELDS)
    assert plugin.gates.moved
    assert not torch.equal(before, model.tower.linear.weight)


def test_a_gated_dict_keeps_its_order_its_shapes_and_its_other_entries():
    model = Record()
    tl.attach(model, at="first", init=-20.0, seed=0)
    batch = batch_by_name()
    output = model(batch)
    assert list(output) == list(batch)
    assert output["age"].shape == (16,)
    assert output["id"] is batch["id"]
    joined = torch.cat([batch["user_id"], batch["age"][:, None], batch["clicks"]], 1)
    mixed = LeAP(FIELDS, init=-20.0, seed=0)(joined)
    assert torch.equal(torch.cat([output["user_id"], output["age"][:, None], output["clicks"]], 1), mixed)
    assert batch["user_id"] is not output["user_id"]


def test_a_dict_subclass_stays_one_and_a_checkpoint_brings_the_fields():
    from collections import OrderedDict

    model, other = Record(), Record()
    tl.attach(model, at="first", init=0.0, seed=0)
    model(OrderedDict(batch_by_name()))
    late = tl.attach(other, at="first", init=0.0, seed=0)
    other.load_state_dict(model.state_dict())
    assert late.fields == tl.Fields(FIELDS)
    batch = OrderedDict(batch_by_name())
    output = other(batch)
    assert type(output) is OrderedDict
    assert torch.equal(output["clicks"], model(batch)["clicks"])


def test_one_tensor_that_two_branches_read_is_gated_once():
    model = WideAndDeep()
    plugin = tl.attach(model, FIELDS, at=["wide", "deep"], init=-20.0, seed=0)
    seen = {}
    model.wide.register_forward_pre_hook(lambda m, args: seen.update(wide=args[0]))
    model.deep.register_forward_pre_hook(lambda m, args: seen.update(deep=args[0]))
    for step in range(3):
        model(torch.randint(0, 10, (16, 3)))
        assert seen["wide"] is seen["deep"]
        assert plugin.gates.steps.tolist() == [step + 1] * 3
    assert plugin.gates.passed == {}


def test_a_fixed_batch_is_still_permuted_anew_at_each_pass():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Identity(), nn.Identity()

        def forward(self, x):
            return self.a(x), self.b(x)

    model = Branches()
    tl.attach(model, FIELDS, at=["a", "b"], init=-20.0, seed=0)
    x = torch.randn(16, 8)
    first, again = model(x), model(x)
    assert first[0] is first[1]
    assert not torch.equal(first[0], again[0])


@pytest.mark.parametrize("with_example", [False, True])
def test_several_sites_are_gated_together_as_one_fields(with_example):
    model = TwoTowers()
    x = torch.randn(16, 8)
    plugin = tl.attach(model, FIELDS, at=["user", "item"], example=x if with_example else None, init=-20.0, seed=0, momentum=0.0)
    seen = {}
    model.user.register_forward_pre_hook(lambda m, args: seen.update(user=args[0]))
    model.item.register_forward_pre_hook(lambda m, args: seen.update(item=args[0]))
    model(x)
    alone = LeAP(FIELDS, init=-20.0, seed=0, momentum=0.0)
    assert torch.equal(torch.cat([seen["user"], seen["item"]], 1), alone(x))
    torch.testing.assert_close(plugin.gates.divergences(), alone.divergences())
    torch.testing.assert_close(plugin.gates.means(), x.mean(0))
    assert list(plugin.scores()) == list(FIELDS)


def test_several_sites_in_another_order_need_an_example():
    x = torch.randn(16, 8)
    model = TwoTowers()
    tl.attach(model, {"clicks": 3, "user_id": 4, "age": 1}, at=["item", "user"], init=-20.0)
    with pytest.raises(AttachError, match="in the order in which the model reaches them, or give example="):
        model(x)
    model = TwoTowers()
    plugin = tl.attach(model, {"clicks": 3, "user_id": 4, "age": 1}, at=["item", "user"], example=x, momentum=0.0)
    model(x)
    torch.testing.assert_close(plugin.gates.means(), torch.cat([x[:, 5:], x[:, :5]], 1).mean(0))


def test_several_dict_sites_learn_their_fields_from_an_example():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Identity(), nn.Identity()

        def forward(self, batch):
            return self.user({"u": batch["u"]}), self.item({"i": batch["i"], "j": batch["j"]})

    batch = {"u": torch.randn(8, 2), "i": torch.randn(8, 3), "j": torch.randn(8)}
    with pytest.raises(AttachError, match="Several sites need fields="):
        tl.attach(Towers(), at=["user", "item"])
    model = Towers()
    plugin = tl.attach(model, at=["user", "item"], example=batch, momentum=0.0)
    assert plugin.fields == tl.Fields({"u": 2, "i": 3, "j": 1})
    model(batch)
    torch.testing.assert_close(plugin.gates.means()[5], batch["j"].mean())


def test_a_model_in_eval_stays_as_it_is_until_it_is_trained():
    model = mlp().eval()
    x = torch.randn(1, 8)
    before = model(x)
    plugin = tl.attach(model, FIELDS, at="0")
    assert torch.equal(model(x), before)
    assert plugin.gates.steps.tolist() == [0, 0, 0]
    model.train()
    assert plugin.gates.training


def test_the_example_leaves_the_model_as_it_was():
    model = mlp()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    plugin = tl.attach(model, FIELDS, at="0", example=torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))
    plugin.detach()
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_one_memory_in_two_shapes_is_gated_once():
    class FactorizationAndDeep(nn.Module):
        def __init__(self):
            super().__init__()
            self.fm, self.deep = nn.Identity(), nn.Identity()

        def forward(self, x):
            return self.fm(x), self.deep(x.flatten(1))

    model = FactorizationAndDeep()
    plugin = tl.attach(model, {"a": 4, "b": 4}, at=["fm", "deep"], init=-20.0)
    fm, deep = model(torch.randn(8, 2, 4))
    assert torch.equal(fm.flatten(1), deep)
    assert plugin.gates.steps.tolist() == [1, 1]


def test_dropout_between_two_branches_is_not_taken_for_the_same_tensor():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.deep, self.dropout = nn.Identity(), nn.Identity(), nn.Dropout(0.5)

        def forward(self, x):
            return self.wide(x) + self.deep(self.dropout(x))

    for at in (["wide", "deep"], ["deep", "wide"]):
        model = Dropped()
        tl.attach(model, FIELDS, at=at, example=torch.randn(8, 8))
        with pytest.raises(AttachError, match="Dropout, a copy or a change in place"):
            model(torch.randn(8, 8))


def between(change):
    """Two branches with something that happens to their tensor in between."""

    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.deep = nn.Identity(), nn.Identity()

        def forward(self, x):
            return self.wide(x), self.deep(change(x))

    return Between()


@pytest.mark.parametrize("change", [lambda x: x.mul_(2), lambda x: x.detach(), lambda x: x.clone()])
def test_a_tensor_that_changes_between_two_branches_is_not_shared(change):
    model = between(change)
    tl.attach(model, FIELDS, at=["wide", "deep"])
    with pytest.raises((AttachError, FieldError), match="16 with those of the sites before"):
        model(torch.randn(4, 8).requires_grad_() * 1)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.flatten(1), lambda x: x.view(x.shape), lambda x: x[:, :]])
@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("strided", [False, True])
def test_views_of_the_whole_tensor_are_shared_in_eval_too(view, rows, strided):
    model = between(view).eval()
    tl.attach(model, FIELDS, at=["wide", "deep"])
    with torch.inference_mode():
        wide, deep = model(torch.randn(rows, 9)[:, :8] if strided else torch.randn(rows, 8))
    assert torch.equal(wide, deep)


def test_a_mixture_of_training_is_not_served_in_eval():
    model = between(lambda x: x)
    tl.attach(model, FIELDS, at=["wide", "deep"], init=0.0, example=torch.randn(4, 8))
    x = torch.randn(4, 8)
    model.wide(x)  # called by itself, so the pass does not end
    with pytest.raises(AttachError, match="but now another one"):
        model.eval().deep(x)


def test_a_submodule_with_two_names_is_one_site():
    model = nn.Module()
    model.a = model.b = nn.Linear(8, 1)
    with pytest.raises(AttachError, match="names one submodule twice"):
        tl.attach(model, FIELDS, at=["a", "b"])


@pytest.mark.parametrize("at", [["wide", "deep"], ["deep", "wide"]])
@pytest.mark.parametrize("with_example", [False, True])
def test_branches_may_be_listed_in_any_order(at, with_example):
    model = WideAndDeep()
    plugin = tl.attach(model, FIELDS, at=at, example=torch.zeros(4, 3, dtype=torch.int64) if with_example else None)
    for _ in range(2):
        model(torch.randint(0, 10, (16, 3)))
    assert plugin.gates.steps.tolist() == [2, 2, 2]


def test_several_dict_sites_must_each_have_neighbouring_fields():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Identity(), nn.Identity()

        def forward(self, batch):
            return self.user({"a": batch["a"], "c": batch["c"]}), self.item({"b": batch["b"]})

    batch = {name: torch.randn(8, 2) for name in "abc"}
    model = Towers()
    tl.attach(model, {"a": 2, "b": 2, "c": 2}, at=["user", "item"])
    with pytest.raises(FieldError, match="not neighbours"):
        model(batch)
    with pytest.raises(FieldError, match="not neighbours"):
        tl.attach(Towers(), {"a": 2, "b": 2, "c": 2}, at=["user", "item"], example=batch)


def test_a_site_that_is_never_reached_does_not_hold_up_the_others():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Linear(5, 1), nn.Linear(3, 1)

        def forward(self, x):
            return self.user(x[:, :5])

    model = Sometimes()
    plugin = tl.attach(model, FIELDS, at=["user", "item"], warmup=2)
    optimizer = plugin.optimizer(lr=0.1)
    for _ in range(4):
        model(torch.randn(8, 8)).square().mean().backward()
        optimizer.step()
    assert plugin.gates.moved


def test_the_first_batch_may_come_in_inference_mode():
    model = ByName()
    plugin = tl.attach(model, at="tower")
    with torch.inference_mode():
        model.eval()(batch_by_name())
    loss = plugin.penalty() + model.train()(batch_by_name()).square().mean()
    loss.backward()
    assert plugin.gates.theta.grad is not None


def test_the_penalty_may_be_asked_for_before_the_first_batch():
    model = ByName()
    plugin = tl.attach(model, at="tower")
    (plugin.penalty() + model(batch_by_name()).square().mean()).backward()
    assert plugin.gates.theta.grad.shape == (3,)


def test_keyword_calls_gate_the_first_parameter():
    class Masked(nn.Module):
        def forward(self, x, mask):
            return x * mask

    model = Masked()
    plugin = tl.attach(nn.ModuleDict({"m": model}), FIELDS, at="m", momentum=0.0)
    x = torch.randn(8, 8)
    model(mask=torch.zeros(8, 8), x=x)
    torch.testing.assert_close(plugin.gates.means(), x.mean(0))
    plugin.detach()

    class Caller(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Masked()

        def forward(self, x):
            return self.inner(mask=torch.zeros(8, 1), x=x)

    tl.attach(Caller(), FIELDS, at="inner", example=x)  # the example is read in the same way


# Containers


@pytest.mark.parametrize("at", ["", "0", "1"])
def test_a_sequential_neither_runs_nor_sees_the_gates_as_a_layer(at):
    model = nn.Sequential(nn.Sequential(nn.Identity(), nn.Identity()), nn.Sequential(nn.Identity()))
    plugin = tl.attach(model, FIELDS, at=at, init=-20.0, seed=0)
    x = torch.randn(16, 8)
    assert torch.equal(model(x), LeAP(FIELDS, init=-20.0, seed=0)(x))  # once, not twice
    assert plugin.gates.steps.tolist() == [1, 1, 1]
    assert (len(model), len(model[0]), len(model[1])) == (2, 2, 1)
    assert [type(layer) for layer in model[0]] == [nn.Identity, nn.Identity]
    assert isinstance(model[-1][-1], nn.Identity)


def test_module_lists_and_dicts_that_hold_a_site_do_not_see_the_gates():
    model = WideAndDeep()
    tl.attach(model, {"user_id": 4}, at="tables.0", side="output")
    assert len(model.tables) == 3
    model(torch.randint(0, 10, (8, 3)))


@pytest.mark.parametrize("container", [nn.ModuleList([nn.Linear(8, 1)]), nn.ModuleDict({"a": nn.Linear(8, 1)})])
def test_a_list_that_is_never_called_cannot_be_a_site(container):
    model = nn.Module()
    model.towers = container
    with pytest.raises(AttachError, match=r"never called itself. Choose one of its members: towers\.[0a]"):
        tl.attach(model, FIELDS, at="towers")


@pytest.mark.parametrize("kind", [nn.ModuleList, nn.ModuleDict, nn.Sequential])
def test_a_container_with_a_forward_of_its_own_is_a_model_like_any_other(kind):
    class Container(kind):
        def forward(self, x):
            for layer in self.children():
                x = layer(x)
            return x

    layers = [nn.Identity(), nn.Identity()]
    model = (
        Container({"a": layers[0], "b": layers[1]})
        if kind is nn.ModuleDict
        else Container(layers)
        if kind is nn.ModuleList
        else Container(*layers)
    )
    plugin = tl.attach(model, FIELDS, init=-20.0, seed=0)
    x = torch.randn(16, 8)
    assert torch.equal(model(x), LeAP(FIELDS, init=-20.0, seed=0)(x))
    assert len(model) == 2
    plugin.detach()
    assert torch.equal(model(x), x)


def test_an_empty_sequential_cannot_hold_the_gates():
    with pytest.raises(AttachError, match=r"nn.Identity\(\)"):
        tl.attach(nn.Sequential(), FIELDS)


# Reversible, copyable, compilable


@pytest.mark.parametrize("at", ["", "0", ["0", "4"]])
def test_detach_restores_the_exact_model(at):
    model = mlp()
    keys, text = list(model.state_dict()), repr(model)
    fields = FIELDS if isinstance(at, str) else {**FIELDS, "hidden": 16}
    plugin = tl.attach(model, fields, at=at)
    assert list(model.state_dict()) != keys
    assert "LeAP" in repr(model)
    plugin.detach()
    assert list(model.state_dict()) == keys
    assert repr(model) == text
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs"):
            assert not getattr(module, kind), kind
    plugin.detach()  # a second time changes nothing
    tl.attach(model, FIELDS, at="0").detach()


def test_two_sites_may_share_the_layer_that_holds_the_gates():
    shared = nn.Identity()

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.Sequential(shared, nn.Linear(8, 1))
            self.deep = nn.Sequential(shared, nn.Linear(8, 1))

        def forward(self, x):
            return self.wide(x) + self.deep(x)

    model = Branches()
    keys = list(model.state_dict())
    plugin = tl.attach(model, FIELDS, at=["wide", "deep"])
    model(torch.randn(8, 8))
    plugin.detach()
    assert list(model.state_dict()) == keys
    model(torch.randn(8, 8))


def test_an_old_handle_leaves_a_newer_plugin_alone():
    model = mlp()
    old = tl.attach(model, FIELDS, at="0")
    old.detach()
    new = tl.attach(model, FIELDS, at="0")
    old.detach()
    assert tl.attached(model).gates is new.gates


def test_a_part_of_a_larger_model_can_be_detached_from_there():
    inner = WideAndDeep()
    tl.attach(inner, FIELDS, at=["wide", "deep"])
    whole = copy.deepcopy(nn.Sequential(inner))
    tl.attached(whole).detach()
    whole(torch.randint(0, 10, (8, 3)))
    assert not any(module._forward_hooks for module in whole.modules())


def test_a_replaced_layer_says_so():
    model = mlp()
    plugin = tl.attach(model, FIELDS)
    model[0] = nn.Linear(8, 16)
    with pytest.raises(AttachError, match="as if a layer was replaced"):
        model(torch.randn(8, 8))
    plugin.detach()
    model(torch.randn(8, 8))


def test_detach_leaves_other_hooks_alone():
    model = mlp()
    calls = []
    model[0].register_forward_pre_hook(lambda m, args: calls.append(1))
    tl.attach(model, FIELDS, at="0").detach()
    model(torch.randn(4, 8))
    assert calls == [1]


def test_a_second_attach_is_refused():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0")
    with pytest.raises(AttachError, match="has gates already, at='0'"):
        tl.attach(model, FIELDS, at="")
    plugin.detach()
    tl.attach(model, FIELDS, at="")


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize(("build", "at"), [(mlp, "0"), (mlp, ""), (WideAndDeep, ["wide", "deep"])])
def test_copies_have_gates_of_their_own(clone, build, at):
    model = build()
    plugin = tl.attach(model, FIELDS, at=at, init=0.0, seed=0)
    make = (lambda: torch.randint(0, 10, (16, 3))) if build is WideAndDeep else (lambda: torch.randn(16, 8))
    model(make())
    twin = clone(model)
    twin_plugin = tl.attached(twin)
    assert twin_plugin.gates is not plugin.gates
    x = make()
    torch.manual_seed(0)
    expected = model(x)
    torch.manual_seed(0)
    assert torch.equal(twin(x), expected)
    twin(x)
    assert plugin.gates.steps.tolist() == [2, 2, 2]
    assert twin_plugin.gates.steps.tolist() == [3, 3, 3]
    twin_plugin.detach()
    with pytest.raises(AttachError, match="no gates"):
        tl.attached(twin)
    model(x)
    assert plugin.gates.steps.tolist() == [3, 3, 3]


def test_hooks_added_to_an_unpickled_model_do_not_displace_the_gates():
    model = mlp()
    tl.attach(model, FIELDS, at="0", seed=0)
    twin = pickle.loads(pickle.dumps(model))
    for _ in range(50):
        twin[0].register_forward_pre_hook(lambda m, args: None)
    twin(torch.randn(8, 8))
    assert tl.attached(twin).gates.steps.tolist() == [1, 1, 1]


def replicate(network):
    """What nn.DataParallel does, on one device: shallow copies with plain tensors in place of parameters."""
    replicas = {module: module._replicate_for_data_parallel() for module in network.modules()}
    for module, replica in replicas.items():
        for name, child in module._modules.items():
            replica._modules[name] = None if child is None else replicas[child]
        for name, parameter in module._parameters.items():
            setattr(replica, name, None if parameter is None else parameter * 1)
        for name, buffer in module._buffers.items():
            replica._buffers[name] = None if buffer is None else buffer.clone()
    return replicas[network]


@pytest.mark.parametrize(("build", "at"), [(mlp, "0"), (WideAndDeep, ["wide", "deep"])])
def test_data_parallel_replicas_use_their_own_gates_and_gradients_arrive(build, at):
    model = build()
    plugin = tl.attach(model, FIELDS, at=at, init=0.0, seed=0)
    x = torch.randint(0, 10, (16, 3)) if build is WideAndDeep else torch.randn(16, 8)
    replica = replicate(model)
    replica(x).sum().backward()
    assert plugin.gates.theta.grad is not None
    assert plugin.gates.steps.tolist() == [0, 0, 0]
    assert tl.attached(replica).gates.steps.tolist() == [1, 1, 1]


def test_a_saved_state_dict_resumes_bit_for_bit():
    def build():
        torch.manual_seed(1)
        model = mlp()
        plugin = tl.attach(model, FIELDS, at="0", alpha=0.05, seed=3)
        return model, plugin, torch.optim.AdamW(plugin.parameter_groups(gate_lr=0.05), lr=1e-3)

    def steps(model, plugin, optimizer, first, count):
        for step in range(first, first + count):
            torch.manual_seed(step)  # for dropout and data
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            (model(x).square().mean() + plugin.penalty()).backward()
            optimizer.step()

    model, plugin, optimizer = build()
    steps(model, plugin, optimizer, 0, 4)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    steps(model, plugin, optimizer, 4, 4)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, resumed_plugin, resumed_optimizer = build()
    resumed.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    steps(resumed, resumed_plugin, resumed_optimizer, 4, 4)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    ("build", "at"),
    [(lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), "0"), (WideAndDeep, ["wide", "deep"])],
)
def test_a_compiled_model_trains_as_the_eager_one(backend, build, at):
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("torch.compile needs a C++ compiler")
    eager = build()
    twin = copy.deepcopy(eager)
    plugins = [tl.attach(model, FIELDS, at=at, alpha=0.05, seed=0) for model in (eager, twin)]
    compiled = torch.compile(twin, backend=backend, fullgraph=True)
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-2) for model in (eager, twin)]
    make = (lambda: torch.randint(0, 10, (16, 3))) if build is WideAndDeep else (lambda: torch.randn(16, 8))
    for _ in range(4):
        x = make()
        for run, plugin, optimizer in zip((eager, compiled), plugins, optimizers, strict=True):
            optimizer.zero_grad()
            (run(x).square().mean() + plugin.penalty()).backward()
            optimizer.step()
    assert plugins[1].gates.steps.tolist() == [4, 4, 4]
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(tensor, twin.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(compiled.eval()(x), eager.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_compiled_warm_up_is_the_eager_one():
    eager = nn.Sequential(nn.Linear(8, 1))
    twin = copy.deepcopy(eager)
    plugins = [tl.attach(model, FIELDS, at="0", alpha=0.05, warmup=20, seed=0) for model in (eager, twin)]
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    optimizers = [torch.optim.Adam(plugin.parameter_groups(gate_lr=0.1), lr=1e-2) for plugin in plugins]
    for _ in range(24):
        x = torch.randn(16, 8)
        for run, plugin, optimizer in zip((eager, compiled), plugins, optimizers, strict=True):
            optimizer.zero_grad()
            (run(x).square().mean() + plugin.penalty()).backward()
            optimizer.step()
    assert plugins[0].gates.moved
    torch.testing.assert_close(plugins[0].gates.theta, plugins[1].gates.theta)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_gates_follow_the_model_s_precision_but_not_below_float32(dtype):
    model = mlp().to(dtype)
    plugin = tl.attach(model, FIELDS, at="0")
    assert plugin.gates.theta.dtype == torch.promote_types(dtype, torch.float32)
    assert model(torch.randn(8, 8, dtype=dtype)).dtype == dtype


def test_autocast_trains():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    plugin = tl.attach(model, {"a": 4, "b": 4}, at="1", alpha=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(16, 8)).float().square().mean()
    (loss + plugin.penalty()).backward()
    assert plugin.gates.theta.grad.abs().sum() > 0


# Training the gates


def test_gates_learn_which_field_the_label_reads():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.05, seed=0)
    train(model, plugin, steps=150)
    scores = plugin.scores()
    assert scores["age"] > 0.9
    assert scores["user_id"] < 0.1
    assert scores["clicks"] < 0.1
    assert plugin.select().kept == ("age",)


def test_parameter_groups_give_the_gates_a_learning_rate_of_their_own_and_miss_nothing():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0")
    optimizer = torch.optim.AdamW(plugin.parameter_groups(gate_lr=0.5), lr=1e-3, weight_decay=0.1)
    first, second = optimizer.param_groups
    assert (first["lr"], first["weight_decay"]) == (1e-3, 0.1)
    assert (second["lr"], second["weight_decay"]) == (0.5, 0.0)
    assert [id(p) for p in second["params"]] == [id(plugin.gates.theta)]
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}


def snapshot(model, plugin):
    return {n: t.clone() for n, t in model.state_dict().items() if "torchleap" not in n}


@pytest.mark.parametrize("which", ["the gates' own optimizer", "one optimizer for all"])
def test_a_held_out_step_moves_the_gates_and_nothing_else(which):
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.1, seed=0)
    everything = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    train(model, plugin, steps=3)
    model(torch.randn(16, 8)).sum().backward()  # gradients that wait for a step
    waiting = {n: p.grad.clone() for n, p in model.named_parameters() if p is not plugin.gates.theta}
    model[0].bias.requires_grad_(False)
    model[1].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    before, theta = snapshot(model, plugin), plugin.gates.theta.detach().clone()
    optimizer = plugin.optimizer() if which.startswith("the") else everything
    with plugin.held_out():
        assert not model[3].training  # dropout
        assert plugin.gates.training
        (model(torch.randn(64, 8)).square().mean() + plugin.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(plugin.gates.theta, theta)
    after = snapshot(model, plugin)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(p.grad, waiting[n]) for n, p in model.named_parameters() if p is not plugin.gates.theta)
    assert not model[0].bias.requires_grad
    assert model[0].weight.requires_grad


def test_an_error_in_a_held_out_step_restores_everything():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0")
    with pytest.raises(FieldError, match="2 rows"), plugin.held_out():
        model(torch.randn(1, 8))
    assert model.training
    assert all(p.requires_grad for p in model.parameters())


def test_a_held_out_step_ignores_the_gates_gradient_from_training_rows():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", seed=0)
    optimizer = torch.optim.SGD([plugin.gates.theta], lr=1.0)
    plugin.gates.theta.grad = torch.full((3,), 1e6)
    with plugin.held_out():
        model(torch.randn(64, 8)).square().mean().backward()
        optimizer.step()
    assert (plugin.gates.theta - 1).abs().max() < 1
    assert plugin.gates.theta.grad is None


def test_a_step_after_the_held_out_context_is_warned_of():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0")
    with pytest.warns(UserWarning, match=r"call step\(\) within"), plugin.held_out():
        model(torch.randn(64, 8)).square().mean().backward()


def test_the_gate_optimizer_replaces_the_penalty():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", seed=0)
    main, gates = torch.optim.Adam(plugin.model_parameters(), lr=2e-2), plugin.optimizer(strength=0.4, lr=2e-2)
    for _ in range(200):
        x = torch.randn(32, 8)
        main.zero_grad()
        gates.zero_grad()
        functional.mse_loss(model(x)[:, 0], x[:, 4]).backward()
        main.step()
        gates.step()
    assert plugin.select().kept == ("age",)


def test_masking_computes_the_model_on_means_of_the_dropped_fields():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.05, seed=0)
    train(model, plugin, steps=150)
    selection = plugin.select()
    assert selection.dropped
    model.eval()
    x = torch.randn(32, 8)
    kept = torch.cat([torch.full((width,), name in selection.kept) for name, width in FIELDS.items()])
    with torch.no_grad():
        expected = model(torch.where(kept, x, plugin.gates.means()))
        with plugin.masked(selection):
            torch.testing.assert_close(model(x), expected)
        assert not torch.allclose(model(x), expected, atol=1e-6)
    other = tl.Selection(tl.Fields({"user_id": 4, "age": 2, "clicks": 2}), (1.0,) * 3, (True,) * 3)
    with pytest.raises(SelectionError, match="The selection is for"), plugin.masked(other):
        pass


# Printing and selecting


def test_print_shows_in_one_line_that_it_took_hold_and_after_training_a_table():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.05, seed=0)
    assert str(plugin) == "LeAP on 3 fields, 8 dimensions, at '0' (input): gates not moved yet"
    train(model, plugin, steps=150)
    first, header, *rows = str(plugin).splitlines()
    assert first == "LeAP on 3 fields, 8 dimensions, at '0' (input): 1 open, 2 closed"
    assert header.split() == ["field", "gate", "width", "divergence", "sparsity", "penalty"]
    assert rows[0].split()[0] == "age"
    assert rows[0].split()[2] == "1"
    assert len(rows) == 3


def test_print_tells_how_far_the_warm_up_is():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", warmup=5)
    model(torch.randn(8, 8))
    assert str(plugin).endswith("warming up, batch 1 of 5")


def test_a_protected_field_says_so():
    model = mlp()
    plugin = tl.attach(model, [tl.Field("a", 4, protected=True), tl.Field("b", 4)], at="0", alpha=0.05)
    train(model, plugin, steps=10)
    assert "protected" in str(plugin)
    assert plugin.select(share=0.5).kept == ("a",)


def test_selection_knows_method_and_settings():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.05, adaptive=False, seed=4)
    train(model, plugin, steps=5)
    selection = plugin.select(share=0.67)
    assert selection.method == "leap_base"
    assert selection.settings["alpha"] == 0.05
    assert selection.settings["share"] == 0.67
    assert selection.settings["seed"] == 4
    assert plugin.select(dims=5).dims <= 5
    assert plugin.select(cost=4).dims <= 4


# Bad input


def test_select_before_any_gate_has_moved_says_why():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)  # too early
    plugin = tl.attach(model, FIELDS, at="0", warmup=2)
    with pytest.raises(SelectionError, match="no training batch has passed"):
        plugin.select()
    for step in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 8)).square().mean() + plugin.penalty()).backward()
        optimizer.step()
        with pytest.raises(SelectionError, match="warming up: batch" if step < 2 else "probably built before attach"):
            plugin.select()


def test_gates_of_a_float64_model_have_not_moved_either():
    model = mlp().double()
    plugin = tl.attach(model, FIELDS, at="0", init=0.3)
    model(torch.randn(8, 8, dtype=torch.float64))
    with pytest.raises(SelectionError, match="none has moved"):
        plugin.select()


def test_a_saved_selection_equals_the_one_that_was_saved(tmp_path):
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.05)
    train(model, plugin, steps=5)
    plugin.select(share=0.5).save(tmp_path / "selection.json")
    assert tl.Selection.load(tmp_path / "selection.json", plugin.fields) == plugin.select(share=0.5)


def test_select_before_a_lazy_site_has_seen_a_batch_says_why():
    with pytest.raises((SelectionError, FieldError), match="batch"):
        tl.attach(ByName(), at="tower").select()


def test_a_wrong_path_gets_the_nearest_names():
    with pytest.raises(AttachError, match=r"no submodule at='deep.O'. Did you mean .*'deep.0'"):
        tl.attach(WideAndDeep(), FIELDS, at="deep.O")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": []}, "at= must name one or more"),
        ({"at": None}, "at= must be the name of a submodule"),
        ({"at": 0}, "at= must be the name of a submodule"),
        ({"at": ["0", "0"]}, "each once"),
        ({"at": "0", "side": "left"}, "side must be 'input' or 'output', but is 'left'"),
        ({"at": "0", "gates": LeAP(FIELDS)}, "Expected gates= or fields and settings, but found both"),
    ],
)
def test_bad_arguments_are_refused_before_anything_changes(arguments, message):
    model = mlp()
    with pytest.raises(AttachError, match=message):
        tl.attach(model, FIELDS, **arguments)
    assert "LeAP" not in repr(model)


def test_a_misspelt_setting_is_an_error():
    with pytest.raises(TypeError, match="alhpa"):
        tl.attach(mlp(), FIELDS, at="0", alhpa=1)


def test_ready_gates_are_taken_and_gates_in_the_model_refused():
    gates = LeAP(FIELDS, alpha=0.5)
    assert tl.attach(mlp(), at="0", gates=gates).gates is gates
    own = nn.Sequential(LeAP(FIELDS), nn.Linear(8, 1))
    with pytest.raises(AttachError, match="part of the model already"):
        tl.attach(own, at="1", gates=own[0])


def test_the_site_is_named_in_what_goes_wrong_there():
    model = mlp()
    tl.attach(model, {"a": 5, "b": 4}, at="0")
    with pytest.raises(FieldError, match=r"at='0' \(input\) receives 8 columns, but the fields sum to 9"):
        model(torch.randn(4, 8))


def test_an_example_finds_wrong_widths_before_anything_changes():
    model = mlp()
    with pytest.raises(FieldError, match=r"at='0' \(input\) receives 8 columns, but the fields sum to 9"):
        tl.attach(model, {"a": 9}, at="0", example=torch.randn(4, 8))
    assert "LeAP" not in repr(model)
    with pytest.raises(AttachError, match="never calls 'unused'"):
        tl.attach(Unused(), FIELDS, at="unused", example=torch.randn(4, 8))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(8, 1)
        self.used = nn.Linear(8, 1)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"user_id": torch.randn(4, 4), "age": torch.randn(4)}, "'clicks' is missing"),
        (
            {**batch_by_name(4), "age": torch.ones(4, dtype=torch.int64)},
            "'age' should be a floating-point tensor, but is torch.int64",
        ),
        ({**batch_by_name(4), "user_id": torch.randn(4, 5)}, "'user_id' should be 4 wide, but is 5"),
        ({**batch_by_name(4), "user_id": torch.randn(5, 4)}, "same number of rows"),
        ({**batch_by_name(4), "age": torch.tensor(1.0)}, "'age' should have rows"),
        (MappingProxyType(batch_by_name(4)), "can be copied and changed"),
    ],
)
def test_a_dict_that_does_not_fit_the_fields_is_refused(batch, message):
    model = Record()
    tl.attach(model, FIELDS, at="first")
    with pytest.raises((FieldError, AttachError), match=message):
        model(batch)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (torch.randn(4, 8), FieldError, "does not name its fields. Give fields="),
        ({"id": torch.arange(4)}, FieldError, "floating-point tensors"),
        ((torch.randn(4, 8), 1), AttachError, "found tuple"),
    ],
)
def test_a_site_without_fields_refuses_what_names_none(value, error, message):
    model = Record()
    tl.attach(model, at="first")
    with pytest.raises(error, match=message):
        model(value)
    with pytest.raises(error, match=message):
        tl.attach(Record(), at="first", example=(value,))


def test_a_site_that_is_called_without_input_is_refused():
    class Constant(nn.Module):
        def forward(self):
            return torch.zeros(4, 8)

    model = Constant()
    tl.attach(model, FIELDS)
    with pytest.raises(AttachError, match="called without one. Use side='output'"):
        model()


def test_columns_that_several_sites_do_not_fill_are_refused():
    model = TwoTowers()
    tl.attach(model, {**FIELDS, "more": 2}, at=["user", "item"])
    with pytest.raises(FieldError, match=r"at='item' \(input\) receives 3 columns, 8 with those .* sum to 10"):
        model(torch.randn(4, 8))
    model = TwoTowers()
    tl.attach(model, FIELDS, at=["user", "item"])
    model(torch.randn(4, 8))
    with pytest.raises(FieldError, match="receives 4 columns, but the fields sum to 3"):
        model(torch.randn(4, 9))


def test_a_layer_with_that_name_already_is_refused():
    model = nn.Linear(8, 1)
    model.torchleap = 3
    with pytest.raises(AttachError, match="has an attribute 'torchleap' already"):
        tl.attach(model, FIELDS)
