"""Every layer and every piece of code is cut exactly, for any widths and any selection."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import torchleap as tl
from tests.surgery.helpers import COLUMNS, assert_exact, prepared


class Layers(nn.Module):
    """Any layers behind a place where the columns pass."""

    def __init__(self, *layers, columns=COLUMNS):
        super().__init__()
        self.fields = nn.Identity()
        self.layers = nn.Sequential(*layers)
        self.head = nn.LazyLinear(1)

    def forward(self, x):
        return self.head(self.layers(self.fields(x)).flatten(1))


LAYERS = {
    "linear": lambda: [nn.Linear(COLUMNS, 6)],
    "linear without a bias": lambda: [nn.Linear(COLUMNS, 6, bias=False)],
    "behind dropout and identity": lambda: [nn.Dropout(0.5), nn.Identity(), nn.Linear(COLUMNS, 6)],
    "batch norm": lambda: [nn.BatchNorm1d(COLUMNS), nn.Linear(COLUMNS, 6), nn.BatchNorm1d(6)],
    "batch norm without weights": lambda: [nn.BatchNorm1d(COLUMNS, affine=False)],
    "batch norm without statistics": lambda: [nn.BatchNorm1d(COLUMNS, track_running_stats=False)],
    "layer norm": lambda: [nn.LayerNorm(COLUMNS)],
    "layer norm of each field": lambda: [nn.Unflatten(1, (5, 4)), nn.LayerNorm(4)],
    "an activation first": lambda: [nn.Tanh(), nn.Linear(COLUMNS, 6), nn.ReLU()],
    "views": lambda: [nn.Unflatten(1, (5, 4)), nn.Flatten(), nn.Linear(COLUMNS, 6)],
    "a layer on each field": lambda: [nn.Unflatten(1, (5, 4)), nn.Linear(4, 3), nn.Flatten()],
    "a convolution over fields": lambda: [nn.Unflatten(1, (5, 4)), nn.Conv1d(5, 3, 2)],
    "a convolution with a border": lambda: [nn.Unflatten(1, (5, 4)), nn.Conv1d(5, 3, 3, padding=1)],
    "a convolution along the fields": lambda: [nn.Unflatten(1, (1, 5, 4)), nn.Conv2d(1, 3, (2, 4))],
    "batch norm of fields": lambda: [nn.Unflatten(1, (5, 4)), nn.BatchNorm1d(5)],
    "softmax": lambda: [nn.Softmax(dim=1)],
    "attention": lambda: [
        nn.Unflatten(1, (5, 4)),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    ],
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_exact(name):
    torch.manual_seed(0)
    model = Layers(*LAYERS[name]())
    model(torch.randn(4, COLUMNS))  # gives the head its width
    plugin, make = prepared(model, at="fields", side="output")
    if name == "batch norm without statistics":  # it mixes rows, so a batch is not its rows
        small = plugin.prune(selection := plugin.select(share=0.6)).eval()
        with plugin.masked(selection):
            torch.testing.assert_close(
                small(make(seed=5)), model.eval()(make(seed=5)), rtol=1e-5, atol=1e-6
            )
    else:
        assert_exact(plugin, make)


class Code(nn.Module):
    """Any code behind a place where the columns pass."""

    def __init__(self, function, width):
        super().__init__()
        self.fields = nn.Identity()
        self.function = function
        self.head = nn.Linear(width, 1)
        self.bilinear = nn.Bilinear(8, 12, 5)
        self.weight = nn.Parameter(torch.randn(COLUMNS))

    def forward(self, x):
        return self.head(self.function(self, self.fields(x)))


CODE = {
    "two readers": (lambda m, x: torch.cat([x, x.relu()], dim=-1), 40),
    "slices": (lambda m, x: torch.cat([x[:, 2:7], x[:, -3:], x[:, ::2]], 1), 18),
    "one column": (lambda m, x: x[:, 9:10] * x, 20),
    "split": (
        lambda m, x: torch.cat(
            [a * b for a, b in zip(x.split(4, 1), x.split(4, 1)[::-1], strict=True)], 1
        ),
        20,
    ),
    "chunk": (lambda m, x: x.chunk(2, dim=1)[0] + x.chunk(2, dim=1)[1], 10),
    "unbind": (lambda m, x: sum(x.view(-1, 5, 4).unbind(1)), 4),
    "fields first": (lambda m, x: x.view(-1, 5, 4).transpose(1, 2).reshape(x.size(0), -1), 20),
    "sum of fields": (lambda m, x: x.view(x.shape[0], 5, 4).sum(1), 4),
    "mean of fields": (
        lambda m, x: x.view(x.shape[0], 5, 4).mean(dim=1, keepdim=True).squeeze(1),
        4,
    ),
    "mean of each field": (lambda m, x: x.view(x.shape[0], 5, 4).mean(-1), 5),
    "sum of everything": (lambda m, x: x.view(-1, 5, 4).sum((1, 2)).unsqueeze(1), 1),
    "factorization machine": (
        lambda m, x: (lambda e: e.sum(1) ** 2 - (e**2).sum(1))(x.view(-1, 5, 4)),
        4,
    ),
    "inner products": (
        lambda m, x: torch.bmm(x.view(-1, 5, 4), x.view(-1, 5, 4).transpose(1, 2)).flatten(1),
        25,
    ),
    "einsum": (
        lambda m, x: torch.einsum("bfe,bge->bfg", x.view(-1, 5, 4), x.view(-1, 5, 4)).flatten(1),
        25,
    ),
    "bilinear": (lambda m, x: m.bilinear(x[:, :8], x[:, 8:]), 5),
    "a parameter": (lambda m, x: torch.sigmoid(x * m.weight + 1), 20),
    "in place of itself": (lambda m, x: _added(x, m.weight), 20),
    "largest of the fields": (lambda m, x: x.view(-1, 5, 4).max(dim=1).values, 4),
    "dropout by function": (lambda m, x: functional.dropout(x, 0.3, m.training), 20),
    "stack": (lambda m, x: torch.stack([x[:, :10], x[:, 10:]], dim=1).sum(1), 10),
    "where": (lambda m, x: torch.where(x > 0, x, m.weight), 20),
}


def _added(x, weight):
    x = x * 1
    x += weight
    return x


@pytest.mark.parametrize("name", CODE)
def test_every_piece_of_code_is_exact(name):
    torch.manual_seed(0)
    plugin, make = prepared(Code(*CODE[name]), at="fields", side="output")
    assert_exact(plugin, make)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_widths_and_any_selection_are_exact(data):
    widths = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=7))
    kept = data.draw(
        st.lists(st.booleans(), min_size=len(widths), max_size=len(widths)).filter(any)
    )
    fields = tl.Fields({f"f{i}": width for i, width in enumerate(widths)})
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    branches = nn.ModuleList(
        [
            nn.Linear(fields.dims, 3),
            nn.Sequential(nn.BatchNorm1d(fields.dims), nn.Linear(fields.dims, 3)),
        ]
    )

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.join = nn.Identity()
            self.branches = branches

        def forward(self, x):
            x = self.join(x)
            return self.branches[0](x) * self.branches[1](x)

    def make(rows=16, seed=0):
        return torch.randn(rows, fields.dims, generator=torch.Generator().manual_seed(seed)) + 1

    plugin, make = prepared(Branches(), fields, at="join", side="output", make=make)
    selection = tl.Selection(fields, tuple(0.5 for _ in widths), tuple(kept))
    small = assert_exact(plugin, make, selection)
    assert small.branches[0].in_features == selection.dims
    assert small.branches[1][0].num_features == selection.dims
