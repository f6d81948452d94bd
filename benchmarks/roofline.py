"""How close the mixing step comes to the speed of memory, against a plain copy in the same run.

    python benchmarks/roofline.py [--repeats 15] [--case "39 fields"]

Forward has to read the input and write the output, backward to read the input and the incoming
gradient and to write the outgoing one: 2 and 3 times the input's bytes. A copy reads and writes: 2
times. `copy` writes into memory that is allocated already; `clone` allocates its result, as every
operator of PyTorch does.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch

from torchleap.mix import Draw, choose, native, reference, streams


def seconds(tasks: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each task, measured by turns."""
    found: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(repeats + 2):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if repeat > 1:  # the first rounds warm up
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in found.items()}


def measure(name: str, widths: list[int], rows: int, dtype: torch.dtype, repeats: int) -> None:
    """Print the speed of the mixing step for one shape."""
    column_gate = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
    x = torch.randn(rows, sum(widths)).to(dtype)
    grad = torch.randn_like(x)
    there = torch.empty_like(x)
    gate = torch.rand(len(widths))
    draw = Draw(streams(torch.tensor(0), torch.zeros(len(widths), dtype=torch.int64)))
    time_of = seconds(
        {
            "copy": lambda: there.copy_(x),
            "clone": x.clone,
            "forward": lambda: native.forward(x, gate, column_gate, draw),
            "backward": lambda: native.backward(grad, x, gate, column_gate, draw, (True, True)),
        },
        repeats,
    )
    start = time.perf_counter()
    reference.forward(x, gate, column_gate, draw)
    reference.backward(grad, x, gate, column_gate, draw, (True, True))
    plain = time.perf_counter() - start
    size = x.numel() * x.element_size()
    both = time_of["forward"] + time_of["backward"]
    gigabytes = 1e-9 * size
    print(
        f"{name:50}{size / 1e6:8.0f}{2 * gigabytes / time_of['copy']:8.1f}"
        f"{2 * gigabytes / time_of['forward']:9.1f}{3 * gigabytes / time_of['backward']:9.1f}"
        f"{2.5 * time_of['copy'] / both:9.0%}{2.5 * time_of['clone'] / both:9.0%}"
        f"{plain / both:11.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--case", default="", help="only the cases whose name contains this")
    options = parser.parse_args()
    if choose(torch.zeros(2, 2)) != "native":
        raise SystemExit(
            "The native kernel has not been compiled: python -m torchleap.native.build"
        )
    rng = random.Random(0)
    mixed = [rng.choice([1, 1, 1, 1, 4, 8, 8, 16, 16, 32, 64, 128]) for _ in range(511)] + [256]
    kernel = native.load().level
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, kernel {kernel}")
    print(f"{'':50}{'':8}{'GB/s':>8}{'':18}{'speed of':>18}{'times the':>11}")
    print(
        f"{'':50}{'MB':>8}{'copy':>8}{'forward':>9}{'backward':>9}"
        f"{'copy':>9}{'clone':>9}{'reference':>11}"
    )
    wide = f"512 fields, {sum(mixed):,} dimensions"
    cases = {
        f"{wide}, 512 rows": (mixed, 512, torch.float32),
        f"{wide}, 2048 rows": (mixed, 2048, torch.float32),
        f"{wide}, 4096 rows": (mixed, 4096, torch.float32),
        f"{wide}, 2048 rows, bfloat16": (mixed, 2048, torch.bfloat16),
        "47 fields x 256, 2048 rows": ([256] * 47, 2048, torch.float32),
        "39 fields x 8, 4096 rows": ([8] * 39, 4096, torch.float32),
        "2,000 fields x 1, 2048 rows": ([1] * 2000, 2048, torch.float32),
    }
    for name, (widths, rows, dtype) in cases.items():
        if options.case in name:
            measure(name, widths, rows, dtype, options.repeats)


if __name__ == "__main__":
    main()
