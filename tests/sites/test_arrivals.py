"""Fields that arrive at several places: one gate, one permutation, one divergence."""

import copy
import warnings

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.rankers import (
    CalledTwice,
    Encoders,
    FactorizationMachine,
    PerField,
    Record,
    TwoTowers,
    ids_by_name,
)
from torchleap import AttachError, FieldError, Place
from torchleap.sites.model import sites_of

NAMES = ("u", "i", "c", "n")
AT = {"table": dict.fromkeys(NAMES, 4), "linear": dict.fromkeys(NAMES, 1)}


def outputs_of(model, *names):
    """What the submodules return from now on, after the gates."""
    seen = {name: [] for name in names}
    for name in names:
        model.get_submodule(name).register_forward_hook(
            lambda m, args, output, name=name: seen[name].append(output)
        )
    return seen


def plain(model, batch, *names):
    """What the submodules return without gates."""
    alone = copy.deepcopy(model)
    if list(sites_of(alone)):
        tl.attached(alone).detach()
    seen = outputs_of(alone, *names)
    alone(batch)
    return seen


@pytest.mark.parametrize("with_example", [False, True])
def test_a_field_at_two_places_has_one_gate_and_one_permutation(with_example):
    model = FactorizationMachine()
    ids = torch.arange(40).remainder(10).reshape(10, 4)
    before = plain(model, ids, "table", "linear")
    example = ids if with_example else None
    plugin = tl.attach(model, at=AT, side="output", example=example, init=-20.0, seed=0)
    assert plugin.fields == tl.Fields(dict.fromkeys(NAMES, 5))
    assert plugin.gates.theta.shape == (4,)
    seen = outputs_of(model, "table", "linear")
    for step in range(2):
        model(ids)
        assert plugin.gates.steps.tolist() == [step + 1] * 4
    for step in range(2):
        orders = []
        for name in ("table", "linear"):
            rows = before[name][0][:, None] == seen[name][step][None]  # (B, B, F, E)
            orders.append(rows.all(3).float().argmax(0))
        assert torch.equal(*orders)
        assert not torch.equal(orders[0], torch.arange(10)[:, None].expand(10, 4))


def test_fields_may_name_their_places():
    model = PerField()
    ids = torch.randint(10, (8, 2))
    places = {
        "item": ["embedding.tables.0", "linear.tables.0"],
        "price": ["embedding.tables.1", Place("linear.tables.1", side="output")],
    }
    plugin = tl.attach(model, places, side="output", example=ids, momentum=0.0, init=-20.0)
    assert plugin.fields == tl.Fields({"item": 5, "price": 3})
    model(ids)
    means = torch.cat([plugin.gates.means()[one] for one in plugin.gates.columns_of("item")])
    tables = model.embedding.tables[0], model.linear.tables[0]
    expected = torch.cat([table.weight[ids[:, 0]] for table in tables], 1).mean(0)
    torch.testing.assert_close(means, expected)
    assert "at 'embedding.tables.0', 'linear.tables.0', 'embedding.tables.1'" in repr(plugin)


def test_a_list_of_one_tensor_per_field_is_gated_by_position():
    model = PerField()
    ids = torch.randint(10, (8, 2))
    at = {"embedding": {"item": 4, "price": 2}, "linear": {"item": 1, "price": 1}}
    before = plain(model, ids, "embedding")["embedding"][0]
    plugin = tl.attach(model, at=at, side="output", example=ids, init=-20.0, momentum=0.0)
    seen = outputs_of(model, "embedding")
    model(ids)
    (found,) = seen["embedding"]
    assert [entry.shape for entry in found] == [(8, 1, 4), (8, 1, 2)]
    assert not torch.equal(found[0], before[0])
    torch.testing.assert_close(found[0].mean(0), before[0].mean(0))
    wrong = {"embedding": {"item": 4, "price": 2, "more": 1}}
    plugin.detach()
    with pytest.raises(AttachError, match="one tensor for each of 3 fields, but found a list of"):
        tl.attach(model, at=wrong, side="output", example=ids)


