"""What a plan says before anything is cut."""

import pytest
import torch
from torch import nn
from torch.utils import flop_counter

import torchleap as tl
from tests.architectures import ARCHITECTURES, NAMES, WIDTH, attached
from tests.surgery.helpers import prepared
from torchleap.surgery import Unread
from torchleap.surgery.rules.facts import Form, form_of


def test_it_prints_every_cut_before_and_after():
    _, plugin, _ = attached("wide_deep")
    plan = plugin.plan(plugin.select(share=0.6))
    assert str(plan).splitlines() == [
        "Plan: drop 2 of 5 fields, 8 of 20 dimensions; 645 => 414 (-36%) parameters, "
        "2,716 => 1,792 (-34%) bytes, 356 => 220 (-38%) multiply-adds per row",
        "layer                         before => after  parameters",
        "tables.user  Embedding(12, 4) => removed              -48",
        "tables.item  Embedding(12, 4) => removed              -48",
        "wide         Linear(20, 1) => Linear(12, 1)            -7",
        "deep.0       Linear(20, 16) => Linear(12, 16)        -128",
        "No longer read: user, item.",
    ]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("per_dimension", [False, True])
def test_the_numbers_are_those_of_the_pruned_model(name, per_dimension):
    model, plugin, _ = attached(name, per_dimension=per_dimension)
    selection = plugin.select(share=0.6)
    plan, small = plugin.plan(selection), plugin.prune(selection)
    assert plan.parameters[1] == sum(p.numel() for p in small.parameters())
    assert plan.bytes[1] == sum(
        t.numel() * t.element_size() for t in (*small.parameters(), *small.buffers())
    )
    plugin.detach()
    assert plan.parameters[0] == sum(p.numel() for p in model.parameters())
    created = plan.parameters[1] - plan.parameters[0] - sum(cut.parameters for cut in plan.cuts)
    assert created == 0
    assert tl.plan_of(small).cuts == plan.cuts


class Weighted(nn.Module):
    """A layer that is called with a parameter, which PyTorch's tracker of modules refuses."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(7))
        self.act = nn.ReLU()
        self.layer = nn.Linear(20, 7)

    def forward(self, x):
        return self.layer(x) * self.act(self.scale)


def test_multiply_adds_are_counted_where_a_layer_is_called_with_a_parameter():
    plugin, _ = prepared(Weighted(), at="layer")
    assert plugin.plan(plugin.select(share=0.6)).multiply_adds == (20 * 7, 12 * 7)


def test_a_count_of_multiply_adds_that_fails_refuses_no_plan(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("an unknown shape")

    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.addmm, refuse)
    plugin, _ = prepared(Weighted(), at="layer")
    plan = plugin.plan(plugin.select(share=0.6))
    assert plan.multiply_adds == (None, None)
    assert "unknown multiply-adds per row" in repr(plan)
    assert plan.parameters[1] < plan.parameters[0]


def test_multiply_adds_are_those_of_the_matrix_products():
    model = nn.Sequential(nn.Linear(20, 7), nn.ReLU(), nn.Linear(7, 1))
    plugin = tl.attach(model, dict.fromkeys(NAMES, WIDTH))
    for _ in range(2):
        model(torch.randn(16, 20))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, 5))
    assert plugin.plan(plugin.select(share=0.6)).multiply_adds == (20 * 7 + 7, 12 * 7 + 7)


def test_it_says_which_inputs_are_no_longer_read():
    _, plugin, _ = attached("deepfm")
    assert plugin.plan(plugin.select(share=0.6)).unread == (Unread("x", (0, 1)),)
    _, plugin, _ = attached("wide_deep")
    assert plugin.plan(plugin.select(share=0.6)).unread == (Unread("user"), Unread("item"))
    assert str(Unread("x", (0, 1, 2, 5, 7, 8))) == "x columns 0-2, 5, 7-8"


def test_it_says_which_inputs_of_dropped_fields_are_read_past_the_gates():
    class Leaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = nn.Linear(20, 1)
            self.shortcut = nn.Linear(1, 1)

        def forward(self, x):
            return self.deep(x) + self.shortcut(x[:, :1])

    model = Leaky()
    plugin = tl.attach(model, dict.fromkeys(NAMES, WIDTH), at="deep")
    for _ in range(2):
        model(torch.randn(16, 20))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, 5))
    plan = plugin.plan(plugin.select(share=0.8))
    assert "Dropped, but still read past the gates: x columns 0." in plan.notes
    assert plan.unread == (Unread("x", (1, 2, 3)),)


def test_it_names_what_cannot_be_cut_and_why():
    _, plugin, _ = attached("fibinet")
    notes = plugin.plan(plugin.select(share=0.6)).notes
    assert (
        "mul() in FiBiNET multiplies dropped fields with others: 8 constants fed (exact)." in notes
    )
    _, plugin, _ = attached("transformer")
    notes = plugin.plan(plugin.select(share=0.6)).notes
    assert notes == ("encoder (TransformerEncoder) needs all columns: 16 constants fed (exact).",)


def test_rows_of_a_table_for_all_fields_go_with_their_field():
    _, plugin, _ = attached("deepfm")
    plan = plugin.plan(plugin.select(share=0.6))
    cuts = {cut.path: (cut.before, cut.after) for cut in plan.cuts}
    assert cuts["table"] == ("Embedding(60, 4)", "Embedding(36, 4)")
    assert cuts["offsets"] == ("Buffer(5,)", "Buffer(3,)")
    assert "each id in `table` lies within the rows of its own field" in plan.assumptions


def test_a_form_is_found_where_one_axis_tells_what_is_there():
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[[0, 2]] = True
    assert form_of(mask) == Form(1, (0, 2))
    assert torch.equal(Form(1, (0, 2)).mask((3, 4)), mask)
    assert form_of(mask.T.contiguous()) == Form(2, (0, 2))
    assert form_of(torch.ones(3, 4, dtype=torch.bool)) is None
    mask[0, 0] = False
    assert form_of(mask) is None
    assert Form(1, (2, 5, 9)).places([5, 7, 9]) == [1, 2]


@pytest.mark.parametrize("example", [torch.randn(4, 3), (torch.randn(4, 20), 1), "a batch"])
def test_an_example_that_the_model_does_not_take_is_one_clear_sentence(example):
    _, plugin, _ = attached("wide_deep")
    with pytest.raises(
        tl.SurgeryError, match="The model does not take the example \\(.*Give a batch as forward"
    ):
        plugin.plan(plugin.select(share=0.6), example=example)
