"""Find columns of the gates of which a model reads whole numbers alone, as it does of ids.

A model may make ids of floating-point numbers in many ways: `.long()`, `.round().int()`,
`.tolist()`. What all have in common is that a small change of a number changes nothing more than
another small change does, while another whole number changes the output.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...gates.leap import LeAP
from ...sites.calls import Call
from .deadline import OutOfTimeError
from .run import forget_pass, run

SMALL = (0.2, 0.3)  # that rounding in any direction, and adding 0.5 first, take to one whole number
FEWEST = 3  # values of a column that is taken for ids for certain: with 2 it may be a flag


@dataclass(frozen=True)
class Steps:
    """Columns of which a model reads whole numbers alone.

    Attributes:
        certain: Those that have several values in the example.
        possible: Those with two values, which may be flags, and with a single one, which shows
            nothing.
    """

    certain: frozenset[int]
    possible: frozenset[int]


def columns_in_steps(model: nn.Module, gates: LeAP, call: Call, base: Tensor) -> Steps:
    """Return of which columns a model reads whole numbers alone.

    Args:
        model: The attached model.
        gates: Its gates.
        call: A batch of a few rows.
        base: The columns that arrive at the gates, (B, D).
    """
    probe = _Probe(model, gates, call, len(base))
    low, high = ((base + small).to(probe.dtype) for small in SMALL)
    is_whole = (base == base.round()) & (low != high) & (low != base)
    columns = (is_whole.all(0) & ~probe.has_gradient(base)).nonzero().flatten().tolist()
    certain = set()
    possible = set()
    for column in probe.in_steps(columns):
        own = base[:, column]
        values = set(own.tolist())
        others = [own.roll(1) - own] if len(values) > 1 else [1.0, -1.0]
        if not any(probe.matters(column, other) for other in others):
            continue
        if len(values) < FEWEST:
            possible.add(column)
        else:
            certain.add(column)
    return Steps(frozenset(certain), frozenset(possible))


class _Probe:
    """Run a model with changed columns behind its gates.

    Args:
        model: The attached model.
        gates: Its gates.
        call: A batch.
        rows: The number of rows that arrive at the gates.
    """

    def __init__(self, model: nn.Module, gates: LeAP, call: Call, rows: int) -> None:
        self.model = model
        self.gates = gates
        self.call = call
        self.rows = rows
        self.dtype = torch.float32  # of what arrives at the gates
        self.base = self._output([], 0.0)

    def in_steps(self, columns: list[int]) -> list[int]:
        """Return the columns that no small change moves more than another one."""
        if not columns or not self.base:
            return []
        one, other = (self._output(columns, small) for small in SMALL)
        if one is not None and _same(one, other):
            return columns
        if len(columns) == 1:  # code may refuse numbers that are not whole
            return columns if one is None and other is None else []
        half = len(columns) // 2
        return self.in_steps(columns[:half]) + self.in_steps(columns[half:])

    def has_gradient(self, base: Tensor) -> Tensor:
        """Return for each column whether the output has a gradient in it, as in no step, (D,)."""
        found = torch.zeros(base.shape[1], dtype=torch.bool)
        given: list[tuple[int, Tensor]] = []

        def watch(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            torch.set_grad_enabled(True)  # until the pass ends
            x, block = (*args, None)[:2]
            leaf: Tensor = x.detach().clone().requires_grad_()
            given.append((0 if block is None else block.start, leaf))
            return leaf.clone()

        handle = self.gates.register_forward_hook(watch)
        with suppress(Exception):  # code may refuse tensors with gradients
            total = torch.stack([leaf.double().sum() for leaf in self._leaves()]).sum()
            leaves = [leaf for _, leaf in given]
            gradients = torch.autograd.grad(total, leaves, allow_unused=True)
            for (start, _), gradient in zip(given, gradients, strict=True):
                if gradient is not None:
                    moves = (gradient.flatten(1) != 0).any(0).cpu()
                    found[start : start + len(moves)] |= moves
        handle.remove()
        return found

    def _leaves(self) -> list[Tensor]:
        """Return the real numbers of the output."""
        torch.manual_seed(0)
        leaves = tree_leaves(run(self.model, self.call))
        leaves = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return [leaf for leaf in leaves if leaf.is_floating_point()]

    def matters(self, column: int, change: Tensor | float) -> bool:
        """Return whether a change of a column changes the output."""
        found = self._output([column], change)
        return found is not None and not _same(found, self.base)

    def _output(self, columns: list[int], change: Tensor | float) -> list[Tensor] | None:
        """Return the real numbers of the output; None if the model refuses these columns."""
        try:
            with self._changed(columns, change):
                return self._leaves()
        except OutOfTimeError:
            raise
        except Exception:  # the model's own code decides how it refuses a batch
            forget_pass(self.gates)
            return None

    @contextmanager
    def _changed(self, columns: list[int], change: Tensor | float) -> Iterator[None]:
        """Let the gates return what they receive, with changed columns."""

        def replace(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            x, block = (*args, None)[:2]
            start = 0 if block is None else block.start
            flat = x.detach().flatten(1).clone()
            self.dtype = flat.dtype
            for column in columns:
                if start <= column < start + flat.shape[1] and len(flat) == self.rows:
                    flat[:, column - start] += torch.as_tensor(change).to(flat)
            changed: Tensor = flat.reshape(x.shape)
            return changed

        handle = self.gates.register_forward_hook(replace)
        try:
            yield
        finally:
            handle.remove()


def _same(one: list[Tensor] | None, other: list[Tensor] | None) -> bool:
    """Return whether two outputs are equal to the last bit."""
    if one is None or other is None or len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