def test_part_of_a_tuple_is_gated_and_the_rest_passes():
    model = Encoders()
    x = torch.randn(8, 3)
    fields = {"a": 4, "b": 4, "c": 4}
    with pytest.raises(AttachError, match=r"found a tuple of torch.float32, list. .*part=0"):
        tl.attach(model, fields, at="encoder", side="output", example=x)
    plugin = tl.attach(
        model, fields, at=Place("encoder", part=0), side="output", init=-20.0, example=x
    )
    seen = outputs_of(model, "encoder")
    model(x)
    ((tensor, names),) = seen["encoder"]
    assert names == ["a", "b", "c"]
    assert not torch.equal(tensor, plain(model, x, "encoder")["encoder"][0][0])
    assert plugin.gates.steps.tolist() == [1, 1, 1]
    plugin.detach()
    with pytest.raises(AttachError, match=r"there is no part 2, but found a tuple of 2"):
        tl.attach(model, fields, at=Place("encoder", part=2), side="output", example=x)


class Scaled(nn.Module):
    def forward(self, x, weight, *, shift=None):
        return x * weight if shift is None else x * weight + shift


class ByArgument(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Scaled()

    def forward(self, x):
        if x.shape[1] == 3:
            return self.inner(x[:, :1], x[:, 1:2], shift=x[:, 2:])
        return self.inner(x[:, :1], weight=x[:, 1:2])


@pytest.mark.parametrize("part", [1, "weight"])
@pytest.mark.parametrize("width", [2, 3])
def test_an_argument_is_named_by_position_or_name(part, width):
    model = ByArgument()
    x = torch.randn(8, width)
    plugin = tl.attach(model, {"w": Place("inner", part=part)}, example=x, momentum=0.0)
    model(x)
    torch.testing.assert_close(plugin.gates.means(), x[:, 1:2].mean(0))


def test_an_argument_by_name_alone_and_one_that_does_not_exist():
    x = torch.randn(8, 3)
    model = ByArgument()
    plugin = tl.attach(model, {"s": Place("inner", part="shift")}, example=x, momentum=0.0)
    model(x)
    torch.testing.assert_close(plugin.gates.means(), x[:, 2:].mean(0))
    with pytest.raises(AttachError, match=r"part 7\): there is no such argument, but .* with 2 by"):
        tl.attach(ByArgument(), {"s": Place("inner", part=7)}, example=x)


def test_calls_with_other_features_are_told_apart_by_number():
    model = CalledTwice()
    batch = ids_by_name()
    at = {
        Place("lookup", call=0): {"user": 3},
        Place("lookup", call=1): {"user": 3, "item": 3, "age": 1},
    }
    plugin = tl.attach(model, at=at, side="output", init=-20.0, momentum=0.0)
    assert plugin.fields == tl.Fields({"user": 6, "item": 3, "age": 1})
    before = plain(model, batch, "lookup")["lookup"]
    seen = outputs_of(model, "lookup")["lookup"]
    for _ in range(2):
        model(batch)
    assert plugin.gates.steps.tolist() == [2, 2, 2]
    assert torch.equal(seen[2], seen[3][:, :3])  # one permutation for both
    assert not torch.equal(seen[2], before[0])
    with pytest.raises(AttachError, match="calls are counted in a pass of the complete model"):
        model.lookup(batch, ("user",))


def test_the_widths_decide_which_call_has_the_fields():
    model = CalledTwice()
    batch = ids_by_name()
    fields = {"user": 3, "item": 3, "age": 1}
    for arguments in ({"fields": fields, "at": "lookup"}, {"at": {"lookup": fields}}):
        warns = pytest.warns(UserWarning, match=r"called 2 times .* but call=0 .* beside the gates")
        with warns as caught:
            plugin = tl.attach(model, **arguments, side="output", example=batch, init=-20.0)
        assert caught[0].filename == __file__
        assert plugin.fields == tl.Fields(fields)
        assert [site.place.call for site in plugin.sites] == [1]
        before = plain(model, batch, "lookup")["lookup"]
        seen = outputs_of(model, "lookup")["lookup"]
        model(batch)
        assert torch.equal(seen[0], before[0])
        assert not torch.equal(seen[1], before[1])
        plugin.detach()
    at = {Place("lookup", call=0): {"user": 3}, "lookup": fields}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugin = tl.attach(model, at=at, side="output", example=batch)
    assert [site.place.call for site in plugin.sites] == [0, 1]


def test_calls_that_return_something_else_are_left_out():
    class Either(nn.Module):
        def forward(self, x):
            return (x, "names") if x.shape[1] == 2 else x

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.either = Either()

        def forward(self, x):
            return self.either(x[:, :2])[0].sum() + self.either(x[:, 2:]).sum()

    x = torch.randn(8, 5)
    place = Place("either", side="output", part=0)
    for widths in ({"a": 2}, {"a": 1, "b": 1}):
        with pytest.warns(UserWarning, match="call=1 has other fields"):
            plugin = tl.attach(Both(), at={place: widths}, example=x)
        assert [site.place.call for site in plugin.sites] == [0]
    with pytest.raises(FieldError, match="Found: call=0 is 2 wide, call=1 has no such part"):
        tl.attach(Both(), at={place: {"a": 3}}, example=x)
    with pytest.raises(FieldError, match="Found: call=0 is a tuple, call=1 is 3 wide"):
        tl.attach(Both(), at={"either": {"a": 4}}, side="output", example=x)


def test_a_place_without_a_number_is_the_calls_that_no_other_place_names():
    model = CalledTwice(("item",), ("user",), ())
    at = {Place("lookup", call=0): {"item": 3}, "lookup": {"user": 3}}
    plugin = tl.attach(model, at=at, side="output", example=ids_by_name())
    assert [site.place.call for site in plugin.sites] == [0, 1]
    assert plugin.fields == tl.Fields({"item": 3, "user": 3})
    plugin.detach()
    at = {
        "lookup": {"user": 3},
        Place("lookup", call=0): {"item": 3},
        Place("lookup", call=1): {"user": 3},
    }
    with pytest.raises(FieldError, match="none of the 2 calls on the example has the fields"):
        tl.attach(model, at=at, side="output", example=ids_by_name())


def test_calls_that_the_notation_does_not_tell_apart_are_listed():
    model = CalledTwice()
    message = (
        r"none of the 2 calls on the example has the fields .* Found: call=0 is 3 wide, call=1 is "
        r"7 wide. Name each call .*tl.Place\('lookup', call=0\)"
    )
    with pytest.raises(FieldError, match=message):
        tl.attach(model, at={"lookup": {"user": 5}}, side="output", example=ids_by_name())
    with pytest.raises(FieldError, match=message):
        tl.attach(model, {"user": 5}, at="lookup", side="output", example=ids_by_name())
    with pytest.raises(AttachError, match="expected a call 2, counted from 0, but found 2 calls"):
        tl.attach(
            model,
            at={Place("lookup", call=2): {"user": 3}},
            side="output",
            example=ids_by_name(),
        )
    plugin = tl.attach(model, at={"lookup": {"user": 3}}, side="output")
    with pytest.raises(AttachError, match="called again in one forward pass. Give example="):
        model(ids_by_name())
    plugin.detach()


@pytest.mark.parametrize("by_field", [False, True])
def test_calls_with_the_same_fields_are_parts_of_them(by_field):
    model = CalledTwice(("item",), ("item",), ())
    batch = ids_by_name()
    arguments = {"at": {"lookup": {"item": 3}}}
    if by_field:
        arguments = {"fields": {"item": "lookup"}}
    plugin = tl.attach(model, **arguments, side="output", example=batch, init=-20.0)
    assert plugin.fields == tl.Fields({"item": 6})
    seen = outputs_of(model, "lookup")["lookup"]
    model(batch)
    assert torch.equal(*seen)
    assert plugin.gates.steps.tolist() == [1]


@pytest.mark.parametrize("width", [(), (1,), (1, 3)])
def test_a_field_may_be_a_column_or_have_more_dimensions(width):
    model = Record()
    x = torch.randn(8, *width)
    plugin = tl.attach(model, {"x": "first"}, side="output", example=x, momentum=0.0, init=-20.0)
    assert model(x).shape == x.shape
    torch.testing.assert_close(plugin.gates.means(), x.reshape(8, -1).mean(0))
    model.eval()
    torch.testing.assert_close(model(x), x.mean(0).expand_as(x))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.deep = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x):
        return self.wide(x) + self.deep(x)


