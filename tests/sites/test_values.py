"""The values that arrive at a site: tensors, dicts, and when two tensors are one."""

from types import MappingProxyType

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.rankers import FIELDS, ByName, Record, batch_by_name
from torchleap import AttachError, FieldError, LeAP


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
