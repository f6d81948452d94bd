"""Memory: the layout that the kernels need, and large results that are reused from step to step.

The system hands out fresh memory page by page and fills it with zeros, which for a result of
100 MB takes longer than the mixing itself, in every step again. So blocks that a tensor has given
back wait here for the next tensor. The blocks in use and the waiting ones together never take more
memory than was in use at once before.
"""

import ctypes
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

LARGE = 1 << 20  # bytes; torch allocates smaller results


class Block(NamedTuple):
    """A block of memory."""

    size: int  # bytes
    address: int


class Pool:
    """Hands out tensors on blocks of memory, and takes a block back when its last tensor has died.

    Args:
        allocate: Returns the address of so many bytes, or None (or 0) if there are not as many.
        release: Frees the memory at an address.
    """

    def __init__(
        self, allocate: Callable[[int], int | None], release: Callable[[int], None]
    ) -> None:
        self._allocate = allocate
        self._release = release
        self._idle: list[Block] = []  # longest waiting first
        self._in_use = 0  # bytes
        self._most_in_use = 0
        self._lock = threading.Lock()
        # A garbage collection may end a tensor at any time, also while the lock is held: it only
        # leaves the block here.
        self._returned: deque[Block] = deque()

    def empty(self, like: Tensor, shape: tuple[int, int]) -> Tensor:
        """Return a contiguous tensor with any content, of this shape and the dtype of `like`."""
        count = math.prod(shape)
        wanted = count * like.element_size()
        if wanted < LARGE:
            return like.new_empty(shape)
        with self._lock:
            block = self._take(wanted)
        buffer = (ctypes.c_char * block.size).from_address(block.address)
        weakref.finalize(buffer, self._returned.append, block).atexit = False
        storage = torch.frombuffer(buffer, dtype=like.dtype, count=count).untyped_storage()
        # Not a view of the buffer's tensor: it may be changed in place.
        return like.new_empty(0).set_(storage, 0, shape, (shape[1], 1))

    def _take(self, wanted: int) -> Block:
        """Return a waiting block of about the wanted size, or else a fresh one."""
        while self._returned:
            block = self._returned.popleft()
            self._in_use -= block.size
            self._idle.append(block)
        fitting = [block for block in self._idle if wanted <= block.size <= 2 * wanted]
        if fitting:
            smallest = min(fitting)
            self._idle.remove(smallest)
            self._count(smallest.size)
            return smallest
        self._count(wanted)
        return self._fresh(wanted)

    def _count(self, size: int) -> None:
        """Count a block as used; free waiting blocks beyond the most that was in use at once."""
        self._in_use += size
        self._most_in_use = max(self._most_in_use, self._in_use)
        while sum(block.size for block in self._idle) > self._most_in_use - self._in_use:
            self._release(self._idle.pop(0).address)

    def _fresh(self, wanted: int) -> Block:
        """Return newly allocated memory, for which waiting blocks are freed if necessary."""
        address = self._allocate(wanted)
        if not address:
            while self._idle:
                self._release(self._idle.pop(0).address)
            address = self._allocate(wanted)
        if not address:
            self._in_use -= wanted
            raise MemoryError(
                f"The mixing step needs {wanted / 2**20:,.0f} MB for its result. "
                "Make the batch smaller."
            )
        return Block(wanted, address)


def with_rows_in_memory(x: Tensor) -> Tensor:
    """Return x with the values of each row side by side; rows may have any distance."""
    if x.stride(1) == 1 or x.shape[1] == 1:
        return x
    return x.contiguous()
