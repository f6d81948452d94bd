"""Each rule alone is exact to the last digits, without the self-check that would hide mistakes."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import ARCHITECTURES, attached
from tests.surgery.helpers import COLUMNS
from tests.surgery.test_code import CODE, LAYERS, Code, Layers
from tests.surgery.test_traps import Trap
from tests.surgery.unchecked import cut_exactly, keeping, trained
from torchleap.surgery.prepare import Surgery
from torchleap.surgery.rules.facts import Form
from torchleap.surgery.runtime import kept_columns

MIXES_ROWS = "batch norm without statistics"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_rules_are_exact_for_every_architecture(name, monkeypatch):
    _, plugin, make = attached(name, torch.float64)
    cut_exactly(monkeypatch, plugin, make)
    cut_exactly(monkeypatch, plugin, make, plugin.select(share=1.0))


@pytest.mark.parametrize("per_dimension", [False, True], ids=["fields", "dimensions"])
@pytest.mark.parametrize("name", [name for name in LAYERS if name != MIXES_ROWS])
def test_the_rules_are_exact_for_every_layer(name, per_dimension, monkeypatch):
    model = Layers(*LAYERS[name]())
    model(torch.randn(4, COLUMNS))  # gives the head its width
    spread = 1 if per_dimension else None
    plugin, make = trained(
        model, at="fields", side="output", per_dimension=per_dimension, spread=spread
    )
    cut_exactly(monkeypatch, plugin, make)


@pytest.mark.parametrize("per_dimension", [False, True], ids=["fields", "dimensions"])
@pytest.mark.parametrize("name", CODE)
def test_the_rules_are_exact_for_every_piece_of_code(name, per_dimension, monkeypatch):
    spread = 1 if per_dimension else None
    plugin, make = trained(
        Code(*CODE[name]), at="fields", side="output", per_dimension=per_dimension, spread=spread
    )
    cut_exactly(monkeypatch, plugin, make)


def behind(function, width, **layers):
    """A model that does this to its columns, and reads a weight for each of them."""
    weight = nn.Parameter(torch.rand(COLUMNS) + 0.5)
    return Trap(function, width, weight=weight, **layers)


def test_a_parameter_that_is_also_read_whole_is_not_cut(monkeypatch):
    plugin, make = trained(
        behind(lambda m, x: x * m.weight + m.weight.sum(), COLUMNS), at="fields", side="output"
    )
    assert cut_exactly(monkeypatch, plugin, make).weight.shape == (COLUMNS,)


@pytest.mark.parametrize("shape", [(COLUMNS,), (1, COLUMNS)])
def test_a_parameter_that_is_broadcast_over_the_rows_is_cut(shape, monkeypatch):
    model = Trap(lambda m, x: x * m.weight, COLUMNS, weight=nn.Parameter(torch.rand(shape) + 0.5))
    plugin, make = trained(model, at="fields", side="output")
    assert cut_exactly(monkeypatch, plugin, make).weight.shape == (*shape[:-1], 12)


def test_a_slice_of_kept_columns_reads_no_constants(monkeypatch):
    model = behind(lambda m, x: (x[:, 8:] * m.weight[8:]).relu(), 12)
    plugin, make = trained(model, at="fields", side="output")
    selection = keeping(plugin, "city", "shop", "hour")
    assert plugin.plan(selection).notes == ()
    cut_exactly(monkeypatch, plugin, make, selection)


def test_equal_constants_of_two_precisions_stay_apart(monkeypatch):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fields = nn.Identity()

        def forward(self, x):
            x = self.fields(x)
            return x.float()[:, :4], x[:, :4], x

    plugin, make = trained(Twice(), at="fields", side="output")
    plugin.gates.mean.fill_(0.5)
    plugin.gates.steps.fill_(10**6)  # so that the mean is just this number
    with monkeypatch.context() as patch:
        patch.setattr(Surgery, "check", lambda surgery, trial: None)
        small = plugin.prune(keeping(plugin, "city", "shop", "hour"))
    single, double, _ = small(make())
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    assert torch.equal(single, torch.full((32, 4), 0.5))
    assert torch.equal(double, torch.full((32, 4), 0.5, dtype=torch.float64))


@pytest.mark.parametrize(("width", "runs"), [(1, ()), (128, ((0, 128), (256, 128)))])
def test_neighbours_are_copied_and_scattered_columns_picked(width, runs):
    fields = {f"f{place}": width for place in range(512 // width)}
    model = nn.Sequential(nn.Linear(512, 1))
    plugin = tl.attach(model, fields, at="0")
    batch = torch.randn(4, 512)
    model(batch)
    small = plugin.prune(
        keeping(plugin, *[name for name in fields if int(name[1:]) % 2 == 0])
    ).eval()
    (read,) = (node for node in type(small).pruned_graph.nodes if node.target is kept_columns)
    assert read.args[4] == runs
    with pytest.raises(
        tl.FieldError, match="Expected 512 columns, or the 256 that are still read, but found 513"
    ):
        small(torch.randn(4, 513))
    with pytest.raises(tl.FieldError, match="but found 511"):
        small(batch[:, 1:])


def test_a_sum_in_another_precision_keeps_it(monkeypatch):
    model = behind(lambda m, x: x.float().view(-1, 5, 4).sum(1, dtype=torch.float64), 4)
    plugin, make = trained(model, at="fields", side="output")
    plugin.gates.mean.zero_()  # nothing is added, which would bring the precision back
    cut_exactly(monkeypatch, plugin, make, scale=1e-6)


@pytest.mark.parametrize("first", [nn.Dropout(0.5), nn.BatchNorm1d(COLUMNS)])
def test_layers_absorb_what_the_gates_do_and_dropout_passes_it_on(first, monkeypatch):
    model = Layers(first, nn.Identity(), nn.Linear(COLUMNS, 6))
    model(torch.randn(4, COLUMNS))
    plugin, make = trained(model, at="fields", side="output")
    small = cut_exactly(monkeypatch, plugin, make)
    assert [name for name, _ in small.named_buffers() if "constant" in name] == []


def test_parts_of_a_split_that_are_kept_read_no_constants(monkeypatch):
    model = behind(lambda m, x: torch.cat([part * 2 for part in x.split(4, 1)[2:]], 1), 12)
    plugin, make = trained(model, at="fields", side="output")
    selection = keeping(plugin, "city", "shop", "hour")
    assert plugin.plan(selection).notes == ()
    cut_exactly(monkeypatch, plugin, make, selection)


def test_a_form_is_a_value():
    form = Form(1, (0, 2))
    assert form == Form(1, (0, 2)) != Form(2, (0, 2))
    assert len({form, Form(1, (0, 2))}) == 1
    with pytest.raises(FrozenInstanceError):
        form.axis = 2
