"""Copies of columns, new tensors, transposed weights and joined columns, without the self-check."""

import pytest
import torch
from torch import nn

from tests.surgery.helpers import COLUMNS
from tests.surgery.test_traps import Trap
from tests.surgery.unchecked import cut_exactly, keeping, trained

COPIES = 3


class Members(nn.Module):
    """Members of an ensemble that scale the columns, and share a weight."""

    def __init__(self, copies):
        super().__init__()
        self.copies = copies
        self.scale = nn.Parameter(torch.randn(COPIES, COLUMNS))
        self.weight = nn.Parameter(torch.randn(6, COLUMNS))
        self.head = nn.Linear(6 * COPIES, 1)

    def forward(self, x):
        members = self.copies(x) * self.scale
        return self.head(torch.relu(members @ self.weight.T).flatten(1))


@pytest.mark.parametrize(
    "copies",
    [
        lambda x: x.unsqueeze(1).expand(-1, COPIES, -1),
        lambda x: x.unsqueeze(-2).expand(x.shape[0], COPIES, COLUMNS),
        lambda x: x.unsqueeze(1).expand((-1, COPIES, COLUMNS)),
    ],
)
def test_the_columns_of_all_members_are_cut(monkeypatch, copies):
    torch.manual_seed(0)
    plugin, make = trained(Members(copies))
    small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, "user", "city"))
    assert small.weight.shape == (6, 8)
    assert small.scale.shape == (COPIES, 8)


def test_copies_of_a_whole_field_are_cut_with_it(monkeypatch):
    def function(model, x):
        return x.view(-1, 5, 1, 4).expand(-1, 5, 2, 4).flatten(1)

    torch.manual_seed(0)
    plugin, make = trained(Trap(function, 2 * COLUMNS))
    small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, "user", "city"))
    assert small.head.in_features == 16


def test_a_layer_whose_bias_differs_between_members_has_the_sizes_of_its_weight(monkeypatch):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(COPIES, COLUMNS))
            self.layer = nn.Linear(COLUMNS, 6)
            self.head = nn.Linear(6 * COPIES, 1)

        def forward(self, x):
            members = x.unsqueeze(1).expand(-1, COPIES, -1) * self.scale
            return self.head(torch.relu(self.layer(members)).flatten(1))

    torch.manual_seed(0)
    plugin, make = trained(Shared())
    small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, "user", "city"))
    assert small.layer.weight.shape == (6, 8)
    assert small.layer.in_features == 8


@pytest.mark.parametrize(
    "turned",
    [
        lambda weight: weight.T,
        lambda weight: weight.t(),
        lambda weight: weight.transpose(0, 1),
        lambda weight: torch.transpose(weight, -1, -2),
        lambda weight: weight.mT,
    ],
)
def test_a_transposed_weight_is_cut(monkeypatch, turned):
    torch.manual_seed(0)
    model = Trap(lambda model, x: x @ turned(model.weight), 6)
    model.weight = nn.Parameter(torch.randn(6, COLUMNS))
    plugin, make = trained(model)
    small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, "user", "city"))
    assert small.weight.shape == (6, 8)


def test_a_weight_that_is_transposed_twice_is_cut(monkeypatch):
    torch.manual_seed(0)
    model = Trap(lambda model, x: nn.functional.linear(x, model.weight.T.T), 6)
    model.weight = nn.Parameter(torch.randn(6, COLUMNS))
    plugin, make = trained(model)
    small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, "user", "city"))
    assert small.weight.shape == (6, 8)


@pytest.mark.parametrize(
    "fresh",
    [
        lambda x: x.new_zeros((x.shape[0], 1)),
        lambda x: x.new_ones((x.shape[0], 1)),
        lambda x: x.new_full((x.shape[0], 1), 2.5),
    ],
)
def test_a_new_tensor_reads_no_columns(monkeypatch, fresh):
    torch.manual_seed(0)
    model = Trap(lambda model, x: torch.cat([x, fresh(x)], 1), COLUMNS + 1)
    plugin, make = trained(model)
    small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, "user", "city"))
    assert small.head.in_features == 8  # what is added is a constant, which the bias takes


@pytest.mark.parametrize("join", [torch.column_stack, torch.hstack])
def test_columns_that_are_stacked_are_cut(monkeypatch, join):
    torch.manual_seed(0)
    plugin, make = trained(Trap(lambda model, x: join([x[:, :10], x[:, 10:]]), COLUMNS))
    small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, "user", "city"))
    assert small.head.in_features == 8


@pytest.mark.parametrize("join", [torch.column_stack, torch.concatenate])
def test_numbers_of_rows_become_columns_exactly(monkeypatch, join):
    def function(model, x):
        pieces = [x[:, 0], x[:, 4]] if join is torch.column_stack else [x[:, :1], x[:, 4:5]]
        return join(pieces) if join is torch.column_stack else join(pieces, 1)

    torch.manual_seed(0)
    plugin, make = trained(Trap(function, 2))
    cut_exactly(monkeypatch, plugin, make, keeping(plugin, "user", "city"))
