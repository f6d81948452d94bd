"""Memory for large results that is used again from step to step.

The system hands out fresh memory page by page and fills it with zeros, which for a result of 100 MB takes longer than the mixing
itself, every step anew. So blocks that a tensor has given back wait here for the next one; what waits is never more than what
was in use at once.
"""

import ctypes
import math
import threading
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

LARGE = 1 << 20  # bytes; smaller ones are torch's business


class Pool:
    """Hands out tensors on blocks of memory, and takes the blocks back when the last tensor on them is gone."""

    def __init__(self, allocate: Callable[[int], int | None], release: Callable[[int], None]) -> None:
        self._allocate = allocate
        self._release = release
        self._idle: list[tuple[int, int]] = []  # size and address, longest waiting first
        self._in_use = self._most_in_use = 0  # bytes
        self._lock = threading.RLock()  # a garbage collection within may give back a block

    def empty(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A contiguous tensor of the same type, with any content."""
        wanted = math.prod(shape) * like.element_size()
        if wanted < LARGE:
            return like.new_empty(shape)
        size, address = self._take(wanted)
        block = (ctypes.c_char * size).from_address(address)
        weakref.finalize(block, self._give_back, size, address).atexit = False
        return torch.frombuffer(block, dtype=like.dtype, count=math.prod(shape)).view(shape)

    def _take(self, wanted: int) -> tuple[int, int]:
        with self._lock:
            fitting = [block for block in self._idle if wanted <= block[0] <= 2 * wanted]
            if fitting:
                found = min(fitting)
                self._idle.remove(found)
            else:
                address = self._allocate(wanted)
                if not address:
                    raise MemoryError(f"The mixing step needs {wanted / 2**20:,.0f} MB for its result. Make the batch smaller.")
                found = wanted, address
            self._in_use += found[0]
            self._most_in_use = max(self._most_in_use, self._in_use)
        return found

    def _give_back(self, size: int, address: int) -> None:
        with self._lock:
            self._in_use -= size
            self._idle.append((size, address))
            while sum(size for size, _ in self._idle) > self._most_in_use:
                self._release(self._idle.pop(0)[1])
