"""How fast training is, against other code on the same rows in one run, with the AUC of each beside its time.

    python benchmarks/training.py --reference LeAP --peers peers    # all sections, roughly fifteen minutes
    python benchmarks/training.py --only gates --quick              # few steps

reference: one epoch of the public LeAP code (github.com/goldenNormal/LeAP, a checkout of it is --reference) on MovieLens-1M, in
batches of 256, with the network of both: Wide&Deep 32-16, batch norm, dropout 0.2, one table of width 8, Adam 1e-3. It gets our
encoded ids, so the rows of each part and their order are the same. Of its code only the device is changed: checks for a GPU go,
"cuda" becomes "cpu"; and LeAP.py is there as leap.py as well, the name that its loader looks for.

peers: one epoch of DeepCTR-Torch and FuxiCTR in batches of 4096 on rows in Criteo's format, by their own `fit` from their own
loaders. The network is the one that all three can build alike: 39 tables of width 8 and an MLP 32-16 with batch norm and dropout
0.2, no wide part, for theirs is a table of its own and ours is a layer on the embeddings. To install them, with pandas for the
reference, beside the packages that are there already:

    pip install --no-deps --target peers -c constraints.txt deepctr-torch fuxictr h5py pyyaml pandas python-dateutil six

gates: one epoch of LeAP whose gates learn from the model's own batches, against the same epoch without gates.

An epoch is its steps and one look at the validation rows. Times are medians over rounds in which all take turns; `time` is the
median of the ratios to the first line in the same round; AUCs are means over the rounds, each with a seed of its own, and
`spread` is how far the test AUCs of the rounds lie apart.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import torch
from loading import CATEGORIES, NAMES
from torch import Tensor, nn

import torchleap as tl
from torchleap.data.task import Rows, Task
from torchleap.methods import LeAPBaseMethod, LeAPMethod, Method
from torchleap.mix import choose
from torchleap.models import MLP, Backbone, benchmark, build, named
from torchleap.training.fit import Hook, Run, Training, evaluate, fit

SECTIONS = ("reference", "peers", "gates")
SMALL_FIELDS = ("user_id", "movie_id", "title", "genres")
MOVIELENS_BATCH = 256
BATCH = 4096
LOOK = (
    8192  # rows that the reference evaluates at once; it leaves out the last ones if they are fewer
)
WIDTH = 8
HIDDEN = (32, 16)
DROPOUT = 0.2
START = 0.01  # standard deviation of fresh embeddings
NETWORK = benchmark(MLP())  # of the peers


@dataclass(frozen=True)
class Epoch:
    """What one epoch took, and what the model could do after it."""

    seconds: float
    valid_auc: float
    test_auc: float


Call = Callable[[int], Epoch]  # from a seed


def take_turns(calls: dict[str, Call], repeats: int) -> dict[str, list[Epoch]]:
    found: dict[str, list[Epoch]] = {name: [] for name in calls}
    for seed in range(repeats):
        for name, call in calls.items():
            found[name].append(call(seed))
    return found


def show(calls: dict[str, Call], rows: int, repeats: int, *, warm_up: bool = False) -> None:
    """Run all of them and print a line for each."""
    if warm_up:
        take_turns(calls, 1)
    print(
        f"  {'':<34}{'seconds':>9}{'time':>8}{'rows/s':>12}{'valid AUC':>11}{'test AUC':>10}{'spread':>8}",
        flush=True,
    )
    found = take_turns(calls, repeats)
    first = next(iter(found.values()))
    for name, epochs in found.items():
        seconds = statistics.median(epoch.seconds for epoch in epochs)
        ratio = statistics.median(
            own.seconds / other.seconds for own, other in zip(epochs, first, strict=True)
        )
        valid, test = (
            statistics.mean(getattr(epoch, part) for epoch in epochs)
            for part in ("valid_auc", "test_auc")
        )
        spread = max(epoch.test_auc for epoch in epochs) - min(epoch.test_auc for epoch in epochs)
        speed = f"{seconds:>9.2f}{ratio:>7.2f}x{rows / seconds:>12,.0f}"
        print(f"  {name:<34}{speed}{valid:>11.4f}{test:>10.4f}{spread:>8.4f}", flush=True)


# Ours


class Watch(Hook):
    """Keeps the run of a search."""

    run: Run

    def at_end(self, run: Run) -> None:
        """Remember it."""
        self.run = run


def searched(task: Task, backbone: Backbone, batch: int, method: Method, seed: int) -> Epoch:
    watch = Watch()
    tl.search(
        task,
        model=backbone,
        method=method,
        training=Training(batch=batch, epochs=1),
        seed=seed,
        callbacks=[watch],
    )
    return epoch_of(watch.run)


def trained(
    task: Task, backbone: Backbone, batch: int, seed: int, sparse: bool | None = None
) -> Epoch:
    torch.manual_seed(seed)
    model = build(backbone, task, sparse=sparse)
    return epoch_of(fit(model, task, Training(batch=batch, epochs=1, seed=seed)))


def epoch_of(run: Run) -> Epoch:
    return Epoch(
        run.seconds, run.history[-1]["valid_auc"], evaluate(run.model, run.task.test)["auc"]
    )


class FirstRows(Rows):
    """The first rows of a part alone."""

    def __init__(self, rows: Rows, count: int) -> None:
        super().__init__(rows.task, rows.part)
        self.count = min(count, len(rows))

    def __len__(self) -> int:
        return self.count


def shortened(task: Task, **counts: int) -> Task:
    """The same task with the first rows of some parts alone, and with the ids of all rows: tables keep their size."""
    short = replace(task)
    for part, count in counts.items():
        vars(short)[part] = FirstRows(
            getattr(short, part), count
        )  # where a cached property keeps what it has found
    return short


def in_memory(task: Task) -> Task:
    """The same, with rows that are read now and not within the first epoch."""
    for rows in (task.train, task.valid, task.test):
        rows.all()
    return task


# The reference


def patched_copy(reference: Path, folder: Path) -> Path:
    """A copy of the public code that runs without a GPU."""
    copy = Path(
        shutil.copytree(
            reference, folder / "reference", ignore=shutil.ignore_patterns(".git", "__pycache__")
        )
    )
    shutil.copy(copy / "models/fs/LeAP.py", copy / "models/fs/leap.py")
    trainer = copy / "utils/fs_trainer.py"
    lines = trainer.read_text(encoding="utf-8").splitlines()
    kept = [
        line.replace(".to('cuda')", ".to('cpu')")
        for line in lines
        if "assert" not in line or "device.type" not in line
    ]
    trainer.write_text("\n".join(kept), encoding="utf-8")
    return copy


def write_for_reference(task: Task, copy: Path) -> None:
    """Our ids as the files that its loader reads; it cuts the rows of train, valid and test by their shares."""
    parts = [part.all() for part in (task.train, task.valid, task.test)]
    ids, label = (
        torch.cat([part.ids for part in parts]).numpy(),
        torch.cat([part.label for part in parts]).numpy(),
    )
    columns = {name: ids[:, place] for place, name in enumerate(task.fields.names)}
    pl.DataFrame({**columns, "rating": label.astype(np.int8)}).write_parquet(
        copy / "quick_data/ml.parquet"
    )
    content = {"features": list(columns), "label": "rating"}
    (copy / "quick_data/ml.json").write_text(json.dumps(content), encoding="utf-8")


def read_as_reference(
    task: Task, copy: Path, names: list[str]
) -> tuple[list[Any], list[tuple[Tensor, Tensor]]]:
    """What its own loader finds: the number of ids of each field, and each part; checked to be ours."""
    from utils.datasets import quick_read_dataset

    _, _, ids, frames = quick_read_dataset(
        "ml", data_path=str(copy / "quick_data"), selected_features=names
    )
    values = [torch.tensor(frame.values, dtype=torch.long) for frame in frames]
    parts = []
    for ours, x, y in zip(
        (task.train, task.valid, task.test), values[::2], values[1::2], strict=True
    ):
        x, y = x[: len(ours)], y[: len(ours)]
        if not torch.equal(x, ours.all().ids.long()) or not torch.equal(y, ours.all().label.long()):
            raise SystemExit(f"The reference reads other {ours.part} rows than we do.")
        parts.append((x, y))
    return ids, parts


def reference_settings(method: str, rows: int) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "model": "widedeep",
            "fs": method,
            "dataset": "ml",
            "device": "cpu",
            "embedding_dim": WIDTH,
            "learning_rate": 1e-3,
        },
        **{
            "epoch": 1,
            "patience": 3,
            "num_workers": 0,
            "batch_size": MOVIELENS_BATCH,
            "num_batch": rows // MOVIELENS_BATCH,
        },
        fs_weight=0.1,
    )


def reference_epoch(task: Task, copy: Path, method: str, seed: int) -> Epoch:
    """An epoch of its own trainer, as its search_and_retrain.py calls it."""
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
    few = {"train": 300 * MOVIELENS_BATCH, "valid": 2 * LOOK} if options.quick else {}
    everything, small = (
        in_memory(shortened(part, **few)) for part in (task, task.only(SMALL_FIELDS))
    )
    network, rows = benchmark("wide_deep"), len(everything.train)
    print(
        "\n  (a) LeAP search over nine fields, gates on held-out batches, penalty 0.1 * mean gate; wanted: 8 x"
    )
    print(
        "      AUC with gates: the reference shuffles rows in evaluation too, ours mixes with each field's mean"
    )
    method = LeAPBaseMethod(alpha=0.1 / len(task.fields), lr=1e-3, gates_on="valid")
    ours, theirs = (
        partial(searched, everything, network, MOVIELENS_BATCH, method),
        partial(reference_epoch, everything, copy),
    )
    show({"torchleap": ours, "reference": partial(theirs, "LeAP")}, rows, options.repeats)
    print(f"\n  (b) plain epoch on {', '.join(SMALL_FIELDS)}; wanted: 1.5 x")
    ours, theirs = (
        partial(trained, small, network, MOVIELENS_BATCH),
        partial(reference_epoch, small, copy, "no_selection"),
    )
    show({"torchleap": ours, "reference": theirs}, rows, options.repeats)


def stand_in(name: str, **content: Any) -> None:
    """An empty module for one that is imported somewhere and not needed."""
    if name not in sys.modules and (content or importlib.util.find_spec(name) is None):
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)


@contextmanager
def silent() -> Iterator[None]:
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        yield


# The peers


def write_log(path: Path, rows: int) -> None:
    """Rows in Criteo's format: frequent categories are more frequent than rare ones by far, and all columns have an effect."""
    rng = np.random.default_rng(0)
    log_odds = np.full(rows, -1.3)
    columns: dict[str, pl.Series] = {}
    for name in NAMES[1:14]:
        number = rng.normal(2, 2, rows)
        log_odds += 0.2 * rng.normal() * np.tanh(number - 2)
        columns[name] = pl.Series(np.exp(number).astype(np.int64) - 1).set(
            pl.Series(rng.random(rows) < 0.2), None
        )
    for name, many in zip(NAMES[14:], CATEGORIES, strict=True):
        category = np.minimum((many * rng.random(rows) ** 4).astype(np.int64), many - 1)
        log_odds += 0.2 * rng.normal(size=many)[category]
        columns[name] = pl.Series(category)
    label = pl.Series((rng.random(rows) < 1 / (1 + np.exp(-log_odds))).astype(np.int8))
    pl.DataFrame({"label": label, **columns}).write_csv(path, separator="\t", include_header=False)


