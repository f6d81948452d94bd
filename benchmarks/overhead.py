"""What LeAP costs a training step, as a ratio to the same step without it, measured side by side in one run.

    python benchmarks/overhead.py [--repeats 9]

Each row interleaves the bare step, the step with the gates, and the step with the paper's Algorithm 1 as a loop over fields,
and prints the medians as ratios to the bare step.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

import torchleap as tl
from torchleap.mix import permutations


class LoopOverFields(tl.LeAP):
    """The same module with the mixing step written as the paper's Algorithm 1."""

    def _mix_with_permuted_rows(self, x: Tensor, columns: slice) -> Tensor:
        order = permutations(self.seed, self.steps, x.shape[0])
        blocks, gate = [], self.gate()
        distance, square = [], []
        for i, block in enumerate(x.split(self.known_fields().widths, dim=1)):
            shuffled = block.detach()[order[i]]
            blocks.append(gate[i] * block + (1 - gate[i]) * shuffled)
            change = (block.detach() - shuffled).square().sum(1)
            distance.append(change.sqrt().mean())
            square.append(change.mean())
        self._average(self.distance, torch.stack(distance))
        self._average(self.square, torch.stack(square))
        self.steps.add_(1)
        return torch.cat(blocks, dim=1)


def make_step(widths: list[int], hidden: list[int], rows: int, gates: tl.LeAP | None) -> Callable[[], None]:
    torch.manual_seed(0)
    sizes = [sum(widths), *hidden]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))
    plugin = None if gates is None else tl.attach(model, at="0", gates=gates)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(rows, sum(widths), requires_grad=True)  # as behind an embedding
    y = torch.randint(2, (rows, 1)).float()

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        (loss if plugin is None else loss + plugin.penalty()).backward()
        optimizer.step()

    return step


def ratios(widths: list[int], hidden: list[int], rows: int, repeats: int) -> tuple[float, list[float]]:
    fields = tl.Fields({f"f{i}": width for i, width in enumerate(widths)})
    steps = [make_step(widths, hidden, rows, gates) for gates in (None, tl.LeAP(fields, seed=0), LoopOverFields(fields, seed=0))]
    seconds: list[list[float]] = [[] for _ in steps]
    for repeat in range(repeats + 1):
        for step, times in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            step()
            if repeat:  # the first round warms up
                times.append(time.perf_counter() - start)
    medians = [statistics.median(times) for times in seconds]
    return medians[0], [median / medians[0] for median in medians[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    dice = random.Random(0)
    mixed = [dice.choice([1, 1, 1, 4, 8, 16, 32, 64, 256]) for _ in range(256)]
    cases = {
        f"256 fields, {sum(mixed):,} dimensions, MLP 1024-512-256, batch 512": (mixed, [1024, 512, 256], 512),
        "39 fields x 8, MLP 32-16, batch 4096": ([8] * 39, [32, 16], 4096),
        "1,000 fields x 1, MLP 256-128, batch 1024": ([1] * 1000, [256, 128], 1024),
    }
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; ratios to the bare step, medians of {repeats}")
    print(f"{'':66}{'bare ms':>9}{'torchleap':>11}{'loop':>7}")
    for name, (widths, hidden, rows) in cases.items():
        bare, (ours, loop) = ratios(widths, hidden, rows, repeats)
        print(f"{name:66}{1e3 * bare:9.1f}{ours:11.2f}{loop:7.2f}", flush=True)


if __name__ == "__main__":
    main()
