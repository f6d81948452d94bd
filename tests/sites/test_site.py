"""Sites: any submodule at either side, alone or with others, is gated as the gates would alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torchleap as tl
from tests.rankers import FIELDS, ByName, Record, TwoTowers, WideAndDeep, batch_by_name
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
    assert plugin.gates.context.passed() == {}


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
