"""Lengths that depend on the batch, or on each other, are computed for each batch, or refused."""

import pytest
import torch
from torch.nn import functional

import torchleap as tl
from tests.architectures import NAMES, ids_by_name
from tests.surgery.helpers import (
    SEQUENCE_FIELDS,
    Ranker,
    Sequence,
    exact_or_refused,
    mean_of,
    pruned,
    sequences,
)


def blocks(m, h, b):
    return h.reshape(h.size(0), -1, 4, 4).mean(2).sum(1) / (h.size(1) // 4)


BOUND = {
    "one shorter": (
        lambda m, h, b: (h[:, 1:] * b["gaps"].unsqueeze(2)).sum(1) / b["gaps"].size(1),
        {"gaps": lambda rows, length, rng: torch.rand(rows, length - 1, generator=rng)},
        5,
    ),
    "blocks of four": (blocks, {}, 8),
    "a multiple": (
        lambda m, h, b: (
            (h.unsqueeze(2) * b["parts"].view(len(b["parts"]), -1, 3, 1)).sum((1, 2))
            / b["parts"].size(1)
        ),
        {"parts": lambda rows, length, rng: torch.rand(rows, 3 * length, generator=rng)},
        5,
    ),
    "a square": (
        lambda m, h, b: (b["pairs"].view(-1, h.size(1), h.size(1)) @ h).sum(1) / b["pairs"].size(1),
        {"pairs": lambda rows, length, rng: torch.rand(rows, length * length, generator=rng)},
        5,
    ),
    "the first three": (lambda m, h, b: h[:, :3].sum(1) / h[:, :3].size(1), {}, 5),
    "at most six": (lambda m, h, b: mean_of(h[:, -6:]), {}, 5),
    "padded": (
        lambda m, h, b: functional.pad(h, (0, 0, 0, max(0, 8 - h.size(1))))[:, -1] + mean_of(h),
        {},
        5,
    ),
    "the last behind padding": (lambda m, h, b: functional.pad(h, (0, 0, 2, 0))[:, -1], {}, 5),
    "a loop over the positions": (
        lambda m, h, b: sum(h[:, i] * i for i in range(h.size(1))),
        {},
        5,
    ),
}


@pytest.mark.parametrize("name", BOUND)
@pytest.mark.parametrize("dropped", [0, 2])
def test_lengths_bound_to_each_other_are_computed_or_refused(name, dropped):
    torch.manual_seed(0)
    pool, others, length = BOUND[name]
    selection = tl.Selection(
        SEQUENCE_FIELDS, (0.5,) * 3, tuple(place != dropped for place in range(3))
    )

    def make(rows=32, seed=0, length=length):
        return sequences(rows, seed, length, **others)

    plugin, selection, small = pruned(
        Sequence(pool), make, fields=SEQUENCE_FIELDS, selection=selection
    )
    refused = []
    for rows, other in ((7, length), (7, 2 * length), (1, length + 4), (5, 4), (3, 12), (4, 2)):
        try:
            batch = make(rows, 9, other)
            plugin.model.eval()(batch)
        except RuntimeError:
            continue
        refused.append(exact_or_refused(plugin, selection, small, batch))
    assert not refused[0]
    if name not in ("a square",):
        assert not any(refused)


@pytest.mark.parametrize("saved", [False, True])
def test_a_model_that_is_pruned_again_checks_what_the_first_pruning_assumed(saved, tmp_path):
    torch.manual_seed(0)
    pool, others, length = BOUND["a square"]

    def make(rows=32, seed=0, length=length):
        return sequences(rows, seed, length, **others)

    first = tl.Selection(SEQUENCE_FIELDS, (0.5,) * 3, (True, True, False))
    _, _, small = pruned(Sequence(pool), make, fields=SEQUENCE_FIELDS, selection=first)
    if saved:
        tl.export.save(small, tmp_path / "small")
        small = tl.export.load(tmp_path / "small")
    plugin = tl.attach(small, {"item": 4, "history": 4}, at="head")
    small.train()(make())
    again = plugin.prune(
        tl.Selection(plugin.fields, (0.0, 1.0), (False, True)), example=(make(),)
    ).eval()
    assert "constants are fed instead" not in str(tl.plan_of(again))
    again(make(7, 9))
    with pytest.raises(tl.FieldError, match="as in the example"):
        again(make(7, 9, length + 1))


def padded_to_longest(m, h, b):
    longest = int(b["length"].max())
    return h[:, :longest].sum(1) / longest


VALUES = {
    "up to the longest": lambda m, h, b: mean_of(h[:, : b["length"].max()]),
    "up to the longest as a number": lambda m, h, b: mean_of(h[:, : b["length"].max().item()]),
    "up to the longest as an int": padded_to_longest,
    "narrowed": lambda m, h, b: mean_of(h.narrow(1, 0, b["length"].max().item())),
    "one-hot": lambda m, h, b: (
        m.wide.weight.sum()
        * functional.one_hot(b["item"]).float().sum(1, keepdim=True).expand(-1, 4)
        / functional.one_hot(b["item"]).shape[1]
    ),
    "one-hot of all ids": lambda m, h, b: m.wide(functional.one_hot(b["item"], 12).float()),
    "nonzero": lambda m, h, b: h.mean(1) / (1 + b["item"].nonzero().shape[0]),
    "nonzero at once": lambda m, h, b: (
        h.mean(1) / (1 + torch.nonzero(b["item"] > 3, as_tuple=True)[0].shape[0])
    ),
    "where": lambda m, h, b: h.mean(1) / (1 + torch.where(b["item"] > 3)[0].numel()),
    "unique": lambda m, h, b: h.mean(1) * b["item"].unique().size(0),
    "unique with counts": lambda m, h, b: (
        h.mean(1) * torch.unique(b["item"], return_counts=True)[1].size(0)
    ),
    "each id once": lambda m, h, b: (lambda ids, place: m.history(ids)[place])(
        *torch.unique(b["item"], return_inverse=True)
    ),
    "sorted up to the longest": lambda m, h, b: mean_of(h[:, : b["length"].max()].sort(dim=1)[0]),
    "sorted by name": lambda m, h, b: mean_of(h[:, : b["length"].max()].sort(dim=1).values),
    "masked_select": lambda m, h, b: (
        h.mean(1) / (1 + b["item"].masked_select(b["item"] > 3).numel())
    ),
    "a boolean index": lambda m, h, b: h.mean(1) * (1 + b["item"][b["item"] > 3].shape[0]),
    "the mean of a boolean index": lambda m, h, b: h.mean(1) - h[b["length"] > 1].mean((0, 1)),
    "bincount": lambda m, h, b: h.mean(1) / torch.bincount(b["item"]).shape[0],
    "repeat_interleave": lambda m, h, b: (
        h.mean(1) / torch.repeat_interleave(b["item"], b["length"]).shape[0]
    ),
    "arange": lambda m, h, b: h.mean(1) * torch.arange(b["length"].max().item()).shape[0],
    "item": lambda m, h, b: h.mean(1) * b["length"].max().item(),
    "tolist": lambda m, h, b: h.mean(1) * max(b["length"].tolist()),
    "int": lambda m, h, b: h.mean(1) * int(b["length"].max()),
    "a list of lengths": lambda m, h, b: torch.stack(
        [row[:n].mean(0) for row, n in zip(h, b["length"].tolist(), strict=True)]
    ),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("dropped", [0, 2])
def test_sizes_that_depend_on_values_are_never_constants(name, dropped):
    torch.manual_seed(0)
    selection = tl.Selection(
        SEQUENCE_FIELDS, (0.5,) * 3, tuple(place != dropped for place in range(3))
    )

    def make(rows=32, seed=0, full=True):  # the example's histories are full, and its items many
        batch = sequences(rows, seed)
        if full:
            batch["length"] = torch.full((rows,), 5)
            batch["item"] = torch.arange(rows) % 12
        return batch

    plugin, selection, small = pruned(
        Sequence(VALUES[name]), make, fields=SEQUENCE_FIELDS, selection=selection
    )
    for rows, seed in ((7, 9), (1, 3), (40, 5)):
        assert not exact_or_refused(plugin, selection, small, make(rows, seed, full=False))


def test_rows_that_are_filtered_before_the_gates_are_computed():
    class Filtering(Ranker):
        def forward(self, batch):
            x = torch.cat([self.tables[name](batch[name]) for name in NAMES], 1)
            return self.deep(self.join(x[batch["valid"]]))

    def make(rows=32, seed=0):
        valid = torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < (
            0.6 if seed else 2
        )
        return ids_by_name(rows, seed) | {"valid": valid}

    for first in (0, 1):
        plugin, selection, small = pruned(
            Filtering(), lambda rows=32, seed=0, first=first: make(rows, seed + first)
        )
        for rows, seed in ((7, 9), (1, 0), (40, 5)):
            assert not exact_or_refused(plugin, selection, small, make(rows, seed))
