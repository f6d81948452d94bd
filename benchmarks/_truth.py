"""How well an order of fields agrees with a known ground truth, for ranking.py and speed.py."""

from collections.abc import Collection, Mapping

from _shared import Found

from torchleap.bench.sets import DataSet
from torchleap.bench.statistics import f1
from torchleap.selection import Rule

TRUTH = ("F1", "pairs found", "noise above useful")


def best_fields(found: Found) -> tuple[str, ...]:
    """Return the fields that are kept if as many are kept as are useful."""
    share = len(found.data.useful) / len(found.data.task.fields)
    return found.kept(Rule.of(share=share))


def with_originals(kept: Collection[str], source: Mapping[str, str]) -> set[str]:
    """Return the kept fields, in which a copy counts as its original if that is not kept.

    Args:
        kept: The kept fields.
        source: The original of each copy.

    >>> sorted(with_originals(["a", "copy_a", "copy_b"], {"copy_a": "a", "copy_b": "b"}))
    ['a', 'b', 'copy_a']
    """
    found = {name for name in kept if name not in source}
    for name in kept:
        if name in source:
            found.add(name if source[name] in found else source[name])
    return found


def noise_above_useful(scores: Mapping[str, float], data: DataSet) -> float:
    """Return the fraction of pairs of a useless and a useful field that are in the wrong order.

    A tie is half of a wrong order. A useful field has the score of its best copy if that is higher.
    """
    useful = {name: scores[name] for name in data.useful}
    for copy, original in data.source.items():
        if original in useful:
            useful[original] = max(useful[original], scores[copy])
    wrong = 0.0
    for useless in data.useless:
        for score in useful.values():
            if scores[useless] == score:
                wrong += 0.5
            elif scores[useless] > score:
                wrong += 1.0
    return wrong / (len(data.useless) * len(useful))


def pairs_found(kept: Collection[str], data: DataSet) -> float:
    """Return how many of the fields that matter only in pairs are kept."""
    return float(sum(data.role[name] == "pair" for name in kept))


def truth_of(found: Found) -> dict[str, float]:
    """Return the measures of `TRUTH`: F1, pairs found, and noise above useful fields.

    The first two are of the best fields, as many as are useful. A copy counts as its original if
    that is not kept, and is wrong otherwise.
    """
    best = best_fields(found)
    values = (
        f1(with_originals(best, found.data.source), found.data.useful),
        pairs_found(best, found.data),
        noise_above_useful(found.scores, found.data),
    )
    return dict(zip(TRUTH, values, strict=True))
