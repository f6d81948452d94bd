"""The values that arrive at a site: tensors, dicts of tensors and keyed tensors."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._common.errors import AttachError, FieldError
from ..distributed.torchrec import blocks_of, is_keyed, waited
from ..fields import Field, Fields
from ..gates.leap import LeAP
from ..mix import join as side_by_side


def by_name(value: Any, label: str) -> Any:
    """Return a keyed tensor as a dict of its blocks; other values as they are."""
    value = waited(value)
    return blocks_of(value, label) if is_keyed(value) else value


def fields_of(value: Any, label: str) -> Fields:
    """Return names and widths of the floating-point entries (B, d) or (B,) of a dict.

    Args:
        value: The dict, or a keyed tensor.
        label: How messages call the site.
    """
    value = by_name(value, label)
    if not isinstance(value, Mapping):
        raise not_fields(value, label)
    found = {}
    for name, entry in value.items():
        if isinstance(entry, Tensor) and entry.is_floating_point() and entry.dim() in (1, 2):
            found[name] = 1 if entry.dim() == 1 else entry.shape[1]
    if not found:
        kinds = {name: _kind(entry) for name, entry in value.items()}
        raise FieldError(
            f"{label} expects a dict with floating-point tensors (rows, width), "
            f"but receives {kinds}."
        )
    return Fields(found)


def is_sequence(value: Any) -> bool:
    """Return whether a value is a tuple or list, which may have one tensor per field."""
    return isinstance(value, tuple | list)


def by_position(value: Any, names: Sequence[str], label: str) -> dict[str, Tensor]:
    """Return the tensors of a tuple or list by the names of the fields, in order."""
    kinds = [_kind(entry) for entry in value]
    if len(value) != len(names) or not all(isinstance(entry, Tensor) for entry in value):
        raise AttachError(
            f"{label}: expected one tensor for each of {len(names)} fields, but found a "
            f"{type(value).__name__} of {', '.join(kinds)}. Name the element that has the fields: "
            "tl.Place(at, part=0)."
        )
    return dict(zip(names, value, strict=True))


def width_of(value: Any) -> int | None:
    """Return the number of columns of a tensor; None of other values."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return None
    return math.prod(value.shape[1:])


def not_fields(value: Any, label: str) -> AttachError | FieldError:
    """Return the error for a value that does not name its fields."""
    if isinstance(value, Tensor):
        return FieldError(
            f"{label} receives a tensor, which does not name its fields. Give fields= to attach()."
        )
    return AttachError(
        f"{label}: expected a tensor, a dict of tensors or a KeyedTensor, but found "
        f"{type(value).__name__}. Choose a place where the fields pass as one of these, such as a "
        "layer behind it."
    )


def join(value: Mapping[str, Any], fields: Fields, names: list[str], label: str) -> Tensor:
    """Return the named entries side by side, (B, D); all problems are raised in one error."""
    refuse(value, fields, names, label)
    rows = {name: value[name].shape[0] for name in names}
    if len(set(rows.values())) > 1:
        raise FieldError(
            f"{label}: expected the same number of rows in every field, but found {rows}."
        )
    blocks = []
    for name in names:
        entry = value[name]
        blocks.append(entry.flatten(1) if entry.dim() > 1 else entry[:, None])
    return side_by_side(blocks)


def refuse(
    value: Mapping[str, Any],
    fields: Fields,
    names: list[str],
    label: str,
    others: Sequence[str] = (),
) -> None:
    """Raise every problem of the named entries, and others, in one error."""
    found = [_problem(value, fields[name]) for name in names]
    problems = [*filter(None, found), *others]
    if problems:
        raise FieldError(f"{label}: {'; '.join(problems)}. Found: {', '.join(map(repr, value))}.")


def same_tensor(one: Any, other: Any) -> bool:
    """Return whether two tensors are one: the same object, or its memory in another shape."""
    if one is other:
        return True
    if torch.compiler.is_compiling() or not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    if one.numel() != other.numel() or one.dtype != other.dtype:
        return False
    if one.requires_grad != other.requires_grad:
        return False
    in_one_order = (one.shape, one.stride()) == (other.shape, other.stride())
    if not in_one_order and not (one.is_contiguous() and other.is_contiguous()):
        return False
    return one.data_ptr() == other.data_ptr()


def state_of(gates: LeAP, value: Any) -> tuple[Any, ...]:
    """Return what must be unchanged for a gated tensor to serve another site.

    These are the mode, whether gradients are recorded, and the version of the values.
    """
    state = (gates.training, torch.is_grad_enabled())
    if torch.compiler.is_compiling() or not isinstance(value, Tensor) or value.is_inference():
        return state
    return (*state, value._version)


def _problem(value: Mapping[str, Any], field: Field) -> str | None:
    entry = value.get(field.name)
    if entry is None:
        return f"the field {field.name!r} is missing"
    if not isinstance(entry, Tensor) or not entry.is_floating_point():
        return f"{field.name!r} should be a floating-point tensor, but is {_kind(entry)}"
    if entry.dim() == 0:
        return f"{field.name!r} should have rows, but is a single number"
    width = math.prod(entry.shape[1:])
    if width != field.width:
        return f"{field.name!r} should be {field.width} wide, but is {width}"
    return None


def _kind(entry: Any) -> str:
    return str(getattr(entry, "dtype", type(entry).__name__))
