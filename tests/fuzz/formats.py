"""The kinds of files that torchleap reads: how to make a healthy one, and what opens it."""

import gzip
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather
import torch
from pyarrow import parquet
from torch import nn

import torchleap as tl
from tests.report.records import bench_record, select_record
from torchleap._common.errors import TorchleapError
from torchleap.bench.grid import Grid
from torchleap.bench.store import Store
from torchleap.models import build
from torchleap.pipeline.decide import decide
from torchleap.pipeline.serve import Served
from torchleap.report import Report
from torchleap.selection import select
from torchleap.training.fit import Training, fit

QUICK = Training(batch=128, epochs=1, lr=1e-2)


@dataclass(frozen=True)
class Format:
    """A kind of file or folder.

    Attributes:
        make: Writes a healthy one below a folder and returns its path.
        open: Reads it to its end, as the library does; may use the folder of the second argument.
    """

    make: Callable[[Path], Path]
    open: Callable[[Path, Path], object]


def log(rows: int = 600) -> pl.DataFrame:
    """Rows of every kind of column."""
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "click": rng.integers(0, 2, rows),
            "age": rng.normal(size=rows),
            "city": [f"c{number % 17}" for number in range(rows)],
            "tags": [["a", f"t{number % 5}"][: number % 3] for number in range(rows)],
            "kind": pl.Series([f"k{number % 4}" for number in range(rows)], dtype=pl.Categorical),
            "level": pl.Series(
                ["lo" if number % 3 else "hi" for number in range(rows)],
                dtype=pl.Enum(["lo", "hi"]),
            ),
            "day": pl.Series(np.arange(rows) // 10).cast(pl.Date),
            "vector": pl.Series(rng.normal(size=(rows, 3))),
            "flag": [None if number % 7 == 0 else number % 2 == 0 for number in range(rows)],
        }
    )


def flat(rows: int = 600) -> pl.DataFrame:
    """The columns that CSV can hold."""
    return (
        log(rows)
        .drop("tags", "vector")
        .with_columns(note=pl.format('say "{}", please', pl.col("city")))
    )


def write(name: str, content: Callable[[], bytes]) -> Callable[[Path], Path]:
    """Make a file of these bytes."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content())
        return folder / name

    return make


def written(write: Callable[..., Any], *args: Any, **settings: Any) -> bytes:
    """Return what a function writes to a file."""
    sink = pa.BufferOutputStream()
    write(*args, sink, **settings)
    return bytes(sink.getvalue())


def zipped() -> bytes:
    """MovieLens-1M with a few rows."""
    ratings = "".join(
        f"{u}::{m}::{1 + (u * m) % 5}::97830{u}{m}\n" for u in range(1, 30) for m in (1, 2, 3)
    )
    users = "".join(f"{u}::{'MF'[u % 2]}::{18 + u}::{u}::9{u}000\n" for u in range(1, 30))
    movies = "1::Caf\xe9 (1995)::Comedy|Drama\n2::The Sea::Drama\n3::Tea::Action\n".encode(
        "latin-1"
    )
    path = pa.BufferOutputStream()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (
            ("ratings", ratings.encode()),
            ("users", users.encode()),
            ("movies", movies),
        ):
            archive.writestr(f"ml-1m/{name}.dat", text)
    return bytes(path.getvalue())


def open_rows(path: Path, scratch: Path) -> None:
    """Do all that can be done with rows; what one way refuses, the others have to survive."""
    ways = (
        lambda: tl.data.read(path, label="click", cache=scratch / "cache").train.all(),
        lambda: str(tl.data.inspect(path, label="click")),
        lambda: tl.data.convert(path, scratch / "converted.parquet", overwrite=True),
    )
    refused = None
    for way in ways:
        try:
            way()
        except TorchleapError as error:
            refused = error
    if refused is not None:
        raise refused


def make_selection(folder: Path) -> Path:
    """Write a selection of a few fields."""
    fields = tl.Fields(
        [
            tl.Field("user", 8, group="a"),
            tl.Field("age", 1, protected=True),
            tl.Field("zip", 8, cost=2.5),
        ]
    )
    scores = {"user": 0.99, "age": 0.7, "zip": 0.01}
    select(fields, scores, settings={"alpha": 1e-3, "gates_on": "valid"}).save(
        folder / "selection.json"
    )
    return folder / "selection.json"


def open_selection(path: Path, scratch: Path) -> None:
    """Read, show and write it again."""
    selection = tl.Selection.load(path)
    str(selection)
    selection.save(scratch / "again.json")
    assert tl.Selection.load(scratch / "again.json") == selection


def open_report(path: Path, scratch: Path) -> None:
    """Render it."""
    report = Report.load(path)
    report.write(scratch / "report.html")
    report.write(scratch / "report.json")


GRID = b"""data = ["ml-1m"]
methods = ["leap", "lasso"]
models = "wide_deep"
shares = [0.5, 0.25]
search_seeds = 2

[set.mine]
file = "clicks.parquet"
label = "click"

[method.eager]
is = "leap_pressure"
strength = 0.5

[training]
batch = 512
lr = 1e-3
"""


COLUMNS = b"""[columns.city]
kind = "categorical"
width = 8
min_count = 2

