"""DecoyScores and the rule fdr: how many fields may be kept, by what decoys have reached."""

import json
import random
import re
import statistics

import pytest

import torchleap as tl
from torchleap import SelectionError
from torchleap.selection import DecoyScores, Path, Rule, rank, select
from torchleap.selection.decoys import fewest_discoveries

NAMES = [f"f{number:02d}" for number in range(20)]
FIELDS = tl.Fields(dict.fromkeys(NAMES, 2))


def path_of(reached, by_decoys, **more):
    scores = DecoyScores(dict(zip(NAMES, reached, strict=False)), by_decoys)
    return Path("auc", {}, decoys=scores, **more)


def kept(path, rate, fields=FIELDS):
    scores = {name: path.decoys.reached[name] for name in fields.names}
    return select(fields, scores, fdr=rate, path=path).kept


def clear(useful, decoys=1):
    """Return a path in which the first fields beat all decoys, and the others lose to theirs."""
    reached = [10.0 - 0.1 * place if place < useful else 0.0 for place in range(len(NAMES))]
    own = {
        name: (0.5 + 0.01 * place, *[0.1] * (decoys - 1))
        for place, name in enumerate(reversed(NAMES))
    }
    return path_of(reached, own)


def test_all_fields_that_beat_the_best_decoy_are_kept():
    assert kept(clear(12), 0.1) == tuple(NAMES[:12])
    assert kept(clear(20), 0.1) == tuple(NAMES)


def test_more_decoys_per_field_make_fewer_fields_enough():
    assert kept(clear(4, decoys=3), 0.1) == tuple(NAMES[:4])
    with pytest.raises(SelectionError, match="needs at least 4 fields"):
        kept(clear(3, decoys=3), 0.1)


def test_too_few_fields_for_a_rate_say_how_many_it_needs():
    message = (
        "fdr=0.1 with 1 decoy per field needs at least 10 fields that are clearly better than the "
        "decoys, but of 20 fields only 9 beat their own decoys"
    )
    with pytest.raises(SelectionError, match=re.escape(message)):
        kept(clear(9), 0.1)


def test_a_field_that_loses_to_its_decoy_is_dropped_and_counts_for_chance():
    path = clear(20)
    path.decoys.by_decoys["f10"] = (11.0,)  # above all fields: one is expected to be false
    with pytest.raises(SelectionError, match="only 19 beat"):
        kept(path, 0.1)
    assert kept(path, 0.2) == tuple(name for name in NAMES if name != "f10")


def test_a_tie_is_not_a_win():
    path = clear(20)
    path.decoys.by_decoys.update({name: (path.decoys.reached[name],) for name in NAMES})
    assert path.decoys.discoveries(rank(FIELDS, path.decoys.reached), 0.9).winners == 0


def test_protected_fields_are_kept_and_do_not_compete():
    fields = tl.Fields([tl.Field(name, 2, protected=name == "f19") for name in NAMES])
    assert kept(clear(10), 0.1, fields) == (*NAMES[:10], "f19")
    assert kept(clear(3), 0.1, fields) == ("f19",)


def test_fields_that_belong_together_compete_as_one():
    path = clear(12)
    joined = path_of(
        path.decoys.reached.values(), path.decoys.by_decoys, together=(("f00", "f19"),)
    )
    assert kept(joined, 0.1) == (*NAMES[:12], "f19")


@pytest.mark.parametrize("decoys", [1, 3])
def test_the_share_of_useless_fields_is_at_most_the_rate_on_average(decoys):
    rng = random.Random(0)
    false = []
    found = []
    for _ in range(400):
        useful = set(rng.sample(NAMES, 12))
        spread = {name: rng.choice([1.0, 3.0]) for name in NAMES}  # another null for each field
        reached = [rng.gauss(4.0 if name in useful else 0.0, spread[name]) for name in NAMES]
        own = {name: [rng.gauss(0.0, spread[name]) for _ in range(decoys)] for name in NAMES}
        path = path_of(reached, own)
        groups = rank(FIELDS, path.decoys.reached)
        chosen = {group.names[0] for group in path.decoys.discoveries(groups, 0.2).kept}
        false.append(len(chosen - useful) / max(1, len(chosen)))
        found.append(len(chosen & useful))
    assert statistics.mean(false) <= 0.2 + 2 * statistics.stdev(false) / 20
    assert statistics.mean(found) > 5


def test_the_estimate_is_at_most_the_rate_and_that_of_the_kept_fields():
    path = clear(12)
    found = path.decoys.discoveries(rank(FIELDS, path.decoys.reached), 0.1)
    assert (len(found.kept), found.winners) == (12, 12)
    assert found.estimate == pytest.approx(1 / 12)


def test_decoys_calibrate_the_zero_of_worth():
    worth = {name: (place / 100 - 0.1,) for place, name in enumerate(NAMES)}
    scores = DecoyScores({}, dict.fromkeys(NAMES, (0.0,)), worth)
    assert scores.mean_worth == pytest.approx(-0.005)
    assert scores.high_worth == pytest.approx(0.08)
    without = DecoyScores({}, {})
    assert (without.mean_worth, without.high_worth) == (None, None)


def test_a_path_with_decoys_survives_json():
    path = clear(12, decoys=2)
    again = Path.from_json(json.loads(json.dumps(path.to_json())))
    assert again.decoys == path.decoys
    assert kept(again, 0.1) == kept(path, 0.1)


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5])
def test_a_rate_lies_between_0_and_1(rate):
    with pytest.raises(SelectionError, match=f"fdr must lie between 0 and 1, but is {rate}"):
        Rule.of(fdr=rate)


@pytest.mark.parametrize("path", [None, Path("auc", {})])
def test_a_search_without_decoys_says_how_to_get_them(path):
    message = "fdr= needs a search with decoys, but this one has none. Search with fdr=0.1"
    with pytest.raises(SelectionError, match=re.escape(message)):
        select(FIELDS, dict.fromkeys(NAMES, 1.0), fdr=0.1, path=path)


def test_a_rate_of_one_in_ten_needs_ten_fields_with_one_decoy_each():
    assert [fewest_discoveries(0.1, each) for each in (1, 2, 5)] == [10, 5, 2]
