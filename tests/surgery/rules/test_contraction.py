"""Products with matrices in other places than behind a linear layer, without the self-check."""

import itertools

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import NAMES, WIDTH
from tests.surgery.helpers import COLUMNS
from tests.surgery.rules.test_sums import KEPT, added, cut
from tests.surgery.test_traps import Trap
from tests.surgery.unchecked import cut_exactly, keeping, trained

FIELDS = len(NAMES)
PAIRS = torch.tensor(list(itertools.combinations(range(FIELDS), 2)))


def parameter(*shape):
    return nn.Parameter(torch.randn(*shape, dtype=torch.float64) * 0.3)


def tokens(x):
    return x.view(-1, FIELDS, WIDTH)


@pytest.mark.parametrize(
    ("function", "shape", "after"),
    [
        (lambda m, x: (m.matrix @ x.unsqueeze(2)).squeeze(2), (6, 20), (6, 8)),
        (lambda m, x: torch.matmul(m.matrix.t(), x.unsqueeze(2)).squeeze(2), (20, 6), (8, 6)),
        (lambda m, x: (m.matrix @ tokens(x)).flatten(1), (6, 5), (6, 2)),
        (lambda m, x: (m.matrix @ tokens(x).transpose(1, 2)).flatten(1), (6, 4), (6, 4)),
        (lambda m, x: torch.tensordot(x, m.matrix, dims=([1], [0])), (20, 6), (8, 6)),
        (lambda m, x: torch.tensordot(tokens(x), m.matrix, ([-2], [1])).flatten(1), (6, 5), (6, 2)),
        (lambda m, x: torch.einsum("bfe,of->boe", tokens(x), m.matrix).flatten(1), (6, 5), (6, 2)),
        (
            lambda m, x: torch.einsum("feo,bfe->bfo", m.matrix, tokens(x)).flatten(1),
            (5, 4, 3),
            (2, 4, 3),
        ),
        (lambda m, x: torch.einsum("bfe,feo->bo", [tokens(x), m.matrix]), (5, 4, 3), (2, 4, 3)),
        (lambda m, x: (tokens(x).unsqueeze(2) @ m.matrix).flatten(1), (5, 4, 3), (2, 4, 3)),
        (lambda m, x: (m.matrix @ x.unsqueeze(2)).squeeze(2)[:, 1:3], (6, 20), (2, 8)),
    ],
)
def test_the_matrix_is_cut_where_its_columns_are_dropped(function, shape, after, monkeypatch):
    probe = Trap(function, 1, matrix=parameter(*shape))
    width = function(probe, torch.randn(2, COLUMNS, dtype=torch.float64)).shape[1]
    small, notes = cut(monkeypatch, Trap(function, width, matrix=parameter(*shape)))
    assert notes == ()
    assert tuple(small.matrix.shape) == after


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: torch.einsum("bi,io->bo", x, m.matrix) + m.matrix.sum(),
        lambda m, x: torch.einsum("bi,io", x, m.matrix),
        lambda m, x: torch.einsum("...i,io->...o", x, m.matrix),
        lambda m, x: torch.tensordot(x, m.matrix, dims=1),
        lambda m, x: torch.einsum("bi,io->bo", x, m.matrix * 2),
        lambda m, x: (
            torch.einsum("bi,io->bo", x, m.matrix) + (m.matrix.sum(1) @ torch.ones(20).double())
        ),
    ],
)
def test_a_matrix_that_something_else_reads_stays(function, monkeypatch):
    small, _ = cut(monkeypatch, Trap(function, 6, matrix=parameter(20, 6)))
    assert small.matrix.shape == (20, 6)


def crossed(model, x):
    first = x.unsqueeze(2)
    found = first
    for layer in range(2):
        found = first * (model.kernels[layer] @ found + model.biases[layer]) + found
    return found.squeeze(2)


def test_slices_of_one_parameter_that_are_cut_alike_stay_one_parameter(monkeypatch):
    layers = {"kernels": parameter(2, COLUMNS, COLUMNS), "biases": parameter(2, COLUMNS, 1)}
    small, notes = cut(monkeypatch, Trap(crossed, COLUMNS, **layers))
    assert notes == ()
    assert small.kernels.shape == (2, 8, 8)
    assert added(small) == [(1, 16), (8, 8)]


