import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchleap as tl
from torchleap import SelectionError
from torchleap.selection import RULES, Limits, Rule, rank, select

from .worlds import ROWS, members_of, world

FIELDS = tl.Fields({"user_id": 64, "age": 1, "clicks": 256, "zip": 8})
PRICES = {"share": lambda f: 1, "dims": lambda f: f.width, "cost": lambda f: f.cost}


def kept_slowly(fields, scores, name, limit):
    """Fill a budget in the slow and obvious way: try the best name that is left, with its group."""
    price = PRICES[name]
    budget = limit * len(fields) if name == "share" else limit
    guarded = {m for f in fields if f.protected for m in members_of(fields, f.name)}
    kept = set(guarded)
    left = [name for name in fields.names if name not in kept]
    while left:

        def reasons(name):
            together = members_of(fields, name)
            cost = sum(fields[m].cost for m in together)
            return (-max(scores[m] for m in together), cost, min(together))

        group = members_of(fields, min(left, key=reasons))
        if sum(price(fields[m]) for m in kept | set(group)) <= budget + 1e-6:
            kept |= set(group)
        left = [name for name in left if name not in group]
    return tuple(name for name in fields.names if name in kept)


@given(ROWS, st.sampled_from(sorted(PRICES)), st.sampled_from([0.2, 0.3, 0.5, 1.0, 3.2, 12.0]))
def test_a_budget_keeps_as_the_obvious_filling_does(rows, name, limit):
    fields, scores = world(rows)
    limit = min(limit, 1.0) if name == "share" else limit
    guarded = {m for f in fields if f.protected for m in members_of(fields, f.name)}
    spent = sum(PRICES[name](fields[m]) for m in guarded)
    expected = kept_slowly(fields, scores, name, limit)
    if name != "share" and spent > limit + 1e-6:
        with pytest.raises(SelectionError, match="protected fields alone"):
            select(fields, scores, **{name: limit})
    elif not expected:
        with pytest.raises(SelectionError, match="leaves no field at all"):
            select(fields, scores, **{name: limit})
    else:
        assert select(fields, scores, **{name: limit}).kept == expected


@given(ROWS, st.sampled_from([0.2, 0.5, 0.9]))
def test_a_threshold_keeps_groups_that_reach_it_and_protected_ones(rows, threshold):
    fields, scores = world(rows)
    expected = []
    for name in fields.names:
        together = members_of(fields, name)
        protected = any(fields[m].protected for m in together)
        if protected or max(scores[m] for m in together) >= threshold:
            expected.append(name)
    if expected:
        assert select(fields, scores, threshold=threshold).kept == tuple(expected)
    else:
        with pytest.raises(SelectionError, match="the best score is"):
            select(fields, scores, threshold=threshold)


@given(ROWS, st.sampled_from(sorted(PRICES)), st.sampled_from([0.2, 0.5, 1.0, 3.0]))
def test_the_check_refuses_exactly_the_limits_that_cannot_be_met(rows, name, limit):
    fields, scores = world(rows)
    rule = Rule.of(**{name: min(limit, 1.0) if name == "share" else limit})
    equal = rank(fields, dict.fromkeys(fields.names, 0.0))
    try:
        rule.check(equal)
    except SelectionError as error:
        with pytest.raises(SelectionError) as refused:
            select(fields, scores, rule)
        assert str(refused.value) == str(error)
    else:
        assert select(fields, scores, rule).kept


def test_every_rule_is_registered_under_its_keyword_with_an_option_of_its_own():
    assert [rule.name for rule in RULES.values()] == list(RULES) == list(Limits.__annotations__)
    assert [rule.option for rule in RULES.values()] == [
        "--threshold",
        "--share",
        "--dims",
        "--budget",
        "--worth",
        "--tolerance",
        "--fdr",
    ]
    assert all(rule.help.endswith(".") for rule in RULES.values())
    assert [rule.kind for rule in RULES.values()] == [float, float, int, float, float, str, float]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_goes_through_json(name):
    rule = Rule.of(**{name: 0.5})
    assert Rule.from_json(json.loads(json.dumps(rule.to_json()))) == rule
    assert str(rule) == f"{name}=0.5"


def test_without_a_limit_the_rule_is_a_threshold_of_one_half():
    assert Rule.of() == Rule.of(share=None, dims=None) == Rule.of(threshold=0.5)
    assert Rule.of(share=0.5) != Rule.of(threshold=0.5)


def test_numbers_of_numpy_become_plain():
    assert type(Rule.of(dims=np.int64(3)).limit) is int
    assert json.dumps(Rule.of(share=np.float32(0.5)).to_json()) == '{"share": 0.5}'
    assert json.dumps(Rule.of(tolerance=np.float32(0.5)).to_json()) == '{"tolerance": 0.5}'
    assert json.dumps(Rule.of(worth=np.float64(0.5)).to_json()) == '{"worth": 0.5}'


def test_a_selection_carries_its_rule_even_if_its_method_has_a_setting_of_that_name(tmp_path):
    scores = dict.fromkeys(FIELDS.names, 0.5)
    selection = select(FIELDS, scores, tl.Rule.of(dims=72), settings={"share": 1.0})
    assert selection.rule == Rule.of(dims=72)
    assert selection == select(FIELDS, scores, dims=72, settings={"share": 1.0})
    selection.save(tmp_path / "selection.json")
    assert tl.Selection.load(tmp_path / "selection.json").rule == Rule.of(dims=72)


def test_a_file_without_a_rule_is_still_read(tmp_path):
    content = select(FIELDS, dict.fromkeys(FIELDS.names, 0.5)).to_json()
    del content["rule"]
    (tmp_path / "selection.json").write_text(json.dumps(content))
    assert tl.Selection.load(tmp_path / "selection.json").rule is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"share": 0.5, "dims": 3}, "such as {'share': 0.5}"),
        ({"share": None}, "such as {'share': 0.5}"),
        ({}, "such as {'share': 0.5}"),
        ([], r"found \[\]"),
        ({"share": "half"}, "share must be a number, but is 'half'"),
        ({"worth": "much"}, "worth must be a number, but is 'much'"),
        ({"worth": -1}, "worth must be at least 0, but is -1"),
        ({"tolerance": "2se"}, "tolerance must be a number or '1se', but is '2se'"),
        ({"tolerance": [1]}, r"tolerance must be a number, but is \[1\]"),
        ({"shares": 0.5}, "There is no rule 'shares'. Did you mean 'share'"),
    ],
)
def test_other_rules_in_a_file_are_refused(tmp_path, content, message):
    with pytest.raises(SelectionError, match=message):
        Rule.from_json(content)
    path = tmp_path / "selection.json"
    whole = select(FIELDS, dict.fromkeys(FIELDS.names, 0.5)).to_json()
    path.write_text(json.dumps({**whole, "rule": content}))
    with pytest.raises(SelectionError, match=f"selection.json: .*{message}"):
        tl.Selection.load(path)


def test_a_rule_and_a_keyword_together_are_refused():
    with pytest.raises(SelectionError, match="found share=0.5 and dims. Give one of them"):
        select(FIELDS, dict.fromkeys(FIELDS.names, 0.5), Rule.of(share=0.5), dims=3)
