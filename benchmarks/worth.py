"""How true the worth of a field is: against models that are retrained without it.

    TORCHLEAP_DATA=... python benchmarks/worth.py --data census truth@0-2 --seeds 2 --out DIR

The true cost of a field is the mean loss of retrained models without it minus that with it, in two
ways. Both are on the validation rows, on which worth is measured, and on the test rows:

alone    all fields but this one, against all fields ("leave one out");
path     the fields that were open after this one closed on the path, against those before. This is
         what the worth of a path says. For the last field, what is left is a constant prediction.

Trainings with the same seed have the same order of rows and are compared with each other; their
weights are drawn from the same seed, but in other shapes. The noise of a difference is its
standard deviation over the seeds, as the root mean square over all fields of a set, since two
seeds say little about a single field.

"in interval" is the share of fields whose true cost lies in the worth's own 95 % interval.
"with noise" widens the interval by the noise of the true cost: the two differ by at most 1.96
times the root of the sum of both squared standard errors. An honest interval has 95 % there.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from _shared import Found, Laboratory, Retrained, laboratory, parser_of

from torchleap._common.text import table
from torchleap.bench.sets import DataSet
from torchleap.bench.statistics import ranks
from torchleap.data.task import Rows
from torchleap.methods import LeAPMethod, Permutation
from torchleap.selection import Path, Worth
from torchleap.selection.path import NORMAL_95

Kept = tuple[str, ...]
PARTS = ("valid", "test")
METHODS = {"leap": LeAPMethod(), "permutation": Permutation()}


@dataclass(frozen=True)
class Cost:
    """What retrained models pay for a field, by seed.

    Attributes:
        valid: The rise of the validation loss without the field.
        test: The rise of the test loss.
    """

    valid: tuple[float, ...]
    test: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean on the validation rows."""
        return statistics.mean(self.valid)


Costs = Mapping[str, Cost]  # by field


def leave_one_out(names: Sequence[str]) -> dict[str, tuple[Kept, Kept]]:
    """Return for each field all fields, and all but this one.

    >>> leave_one_out(["a", "b"])["a"]
    (('a', 'b'), ('b',))
    """
    found = {}
    for name in names:
        found[name] = (tuple(names), tuple(other for other in names if other != name))
    return found


def nested(path: Path, names: Sequence[str]) -> dict[str, tuple[Kept, Kept]]:
    """Return for each field the fields open before it closed on the path, and after.

    Fields that are open at the last point have no place, unless it is a single one.
    """
    order = [name for point in path.points for name in point.closed]
    if len(path.points[-1].kept) == 1:
        order += path.points[-1].kept
    found = {}
    before = tuple(names)
    for closing in order:
        after = tuple(name for name in before if name != closing)
        found[closing] = (before, after)
        before = after
    return found


def constant_loss(data: DataSet, rows: Rows) -> float:
    """Return the loss of the constant prediction, the mean label of the train rows."""
    mean = data.task.train.label.double().mean()
    outputs = torch.logit(mean).expand(len(rows))
    return float(data.task.objective.loss(outputs, rows.label.double()))


def costs_of(
    sets: Mapping[str, tuple[Kept, Kept]], data: DataSet, retrained: Retrained
) -> dict[str, Cost]:
    """Return the cost of each field: the loss after it is left out minus the loss before."""
    found = {}
    for name, (before, after) in sets.items():
        rises = []
        for part in PARTS:
            with_field = losses_of(before, data, part, retrained)
            without = losses_of(after, data, part, retrained)
            rises.append(tuple(a - b for a, b in zip(without, with_field, strict=True)))
        found[name] = Cost(*rises)
    return found


def losses_of(kept: Kept, data: DataSet, part: str, retrained: Retrained) -> list[float]:
    """Return the loss of the models of some fields by seed; without any, of a constant."""
    if not kept:
        rows = getattr(data.task, part)
        return [constant_loss(data, rows)] * retrained.seeds
    return retrained.values(data.name, kept, f"{part}_log_loss")


def noise_of(costs: Costs) -> float:
    """Return the standard error of a mean cost, from the root mean square over the fields.

    >>> round(noise_of({"a": Cost((0.1, 0.3), ()), "b": Cost((0.2, 0.2), ())}), 4)
    0.0707
    """
    seeds = len(next(iter(costs.values())).valid)
    if seeds < 2:
        return 0.0
    variance = statistics.mean(statistics.variance(cost.valid) for cost in costs.values())
    return math.sqrt(variance / seeds)


