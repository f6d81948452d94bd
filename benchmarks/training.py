"""The speed of training, against other code on the same rows in one run, with the AUC of each.

    python benchmarks/training.py --reference LeAP --peers peers    # all sections, fifteen minutes
    python benchmarks/training.py --only gates --quick              # few steps
    TORCHLEAP_DATA=... python benchmarks/training.py --only search --repeats 3

reference: one epoch of the public LeAP code (github.com/goldenNormal/LeAP, a checkout of it is
--reference) on MovieLens-1M, in batches of 256, with the network of both: Wide&Deep 32-16, batch
norm, dropout 0.2, one table of width 8, Adam 1e-3. It gets our encoded ids, so the rows of each
part and their order are the same. Of its code only the device is changed: checks for a GPU are
removed, "cuda" becomes "cpu"; and LeAP.py is copied to leap.py, the name that its loader expects.

peers: one epoch of DeepCTR-Torch and FuxiCTR in batches of 4096 on rows in Criteo's format, by
their own `fit` from their own loaders, see training_peers.py. To install them, with pandas for the
reference, beside the packages that are installed already:

    pip install --no-deps --target peers -c constraints.txt deepctr-torch fuxictr h5py pyyaml
    pip install --no-deps --target peers -c constraints.txt pandas python-dateutil six

gates: one epoch of LeAP whose gates learn from the model's own batches, against the same epoch
without gates.

search: a search by LeAP, and a decision with its files as `torchleap select` makes it, against one
plain training of the same model until it stops early; on Census-Income, MovieLens-1M and the
industrial log, see training_search.py. It is not among the sections by default, as it takes longer.

An epoch is its steps and one evaluation on the validation rows. Times are medians over rounds in
which all take turns; `time` is the median of the ratios to the first line in the same round; AUCs
are means over the rounds, each with a seed of its own, and `spread` is the distance between the
lowest and the highest test AUC of the rounds.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import torch
from loading import CATEGORIES, NAMES
from torch import Tensor
from training_epochs import Epoch, in_memory, searched, shortened, show, silent, stand_in, trained
from training_peers import BATCH, NETWORK, peers_of
from training_search import sets_of, show_search

import torchleap as tl
from torchleap.data.task import Task
from torchleap.methods import LeAPBaseMethod, PressureMethod
from torchleap.mix import choose
from torchleap.models import Backbone, benchmark, named

USUAL = ("reference", "peers", "gates")  # the sections by default
SECTIONS = (*USUAL, "search")
SMALL_FIELDS = ("user_id", "movie_id", "title", "genres")
MOVIELENS_BATCH = 256
# rows that the reference evaluates at once; it leaves out the last ones if they are fewer
EVALUATION_ROWS = 8192


# The reference


def patched_copy(reference: Path, folder: Path) -> Path:
    """Return a copy of the public code that runs without a GPU."""
    ignore = shutil.ignore_patterns(".git", "__pycache__")
    copy = Path(shutil.copytree(reference, folder / "reference", ignore=ignore))
    shutil.copy(copy / "models/fs/LeAP.py", copy / "models/fs/leap.py")
    trainer = copy / "utils/fs_trainer.py"
    lines = trainer.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if "assert" not in line or "device.type" not in line]
    text = "\n".join(kept).replace(".to('cuda')", ".to('cpu')")
    trainer.write_text(text, encoding="utf-8")
    return copy


def write_for_reference(task: Task, copy: Path) -> None:
    """Write our ids as the files that its loader reads, which splits the rows by fractions."""
    parts = [part.all() for part in (task.train, task.valid, task.test)]
    ids = torch.cat([part.ids for part in parts]).numpy()
    label = torch.cat([part.label for part in parts]).numpy()
    columns = {name: ids[:, place] for place, name in enumerate(task.fields.names)}
    frame = pl.DataFrame({**columns, "rating": label.astype(np.int8)})
    frame.write_parquet(copy / "quick_data/ml.parquet")
    content = {"features": list(columns), "label": "rating"}
    (copy / "quick_data/ml.json").write_text(json.dumps(content), encoding="utf-8")


def read_as_reference(
    task: Task, copy: Path, names: list[str]
) -> tuple[list[Any], list[tuple[Tensor, Tensor]]]:
    """Return the number of ids of each field, and each part, as its own loader reads them.

    The rows are checked to be ours.
    """
    from utils.datasets import quick_read_dataset

    _, _, ids, frames = quick_read_dataset(
        "ml", data_path=str(copy / "quick_data"), selected_features=names
    )
    values = [torch.tensor(frame.values, dtype=torch.long) for frame in frames]
    parts = []
    rows = (task.train, task.valid, task.test)
    for ours, all_x, all_y in zip(rows, values[::2], values[1::2], strict=True):
        x = all_x[: len(ours)]
        y = all_y[: len(ours)]
        if not torch.equal(x, ours.all().ids.long()) or not torch.equal(y, ours.all().label.long()):
            raise SystemExit(f"The reference reads other {ours.part} rows than we do.")
        parts.append((x, y))
    return ids, parts


def reference_settings(method: str, rows: int) -> SimpleNamespace:
    """Return the command line of the public code."""
    return SimpleNamespace(
        model="widedeep",
        fs=method,
        dataset="ml",
        device="cpu",
        embedding_dim=8,
        learning_rate=1e-3,
        epoch=1,
        patience=3,
        num_workers=0,
        batch_size=MOVIELENS_BATCH,
        num_batch=rows // MOVIELENS_BATCH,
        fs_weight=0.1,
    )


def reference_epoch(task: Task, copy: Path, method: str, seed: int) -> Epoch:
    """Train an epoch by its own trainer, as its search_and_retrain.py does."""
    from models.basemodel import BaseModel
    from utils.fs_trainer import modeltrainer
    from utils.utils import seed_everything

    names = list(task.fields.names)
    ids, (train, valid, test) = read_as_reference(task, copy, names)
    settings = reference_settings(method, len(train[0]))
    seed_everything(seed)
    with silent():
        model = BaseModel(settings, settings.model, method, ids, names)
        model.fs.mode = "train"
        trainer = modeltrainer(
            settings, model, settings.model, "cpu", epochs=1, retrain=method == "no_selection"
        )
        start = time.perf_counter()
        _, valid_auc = trainer.fit(train, valid)
        seconds = time.perf_counter() - start
        test_auc, _ = trainer.test_eval(test)
    return Epoch(seconds, valid_auc[-1], test_auc)


def reference_section(options: argparse.Namespace, folder: Path) -> None:
    """Print the times of the public LeAP code and of ours."""
    print("\nreference: MovieLens-1M, Wide&Deep 32-16, batch 256, one epoch")
    missing = "" if importlib.util.find_spec("pandas") else "pandas is not installed, see --help"
    if not options.reference or not options.movielens:
        missing = "it needs --reference and --movielens"
    if missing:
        print(f"  left out: {missing}")
        return
    task = tl.data.movielens_1m(options.movielens, cache=folder / "movielens")
    copy = patched_copy(options.reference, folder)
    write_for_reference(task, copy)
    sys.path.insert(0, str(copy))
    stand_in("nni")  # it imports this and does not use it
    few = {"train": 300 * MOVIELENS_BATCH, "valid": 2 * EVALUATION_ROWS} if options.quick else {}
    everything = in_memory(shortened(task, **few))
    small = in_memory(shortened(task.only(SMALL_FIELDS), **few))
    network = benchmark("wide_deep")
    rows = len(everything.train)
    print(
        "\n  (a) LeAP search over nine fields, gates on held-out batches, "
        "penalty 0.1 * mean gate; wanted: 8 x"
    )
    print(
        "      AUC with gates: the reference shuffles rows in evaluation too, "
        "ours mixes with each field's mean"
    )
    method = LeAPBaseMethod(alpha=0.1 / len(task.fields), lr=1e-3, gates_on="valid")
    ours = partial(searched, everything, network, MOVIELENS_BATCH, method)
    theirs = partial(reference_epoch, everything, copy, "LeAP")
    show({"torchleap": ours, "reference": theirs}, rows, options.repeats)
    print(f"\n  (b) plain epoch on {', '.join(SMALL_FIELDS)}; wanted: 1.5 x")
    ours = partial(trained, small, network, MOVIELENS_BATCH)
    theirs = partial(reference_epoch, small, copy, "no_selection")
    show({"torchleap": ours, "reference": theirs}, rows, options.repeats)


# The peers


def write_log(path: Path, rows: int) -> None:
    """Write rows in Criteo's format: few categories have most rows, all columns have an effect."""
    rng = np.random.default_rng(0)
    log_odds = np.full(rows, -1.3)
    columns: dict[str, pl.Series] = {}
    for name in NAMES[1:14]:
        number = rng.normal(2, 2, rows)
        log_odds += 0.2 * rng.normal() * np.tanh(number - 2)
        missing = pl.Series(rng.random(rows) < 0.2)
        columns[name] = pl.Series(np.exp(number).astype(np.int64) - 1).set(missing, None)
    for name, many in zip(NAMES[14:], CATEGORIES, strict=True):
        category = np.minimum((many * rng.random(rows) ** 4).astype(np.int64), many - 1)
        log_odds += 0.2 * rng.normal(size=many)[category]
        columns[name] = pl.Series(category)
    label = pl.Series((rng.random(rows) < 1 / (1 + np.exp(-log_odds))).astype(np.int8))
    pl.DataFrame({"label": label, **columns}).write_csv(path, separator="\t", include_header=False)


