"""The batches that a model is tried on: the example, and others that differ from it as real batches do."""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..._common.errors import SurgeryError
from ...distributed.torchrec import is_jagged, rows_of, take_rows
from ...gates.leap import LeAP
from ...sites.calls import Call
from ..compare import alike
from .channels import Attributes
from .hooks import through_hooks
from .stretch import far, lengths_of, near, resized, stretched

OTHER_ROWS = 3


@dataclass(frozen=True)
class Examples:
    """One batch several times; what differs between them is not the model's, but the batch's.

    Attributes:
        once: The example.
        twice: Every row twice.
        longer: Every other dimension changed that the model lets change, such as the length of padded histories.
        other: Other values, another number of rows, and lengths that are far from the example's; None if the model takes
            no such batch.
        rows: Of the example, as they arrive at the gates.
        ordered: Whether the model cares for the order of a dict's entries.
    """

    once: Call
    twice: Call
    longer: Call
    other: Call | None
    rows: int
    ordered: bool = False

    @classmethod
    def of(cls, model: nn.Module, gates: LeAP, example: Call) -> "Examples":
        """Try out which dimensions may change."""
        rows, output = _arriving(model, gates, example)

        runs = run if gates.theta.device.type == "cpu" else run_on_cpu

        def attempt(call: Call) -> Any:
            try:
                return runs(model, call)
            except Exception:
                gates.context.end()  # of a pass that did not come to its end
                return None

        def accepts(call: Call) -> bool:
            return attempt(call) is not None

        with_rows = [i for i, leaf in enumerate(_leaves(example)) if rows_of(leaf) == rows]
        if _flat_bags(model, example):
            with_rows = _without_bags(
                example, with_rows, rows, lambda call: _shapes(attempt(call)) == _shapes(output)
            )
        backwards = _backwards(example)
        ordered = backwards is not None and not alike(attempt(backwards), output)
        lengths = lengths_of(example, with_rows)
        twice = resized(example, {(leaf, 0): 2 * rows for leaf in with_rows})
        longer = stretched(example, lengths, near, accepts)
        changing = {
            place: size
            for place, size in lengths_of(longer, with_rows).items()
            if size != lengths[place]
        }
        other = _other(example, with_rows, rows + OTHER_ROWS, accepts)
        if other is not None:
            other = stretched(other, {place: lengths[place] for place in changing}, far, accepts)
        return cls(example, twice, longer, other, rows, ordered)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return all batches, the example first."""
        alike = (self.once, self.twice, self.longer)
        return alike if self.other is None else (*alike, self.other)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of rows of each batch."""
        return (self.rows, 2 * self.rows, self.rows, self.rows + OTHER_ROWS)[: len(self.calls)]


def batch_rows(given: Any) -> int:
    """The number of rows of a batch: of its first tensor."""
    sizes = [rows for leaf in _leaves(given) if (rows := rows_of(leaf)) is not None]
    if not sizes:
        raise SurgeryError(
            "The example holds no tensor with rows. Give a batch as the model takes it."
        )
    return sizes[0]


def another(examples: Examples, count: int) -> Call:
    """Make a batch of so many rows, in which every column of the example is drawn again and for itself."""
    doubled = _leaves(examples.twice)
    pairs = zip(_leaves(examples.once), doubled, strict=True)
    with_rows = [place for place, (one, two) in enumerate(pairs) if rows_of(one) != rows_of(two)]
    return _drawn(examples.once, with_rows, count, lambda _, drawn, rng: drawn)


def _drawn(
    example: Call,
    with_rows: list[int],
    count: int,
    change: Callable[[Tensor, Tensor, torch.Generator], Tensor],
) -> Call:
    rng = torch.Generator().manual_seed(0)
    leaves, form = tree_flatten(example, is_leaf=is_jagged)

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return take_rows(
                leaf, torch.randint(leaf.stride(), (len(leaf.keys()), count), generator=rng)
            )
        flat = leaf.reshape(len(leaf), -1)  # (B, columns)
        chosen = torch.randint(len(leaf), (count, flat.shape[1]), generator=rng).to(leaf.device)
        drawn = flat.gather(0, chosen)
        if leaf.is_floating_point():
            noise = torch.randn(drawn.shape, generator=rng).to(drawn)
            drawn = drawn * (1 + 0.5 * noise)
        return change(flat, drawn, rng).reshape(count, *leaf.shape[1:])

    changed: Call = tree_unflatten(
        [draw(x) if i in with_rows else x for i, x in enumerate(leaves)], form
    )
    return changed


