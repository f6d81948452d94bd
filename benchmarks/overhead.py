"""The cost of LeAP in a training step, as a ratio to the same step without it, in one run.

    python benchmarks/overhead.py            # all cases, about eight minutes on two cores
    python benchmarks/overhead.py --quick    # a minute and a half: few repeats, one batch of (a)

Columns: `loop` is the paper's Algorithm 1, a Python loop over fields; `gather` is the definition,
mix/reference.py; `torch` is the plain PyTorch version for machines without a compiler or with
another device, `cyclic` the same with `shuffle="cyclic"`; `torchleap` is the version that an
attached model uses on this machine. A step is forward, loss with penalty, backward and Adam; the
numbers are medians of the ratios to the bare step of the same round.

Memory is that of one mixing step, forward and backward, beyond input, output and incoming gradient,
in copies of the input.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import torchleap as tl
from torchleap.gates.statistics import Block
from torchleap.mix import choose

VERSIONS = ("bare", "loop", "gather", "torch", "cyclic", "torchleap")
BACKEND = {"gather": "reference", "torch": "torch", "cyclic": "torch", "torchleap": ""}


class LoopOverFields(tl.LeAP):
    """LeAP with the mixing step written as the paper's Algorithm 1."""

    def _mix_with_permuted_rows(self, x: Tensor, block: Block) -> Tensor:
        gate = self.gate()
        blocks = []
        distance = []
        for i, own in enumerate(x.split(self.known_fields().widths, dim=1)):
            shuffled = own.detach()[torch.randperm(x.shape[0])]
            blocks.append(gate[i] * own + (1 - gate[i]) * shuffled)
            distance.append((own.detach() - shuffled).norm(dim=1).mean())
        self.distance.lerp_(torch.stack(distance), 1 - self.settings.momentum)
        self.square.lerp_(torch.stack(distance).square(), 1 - self.settings.momentum)
        self.steps.add_(1)
        return torch.cat(blocks, dim=1)


@contextmanager
def backend(version: str):  # noqa: ANN201
    """Let a version mix by its own backend within this context."""
    before = os.environ.get("TORCHLEAP_MIX")
    os.environ["TORCHLEAP_MIX"] = BACKEND.get(version, "")
    try:
        yield
    finally:
        os.environ["TORCHLEAP_MIX"] = before or ""


def fields_of(widths: list[int]) -> tl.Fields:
    return tl.Fields({f"f{i}": width for i, width in enumerate(widths)})


def make_step(widths: list[int], hidden: list[int], rows: int, version: str) -> Callable[[], None]:
    """Return a function that takes one training step of a fresh model."""
    torch.manual_seed(0)
    sizes = [sum(widths), *hidden]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))
    plugin = None
    if version != "bare":
        shuffle = "cyclic" if version == "cyclic" else "uniform"
        kind = LoopOverFields if version == "loop" else tl.LeAP
        gates = kind(fields_of(widths), seed=0, shuffle=shuffle)
        plugin = tl.attach(model, at="0", gates=gates)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(rows, sum(widths), requires_grad=True)  # as behind an embedding
    y = torch.randint(2, (rows, 1)).float()

    def step() -> None:
        optimizer.zero_grad()
        x.grad = None
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        if plugin is not None:
            loss = loss + plugin.penalty()
        loss.backward()
        optimizer.step()

    return step


