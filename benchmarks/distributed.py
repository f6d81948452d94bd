"""What LeAP costs a job of several ranks: time, bytes, and what checkpoints and a kill cost. Gloo processes of one thread each.

    python benchmarks/distributed.py                      # all sections, a quarter of an hour or more on two cores
    python benchmarks/distributed.py --quick              # few rounds, small shapes
    python benchmarks/distributed.py --only step,bytes

step: forward, backward and Adam, all versions by turns in the same two processes, medians of the ratios of a round, and the
quartiles; the processor's time is what other jobs of the machine disturb least, but waiting is not in it. "pressure" is the
gates' own optimizer on the same batch, "penalty" the paper's penalty in the loss. "alone" are the same two processes at the same
time, but without DDP and with `sync_every=0`: no communication is in the ratio there.

bytes: what each rank hands to collectives in a step, counted, against the formulas of docs/scale.md. "limit" is 8 bytes x
(fields x 4); the gates' gradient is a part of DDP's buckets, and counted as what these grow by.

collective: the statistics of all gates, 24 dimensions a field, without the rest of a step. "sum" is the all-reduce alone, "in
all" with the arithmetic around it; lines are latency + bytes / bandwidth, fitted to the measured points by relative error.

checkpoint: how long training waits for one: seconds of save(), and by which all steps until it is written take longer than as
many ordinary ones. And how many steps are lost if a rank is killed, of `stream` with `checkpoint_steps`.

paper: nothing is measured: milliseconds of all-reduces on many ranks by the formulas of docs/scale.md, for two assumed networks.
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
WIDE, NARROW = (
    [24] * 500 + [1, 8, 16, 64] * 3,
    [16] * 39,
)  # 512 fields, 12,267 dimensions; 39 fields, 624 dimensions
EVERY = 10  # steps between two checkpoints of the job that is killed


# The formulas of docs/scale.md


def turns(fields: int, dims: int) -> int:
    """In how many steps the means of all columns have been sent once."""
    return -(-dims // max(1, 4 * fields - 1))


def gates_bytes(fields: int, dims: int) -> float:
    """Of the gates' collective in a step, the mean over all turns: four statistics a field, some means, the number of rows."""
    return 4 * (4 * fields + dims / turns(fields, dims) + 1)


def limit(fields: int) -> int:
    """What it may be at most."""
    return 8 * (fields * 4)


def meeting_bytes(fields: int, dims: int) -> int:
    """Once, before the first step: the names' checksum twice, the seed, and the first rank's statistics; then all means."""
    return 8 + 8 + 8 + 8 * fields + 4 * 4 * fields + 4 * dims


# Processes


def start(job: str, ranks: int, **options: Any) -> list[subprocess.Popen[str]]:
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
    """What the first rank of a job has found."""
    processes = start(job, ranks, **options)
    told = [process.communicate() for process in processes]
    if killed:
        return None
    for process, (_, problem) in zip(processes, told, strict=True):
        if process.returncode:
            sys.exit(f"{job}: {problem}")
    return json.loads(told[0][0])


