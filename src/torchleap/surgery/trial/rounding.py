"""Measure the rounding in an output: run again with every operation rounded in another way."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

RUNS = 4
LARGEST_COUNT = 2**16  # integers below it are counts and ids rather than results of rounding


class OtherRounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Multiply the result of each operation on real numbers by 1 + eps or 1 - eps, at random.

    Args:
        seed: Seeds the signs.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rng = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and round its result differently unless it is a view of an argument."""
        found = func(*args, **(kwargs or {}))
        if any(entry.alias_info is not None for entry in func._schema.returns):
            return found
        return tree_map(self._rounded, found)

    def _rounded(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.is_nested or value.layout is not torch.strided:
            return value
        signs = torch.randint(0, 2, value.shape, generator=self.rng).to(value) * 2 - 1
        exact = (value == value.round()) & (value.abs() < LARGEST_COUNT)
        return torch.where(exact, value, value * (1 + torch.finfo(value.dtype).eps * signs))


def with_other_rounding(compute: Callable[[], Any]) -> list[Any]:
    """Compute once as it is, and several times with other roundings; leave out runs that fail.

    All runs draw the same random numbers, so that randomness is not mistaken for rounding.
    """
    found = []
    for seed in range(RUNS + 1):
        rounding = OtherRounding(seed) if seed else nullcontext()
        try:
            with torch.random.fork_rng(), rounding:
                torch.manual_seed(0)
                found.append(compute())
        except Exception:  # such as code that requires exact sums
            continue
    return found
