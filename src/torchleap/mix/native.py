"""Mix by the native kernel (native/mix.c): float32, float64 and bfloat16 on the CPU."""

from collections.abc import Callable
from ctypes import c_int, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..native import library
from .memory import Pool, with_rows_in_memory
from .reference import Mixed
from .shuffle import SAMPLE_ROWS, Draw

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}  # as mix.c numbers them
WIDE = {dtype: torch.promote_types(dtype, torch.float32) for dtype in DTYPES}
SHUFFLES = {"uniform": 0, "cyclic": 1}
SMALL = 1 << 15  # values that one thread has mixed before a second one has woken up

INPUT = [c_void_p, c_int64, c_int64, c_int64]  # address, rows, columns, distance between rows
GATES = [
    c_void_p,
    c_int64,
    c_void_p,
    c_void_p,
    c_int,
]  # gates, count, column_gate, streams, shuffle
THREADS = [c_int, c_void_p]  # their number, and the function that runs work in them


class Kernel:
    """The functions of mix.c with their signatures, and the memory for their results."""

    def __init__(self, compiled: library.Library) -> None:
        self.level = compiled.level
        self.parallel = compiled.parallel
        self.pool = Pool(
            compiled.function("allocate", [c_int64], c_void_p),
            compiled.function("free", [c_void_p]),
        )
        self.streams = compiled.function("streams", [c_int64, c_void_p, c_int64, c_int64, c_void_p])
        self.join = compiled.function(
            "join", [*[c_void_p] * 3, c_int64, c_int64, c_int64, c_void_p, *THREADS]
        )
        self.forward = compiled.function(
            "forward", [c_int, *INPUT, *GATES, c_int64, *[c_void_p] * 3, *THREADS], c_int
        )
        self.backward = compiled.function(
            "backward",
            [c_int, c_void_p, c_int64, *INPUT, *GATES, c_void_p, c_void_p, *THREADS],
            c_int,
        )


@cache
def load() -> Kernel | None:
    """Return the mixing kernel for this processor, or None where there is no compiled library."""
    compiled = library.load()
    if compiled is None:
        return None
    return Kernel(compiled)


def _kernel() -> Kernel:
    kernel = load()
    if kernel is None:
        raise RuntimeError(library.obstacle())
    return kernel


def streams(seed: Tensor, steps: Tensor, first_gate: int = 0) -> Tensor:
    """Return the stream of random numbers of each gate, as `shuffle.streams` defines it."""
    if not _is_index(steps, len(steps)):
        raise ValueError(
            f"Expected steps in int64 on the CPU, but found {steps.dtype} on {steps.device}."
        )
    steps = steps.contiguous()
    found = steps.new_empty(1 + steps.shape[0])
    _kernel().streams(int(seed), steps.data_ptr(), steps.shape[0], first_gate, found.data_ptr())
    return found


def join(blocks: list[Tensor]) -> Tensor:
    """Return `torch.cat(blocks, dim=1)` of blocks (B, width) of one dtype."""
    rows = blocks[0].shape[0]
    if any(block.shape[0] != rows or block.device.type != "cpu" for block in blocks):
        found = [tuple(block.shape) for block in blocks]
        raise ValueError(f"Expected blocks with as many rows, on the CPU, but found {found}.")
    kernel = _kernel()
    blocks = [with_rows_in_memory(block) for block in blocks]
    count = len(blocks)
    size = blocks[0].element_size()
    widths = [block.shape[1] for block in blocks]
    output = kernel.pool.empty(blocks[0], (rows, sum(widths)))
    kernel.join(
        (c_void_p * count)(*[block.data_ptr() for block in blocks]),
        (c_int64 * count)(*[block.stride(0) * size for block in blocks]),
        (c_int64 * count)(*[width * size for width in widths]),
        count,
        rows,
        sum(widths) * size,
        output.data_ptr(),
        torch.get_num_threads() if output.numel() > SMALL else 1,
        kernel.parallel,
    )
    return output


