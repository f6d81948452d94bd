"""Gates that tests set by hand."""

import torch

from torchleap import Fields


def fields_of(widths):
    return Fields({f"f{i}": width for i, width in enumerate(widths)})


def set_gates(gates, values):
    """Put the gates where we want them."""
    with torch.no_grad():
        gates.theta.copy_(
            torch.logit(torch.tensor(values, dtype=gates.theta.dtype)) * gates.settings.temperature
        )
