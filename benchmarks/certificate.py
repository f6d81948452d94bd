"""How often a certificate is right: simulated pairs of models with a known true difference.

    python benchmarks/certificate.py                     all tables, 500 pairs per cell
    python benchmarks/certificate.py --only errors --rows 200000 --pairs 100
    python benchmarks/certificate.py --quick             a small version of each table, in seconds

Two models score the same rows. Given the label, the scores of both are normal and correlated, so
that the true AUC, GAUC and log loss of each follow from integrals; users (groups) have an effect
on the level of the scores and on the quality of each model. The margin is set equal to the true
loss, where "safe" is wrong and is hardest to avoid: it may be said in 5 % of the cases.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import torch

from torchleap._common.errors import MetricError, nearest
from torchleap._common.text import table
from torchleap.data.columns import Column, TaskColumn
from torchleap.evidence.certificate import Evidence, certificate_of
from torchleap.evidence.change import POWER, Change, change_of
from torchleap.evidence.slices import examine
from torchleap.objectives import METRICS, Predictions, objective_named

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]
BINARY = objective_named("binary")
NORMAL = NormalDist()
NODES = 80  # of the Gauss-Hermite quadrature of a log loss
ALLOWED = 0.05  # of wrong statements
QUALITY = (1.2, 1.15)  # the distance between the classes, of the full and of the smaller model
CORRELATION = 0.9  # of the scores of both models, given the label and the user
LEVEL = 0.5  # the deviation of a user's effect on all scores
TASTE = 0.3  # the deviation of a user's effect on the quality of a model
SHARED_TASTE = 0.8  # the correlation of that effect between the models
SLICE_MARGIN = 0.001
PLANTED = "field_0 = 12"


@dataclass(frozen=True)
class Case:
    """What is simulated.

    Attributes:
        metric: The name of the metric.
        rows: The number of rows.
        rate: The fraction of positive rows.
        groups: "none"; "of 50" rows each; "20" of them, of very unequal sizes; "skewed", of which
            few have many rows.
        quality: The distance between the classes for each model, in standard deviations.
    """

    metric: str
    rows: int
    rate: float
    groups: str = "none"
    quality: tuple[float, float] = QUALITY

    @property
    def level(self) -> float:
        """Return the deviation of a user's effect on scores."""
        return 0.0 if self.groups == "none" else LEVEL

    @property
    def taste(self) -> float:
        """Return the deviation of a user's effect on quality."""
        return 0.0 if self.groups == "none" else TASTE

    def true_gain(self) -> float:
        """Return the gain of the second model in the population."""
        first, second = (self._value(quality) for quality in self.quality)
        return METRICS[self.metric].gain(second - first)

    def _value(self, quality: float) -> float:
        """Return the metric of a model in the population."""
        if self.metric == "gauc":
            return NORMAL.cdf(quality / math.sqrt(2 + self.taste**2))
        if self.metric == "auc":
            return NORMAL.cdf(quality / math.sqrt(2 + 2 * self.level**2 + self.taste**2))
        points, weights = np.polynomial.hermite_e.hermegauss(NODES)
        weights = weights / weights.sum()
        spread = math.sqrt(1 + self.level**2)
        spread_positive = math.sqrt(1 + self.level**2 + self.taste**2)
        negative = log_odds(spread * points, quality, self.rate)
        positive = log_odds(quality + spread_positive * points, quality, self.rate)
        loss = (1 - self.rate) * np.logaddexp(0, negative) + self.rate * np.logaddexp(0, -positive)
        return float(weights @ loss)

    def draw(self, rng: np.random.Generator) -> tuple[Predictions, Predictions]:
        """Return the predictions of both models for rows at random."""
        label = rng.random(self.rows) < self.rate
        group = self._group(rng)
        noise = rng.standard_normal((3, self.rows))
        scores = math.sqrt(CORRELATION) * noise[:1] + math.sqrt(1 - CORRELATION) * noise[1:]
        distance = np.repeat(np.array(self.quality)[:, None], self.rows, axis=1)
        if group is not None:
            count = int(group.max()) + 1
            scores = scores + (self.level * rng.standard_normal(count))[group]
            taste = rng.standard_normal((3, count))
            own = math.sqrt(SHARED_TASTE) * taste[:1] + math.sqrt(1 - SHARED_TASTE) * taste[1:]
            distance = distance + self.taste * own[:, group]
        scores = scores + distance * label
        return self._predictions(label, scores[0], group, 0), self._predictions(
            label, scores[1], group, 1
        )

    def _group(self, rng: np.random.Generator) -> npt.NDArray[np.int64] | None:
        """Return the user of each row."""
        if self.groups == "none":
            return None
        if self.groups == "of 50":
            return np.arange(self.rows) // 50
        count = 20 if self.groups == "20" else self.rows // 50
        weights = rng.pareto(1.5, count) + 0.2
        return rng.choice(count, self.rows, p=weights / weights.sum())

    def _predictions(
        self,
        label: npt.NDArray[np.bool_],
        scores: Floats,
        group: npt.NDArray[np.int64] | None,
        model: int,
    ) -> Predictions:
        outputs = log_odds(scores, self.quality[model], self.rate)
        groups = None if group is None else torch.from_numpy(group)
        return BINARY.predictions(
            torch.from_numpy(label.astype(np.float32)), torch.from_numpy(outputs), groups
        )


