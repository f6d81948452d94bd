"""The native kernel (native/mix.c), called through ctypes: float32, float64 and bfloat16 on the CPU."""

from collections.abc import Callable
from ctypes import c_int, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..native import library as native
from .memory import Pool
from .reference import Mixed
from .shuffle import SAMPLE_ROWS, Draw

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
WIDE = {dtype: torch.promote_types(dtype, torch.float32) for dtype in DTYPES}
SHUFFLES = {"uniform": 0, "cyclic": 1}
SMALL = 1 << 15  # values that one thread has mixed before a second is awake


@cache
def load() -> "Kernel | str":
    """Return the mixing kernel for this processor, or the reason why there is none."""
    library = native.load()
    return library if isinstance(library, str) else Kernel(library)


class Kernel:
    """The compiled functions with their signatures."""

    def __init__(self, library: native.Library) -> None:
        compiled = library.functions
        self.level = library.level
        self.parallel = library.parallel
        compiled.torchleap_allocate.argtypes, compiled.torchleap_allocate.restype = (
            [c_int64],
            c_void_p,
        )
        compiled.torchleap_free.argtypes, compiled.torchleap_free.restype = [c_void_p], None
        self.pool = Pool(compiled.torchleap_allocate, compiled.torchleap_free)
        layout: list[Any] = [
            c_int64,
            c_int64,
            c_int64,
            c_void_p,
            c_int64,
            c_void_p,
            c_void_p,
            c_int,
        ]
        threads: list[Any] = [c_int, c_void_p]
        self.streams = compiled.torchleap_streams
        self.streams.argtypes = [c_int64, c_void_p, c_int64, c_int64, c_void_p]
        self.join = compiled.torchleap_join
        self.join.argtypes = [
            c_void_p,
            c_void_p,
            c_void_p,
            c_int64,
            c_int64,
            c_int64,
            c_void_p,
            *threads,
        ]
        self.join.restype = None
        self.forward = compiled.torchleap_forward
        self.forward.argtypes = [
            c_int,
            c_void_p,
            *layout,
            c_int64,
            c_void_p,
            c_void_p,
            c_void_p,
            *threads,
        ]
        self.backward = compiled.torchleap_backward
        self.backward.argtypes = [
            c_int,
            c_void_p,
            c_int64,
            c_void_p,
            *layout,
            c_void_p,
            c_void_p,
            *threads,
        ]


def streams(seed: Tensor, steps: Tensor, first_gate: int = 0) -> Tensor:
    """See `shuffle.streams`."""
    if not _is_index(steps, len(steps)):
        raise ValueError(
            f"Expected steps in int64 on the CPU, but found {steps.dtype} on {steps.device}."
        )
    steps = steps.contiguous()
    found = steps.new_empty(1 + steps.shape[0])
    _kernel().streams(int(seed), steps.data_ptr(), steps.shape[0], first_gate, found.data_ptr())
    return found


def join(blocks: list[Tensor]) -> Tensor:
    """`torch.cat(blocks, dim=1)` for blocks of one type."""
    if any(block.shape[0] != blocks[0].shape[0] or block.device.type != "cpu" for block in blocks):
        raise ValueError(
            f"Expected blocks with as many rows, on the CPU, but found {[tuple(block.shape) for block in blocks]}."
        )
    blocks = [_with_rows_in_memory(block) for block in blocks]
    rows, size = blocks[0].shape[0], blocks[0].element_size()
    widths = [block.shape[1] for block in blocks]
    output = _kernel().pool.empty(blocks[0], (rows, sum(widths)))
    count = len(blocks)
    _kernel().join(
        (c_void_p * count)(*[block.data_ptr() for block in blocks]),
        (c_int64 * count)(*[block.stride(0) * size for block in blocks]),
        (c_int64 * count)(*[width * size for width in widths]),
        count,
        rows,
        sum(widths) * size,
        output.data_ptr(),
        torch.get_num_threads(),
        _kernel().parallel,
    )
    return output


def forward(x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw) -> Mixed:
    """See `reference.mix`."""
    x = _with_rows_in_memory(x)
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
    """See `reference.gradients`."""
    if grad.dtype != x.dtype or grad.shape != x.shape or grad.device != x.device:
        raise ValueError(
            f"Expected a gradient {tuple(x.shape)} in {x.dtype}, but found {tuple(grad.shape)} in {grad.dtype}."
        )
    x, grad = _with_rows_in_memory(x), _with_rows_in_memory(grad)
    found = [
        _kernel().pool.empty(x, (x.shape[0], x.shape[1])) if wants[0] else gate.new_empty(0),
        torch.empty_like(gate) if wants[1] else gate.new_empty(0),
    ]
    after = [
        gradient.data_ptr() if wanted else None
        for gradient, wanted in zip(found, wants, strict=True)
    ]
    _call(
        _kernel().backward,
        x,
        gate,
        column_gate,
        draw,
        before=[grad.data_ptr(), grad.stride(0)],
        after=after,
    )
    return found


def _kernel() -> Kernel:
    kernel = load()
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    return kernel


def _with_rows_in_memory(x: Tensor) -> Tensor:
    """The kernel takes any distance between rows, but the values of a row side by side."""
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


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
    gate, column_gate, streams = (
        gate.contiguous(),
        column_gate.contiguous(),
        draw.streams.contiguous(),
    )
    rows, columns = x.shape
    expected = {
        f"gates in {WIDE[x.dtype]} on the CPU": gate.dtype == WIDE[x.dtype]
        and gate.device.type == "cpu",
        f"a gate as int64 for each of {columns} columns, on the CPU": _is_index(
            column_gate, columns
        ),
        f"{1 + gate.shape[0]} streams in int64, on the CPU": _is_index(streams, 1 + gate.shape[0]),
    }
    if not all(expected.values()):
        raise ValueError(
            f"Expected {' and '.join(wanted for wanted, met in expected.items() if not met)}."
        )
    failed = function(
        DTYPES[x.dtype],
        *before,
        x.data_ptr(),
        rows,
        columns,
        x.stride(0),
        gate.data_ptr(),
        gate.shape[0],
        column_gate.data_ptr(),
        streams.data_ptr(),
        SHUFFLES[draw.shuffle],
        *after,
        torch.get_num_threads() if x.numel() > SMALL else 1,
        _kernel().parallel,
    )
    if failed == 2:
        raise ValueError(
            f"Expected rows, columns and a gate from 0 to {gate.shape[0] - 1} for each column, but found {x.shape}."
        )
    if failed:
        raise MemoryError(
            f"The mixing step of {rows:,} rows and {columns:,} columns is out of memory. Make the batch smaller."
        )
