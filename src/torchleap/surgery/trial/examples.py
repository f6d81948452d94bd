"""Make the batches that a model is tried on: the example, and others that differ from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..._common.errors import SurgeryError
from ...distributed.torchrec import is_jagged, rows_of, take_rows
from ...gates.leap import LeAP
from ...sites.batches import adapter_of, flatten, unflatten
from ...sites.calls import Call
from .compare import alike
from .deadline import OutOfTimeError, time_left, time_limit
from .lengths import far, lengths_of, near, resized, stretched
from .run import forget_pass, leaves_of_batch, run, run_on_cpu

OTHER_ROWS = 3
SEARCH_TIME = 0.1  # the fraction of the time that is left that a search for lengths may take
Change = Callable[[Tensor, Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Examples:
    """One batch in several versions, as real batches differ from each other.

    Attributes:
        once: The example.
        twice: The example with every row twice.
        longer: The example with every other dimension changed that the model lets change, such as
            the length of padded histories.
        other: A batch with other values, another number of rows, and lengths far from those of the
            example; None if the model takes no such batch.
        rows: The number of rows of the example as they arrive at the gates.
        ordered: Whether the output depends on the order of a dict's entries.
    """

    once: Call
    twice: Call
    longer: Call
    other: Call | None
    rows: int
    ordered: bool = False

    @classmethod
    def of(cls, model: nn.Module, gates: LeAP, example: Call) -> "Examples":
        """Find by trial which dimensions of the example may change, and make the other batches."""
        rows, output = _arriving(model, gates, example)
        trial = _Trial(model, gates)
        with_rows = _places_with_rows(trial, example, rows, output)
        backwards = _backwards(example)
        ordered = backwards is not None and not alike(trial.output(backwards), output)
        lengths = lengths_of(example, with_rows)
        twice = resized(example, {(leaf, 0): 2 * rows for leaf in with_rows})
        longer = _stretched(example, lengths, near, trial.accepts)
        other = _other(example, with_rows, rows + OTHER_ROWS, trial.accepts)
        if other is not None:
            after = lengths_of(longer, with_rows)
            changing = {place: size for place, size in lengths.items() if after[place] != size}
            other = _stretched(other, changing, far, trial.accepts)
        return cls(example, twice, longer, other, rows, ordered)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return all batches, the example first."""
        if self.other is None:
            return self.once, self.twice, self.longer
        return self.once, self.twice, self.longer, self.other

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of rows of each batch."""
        counts = (self.rows, 2 * self.rows, self.rows, self.rows + OTHER_ROWS)
        return counts[: len(self.calls)]


def _stretched(call: Call, *search: Any) -> Call:
    """Return the batch with other lengths, as far as they are found in a part of the time."""
    with time_limit(time_left() * SEARCH_TIME):
        return stretched(call, *search)


class _Trial:
    """A model that may refuse a batch.

    Args:
        model: The attached model.
        gates: Its gates.
    """

    def __init__(self, model: nn.Module, gates: LeAP) -> None:
        self.model = model
        self.gates = gates
        self.run = run if gates.theta.device.type == "cpu" else run_on_cpu

    def output(self, call: Call) -> Any:
        """Return the output on a batch, or None if the model does not take it."""
        try:
            return self.run(self.model, call)
        except OutOfTimeError:
            raise
        except Exception:  # the model's own code decides how it refuses a batch
            forget_pass(self.gates)
            return None

    def accepts(self, call: Call) -> bool:
        """Return whether the model takes a batch."""
        return self.output(call) is not None


def another(examples: Examples, count: int) -> Call:
    """Return a batch of `count` rows, in which each column of the example is drawn on its own."""
    pairs = zip(leaves_of_batch(examples.once), leaves_of_batch(examples.twice), strict=True)
    with_rows = [place for place, (one, two) in enumerate(pairs) if rows_of(one) != rows_of(two)]
    return _drawn(examples.once, with_rows, count, _as_drawn)


def _as_drawn(flat: Tensor, drawn: Tensor, rng: torch.Generator) -> Tensor:
    return drawn


def _without_largest(flat: Tensor, drawn: Tensor, rng: torch.Generator) -> Tensor:
    """Replace the largest id of each column by its smallest, and draw flags at random."""
    if drawn.is_floating_point() or drawn.is_complex():
        return drawn
    if drawn.dtype == torch.bool:
        return (torch.rand(drawn.shape, generator=rng) < 0.5).to(drawn.device)
    return torch.where(drawn == flat.amax(0), flat.amin(0), drawn)


def _other(
    example: Call, with_rows: list[int], count: int, accepts: Callable[[Call], bool]
) -> Call | None:
    """Return a batch with other values, or None if the model takes none."""
    for change in (_without_largest, _as_drawn):
        candidate = _drawn(example, with_rows, count, change)
        if accepts(candidate):
            return candidate
    return None


def _drawn(example: Call, with_rows: list[int], count: int, change: Change) -> Call:
    """Draw each column of the tensors that have rows on its own, and change the result."""
    rng = torch.Generator().manual_seed(0)
    leaves, form = flatten(example)
    for place in with_rows:
        leaves[place] = _drawn_leaf(leaves[place], count, change, rng)
    changed: Call = unflatten(leaves, form)
    return changed


def _drawn_leaf(leaf: Any, count: int, change: Change, rng: torch.Generator) -> Any:
    if not isinstance(leaf, Tensor):
        chosen = torch.randint(leaf.stride(), (len(leaf.keys()), count), generator=rng)
        return take_rows(leaf, chosen)
    flat = leaf.reshape(len(leaf), -1)  # (B, columns)
    chosen = torch.randint(len(leaf), (count, flat.shape[1]), generator=rng).to(leaf.device)
    drawn = flat.gather(0, chosen)
    if leaf.is_floating_point():
        noise = torch.randn(drawn.shape, generator=rng).to(drawn)
        drawn = drawn * (1 + 0.5 * noise)
    return change(flat, drawn, rng).reshape(count, *leaf.shape[1:])


def _arriving(model: nn.Module, gates: LeAP, example: Call) -> tuple[int, Any]:
    """Return the number of rows that arrive at the gates, and the output."""
    seen: list[int] = []
    handle = gates.register_forward_pre_hook(lambda _, args: seen.append(int(args[0].shape[0])))
    try:
        output = run(model, example)
    finally:
        handle.remove()
    if not seen:
        raise SurgeryError("the example never passes the gates")
    return seen[0], output


def _places_with_rows(trial: _Trial, example: Call, rows: int, output: Any) -> list[int]:
    """Return the places of the tensors of a batch that have the rows as their first dimension.

    The ids of all bags of an EmbeddingBag, in one long line, may be as many as there are rows, but
    only by chance: one id more does not change the shape of the output.
    """
    leaves = leaves_of_batch(example)
    places = [place for place, leaf in enumerate(leaves) if rows_of(leaf) == rows]
    if not _reads_flat_bags(trial.model, example):
        return places
    found = []
    for place in places:
        leaf = leaves[place]
        several = is_jagged(leaf) or (isinstance(leaf, Tensor) and leaf.dim() > 1)
        one_more = resized(example, {(place, 0): rows + 1})
        if several or _shapes(trial.output(one_more)) != _shapes(output):
            found.append(place)
    return found


def _reads_flat_bags(model: nn.Module, example: Call) -> bool:
    """Return whether an EmbeddingBag is given the ids of all rows in one line, with offsets."""
    with_offsets: list[bool] = []
    bags = [module for module in model.modules() if isinstance(module, nn.EmbeddingBag)]
    if not bags:
        return False

    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with_offsets.append("offsets" in kwargs or len(args) > 1)

    handles = [bag.register_forward_pre_hook(see, with_kwargs=True) for bag in bags]
    try:
        run(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return any(with_offsets)


def _backwards(call: Call) -> Call | None:
    """Return the batch with the entries of its dicts in reverse order; None if it has no dicts."""
    args, kwargs = call
    if not any(_has_order(value) for value in (*args, *kwargs.values())):
        return None
    named = {name: _reversed(value) for name, value in kwargs.items()}
    return tuple(_reversed(value) for value in args), named


def _has_order(value: Any) -> bool:
    return (type(value) is dict and len(value) > 1) or _is_object(value)


def _is_object(value: Any) -> bool:
    return type(value) is not dict and adapter_of(value) is not None


def _reversed(value: Any) -> Any:
    """Return a dict, or an object with dicts, whose entries are in reverse order."""
    if type(value) is dict:
        return {name: _reversed(part) for name, part in reversed(value.items())}
    adapter = adapter_of(value)
    if adapter is None:
        return value
    return adapter.from_parts(_reversed(dict(adapter.to_parts(value))), value)


def _shapes(output: Any) -> list[Any]:
    return [leaf.shape if isinstance(leaf, Tensor) else None for leaf in tree_leaves(output)]