def criteo(options: argparse.Namespace, folder: Path, min_count: int) -> Task:
    """The rows of a file that was given, or drawn ones; rarer ids than this are one."""
    path = options.criteo or folder / "criteo.txt"
    if not path.exists() and options.criteo is None:
        write_log(path, 100_000 if options.quick else 1_000_000)
    return in_memory(tl.data.criteo(path, min_count=min_count, cache=folder / "criteo"))


def auc_of(rows: Rows, probability: Any) -> float:
    return tl.auc(rows.all().label, torch.as_tensor(np.asarray(probability)).flatten())


def start_alike(task: Task, tables: list[nn.Embedding], net: nn.Module, seed: int) -> Tensor:
    """Give a peer the fresh weights that ours has for this seed; returns the bias of the last layer.

    How the hidden layers begin still shows in the AUC after one epoch, and would hide what a trainer does to it.
    """
    torch.manual_seed(seed)
    ours = build(NETWORK, task)
    weights = ours.inputs.tables[str(WIDTH)].weight.split(
        [column.categories for column in task.columns]
    )
    pairs = [(table.weight, weight) for table, weight in zip(tables, weights, strict=True)]
    layers = [
        [layer for layer in part.modules() if isinstance(layer, nn.Linear)]
        for part in (net, ours.net)
    ]
    for theirs, own in zip(*layers, strict=True):
        pairs += [(theirs.weight, own.weight)] + (
            [] if theirs.bias is None else [(theirs.bias, own.bias)]
        )
    with torch.no_grad():
        for theirs, own in pairs:
            theirs.copy_(own)
    return layers[1][-1].bias.detach()