def criteo(options: argparse.Namespace, folder: Path, min_count: int) -> Task:
    """Return the rows of --criteo, or synthetic ones; ids rarer than `min_count` become one."""
    path = options.criteo or folder / "criteo.txt"
    if not path.exists() and options.criteo is None:
        write_log(path, 100_000 if options.quick else 1_000_000)
    return in_memory(tl.data.criteo(path, min_count=min_count, cache=folder / "criteo"))


def peers_section(options: argparse.Namespace, folder: Path) -> None:
    """Print the times of other packages and of ours."""
    print(
        "\npeers: Criteo's format, MLP 32-16 on 39 tables of width 8, batch 4096, Adam 1e-3, "
        "one epoch; wanted: none is faster"
    )
    start = "All begin with the same fresh weights."
    if options.own_start:
        start = "Each draws its fresh weights in its own way."
    print(f"  {start} DeepCTR-Torch sums the loss over a batch, the others take its mean.")
    print(
        "  FuxiCTR clips gradients to a norm of 10 and saves the best weights to a file. Ours has"
    )
    print("  one table for all fields, with sparse gradients where it is large; `dense` has none.")
    for min_count, ids in ((1, "all ids"), (10, "ids that ten train rows have")):
        task = criteo(options, folder, min_count)
        peers = peers_of(task, options.own_start)
        count = sum(column.categories for column in task.columns)
        print(f"\n  {ids}: {count:,}; {len(task.train):,} train rows")
        ours = partial(trained, task, NETWORK, BATCH)
        show(
            {"torchleap": ours, "torchleap, dense": partial(ours, sparse=False), **peers},
            len(task.train),
            options.repeats,
        )
    if len(peers) < 3:
        print(
            "  left out, as they are not installed: DeepCTR-Torch or FuxiCTR. "
            "See --help, and then --peers"
        )


