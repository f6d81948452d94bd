"""Compare two outputs up to rounding, whatever containers and objects they are made of."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from ..._common.errors import SurgeryError

NUMBERS = (Tensor, numpy.ndarray, numpy.generic, float, complex)
TORCH_SETTINGS = (torch.dtype, torch.device, torch.layout)
PLAIN = (type(None), bool, int, str, bytes, Enum, type, range, slice, *TORCH_SETTINGS)
# How far apart two ways of computing may be, in units of the change by the rounding of each
# operation. Long sums in float32 and float64 round at each step; in shorter formats they are kept
# in float32.
FACTOR = {torch.float32: 16.0, torch.float64: 16.0}
SHORT_FACTOR = 4.0
# The same in units of eps, where the change by rounding was not measured.
UNKNOWN = {torch.float32: 500.0, torch.float64: 500.0}
SHORT_UNKNOWN = 16.0


def alike(found: Any, expected: Any, rounded: Callable[[], Sequence[Any]] | None = None) -> bool:
    """Return whether two ways to compute one output agree, number by number, up to rounding.

    Args:
        found: The output to check.
        expected: The output that it should be.
        rounded: Computes the expected output again, and then several times with another rounding of
            every operation (see `with_other_rounding`): a difference of that size is allowed. It is
            called only if the outputs differ by more than their last digits. Without it, a
            multiple of the precision of the numbers is allowed.
    """
    pairs = _pairs(found, expected)
    if pairs is None:
        return False
    if rounded is None:
        return all(_close(*pair, []) for pair in pairs)
    if all(_close(*pair, [torch.zeros(())]) for pair in pairs):
        return True
    changes = _changes(pairs, rounded() or [expected])
    return all(_close(*pair, apart) for pair, apart in zip(pairs, changes, strict=True))


def _changes(pairs: list[tuple[Tensor, Tensor]], outputs: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Yield, for each pair, how far other roundings move the expected numbers."""
    again, *others = outputs
    shapes = [expected.shape for _, expected in pairs]
    rounds = [_pairs(output, again) or [] for output in others]
    comparable = [parts for parts in rounds if [one.shape for one, _ in parts] == shapes]
    for place in range(len(pairs)):
        yield [_apart(*parts[place]) for parts in comparable]


def difference(found: Any, expected: Any) -> float:
    """Return the largest difference between two outputs; infinite if their structures differ."""
    pairs = _pairs(found, expected)
    if pairs is None:
        return float("inf")
    return max((float(_apart(*pair).max()) for pair in pairs if pair[0].numel()), default=0.0)


def leaves_of(output: Any) -> list[Any]:
    """Return everything that an output is made of: tensors, arrays, numbers, other plain values.

    Raises:
        SurgeryError: The output contains something that cannot be compared.
    """
    parts = _walk(output, "the output", set())
    return [part.value for part in parts if isinstance(part, _Leaf)]


@dataclass(frozen=True)
class _Leaf:
    value: Any


@dataclass(frozen=True)
class _Shape:
    """A container without its content: equal outputs have equal shapes in the same order."""

    kind: Any
    keys: tuple[Any, ...]


def _walk(value: Any, name: str, seen: set[int]) -> Iterator[_Leaf | _Shape]:
    """Yield all parts of a value in an order given by its structure; enter nothing twice."""
    if isinstance(value, (*NUMBERS, *PLAIN)):
        yield _Leaf(value)
        return
    if id(value) in seen:
        yield _Shape(type(value), ("again",))
        return
    seen.add(id(value))
    parts = _parts(value, name)
    yield _Shape(type(value), tuple(parts))
    for key, part in parts.items():
        step = f".{key}" if isinstance(key, str) else f"[{key!r}]"
        yield from _walk(part, name + step, seen)


def _parts(value: Any, name: str) -> dict[Any, Any]:
    """Return the content of a container or an object, by key, place or attribute."""
    if isinstance(value, set | frozenset) and all(isinstance(entry, PLAIN) for entry in value):
        return dict.fromkeys(sorted(value, key=repr))
    parts = _attributes(value)
    if isinstance(value, Mapping):
        parts |= {("key", key): value[key] for key in value}
    elif isinstance(value, list | tuple | deque):
        parts |= dict(enumerate(value))
    elif isinstance(value, nn.Module | Iterator | set | frozenset) or not parts:
        raise SurgeryError(
            "Expected an output of tensors, numbers and text, in lists, dicts or objects with "
            f"attributes, but {name} is of type {type(value).__name__}, which cannot be compared. "
            "Return its tensors instead, or prune a module that does"
        )
    return parts