def as_rank(job: str, port: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    if int(os.environ["WORLD_SIZE"]) > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found = JOBS[job](**options)
    if os.environ["RANK"] == "0":
        print(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()


def meet() -> None:
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
    model, plugin, gate_optimizer = network(widths, hidden), None, None
    place, _, gated = version.partition(", ")
    if gated:
        plugin = tl.attach(model, fields_of(widths), at="0", seed=0, sync_every=int(place == "ddp"))
    if gated == "pressure":
        assert plugin is not None
        gate_optimizer = plugin.optimizer()
    learnt = (
        list(model.parameters())
        if plugin is None or gated == "penalty"
        else plugin.model_parameters()
    )
    optimizer = torch.optim.Adam(learnt, fused=True)
    called = DistributedDataParallel(model) if place == "ddp" else model

    def step() -> None:
        model.zero_grad()
        x.grad = None
        loss = binary_cross_entropy_with_logits(called(x), y)
        (loss + plugin.penalty() if plugin is not None and gated == "penalty" else loss).backward()
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
    """Seconds of a step and of the processor in it, for each version and round; a round is so many steps of each."""
    x, y = batch_of(widths, rows)
    versions = {version: make_step(version, widths, HIDDEN, x, y) for version in VERSIONS}
    seconds: dict[str, list[tuple[float, float]]] = {version: [] for version in VERSIONS}
    for turn in range(rounds + 1):
        for version in (*VERSIONS[turn % len(VERSIONS) :], *VERSIONS[: turn % len(VERSIONS)]):
            meet()
            began, worked = time.perf_counter(), time.process_time()
            for _ in range(
                steps if turn else 2
            ):  # the first round warms up; DDP lays its buckets out anew in the second step
                versions[version]()
            meet()
            if turn:
                seconds[version].append(
                    ((time.perf_counter() - began) / steps, (time.process_time() - worked) / steps)
                )
    return seconds


def step_section(quick: bool) -> None:
    print(
        f"\nstep, two processes, MLP {'-'.join(map(str, HIDDEN))}: the step with gates, as a ratio to the one without"
    )
    print(
        f"{'':49}{'':16}{'bare ms':>9}{'ratio':>8}{'quartiles':>14}{'fastest':>9}{'processor':>11}"
    )
    for name, widths in (("512 fields", WIDE), ("39 fields", NARROW)):
        for rows in (512,) if quick else (512, 2048):
            rounds, steps = (9, 1) if widths is WIDE else (161, 2048 // rows)
            rounds = (
                3 if quick else rounds if rows == 512 else rounds // 2
            )  # a step of 2,048 rows is long enough to be steady
            found = run("time_steps", widths=widths, rows=rows, rounds=rounds, steps=steps)
            title = f"{name}, {sum(widths):,} dimensions, batch {rows} a rank"
            for version in VERSIONS:
                place, _, gated = version.partition(", ")
                if gated:
                    print(
                        f"{title:49}{version:16}{compared(found[version], found[place])}",
                        flush=True,
                    )
                    title = ""
    print(
        "fastest: the ratio of the shortest steps; processor: the median ratio of the first rank's processor time"
    )


def compared(gated: list[tuple[float, float]], bare: list[tuple[float, float]]) -> str:
    ratios = [one[0] / other[0] for one, other in zip(gated, bare, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    processor = statistics.median(one[1] / other[1] for one, other in zip(gated, bare, strict=True))
    milliseconds = 1e3 * statistics.median(one[0] for one in bare)
    fastest = min(gated)[0] / min(bare)[0]
    return f"{milliseconds:9.1f}{middle:8.3f}{f'{low:.2f} - {high:.2f}':>14}{fastest:9.3f}{processor:11.3f}"


# bytes


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Within this context: how many collectives were called, and how many bytes they were given, by name."""
    found: Counter[str] = Counter()
    originals = {name: getattr(dist, name) for name in ("all_reduce", "broadcast")}

    def counting(name: str) -> Callable[..., Any]:
        def call(tensor: Tensor, *rest: Any, **settings: Any) -> Any:
            found.update({f"{name}s": 1, f"{name} bytes": tensor.numel() * tensor.element_size()})
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
    """From now on, how many buckets of gradients DDP sends, and their bytes."""
    found: Counter[str] = Counter()

    def send(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        found.update(buckets=1, bytes=buffer.numel() * buffer.element_size())
        work = dist.group.WORLD.allreduce(
            [buffer.div_(dist.get_world_size())]
        )  # past what counted() counts
        return work.get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, send)
    return found


def count_bytes(widths: list[int]) -> dict[str, float]:
    """Of one step, as the mean over all turns; and of the meeting with the first step."""
    x, y = batch_of(widths, 8)
    found: dict[str, float] = {}
    for gated in (False, True):
        model = network(widths, [8])
        plugin = tl.attach(model, fields_of(widths), at="0", seed=0) if gated else None
        called: nn.Module = DistributedDataParallel(model) if dist.is_initialized() else model
        buckets = (
            count_buckets(called) if isinstance(called, DistributedDataParallel) else Counter()
        )
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


class Made:
    """An endless stream of rows."""

    def __init__(self, widths: list[int], rows: int = 64) -> None:
        self.columns, self.rows, self.place = sum(widths), rows, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            self.place += 1
            x = torch.randn(
                self.rows, self.columns, generator=torch.Generator().manual_seed(self.place)
            )
            yield x, (x[:, :1] > 0).float()

    def state_dict(self) -> dict[str, int]:
        """Where it stands."""
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on."""
        self.place = state["place"]


def count_stream(widths: list[int]) -> dict[str, float]:
    """Of one step of `stream`, beyond DDP's buckets."""
    model = network(widths, [8])
    plugin = tl.attach(model, fields_of(widths), at="0", seed=0)
    steps = 20 * turns(len(widths), sum(widths))
    with counted() as both:
        stream(model, Made(widths, 8), Training(steps=2 * steps), hooks=[LearnGates(plugin)])
    model = network(widths, [8])
    plugin = tl.attach(model, fields_of(widths), at="0", seed=0)
    with counted() as first:
        stream(model, Made(widths, 8), Training(steps=steps), hooks=[LearnGates(plugin)])
    return {kind: (both[kind] - first[kind]) / steps for kind in both}


def bytes_section(quick: bool) -> None:
    print("\nbytes that a rank hands to collectives in a step, a network of 8 hidden units")
    print(
        f"{'':38}{'ranks':>6}{'gates: calls':>14}{'bytes':>10}{'formula':>10}{'limit':>9}"
        f"{'+gradient':>11}{'formula':>9}{'DDP: calls':>12}{'bytes':>11}{'first step':>12}{'formula':>10}"
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
            fields, dims = len(widths), sum(widths)
            several = ranks > 1
            first = found["gated first all_reduce bytes"] + found["gated first broadcast bytes"]
            once = meeting_bytes(fields, dims) + 4 * (4 * fields + dims + 1)
            print(
                f"{f'{name}, {dims:,} dimensions':38}{ranks:6}{found['gated own all_reduces']:14g}"
                f"{found['gated own all_reduce bytes']:10,.0f}{several * gates_bytes(fields, dims):10,.0f}{limit(fields):9,}"
                f"{found['gated bytes'] - found['bare bytes']:11,.0f}{several * 4 * fields:9,}"
                f"{found['gated buckets']:12g}{found['gated bytes']:11,.0f}{first:12,.0f}{several * once:10,}",
                flush=True,
            )
    found = run("count_stream", widths=WIDE)
    own = gates_bytes(len(WIDE), sum(WIDE)) + 4 + 8 * 4
    print(
        f"stream(), 512 fields, 2 ranks: {found['all_reduces']:g} calls, {found['all_reduce bytes']:,.0f} bytes a step beyond "
        f"DDP's buckets; formula 3 calls, {own:,.0f} bytes (whether there is a batch: 4; loss and questions: 32)"
    )


# collective


def time_collective(counts: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of the all-reduce alone and of all that the gates do with their statistics, by fields."""
    several, cases = dist.is_initialized(), {}
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
                meet()
                began = time.perf_counter()
                if several:
                    dist.all_reduce(sent)
                middle = time.perf_counter()
                meet()
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
    """Latency and seconds a byte of the line closest to seconds by bytes, in relative error."""
    sizes, seconds = (
        torch.tensor(list(points), dtype=torch.float64),
        torch.tensor(list(points.values()), dtype=torch.float64),
    )
    design = torch.stack([torch.ones_like(sizes), sizes], 1) / seconds[:, None]
    latency, pace = (
        torch.linalg.lstsq(design, torch.ones_like(sizes)[:, None]).solution.flatten().tolist()
    )
    return latency, pace


def collective_section(quick: bool) -> None:
    counts = [64 * 2**power for power in range(7)]
    rounds = 3 if quick else 30
    alone, two = (
        run("time_collective", ranks=ranks, counts=counts, rounds=rounds) for ranks in (1, 2)
    )
    sizes = {fields: round(gates_bytes(fields, 24 * fields)) for fields in counts}
    series = {
        "1 process, in all": alone["in all"],
        "2 processes, sum": two["sum"],
        "2 processes, in all": two["in all"],
    }
    lines = {
        name: line_through({sizes[n]: found[str(n)] for n in counts})
        for name, found in series.items()
    }
    print("\ncollective: microseconds, and the line")
    print(
        f"{'fields':>8}{'dimensions':>12}{'bytes':>10}"
        + "".join(f"{name:>22}{'line':>8}" for name in series)
    )
    for fields in counts:
        cells = "".join(
            f"{1e6 * found[str(fields)]:22.0f}{1e6 * (lines[name][0] + lines[name][1] * sizes[fields]):8.0f}"
            for name, found in series.items()
        )
        print(f"{fields:8,}{24 * fields:12,}{sizes[fields]:10,}{cells}")
    for name, (latency, pace) in lines.items():
        print(f"{name}: {1e6 * latency:.0f} microseconds + bytes / {1e-9 / pace:.2f} GB/s")


# checkpoint


def time_checkpoint(folder: str, background: bool, hidden: int, rows: int) -> dict[str, float]:
    """Seconds that a step takes, that save() takes, that all steps until it is written take longer, and bytes."""
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
    waits, saves = [], []
    for number in (1, 2, 3):
        meet()
        began, steps = time.perf_counter(), 0
        saved.save(
            number,
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            {"rank": dist.get_rank()},
        )
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
    """Whether the checkpoint is there; all ranks hear the same."""
    there = torch.tensor(float((folder / f"step-{number:012d}").exists()))
    dist.broadcast(there, 0)
    return bool(there)


class Kill(Hook):
    """Ends a rank as the machine would that it runs on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, run: Run) -> None:
        """Without a word."""
        if run.step == self.step and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def train_on(folder: str, background: bool, hidden: int, killed_at: int) -> dict[str, float]:
    model = network(NARROW, [hidden, hidden // 2])
    plugin = tl.attach(model, fields_of(NARROW), at="0", seed=0)
    hooks = [LearnGates(plugin), Kill(killed_at)]
    training = Training(
        steps=200, checkpoint_steps=EVERY, checkpoint_minutes=None, eval_every=10_000
    )
    stream(
        model, Made(NARROW, 256), training, hooks=hooks, checkpoint=folder, background=background
    )
    return {}


def step_to_resume(folder: str) -> int:
    latest = Checkpoints(folder).latest()
    return 0 if latest is None else int(latest.name.removeprefix("step-"))


def checkpoint_section(quick: bool) -> None:
    hidden = 2048 if quick else 5200
    print("\ncheckpoint, two processes: seconds")
    print(
        f"{'':14}{'MB':>6}{'a step':>9}{'save()':>9}{'longer in all':>15}   steps lost by kill -9 of a rank, of {EVERY}"
    )
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
                lost.append(
                    f"{killed_at - run('step_to_resume', ranks=1, folder=folder)} at {killed_at}"
                )
        how = "background" if background else "at once"
        seconds = f"{found['step']:9.3f}{found['save']:9.2f}{found['wait']:15.2f}"
        print(f"{how:14}{found['bytes'] / 1e6:6.0f}{seconds}   {', '.join(lost)}", flush=True)


# paper

NETWORKS = {
    "10 us, 12.5 GB/s": (10e-6, 12.5e9),
    "50 us, 1.25 GB/s": (50e-6, 1.25e9),
}  # seconds a message, bytes a second


def on_a_ring(size: float, ranks: int, latency: float, bandwidth: float) -> float:
    """Seconds: the fewest bytes, but as many messages one after the other as there are ranks, twice."""
    return 2 * (ranks - 1) * (latency + size / ranks / bandwidth)


def on_a_tree(size: float, ranks: int, latency: float, bandwidth: float) -> float:
    """Seconds: up and down, in pieces, so that the bytes are under way on all levels at once."""
    return 2 * ((ranks - 1).bit_length() * latency + size / bandwidth)


def paper_section(_: bool) -> None:
    print(
        "\npaper: milliseconds of one all-reduce, assumed networks; the gradient is that of an MLP 1024-512-256"
    )
    columns = "".join(
        f"{f'{kind}, {network}':>26}" for network in NETWORKS for kind in ("tree", "ring")
    )
    print(f"{'':46}{'ranks':>6}{'MB':>9}{columns}")
    for ranks in (2, 64, 2000):
        for gates, dims in ((512, 12_288), (4_167, 100_000), (100_000, 100_000)):
            sizes = [dims, *HIDDEN, 1]
            gradient = 4 * sum(a * b + b for a, b in pairwise(sizes))
            for name, size in (
                (f"{gates:,} gates", gates_bytes(gates, dims)),
                ("DDP's gradient", gradient),
            ):
                ways = (
                    way(size, ranks, *network)
                    for network in NETWORKS.values()
                    for way in (on_a_tree, on_a_ring)
                )
                cells = "".join(f"{1e3 * seconds:26.2f}" for seconds in ways)
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
        f"{machine()}, {os.cpu_count()} cores, torch {torch.__version__}, gloo on one machine, one thread a process",
        end="; ",
    )
    print(f"torchleap mixes by {choose(torch.zeros(2, 2))!r}")
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
