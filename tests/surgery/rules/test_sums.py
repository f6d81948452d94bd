"""Products with constants become sums of features: exact, and smaller than feeding constants."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchleap as tl
from tests.architectures import NAMES, WIDTH, CrossNet
from tests.surgery.helpers import COLUMNS
from tests.surgery.test_traps import Trap
from tests.surgery.unchecked import cut_exactly, keeping, trained
from torchleap.surgery import prepare
from torchleap.surgery.prepare import Surgery
from torchleap.surgery.rules import elementwise, layout, sums
from torchleap.surgery.write import rewrite

KEPT = ("item", "shop")  # 8 columns, 12 are dropped
PAIRS = list(itertools.combinations(range(len(NAMES)), 2))


def cut(monkeypatch, model, *names, **settings):
    """Prune this model, and check that no constants are fed any more."""
    torch.manual_seed(0)
    plugin, make = trained(model, at="fields", side="output", **settings)
    selection = keeping(plugin, *(names or KEPT))
    with monkeypatch.context() as patch:
        patch.setattr(Surgery, "check", lambda surgery, trial: None)
        notes = plugin.plan(selection).notes
    notes = tuple(note for note in notes if not note.startswith("fill="))
    return cut_exactly(monkeypatch, plugin, make, selection), notes


def added(small):
    """The sizes of the weights that surgery made."""
    named = small.named_parameters()
    return sorted(tuple(weight.shape) for name, weight in named if "_of_sums" in name)


def scalar_cross(model, x):
    found = x
    for layer, bias in zip(model.layers, model.biases, strict=True):
        found = x * layer(found) + bias + found
    return found


def test_a_cross_network_of_scalars_is_cut_with_its_dropped_columns(monkeypatch):
    layers = nn.ModuleList([nn.Linear(COLUMNS, 1, bias=False) for _ in range(3)])
    biases = nn.ParameterList([torch.randn(COLUMNS) for _ in range(3)])
    small, notes = cut(monkeypatch, Trap(scalar_cross, COLUMNS, layers=layers, biases=biases))
    assert notes == ()
    assert [layer.in_features for layer in small.layers] == [8, 8, 8]
    assert (small.head.in_features, small.biases[0].shape) == (8, (8,))
    assert added(small) == [(1, 1), (1, 2), (1, 3)]  # of the scalars of the layers before


def test_a_cross_network_of_matrices_is_cut_with_its_dropped_columns(monkeypatch):
    model = Trap(lambda m, x: m.cross(x), COLUMNS, cross=CrossNet(COLUMNS, 2))
    small, notes = cut(monkeypatch, model)
    assert notes == ()
    sizes = [(layer.in_features, layer.out_features) for layer in small.cross.layers]
    assert sizes == [(8, 8), (8, 8)]
    assert added(small) == [(1, 16), (8, 8)]


def test_few_dropped_columns_of_a_cross_network_are_fed_as_before(monkeypatch):
    model = Trap(lambda m, x: m.cross(x), COLUMNS, cross=CrossNet(COLUMNS, 5))
    small, notes = cut(monkeypatch, model, *NAMES[1:])
    assert len(notes) > 0
    assert [layer.out_features for layer in small.cross.layers] == [COLUMNS] * 5
    assert added(small) == []


def bilinear(model, x):
    tokens = torch.split(x.view(-1, len(NAMES), WIDTH), 1, 1)
    pairs = [layer(tokens[i]) * tokens[j] for (i, j), layer in zip(PAIRS, model.pairs, strict=True)]
    return torch.cat(pairs, 1).flatten(1)


def test_products_of_pairs_with_dropped_fields_are_read_from_the_kept_ones(monkeypatch):
    pairs = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in PAIRS])
    small, notes = cut(monkeypatch, Trap(bilinear, len(PAIRS) * WIDTH, pairs=pairs))
    assert notes == ()
    assert small.head.in_features == WIDTH  # the pair of both kept fields
    assert added(small) == [(1, 2 * WIDTH)]  # all pairs of one of them with a dropped one
    assert len(small.pairs) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: functional.dropout(-(x * m.layer(x)) / 2 + 1, 0.5, False),
        lambda m, x: (x * m.layer(x) * 3).reshape(-1, 5, 4).transpose(1, 2).flatten(1)[:, 3:],
        lambda m, x: 1 - (x * m.layer(x)).view(-1, 5, 4)[:, 1:].flatten(1) * m.weight,
        lambda m, x: x * m.layer(x) - (m.layer(x) * x) * x.abs(),
        lambda m, x: torch.stack([x * m.one(x), x * m.layer(x)], 2).flatten(1),
        lambda m, x: torch.cat([x * x.sum(1, keepdim=True), x], 1),
        lambda m, x: m.layer(x.view(-1, 5, 4).flip(1).flatten(1) * m.layer(x)),
        lambda m, x: m.token((x * m.one(x)).view(-1, 5, 4)).relu().flatten(1),
    ],
)
def test_sums_pass_operations_that_are_linear_and_are_computed_for_others(function, monkeypatch):
    widths = {"layer": (COLUMNS, COLUMNS), "one": (COLUMNS, 1), "token": (WIDTH, 3)}
    layers = {name: nn.Linear(*width) for name, width in widths.items()}
    width = function_width(function, layers)
    cut(monkeypatch, Trap(function, width, weight=nn.Parameter(torch.rand(16)), **layers))


def function_width(function, layers):
    probe = Trap(function, 1, weight=nn.Parameter(torch.rand(16)), **layers)
    return function(probe, torch.randn(2, COLUMNS)).shape[1]


def test_what_is_too_large_for_memory_is_fed_as_before(monkeypatch):
    for module in (sums, elementwise, layout):
        monkeypatch.setattr(module, "MOST_WEIGHTS", 20)
    model = Trap(lambda m, x: m.cross(x), COLUMNS, cross=CrossNet(COLUMNS, 2))
    small, notes = cut(monkeypatch, model)
    assert len(notes) > 0
    assert added(small) == []


def test_sums_of_another_precision_are_computed_one_by_one(monkeypatch):
    layer = nn.Linear(COLUMNS, COLUMNS)
    model = Trap(lambda m, x: x * m.layer(x.double().float().double()), COLUMNS, layer=layer)
    torch.manual_seed(0)
    plugin, make = trained(model, at="fields", side="output")
    cut_exactly(monkeypatch, plugin, make, keeping(plugin, *KEPT), scale=1e-5)


def test_weights_that_surgery_made_are_trained_on():
    torch.manual_seed(0)
    model = Trap(lambda m, x: m.cross(x), COLUMNS, cross=CrossNet(COLUMNS, 2))
    plugin, make = trained(model, at="fields", side="output")
    small = plugin.prune(keeping(plugin, *KEPT))
    optimizer = tl.carry_over(torch.optim.Adam(model.parameters()), model, small)
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    assert held == {id(one) for one in small.parameters()}
    small(make()).sum().backward()
    assert all(bool(one.grad.abs().sum() > 0) for one in small.parameters())


def test_weights_that_surgery_made_are_saved_and_loaded(tmp_path):
    torch.manual_seed(0)
    model = Trap(lambda m, x: m.cross(x), COLUMNS, cross=CrossNet(COLUMNS, 2))
    plugin, make = trained(model, at="fields", side="output")
    small = plugin.prune(keeping(plugin, *KEPT)).eval()
    tl.export.save(small, tmp_path / "small")
    loaded = tl.export.load(tmp_path / "small")
    torch.testing.assert_close(loaded(make()), small(make()))
    assert added(loaded) == added(small)


def test_a_model_with_weights_of_sums_is_pruned_again():
    torch.manual_seed(0)
    model = Trap(lambda m, x: m.cross(x), COLUMNS, cross=CrossNet(COLUMNS, 2))
    plugin, make = trained(model, at="fields", side="output")
    kept = keeping(plugin, *NAMES[1:4])
    small = plugin.prune(kept).eval()
    fields = dict.fromkeys(NAMES[1:4], WIDTH)
    again = tl.attach(small, fields, at="fields", side="output")
    small.train()(make())
    with torch.no_grad():
        again.gates.theta.fill_(3.0)
    plan = again.plan(keeping(again, "item"))
    twice = plan.apply().eval()
    with torch.no_grad(), again.masked(keeping(again, "item")):
        expected = small.eval()(make(seed=8))
    torch.testing.assert_close(twice(make(seed=8)), expected, rtol=1e-9, atol=1e-9)
    before, after = plan.parameters
    assert sum(cut.parameters for cut in plan.cuts) == after - before < 0


def test_the_plan_says_what_zeros_would_bring():
    torch.manual_seed(0)
    model = Trap(lambda m, x: m.cross(x), COLUMNS, cross=CrossNet(COLUMNS, 2))
    plugin, make = trained(model, at="fields", side="output")
    selection = keeping(plugin, *KEPT)
    plan = plugin.plan(selection, example=make())
    zero = plugin.plan(selection, example=make(), fill="zero")
    before, after = zero.parameters
    removed = f"{1 - after / before:.0%} of the parameters"
    instead = f"instead of {1 - plan.parameters[1] / before:.0%}"
    change = f"change the output on the example by up to {zero.change:.2g}."
    assert plan.notes == (f'fill="zero" would remove {removed} {instead}, and {change}',)


def test_the_plan_says_nothing_of_zeros_that_would_bring_little():
    torch.manual_seed(0)
    model = Trap(lambda m, x: x * m.one(x), COLUMNS, one=nn.Linear(COLUMNS, 1))
    plugin, _ = trained(model, at="fields", side="output")
    assert plugin.plan(keeping(plugin, *KEPT)).notes == ()


def test_a_hint_that_fails_leaves_the_plan_as_it_is(monkeypatch):
    def fail(trace, affine, *others):
        if calls:
            raise RuntimeError("a mistake")
        calls.append(1)
        return rewrite.rewrite(trace, affine, *others)

    calls = []
    torch.manual_seed(0)
    monkeypatch.setenv("TORCHLEAP_STRICT", "0")
    monkeypatch.setattr(prepare, "rewrite", fail)
    model = Trap(lambda m, x: m.cross(x), COLUMNS, cross=CrossNet(COLUMNS, 2))
    plugin, _ = trained(model, at="fields", side="output")
    assert plugin.plan(keeping(plugin, *KEPT)).notes == ()
