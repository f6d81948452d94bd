"""Which columns each field has, where its parts arrive at several sites."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchleap import Field, FieldError, Fields
from torchleap.gates.layout import Layout
from torchleap.gates.leap import LeAP

NAMES = "abcde"


@given(
    sites=st.lists(
        st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4), min_size=1), min_size=1
    ),
    groups=st.dictionaries(st.sampled_from(NAMES), st.sampled_from("xy")),
)
def test_sites_that_share_a_gate_are_neighbours_in_columns_and_gates(sites, groups):
    given_fields = [Field(name, 1, group=group) for name, group in groups.items()]
    layout, columns = Layout.over(sites, given_fields)
    taken = sorted((one.start, one.stop) for one in columns)
    assert [start for start, _ in taken] == [0, *[stop for _, stop in taken[:-1]]]
    for site, own in zip(sites, columns, strict=True):
        inside = layout.blocks_in(own)
        widths = {name: block.stop - block.start for name, block in inside.items()}
        assert list(widths.items()) == list(site.items())
        assert dict(zip(*_names_and_widths(layout.fields_in(own)), strict=True)) == widths
    for name in layout.fields.names:
        total = sum(site.get(name, 0) for site in sites)
        assert layout.fields[name].width == total
        assert sum(one.stop - one.start for one in layout.columns(name)) == total
    gates = torch.tensor(layout.column_gates())
    for own in columns:
        joint = layout.joint_of(own)
        block = own if joint is None else joint.columns
        inside, outside = gates[block], torch.cat([gates[: block.start], gates[block.stop :]])
        assert not set(inside.tolist()) & set(outside.tolist())
        assert sorted(set(inside.tolist())) == list(range(inside.min(), inside.max() + 1))
        found = layout.gates_of(own)
        assert (found.start, found.stop) == (gates[own].min(), gates[own].max() + 1)


def _names_and_widths(fields):
    return fields.names, fields.widths


def test_a_field_keeps_its_cost_its_group_and_its_protection():
    given_fields = [Field("a", 3, protected=True), Field("b", 1, cost=7.0, group="g")]
    layout, _ = Layout.over([{"a": 2, "b": 1}, {"a": 1, "c": 1}], given_fields)
    assert list(layout.fields) == [
        Field("a", 3, protected=True),
        Field("b", 1, cost=7.0, group="g"),
        Field("c", 1),
    ]
    wider, _ = Layout.over([{"a": 2}, {"a": 2}], [Field("a", 2)])
    assert wider.fields["a"].cost == 4.0


def test_gates_per_dimension_are_in_the_order_of_the_columns():
    layout, columns = Layout.over([{"a": 2, "b": 1}, {"a": 1}])
    split = layout.per_dimension()
    assert split.fields.names == ("a[0]", "a[1]", "b", "a[2]")
    assert [split.joint_of(one) for one in columns] == [None, None]
    assert split.gates_of(columns[1]) == slice(3, 4)


def test_a_layout_is_written_and_read():
    layout, columns = Layout.over([{"a": 2, "b": 1}, {"c": 1}, {"b": 3}])
    again = Layout.from_json(layout.to_json())
    assert again.is_alike(layout)
    assert [again.joint_of(one) for one in columns] == [layout.joint_of(one) for one in columns]
    plain = Layout(Fields({"a": 1}))
    assert plain.to_json() == plain.fields.to_json()
    assert Layout.from_json(plain.to_json()).is_alike(plain)
    assert not plain.is_alike(layout)


def test_a_layout_does_not_know_other_fields():
    with pytest.raises(FieldError, match="There is no field 'z'"):
        Layout(Fields({"a": 1})).columns("z")


def joined_gates(layout, **settings):
    gates = LeAP(None, seed=3, init=-20.0, **settings)
    gates.lay_out(layout)
    return gates


@pytest.mark.parametrize("divergence", ["rms", "mean"])
@pytest.mark.parametrize("shuffle", ["uniform", "cyclic"])
def test_parts_of_a_field_are_mixed_and_measured_as_its_columns_side_by_side(divergence, shuffle):
    layout, columns = Layout.over([{"a": 2, "b": 3}, {"b": 1}, {"a": 1, "c": 2}])
    settings = {"divergence": divergence, "shuffle": shuffle, "momentum": 0.5}
    gates = joined_gates(layout, normalize=True, **settings)
    alone = LeAP({"a": 3, "b": 4, "c": 2}, normalize=True, seed=3, init=-20.0, **settings)
    order = [0, 1, 3, 4, 5, 6, 2, 7, 8]  # the columns of the gates among those side by side
    for _ in range(3):
        x = torch.randn(16, 9).round()
        expected = alone(x)
        for own in columns:
            found = gates(x[:, order][:, own], own)
            torch.testing.assert_close(found, expected[:, order][:, own])
    assert gates.steps.tolist() == [3, 3, 3]
    torch.testing.assert_close(gates.divergences(), alone.divergences())
    torch.testing.assert_close(gates.sparsity(), alone.sparsity())
    torch.testing.assert_close(gates.means(), alone.means()[order])


def test_a_pass_that_misses_a_part_of_a_field_is_not_measured():
    layout, (first, second) = Layout.over([{"a": 2}, {"a": 1}])
    gates = joined_gates(layout)
    gates(torch.randn(8, 2), first)
    gates(torch.randn(8, 2), first)
    assert gates.steps.tolist() == [0]
    gates(torch.randn(8, 1), second)
    assert gates.steps.tolist() == [1]
    layout, (first, second, third) = Layout.over([{"a": 2}, {"a": 1}, {"a": 1}])
    gates = joined_gates(layout)
    gates(torch.randn(8, 2), first)
    gates(torch.randn(8, 1), second)
    gates(torch.randn(8, 1), second)  # of a pass that has no first
    gates(torch.randn(8, 1), third)
    assert gates.steps.tolist() == [0]


def test_parts_with_other_rows_are_refused_and_forgotten():
    layout, (first, second) = Layout.over([{"a": 2}, {"a": 1}])
    gates = joined_gates(layout)
    gates(torch.randn(8, 2), first)
    with pytest.raises(FieldError, match="same number of rows at every place .* found 6 and 8"):
        gates(torch.randn(6, 1), second)
    gates(torch.randn(6, 2), first)
    gates(torch.randn(6, 1), second)
    assert gates.steps.tolist() == [1]


def test_a_part_that_is_not_finite_is_refused_at_once():
    layout, (first, _) = Layout.over([{"a": 2, "b": 1}, {"a": 1}])
    with pytest.raises(FieldError, match="NaN, infinity .* in field 'b'"):
        joined_gates(layout)(torch.tensor([[0.0, 0, 1], [0, 0, torch.nan]]), first)


def test_a_checkpoint_with_other_parts_is_refused():
    layout, _ = Layout.over([{"a": 2}, {"a": 1}])
    gates = joined_gates(layout)
    lazy = LeAP(None)
    lazy.load_state_dict(gates.state_dict())
    assert lazy.known_layout().is_alike(layout)
    with pytest.raises(RuntimeError, match="in the blocks a 2, a 1, but .* has Fields"):
        LeAP({"a": 3}).load_state_dict(gates.state_dict())