def deepctr_epoch(task: Task, own_start: bool, seed: int) -> Epoch:
    from deepctr_torch.inputs import SparseFeat
    from deepctr_torch.models import WDL

    columns = [
        SparseFeat(column.name, column.categories, embedding_dim=WIDTH) for column in task.columns
    ]
    settings = {
        "l2_reg_linear": 0,
        "l2_reg_embedding": 0,
        "dnn_dropout": DROPOUT,
        "dnn_use_bn": True,
        "init_std": START,
    }
    model = WDL(
        [], columns, dnn_hidden_units=HIDDEN, seed=seed, **settings
    )  # no columns in its wide part: an MLP
    if not own_start:
        net = nn.ModuleList([model.dnn, model.dnn_linear])
        model.out.bias.data.copy_(
            start_alike(task, [model.embedding_dict[name] for name in task.fields.names], net, seed)
        )
    model.compile(
        torch.optim.Adam(model.parameters(), lr=1e-3), "binary_crossentropy", metrics=["auc"]
    )
    train, valid, test = (
        ([rows.all().ids.numpy()], rows.all().label.numpy())
        for rows in (task.train, task.valid, task.test)
    )
    with silent():
        start = time.perf_counter()
        history = model.fit(
            *train, batch_size=BATCH, epochs=1, verbose=0, validation_data=valid
        )  # metrics of valid rows alone
        seconds = time.perf_counter() - start
    return Epoch(
        seconds, history.history["val_auc"][-1], auc_of(task.test, model.predict(test[0], BATCH))
    )


