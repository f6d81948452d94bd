"""Each request that cannot be pruned is refused with one clear sentence."""

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import FIELDS, attached
from tests.surgery.helpers import (
    COLUMNS,
    prepared,
)

# Bad input


def test_a_selection_for_other_fields_is_refused():
    _, plugin, _ = attached("mlp")
    other = tl.Selection(tl.Fields({"a": 20}), (1.0,), (True,))
    for use in (plugin.plan, plugin.prune):
        with pytest.raises(tl.SelectionError, match="The selection is for"):
            use(other)


def test_a_model_that_is_no_longer_attached_is_refused():
    _, plugin, _ = attached("mlp")
    selection = plugin.select(share=0.6)
    plugin.detach()
    with pytest.raises(tl.SurgeryError, match="no longer attached"):
        plugin.prune(selection)


def test_a_site_whose_columns_changed_is_refused_and_the_model_is_as_it_was():
    model, plugin, _ = attached("wide_deep")
    selection = plugin.select(share=0.6)
    model.tables["user"] = nn.Embedding(12, 7)
    with pytest.raises(tl.FieldError, match="receives 23 columns, but the fields sum to 20"):
        plugin.prune(selection)
    assert model.tables["user"].embedding_dim == 7


def test_an_unknown_fill_is_refused():
    _, plugin, _ = attached("mlp")
    with pytest.raises(tl.SurgeryError, match="fill must be 'mean' or 'zero', but is 'median'"):
        plugin.prune(plugin.select(share=0.6), fill="median")


def test_an_example_that_does_not_fit_is_refused():
    _, plugin, _ = attached("mlp")
    with pytest.raises((tl.SurgeryError, TypeError)):
        plugin.plan(plugin.select(share=0.6), example=(torch.randn(4, 20), torch.randn(4, 20)))


def test_before_any_batch_there_is_nothing_to_prune():
    plugin = tl.attach(nn.Linear(20, 1), FIELDS)
    selection = tl.Selection(plugin.fields, (1.0,) * 5, (True, False, True, True, True))
    with pytest.raises(tl.SurgeryError, match="No batch has passed the model"):
        plugin.prune(selection)
    with pytest.raises(tl.FieldError, match="Train first"):
        plugin.prune(selection, example=torch.randn(4, 20))


def test_a_model_that_is_not_deterministic_is_refused():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.rand(len(x), 1)

    plugin, _ = prepared(Noisy(COLUMNS, 1))
    with pytest.raises(tl.SurgeryError, match="deterministic in eval"):
        plugin.prune(plugin.select(share=0.6))
