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

from ..errors import SurgeryError
from ..gates import LeAP
from ..keyed import is_jagged, rows_of, take_rows
from ..sites import Call
from .compare import alike
from .hooks import through_hooks


@dataclass(frozen=True)
class Examples:
    """One batch three times; what differs between them is not the model's, but the batch's.

    Attributes:
        once: The example.
        twice: Every row twice.
        longer: Every other dimension changed that the model lets change, such as the length of padded histories.
        rows: Of the example, as they arrive at the gates.
        ordered: Whether the model cares for the order of a dict's entries.
    """

    once: Call
    twice: Call
    longer: Call
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
                gates.passed = {}  # of a pass that did not come to its end
                return None

        with_rows = [i for i, leaf in enumerate(_leaves(example)) if rows_of(leaf) == rows]
        if _flat_bags(model, example):
            with_rows = _without_bags(example, with_rows, rows, lambda call: _shapes(attempt(call)) == _shapes(output))
        twice = _changed(example, {(leaf, 0): 2 * rows for leaf in with_rows})
        backwards = _backwards(example)
        ordered = backwards is not None and not alike(attempt(backwards), output)
        return cls(example, twice, _stretched(example, with_rows, lambda call: attempt(call) is not None), rows, ordered)


def batch_rows(given: Any) -> int:
    """The number of rows of a batch: of its first tensor."""
    sizes = [rows for leaf in _leaves(given) if (rows := rows_of(leaf)) is not None]
    if not sizes:
        raise SurgeryError("The example holds no tensor with rows. Give a batch as the model takes it.")
    return sizes[0]


def another(examples: Examples, count: int) -> Call:
    """A batch of so many rows, in which every column of the example is drawn anew and for itself."""
    dice = torch.Generator().manual_seed(0)
    leaves, form = tree_flatten(examples.once, is_leaf=is_jagged)
    doubled = _leaves(examples.twice)

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return take_rows(leaf, torch.randint(leaf.stride(), (len(leaf.keys()), count), generator=dice))
        flat = leaf.reshape(len(leaf), -1)  # (B, columns)
        chosen = torch.randint(len(leaf), (count, flat.shape[1]), generator=dice).to(leaf.device)
        drawn = flat.gather(0, chosen)
        if leaf.is_floating_point():
            noise = torch.randn(drawn.shape, generator=dice).to(drawn)
            drawn = drawn * (1 + 0.5 * noise)
        return drawn.reshape(count, *leaf.shape[1:])

    has_rows = [rows_of(a) != rows_of(b) for a, b in zip(leaves, doubled, strict=True)]
    changed: Call = tree_unflatten([draw(x) if rows else x for x, rows in zip(leaves, has_rows, strict=True)], form)
    return changed


def bind(model: nn.Module, example: Call) -> dict[str, Any]:
    """The example's value of each argument of forward()."""
    args, kwargs = through_hooks(model, fresh(example))
    try:
        return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise SurgeryError(f"The example does not fit forward(): {error}. Give a batch as the model takes it.") from error


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
    held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    tensors = {name: tensor.cpu() for name, tensor in held}
    args, kwargs = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, fresh(example))
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


class Attributes:
    """What the modules of a model hold, to see what forward() changes and to undo it."""

    def __init__(self, model: nn.Module) -> None:
        self.held = [(module, {name: (v, _content(v)) for name, v in vars(module).items()}) for module in model.modules()]

    def changed(self) -> list[nn.Module]:
        """The modules on which forward() has set or changed an attribute."""
        return [module for module, before in self.held if not _unchanged(module, before)]

    def restore(self) -> None:
        """Undo it."""
        for module, before in self.held:
            if _unchanged(module, before):
                continue
            vars(module).clear()
            for name, (value, content) in before.items():
                if type(value) is list:
                    value[:] = content
                elif type(value) in (dict, set):
                    value.clear()
                    value.update(content)
                vars(module)[name] = value


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


def _content(value: Any) -> Any:
    return copy.copy(value) if type(value) in (list, dict, set) else value


def _unchanged(module: nn.Module, before: dict[str, tuple[Any, Any]]) -> bool:
    now = {name: value for name, value in vars(module).items() if name != "training"}
    if set(now) != set(before) - {"training"}:
        return False
    return all(value is before[name][0] and _same(value, before[name][1]) for name, value in now.items())


def _same(value: Any, content: Any) -> bool:
    if type(value) in (list, set):
        return len(value) == len(content) and all(a is b for a, b in zip(value, content, strict=True))
    if type(value) is dict:
        return list(value) == list(content) and all(value[key] is content[key] for key in value)
    return True


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


def _without_bags(example: Call, with_rows: list[int], rows: int, ignores: Callable[[Call], bool]) -> list[int]:
    """The ids in all bags of an EmbeddingBag may be as many as there are rows, but only by chance: one more does no harm."""
    leaves = _leaves(example)
    several = [is_jagged(leaf) or (isinstance(leaf, Tensor) and leaf.dim() > 1) for leaf in leaves]
    return [i for i in with_rows if several[i] or not ignores(_changed(example, {(i, 0): rows + 1}))]


def _stretched(example: Call, with_rows: list[int], accepts: Callable[[Call], bool]) -> Call:
    """The example with other lengths, as far as the model accepts them."""
    places = [
        (i, dim, leaf.shape[dim])
        for i, leaf in enumerate(_leaves(example))
        if isinstance(leaf, Tensor)
        for dim in range(1 if i in with_rows else 0, leaf.dim())
    ]
    groups = [[(i, dim) for i, dim, size in places if size == length] for length in sorted({size for *_, size in places})]
    alone = [[(i, dim)] for i, dim, size in places if size > 1]
    stretched, done = example, set[tuple[int, int]]()
    for group in (*groups, *(place for place in alone if place not in groups)):
        length = _leaves(example)[group[0][0]].shape[group[0][1]]
        for other in (length - 1, length + 1, 2 * length):  # a table of positions may know no longer ones, halves no odd ones
            if other > 0 and not done & set(group) and accepts(candidate := _changed(stretched, dict.fromkeys(group, other))):
                stretched = candidate
                done |= set(group)
    return stretched


def _changed(call: Call, sizes: dict[tuple[int, int], int]) -> Call:
    """The batch with other sizes of some dimensions of its tensors; what is added repeats what is there."""
    leaves, form = tree_flatten(call, is_leaf=is_jagged)
    for (place, dim), size in sizes.items():
        leaf = leaves[place]
        if is_jagged(leaf):
            leaves[place] = take_rows(leaf, torch.arange(size) % leaf.stride())
            continue
        index = torch.arange(size, device=leaf.device)
        if not leaf.numel():  # a batch without ids, say
            leaves[place] = leaf.new_zeros((*leaf.shape[:dim], size, *leaf.shape[dim + 1 :]))
            continue
        leaves[place] = leaf.index_select(dim, index % leaf.shape[dim])
    changed: Call = tree_unflatten(leaves, form)
    return changed


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
    backwards = tuple(turn(value) for value in args), {name: turn(value) for name, value in kwargs.items()}
    return backwards if turned else None


def _shapes(output: Any) -> list[Any]:
    return [leaf.shape if isinstance(leaf, Tensor) else None for leaf in tree_leaves(output)]
