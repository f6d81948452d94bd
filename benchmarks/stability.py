"""Stability: what replicas cost beside a search, and what they say about other searches.

    python benchmarks/stability.py --worlds 8 --others 4

For each known-truth world of `decoys.py` one search makes 8 replicas, and other searches have
other seeds: another order of the rows and another initialisation, on the same split. The fields of
all worlds are grouped by how many replicas keep them; the table shows how often the other searches
keep the fields of each group, and how often the search itself does.

"ratio" is the processor time of searches with replicas over that of the same ones without.
"""

import argparse
import time
from collections.abc import Mapping

import torch
from decoys import TRAINING, world

import torchleap as tl
from torchleap._common.text import table
from torchleap.data.synthetic.truth import known_truth
from torchleap.data.task import Task
from torchleap.pipeline.search import SearchResult

GROUPS = {"8 of 8": (8, 8), "5 to 7": (5, 7), "2 to 4": (2, 4), "1": (1, 1), "0 of 8": (0, 0)}


def searched(task: Task, seed: int, replicas: int) -> tuple[SearchResult, float]:
    """Return a search, and the seconds of the processor that it took."""
    started = time.process_time()
    result = tl.search(task, model="mlp", training=TRAINING, seed=seed, replicas=replicas)
    return result, time.process_time() - started


def summary(found: Mapping[str, list[tuple[bool, float]]]) -> str:
    """Return the table of the groups of fields."""
    rows = []
    for name, own in found.items():
        count = len(own)
        kept = sum(is_kept for is_kept, _ in own) / max(1, count)
        others = sum(share for _, share in own) / max(1, count)
        rows.append([name, str(count), f"{kept:.2f}", f"{others:.2f}"])
    return table(["kept in", "fields", "kept by the search", "by other searches"], rows)


def main() -> None:
    """Run all searches and print the table and the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=8)
    parser.add_argument("--others", type=int, default=4, help="searches with other seeds")
    parser.add_argument("--rows", type=int, default=12_000, help="rows of each world")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[tuple[bool, float]]] = {name: [] for name in GROUPS}
    with_replicas = 0.0
    without = 0.0
    searched(known_truth(world(0), given.rows), 0, 0)  # the first one also loads libraries
    for number in range(given.worlds):
        task = known_truth(world(number), given.rows)
        result, seconds = searched(task, number, 8)
        with_replicas += seconds
        without += searched(task, number, 0)[1]
        selection = result.select()
        others = []
        for other in range(given.others):
            again, _ = searched(task, 1000 + number * given.others + other, 0)
            others.append(set(again.select().kept))
        for name, count in zip(task.fields.names, selection.kept_in, strict=True):
            [group] = [key for key, (low, high) in GROUPS.items() if low <= count <= high]
            share = sum(name in kept for kept in others) / given.others
            found[group].append((name in selection.kept, share))
        print(f"world {number}: ratio so far {with_replicas / without:.2f}", flush=True)
    print(summary(found))
    print(f"ratio {with_replicas / without:.2f}")


if __name__ == "__main__":
    main()