# The gates


def gates_section(options: argparse.Namespace, folder: Path) -> None:
    """Print the time of an epoch with gates, and without."""
    print(
        "\ngates: LeAP with gates on the model's own batches, batch 4096, one epoch; "
        "wanted: at most 1.2 x the time without"
    )
    rows = 12_000 if options.quick else 60_000
    industrial = partial(
        tl.data.industrial, rows, fields=512, dims=12_000, folder=folder / "industrial"
    )
    rated = partial(criteo, options, folder, 10)
    cases: list[tuple[str, Callable[[], Task], Backbone]] = [
        (
            "(i) industrial log, 512 fields, Wide&Deep 256-128-64",
            lambda: in_memory(industrial()),
            named("wide_deep"),
        ),
        ("(ii) Criteo's format, 39 fields, Wide&Deep 256-128-64", rated, named("wide_deep")),
        ("(iii) Criteo's format, 39 fields, Wide&Deep 32-16", rated, benchmark("wide_deep")),
    ]
    for title, make, network in cases:
        task = make()
        print(f"\n  {title}: {task.fields.dims:,} dimensions, {len(task.train):,} train rows")
        plain = partial(trained, task, network, BATCH)
        gated = partial(searched, task, network, BATCH, PressureMethod(gates_on="train"))
        calls = {"without gates": plain, "LeAP": gated}
        show(calls, len(task.train), options.repeats, warm_up=True)


