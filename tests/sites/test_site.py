import copy
from types import MappingProxyType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torchleap as tl
from tests.rankers import FIELDS, ByName, Record, TwoTowers, WideAndDeep, batch_by_name, mlp
from torchleap import AttachError, FieldError, LeAP

# Where the gates sit


@pytest.mark.parametrize(
    ("at", "side"),
    [("", "input"), ("", "output"), ("first", "input"), ("first", "output"), ("second", "input")],
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
    tl.attach(
        model,
        None if kind == "dict without fields" else fields,
        at="first",
        side=side,
        init=0.1,
        seed=seed,
    )
    if kind.startswith("dict"):
        output = torch.cat(
            list(model(dict(zip(fields, x.split(widths, dim=1), strict=True))).values()), dim=1
        )
    else:
        output = model(
            x.unflatten(1, (len(widths), -1)) if kind == "fields by width" else x
        ).flatten(1)
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
        model,
        FIELDS if given == "fields" else None,
        at=at,
        example=batch if given == "example" else None,
        init=0.0,
        seed=0,
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
    assert torch.equal(
        torch.cat([output["user_id"], output["age"][:, None], output["clicks"]], 1), mixed
    )
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
    assert plugin.gates.context.passed() == ()


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
    plugin = tl.attach(
        model,
        FIELDS,
        at=["user", "item"],
        example=x if with_example else None,
        init=-20.0,
        seed=0,
        momentum=0.0,
    )
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
    with pytest.raises(
        AttachError, match="in the order in which the model reaches them, or give example="
    ):
        model(x)
    model = TwoTowers()
    plugin = tl.attach(
        model, {"clicks": 3, "user_id": 4, "age": 1}, at=["item", "user"], example=x, momentum=0.0
    )
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
    plugin = tl.attach(
        model, FIELDS, at="0", example=torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    )
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


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x.flatten(1), lambda x: x.view(x.shape), lambda x: x[:, :]]
)
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
    plugin = tl.attach(
        model, FIELDS, at=at, example=torch.zeros(4, 3, dtype=torch.int64) if with_example else None
    )
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


@pytest.mark.parametrize(
    "container", [nn.ModuleList([nn.Linear(8, 1)]), nn.ModuleDict({"a": nn.Linear(8, 1)})]
)
def test_a_list_that_is_never_called_cannot_be_a_site(container):
    model = nn.Module()
    model.towers = container
    with pytest.raises(
        AttachError, match=r"never called itself. Choose one of its members: towers\.[0a]"
    ):
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


# Bad input


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"user_id": torch.randn(4, 4), "age": torch.randn(4)}, "'clicks' is missing"),
        (
            {**batch_by_name(4), "age": torch.ones(4, dtype=torch.int64)},
            "'age' should be a floating-point tensor, but is torch.int64",
        ),
        (
            {**batch_by_name(4), "user_id": torch.randn(4, 5)},
            "'user_id' should be 4 wide, but is 5",
        ),
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
    with pytest.raises(
        FieldError, match=r"at='item' \(input\) receives 3 columns, 8 with those .* sum to 10"
    ):
        model(torch.randn(4, 8))
    model = TwoTowers()
    tl.attach(model, FIELDS, at=["user", "item"])
    model(torch.randn(4, 8))
    with pytest.raises(FieldError, match="receives 4 columns, but the fields sum to 3"):
        model(torch.randn(4, 9))


def test_something_else_in_the_place_of_the_gates_is_refused():
    model = nn.Linear(8, 1)
    tl.attach(model, FIELDS)
    model.torchleap = nn.Identity()
    with pytest.raises(AttachError, match="expected the gates at 'torchleap', but found Identity"):
        model(torch.randn(4, 8))


def test_several_sites_refuse_what_is_no_tensor():
    class Tuples(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Identity(), nn.Identity()

        def forward(self, x):
            return self.user(x), self.item((x, x))

    model = Tuples()
    tl.attach(model, {"a": 8, "b": 8}, at=["user", "item"])
    with pytest.raises(AttachError, match="found tuple"):
        model(torch.randn(4, 8))


def test_a_site_that_is_reached_twice_is_gated_at_each_call():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Identity(), nn.Identity()

        def forward(self, x, other):
            return self.user(x), self.item(x), self.user(other), self.item(other)

    model = Towers()
    plugin = tl.attach(model, FIELDS, at=["user", "item"], init=-20.0)
    first, again, second, once_more = model(torch.zeros(4, 8), torch.ones(4, 8))
    assert first is again
    assert second is once_more
    assert not torch.equal(first, second)
    assert plugin.gates.steps.tolist() == [2, 2, 2]


def test_an_example_is_watched_at_the_output_too():
    model = mlp()
    with pytest.raises(
        FieldError, match=r"at='0' \(output\) receives 16 columns, but the fields sum to 8"
    ):
        tl.attach(model, FIELDS, at="0", side="output", example=torch.randn(4, 8))
    tl.attach(model, {"hidden": 16}, at="0", side="output", example=torch.randn(4, 8))


def test_a_layer_with_that_name_already_is_refused():
    model = nn.Linear(8, 1)
    model.torchleap = 3
    with pytest.raises(AttachError, match="has an attribute 'torchleap' already"):
        tl.attach(model, FIELDS)
