"""Functions in a copied model refer to the copy."""

import functools
import types
import weakref

import torch
from torch import nn

from torchleap._common.copies import copied, memo_of


def copy_of(model, *, share=False):
    return copied(model, memo_of(model, share=share))


def test_closures_defaults_and_arguments_refer_to_the_copy():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    first = model[0]
    table = {"layers": [first]}

    def by_default(x, layer=first, *, other=first):
        return layer, other

    @functools.wraps(by_default)
    def wrapped(x):
        return by_default(x)

    model.closure = lambda: first
    model.nested = [lambda: table["layers"][0]]
    model.by_default = by_default
    model.wrapped = wrapped
    model.partial = functools.partial(lambda layer, x: layer, first)
    model.method = types.MethodType(lambda self: (self, first), model)
    model.reference = weakref.ref(first)
    model.plain = abs
    small = copy_of(model)
    assert small.closure() is small[0] is not first
    assert small.nested[0]() is small[0]
    assert small.by_default(1) == (small[0], small[0])
    assert small.wrapped(1) == (small[0], small[0])
    assert small.wrapped.__wrapped__ is small.by_default
    assert small.wrapped.__name__ == "by_default"
    assert small.partial(1) is small[0]
    assert small.method() == (small, small[0])
    assert small.reference() is small[0]
    assert small.plain is abs
    assert model.closure() is first  # the original has not changed
    assert model.nested[0]() is first


def test_a_function_that_refers_to_itself_is_made_once():
    model = nn.Linear(2, 2)
    calls = []

    def count(depth):
        calls.append(model)
        return depth if depth == 0 else count(depth - 1)

    model.count = count
    small = copy_of(model)
    assert small.count(2) == 0
    assert small.count.__closure__[1].cell_contents is small.count
    assert calls == [small] * 3


def test_functions_that_need_no_change_stay_the_same():
    model = nn.Linear(2, 2)
    factor = torch.ones(1)
    model.scaled = lambda x: x * factor
    model.hooks = [len, model.scaled]
    small = copy_of(model)
    assert small.scaled is model.scaled
    assert small.hooks[0] is len


def test_hooks_refer_to_the_copy():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].register_forward_hook(lambda module, args, output: output + model[0].bias)
    small = copy_of(model)
    x = torch.ones(1, 2)
    before = model(x)
    with torch.no_grad():
        small[0].bias += 100
        small[0].weight.zero_()
        small[1].weight.zero_()
    assert (small(x) > 50).all()
    torch.testing.assert_close(model(x), before)


def test_weights_that_a_copy_shares_stay_shared_in_closures():
    model = nn.Linear(2, 2)
    weight = model.weight
    model.norm = lambda: weight.square().sum()
    small = copy_of(model, share=True)
    assert small.norm is model.norm
    assert small.weight is weight
