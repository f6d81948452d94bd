"""Whether two outputs are the same to rounding, whatever they are made of."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from .._common.errors import SurgeryError

PLAIN = (
    type(None),
    bool,
    int,
    str,
    bytes,
    Enum,
    type,
    torch.dtype,
    torch.device,
    torch.layout,
    range,
    slice,
)
NUMBERS = (Tensor, numpy.ndarray, numpy.generic, float, complex)
# How far apart two ways of computing may be, in units of what the rounding of each operation changes. Long sums in float32 and
# float64 round at each step; in shorter formats they are kept in float32.
FACTOR = {torch.float32: 16.0, torch.float64: 16.0}
SHORT_FACTOR = 4.0
UNKNOWN = {
    torch.float32: 500.0,
    torch.float64: 500.0,
}  # the same in units of eps, where nothing was measured
SHORT_UNKNOWN = 16.0


def alike(found: Any, expected: Any, rounded: Callable[[], Sequence[Any]] | None = None) -> bool:
    """Say whether two ways to compute the same output agree, number by number, up to rounding.

    Args:
        found: The output to check.
        expected: What it should be.
        rounded: Computes the expected output again, and then several times with another rounding of every operation (see
            `with_other_rounding`): how much that changes is how much may differ. It is called only if the outputs differ by
            more than their last digits. Without it, a multiple of the precision of the numbers may differ.
    """
    pairs = _pairs(found, expected)
    if pairs is None:
        return False
    if rounded is None:
        return all(_close(*pair, []) for pair in pairs)
    if all(_close(*pair, [torch.zeros(())]) for pair in pairs):
        return True
    again, *others = rounded() or [expected]
    shapes = [other.shape for _, other in pairs]
    rounds = [_pairs(output, again) or [] for output in others]
    changed = [parts for parts in rounds if [one.shape for one, _ in parts] == shapes]
    changes = [[_apart(*parts[place]) for parts in changed] for place in range(len(pairs))]
    return all(_close(*pair, apart) for pair, apart in zip(pairs, changes, strict=True))


def difference(found: Any, expected: Any) -> float:
    """The largest difference between two outputs, infinite if they are not alike at all."""
    pairs = _pairs(found, expected)
    if pairs is None:
        return float("inf")
    return max((float(_apart(*pair).max()) for pair in pairs if pair[0].numel()), default=0.0)


def leaves_of(output: Any) -> list[Any]:
    """Return everything that an output is made of: tensors, arrays, numbers and other plain values.

    Raises:
        SurgeryError: It holds something that cannot be compared.
    """
    return [
        leaf.value for leaf in _walk(output, "the output", set()) if not isinstance(leaf, _Shape)
    ]


@dataclass(frozen=True)
class _Leaf:
    value: Any


@dataclass(frozen=True)
class _Shape:
    """What a container is, but for its content: two outputs must have equal ones in the same order."""

    kind: Any
    keys: tuple[Any, ...]


def _walk(value: Any, name: str, seen: set[int]) -> Iterator[_Leaf | _Shape]:
    """Yield all parts of a value, in an order that depends on its structure alone; nothing is entered twice."""
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
        yield from _walk(
            part, f"{name}.{key}" if isinstance(key, str) else f"{name}[{key!r}]", seen
        )


def _parts(value: Any, name: str) -> dict[Any, Any]:
    """Return the content of a container or an object, by key, place or attribute."""
    if isinstance(value, set | frozenset) and all(isinstance(entry, PLAIN) for entry in value):
        return dict.fromkeys(sorted(value, key=repr))
    parts: dict[Any, Any] = _attributes(value)
    if isinstance(value, Mapping):
        parts |= {("key", key): value[key] for key in value}
    elif isinstance(value, list | tuple | deque):
        parts |= dict(enumerate(value))
    elif isinstance(value, nn.Module | Iterator | set | frozenset) or not parts:
        raise SurgeryError(
            f"Expected an output of tensors, numbers and text, in lists, dicts or objects with attributes, but {name} is of type "
            f"{type(value).__name__}, which cannot be compared. Return its tensors instead, or prune a module that does"
        )
    return parts


def _attributes(value: Any) -> dict[Any, Any]:
    """Return the attributes of an object, of its __dict__ and of its __slots__."""
    if type(value) in (dict, list, tuple, deque, torch.Size):
        return {}
    names = [name for kind in type(value).__mro__ for name in _slots(kind)]
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})}


def _slots(kind: type) -> Sequence[str]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _pairs(found: Any, expected: Any) -> list[tuple[Tensor, Tensor]] | None:
    """Pair the numbers of two outputs; None if shapes, dtypes, types or anything that is not a number differ."""
    ours, theirs = (list(_walk(output, "the output", set())) for output in (found, expected))
    if len(ours) != len(theirs):
        return None
    pairs: list[tuple[Tensor, Tensor]] = []
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, _Shape) or isinstance(other, _Shape):
            if one != other:
                return None
        elif _is_number(one.value) and _is_number(other.value):
            numbers = _numbers(one.value), _numbers(other.value)
            if [_kind(array) for array in numbers[0]] != [_kind(array) for array in numbers[1]]:
                return None
            pairs += zip(*numbers, strict=True)
        elif type(one.value) is not type(other.value) or not _equal(one.value, other.value):
            return None
    return pairs


def _kind(array: Tensor) -> tuple[Any, ...]:
    return array.shape, array.dtype


def _is_number(value: Any) -> bool:
    if isinstance(value, numpy.ndarray | numpy.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, Tensor | float | complex)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, numpy.ndarray | numpy.generic):
        return bool(one.dtype == other.dtype and numpy.array_equal(one, other))
    return bool(one == other)


def _numbers(value: Any) -> list[Tensor]:
    """Return a tensor of any kind, an array or a number as ordinary tensors on the CPU."""
    if isinstance(
        value, float | complex
    ):  # of a tensor's .item(), most likely, whose precision is not known
        value = torch.tensor(
            value, dtype=torch.complex64 if isinstance(value, complex) else torch.float32
        )
    elif not isinstance(value, Tensor):
        value = torch.from_numpy(numpy.ascontiguousarray(value).reshape(value.shape))
    value = value.detach()
    if value.is_nested:
        return [number for part in value.unbind() for number in _numbers(part)]
    if value.layout is not torch.strided:
        value = value.to_dense()
    if value.is_quantized:
        value = value.dequantize()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return [value.cpu()]


def _apart(one: Tensor, other: Tensor) -> Tensor:
    apart = (one.double() - other.double()).abs()
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, apart).nan_to_num(float("inf"))


def _close(one: Tensor, other: Tensor, changes: list[Tensor]) -> bool:
    """Say whether two tensors differ by rounding alone, as far as is known how much that changes them."""
    if not one.numel():
        return True
    if not one.is_floating_point():
        return bool((one == other).all())
    size = other.double().abs().nan_to_num(0.0, 0.0, 0.0)
    size = size + _usual(size)  # of a number near 0 among large ones, the rounding is theirs
    eps = torch.finfo(one.dtype).eps
    if not changes:
        return bool(
            (_apart(one, other) <= UNKNOWN.get(one.dtype, SHORT_UNKNOWN) * eps * size).all()
        )
    change = (
        torch.stack([change.expand_as(size) for change in changes])
        .amax(0)
        .nan_to_num(0.0, 0.0, 0.0)
    )
    common = (change / size.clamp_min(torch.finfo(torch.float64).tiny)).median()
    allowed = torch.maximum(change, common.clamp_min(eps) * size)
    return bool((_apart(one, other) <= FACTOR.get(one.dtype, SHORT_FACTOR) * allowed).all())


def _usual(size: Tensor) -> Tensor:
    """Return the median size of each column's numbers that are not 0: one huge number must not excuse the others."""
    nonzero = torch.where(size == 0, torch.nan, size)
    usual = nonzero.nanmedian(0, keepdim=True).values if size.dim() > 1 else nonzero.nanmedian()
    return usual.nan_to_num(0.0)
