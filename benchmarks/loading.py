"""From a file to batches: encoding against polars reading the same file, and batches against torch's DataLoader, in one run.

    python benchmarks/loading.py            # 5 and 10 million rows in Criteo's format, 1.3 and 2.7 GB: about five minutes
    python benchmarks/loading.py --quick    # 200,000 and 400,000 rows: ten seconds

`encode` is `tl.data.read` on a file that it has not seen: 13 numbers and 26 categories with up to 2 million values; `polars`
reads the file into a frame. Each runs in a process of its own; memory is the most that it has held (resident), less what the
imports take.
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
CATEGORIES = [
    1460,
    583,
    2_000_000,
    800_000,
    305,
    24,
    12517,
    633,
    3,
    93145,
    5683,
    1_500_000,
    3194,
    27,
    14992,
    1_000_000,
]
CATEGORIES += [
    10,
    5652,
    2173,
    4,
    1_200_000,
    18,
    15,
    286181,
    105,
    142572,
]  # as many as Criteo has, about
BATCH = 4096


def write_log(path: Path, rows: int) -> None:
    """A file in Criteo's format: frequent categories are more frequent than rare ones by far."""
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
                category = np.minimum(
                    (many * rng.random(count) ** 4).astype(np.uint64), np.uint64(many - 1)
                )
                digits = (
                    ((category * np.uint64(2654435761))[:, None] >> shifts) & np.uint64(15)
                ).astype(np.uint8)
                texts = (
                    np.where(digits < 10, digits + 48, digits + 87)
                    .astype(np.uint8)
                    .reshape(-1)
                    .view("S8")
                )
                columns[name] = pl.Series(texts.astype("U8"))
            pl.DataFrame(columns).write_csv(file, separator="\t", include_header=False)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # GiB


def one(job: str, path: str, cache: str) -> None:
    """In a process of its own: print seconds and GiB."""
    start, before = time.perf_counter(), peak()
    if job == "polars":
        pl.read_csv(path, separator="\t", has_header=False, new_columns=NAMES)
    else:
        tl.data.read(
            path,
            label="label",
            names=NAMES,
            columns=dict.fromkeys(NAMES[14:], "categorical"),
            split="order",
            cache=cache,
        )
    print(time.perf_counter() - start, peak() - before)


def read(path: Path | str, cache: Path | str) -> tl.data.Task:
    columns = dict.fromkeys(NAMES[14:], "categorical")
    return tl.data.read(
        path, label="label", names=NAMES, columns=columns, split="order", cache=cache
    )


def run(job: str, path: Path, cache: Path) -> tuple[float, float]:
    command = [sys.executable, __file__, "--one", job, str(path), str(cache)]
    seconds, memory = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.split()
    return float(seconds), float(memory)


def loading(path: Path, folder: Path, repeats: int) -> Path:
    """Print how long both take, interleaved; returns where the last encoding lies."""
    found: dict[str, list[tuple[float, float]]] = {"polars": [], "encode": []}
    for repeat in range(repeats):
        for job, results in found.items():
            results.append(run(job, path, folder / f"cache_{path.stem}_{repeat}"))
    ratio = statistics.median(
        ours[0] / theirs[0] for ours, theirs in zip(found["encode"], found["polars"], strict=True)
    )
    for job, results in found.items():
        seconds, memory = statistics.median(r[0] for r in results), max(r[1] for r in results)
        print(
            f"  {job:<8}{seconds:8.1f} s{memory:8.2f} GiB"
            + (f"{ratio:8.2f} x polars" if job == "encode" else ""),
            flush=True,
        )
    return folder / f"cache_{path.stem}_{repeats - 1}"


def rate(batches: Iterable[object], limit: float = 8.0) -> float:
    """Rows a second, without the first batch, which may have to load something."""
    start, rows = 0.0, 0
    for number, batch in enumerate(batches):
        if number == 0:
            start = time.perf_counter()
            continue
        rows += len(batch[0]) if isinstance(batch, list) else len(batch)  # type: ignore[arg-type]
        if time.perf_counter() - start > limit:
            break
    return rows / (time.perf_counter() - start)


def batching(path: Path, cache: Path) -> None:
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
    for name, speed in found.items():
        print(
            f"  {name:<34}{speed / 1e6:8.2f} million rows/s{speed / found['DataLoader over a TensorDataset']:8.1f} x"
        )


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