def step_ratios(
    widths: list[int], hidden: list[int], rows: int, repeats: int
) -> tuple[float, dict[str, float]]:
    """Return milliseconds of the bare step, and the median ratio of each version to it."""
    steps = {version: make_step(widths, hidden, rows, version) for version in VERSIONS}
    seconds: dict[str, list[float]] = {version: [] for version in VERSIONS}
    for repeat in range(repeats + 1):
        for version, step in steps.items():
            with backend(version):
                start = time.perf_counter()
                step()
            if repeat:  # the first round warms up
                seconds[version].append(time.perf_counter() - start)
    ratios = {}
    for version in VERSIONS:
        pairs = zip(seconds[version], seconds["bare"], strict=True)
        ratios[version] = statistics.median(own / bare for own, bare in pairs)
    return 1e3 * statistics.median(seconds["bare"]), ratios


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_memory(widths: list[int], rows: int, version: str) -> float:
    """Return the peak memory of one mixing step, in copies of the input.

    Input, output and incoming gradient do not count.
    """
    column_gate = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
    x = torch.randn(rows, sum(widths), requires_grad=True)
    gate = torch.rand(len(widths), requires_grad=True)
    grad = torch.randn(rows, sum(widths))
    steps = torch.zeros(len(widths), dtype=torch.int64)

    def run() -> None:
        if version == "loop":
            pieces = []
            for i, block in enumerate(x.split(widths, dim=1)):
                shuffled = block.detach()[torch.randperm(rows)]
                pieces.append(gate[i] * block + (1 - gate[i]) * shuffled)
                (block.detach() - shuffled).norm(dim=1).mean()
            output = torch.cat(pieces, dim=1)
        else:
            shuffle = "cyclic" if version == "cyclic" else "uniform"
            seed = torch.tensor(0)
            output = tl.mix.mix(x, gate, column_gate, seed, steps, shuffle=shuffle).output
        torch.autograd.grad(output, (x, gate), grad)

    few = tl.mix.mix(x[:4], gate, column_gate, torch.tensor(0), steps).output
    torch.autograd.grad(few, (x, gate), grad[:4])  # the same calls: nothing is imported later
    copy = x.numel() * x.element_size()
    return growth_during(run) / copy - 1  # less the output


def growth_during(call: Callable[[], None]) -> int:
    """Return by how many bytes the resident memory grows during a call, at its peak."""
    before = resident()
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.0002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    done.set()
    watcher.join()
    return peak - before


def memory_of(case: str, version: str, quick: bool) -> float:
    """Return `measure_memory` of a new process, which has no freed memory to use again."""
    environment = {
        **os.environ,
        "TORCHLEAP_MIX": BACKEND.get(version, ""),
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    command = [sys.executable, __file__, "--memory-of", case, version]
    if quick:
        command.append("--quick")
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(result.stdout)


def cases(quick: bool) -> dict[str, tuple[list[int], list[int], int, int]]:
    """Return the widths of the fields, the layers, the rows and the repeats of each case."""
    rng = random.Random(0)
    mixed = [rng.choice([1, 1, 1, 1, 4, 8, 8, 16, 16, 32, 64, 128]) for _ in range(511)] + [256]
    wide = f"(a) 512 fields, {sum(mixed):,} dimensions, MLP 1024-512-256"
    repeats = {512: 5} if quick else {512: 15, 2048: 11, 4096: 5}
    found = {}
    for rows, count in repeats.items():
        found[f"{wide}, batch {rows}"] = (mixed, [1024, 512, 256], rows, count)
    count = 15 if quick else 101
    found["(b) 39 fields x 8, MLP 32-16, batch 4096"] = ([8] * 39, [32, 16], 4096, count)
    count = 3 if quick else 15
    name = "(c) 2,000 fields x 1, MLP 256-128, batch 2048"
    found[name] = ([1] * 2000, [256, 128], 2048, count)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", help="only the cases whose name contains this")
    parser.add_argument("--memory-of", nargs=2, metavar=("CASE", "VERSION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        name, version = options.memory_of
        widths, _, rows, _ = cases(options.quick)[name]
        print(measure_memory(widths, rows, version))
        return
    mixes = choose(torch.zeros(2, 2))
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads; torchleap mixes by {mixes!r}")
    names = "".join(f"{version:>11}" for version in VERSIONS[1:])
    print(f"{'step, as a ratio to the bare one':72}{'bare ms':>9}{names}")
    chosen = {
        name: case for name, case in cases(options.quick).items() if (options.case or "") in name
    }
    for name, (widths, hidden, rows, repeats) in chosen.items():
        bare, ratios = step_ratios(widths, hidden, rows, repeats)
        numbers = "".join(f"{ratios[version]:11.2f}" for version in VERSIONS[1:])
        print(f"{name:72}{bare:9.1f}{numbers}", flush=True)
    print(f"{'extra memory of the mixing step, in copies of the input':72}")
    for name, (widths, *_) in chosen.items():
        if options.quick and len(widths) > 1000:
            continue  # takes long
        numbers = "".join(
            f"{memory_of(name, version, options.quick):11.2f}" for version in VERSIONS[1:]
        )
        print(f"{name:72}{'':9}{numbers}", flush=True)


if __name__ == "__main__":
    main()
