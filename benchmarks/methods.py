"""The cost of methods that examine a trained model, against their plain forms and other packages.

    python benchmarks/methods.py            # 512 fields: some twenty minutes on two cores
    python benchmarks/methods.py --quick    # 128 fields, one round: about a minute

The industrial log, up to 512 fields and 12,000 dimensions, and Wide & Deep 256-128-64, trained for
an epoch. All versions score the same model on the same validation rows with the same number of
repeats, one after the other in every round. Times are medians; a ratio is the median of the ratios
of each round.

(i) `textbook` is a full forward pass for each field and repeat, from embeddings that are looked up
once. captum and scikit-learn get the same embeddings; they pay for that pass, for gathering the
shuffled rows, and for their own work. captum is left out if it is not installed:
pip install --no-deps captum tqdm
(ii) SHARK row by row: `gradient` computes the gradient of the embeddings alone; `backward` is a
backward pass through the complete model with dense gradients of the tables, as in the public code.
Besides the log, 39 fields of ids, 8 wide, and layers of 32 and 16, the size of the public
benchmarks, with fresh weights.
(iii) LeAP's search and plain training are an epoch of all train rows each; permutation uses 1 % of
all rows.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import polars
import torch
from sklearn.inspection import permutation_importance
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from torchleap import models
from torchleap.data.task import Task
from torchleap.methods import Permutation, PressureMethod, Search, Shark
from torchleap.methods.shark import mean_input
from torchleap.models import Ranker
from torchleap.training.fit import Training

REPEATS = 2


class Trained:
    """A trained model and a sample of rows, looked up once for the other packages.

    Args:
        search: The search that trains the model.
        fraction: The fraction of the validation rows in the sample.
    """

    def __init__(self, search: Search, fraction: float) -> None:
        self.search = search
        self.model = search.model()
        search.fit(self.model)
        self.columns = [search.task.fields.columns(name) for name in search.task.fields.names]
        self.draw(fraction)

    @torch.no_grad()
    def draw(self, fraction: float) -> None:
        """Draw the rows as `Permutation` does, and look them up."""
        rows = self.search.task.valid
        self.method = Permutation(repeats=REPEATS, fraction=fraction)
        sample, self.orders = self.method.draw(len(rows), self.search.seed)
        batch = rows.all().take(sample)
        self.label = batch.label
        self.x = self.model.inputs(*batch.inputs)
        self.auc = tl.auc(self.label, self.model.net(self.x))

    def versions(self) -> dict[str, Callable[[], Tensor]]:
        """Return the versions that are installed, by name."""
        found = {"ours": self.ours, "textbook": self.textbook, "scikit-learn": self.scikit_learn}
        if find_spec("captum"):
            found["captum"] = self.captum
        return found

    @torch.no_grad()
    def ours(self) -> Tensor:
        """Return the falls as the library computes them."""
        return self.method.falls(self.search, self.model)

    @torch.no_grad()
    def textbook(self) -> Tensor:
        """Return the falls by a full pass for each field and repeat, with the same shuffles."""
        return torch.tensor(
            [[self._fall(columns, order) for order in self.orders] for columns in self.columns]
        )

    def _fall(self, columns: slice, order: Tensor) -> float:
        own = self.x[:, columns].clone()
        self.x[:, columns] = own[order]
        found = tl.auc(self.label, self.model.net(self.x))
        self.x[:, columns] = own
        return self.auc - found

    @torch.no_grad()
    def captum(self) -> Tensor:
        """Return the falls by captum, with blocks of columns for fields."""
        from captum.attr import FeaturePermutation

        # one output for all rows, so that a fall is that of the AUC
        method = FeaturePermutation(lambda x: torch.tensor([tl.auc(self.label, self.model.net(x))]))
        mask = self.search.column_field().unsqueeze(0)
        firsts = torch.tensor([columns.start for columns in self.columns])
        found = []
        for _ in range(REPEATS):
            by_column = method.attribute(self.x, feature_mask=mask).expand(1, -1)
            found.append(by_column[0, firsts])
        return torch.stack(found, dim=1)

    def scikit_learn(self) -> Tensor:
        """Return the falls by scikit-learn, see `Estimator`."""
        rows = np.repeat(np.arange(len(self.x))[:, None], len(self.columns), axis=1)
        found = permutation_importance(
            Estimator(self), rows, self.label.numpy(), n_repeats=REPEATS, random_state=0
        )
        return torch.from_numpy(found.importances)


class Estimator:
    """An estimator for scikit-learn, which shuffles single columns.

    X contains the number of the row that each field is taken from.
    """

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self.unshuffled = np.arange(len(trained.x))

    def fit(self, *_: Any) -> "Estimator":
        """Return itself: every estimator has this method."""
        return self

    @torch.no_grad()
    def score(self, rows: Any, label: Any) -> float:
        """Return the AUC; it gathers the shuffled field alone, as much work as the textbook's."""
        trained = self.trained
        saved = []
        for place in np.flatnonzero((rows != self.unshuffled[:, None]).any(0)):
            columns = trained.columns[place]
            saved.append((columns, trained.x[:, columns].clone()))
            trained.x[:, columns] = saved[-1][1][torch.from_numpy(rows[:, place].copy())]
        found = tl.auc(label, trained.model.net(trained.x))
        for columns, own in saved:
            trained.x[:, columns] = own
        return found