def _other(
    example: Call, with_rows: list[int], count: int, accepts: Callable[[Call], bool]
) -> Call | None:
    """Return a batch with other values, if the model takes one: no column's largest id, and flags at random."""

    def lower(flat: Tensor, drawn: Tensor, rng: torch.Generator) -> Tensor:
        if drawn.is_floating_point() or drawn.is_complex():
            return drawn
        if drawn.dtype == torch.bool:
            return (torch.rand(drawn.shape, generator=rng) < 0.5).to(drawn.device)
        return torch.where(drawn == flat.amax(0), flat.amin(0), drawn)

    for change in (lower, lambda _, drawn, rng: drawn):
        candidate = _drawn(example, with_rows, count, change)
        if accepts(candidate):
            return candidate
    return None


def bind(model: nn.Module, example: Call) -> dict[str, Any]:
    """The example's value of each argument of forward()."""
    args, kwargs = through_hooks(model, fresh(example))
    try:
        return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise SurgeryError(
            f"The example does not fit forward(): {error}. Give a batch as the model takes it."
        ) from error


def fresh(example: Call) -> Call:
    """A copy, since forward() may change its arguments."""
    try:
        return copy.deepcopy(example)
    except Exception:  # an object that cannot be copied
        return example


def run(model: nn.Module, example: Call) -> Any:
    """The model's output on an example, in eval mode."""
    args, kwargs = fresh(example)
    with in_eval(model):
        return model(*args, **kwargs)


def run_on_cpu(model: nn.Module, example: Call) -> Any:
    """The same, elsewhere: an index past the end, which a trial may come to, is an error there, but the end of a CUDA process."""
    held = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    tensors = {name: tensor.cpu() for name, tensor in held}
    args, kwargs = tree_map(
        lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, fresh(example)
    )
    with in_eval(model):
        return torch.func.functional_call(model, tensors, args, kwargs)


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Within this context the model is in eval mode, without gradients; afterwards it is as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Within this context the model may be run; afterwards its attributes and buffers are what they were."""
    attributes = Attributes(model)
    buffers = [(buffer, buffer._version, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        attributes.restore()
        with torch.no_grad():
            for buffer, version, value in buffers:
                if buffer._version != version:
                    buffer.copy_(value)


def _arriving(model: nn.Module, gates: LeAP, example: Call) -> tuple[int, Any]:
    """The number of rows at the gates, and the output."""
    seen: list[int] = []
    handle = gates.register_forward_pre_hook(lambda _, args: seen.append(int(args[0].shape[0])))
    try:
        output = run(model, example)
    finally:
        handle.remove()
    if not seen:
        raise SurgeryError("the example never passes the gates")
    return seen[0], output


def _flat_bags(model: nn.Module, example: Call) -> bool:
    """Whether an EmbeddingBag is given the ids of all rows in one long line, with offsets."""
    lines: list[bool] = []
    bags = [module for module in model.modules() if isinstance(module, nn.EmbeddingBag)]

    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        lines.append("offsets" in kwargs or len(args) > 1)

    handles = [bag.register_forward_pre_hook(see, with_kwargs=True) for bag in bags]
    try:
        if bags:
            run(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return any(lines)


def _leaves(call: Any) -> list[Any]:
    """The tensors of a batch, and its jagged parts as they are."""
    return tree_leaves(call, is_leaf=is_jagged)


def _without_bags(
    example: Call, with_rows: list[int], rows: int, ignores: Callable[[Call], bool]
) -> list[int]:
    """The ids in all bags of an EmbeddingBag may be as many as there are rows, but only by chance: one more does no harm."""
    leaves = _leaves(example)
    several = [is_jagged(leaf) or (isinstance(leaf, Tensor) and leaf.dim() > 1) for leaf in leaves]
    return [i for i in with_rows if several[i] or not ignores(resized(example, {(i, 0): rows + 1}))]


def _backwards(call: Call) -> Call | None:
    """The batch with the entries of its dicts in the other order, if it has any."""
    turned = False

    def turn(value: Any) -> Any:
        nonlocal turned
        if type(value) is not dict or len(value) < 2:
            return value
        turned = True
        return dict(reversed(value.items()))

    args, kwargs = call
    backwards = (
        tuple(turn(value) for value in args),
        {name: turn(value) for name, value in kwargs.items()},
    )
    return backwards if turned else None


def _shapes(output: Any) -> list[Any]:
    return [leaf.shape if isinstance(leaf, Tensor) else None for leaf in tree_leaves(output)]
