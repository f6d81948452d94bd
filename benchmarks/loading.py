"""From a file to batches: encoding against polars, and batches against torch's DataLoader.

    python benchmarks/loading.py            # 5 and 10 million rows in Criteo's format, 1.3 and
                                            # 2.7 GB: about five minutes
    python benchmarks/loading.py --quick    # 200,000 and 400,000 rows: ten seconds

`encode` is `tl.data.read` on a file that it has not seen: 13 numbers and 26 categories with up to 2
million values; `polars` reads the file into a frame. Each runs in a process of its own; memory is
the peak of its resident memory, minus that of the imports.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import torchleap as tl

NAMES = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
# about as many as Criteo has
CATEGORIES = [
    *(1460, 583, 2_000_000, 800_000, 305, 24, 12517, 633, 3, 93145, 5683, 1_500_000, 3194),
    *(27, 14992, 1_000_000, 10, 5652, 2173, 4, 1_200_000, 18, 15, 286181, 105, 142572),
]
BATCH = 4096


def write_log(path: Path, rows: int) -> None:
    """Write a file in Criteo's format: few categories have most of the rows."""
    rng = np.random.default_rng(0)
    shifts = np.arange(28, -1, -4, dtype=np.uint64)
    with path.open("wb") as file:
        for start in range(0, rows, 500_000):
            count = min(500_000, rows - start)
            columns: dict[str, object] = {"label": (rng.random(count) < 0.25).astype(np.int8)}
            for name in NAMES[1:14]:
                numbers = pl.Series(np.exp(rng.normal(2, 2, count)).astype(np.int64) - 1)
                columns[name] = numbers.set(pl.Series(rng.random(count) < 0.2), None)
            for name, many in zip(NAMES[14:], CATEGORIES, strict=True):
                category = (many * rng.random(count) ** 4).astype(np.uint64)
                category = np.minimum(category, np.uint64(many - 1))
                hashed = (category * np.uint64(2654435761))[:, None]
                digits = ((hashed >> shifts) & np.uint64(15)).astype(np.uint8)
                letters = np.where(digits < 10, digits + 48, digits + 87).astype(np.uint8)
                columns[name] = pl.Series(letters.reshape(-1).view("S8").astype("U8"))
            pl.DataFrame(columns).write_csv(file, separator="\t", include_header=False)


def peak() -> float:
    """Return the peak of the resident memory so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def one(job: str, path: str, cache: str) -> None:
    """Print the seconds and GiB of a job, in a process of its own."""
    start = time.perf_counter()
    before = peak()
    if job == "polars":
        pl.read_csv(path, separator="\t", has_header=False, new_columns=NAMES)
    else:
        read(path, cache)
    print(time.perf_counter() - start, peak() - before)


def read(path: Path | str, cache: Path | str) -> tl.data.Task:
    """Return the file as a task, encoded or from the cache."""
    columns = dict.fromkeys(NAMES[14:], "categorical")
    return tl.data.read(
        path, label="label", names=NAMES, columns=columns, split="order", cache=cache
    )


def run(job: str, path: Path, cache: Path) -> tuple[float, float]:
    """Return the seconds and GiB of a job."""
    command = [sys.executable, __file__, "--one", job, str(path), str(cache)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, memory = result.stdout.split()
    return float(seconds), float(memory)


def loading(path: Path, folder: Path, repeats: int) -> Path:
    """Print how long both take, interleaved; return the folder of the last encoding."""
    found: dict[str, list[tuple[float, float]]] = {"polars": [], "encode": []}
    for repeat in range(repeats):
        for job, results in found.items():
            results.append(run(job, path, folder / f"cache_{path.stem}_{repeat}"))
    pairs = zip(found["encode"], found["polars"], strict=True)
    ratio = statistics.median(ours[0] / theirs[0] for ours, theirs in pairs)
    compared = {"polars": "", "encode": f"{ratio:8.2f} x polars"}
    for job, results in found.items():
        seconds = statistics.median(result[0] for result in results)
        memory = max(result[1] for result in results)
        print(f"  {job:<8}{seconds:8.1f} s{memory:8.2f} GiB{compared[job]}", flush=True)
    return folder / f"cache_{path.stem}_{repeats - 1}"


def rate(batches: Iterable[object], limit: float = 8.0) -> float:
    """Return rows per second, without the first batch, which may have to load something."""
    start = 0.0
    rows = 0
    for number, batch in enumerate(batches):
        if number == 0:
            start = time.perf_counter()
            continue
        rows += len(batch[0]) if isinstance(batch, list) else len(batch)  # type: ignore[arg-type]
        if time.perf_counter() - start > limit:
            break
    return rows / (time.perf_counter() - start)


def batching(path: Path, cache: Path) -> None:
    """Print how many rows per second each way to batches gives."""
    task = read(path, cache)
    rows = task.train.all()
    plain = DataLoader(
        TensorDataset(rows.ids, rows.numbers, rows.label), batch_size=BATCH, shuffle=True
    )
    print(f"batches of {BATCH} rows, 39 fields, shuffled, {len(task.train):,} rows")
    versions: dict[str, Iterable[object]] = {
        "DataLoader over a TensorDataset": plain,
        "torchleap from memory": task.train.batches(BATCH, shuffle=True, memory=True),
        "torchleap from disk": task.train.batches(BATCH, shuffle=True, memory=False),
    }
    found = {name: rate(batches) for name, batches in versions.items()}
    plainly = found["DataLoader over a TensorDataset"]
    for name, speed in found.items():
        print(f"  {name:<34}{speed / 1e6:8.2f} million rows/s{speed / plainly:8.1f} x")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("JOB", "PATH", "CACHE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return
    print(f"polars {pl.__version__}, torch {torch.__version__}, {os.cpu_count()} cores")
    sizes = (200_000, 400_000) if options.quick else (5_000_000, 10_000_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        caches = {}
        for rows in sizes:
            path = folder / f"{rows}.txt"
            write_log(path, rows)
            print(f"{rows:,} rows, {path.stat().st_size / 1e9:.2f} GB", flush=True)
            caches[path] = loading(path, folder, 1 if options.quick else 3)
        batching(*next(iter(caches.items())))


if __name__ == "__main__":
    main()