def test_a_tensor_at_two_places_counts_once():
    x = torch.randn(8, 4)
    for arguments in (
        {"fields": {"x": ["wide", "deep"]}},
        {"at": {"wide": {"u": 3, "i": 1}, "deep": {"u": 3, "i": 1}}},
    ):
        model = Branches()
        plugin = tl.attach(model, **arguments, example=x, momentum=0.0)
        assert plugin.fields.dims == 4
        model(x)
        torch.testing.assert_close(plugin.gates.means(), x.mean(0))
        assert plugin.gates.steps.unique().tolist() == [1]


def test_two_fields_with_the_same_columns_are_refused():
    x = torch.randn(8, 4)
    with pytest.raises(FieldError, match=r"\['a'\] and \['b'\] have the same columns"):
        tl.attach(Branches(), {"a": "wide", "b": "deep"}, example=x)
    model = Branches()
    tl.attach(model, at={"wide": {"a": 4}, "deep": {"a": 4}})
    with pytest.raises(FieldError, match=r"at='deep' \(input\) and at='wide' \(input\) have the"):
        model(x)


class Longer(nn.Module):
    def __init__(self):
        super().__init__()
        self.once, self.twice = nn.Identity(), nn.Identity()

    def forward(self, x):
        return self.once(x).sum() + self.twice(torch.cat([x, x])).sum()


