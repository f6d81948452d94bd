"""Memory for large results that is used again from step to step.

The system hands out fresh memory page by page and fills it with zeros, which for a result of 100 MB takes longer than the mixing
itself, every step anew. So blocks that a tensor has given back wait here for the next one. What is in use and what waits together
are never more than what was in use at once before.
"""

import ctypes
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

LARGE = 1 << 20  # bytes; smaller ones are torch's business


class Pool:
    """Hands out tensors on blocks of memory, and takes the blocks back when the last tensor on them is gone."""

    def __init__(
        self, allocate: Callable[[int], int | None], release: Callable[[int], None]
    ) -> None:
        self._allocate = allocate
        self._release = release
        self._idle: list[tuple[int, int]] = []  # size and address, longest waiting first
        self._in_use = self._most_in_use = 0  # bytes
        self._lock = threading.Lock()
        # A garbage collection may end a tensor at any moment, also while the lock is held: it only leaves a message here.
        self._returned: deque[tuple[int, int]] = deque()

    def empty(self, like: Tensor, shape: tuple[int, int]) -> Tensor:
        """A contiguous tensor of the same type, with any content."""
        wanted = math.prod(shape) * like.element_size()
        if wanted < LARGE:
            return like.new_empty(shape)
        with self._lock:
            size, address = self._take(wanted)
        block = (ctypes.c_char * size).from_address(address)
        weakref.finalize(block, self._returned.append, (size, address)).atexit = False
        memory = torch.frombuffer(block, dtype=like.dtype, count=math.prod(shape)).untyped_storage()
        return like.new_empty(0).set_(
            memory, 0, shape, (shape[1], 1)
        )  # not a view: it may be changed in place

    def _take(self, wanted: int) -> tuple[int, int]:
        while self._returned:
            block = self._returned.popleft()
            self._in_use -= block[0]
            self._idle.append(block)
        fitting = [block for block in self._idle if wanted <= block[0] <= 2 * wanted]
        found = min(fitting, default=None)
        if found is not None:
            self._idle.remove(found)
        self._in_use += wanted if found is None else found[0]
        self._most_in_use = max(self._most_in_use, self._in_use)
        while sum(size for size, _ in self._idle) > self._most_in_use - self._in_use:
            self._release(self._idle.pop(0)[1])
        return found or (wanted, self._fresh(wanted))

    def _fresh(self, wanted: int) -> int:
        address = self._allocate(wanted)
        if not address:
            while self._idle:
                self._release(self._idle.pop(0)[1])
            address = self._allocate(wanted)
        if not address:
            self._in_use -= wanted
            raise MemoryError(
                f"The mixing step needs {wanted / 2**20:,.0f} MB for its result. Make the batch smaller."
            )
        return address
