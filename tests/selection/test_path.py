"""The path of a search as plain data, and the rules that read it."""

import json

import pytest

import torchleap as tl
from torchleap.selection import Path, PathPoint, Rule, Substitute, Worth, select

FIELDS = tl.Fields({"a": 1, "b": 2, "c": 4, "d": 8})
SCORES = {"a": 0.1, "b": 0.02, "c": 1e-4, "d": -1e-3}


def point(kept, metric, behind, error, closed=()):
    return PathPoint(
        kept=tuple(kept),
        closed=tuple(closed),
        dims=sum(FIELDS[name].width for name in kept),
        cost=1.0,
        metric=metric,
        low=metric - 0.01,
        high=metric + 0.01,
        behind=behind,
        error=error,
        loss=1 - metric,
        price=1e-3,
        step=len(kept),
    )


POINTS = (
    point("abcd", 0.80, 0.0, 0.0),
    point("abc", 0.82, 0.0, 0.0, "d"),
    point("ab", 0.815, 0.005, 0.006, "c"),
    point("a", 0.75, 0.07, 0.008, "b"),
)
WORTH = {name: Worth(score, score - 0.01, score + 0.01) for name, score in SCORES.items()}
GATES = {"a": 0.99, "b": 0.9, "c": 0.55, "d": 0.0}
PATH = Path("auc", WORTH, POINTS, (Substitute("c", "b", 0.01, 0.02),), GATES)


def kept(path=PATH, **limits):
    return select(FIELDS, SCORES, path=path, **limits).kept


def test_the_best_point_has_the_best_metric_and_the_smallest_is_within_the_tolerance():
    assert PATH.best is POINTS[1]
    assert PATH.smallest_within() is POINTS[2]  # 0.005 is less than one standard error
    assert PATH.smallest_within(0.001) is POINTS[1]
    assert PATH.smallest_within(0.1) is POINTS[3]


def test_rules_read_the_path():
    assert kept(tolerance="1se") == ("a", "b")
    assert kept(tolerance=0.0) == ("a", "b", "c")
    assert kept(tolerance=0.005) == ("a", "b")  # exactly that much behind
    assert kept(tolerance=0.1) == ("a",)
    assert kept(worth=0.0) == ("a", "b", "c")
    assert kept(worth=1e-3) == ("a", "b")
    assert kept(threshold=0.5) == ("a", "b", "c")  # the gates at the best point
    assert kept(threshold=0.95) == ("a",)
    assert kept(share=0.5) == ("a", "b")
    assert kept(dims=7) == ("a", "b", "c")


def test_protected_fields_are_kept_by_every_rule():
    fields = tl.Fields(
        [tl.Field("a", 1), tl.Field("b", 2), tl.Field("c", 4), tl.Field("d", 8, protected=True)]
    )
    for limits in ({"tolerance": 0.1}, {"worth": 1.0}, {"tolerance": "1se"}):
        assert "d" in select(fields, SCORES, path=PATH, **limits).kept


def test_a_rule_survives_json():
    for rule in (Rule.of(tolerance="1se"), Rule.of(tolerance=0.01), Rule.of(worth=1e-4)):
        assert Rule.from_json(json.loads(json.dumps(rule.to_json()))) == rule
    assert str(Rule.of(tolerance="1se")) == "tolerance=1se"
    assert Rule.of(tolerance="0.01") == Rule.of(tolerance=0.01)  # as a command line gives it


def test_a_path_survives_json_and_prints_as_a_table():
    assert Path.from_json(json.loads(json.dumps(PATH.to_json()))) == PATH
    lines = str(PATH).splitlines()
    assert lines[0].split()[:3] == ["fields", "dims", "auc"]
    assert lines[3].startswith("2          3  0.8150  0.8050 to 0.8250")
    with pytest.raises(tl.TorchleapError, match="Expected a path with metric"):
        Path.from_json({"points": 3})


def test_an_interval_is_four_standard_errors_wide():
    assert Worth(0.0, -1.96, 1.96).error == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("limits", "path", "message"),
    [
        ({"tolerance": -0.1}, PATH, "tolerance must be at least 0, but is -0.1"),
        ({"tolerance": "2se"}, PATH, "tolerance must be a number or '1se', but is '2se'"),
        ({"tolerance": float("nan")}, PATH, "tolerance must be a number"),
        ({"worth": -1e-3}, PATH, "worth must be at least 0"),
        ({"worth": 3.0}, PATH, "No field is worth 3 or more; the best one is worth 0.1. Lower"),
        ({"worth": 1e-3}, None, "worth= needs a search that measures what each field is worth"),
        ({"tolerance": 0.1}, None, "tolerance= needs the path of a search .* this one has none"),
        ({"tolerance": 0.1}, Path("auc", WORTH), "tolerance= needs the path of a search"),
    ],
)
def test_a_rule_that_cannot_be_met_is_refused(limits, path, message):
    with pytest.raises(tl.TorchleapError, match=message):
        kept(path=path, **limits)


def test_a_path_without_points_has_no_best_one():
    with pytest.raises(tl.TorchleapError, match="has no path. Search with method='leap'"):
        _ = Path("auc", WORTH).best


PAIRED = Path("auc", WORTH, POINTS, together=(("b", "c"),))


def test_fields_that_are_worth_something_only_together_are_kept_or_dropped_together():
    assert kept(PAIRED, share=0.75) == ("a", "b", "c")
    assert kept(PAIRED, share=0.5) == ("a", "d"), "half of a pair is of no use"
    assert kept(PATH, share=0.5) == ("a", "b")
    assert kept(PAIRED, dims=7) == ("a", "b", "c")
    assert kept(PAIRED, dims=6) == ("a",)
    assert kept(PAIRED, worth=0.01) == ("a", "b", "c")


def test_a_budget_below_a_pair_takes_one_half():
    fields = tl.Fields({"b": 2, "c": 4})
    path = Path("auc", {}, together=(("b", "c"),))
    assert select(fields, {"b": 0.2, "c": 0.1}, path=path, share=0.5).kept == ("b",)


def test_a_protected_field_does_not_protect_the_other_half_of_its_pair():
    fields = tl.Fields([tl.Field("b", 2, protected=True), tl.Field("c", 4), tl.Field("e", 1)])
    path = Path("auc", {}, together=(("b", "c"),))
    scores = {"b": 0.2, "c": 0.1, "e": 0.3}
    assert select(fields, scores, path=path, share=0.67).kept == ("b", "e")


def test_pairs_go_through_json():
    assert Path.from_json(json.loads(json.dumps(PAIRED.to_json()))) == PAIRED
    older = PATH.to_json()
    del older["together"]
    assert Path.from_json(older) == PATH