def covered(worth: Mapping[str, Worth], costs: Costs, noise: float) -> float:
    """Return the share of fields whose worth and true cost agree within 95 %.

    Args:
        worth: The worth of each field, with its interval.
        costs: The true costs.
        noise: The standard error of a true cost; 0 asks for the worth's own interval.
    """
    agree = []
    for name, cost in costs.items():
        error = math.hypot(worth[name].error, noise)
        agree.append(abs(worth[name].nats - cost.mean) <= NORMAL_95 * error)
    return sum(agree) / len(agree)


def rank_correlation(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Return Spearman's correlation over the fields of the second; NaN if one is constant.

    >>> rank_correlation({"a": 1.0, "b": 2.0, "c": 9.0}, {"a": 0.1, "b": 0.4, "c": 0.2})
    0.5
    """
    own = ranks({name: first[name] for name in second})
    other = ranks(second)
    if min(len(set(own.values())), len(set(other.values()))) < 2:
        return math.nan
    return statistics.correlation(list(own.values()), [other[name] for name in own])


def summary(method: str, way: str, worth: Mapping[str, Worth], costs: Costs) -> list[str]:
    """Return a line: how well the worth of a method agrees with the true costs of one way."""
    noise = noise_of(costs)
    nats = {name: one.nats for name, one in worth.items()}
    differences = [nats[name] - cost.mean for name, cost in costs.items()]
    valid = rank_correlation(nats, {name: cost.mean for name, cost in costs.items()})
    test = rank_correlation(nats, {name: statistics.mean(c.test) for name, c in costs.items()})
    return [
        f"{method}, {way}",
        str(len(costs)),
        f"{valid:.3f}",
        f"{test:.3f}",
        f"{covered(worth, costs, 0.0):.0%}",
        f"{covered(worth, costs, noise):.0%}",
        f"{statistics.mean(differences):+.5f}",
        f"{statistics.mean(map(abs, differences)):.5f}",
        f"{noise:.5f}",
    ]


SUMMARY = (
    "worth of, true cost",
    "fields",
    "Spearman valid",
    "Spearman test",
    "in interval",
    "with noise",
    "mean difference",
    "mean |difference|",
    "noise",
)


def fields_table(
    leap: Mapping[str, Worth], permutation: Mapping[str, Worth], alone: Costs, path: Costs
) -> str:
    """Return a line for each field, the highest worth first."""
    head = ["field", "worth", "95 % interval"]
    head += ["path valid", "path test", "alone valid", "alone test", "permutation"]
    rows = []
    for name in sorted(leap, key=lambda one: -leap[one].nats):
        own = leap[name]
        cells = [name, f"{own.nats:.5f}", f"{own.low:.5f} to {own.high:.5f}"]
        for costs in (path, alone):
            cells += _cost_cells(costs.get(name))
        rows.append([*cells, f"{permutation[name].nats:.5f}"])
    return table(head, rows)


def _cost_cells(cost: Cost | None) -> list[str]:
    if cost is None:
        return ["-", "-"]
    return [f"{statistics.mean(cost.valid):.5f}", f"{statistics.mean(cost.test):.5f}"]


def report(lab: Laboratory) -> str:
    """Run what is not in the store, and return the tables."""
    searches = lab.search()
    wanted = []
    for found in searches.values():
        for before, after in sets_of(found).values():
            wanted += [(found.data.name, kept) for kept in (before, after) if kept]
    retrained = lab.retrain(wanted)
    lines = []
    for name, data in lab.data.items():
        alone = costs_of(leave_one_out(data.task.fields.names), data, retrained)
        rows = []
        for seed in range(lab.grid.search_seeds):
            leap = searches[name, "leap", seed]
            permutation = searches[name, "permutation", seed]
            worths = {"leap": leap.path.worth, "permutation": permutation.path.worth}
            on_path = costs_of(nested(leap.path, data.task.fields.names), data, retrained)
            lines += [f"{name}, search seed {seed}: nats per row"]
            lines += [fields_table(worths["leap"], worths["permutation"], alone, on_path), ""]
            rows.append(summary("leap", "path", worths["leap"], on_path))
            rows.append(summary("leap", "alone", worths["leap"], alone))
            rows.append(summary("permutation", "alone", worths["permutation"], alone))
        seeds = lab.grid.retrain_seeds
        lines += [f"{name}: worth against {seeds} retrained models", table(SUMMARY, rows), ""]
    return "\n".join(lines)


def sets_of(found: Found) -> dict[str, tuple[Kept, Kept]]:
    """Return the sets to train on for a search: those of its path, or else all but each one."""
    names = found.data.task.fields.names
    if found.path is not None and found.path.points:
        return nested(found.path, names)
    return leave_one_out(names)


def main() -> None:
    """Print how true the worth is."""
    parser = parser_of(__doc__, ["census", "truth@0-2"])
    print(report(laboratory(parser.parse_args(), METHODS)))


if __name__ == "__main__":
    main()