[columns.age]
kind = "numeric"
scale = "quantile"
"""


def make_store(folder: Path) -> Path:
    """Write a store with some trials."""
    store = Store(folder / "trials.jsonl")
    with store.writing():
        for number in range(4):
            store.add(f"key{number}", {"result": {"test_auc": 0.8}, "settings": {"seed": number}})
    return store.path


def open_store(path: Path, scratch: Path) -> None:
    """Read it, and append to it."""
    store = Store(path)
    with store.writing():
        store.add("one more", {"result": {"test_auc": 0.5}})


def open_columns(path: Path, scratch: Path) -> None:
    """Read rows with it."""
    tl.data.read(log(60), label="click", columns=path)


def task_of(folder: Path, rows: int = 600) -> tl.data.Task:
    """Encode rows below a folder."""
    log(rows).write_parquet(folder / "log.parquet")
    return tl.data.read(
        folder / "log.parquet", label="click", split="order", cache=folder / "cache"
    )


def open_cache(path: Path, scratch: Path) -> None:
    """Read all batches of an encoded task."""
    task = tl.data.Task.load(path)
    for part in (task.train, task.valid, task.test):
        part.all()
    for name in ("city", "tags", "kind"):
        task.vocabulary(name)
    tl.data.save_encoding(task, scratch / "encoding")


def make_served(folder: Path) -> Path:
    """Write the result of a selection."""
    decision = decide(
        task_of(folder), model="wide_deep", method="permutation", training=QUICK, share=0.5
    )
    decision.save(folder / "result")
    return folder / "result"


def open_served(path: Path, scratch: Path) -> None:
    """Score rows with it, and compare its models on them."""
    served = Served.load(path)
    list(served.probabilities(log(60)))
    served.check(log(60), margin=0.1)


class StopError(Exception):
    """Ends a training, so that its checkpoint stays."""


class StopLater(tl.train.Hook):
    """Raises after some steps."""

    def after_step(self, run: Any) -> None:
        """Stop after a checkpoint was written."""
        if run.step == 6:
            raise StopError


def fitted(folder: Path, hooks: tuple[Any, ...]) -> None:
    """Train a small model with a checkpoint."""
    torch.manual_seed(0)
    task = tl.data.read(log(), label="click", split="order", only=["age", "city"])
    model = build("wide_deep", task)
    training = Training(batch=64, epochs=2, checkpoint_steps=2)
    fit(model, task, training, hooks=hooks, checkpoint=folder / "fit.pt")


def make_fit(folder: Path) -> Path:
    """Write the checkpoint of a training that was stopped."""
    with suppress(StopError):
        fitted(folder, (StopLater(),))
    return folder / "fit.pt"


def streamed(folder: Path, steps: int) -> None:
    """Train on a stream with checkpoints."""
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    batches = [(torch.randn(32, 4, generator=rng), torch.ones(32)) for _ in range(steps)]
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    tl.stream(model, batches, training=Training(lr=1e-2, checkpoint_steps=2), checkpoint=folder)


def make_stream(folder: Path) -> Path:
    """Write the checkpoints of a stream."""
    streamed(folder / "stream", 4)
    return folder / "stream"


TABLE = log().to_arrow(compat_level=pl.CompatLevel.oldest())
V2 = {
    "data_page_version": "2.0",
    "compression": "gzip",
    "use_dictionary": False,
    "row_group_size": 200,
}
FORMATS = {
    "csv": Format(write("log.csv", lambda: flat().write_csv().encode()), open_rows),
    "csv.gz": Format(
        write("log.csv.gz", lambda: gzip.compress(flat().write_csv().encode())), open_rows
    ),
    "csv.zst": Format(
        write(
            "log.csv.zst", lambda: pa.compress(flat().write_csv().encode(), "zstd", asbytes=True)
        ),
        open_rows,
    ),
    "parquet": Format(write("log.parquet", lambda: written(log().write_parquet)), open_rows),
    "parquet of pyarrow": Format(
        write("log.parquet", lambda: written(parquet.write_table, TABLE, **V2)), open_rows
    ),
    "arrow": Format(write("log.arrow", lambda: written(log().write_ipc)), open_rows),
    "feather": Format(
        write("log.feather", lambda: written(pa.feather.write_feather, TABLE, compression="zstd")),
        open_rows,
    ),
    "movielens": Format(
        write("ml-1m.zip", zipped),
        lambda path, scratch: tl.data.movielens_1m(path, cache=scratch / "cache").train.all(),
    ),
    "report": Format(
        write("report.json", lambda: Report(select_record(6, steps=5)).json().encode()), open_report
    ),
    "bench report": Format(
        write("report.json", lambda: Report(bench_record()).json().encode()), open_report
    ),
    "selection": Format(make_selection, open_selection),
    "grid": Format(write("grid.toml", lambda: GRID), lambda path, _: Grid.load(path)),
    "columns": Format(write("columns.toml", lambda: COLUMNS), open_columns),
    "store": Format(make_store, open_store),
    "cache": Format(lambda folder: task_of(folder).folder, open_cache),
    "served": Format(make_served, open_served),
    "model": Format(
        lambda folder: make_served(folder) / "model", lambda path, _: tl.export.load(path)
    ),
    "fit checkpoint": Format(make_fit, lambda path, _: fitted(path.parent, ())),
    "stream checkpoint": Format(make_stream, lambda path, _: streamed(path, 6)),
}
