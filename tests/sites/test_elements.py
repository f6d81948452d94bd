"""Elements of tuples, lists, dicts and named tuples: taken out and put in again."""

from collections import OrderedDict, namedtuple
from types import MappingProxyType

import pytest

from torchleap import AttachError
from torchleap.sites.elements import put, take

Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize(
    ("value", "part", "expected"),
    [
        ((1, 2, 3), 1, (1, 0, 3)),
        ([1, 2], -1, [1, 0]),
        ({"a": 1, "b": 2}, "a", {"a": 0, "b": 2}),
        (OrderedDict(a=1, b=2), "b", OrderedDict(a=1, b=0)),
        (Pair(1, 2), "second", Pair(1, 0)),
        (Pair(1, 2), 0, Pair(0, 2)),
    ],
)
def test_one_element_is_replaced_and_the_rest_passes(value, part, expected):
    before = repr(value)
    assert take(value, part, "at='m'") != 0
    changed = put(value, part, 0, "at='m'")
    assert changed == expected
    assert type(changed) is type(value)
    assert take(changed, part, "at='m'") == 0
    assert repr(value) == before


@pytest.mark.parametrize(
    ("value", "part", "message"),
    [
        ((1, 2), 2, "there is no part 2, but found a tuple of 2. Choose an index from 0 to 1"),
        ([1], "a", "there is no part 'a', but found a list of 1"),
        ({"item": 1}, "itme", "a dict. Did you mean 'item'"),
        (Pair(1, 2), "fist", "a Pair. Did you mean 'first'"),
        (5, 0, r"one value \(int\). Leave out part="),
    ],
)
def test_an_element_that_does_not_exist_is_refused(value, part, message):
    with pytest.raises(AttachError, match=message):
        take(value, part, "at='m'")


def test_a_dict_that_cannot_change_is_refused():
    with pytest.raises(AttachError, match="can be copied and changed, but found mappingproxy"):
        put(MappingProxyType({"a": 1}), "a", 0, "at='m'")
