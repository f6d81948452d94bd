"""Each rule alone: what it writes is exact to the last digits, without the self-check that would catch its mistakes."""

import pytest
import torch

from tests.architectures import ARCHITECTURES, attached
from tests.surgery.test_prune import CODE, COLUMNS, LAYERS, Code, Layers
from tests.surgery.unchecked import cut_exactly, trained

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
    plugin, make = trained(model, at="fields", side="output", per_dimension=per_dimension, spread=spread)
    cut_exactly(monkeypatch, plugin, make)


@pytest.mark.parametrize("per_dimension", [False, True], ids=["fields", "dimensions"])
@pytest.mark.parametrize("name", CODE)
def test_the_rules_are_exact_for_every_piece_of_code(name, per_dimension, monkeypatch):
    spread = 1 if per_dimension else None
    plugin, make = trained(Code(*CODE[name]), at="fields", side="output", per_dimension=per_dimension, spread=spread)
    cut_exactly(monkeypatch, plugin, make)
