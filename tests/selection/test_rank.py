import pytest
from hypothesis import given

from torchleap import Field, Fields, SelectionError
from torchleap.selection import rank, removal_order, select

from .worlds import ROWS, members_of, world

FIELDS = Fields([Field("a", 1), Field("b", 2), Field("c", 3), Field("d", 4, protected=True)])
SCORES = {"a": 0.5, "b": 0.5, "c": 0.9, "d": 0.1}


def comes_first(fields, scores, one, other):
    """Compare two fields in the slow and obvious way, one reason after the other."""
    ours = members_of(fields, one)
    theirs = members_of(fields, other)
    protected = [any(fields[name].protected for name in names) for names in (ours, theirs)]
    if protected[0] != protected[1]:
        return protected[0]
    score = [max(scores[name] for name in names) for names in (ours, theirs)]
    if score[0] != score[1]:
        return score[0] > score[1]
    cost = [sum(fields[name].cost for name in names) for names in (ours, theirs)]
    if cost[0] != cost[1]:
        return cost[0] < cost[1]
    return min(ours) < min(theirs)


@given(ROWS)
def test_groups_are_ranked_as_the_obvious_comparison_of_any_two_says(rows):
    fields, scores = world(rows)
    groups = rank(fields, scores)
    for place, group in enumerate(groups):
        assert list(group.names) == members_of(fields, group.names[0])
        for later in groups[place + 1 :]:
            assert comes_first(fields, scores, group.names[0], later.names[0])
    assert sorted(name for group in groups for name in group.names) == sorted(fields.names)


@given(ROWS)
def test_the_order_of_the_fields_does_not_matter(rows):
    fields, scores = world(rows)
    backwards = Fields(list(fields)[::-1])
    assert [set(g.names) for g in rank(fields, scores)] == [
        set(g.names) for g in rank(backwards, scores)
    ]


def test_protected_fields_come_first_and_ties_go_to_the_cheaper():
    assert [group.names for group in rank(FIELDS, SCORES)] == [("d",), ("c",), ("a",), ("b",)]


def test_a_group_adds_up_widths_and_costs_and_has_its_best_score():
    fields = Fields([Field("a", 2, cost=0.5, group="g"), Field("b", 3, cost=1, group="g")])
    (group,) = rank(fields, {"a": 0.1, "b": 0.7})
    assert (group.width, group.cost, group.score, group.protected) == (5, 1.5, 0.7, False)


def test_the_worst_field_is_dropped_first_and_protected_fields_never():
    assert removal_order(FIELDS, SCORES) == ["b", "a", "c"]


def test_one_group_stays_where_nothing_is_protected():
    assert removal_order(Fields({"a": 1, "b": 1}), {"a": 0.2, "b": 0.1}) == ["b"]


@given(ROWS)
def test_a_share_drops_the_beginning_of_the_removal_order(rows):
    rows = [(*row[:4], None) for row in rows]
    fields, scores = world(rows)
    order = removal_order(fields, scores)
    stays = max(1, sum(f.protected for f in fields))
    assert len(order) == len(fields) - stays
    for kept in range(stays, len(fields) + 1):
        dropped = select(fields, scores, share=kept / len(fields)).dropped
        assert set(dropped) == set(order[: len(fields) - kept])


def test_ranking_refuses_missing_scores():
    with pytest.raises(SelectionError, match="'d' has none"):
        rank(FIELDS, {"a": 0.5, "b": 0.5, "c": 0.9})


def test_fields_that_belong_together_are_one_group_and_chains_of_them_too():
    fields = Fields({"a": 1, "b": 2, "c": 4, "d": 8})
    scores = {"a": 0.5, "b": 0.1, "c": 0.2, "d": 0.3}
    groups = rank(fields, scores, [("b", "c")])
    assert [group.names for group in groups] == [("a",), ("d",), ("b", "c")]
    groups = rank(fields, scores, [("b", "c"), ("c", "a")])
    assert [group.names for group in groups] == [("a", "b", "c"), ("d",)]