def fuxictr_model(task: Task, folder: Path) -> Any:
    """Its model DNN, which is in its repository but not in its package."""
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch.layers import FeatureEmbedding, MLP_Block
    from fuxictr.pytorch.models import BaseModel

    class DNN(BaseModel):
        def __init__(self, features: Any) -> None:
            super().__init__(features, model_root=str(folder), metrics=["AUC"], verbose=0)
            self.embedding_layer = FeatureEmbedding(
                features, WIDTH, f"partial(nn.init.normal_, std={START})"
            )
            size, shape = features.sum_emb_out_dim(), {"dropout_rates": DROPOUT, "batch_norm": True}
            self.mlp = MLP_Block(
                size, list(HIDDEN), output_dim=1, output_activation=nn.Sigmoid(), **shape
            )
            self.compile("adam", "binary_crossentropy", 1e-3)
            self.reset_parameters()

        def forward(self, inputs: Any) -> dict[str, Tensor]:
            return {
                "y_pred": self.mlp(self.embedding_layer(self.get_inputs(inputs), flatten_emb=True))
            }

    features = FeatureMap("criteo", str(folder))
    features.labels, features.default_emb_dim = ["label"], WIDTH
    for column in task.columns:
        features.features[column.name] = {
            "type": "categorical",
            "source": "",
            "vocab_size": column.categories,
        }
    features.num_fields = features.get_num_fields()
    features.set_column_index()
    return DNN(features)


class OurBatches:
    """Our batches as FuxiCTR's models take them."""

    def __init__(self, rows: Rows, *, shuffle: bool, seed: int) -> None:
        self.names = rows.task.fields.names
        self.batches = rows.batches(BATCH, shuffle=shuffle, seed=seed)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self.batches:
            yield {**dict(zip(self.names, batch.ids.unbind(1), strict=True)), "label": batch.label}


def fuxictr_batches(task: Task, model: Any, folder: Path) -> tuple[Any, Any]:
    """Its own loaders of train and valid rows, from files."""
    from fuxictr.pytorch.dataloaders import RankDataLoader

    paths = {}
    for rows in (task.train, task.valid):
        everything, paths[f"{rows.part}_data"] = rows.all(), str(folder / f"{rows.part}.npz")
        columns = dict(zip(task.fields.names, everything.ids.numpy().T, strict=True))
        np.savez(
            paths[f"{rows.part}_data"], **columns, label=everything.label.numpy().astype(np.int32)
        )
    return RankDataLoader(model.feature_map, stage="train", batch_size=BATCH, **paths)


