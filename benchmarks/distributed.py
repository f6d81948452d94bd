"""The cost of LeAP in a job of several ranks: time, bytes, checkpoints, and steps lost by a kill.

    python benchmarks/distributed.py                # all sections, a quarter of an hour or more
    python benchmarks/distributed.py --quick        # few rounds, small shapes
    python benchmarks/distributed.py --only step,bytes

All ranks are Gloo processes of one thread each.

step: forward, backward and Adam, all versions by turns in the same two processes, medians of the
ratios of a round, and the quartiles; processor time is disturbed least by other jobs of the
machine, but does not contain waiting. "pressure" is the gates' own optimizer on the same batch,
"penalty" the paper's penalty in the loss. "alone" are the same two processes at the same time, but
without DDP and with `sync_every=0`: that ratio contains no communication.

bytes: the bytes that each rank hands to collectives per step, counted, against the formulas of
docs/scale.md. "limit" is 8 bytes x (fields x 4); the gates' gradient is a part of DDP's buckets,
and is counted as their growth.

collective: the statistics of all gates, 24 dimensions per field, without the rest of a step. "sum"
is the all-reduce alone, "in all" with the arithmetic around it; lines are latency + bytes /
bandwidth, fitted to the measured points by relative error.

checkpoint: how long training waits for one: the seconds of save(), and by how much all steps until
it is written take longer than as many ordinary ones. And how many steps are lost if a rank is
killed, of `stream` with `checkpoint_steps`.

paper: nothing is measured: milliseconds of all-reduces on many ranks by the formulas of
docs/scale.md, for two assumed networks.
"""

import argparse
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

import torchleap as tl
from torchleap.mix import Mixed, choose
from torchleap.training.checkpoints import Checkpoints
from torchleap.training.fit import Hook, Run, Training
from torchleap.training.stream import LearnGates, stream

SECTIONS = ("step", "bytes", "collective", "checkpoint", "paper")
VERSIONS = ("alone", "alone, pressure", "ddp", "ddp, pressure", "ddp, penalty")
HIDDEN = [1024, 512, 256]
WIDE = [24] * 500 + [1, 8, 16, 64] * 3  # 512 fields, 12,267 dimensions
NARROW = [16] * 39  # 624 dimensions
EVERY = 10  # steps between two checkpoints of the job that is killed


# The formulas of docs/scale.md


