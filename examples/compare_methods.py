"""All methods on synthetic data with known ground truth: useful fields found, AUC kept, seconds.

python examples/compare_methods.py [--methods leap,permutation] [--rows 30000]

It takes some minutes on two cores.
"""

import argparse

import torch

import torchleap as tl

WIDTHS = (1, 8, 32)


def known_truth(rows: int, seed: int) -> tuple[tl.data.Task, tl.data.KnownTruth]:
    """Return a task of useful, useless, redundant and constant fields, dense and sparse."""
    truth = tl.data.KnownTruth(widths=WIDTHS, pair_widths=(1,), active=0.05, seed=seed)
    return tl.data.known_truth(truth, rows), truth


def main() -> None:
    """Compare the methods and print a table."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--methods", default=",".join(tl.methods.METHODS))
    options.add_argument("--rows", type=int, default=30_000)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    torch.manual_seed(given.seed)
    task, truth = known_truth(given.rows, given.seed)
    training = tl.Training(batch=256, lr=2e-3, epochs=12, patience=4)
    count = len(truth.useful)
    useless = len(truth.useless)
    print(f"{task!r}; {count} fields are useful, {useless} useless, the others redundant")
    columns = f"{'useful':>8}{'useless':>9}{'test AUC':>10}{'seconds':>9}"
    print(f"{'method':<20}{columns}   (of the best {count})")
    for name in given.methods.split(","):
        result = tl.search(task, model="mlp", method=name, training=training, seed=given.seed)
        best = sorted(result.scores, key=lambda field: -result.scores[field])[:count]
        kept = task if name == "none" else task.only(best)
        after = tl.retrain(kept, model="mlp", training=training, seed=given.seed)
        useful = len(set(best) & set(truth.useful))
        useless = len(set(best) & set(truth.useless))
        found = f"{useful:>5}/{count}{useless:>9}"
        if name == "none":
            found = f"{'-':>8}{'-':>9}"
        auc = after.metrics["test_auc"]
        print(f"{name:<20}{found}{auc:>10.4f}{result.seconds:>9.1f}", flush=True)


if __name__ == "__main__":
    main()