def _attributes(value: Any) -> dict[Any, Any]:
    """Return the attributes of an object, those of its __slots__ and of its __dict__."""
    if type(value) in (dict, list, tuple, deque, torch.Size):
        return {}
    found: dict[Any, Any] = {}
    for kind in type(value).__mro__:
        for name in _slots(kind):
            if hasattr(value, name):
                found[name] = getattr(value, name)
    return found | getattr(value, "__dict__", {})


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _pairs(found: Any, expected: Any) -> list[tuple[Tensor, Tensor]] | None:
    """Return the numbers of two outputs in pairs; None if anything else about them differs."""
    ours = list(_walk(found, "the output", set()))
    theirs = list(_walk(expected, "the output", set()))
    if len(ours) != len(theirs):
        return None
    pairs: list[tuple[Tensor, Tensor]] = []
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, _Shape) or isinstance(other, _Shape):
            if one != other:
                return None
        elif _is_number(one.value) and _is_number(other.value):
            numbers = _numbers(one.value)
            expected_numbers = _numbers(other.value)
            if _kinds(numbers) != _kinds(expected_numbers):
                return None
            pairs += zip(numbers, expected_numbers, strict=True)
        elif not _equal(one.value, other.value):
            return None
    return pairs


def _kinds(arrays: list[Tensor]) -> list[tuple[Any, ...]]:
    return [(array.shape, array.dtype) for array in arrays]


def _is_number(value: Any) -> bool:
    if isinstance(value, numpy.ndarray | numpy.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, Tensor | float | complex)


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, numpy.ndarray | numpy.generic):
        return bool(one.dtype == other.dtype and numpy.array_equal(one, other))
    return bool(one == other)


def _numbers(value: Any) -> list[Tensor]:
    """Return a tensor of any kind, an array or a number as ordinary tensors on the CPU."""
    value = _as_tensor(value).detach()
    if value.is_nested:
        return [number for part in value.unbind() for number in _numbers(part)]
    if value.layout is not torch.strided:
        value = value.to_dense()
    if value.is_quantized:
        value = value.dequantize()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return [value.cpu()]


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    # most likely from a tensor's .item(), whose precision is not known
    if isinstance(value, complex):
        return torch.tensor(value, dtype=torch.complex64)
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float32)
    return torch.from_numpy(numpy.ascontiguousarray(value).reshape(value.shape))


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """Return the absolute differences; 0 where both are NaN, infinite where one is."""
    apart = (one.double() - other.double()).abs()
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, apart).nan_to_num(float("inf"))


def _close(one: Tensor, other: Tensor, changes: list[Tensor]) -> bool:
    """Return whether two tensors differ by rounding alone.

    Args:
        one: A tensor.
        other: A tensor of the same shape and dtype.
        changes: How far other roundings moved the numbers, each broadcast to their shape; empty
            where this was not measured.
    """
    if not one.numel():
        return True
    if not one.is_floating_point():
        return bool((one == other).all())
    size = other.double().abs().nan_to_num(0.0, 0.0, 0.0)
    size = size + _usual(size)  # a number near 0 among large ones is rounded like them
    eps = torch.finfo(one.dtype).eps
    if not changes:
        allowed = UNKNOWN.get(one.dtype, SHORT_UNKNOWN) * eps * size
        return bool((_apart(one, other) <= allowed).all())
    measured = torch.stack([change.expand_as(size) for change in changes])
    change = measured.amax(0).nan_to_num(0.0, 0.0, 0.0)
    common = (change / size.clamp_min(torch.finfo(torch.float64).tiny)).median()
    allowed = torch.maximum(change, common.clamp_min(eps) * size)
    return bool((_apart(one, other) <= FACTOR.get(one.dtype, SHORT_FACTOR) * allowed).all())


def _usual(size: Tensor) -> Tensor:
    """Return the median of each column's numbers that are not 0.

    Of each column, so that one huge number does not excuse the others.
    """
    nonzero = torch.where(size == 0, torch.nan, size)
    usual = nonzero.nanmedian(0, keepdim=True).values if size.dim() > 1 else nonzero.nanmedian()
    return usual.nan_to_num(0.0)
