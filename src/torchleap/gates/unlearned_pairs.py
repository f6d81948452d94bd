"""UnlearnedPairs: what pairs of gates would gain together, if the model learned their product."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Pair = tuple[int, int]  # the numbers of two gates


class UnlearnedPairs:
    """The gains of pairs that a model has not learned yet, as long as both gates are open.

    Args:
        like: A tensor with a number per gate, (G,).

    Attributes:
        gains: The fall of the loss that each pair would bring, in the unit of the loss.
        credit: The half of what a pair would have gained when one of its gates closed, for each
            gate, (G,): both fields are needed, so they share it.
    """

    def __init__(self, like: Tensor) -> None:
        self.gains: dict[Pair, float] = {}
        self.credit = torch.zeros_like(like)

    def note(self, gains: Mapping[Pair, float]) -> None:
        """Replace the gains by those of the present model."""
        self.gains = dict(gains)

    def open_gains(self, is_open: Tensor) -> Tensor:
        """Return the gains of the pairs whose gates are both open, (P,).

        Args:
            is_open: For each gate whether it is open, (G,).
        """
        found = [gain for pair, gain in self.gains.items() if _are_open(pair, is_open)]
        return torch.tensor(found, dtype=self.credit.dtype)

    def by_gate(self, is_open: Tensor) -> Tensor:
        """Return the largest gain of each gate's pairs with open gates, (G,).

        Args:
            is_open: For each gate whether it is open, (G,).
        """
        found = torch.zeros_like(self.credit)
        for pair, gain in self.gains.items():
            if _are_open(pair, is_open):
                for gate in pair:
                    found[gate] = max(float(found[gate]), gain)
        return found

    def close(self, closing: int, is_open: Tensor) -> None:
        """Share what the pairs of a gate would still gain between both gates, as it closes.

        Args:
            closing: The gate.
            is_open: For each gate whether it is open before, (G,).
        """
        for pair, gain in self.gains.items():
            if closing in pair and _are_open(pair, is_open):
                for gate in pair:
                    self.credit[gate] = max(float(self.credit[gate]), gain / 2)

    def state_dict(self) -> dict[str, Any]:
        """Return the gains and the credit."""
        gains = [[*pair, gain] for pair, gain in self.gains.items()]
        return {"gains": gains, "credit": self.credit.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the gains and the credit."""
        self.gains = {(int(one), int(other)): float(gain) for one, other, gain in state["gains"]}
        self.credit = state["credit"].clone().to(self.credit)


def _are_open(pair: Pair, is_open: Tensor) -> bool:
    return all(bool(is_open[gate]) for gate in pair)
