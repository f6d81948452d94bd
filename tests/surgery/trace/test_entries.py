"""Dicts as inputs: entries that forward() looks for are expected, others may come and go."""

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import ids_by_name
from tests.surgery.helpers import (
    Ranker,
    assert_same,
    pruned,
)


class Optional(Ranker):
    def forward(self, batch):
        batch = dict(batch)
        weight = batch.pop("weight", None)
        y = super().forward(batch)
        return y if weight is None else y * weight[:, None]


class Walking(Ranker):
    def forward(self, batch):
        y = super().forward(batch)
        for name, column in batch.items():
            y = y + column[:, None] if name.startswith("extra") else y
        return y


class Getting(Ranker):
    def forward(self, batch):
        y = super().forward(batch)
        return y if batch.get("extra") is None else y + batch["extra"][:, None]


@pytest.mark.parametrize("kind", [Walking, Getting, Optional])
def test_an_entry_that_was_not_in_the_example_is_refused_if_forward_looks_for_it(kind):
    plugin, selection, small = pruned(kind())
    assert_same(plugin, selection, small, ids_by_name(7, 9))
    kept = {name: column for name, column in ids_by_name(7, 9).items() if name in selection.kept}
    assert torch.equal(small(kept), small(ids_by_name(7, 9)))
    with pytest.raises(tl.FieldError, match="(extra|weight)' was not in the example"):
        small({**ids_by_name(7, 9), "weight" if kind is Optional else "extra": torch.ones(7)})


def test_an_entry_that_is_missing_is_named_if_forward_looks_for_it(tmp_path):
    plugin, selection, small = pruned(
        Optional(), lambda rows=32, seed=0: ids_by_name(rows, seed) | {"weight": torch.rand(rows)}
    )
    tl.export.save(small, tmp_path / "model")
    for model in (small, tl.export.load(tmp_path / "model")):
        assert_same(plugin, selection, model, ids_by_name(7, 9) | {"weight": torch.rand(7)})
        with pytest.raises(tl.FieldError, match="'weight' is missing"):
            model(ids_by_name(7, 9))


def test_the_order_of_entries_counts_where_forward_walks_over_them():
    class InOrder(Ranker):
        def forward(self, batch):
            return self.deep(
                self.join(
                    torch.cat([self.tables[name](column) for name, column in batch.items()], 1)
                )
            )

    plugin, selection, small = pruned(InOrder())
    assert_same(plugin, selection, small, ids_by_name(7, 9))
    with pytest.raises(tl.FieldError, match="another order than 'user', 'item'"):
        small(dict(reversed(ids_by_name(7, 9).items())))


def test_a_dict_of_fields_may_hold_entries_that_forward_does_not_ask_for():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, batch):
            return self.head(torch.cat([batch["age"], batch["clicks"]], 1))

    def make(rows=16, seed=0):
        rng = torch.Generator().manual_seed(seed)
        return {
            "age": torch.randn(rows, 1, generator=rng),
            "clicks": torch.randn(rows, 2, generator=rng),
        }

    fields = tl.Fields({"age": 1, "clicks": 2})
    selection = tl.Selection(fields, (0.1, 0.9), (False, True))
    plugin, selection, small = pruned(
        Sum(), make, at="", side="input", fields=fields, selection=selection
    )
    assert small.head.in_features == 2
    assert_same(plugin, selection, small, make(7, 9) | {"label": torch.ones(7)})
    assert torch.equal(small({"clicks": make(7, 9)["clicks"]}), small(make(7, 9)))


@pytest.mark.parametrize("kind", [Optional, Walking])
def test_models_that_ask_for_entries_are_compiled_and_exported(kind, tmp_path):
    _, selection, small = pruned(kind())
    batch = ids_by_name(7, 9)
    torch.testing.assert_close(
        torch.compile(small, fullgraph=True, backend="eager")(batch), small(batch)
    )
    tl.export.to_program(small, tmp_path / "model.pt2", batch)
    kept = {name: column for name, column in batch.items() if name in selection.kept}
    torch.testing.assert_close(
        torch.export.load(tmp_path / "model.pt2").module()(kept), small(batch)
    )