def log_odds(scores: Floats, quality: float, rate: float) -> Floats:
    """Return the log odds of scores that are normal in each class."""
    found: Floats = math.log(rate / (1 - rate)) + quality * scores - quality**2 / 2
    return found


def change_in(case: Case, rng: np.random.Generator) -> tuple[Change, Evidence]:
    """Return the change of new rows, and how many they are."""
    before, after = case.draw(rng)
    evidence = Evidence(rows=case.rows, support=BINARY.support(before.label))
    return change_of(METRICS[case.metric], before, after), evidence


def limit(pairs: int) -> float:
    """Return the rate of wrong statements that chance alone exceeds in 1 of 1,000 cells.

    >>> round(limit(500), 3)
    0.08
    """
    return ALLOWED + NORMAL.inv_cdf(0.999) * math.sqrt(ALLOWED * (1 - ALLOWED) / pairs)


def errors(cases: Iterable[Case], pairs: int) -> str:
    """Return how often "safe" and "not safe" are said of a loss that equals the margin."""
    lines = []
    for case in cases:
        show_progress(f"errors: {case}")
        lines.append(_errors_of(case, pairs))
    head = ["metric", "groups", "rows", "positive", "true loss", "safe", "not safe", "error/true"]
    title = (
        f"Wrong statements where the true loss equals the margin, {pairs} pairs per line "
        f"(allowed {ALLOWED:.0%}; ! is above {limit(pairs):.1%}, which is beyond chance)"
    )
    return f"{title}\n{table(head, lines)}"


def _errors_of(case: Case, pairs: int) -> list[str]:
    """Return the line of a case."""
    rng = np.random.default_rng(0)
    margin = -case.true_gain()
    verdicts = []
    changes = []
    while len(verdicts) < pairs:
        try:
            change, evidence = change_in(case, rng)
        except MetricError:  # no row, or no user, with both classes
            continue
        verdicts.append(certificate_of(change, margin, evidence).verdict)
        changes.append(change)
    wrong = verdicts.count("safe") / pairs
    squares = statistics.fmean(one.error**2 for one in changes)
    deviation = statistics.stdev(one.gain for one in changes)
    return [
        case.metric,
        case.groups,
        f"{case.rows:,}",
        f"{case.rate:.1%}",
        f"{margin:.5f}",
        f"{wrong:.1%}" + (" !" if wrong > limit(pairs) else ""),
        f"{verdicts.count('not safe') / pairs:.1%}",
        f"{math.sqrt(squares) / deviation:.2f}",
    ]