def test_parts_of_a_field_with_other_rows_are_refused():
    x = torch.randn(8, 4)
    with pytest.raises(FieldError, match=r"'a' has 8 \(at='once' .* and 16 \(at='twice'"):
        tl.attach(Longer(), {"a": ["once", "twice"]}, example=x)
    model = Longer()
    tl.attach(model, at={"once": {"a": 4}, "twice": {"a": 4}})
    with pytest.raises(FieldError, match="same number of rows at every place"):
        model(x)


def test_other_widths_in_the_next_batch_are_refused():
    model = Record()
    tl.attach(model, at={"first": {"a": 2, "b": 1}})
    model(torch.randn(4, 3))
    with pytest.raises(
        FieldError, match=r"at='first' \(input\) receives 4 columns, but its fields sum to 3"
    ):
        model(torch.randn(4, 4))


def test_places_without_widths_need_an_example():
    expected = r"at='wide' \(input\): the width of \['a'\] is not known"
    with pytest.raises(AttachError, match=expected):
        tl.attach(Branches(), {"a": "wide"})


def test_all_unknown_names_are_reported_together():
    with pytest.raises(AttachError, match=r"at='wild'. Did you mean 'wide'.* at='depp'"):
        tl.attach(Branches(), {"a": ["wild"], "b": ["depp"]}, example=torch.ones(4, 4))


def test_all_places_that_do_not_fit_are_reported_together():
    at = {"user": {"a": 4}, "item": {"b": 2}}
    with pytest.raises(FieldError, match=r"at='user' .* 5 columns.*at='item' .* 3 columns"):
        tl.attach(TwoTowers(), at=at, example=torch.randn(4, 8))


def test_a_place_that_is_never_called_is_refused_with_an_example():
    model = Branches()
    model.spare = nn.Linear(4, 1)
    with pytest.raises(AttachError, match="never calls 'spare' on the example"):
        tl.attach(model, {"a": ["wide", "spare"]}, example=torch.ones(4, 4))


def test_a_field_without_a_site_is_refused_with_an_example():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Identity(), nn.Identity()

        def forward(self, batch):
            return self.user({"u": batch["u"]}), self.item({"i": batch["i"]})

    batch = {"u": torch.randn(8, 2), "i": torch.randn(8, 3)}
    with pytest.raises(FieldError, match=r"\['z'\] reach no site on the example"):
        tl.attach(Towers(), {"u": 2, "i": 3, "z": 1}, at=["user", "item"], example=batch)


def test_dict_entries_are_named_by_part_or_by_the_fields():
    model = nn.ModuleDict({"inner": Record()})
    model.forward = lambda batch: model["inner"](batch)
    batch = {"u": torch.randn(8, 2), "i": torch.randn(8), "id": torch.arange(8)}
    plugin = tl.attach(model["inner"], at={"first": {"u": 2, "i": 1}}, example=batch, momentum=0.0)
    model["inner"](batch)
    torch.testing.assert_close(plugin.gates.means()[2], batch["i"].mean())
    plugin.detach()
    places = {"i": Place("first", side="output", part="i")}
    plugin = tl.attach(model["inner"], places, example=batch, momentum=0.0)
    model["inner"](batch)
    torch.testing.assert_close(plugin.gates.means(), batch["i"].mean()[None])
    plugin.detach()
    with pytest.raises(FieldError, match=r"a dict with 'u', 'i', 'id', but no tensor for \['z'\]"):
        tl.attach(model["inner"], {"z": "first"}, example=batch)
    with pytest.raises(AttachError, match="there is no part 'itm'"):
        tl.attach(model["inner"], {"z": Place("first", "output", "itm")}, example=batch)


def test_ready_gates_have_an_order_of_their_own():
    with pytest.raises(AttachError, match="Leave out gates="):
        tl.attach(Branches(), at={"wide": {"a": 4}}, gates=tl.LeAP({"a": 4}))