def turns(fields: int, dims: int) -> int:
    """Return the number of steps in which the means of all columns are sent once."""
    return -(-dims // max(1, 4 * fields - 1))


def gates_bytes(fields: int, dims: int) -> float:
    """Return the bytes of the gates' collective per step, the mean over all turns.

    These are four statistics per field, some means, and the number of rows.
    """
    return 4 * (4 * fields + dims / turns(fields, dims) + 1)


def limit(fields: int) -> int:
    """Return the most bytes that the collective may have."""
    return 8 * (fields * 4)


def meeting_bytes(fields: int, dims: int) -> int:
    """Return the bytes that are sent once, before the first step.

    These are the names' checksum twice, the seed, the first rank's statistics, and all means.
    """
    return 8 + 8 + 8 + 8 * fields + 4 * 4 * fields + 4 * dims


# Processes


def start(job: str, ranks: int, **options: Any) -> list[subprocess.Popen[str]]:
    """Start the processes of a job."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks)}
    call = [sys.executable, __file__, "--rank-of", job, str(port), json.dumps(options)]
    return [
        subprocess.Popen(
            call,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def run(job: str, ranks: int = 2, killed: bool = False, **options: Any) -> Any:
    """Return the result of the first rank of a job; None if a rank is to be killed."""
    processes = start(job, ranks, **options)
    outputs = [process.communicate() for process in processes]
    if killed:
        return None
    for process, (_, problem) in zip(processes, outputs, strict=True):
        if process.returncode:
            sys.exit(f"{job}: {problem}")
    return json.loads(outputs[0][0])


def as_rank(job: str, port: str, options: dict[str, Any]) -> None:
    """Run a job as one of its ranks; the first one prints its result."""
    torch.set_num_threads(1)
    if int(os.environ["WORLD_SIZE"]) > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found = JOBS[job](**options)
    if os.environ["RANK"] == "0":
        print(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()


def barrier() -> None:
    """Wait for all ranks."""
    if dist.is_initialized():
        dist.barrier()


# step


def network(widths: list[int], hidden: list[int]) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [sum(widths), *hidden]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))


def fields_of(widths: list[int]) -> tl.Fields:
    return tl.Fields({f"f{i}": width for i, width in enumerate(widths)})


def make_step(
    version: str, widths: list[int], hidden: list[int], x: Tensor, y: Tensor
) -> Callable[[], None]:
    """Return a function that takes one training step of a version."""
    model = network(widths, hidden)
    plugin = None
    gate_optimizer = None
    learned = list(model.parameters())
    place, _, gated = version.partition(", ")
    if gated:
        plugin = tl.attach(model, fields_of(widths), at="0", seed=0, sync_every=int(place == "ddp"))
        learned = list(model.parameters())
    if gated == "pressure":
        gate_optimizer = plugin.optimizer()
        learned = plugin.model_parameters()
    optimizer = torch.optim.Adam(learned, fused=True)
    called = DistributedDataParallel(model) if place == "ddp" else model

    def step() -> None:
        model.zero_grad()
        x.grad = None
        loss = binary_cross_entropy_with_logits(called(x), y)
        if gated == "penalty":
            loss = loss + plugin.penalty()
        loss.backward()
        optimizer.step()
        if gate_optimizer is not None:
            gate_optimizer.step()

    return step


def batch_of(widths: list[int], rows: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(int(os.environ["RANK"]))
    x = torch.randn(rows, sum(widths), requires_grad=True)  # as behind an embedding
    return x, torch.randint(2, (rows, 1)).float()


def time_steps(
    widths: list[int], rows: int, rounds: int, steps: int
) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds and processor seconds per step, for each version and round."""
    x, y = batch_of(widths, rows)
    versions = {version: make_step(version, widths, HIDDEN, x, y) for version in VERSIONS}
    seconds: dict[str, list[tuple[float, float]]] = {version: [] for version in VERSIONS}
    for turn in range(rounds + 1):
        for version in (*VERSIONS[turn % len(VERSIONS) :], *VERSIONS[: turn % len(VERSIONS)]):
            barrier()
            began = time.perf_counter()
            worked = time.process_time()
            # The first round warms up; DDP lays out its buckets again in the second step.
            for _ in range(steps if turn else 2):
                versions[version]()
            barrier()
            if turn:
                step_seconds = (time.perf_counter() - began) / steps
                processor_seconds = (time.process_time() - worked) / steps
                seconds[version].append((step_seconds, processor_seconds))
    return seconds


def step_section(quick: bool) -> None:
    """Print the time of a step with gates."""
    layers = "-".join(map(str, HIDDEN))
    print(f"\nstep, two processes, MLP {layers}: with gates, as a ratio to the step without")
    columns = f"{'bare ms':>9}{'ratio':>8}{'quartiles':>14}{'fastest':>9}{'processor':>11}"
    print(f"{'':49}{'':16}{columns}")
    for name, widths in (("512 fields", WIDE), ("39 fields", NARROW)):
        for rows in (512,) if quick else (512, 2048):
            rounds, steps = (9, 1) if widths is WIDE else (161, 2048 // rows)
            if quick:
                rounds = 3
            elif rows > 512:  # long enough to be steady
                rounds //= 2
            found = run("time_steps", widths=widths, rows=rows, rounds=rounds, steps=steps)
            title = f"{name}, {sum(widths):,} dimensions, batch {rows} per rank"
            for version in VERSIONS:
                place, _, gated = version.partition(", ")
                if gated:
                    cells = compared(found[version], found[place])
                    print(f"{title:49}{version:16}{cells}", flush=True)
                    title = ""
    print(
        "fastest: the ratio of the shortest steps; "
        "processor: the median ratio of the first rank's processor time"
    )


def compared(gated: list[tuple[float, float]], bare: list[tuple[float, float]]) -> str:
    """Return the cells that compare steps with gates and without."""
    ratios = [one[0] / other[0] for one, other in zip(gated, bare, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    processor = statistics.median(one[1] / other[1] for one, other in zip(gated, bare, strict=True))
    milliseconds = 1e3 * statistics.median(one[0] for one in bare)
    fastest = min(gated)[0] / min(bare)[0]
    quartiles = f"{low:.2f} - {high:.2f}"
    return f"{milliseconds:9.1f}{middle:8.3f}{quartiles:>14}{fastest:9.3f}{processor:11.3f}"


# bytes


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls of collectives within this context, and their bytes, by name."""
    found: Counter[str] = Counter()
    originals = {name: getattr(dist, name) for name in ("all_reduce", "broadcast")}

    def counting(name: str) -> Callable[..., Any]:
        def call(tensor: Tensor, *rest: Any, **settings: Any) -> Any:
            size = tensor.numel() * tensor.element_size()
            found.update({f"{name}s": 1, f"{name} bytes": size})
            return originals[name](tensor, *rest, **settings)

        return call

    for name in originals:
        setattr(dist, name, counting(name))
    try:
        yield found
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def count_buckets(model: DistributedDataParallel) -> Counter[str]:
    """Count the buckets of gradients that DDP sends from now on, and their bytes."""
    found: Counter[str] = Counter()

    def send(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        found.update(buckets=1, bytes=buffer.numel() * buffer.element_size())
        # Not by dist.all_reduce, which counted() counts.
        work = dist.group.WORLD.allreduce([buffer.div_(dist.get_world_size())])
        return work.get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, send)
    return found


def count_bytes(widths: list[int]) -> dict[str, float]:
    """Return the bytes and calls per step, as the mean over all turns, and of the first step."""
    x, y = batch_of(widths, 8)
    found: dict[str, float] = {}
    for gated in (False, True):
        model = network(widths, [8])
        plugin = tl.attach(model, fields_of(widths), at="0", seed=0) if gated else None
        called: nn.Module = DistributedDataParallel(model) if dist.is_initialized() else model
        buckets: Counter[str] = Counter()
        if isinstance(called, DistributedDataParallel):
            buckets = count_buckets(called)
        optimizer = None if plugin is None else plugin.optimizer()
        steps = 2 * turns(len(widths), sum(widths))

        def step(called: nn.Module = called, optimizer: Any = optimizer) -> None:
            binary_cross_entropy_with_logits(called(x), y).backward()
            if optimizer is not None:
                optimizer.step()

        with counted() as first:
            step()
        buckets.clear()
        for _ in range(turns(len(widths), sum(widths)) - 1):
            step()
        buckets.clear()
        with counted() as own:
            for _ in range(steps):
                step()
        name = "gated" if gated else "bare"
        found |= {f"{name} {kind}": count / steps for kind, count in buckets.items()}
        found |= {f"{name} own {kind}": count / steps for kind, count in own.items()}
        found |= {f"{name} first {kind}": count for kind, count in first.items()}
    return found


class Synthetic:
    """An endless stream of synthetic rows."""

    def __init__(self, widths: list[int], rows: int = 64) -> None:
        self.columns = sum(widths)
        self.rows = rows
        self.place = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            self.place += 1
            rng = torch.Generator().manual_seed(self.place)
            x = torch.randn(self.rows, self.columns, generator=rng)
            yield x, (x[:, :1] > 0).float()

    def state_dict(self) -> dict[str, int]:
        """Return the position in the stream."""
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the position in the stream."""
        self.place = state["place"]


def count_stream(widths: list[int]) -> dict[str, float]:
    """Return the bytes and calls per step of `stream`, beyond DDP's buckets."""
    model = network(widths, [8])
    plugin = tl.attach(model, fields_of(widths), at="0", seed=0)
    steps = 20 * turns(len(widths), sum(widths))
    with counted() as both:
        stream(model, Synthetic(widths, 8), Training(steps=2 * steps), hooks=[LearnGates(plugin)])
    model = network(widths, [8])
    plugin = tl.attach(model, fields_of(widths), at="0", seed=0)
    with counted() as first:
        stream(model, Synthetic(widths, 8), Training(steps=steps), hooks=[LearnGates(plugin)])
    return {kind: (both[kind] - first[kind]) / steps for kind in both}


def bytes_section(quick: bool) -> None:
    """Print the bytes that a rank sends, and those of the formulas."""
    print("\nbytes that a rank hands to collectives per step, a network of 8 hidden units")
    print(
        f"{'':38}{'ranks':>6}{'gates: calls':>14}{'bytes':>10}{'formula':>10}{'limit':>9}"
        f"{'+gradient':>11}{'formula':>9}{'DDP: calls':>12}{'bytes':>11}{'first step':>12}"
        f"{'formula':>10}"
    )
    shapes = {
        "39 fields x 16": NARROW,
        "512 fields x 1": [1] * 512,
        "512 fields": WIDE,
        "4,096 fields x 24": [24] * 4096,
    }
    for ranks in (2,) if quick else (1, 2, 8):
        for name, widths in list(shapes.items())[: 3 if quick else 4]:
            found = Counter(run("count_bytes", ranks=ranks, widths=widths))
            fields = len(widths)
            dims = sum(widths)
            several = ranks > 1
            first = found["gated first all_reduce bytes"] + found["gated first broadcast bytes"]
            once = meeting_bytes(fields, dims) + 4 * (4 * fields + dims + 1)
            own = found["gated own all_reduce bytes"]
            gradient = found["gated bytes"] - found["bare bytes"]
            print(
                f"{f'{name}, {dims:,} dimensions':38}{ranks:6}{found['gated own all_reduces']:14g}"
                f"{own:10,.0f}{several * gates_bytes(fields, dims):10,.0f}{limit(fields):9,}"
                f"{gradient:11,.0f}{several * 4 * fields:9,}"
                f"{found['gated buckets']:12g}{found['gated bytes']:11,.0f}"
                f"{first:12,.0f}{several * once:10,}",
                flush=True,
            )
    found = run("count_stream", widths=WIDE)
    own = gates_bytes(len(WIDE), sum(WIDE)) + 4 + 8 * 4
    print(
        f"stream(), 512 fields, 2 ranks: {found['all_reduces']:g} calls, "
        f"{found['all_reduce bytes']:,.0f} bytes per step beyond DDP's buckets; formula 3 calls, "
        f"{own:,.0f} bytes (whether there is a batch: 4; loss and decisions: 32)"
    )


# collective


def time_collective(counts: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of the all-reduce alone and of the complete update, by fields."""
    several = dist.is_initialized()
    cases = {}
    for fields in counts:
        gates = tl.LeAP(fields_of([24] * fields), seed=0)
        mixed = Mixed(torch.empty(0), torch.rand(24 * fields), torch.rand(4, fields))
        if several:
            gates.statistics.seed(gates)
        cases[fields] = (gates, mixed, torch.rand(round(gates_bytes(fields, 24 * fields)) // 4))
    sums: dict[int, list[float]] = {fields: [] for fields in counts}
    alls: dict[int, list[float]] = {fields: [] for fields in counts}
    for turn in range(rounds + 1):
        for fields, (gates, mixed, sent) in cases.items():
            everything = gates.block_of(None)
            for repeat in range(8):
                barrier()
                began = time.perf_counter()
                if several:
                    dist.all_reduce(sent)
                middle = time.perf_counter()
                barrier()
                again = time.perf_counter()
                gates.statistics.add(gates, mixed, 512, everything)
                ended = time.perf_counter()
                if turn and repeat:
                    sums[fields].append(middle - began)
                    alls[fields].append(ended - again)
    return {
        kind: {str(n): statistics.median(found[n]) for n in counts}
        for kind, found in (("sum", sums), ("in all", alls))
    }


def line_through(points: dict[int, float]) -> tuple[float, float]:
    """Return the latency, and the seconds per byte, of the line with the least relative error."""
    sizes = torch.tensor(list(points), dtype=torch.float64)
    seconds = torch.tensor(list(points.values()), dtype=torch.float64)
    ones = torch.ones_like(sizes)
    design = torch.stack([ones, sizes], 1) / seconds[:, None]
    latency, pace = torch.linalg.lstsq(design, ones[:, None]).solution.flatten().tolist()
    return latency, pace


def collective_section(quick: bool) -> None:
    """Print the time of the gates' collective, and the line through it."""
    counts = [64 * 2**power for power in range(7)]
    rounds = 3 if quick else 30
    alone = run("time_collective", ranks=1, counts=counts, rounds=rounds)
    two = run("time_collective", ranks=2, counts=counts, rounds=rounds)
    sizes = {fields: round(gates_bytes(fields, 24 * fields)) for fields in counts}
    series = {
        "1 process, in all": alone["in all"],
        "2 processes, sum": two["sum"],
        "2 processes, in all": two["in all"],
    }
    lines = {}
    for name, found in series.items():
        lines[name] = line_through({sizes[fields]: found[str(fields)] for fields in counts})
    print("\ncollective: microseconds, and the line")
    titles = "".join(f"{name:>22}{'line':>8}" for name in series)
    print(f"{'fields':>8}{'dimensions':>12}{'bytes':>10}{titles}")
    for fields in counts:
        cells = ""
        for name, found in series.items():
            latency, pace = lines[name]
            fitted = latency + pace * sizes[fields]
            cells += f"{1e6 * found[str(fields)]:22.0f}{1e6 * fitted:8.0f}"
        print(f"{fields:8,}{24 * fields:12,}{sizes[fields]:10,}{cells}")
    for name, (latency, pace) in lines.items():
        print(f"{name}: {1e6 * latency:.0f} microseconds + bytes / {1e-9 / pace:.2f} GB/s")


# checkpoint


def time_checkpoint(folder: str, background: bool, hidden: int, rows: int) -> dict[str, float]:
    """Return the seconds of a step, of save(), of the delay until it is written, and bytes."""
    widths = NARROW
    x, y = batch_of(widths, rows)
    model = network(widths, [hidden, hidden // 2])
    plugin = tl.attach(model, fields_of(widths), at="0", seed=0)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    called = DistributedDataParallel(model)
    saved = Checkpoints(folder, keep=1, background=background)

    def step() -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        (binary_cross_entropy_with_logits(called(x), y) + plugin.penalty()).backward()
        optimizer.step()
        return time.perf_counter() - began

    ordinary = [step() for _ in range(12)][2:]
    waits = []
    saves = []
    for number in (1, 2, 3):
        barrier()
        began = time.perf_counter()
        steps = 0
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        saved.save(number, state, {"rank": dist.get_rank()})
        saves.append(time.perf_counter() - began)
        while background and steps < 200 and not _written(Path(folder), number):
            step()
            steps += 1
        waits.append(time.perf_counter() - began - steps * statistics.median(ordinary))
        ordinary += [step() for _ in range(5)]
    saved.wait()
    size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    found = [statistics.median(values) for values in (ordinary, saves, waits)]
    return {"step": found[0], "save": found[1], "wait": found[2], "bytes": size}


def _written(folder: Path, number: int) -> bool:
    """Return whether the checkpoint exists, the same on all ranks."""
    there = torch.tensor(float((folder / f"step-{number:012d}").exists()))
    dist.broadcast(there, 0)
    return bool(there)


class Kill(Hook):
    """Kill a rank, like a machine that fails."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, run: Run) -> None:
        """Kill the second rank at its step."""
        if run.step == self.step and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def train_on(folder: str, background: bool, hidden: int, killed_at: int) -> dict[str, float]:
    """Train on a stream with checkpoints until a rank is killed."""
    model = network(NARROW, [hidden, hidden // 2])
    plugin = tl.attach(model, fields_of(NARROW), at="0", seed=0)
    hooks = [LearnGates(plugin), Kill(killed_at)]
    training = Training(
        steps=200, checkpoint_steps=EVERY, checkpoint_minutes=None, eval_every=10_000
    )
    stream(
        model,
        Synthetic(NARROW, 256),
        training,
        hooks=hooks,
        checkpoint=folder,
        background=background,
    )
    return {}


def step_to_resume(folder: str) -> int:
    """Return the step of the latest checkpoint; 0 if there is none."""
    latest = Checkpoints(folder).latest()
    if latest is None:
        return 0
    return int(latest.name.removeprefix("step-"))


def checkpoint_section(quick: bool) -> None:
    """Print the cost of checkpoints, and the steps that a kill costs."""
    hidden = 2048 if quick else 5200
    print("\ncheckpoint, two processes: seconds")
    columns = f"{'MB':>6}{'step':>9}{'save()':>9}{'longer in all':>15}"
    print(f"{'':14}{columns}   steps lost by kill -9 of a rank, of {EVERY}")
    for background in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            found = run(
                "time_checkpoint", folder=folder, background=background, hidden=hidden, rows=64
            )
        lost = []
        for killed_at in (35,) if quick else (31, 35, 39):
            with tempfile.TemporaryDirectory() as folder:
                run(
                    "train_on",
                    killed=True,
                    folder=folder,
                    background=background,
                    hidden=512 if quick else 2048,
                    killed_at=killed_at,
                )
                resumed = run("step_to_resume", ranks=1, folder=folder)
                lost.append(f"{killed_at - resumed} at {killed_at}")
        how = "background" if background else "at once"
        seconds = f"{found['step']:9.3f}{found['save']:9.2f}{found['wait']:15.2f}"
        print(f"{how:14}{found['bytes'] / 1e6:6.0f}{seconds}   {', '.join(lost)}", flush=True)


# paper

# seconds per message, bytes per second
NETWORKS = {"10 us, 12.5 GB/s": (10e-6, 12.5e9), "50 us, 1.25 GB/s": (50e-6, 1.25e9)}


def on_a_ring(size: float, ranks: int, latency: float, bandwidth: float) -> float:
    """Return seconds: the fewest bytes, but twice as many messages in a row as there are ranks."""
    return 2 * (ranks - 1) * (latency + size / ranks / bandwidth)


def on_a_tree(size: float, ranks: int, latency: float, bandwidth: float) -> float:
    """Return seconds: up and down, in pieces, so that all levels send at once."""
    return 2 * ((ranks - 1).bit_length() * latency + size / bandwidth)


def paper_section(_: bool) -> None:
    """Print the milliseconds of all-reduces by the formulas."""
    print(
        "\npaper: milliseconds of one all-reduce, assumed networks; "
        "the gradient is that of an MLP 1024-512-256"
    )
    columns = "".join(f"{f'tree, {name}':>26}{f'ring, {name}':>26}" for name in NETWORKS)
    print(f"{'':46}{'ranks':>6}{'MB':>9}{columns}")
    for ranks in (2, 64, 2000):
        for gates, dims in ((512, 12_288), (4_167, 100_000), (100_000, 100_000)):
            sizes = [dims, *HIDDEN, 1]
            gradient = 4 * sum(a * b + b for a, b in pairwise(sizes))
            for name, size in (
                (f"{gates:,} gates", gates_bytes(gates, dims)),
                ("DDP's gradient", gradient),
            ):
                cells = ""
                for network in NETWORKS.values():
                    cells += f"{1e3 * on_a_tree(size, ranks, *network):26.2f}"
                    cells += f"{1e3 * on_a_ring(size, ranks, *network):26.2f}"
                print(f"{f'{name}, {dims:,} dimensions':46}{ranks:6,}{size / 1e6:9.3f}{cells}")


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job
    for job in (
        time_steps,
        count_bytes,
        count_stream,
        time_collective,
        time_checkpoint,
        train_on,
        step_to_resume,
    )
}


def machine() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--only", default=",".join(SECTIONS), help="sections, with commas between them"
    )
    parser.add_argument(
        "--rank-of", nargs=3, metavar=("JOB", "PORT", "OPTIONS"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.rank_of:
        job, port, settings = options.rank_of
        as_rank(job, port, json.loads(settings))
        return
    print(
        f"{machine()}, {os.cpu_count()} cores, torch {torch.__version__}, gloo on one machine, "
        f"one thread per process; torchleap mixes by {choose(torch.zeros(2, 2))!r}"
    )
    sections = {
        "step": step_section,
        "bytes": bytes_section,
        "collective": collective_section,
        "checkpoint": checkpoint_section,
        "paper": paper_section,
    }
    for section in options.only.split(","):
        sections[section](options.quick)


if __name__ == "__main__":
    main()
