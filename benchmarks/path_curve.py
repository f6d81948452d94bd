"""The curve of the path against retrained models: how true the metric at each point is.

    TORCHLEAP_DATA=... python benchmarks/path_curve.py --data census truth@0-2 --out DIR

At six numbers of fields the metric of the adapted model on the path, which is measured on
validation rows, stands beside that of fresh models on the same fields: the mean over the seeds, and
the standard deviation between them. The path is true where the mean absolute difference is not
above this noise. Above 0, the path's model is better than the retrained ones. The gates learn from
the same validation rows, so the test metric of the retrained models has the last word.
"""

import statistics

from _shared import (
    Found,
    Laboratory,
    Retrained,
    laboratory,
    nearest_points,
    parser_of,
    spread_of,
    spread_text,
)

from torchleap._common.text import table
from torchleap.methods import LeAPMethod
from torchleap.selection import PathPoint

SHARES = (1.0, 0.75, 0.5, 0.25, 0.15, 0.1)  # of the fields


def budgets(found: Found) -> list[PathPoint]:
    """Return the points of a path nearest to each share of the fields."""
    count = len(found.data.task.fields)
    return nearest_points(found.points, [share * count for share in SHARES])


def curve(found: Found, retrained: Retrained) -> str:
    """Return the table of a search, with the mean difference and the noise below it."""
    metric = found.data.headline
    name = found.data.name
    head = ["fields", "dims", "path, valid", "retrained, valid", "difference", "retrained, test"]
    head += ["path, loss", "retrained, loss"]
    rows = []
    differences = []
    spreads = []
    for point in budgets(found):
        valid = retrained.values(name, point.kept, f"valid_{metric.name}")
        test = retrained.values(name, point.kept, f"test_{metric.name}")
        losses = retrained.values(name, point.kept, "valid_log_loss")
        difference = metric.gain(point.metric) - metric.gain(statistics.mean(valid))
        differences.append(abs(difference))
        spreads.append(spread_of(valid))
        cells = [str(len(point.kept)), str(point.dims), f"{point.metric:.4f}"]
        cells += [spread_text(valid), f"{difference:+.4f}", spread_text(test)]
        rows.append([*cells, f"{point.loss:.4f}", spread_text(losses)])
    title = f"{name}, search seed {found.seed}, {metric.title}; {found.seconds:.0f} seconds"
    mean = statistics.mean(differences)
    noise = statistics.mean(spreads)
    last = f"mean absolute difference {mean:.4f}, mean standard deviation of seeds {noise:.4f}"
    return "\n".join([title, table(head, rows), last, ""])


def report(lab: Laboratory) -> str:
    """Run what is not in the store, and return the tables."""
    searches = list(lab.search().values())
    wanted = []
    for found in searches:
        wanted += [(found.data.name, point.kept) for point in budgets(found)]
    retrained = lab.retrain(wanted)
    return "\n".join(curve(found, retrained) for found in searches)


def main() -> None:
    """Print the curves."""
    parser = parser_of(__doc__, ["census", "truth@0-2", "industrial@0"])
    print(report(laboratory(parser.parse_args(), {"leap": LeAPMethod()})))


if __name__ == "__main__":
    main()