def forward(x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw) -> Mixed:
    """Mix and measure a batch, as `reference.mix` defines it."""
    x = with_rows_in_memory(x)
    rows, columns = x.shape
    output = _kernel().pool.empty(x, (rows, columns))
    mean = gate.new_empty(columns)
    statistics = gate.new_zeros(4, gate.shape[0])
    after = [min(SAMPLE_ROWS, rows), output.data_ptr(), mean.data_ptr(), statistics.data_ptr()]
    _call(_kernel().forward, x, gate, column_gate, draw, before=[], after=after)
    return Mixed(output, mean, statistics)


def backward(
    grad: Tensor, x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw, wants: tuple[bool, bool]
) -> list[Tensor]:
    """Return the wanted gradients of x and gate, as `reference.gradients` defines them."""
    if grad.dtype != x.dtype or grad.shape != x.shape or grad.device != x.device:
        raise ValueError(
            f"Expected a gradient {tuple(x.shape)} in {x.dtype}, "
            f"but found {tuple(grad.shape)} in {grad.dtype}."
        )
    x = with_rows_in_memory(x)
    grad = with_rows_in_memory(grad)
    grad_x = gate.new_empty(0)
    grad_gate = gate.new_empty(0)
    after: list[int | None] = [None, None]
    if wants[0]:
        grad_x = _kernel().pool.empty(x, (x.shape[0], x.shape[1]))
        after[0] = grad_x.data_ptr()
    if wants[1]:
        grad_gate = torch.empty_like(gate)
        after[1] = grad_gate.data_ptr()
    before = [grad.data_ptr(), grad.stride(0)]
    _call(_kernel().backward, x, gate, column_gate, draw, before=before, after=after)
    return [grad_x, grad_gate]


def _is_index(values: Tensor, length: int) -> bool:
    return values.dtype == torch.int64 and values.shape == (length,) and values.device.type == "cpu"


def _call(
    function: Callable[..., int],
    x: Tensor,
    gate: Tensor,
    column_gate: Tensor,
    draw: Draw,
    *,
    before: Any,
    after: Any,
) -> None:
    """Call a kernel function; `before` precedes the input, `after` follows the gates."""
    gate = gate.contiguous()
    column_gate = column_gate.contiguous()
    streams = draw.streams.contiguous()
    rows, columns = x.shape
    gates = gate.shape[0]
    _check_gates(x, gate, column_gate, streams)
    failed = function(
        DTYPES[x.dtype],
        *before,
        x.data_ptr(),
        rows,
        columns,
        x.stride(0),
        gate.data_ptr(),
        gates,
        column_gate.data_ptr(),
        streams.data_ptr(),
        SHUFFLES[draw.shuffle],
        *after,
        torch.get_num_threads() if x.numel() > SMALL else 1,
        _kernel().parallel,
    )
    if failed == 2:
        raise ValueError(
            f"Expected rows, columns and a gate from 0 to {gates - 1} for each column, "
            f"but found {x.shape}."
        )
    if failed:
        raise MemoryError(
            f"The mixing step of {rows:,} rows and {columns:,} columns is out of memory. "
            "Make the batch smaller."
        )


def _check_gates(x: Tensor, gate: Tensor, column_gate: Tensor, streams: Tensor) -> None:
    """Raise if a tensor has another type or size than the kernel would read at its address."""
    wide = WIDE[x.dtype]
    columns = x.shape[1]
    problems = []
    if gate.dtype != wide or gate.device.type != "cpu":
        problems.append(f"gates in {wide} on the CPU")
    if not _is_index(column_gate, columns):
        problems.append(f"a gate as int64 for each of {columns} columns, on the CPU")
    if not _is_index(streams, 1 + gate.shape[0]):
        problems.append(f"{1 + gate.shape[0]} streams in int64, on the CPU")
    if problems:
        raise ValueError(f"Expected {' and '.join(problems)}.")
