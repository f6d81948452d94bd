"""The cost of pruning in quality, on synthetic data with known ground truth.

    python benchmarks/pruning.py [--seeds 5] [--steps 1500]    # half a minute per seed on two cores

Each seed is another world and another training run with LeAP; the fields whose gates LeAP closed
are cut out. `means` folds the means of the dropped fields into the weights, `zeros` sets them to 0,
`masked` only masks them in the full model, `tuned` continues with the optimizer's state on a tenth
as many rows as the training had. Numbers are changes of the AUC on 100,000 unseen rows.
"""

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as criterion

import torchleap as tl

BATCH = 256
COLUMNS = ("full", "masked", "means", "zeros", "tuned")
# Student's t by degrees of freedom, counted from 1
T_95 = dict(enumerate((12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26), start=1))


def one_world(seed: int, steps: int) -> tuple[dict[str, float], int]:
    """Return the AUC of each version, and how many dimensions were removed."""
    truth = tl.data.KnownTruth(seed=seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(truth.fields.dims, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    plugin = tl.attach(model, truth.fields, alpha=1e-3, warmup=steps // 2, seed=seed)
    optimizer = torch.optim.Adam(plugin.parameter_groups(gate_lr=1e-2), lr=3e-3)
    for step in range(steps):
        x, y = truth.draw(BATCH, seed=step)
        optimizer.zero_grad()
        (criterion(model(x)[:, 0], y) + plugin.penalty()).backward()
        optimizer.step()
    valid_auc = auc_on(*truth.draw(20_000, seed=1_000_000))
    auc = auc_on(*truth.draw(100_000, seed=2_000_000))
    selection = plugin.select()
    found = {"full": auc(model)}
    with plugin.masked(selection):
        found["masked"] = auc(model)
    small = plugin.prune(selection)
    found["means"] = auc(small)
    found["zeros"] = auc(plugin.prune(selection, fill="zero"))
    tl.finetune(
        small,
        (truth.draw(BATCH, seed=3_000_000 + step) for step in range(steps // 10)),
        loss=lambda model, batch: criterion(model(batch[0])[:, 0], batch[1]),
        optimizer=tl.carry_over(optimizer, model, small),
        validate=valid_auc,
        every=max(1, steps // 60),
    )
    found["tuned"] = auc(small)
    return found, truth.fields.dims - selection.dims


def auc_on(x: torch.Tensor, y: torch.Tensor) -> Callable[[nn.Module], float]:
    """Return the AUC on some rows as a function of the model."""

    @torch.no_grad()
    def auc(model: nn.Module) -> float:
        return tl.auc(y, model.eval()(x)[:, 0])

    return auc


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    print(f"{'seed':>12}{'dims cut':>10}" + "".join(f"{name:>20}" for name in COLUMNS))
    changes: dict[str, list[float]] = {name: [] for name in COLUMNS[1:]}
    for seed in range(options.seeds):
        found, cut = one_world(seed, options.steps)
        for name, values in changes.items():
            values.append(found[name] - found["full"])
        shown = "".join(f"{changes[name][-1]:>+20.5f}" for name in COLUMNS[1:])
        print(f"{seed:>12}{cut:>10,}{found['full']:>20.5f}{shown}", flush=True)
    if options.seeds > 1:
        half = T_95.get(options.seeds - 1, 1.96) / options.seeds**0.5
        cells = [
            f"{statistics.mean(v):+.5f} +-{half * statistics.stdev(v):.5f}"
            for v in changes.values()
        ]
        print(f"{'mean, 95 %':>12}{'':>30}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
