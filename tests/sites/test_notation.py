"""The notation of attach(): which fields arrive at which places."""

import pickle

import pytest

import torchleap as tl
from torchleap import AttachError, Field, FieldError, Place
from torchleap.sites.notation import Entry, read_notation


def test_a_place_is_frozen_and_has_a_label():
    place = Place("encoder", side="output", part=0, call=2)
    assert pickle.loads(pickle.dumps(place)) == place
    assert place.label == "at='encoder' (output, part 0, call 2)"
    with pytest.raises(AttributeError):
        place.part = 1
    assert tl.Place is Place


def test_the_places_of_a_field_take_the_side_of_attach():
    found = read_notation({"item": ["a", Place("b", side="input")], "price": "c"}, "", "output")
    assert found.entries == [
        Entry(Place("a", "output"), {"item": None}),
        Entry(Place("b", "input"), {"item": None}),
        Entry(Place("c", "output"), {"price": None}),
    ]
    assert found.is_by_place
    assert found.fields is None


def test_the_widths_at_each_place():
    found = read_notation(None, {"a": {"u": 4, "i": 4}, Place("b"): {"u": 1}}, "input")
    assert found.entries == [
        Entry(Place("a", "input"), {"u": 4, "i": 4}),
        Entry(Place("b", "input"), {"u": 1}),
    ]


@pytest.mark.parametrize("at", ["deep", Place("deep"), [Place("deep")]])
def test_widths_beside_a_place_leave_open_which_fields_arrive_there(at):
    found = read_notation({"u": 4}, at, "output")
    assert found.entries == [Entry(Place("deep", "output"), None)]
    assert not found.is_by_place
    assert found.fields == tl.Fields({"u": 4})


@pytest.mark.parametrize(
    ("fields", "at", "error", "message"),
    [
        ({"u": ["a"], "v": ["a"]}, "", FieldError, "'u' and 'v' have the same columns, at='a'"),
        ({"u": [], "v": []}, "", FieldError, "'u' reaches no place.*; 'v' reaches no place"),
        ({"u": ["a"]}, "b", AttachError, "places in fields= or in at=, but found both, at='b'"),
        ({"u": [3]}, "", AttachError, "must be the name of a submodule.* but is 3"),
        (
            {"u": [Place("a", part=1.5), Place("b", call=-1)]},
            "",
            AttachError,
            "part must be an index or a name, but is 1.5; call must be .* but is -1",
        ),
        ({"u": [Place("a", columns=(3, 3))]}, "", AttachError, r"\(8, 12\), but is \(3, 3\)"),
        ({"u": [Place("a", columns=[1, 3])]}, "", AttachError, r"but is \[1, 3\]"),
        ({"u": [Place("a", side="top")]}, "", AttachError, "side must be 'input' or 'output'"),
        (None, {}, AttachError, "at=, but it is empty"),
        (None, {"a": {}}, FieldError, r"at='a' \(input\): expected the width of each field"),
        (None, {"a": 4}, FieldError, "name -> width, but found 4"),
        (None, {"a": {"u": 0}}, FieldError, "width of 'u' must be a whole number"),
        (None, {"a": {"u": 1}, Place("a"): {"v": 1}}, AttachError, "each once"),
        (
            [Field("u", 3), Field("w", 2)],
            {"a": {"u": 4, "v": 1}},
            FieldError,
            "'v' is not in fields=; 'u' is 3 wide in fields=, but 4 at its places; "
            "the field 'w' reaches no place",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(fields, at, error, message):
    with pytest.raises(error, match=message):
        read_notation(fields, at, "input")


def test_fields_beside_the_places_bring_cost_and_group():
    given = [Field("u", 5, cost=2.0), Field("v", 1, group="g")]
    found = read_notation(given, {"a": {"u": 4, "v": 1}, "b": {"u": 1}}, "input")
    assert found.fields == tl.Fields(given)
