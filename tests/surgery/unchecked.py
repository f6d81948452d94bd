"""Pruning without the self-check, which would hide a wrong rule by falling back to feeding."""

import torch

import torchleap as tl
from tests.architectures import FIELDS
from tests.surgery.helpers import COLUMNS, assert_exact, prepared
from torchleap.surgery import plan_of
from torchleap.surgery.prepare import Surgery


def columns(rows=32, seed=0):
    return (
        torch.randn(
            rows, COLUMNS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        + 0.3
    )


def trained(model, fields=None, make=columns, spread=None, **settings):
    """Attach to a float64 model, and make gates and statistics look as after a training."""
    plugin, make = prepared(model.double(), fields or FIELDS, make=make, **settings)
    if spread is not None:
        rng = torch.Generator().manual_seed(spread)
        with torch.no_grad():
            plugin.gates.theta.copy_(torch.randn(len(plugin.gates.theta), generator=rng) + 0.2)
    return plugin, make


def cut_exactly(monkeypatch, plugin, make, selection=None, scale=1e-10):
    """Prune by the rules alone, compare with the masked model, and check that it has been cut."""
    with monkeypatch.context() as patch:
        patch.setattr(Surgery, "check", lambda surgery, trial: None)
        small = assert_exact(plugin, make, selection, scale=scale)
    assert "constants are fed instead" not in str(plan_of(small))
    return small


def keeping(plugin, *names):
    """The selection that keeps these fields, or dimensions."""
    kept = tuple(name in names for name in plugin.fields.names)
    return tl.Selection(plugin.fields, tuple(map(float, kept)), kept)