def search_section(options: argparse.Namespace, folder: Path) -> None:
    """Print the times of a plain training, a search and a decision."""
    network = named("wide_deep")
    words = "Wide&Deep as by default"
    if options.small:
        network = benchmark("wide_deep")
        words = "Wide&Deep 32-16"
    print(f"\nsearch: {words}; ratios to a plain training until it stops early")
    for recipe in sets_of(options.movielens):
        if recipe.kind == "industrial" or os.environ.get("TORCHLEAP_DATA"):
            show_search(recipe, network, folder, repeats=options.repeats, quick=options.quick)
        else:
            print(f"  left out: {recipe.name} needs TORCHLEAP_DATA")


def options_given() -> argparse.Namespace:
    """Read the command line."""
    data = os.environ.get("TORCHLEAP_DATA")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default=",".join(USUAL), help="some of the sections, with commas between them"
    )
    parser.add_argument(
        "--quick", action="store_true", help="300 steps against the reference, fewer rows elsewhere"
    )
    parser.add_argument("--repeats", type=int, default=2, help="rounds, at least 1")
    parser.add_argument(
        "--reference", type=Path, metavar="DIR", help="a checkout of the public LeAP code"
    )
    parser.add_argument(
        "--movielens",
        type=Path,
        default=data and Path(data) / "ml-1m.zip",
        help="ml-1m.zip or its folder",
    )
    parser.add_argument(
        "--criteo", type=Path, metavar="FILE", help="train.txt of Criteo; drawn rows without"
    )
    parser.add_argument(
        "--peers", type=Path, metavar="DIR", help="a folder with packages to compare with"
    )
    parser.add_argument(
        "--own-start", action="store_true", help="peers draw their fresh weights themselves"
    )
    parser.add_argument(
        "--small", action="store_true", help="search with hidden layers of 32 and 16"
    )
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(SECTIONS)
    if unknown or options.repeats < 1:
        parser.error(f"--only takes {', '.join(SECTIONS)}, and --repeats at least 1.")
    return options


def machine() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    options = options_given()
    if options.peers:
        # At the end: torch and the other installed packages stay the same for all.
        sys.path.append(str(options.peers))
    mixes = choose(torch.zeros(2, 2))  # without the native kernel, gates take another time
    threads = torch.get_num_threads()
    print(
        f"{machine()}, torch {torch.__version__}, {threads} threads; torchleap mixes by {mixes!r}"
    )
    sections = {
        "reference": reference_section,
        "peers": peers_section,
        "gates": gates_section,
        "search": search_section,
    }
    with tempfile.TemporaryDirectory() as name:
        for section in options.only.split(","):
            sections[section](options, Path(name))


if __name__ == "__main__":
    main()
