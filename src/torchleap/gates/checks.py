"""Checks of the batches that gates receive."""

import torch
from torch import Tensor

from .._common.errors import FieldError
from ..fields import Fields


def check_batch(x: Tensor, place: str, *, device: torch.device, permutes: bool) -> None:
    """Refuse a batch that gates cannot mix.

    Args:
        x: The batch, (B, D) or (B, F, E).
        place: How messages call the gates.
        device: The device of the gates.
        permutes: Whether rows will be permuted, which needs at least two.
    """
    if not isinstance(x, Tensor):
        raise FieldError(
            f"{place} expects a tensor (rows, columns), but receives {type(x).__name__}. "
            "Convert it first."
        )
    if not x.is_floating_point():
        raise FieldError(
            f"{place} expects floating-point columns, but receives {x.dtype}. "
            "Ids have to be embedded first: put the gates behind the embedding."
        )
    if x.dim() < 2:
        raise FieldError(
            f"{place} expects (rows, columns) or (rows, fields, width), but receives the shape "
            f"{tuple(x.shape)}. Put the gates where complete rows pass."
        )
    if x.device != device:
        raise FieldError(
            f"{place} is on {device}, but receives a batch on {x.device}. Move one of them: "
            f"batch.to({str(device)!r})."
        )
    if permutes and x.shape[0] < 2:
        raise FieldError(
            f"{place} needs at least 2 rows to permute in training, but the batch has "
            f"{x.shape[0]}. Drop the last partial batch (drop_last=True) or call eval()."
        )


def check_width(found: int, columns: slice | None, fields: Fields, place: str) -> None:
    """Refuse a batch with another number of columns than the fields, or than their block, have."""
    expected = fields.dims if columns is None else columns.stop - columns.start
    if found != expected:
        raise FieldError(
            f"{place} receives {found} columns, but the fields sum to {expected}. "
            f"{fields.describe()} "
            "Give the missing field, correct a width, or choose another at=."
        )


def refuse_nonfinite(statistics: Tensor, gates: slice, fields: Fields) -> None:
    """Refuse statistics that are not finite, (n, G), and name the fields.

    Args:
        statistics: The statistics of some gates, one row per statistic.
        gates: The gates that they belong to.
        fields: All fields.
    """
    finite = torch.isfinite(statistics).all(0)
    if finite.all():
        return
    bad = {gate + gates.start for gate in (~finite).nonzero().flatten().tolist()}
    names = [name for name, gate in zip(fields.names, fields.gates, strict=True) if gate in bad]
    listed = ", ".join(map(repr, names[:5]))
    if len(names) > 5:
        listed += f" and {len(names) - 5} more"
    raise FieldError(
        f"NaN, infinity or values too large to square in field {listed}. "
        "Fill or clip the values before the model reads them."
    )
