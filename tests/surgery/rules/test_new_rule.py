"""The worked example of rules/base.py: a new rule of some twenty lines, registered and exact."""

import inspect

import torch
from torch import nn
from torch.nn import functional

from tests.surgery.unchecked import cut_exactly, keeping, trained
from torchleap.surgery.rules import base
from torchleap.surgery.rules.base import CutRule, spread
from torchleap.surgery.rules.facts import Facts
from torchleap.surgery.rules.registry import CALLS
from torchleap.surgery.rules.written import Written


class TokenNorm(CutRule):
    def applies(self, node, view):
        last = len(view.trace.shape(node))  # the axis of the width
        return len(view.row_sources(node)) == 1 and node.kwargs.get("dim") in (-1, last)

    def facts(self, node, view):
        (source,) = view.row_sources(node)
        known = view.facts[source]
        value = view.evaluate(node, {source: known.value})
        return Facts(known.const.all(-1, keepdim=True).expand(value.shape), value)

    def request(self, node, view):
        (source,) = view.row_sources(node)
        view.request(source, spread(view.live(node), -1, view.trace.shape(source)))

    def write(self, node, writer):
        (source,) = writer.view.row_sources(node)
        held = writer.plain(source)  # the part that is computed, scale and shift applied
        if held.form is not None and held.form.axis == len(writer.view.trace.shape(source)):
            held = writer.plain_part(source, None)  # it needs the complete width
        return Written(writer.copy(node, lambda _: held.node), held.form)


class Normalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = nn.Linear(20, 3)

    def forward(self, x):
        tokens = functional.normalize(x.view(-1, 5, 4), dim=-1)
        return self.deep(tokens.flatten(1))


def test_without_the_rule_the_layer_behind_stays(monkeypatch):
    torch.manual_seed(0)
    plugin, make = trained(Normalized())
    small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, "user", "city"))
    assert small.deep.in_features == 20


def test_with_the_rule_the_layer_behind_is_cut_exactly(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setitem(CALLS, functional.normalize, TokenNorm())
    plugin, make = trained(Normalized())
    small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, "user", "city"))
    assert small.deep.in_features == 8


def test_the_documentation_shows_the_rule_as_it_is_tested():
    shown = inspect.cleandoc(base.__doc__)
    for line in inspect.getsource(TokenNorm).splitlines():
        assert line.strip() in shown