def power(cases: Iterable[Case], pairs: int, margin_errors: float) -> str:
    """Return how often equally good models are called safe with the rows that a pilot asks for.

    Args:
        cases: The pilots.
        pairs: The pairs of models.
        margin_errors: The margin in standard errors of the pilot: below 2.5 it needs more rows.
    """
    lines = []
    for case in cases:
        show_progress(f"power: {case}")
        even = replace(case, quality=(QUALITY[0], QUALITY[0]))
        rng = np.random.default_rng(1)
        pilots = [change_in(even, rng)[0] for _ in range(max(20, pairs // 10))]
        margin = margin_errors * statistics.fmean(one.row_error for one in pilots)
        needed = [one.units_needed(margin) / one.units * even.rows for one in pilots]
        said = statistics.median(needed)
        found = {}
        for factor in (0.5, 0.85, 1.0, 1.15, 2.0):
            many = replace(even, rows=round(factor * said))
            changes = [change_in(many, rng)[0] for _ in range(pairs)]
            found[factor] = sum(one.lowest() > -margin for one in changes) / pairs
        true = said * _factor_of(found)
        lines.append(
            [
                case.metric,
                case.groups,
                f"{case.rate:.1%}",
                f"{case.rows:,}",
                f"{said:,.0f}",
                *(f"{rate:.0%}" for rate in found.values()),
                f"{true:,.0f}",
                f"{said / true - 1:+.0%}",
            ]
        )
    head = ["metric", "groups", "positive", "pilot rows", "rows said"]
    head += ["0.5x", "0.85x", "1x", "1.15x", "2x", "rows for 80 %", "said is off by"]
    return f"Power for models that are equally good, {pairs} pairs per cell\n{table(head, lines)}"


def _factor_of(found: dict[float, float]) -> float:
    """Return the factor of the rows at which the power is 80 %, by a probit line through all."""
    roots = [math.sqrt(factor) for factor in found]
    probits = [NORMAL.inv_cdf(min(max(rate, 0.005), 0.995)) for rate in found.values()]
    slope, start = statistics.linear_regression(roots, probits)
    return ((NORMAL.inv_cdf(POWER) - start) / slope) ** 2


def widths(cases: Iterable[Case], pairs: int) -> str:
    """Return by how much twice the rows reduce the squared width of the interval."""
    lines = []
    for case in cases:
        show_progress(f"widths: {case}")
        rng = np.random.default_rng(2)
        squares = []
        for rows in (case.rows, 2 * case.rows):
            own = replace(case, rows=rows)
            intervals = [change_in(own, rng)[0].interval() for _ in range(pairs)]
            squares.append(statistics.fmean((high - low) ** 2 for low, high in intervals))
        cells = [case.metric, case.groups, f"{case.rows:,}", f"{case.rate:.1%}"]
        lines.append([*cells, f"{squares[1] / squares[0]:.3f}"])
    head = ["metric", "groups", "rows", "positive", "squared width at 2x rows"]
    return f"The interval with twice the rows, as a fraction\n{table(head, lines)}"


def seconds(rows: int) -> str:
    """Return the time of the statistics of one certificate."""
    lines = []
    for metric, groups in (("auc", "none"), ("log_loss", "none"), ("gauc", "of 50")):
        show_progress(f"seconds: {metric}")
        before, after = Case(metric, rows, 0.05, groups).draw(np.random.default_rng(3))
        started, used = time.perf_counter(), time.process_time()
        change = change_of(METRICS[metric], before, after)
        certificate_of(change, 0.001, Evidence(rows, BINARY.support(before.label)))
        spent = [time.perf_counter() - started, time.process_time() - used]
        lines.append([metric, groups, f"{rows:,}", *(f"{one:.2f}" for one in spent)])
    head = ["metric", "groups", "rows", "seconds", "of one core"]
    return f"Seconds of a certificate's statistics\n{table(head, lines)}"


def bootstrap(rows: int, pairs: int, resamples: int) -> str:
    """Return the standard errors beside those of rows, or users, that are drawn again."""
    lines = []
    views = [("auc", "none"), ("log_loss", "none"), ("gauc", "of 50"), ("auc", "of 50")]
    for metric, groups in views:
        show_progress(f"bootstrap: {metric}")
        rng = np.random.default_rng(4)
        ratios = []
        for _ in range(pairs):
            before, after = Case(metric, rows, 0.2, groups).draw(rng)
            own = change_of(METRICS[metric], before, after).error
            gains = [_resampled(metric, before, after, rng) for _ in range(resamples)]
            ratios.append(own / statistics.stdev(gains))
        mean = statistics.fmean(ratios)
        cells = [metric, groups, f"{rows:,}", str(resamples), f"{mean:.3f}"]
        lines.append([*cells, f"{statistics.stdev(ratios):.3f}"])
    head = ["metric", "groups", "rows", "resamples", "ours / bootstrap", "deviation"]
    return f"Standard errors beside a naive bootstrap, {pairs} data sets\n{table(head, lines)}"


def _resampled(
    metric: str, before: Predictions, after: Predictions, rng: np.random.Generator
) -> float:
    """Return the gain in rows, or groups, that are drawn again with replacement."""
    rows = len(before.label)
    if before.group is None:
        numbers = rng.integers(0, rows, rows)
        group = None
    else:
        members = before.group.numpy()
        count = int(members.max()) + 1
        parts = [np.flatnonzero(members == one) for one in rng.integers(0, count, count)]
        numbers = np.concatenate(parts)
        group = torch.from_numpy(np.repeat(np.arange(count), [len(part) for part in parts]))
    picked = torch.from_numpy(numbers)
    values = []
    for one in (before, after):
        drawn = BINARY.predictions(one.label[picked], one.output[picked], group)
        values.append(METRICS[metric].compute(drawn))
    return METRICS[metric].gain(values[1] - values[0])


@dataclass(frozen=True)
class Coded:
    """Rows with categorical fields at random, in place of the test rows of a task.

    Attributes:
        task: Has the columns.
        values: The ids of each column by name, (rows, 1).
    """

    task: SimpleNamespace
    values: dict[str, Ids]

    @staticmethod
    def of(rows: int, fields: int, rng: np.random.Generator) -> "Coded":
        """Return rows with some fields of eleven values, from frequent to rare."""
        columns = []
        values = {}
        facts = {"width": 4, "slots": 1, "categories": 13, "missing": 0.0, "common": 0.35}
        for number in range(fields):
            name = f"field_{number}"
            ids = np.minimum(rng.geometric(0.35, rows) + 1, 12).astype(np.int32)
            values[name] = ids[:, None]
            columns.append(TaskColumn(column=Column(name, "categorical"), file="", **facts))
        names = [str(number) for number in range(2, 13)]
        task = SimpleNamespace(columns=tuple(columns), roles={}, vocabulary=lambda name: names)
        return Coded(task, values)

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def column(self, name: str) -> Ids:
        """Return the ids of a column, (rows, 1)."""
        return self.values[name]


def slice_errors(rows: int, fields: int, runs: int) -> str:
    """Return how often a planted damage of 0.02 AUC in 2 % of the rows is found, or a false one."""
    found = false = 0
    measured = []
    spent = []
    for run in range(runs):
        show_progress(f"slices: run {run + 1} of {runs}")
        rng = np.random.default_rng(100 + run)
        coded = Coded.of(rows, fields, rng)
        minority = rng.random(rows) < 0.02
        ids = coded.values["field_0"]
        ids[ids == 12] = 2
        ids[minority] = 12
        for damage in (0.0, 0.02):
            pair = damaged_pair(minority, damage, rng)
            started = time.process_time()
            examined = examine(coded, [pair], METRICS["auc"], SLICE_MARGIN)
            spent.append(time.process_time() - started)
            harmed = [one.name for one in examined.worst if one.is_damaged]
            if damage:
                found += PLANTED in harmed
                measured += [one.change for one in examined.worst if one.name == PLANTED]
            else:
                false += bool(harmed)
    cells = [
        f"{rows:,}",
        str(fields),
        str(examined.count),
        f"{found} of {runs}",
        f"{statistics.fmean(measured):+.4f}" if measured else "-",
        f"{false} of {runs}",
        f"{statistics.fmean(spent):.1f}",
    ]
    head = ["rows", "fields", "slices", "damage found", "as", "false alarms", "seconds of one core"]
    title = f"Slices: a damage of 0.02 AUC in 2 % of the rows, slice margin {SLICE_MARGIN}"
    return f"{title}\n{table(head, [cells])}"


def damaged_pair(
    minority: npt.NDArray[np.bool_], damage: float, rng: np.random.Generator
) -> tuple[Predictions, Predictions]:
    """Return two models that are equally good but in a minority, where the second loses AUC."""
    rate = 0.1
    rows = len(minority)
    label = rng.random(rows) < rate
    shared, first, second = rng.standard_normal((3, rows))
    quality = QUALITY[0]
    lower = math.sqrt(2) * NORMAL.inv_cdf(NORMAL.cdf(quality / math.sqrt(2)) - damage)
    labels = torch.from_numpy(label.astype(np.float32))
    found = []
    for noise, own in ((first, quality), (second, np.where(minority, lower, quality))):
        view = math.sqrt(CORRELATION) * shared + math.sqrt(1 - CORRELATION) * noise
        outputs = log_odds(view + own * label, quality, rate)
        found.append(BINARY.predictions(labels, torch.from_numpy(outputs)))
    return found[0], found[1]


def cases_of(
    views: Iterable[tuple[str, str]], rows: Iterable[int], rates: Iterable[float]
) -> list[Case]:
    """Return the cases of a table of errors.

    Args:
        views: The metrics, each with the groups of the rows.
        rows: The numbers of rows.
        rates: The fractions of positive rows.
    """
    return [
        Case(metric, count, rate, groups)
        for count, rate, (metric, groups) in product(rows, rates, views)
    ]


def show_progress(text: str) -> None:
    """Print what runs, beside the tables."""
    print(f"\r{text:<110}", end="", file=sys.stderr, flush=True)


def all_tables(pairs: int, sizes: Iterable[int]) -> dict[str, Callable[[], str]]:
    """Return the tables by name, as functions that compute them.

    Args:
        pairs: The pairs of models per cell.
        sizes: The numbers of rows of the table of errors.
    """
    plain = (("auc", "none"), ("log_loss", "none"), ("gauc", "of 50"))
    hard = tuple(product(METRICS, ("of 50", "skewed", "20")))
    pilots = [
        Case("auc", 20_000, 0.05),
        Case("log_loss", 20_000, 0.05),
        Case("gauc", 20_000, 0.2, "of 50"),
        Case("auc", 4_000, 0.5),
    ]
    return {
        "errors": lambda: errors(cases_of(plain, sizes, (0.005, 0.05, 0.5)), pairs),
        "hard": lambda: errors(cases_of(hard, (2_000,), (0.01, 0.05, 0.5)), pairs),
        "power": lambda: power(pilots, pairs, 2.0),
        "widths": lambda: widths(pilots, max(20, pairs // 5)),
        "seconds": lambda: seconds(1_000_000),
        "bootstrap": lambda: bootstrap(1_000, 20, 200),
        "slices": lambda: slice_errors(1_000_000, 50, 20),
    }


def quick_tables(pairs: int) -> dict[str, Callable[[], str]]:
    """Return a small version of each table."""
    small = [Case("auc", 2_000, 0.05), Case("gauc", 2_000, 0.5, "of 50")]
    return {
        "errors": lambda: errors(small, pairs),
        "hard": lambda: errors([Case("log_loss", 2_000, 0.05, "20")], pairs),
        "power": lambda: power(small[:1], pairs, 2.0),
        "widths": lambda: widths(small, pairs),
        "seconds": lambda: seconds(20_000),
        "bootstrap": lambda: bootstrap(500, 2, 50),
        "slices": lambda: slice_errors(20_000, 3, 2),
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, help="pairs of models per cell (500; 40 if quick)")
    sizes = (2_000, 20_000, 200_000)
    parser.add_argument("--rows", type=int, nargs="+", default=sizes, help="of the table errors")
    parser.add_argument("--only", nargs="+", help="names of tables: errors, hard, power, ...")
    parser.add_argument("--quick", action="store_true", help="a small version of each table")
    given = parser.parse_args()
    tables = all_tables(given.pairs or 500, given.rows)
    if given.quick:
        tables = quick_tables(given.pairs or 40)
    for name in given.only or tables:
        if name not in tables:
            parser.error(f"there is no table {name!r}. {nearest(name, tables)}")
        text = tables[name]()
        show_progress("")
        print(f"\n{text}", flush=True)


if __name__ == "__main__":
    main()
