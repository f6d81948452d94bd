"""The rule for new tensors that take nothing but their precision and device from another."""

from typing import Any

import torch
from torch import fx

from .base import CutRule
from .facts import Facts, View


class Fresh(CutRule):
    """new_zeros, new_ones, new_full: every element is constant, and no element is read."""

    reads = frozenset(("rows", "fixed", "mode", "batch"))

    def applies(self, node: fx.Node, view: View) -> bool:
        return len(view.row_sources(node)) == 1 and _number_of(node) is not None

    def facts(self, node: fx.Node, view: View) -> Facts:
        # not the value in the trace, which forward() may have changed in place since
        dtype = view.trace.values[node].dtype
        value = torch.full(view.trace.shape(node), _number_of(node), dtype=dtype).double()
        return Facts(torch.ones_like(value, dtype=torch.bool), value)

    def request(self, node: fx.Node, view: View) -> None:
        """Request nothing: constants are never live."""


def _number_of(node: fx.Node) -> Any:
    """Return the number that all elements have; None if it is not known."""
    if node.target != "new_full":
        return {"new_zeros": 0.0, "new_ones": 1.0}[str(node.target)]
    given = node.kwargs.get("fill_value", node.args[2] if len(node.args) > 2 else None)
    return given if isinstance(given, bool | int | float) else None
