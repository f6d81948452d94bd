"""The rule for new tensors that take nothing but their precision and device from another."""

import torch
from torch import fx

from .base import CutRule
from .facts import Facts, View


class Fresh(CutRule):
    """new_zeros, new_ones, new_full: every element is constant, and no element is read."""

    reads = frozenset(("rows", "fixed", "mode", "batch"))

    def applies(self, node: fx.Node, view: View) -> bool:
        return len(view.row_sources(node)) == 1

    def facts(self, node: fx.Node, view: View) -> Facts:
        value = view.trace.values[node][0].detach().cpu().double()
        return Facts(torch.ones_like(value, dtype=torch.bool), value)

    def request(self, node: fx.Node, view: View) -> None:
        """Request nothing: constants are never live."""