def measure(
    calls: Mapping[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return the seconds of each call in every round, and the results of the last round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    found: dict[str, Any] = {}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            found[name] = call()
            times[name].append(time.perf_counter() - start)
    return times, found


def ratio(slow: list[float], fast: list[float]) -> float:
    """Return the median of the ratios of each round."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def disagreement(ours: Tensor, theirs: Tensor) -> float:
    """Return the root mean square over fields of the difference of means, in standard errors.

    It is about 1 if only the shuffles differ.
    """
    error = (ours.var(1) + theirs.var(1)) / ours.shape[1]
    matters = error > 0
    square = (ours.mean(1) - theirs.mean(1)).square()
    return float((square[matters].sum() / error[matters].sum()).sqrt())


def permutation(trained: Trained, rounds: int) -> None:
    """Print the times of permutation, and how far the versions differ."""
    times, found = measure(trained.versions(), rounds)
    print(f"\n(i) permutation: {len(trained.x):,} rows, {REPEATS} repeats, AUC {trained.auc:.4f}")
    print(
        f"  {'version':<14}{'seconds':>9}{'ours is faster by':>19}"
        f"{'largest difference':>20}{'in standard errors':>20}"
    )
    for name, own in times.items():
        largest = float((found[name].mean(1) - found["ours"].mean(1)).abs().max())
        apart = "same shuffles"
        if name not in ("ours", "textbook"):
            apart = f"{disagreement(found['ours'], found[name]):.2f}"
        seconds = statistics.median(own)
        faster = ratio(own, times["ours"])
        print(f"  {name:<14}{seconds:>9.2f}{faster:>19.1f}{largest:>20.1e}{apart:>20}")
    if "captum" not in times:
        print("  captum is not installed: pip install --no-deps captum tqdm")


def public_task(rows: int) -> Task:
    """Return a task with 39 fields of ids, as wide as in the public benchmarks."""
    rng = np.random.default_rng(0)
    columns = {f"c{number}": {"kind": "categorical", "width": 8} for number in range(39)}
    frame = {
        "click": rng.integers(0, 2, rows),
        **{name: rng.integers(0, 5_000, rows) for name in columns},
    }
    return tl.data.read(polars.DataFrame(frame), label="click", split="order", columns=columns)


def row_by_row(
    search: Search, model: Ranker, mean: Tensor, rows: int, *, backward: bool = False
) -> Tensor:
    """Return SHARK's scores by their definition, one row at a time.

    The sum by field is one operation, so that it costs next to nothing.
    """
    batch = search.task.valid.all().take(slice(0, rows))
    field_of = search.column_field()
    total = torch.zeros(len(search.task.fields), dtype=torch.float64)
    by_row = (tensor.split(1) for tensor in (*batch.inputs, batch.label))
    for ids, numbers, label in zip(*by_row, strict=True):
        x = model.inputs(ids, numbers)
        if backward:
            model.zero_grad()
            x.retain_grad()
            binary_cross_entropy_with_logits(model.net(x), label).backward()
            gradient = x.grad
        else:
            x = x.detach().requires_grad_()
            loss = binary_cross_entropy_with_logits(model.net(x), label)
            (gradient,) = torch.autograd.grad(loss, x)
        by_column = ((mean - x.detach()) * gradient)[0].double()
        total += torch.zeros_like(total).index_add_(0, field_of, by_column).abs()
    return total / rows


def shark(name: str, search: Search, model: Ranker, rounds: int) -> None:
    """Print milliseconds per row, since the slow ways see fewer rows.

    The scores are compared on all rows, once.
    """
    mean = mean_input(search, model)
    rows = len(search.task.valid)
    dense = models.build(search.backbone, search.task, sparse=False).eval()
    dense.load_state_dict(model.state_dict())
    few = min(rows, 200)
    calls = {
        "ours": lambda: Shark().changes(search, model),
        "gradient": lambda: row_by_row(search, model, mean, few),
        "backward": lambda: row_by_row(search, dense, mean, few, backward=True),
    }
    measure(calls, 1)
    times, found = measure(calls, max(3, rounds))
    expected = row_by_row(search, model, mean, rows)
    apart = float((found["ours"] - expected).abs().max() / expected.max())
    by_row = {}
    for key, own in times.items():
        count = rows if key == "ours" else few
        by_row[key] = [seconds / count for seconds in own]
    print(f"  {name}: {rows:,} rows; largest difference {apart:.1e} of the largest score")
    for key, own in by_row.items():
        milliseconds = 1e3 * statistics.median(own)
        slower = ratio(own, by_row["ours"])
        print(f"    {key:<12}{milliseconds:>9.3f} ms per row{slower:>9.1f} times ours")


def against_leap(trained: Trained, training: Training, rounds: int) -> None:
    """Print the seconds of a LeAP search, and of permutation without and with training."""
    task = trained.search.task
    calls: dict[str, Callable[[], Any]] = {
        "LeAP": lambda: tl.search(
            task,
            model=trained.search.backbone,
            method=PressureMethod(gates_on="train"),
            training=training,
        ),
        "training": lambda: trained.search.fit(trained.search.model()),
        **trained.versions(),
    }
    del calls["scikit-learn"]
    times, _ = measure(calls, rounds)
    leap = times.pop("LeAP")
    alone = times.pop("training")
    print(
        f"\n(iii) {len(task.train):,} train rows: LeAP {statistics.median(leap):.1f} s, "
        f"training alone {statistics.median(alone):.1f} s; "
        f"permutation of {len(trained.x):,} rows, {REPEATS} repeats"
    )
    print(f"  {'version':<14}{'seconds':>9}{'in LeAPs':>10}{'with training':>15}{'in LeAPs':>10}")
    for name, own in times.items():
        both = [a + b for a, b in zip(own, alone, strict=True)]
        print(
            f"  {name:<14}{statistics.median(own):>9.2f}{ratio(own, leap):>10.2f}"
            f"{statistics.median(both):>15.2f}{ratio(both, leap):>10.2f}"
        )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true")
    options.add_argument("--only", default="permutation,shark,leap", help="some of these parts")
    options.add_argument("--rounds", type=int, help="3, or 1 with --quick")
    options.add_argument("--folder", help="where to keep the log; the user's cache if left out")
    chosen = options.parse_args()
    fields, dims, rows, rounds = 512, 12_000, 100_000, 3
    if chosen.quick:
        fields, dims, rows, rounds = 128, 3_000, 20_000, 1
    rounds = chosen.rounds or rounds
    task = tl.data.industrial(rows, fields=fields, dims=dims, folder=chosen.folder)
    training = Training(batch=1024, epochs=1)
    print(f"{task!r}, {torch.get_num_threads()} threads")
    search = Search(task, models.named("wide_deep"), training)
    trained = Trained(search, fraction=min(1.0, 500 / len(task.valid)))
    parts = chosen.only.split(",")
    if "permutation" in parts:
        permutation(trained, rounds)
    if "shark" in parts:
        print("\n(ii) SHARK")
        shark("the log", search, trained.model, rounds)
        public = Search(public_task(rows), models.benchmark("wide_deep"), training)
        shark("39 fields of ids", public, public.model(), rounds)
    if "leap" in parts:
        trained.draw(fraction=min(1.0, 0.01 * rows / len(task.valid)))
        against_leap(trained, training, rounds)


if __name__ == "__main__":
    main()
