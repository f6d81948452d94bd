"""Check the ids that a loaded model gives to an EmbeddingBag, since PyTorch does not check them."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .._common.errors import FieldError


def refuse_outside(bag: nn.EmbeddingBag, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise on ids that the table does not have, and on offsets out of order or beyond the ids.

    PyTorch would read memory beyond the ids and the table, and with `max_norm` write there. It
    checks everything else itself.

    Args:
        bag: The layer.
        given: Its arguments: ids, (B, L) or of all bags in one line, (N,), and where each bag
            begins in that line.
        named: Its arguments that are given by name.
    """
    ids = given[0] if given else named.get("input")
    offsets = given[1] if len(given) > 1 else named.get("offsets")
    if not isinstance(ids, Tensor) or ids.is_meta:
        return
    rows = bag.weight.shape[0]
    if ids.numel():
        low, high = (int(end) for end in ids.aminmax())
        if low < 0 or high >= rows:
            raise FieldError(
                f"Expected ids from 0 to {rows - 1} for a table, but found {low} to {high}."
            )
    if not isinstance(offsets, Tensor):
        return
    if not _are_in_order(offsets, ids.numel(), bag.include_last_offset):
        found = str(offsets.tolist())[:80]
        raise FieldError(
            f"Expected offsets in order, from 0 to at most {ids.numel()}, but found {found}."
        )


def _are_in_order(offsets: Tensor, count: int, has_end: bool) -> bool:
    """Return whether offsets begin with 0, never fall, and end within the ids.

    With `has_end` the last offset is the end of the last bag.
    """
    if offsets.dim() != 1 or not offsets.numel():
        return count == 0 and not has_end
    if has_end and offsets.numel() == 1 and count:
        return False
    inside = int(offsets[0]) == 0 and int(offsets[-1]) <= count
    return inside and bool((offsets[1:] >= offsets[:-1]).all())
