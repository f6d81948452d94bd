"""Some columns of a tensor that has others beside them, which are not fields."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._common.errors import AttachError, FieldError
from ..distributed.torchrec import is_awaitable, is_keyed


class SomeColumns:
    """Take a range of columns out of a tensor (B, D), and put other values in their place.

    Args:
        columns: The first column, and the one after the last.
        label: How messages call the place.
    """

    def __init__(self, columns: tuple[int, int], label: str) -> None:
        self.start, self.stop = columns
        self.label = label
        self.width: int | None = None  # D, once a tensor has passed

    def take(self, value: Any) -> Any:
        """Return the columns of a tensor."""
        if isinstance(value, Mapping | tuple | list) or is_keyed(value) or is_awaitable(value):
            raise AttachError(
                f"{self.label}: expected a tensor with columns, but found {type(value).__name__}. "
                "Leave out columns=, or choose an element with part=."
            )
        if isinstance(value, Tensor):  # and no stand-in for one, which is as wide
            self._check(value)
        return value[:, self.start : self.stop]

    def put(self, value: Any, columns: Any) -> Any:
        """Return a tensor with other values in these columns."""
        pieces = [value[:, : self.start], columns]
        if self.stop != self.width:  # surgery cannot see how wide an empty piece is
            pieces.append(value[:, self.stop :])
        return torch.cat(pieces, dim=1)

    def _check(self, value: Tensor) -> None:
        """Refuse a tensor with another number of columns than the first one."""
        if self.width is None:
            self.width = value.shape[1]
        if value.shape[1] != self.width:
            raise FieldError(
                f"{self.label} receives {value.shape[1]} columns, but it received {self.width} "
                "before. A place with columns= must be as wide in every batch."
            )
