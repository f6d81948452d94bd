"""Places that name some columns of a tensor: the others pass the gates unchanged."""

import pytest
import torch
from torch import nn

import torchleap as tl
from torchleap import AttachError, FieldError, Place


class Ranker(nn.Module):
    """It reads one matrix of ids and numbers, all as floats, in two parts."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.deep = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        self.wide = nn.Linear(2, 1)

    def forward(self, x):
        embedded = self.table(x[:, 0:1].long()).flatten(1)
        deep = self.deep(torch.cat([embedded, x[:, 1:2], x[:, 2:3]], dim=1))
        return deep + self.wide(x[:, 1:3]) + x.new_zeros((x.shape[0], 1))


def rows(count=20):
    return torch.cat([torch.randint(50, (count, 1)).float(), torch.randn(count, 2)], dim=1)


@pytest.mark.parametrize("columns", [(1, 3), (0, 2)])
def test_other_columns_reach_the_model_unchanged(columns):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Identity())
    plugin = tl.attach(model, at={Place("1", columns=columns): {"price": 1, "age": 1}}, seed=1)
    with torch.no_grad():
        plugin.gates.theta.fill_(0.0)
    x = torch.randn(50, 3)
    found = model.train()(x)
    other = 0 if columns == (1, 3) else 2
    gated = slice(*columns)
    assert torch.equal(found[:, other], x[:, other])
    assert not torch.equal(found[:, gated], x[:, gated])


def test_a_dropped_number_is_cut_out_of_every_part_that_reads_the_matrix():
    torch.manual_seed(0)
    model = Ranker()
    places = {Place("", columns=(1, 3)): {"price": 1, "age": 1}}
    plugin = tl.attach(model, at=places, example=rows())
    for _ in range(3):
        model.train()(rows())
    selection = tl.Selection(plugin.fields, (0.9, 0.1), (True, False))
    small = plugin.prune(selection)
    assert small.deep[0].in_features == 5
    assert small.wide.in_features == 1
    for count in (1, 7, 33):
        x = rows(count)
        with plugin.masked(selection), torch.no_grad():
            expected = model.eval()(x)
        torch.testing.assert_close(small.eval()(x), expected)


def test_the_columns_of_an_element_of_a_tuple_are_gated():
    class Two(nn.Module):
        def forward(self, x):
            return x, x + 1

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.two = Two()
            self.two.layer = nn.Identity()

        def forward(self, x):
            return self.two(x)[1]

    model = Tower()
    place = Place("two", "output", part=1, columns=(2, 3))
    plugin = tl.attach(model, at={place: {"price": 1}}, example=torch.randn(4, 3))
    x = torch.randn(50, 3)
    with torch.no_grad():
        plugin.gates.theta.fill_(0.0)
    found = model.train()(x)
    assert torch.equal(found[:, :2], x[:, :2] + 1)
    assert not torch.equal(found[:, 2], x[:, 2] + 1)


def test_a_matrix_of_another_width_is_refused():
    model = nn.Sequential(nn.Identity())
    tl.attach(model, at={Place("0", columns=(1, 2)): {"price": 1}}, example=torch.randn(4, 3))
    model(torch.randn(4, 3))
    with pytest.raises(FieldError, match="receives 4 columns, but it received 3 before"):
        model(torch.randn(4, 4))


def test_columns_that_the_tensor_does_not_have_are_refused():
    model = nn.Sequential(nn.Identity())
    with pytest.raises(FieldError, match="receives 1 columns, but its fields sum to 2"):
        tl.attach(
            model,
            at={Place("0", columns=(2, 4)): {"price": 1, "age": 1}},
            example=torch.randn(4, 3),
        )


def test_columns_of_a_value_that_is_no_tensor_are_refused():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Identity()

        def forward(self, x):
            return {"price": x}

    with pytest.raises(AttachError, match="expected a tensor with columns, but found dict"):
        tl.attach(
            nn.Sequential(Named()),
            at={Place("0", "output", columns=(0, 1)): {"price": 1}},
            example=torch.randn(4, 1),
        )


@pytest.mark.parametrize(
    "at",
    [
        {Place("0", columns=(0, 8)): {"a": 8}, Place("0", columns=(4, 12)): {"b": 8}},
        {Place("0"): {"a": 12}, Place("0", columns=(0, 8)): {"b": 8}},
        {Place("0", columns=(0, 8)): {"a": 8}, Place("0", columns=(0, 4)): {"a": 4}},
        {Place("0"): {"a": 12}, Place("0", call=0, columns=(0, 8)): {"b": 8}},  # one call
    ],
)
def test_places_with_columns_in_common_are_refused(at):
    with pytest.raises(FieldError, match="columns in common: at='0' .* and at='0' "):
        tl.attach(nn.Sequential(nn.Linear(12, 1)), at=at, example=torch.randn(4, 12))


def test_columns_of_different_calls_and_neighbours_may_stand_side_by_side():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x):
            return torch.cat([self.inner(x), self.inner(x * 2)], 1)

    at = {
        Place("inner", "output", call=0, columns=(0, 8)): {"a": 8},
        Place("inner", "output", call=0, columns=(8, 12)): {"b": 4},
        Place("inner", "output", call=1, columns=(4, 12)): {"c": 8},
    }
    assert tl.attach(Twice(), at=at, example=torch.randn(4, 12)).fields.names == ("a", "b", "c")
