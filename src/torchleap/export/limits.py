"""Bound what a loaded model requests: its sizes and numbers come from a file that may be hostile.

A function that makes or repeats a tensor by given sizes is refused where the result would have more
than `MOST` elements, and more than `PER_ELEMENT` per element of the batch. Numbers stay within 64
bits, and arithmetic is done with tensors and numbers alone.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from .._common.errors import SurgeryError
from .._common.text import words
from .names import FUNCTIONS

MOST = 1 << 26  # elements, 268 MB in float32
PER_ELEMENT = 1 << 12
BITS = 64
LONGEST = 1 << 16  # entries of a tuple or list

Count = Callable[..., int]  # returns the elements of a result, from the arguments of its function


def refuse_huge(target: Any, given: tuple[Any, ...], named: dict[str, Any], batch: Any) -> None:
    """Raise if a call would make an enormous tensor or number.

    Args:
        target: A function, or the name of a method, of `COUNTS`.
        given: Its arguments.
        named: Its arguments by name.
        batch: The arguments of the model.
    """
    if target in _ARITHMETIC and any(isinstance(value, Tensor) for value in given):
        return  # the usual case
    try:
        count = COUNTS[target](*given, **named)
    except SurgeryError:
        raise
    except (TypeError, ValueError, IndexError, ArithmeticError):
        return  # the function refuses these arguments itself
    if count <= MOST:
        return
    sizes = [leaf.numel() for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    most = max(MOST, PER_ELEMENT * sum(sizes))
    if count > most:
        name = getattr(target, "__name__", target)
        raise SurgeryError(
            f"The manifest describes a model that requests {count:.3g} elements from {name}(), "
            f"which torchleap does not run: expected at most {most:,} with this batch."
        )


def _product(sizes: Any) -> int:
    """Return the number of elements of these sizes, which may be in tuples and lists."""
    return math.prod(max(int(size), 0) for size in tree_leaves(sizes))


def _made(*sizes: Any, size: Any = (), **others: Any) -> int:
    return _product((sizes, size))


def _filled(size: Any, fill_value: Any = 0, **others: Any) -> int:
    return _product(size)


def _made_like(x: Tensor, *sizes: Any, size: Any = (), **others: Any) -> int:
    return _product((sizes, size))


def _filled_like(x: Tensor, size: Any, fill_value: Any = 0, **others: Any) -> int:
    return _product(size)


def _square(n: Any, m: Any = None, **others: Any) -> int:
    return int(n) * int(n if m is None else m)


def _steps(*ends: Any, start: Any = 0, end: Any = None, step: Any = 1, **others: Any) -> int:
    if len(ends) == 1 and end is None:
        end = ends[0]
    elif ends:
        start, end, step, *_ = (*ends, *(end, step)[len(ends) - 1 :])
    return math.ceil(abs(float(end) - float(start)) / abs(float(step)))


def _spaced(start: Any, end: Any, steps: Any, **others: Any) -> int:
    return int(steps)


def _repeated(x: Tensor, *sizes: Any, repeats: Any = (), dims: Any = (), **others: Any) -> int:
    return x.numel() * _product((sizes, repeats, dims))


def _repeated_each(x: Tensor, repeats: Any, dim: Any = None, **others: Any) -> int:
    if not isinstance(repeats, Tensor):
        return x.numel() * int(repeats)
    rows = x.numel() if dim is None else x.shape[int(dim)]
    times = int(repeats.sum()) if repeats.numel() > 1 else rows * int(repeats)
    return x.numel() // max(rows, 1) * times


def _expanded(x: Tensor, *sizes: Any, size: Any = (), **others: Any) -> int:
    wanted = [int(each) for each in tree_leaves((sizes, size))]
    own = [1] * (len(wanted) - x.dim()) + list(x.shape)
    return math.prod(new if new >= 0 else old for new, old in zip(wanted, own, strict=True))


def _one_hot(x: Tensor, num_classes: Any = -1) -> int:
    if int(num_classes) >= 0:
        return x.numel() * int(num_classes)
    return x.numel() * (int(x.max()) + 1) if x.numel() else 0


def _padded(x: Tensor, pad: Any, *others: Any, **named: Any) -> int:
    sizes = list(x.shape)
    for place, width in enumerate(tree_leaves(pad)):
        sizes[-1 - place // 2] += int(width)
    return _product(sizes)


def _pooled(x: Tensor, output_size: Any, *others: Any, **named: Any) -> int:
    return x.numel() * _product(output_size)


def _joined(tensors: Any, *others: Any, **named: Any) -> int:
    return sum(part.numel() for part in tensors)


def _made_of(data: Any, **others: Any) -> int:
    return len(tree_leaves(data))


def _made_of_like(x: Tensor, data: Any, **others: Any) -> int:
    return len(tree_leaves(data))


def _plain(*operands: Any) -> None:
    """Refuse text and lists, which arithmetic would repeat or format."""
    for value in operands:
        if isinstance(value, str | bytes | tuple | list | dict):
            raise SurgeryError(
                f"The manifest describes a model that computes with a {type(value).__name__}, "
                "which torchleap does not run: expected tensors and numbers."
            )


def _refuse_digits(bits: float) -> None:
    """Refuse whole numbers of more than 64 bits, which may take for ever to compute."""
    if bits > BITS:
        raise SurgeryError(
            "The manifest describes a model that computes a number of more than 64 bits, which "
            "torchleap does not run."
        )


def _arithmetic(*operands: Any) -> int:
    _plain(*operands)
    if all(isinstance(value, int) for value in operands):
        _refuse_digits(sum(value.bit_length() for value in operands))
    return 0


def _power(base: Any, exponent: Any) -> int:
    _plain(base, exponent)
    if isinstance(base, int) and isinstance(exponent, int) and base:
        _refuse_digits(math.log2(abs(base)) * exponent)
    return 0


def _sum(one: Any, other: Any) -> int:
    """Refuse what cannot be added; tuples, such as shapes, are joined."""
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return (len(one) + len(other)) * (MOST // LONGEST)
    return _arithmetic(one, other)


_OF_FUNCTIONS: dict[str, Count] = {
    "torch.arange": _steps,
    "torch.linspace": _spaced,
    "torch.eye": _square,
    "torch.zeros": _made,
    "torch.ones": _made,
    "torch.full": _filled,
    "torch.tensor": _made_of,
    "torch.tile": _repeated,
    "torch.repeat_interleave": _repeated_each,
    "torch.broadcast_to": _expanded,
    "torch.cat": _joined,
    "torch.concat": _joined,
    "torch.concatenate": _joined,
    "torch.stack": _joined,
    "torch.column_stack": _joined,
    "torch.hstack": _joined,
    "torch.vstack": _joined,
    "functional.one_hot": _one_hot,
    "functional.pad": _padded,
    "functional.adaptive_avg_pool1d": _pooled,
    "functional.adaptive_max_pool1d": _pooled,
    "operator.add": _sum,
    "operator.sub": _arithmetic,
    "operator.mul": _arithmetic,
    "operator.floordiv": _arithmetic,
    "operator.truediv": _arithmetic,
    "operator.mod": _arithmetic,
    "operator.pow": _power,
}
_OF_METHODS: dict[str, Count] = {
    "new_zeros": _made_like,
    "new_ones": _made_like,
    "new_full": _filled_like,
    "new_tensor": _made_of_like,
    "repeat": _repeated,
    "tile": _repeated,
    "repeat_interleave": _repeated_each,
    "expand": _expanded,
    "broadcast_to": _expanded,
}
_ARITHMETIC = {FUNCTIONS[f"operator.{name}"] for name in words("add sub mul floordiv truediv mod")}
_ARITHMETIC.add(FUNCTIONS["operator.pow"])
COUNTS: dict[Any, Count] = {
    **{FUNCTIONS[name]: count for name, count in _OF_FUNCTIONS.items()},
    **_OF_METHODS,
}