def test_slices_that_are_cut_in_other_ways_become_parameters_of_their_own(monkeypatch):
    def function(model, x):
        found = torch.tanh(model.kernels[0] @ x.unsqueeze(2))
        return (model.kernels[1] @ found).squeeze(2)

    small, notes = cut(monkeypatch, Trap(function, COLUMNS, kernels=parameter(2, COLUMNS, COLUMNS)))
    assert notes == ()
    assert small.kernels is None
    shapes = {name: tuple(each.shape) for name, each in small.named_parameters() if "part" in name}
    assert shapes == {"kernels_of_part": (20, 8), "kernels_of_part_": (20, 20)}


def test_a_parameter_that_two_products_need_in_other_parts_stays(monkeypatch):
    def function(model, x):
        found = torch.tanh(model.matrix @ x.unsqueeze(2))
        return (model.matrix @ found).squeeze(2)

    small, _ = cut(monkeypatch, Trap(function, COLUMNS, matrix=parameter(COLUMNS, COLUMNS)))
    assert small.matrix.shape == (COLUMNS, COLUMNS)


def test_parameters_of_parts_are_trained_on():
    def function(model, x):
        found = torch.tanh(model.kernels[0] @ x.unsqueeze(2))
        return (model.kernels[1] @ found).squeeze(2)

    torch.manual_seed(0)
    model = Trap(function, COLUMNS, kernels=parameter(2, COLUMNS, COLUMNS))
    plugin, _ = trained(model, at="fields", side="output")
    small = plugin.prune(keeping(plugin, *KEPT))
    optimizer = tl.carry_over(torch.optim.Adam(model.parameters()), model, small)
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    assert held == {id(one) for one in small.parameters()}


def test_a_layer_that_is_called_several_times_alike_is_cut(monkeypatch):
    gate = nn.Linear(COLUMNS, 1)
    model = Trap(lambda m, x: torch.sigmoid(m.gate(x)) * m.gate(x * x.abs()), 1, gate=gate)
    small, notes = cut(monkeypatch, model)
    assert notes == ()
    assert small.gate.in_features == 8


def test_a_layer_that_is_called_several_times_on_other_columns_stays(monkeypatch):
    gate = nn.Linear(COLUMNS, 1)
    model = Trap(lambda m, x: m.gate(x) * m.gate(x.flip(1)), 1, gate=gate)
    small, notes = cut(monkeypatch, model, "user", "item")
    assert len(notes) > 0
    assert small.gate.in_features == COLUMNS


# Products of two nodes with rows


def experts(model, x):
    first = x.unsqueeze(2)
    found = first
    for layer in range(2):
        outputs = []
        for down, up in zip(model.down[layer], model.up[layer], strict=True):
            hidden = torch.tanh(down.t() @ found)
            outputs.append((first * (up @ hidden + model.bias)).squeeze(2))
        gates = torch.stack([gate(found.squeeze(2)) for gate in model.gates], 1)
        found = torch.stack(outputs, 2) @ gates.softmax(1) + found
    return found.squeeze(2)


@pytest.mark.parametrize("rank", [1, 6])
def test_a_mixture_of_crosses_is_exact_and_cut_where_its_rank_is_low(rank, monkeypatch):
    parts = {
        "gates": nn.ModuleList([nn.Linear(COLUMNS, 1, bias=False) for _ in range(2)]),
        "down": parameter(2, 2, COLUMNS, rank),
        "up": parameter(2, 2, COLUMNS, rank),
        "bias": parameter(COLUMNS, 1),
    }
    small, notes = cut(monkeypatch, Trap(experts, COLUMNS, **parts))
    if rank == 1:
        assert notes == ()
        assert (small.down.shape, small.up.shape) == ((2, 2, 8, 1), (2, 2, 8, 1))
        assert {gate.in_features for gate in small.gates} == {8}


@pytest.mark.parametrize("names", [KEPT, ("user",), NAMES[:4]])
@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: (x.unsqueeze(2) @ m.one(x).unsqueeze(2)).squeeze(2),
        lambda m, x: (m.one(x).unsqueeze(2) @ x.unsqueeze(1)).squeeze(1),
        lambda m, x: (tokens(x) @ tokens(x).transpose(1, 2)).flatten(1),
        lambda m, x: torch.bmm(
            tokens(x) * m.one(x).unsqueeze(2), tokens(x).transpose(1, 2)
        ).flatten(1),
        lambda m, x: (
            (tokens(x) @ (tokens(x) * m.one(x).unsqueeze(2)).transpose(1, 2)).abs().flatten(1)
        ),
        lambda m, x: ((tokens(x) @ tokens(x).transpose(1, 2)).softmax(-1) @ tokens(x)).flatten(1),
    ],
)
def test_products_of_rows_are_exact(function, names, monkeypatch):
    one = nn.Linear(COLUMNS, 1)
    width = function(Trap(function, 1, one=one), torch.randn(2, COLUMNS)).shape[1]
    cut(monkeypatch, Trap(function, width, one=one), *names)


