import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchleap import Field, FieldError, Fields


@given(
    st.dictionaries(st.text(min_size=1, max_size=5), st.integers(1, 1024), min_size=1, max_size=20)
)
def test_columns_lie_side_by_side_in_order(widths):
    fields = Fields(widths)
    start = 0
    for name, width in widths.items():
        assert fields.columns(name) == slice(start, start + width)
        start += width
    assert (fields.dims, fields.names, fields.widths) == (
        start,
        tuple(widths),
        tuple(widths.values()),
    )


@given(st.lists(st.sampled_from([None, "a", "b"]), min_size=1, max_size=8))
def test_fields_of_one_group_share_a_gate_and_others_have_their_own(groups):
    fields = Fields([Field(f"f{i}", 1, group=group) for i, group in enumerate(groups)])
    for i, one in enumerate(groups):
        for j, other in enumerate(groups):
            assert (fields.gates[i] == fields.gates[j]) == (
                i == j or (one is not None and one == other)
            )
    assert set(fields.gates) == set(range(max(fields.gates) + 1))


def test_a_group_named_like_a_field_does_not_join_it():
    fields = Fields([Field("a", 1), Field("b", 1, group="a")])
    assert fields.gates == (0, 1)


def test_cost_is_the_width_unless_given():
    assert Field("a", 64).cost == 64.0
    assert Field("a", 64, cost=0.0).cost == 0.0


def test_fields_equal_by_content_and_survive_pickle_and_json():
    fields = Fields([Field("a", 2, cost=3, protected=True, group="g"), Field("b", 1)])
    assert pickle.loads(pickle.dumps(fields)) == fields == Fields.from_json(fields.to_json())
    assert hash(fields) == hash(Fields(fields))
    assert fields != Fields({"a": 2, "b": 1})
    assert "a" in fields
    assert "z" not in fields
    assert [field.name for field in fields] == ["a", "b"]


def test_all_problems_are_reported_at_once():
    with pytest.raises(FieldError) as error:
        Fields(
            [Field("a", 0), Field("b", 1, cost=-1.0), Field("b", 2), Field("", 1), Field("c", True)]
        )
    message = str(error.value)
    for part in (
        "width of 'a'",
        "cost of 'b'",
        "'b' is used 2 times",
        "non-empty string",
        "width of 'c'",
    ):
        assert part in message


@pytest.mark.parametrize("empty", [{}, [], ()])
def test_empty_fields_are_refused(empty):
    with pytest.raises(FieldError, match="at least one field"):
        Fields(empty)


def test_other_things_than_fields_are_refused():
    with pytest.raises(FieldError, match="Expected tl.Field objects"):
        Fields([("a", 3)])
    with pytest.raises(FieldError, match="a dict name -> width or a list"):
        Fields(5)


def test_numpy_integers_are_widths():
    fields = Fields({"a": np.int64(3)})
    assert type(fields["a"].width) is int
    assert fields.dims == 3


def test_an_unknown_name_gets_the_nearest_ones():
    with pytest.raises(FieldError, match="Did you mean 'user_id'"):
        Fields({"user_id": 8, "age": 1})["userid"]


def test_records_with_unknown_keys_are_refused():
    with pytest.raises(FieldError, match="name, width, cost, protected, group"):
        Fields.from_json([{"name": "a", "width": 1, "colour": "red"}])


def test_a_block_of_columns_must_hold_complete_fields_and_groups():
    fields = Fields(
        [Field("a", 2), Field("b", 3, group="g"), Field("c", 1, group="g"), Field("d", 4)]
    )
    assert fields.gates_of(slice(0, 10)) == slice(0, 3)
    assert fields.gates_of(slice(2, 6)) == slice(1, 2)
    with pytest.raises(FieldError, match="cut through a field"):
        fields.gates_of(slice(0, 3))
    with pytest.raises(FieldError, match="inside and outside"):
        fields.gates_of(slice(0, 5))


def test_repr_names_some_and_counts_all():
    assert repr(Fields({f"f{i}": 2 for i in range(6)})).endswith("...}: 6 fields, 12 dimensions)")