def fuxictr_epoch(task: Task, own_start: bool, own_batches: bool, seed: int) -> Epoch:
    with tempfile.TemporaryDirectory() as name:
        torch.manual_seed(seed)
        model = fuxictr_model(task, Path(name))
        Path(model.model_dir).mkdir()  # where it saves its best weights
        if not own_start:
            tables = model.embedding_layer.embedding_layer.embedding_layers
            start_alike(task, [tables[name] for name in task.fields.names], model.mlp, seed)
        if own_batches:
            train, valid = fuxictr_batches(task, model, Path(name))
        else:
            train, valid = (
                OurBatches(rows, shuffle=rows is task.train, seed=seed)
                for rows in (task.train, task.valid)
            )
        start = time.perf_counter()
        model.fit(train, epochs=1, validation_data=valid)
        seconds = time.perf_counter() - start
        valid_auc = model._best_metric
        test = model.predict(OurBatches(task.test, shuffle=False, seed=seed))
    return Epoch(seconds, valid_auc, auc_of(task.test, test))


def peers_of(task: Task, own_start: bool) -> dict[str, Call]:
    """Those that are installed."""
    found: dict[str, Call] = {}
    if importlib.util.find_spec("deepctr_torch"):
        stand_in(
            "deepctr_torch.utils", check_version=lambda version: None
        )  # it asks the network for a newer version
        found["DeepCTR-Torch"] = partial(deepctr_epoch, task, own_start)
    if importlib.util.find_spec("fuxictr"):
        stand_in(
            "ray"
        )  # for its loader of Parquet, and for its preparation of data; neither is used
        stand_in("fuxictr.preprocess.build_dataset", __all__=[])
        found["FuxiCTR"] = partial(fuxictr_epoch, task, own_start, True)
        found["FuxiCTR, our batches"] = partial(fuxictr_epoch, task, own_start, False)
    return found


def peers_section(options: argparse.Namespace, folder: Path) -> None:
    print(
        "\npeers: Criteo's format, MLP 32-16 on 39 tables of width 8, batch 4096, Adam 1e-3, one epoch; wanted: none is faster"
    )
    start = (
        "Each draws its fresh weights in its own way."
        if options.own_start
        else "All begin with the same fresh weights."
    )
    print(f"  {start} DeepCTR-Torch sums the loss over a batch, the others take its mean. FuxiCTR")
    print(
        "  clips gradients to a norm of 10 and saves the best weights to a file. Ours has one table for all fields, with"
    )
    print("  sparse gradients where it is large; `dense` is without them.")
    for min_count, ids in ((1, "all ids"), (10, "ids that ten train rows have")):
        task = criteo(options, folder, min_count)
        peers = peers_of(task, options.own_start)
        print(
            f"\n  {ids}: {sum(column.categories for column in task.columns):,}; {len(task.train):,} train rows"
        )
        ours = partial(trained, task, NETWORK, BATCH)
        show(
            {"torchleap": ours, "torchleap, dense": partial(ours, sparse=False), **peers},
            len(task.train),
            options.repeats,
        )
    if len(peers) < 3:
        print(
            "  left out, as they are not installed: DeepCTR-Torch or FuxiCTR. How to get them: --help, and then --peers"
        )


# The gates


def gates_section(options: argparse.Namespace, folder: Path) -> None:
    print(
        "\ngates: LeAP with gates on the model's own batches, batch 4096, one epoch; wanted: at most 1.2 x the time without"
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
        plain, gated = (
            partial(trained, task, network, BATCH),
            partial(searched, task, network, BATCH, LeAPMethod(gates_on="train")),
        )
        show(
            {"without gates": plain, "LeAP": gated}, len(task.train), options.repeats, warm_up=True
        )


def options_given() -> argparse.Namespace:
    data = os.environ.get("TORCHLEAP_DATA")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default=",".join(SECTIONS), help="some of the sections, with commas between them"
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
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(SECTIONS)
    if unknown or options.repeats < 1:
        parser.error(f"--only takes {', '.join(SECTIONS)}, and --repeats at least 1.")
    return options


def machine() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [
            line.split(":")[1].strip()
            for line in info.read_text().splitlines()
            if "model name" in line
        ]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    options = options_given()
    if options.peers:
        sys.path.append(
            str(options.peers)
        )  # at the end: torch and what is here already stay the same for all
    mixes = choose(torch.zeros(2, 2))  # without the native kernel all figures with gates are others
    print(
        f"{machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads; torchleap mixes by {mixes!r}"
    )
    sections = {"reference": reference_section, "peers": peers_section, "gates": gates_section}
    with tempfile.TemporaryDirectory() as name:
        for section in options.only.split(","):
            sections[section](options, Path(name))


if __name__ == "__main__":
    main()