def test_a_column_of_constants_times_a_scalar_is_one_feature(monkeypatch):
    def function(model, x):
        return (x.unsqueeze(2) @ model.one(x).unsqueeze(2)).squeeze(2)

    small, notes = cut(monkeypatch, Trap(function, COLUMNS, one=nn.Linear(COLUMNS, 1)))
    assert notes == ()
    assert (small.head.in_features, added(small)) == (8, [(1, 1)])


# Layouts that these models use


def test_pairs_that_are_selected_by_an_index_keep_those_of_kept_fields(monkeypatch):
    def function(model, x):
        left = torch.index_select(tokens(x), 1, model.left)
        right = torch.index_select(tokens(x), 1, model.right)
        return (torch.matmul(left.unsqueeze(2), model.matrix).squeeze(2) * right).flatten(1)

    model = Trap(function, len(PAIRS) * WIDTH, matrix=parameter(len(PAIRS), WIDTH, WIDTH))
    model.register_buffer("left", PAIRS[:, 0].contiguous())
    model.register_buffer("right", PAIRS[:, 1].contiguous())
    small, notes = cut(monkeypatch, model)
    assert notes == ()
    assert (small.head.in_features, small.matrix.shape) == (WIDTH, (1, WIDTH, WIDTH))


def test_a_split_that_is_joined_again_keeps_the_parts_of_kept_fields(monkeypatch):
    def function(model, x):
        return torch.cat(torch.split(tokens(x), 1, dim=1), -1).flatten(1)

    small, notes = cut(monkeypatch, Trap(function, COLUMNS))
    assert notes == ()
    assert small.head.in_features == 8


def test_a_split_of_the_rows_is_joined_again_as_it_is(monkeypatch):
    torch.manual_seed(0)
    model = Trap(
        lambda m, x: torch.stack(torch.chunk(m.layer(x), 2, 1), 1).sum(1),
        3,
        layer=nn.Linear(COLUMNS, 6),
    )
    plugin, make = trained(model, at="fields", side="output")
    cut_exactly(monkeypatch, plugin, make, keeping(plugin, *KEPT))


# Outer products, as in CIN


def cin(model, x):
    first = tokens(x)
    found = first
    results = []
    for convolution in model.convolutions:
        outer = torch.einsum("bhd,bmd->bhmd", found, first)
        found = convolution(outer.reshape(x.shape[0], -1, WIDTH)).relu()
        results.append(found.sum(-1))
    return torch.cat(results, 1)


def convolutions():
    layers = [nn.Conv1d(FIELDS * FIELDS, 3, 1), nn.Conv1d(3 * FIELDS, 4, 1, bias=False)]
    return nn.ModuleList(layers)


def test_an_outer_product_leaves_out_the_pairs_of_constants(monkeypatch):
    small, _ = cut(monkeypatch, Trap(cin, 7, convolutions=convolutions()))
    assert [layer.in_channels for layer in small.convolutions] == [25 - 9, 15]


def test_with_zeros_an_outer_product_leaves_out_all_pairs_of_dropped_fields():
    torch.manual_seed(0)
    plugin, _ = trained(Trap(cin, 7, convolutions=convolutions()), at="fields", side="output")
    small = plugin.prune(keeping(plugin, *KEPT), fill="zero")
    assert [layer.in_channels for layer in small.convolutions] == [4, 6]


@pytest.mark.parametrize("names", [KEPT, ("user",), NAMES[:4]])
@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: torch.einsum("bi,bj->bij", x, x).flatten(1),
        lambda m, x: torch.einsum("bi,bj->bji", x, m.one(x)).flatten(1),
        lambda m, x: torch.einsum("bi,bi->bi", x, m.same(x)),
        lambda m, x: torch.einsum("bi,bi->b", x, m.same(x)).unsqueeze(1),
        lambda m, x: torch.einsum("bfd,bd->bdf", tokens(x), m.narrow(x)).flatten(1).abs(),
        lambda m, x: torch.einsum("bf,bf->bf", x * m.one(x), m.same(x)),
    ],
)
def test_outer_products_are_exact(function, names, monkeypatch):
    layers = {
        "one": nn.Linear(COLUMNS, 1),
        "same": nn.Linear(COLUMNS, COLUMNS),
        "narrow": nn.Linear(COLUMNS, WIDTH),
    }
    width = function(Trap(function, 1, **layers), torch.randn(2, COLUMNS)).shape[1]
    cut(monkeypatch, Trap(function, width, **layers), *names)
