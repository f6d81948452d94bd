import json
import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from torchleap import Field, FieldError, Fields, Selection, SelectionError
from torchleap.selection import select

FIELDS = Fields({"user_id": 64, "age": 1, "clicks": 256, "zip": 8})
SCORES = {"user_id": 0.9, "age": 0.6, "clicks": 0.3, "zip": 0.1}


def test_threshold_is_half_unless_given_and_includes_it():
    assert select(FIELDS, SCORES).kept == ("user_id", "age")
    assert select(FIELDS, SCORES, threshold=0.6).kept == ("user_id", "age")
    assert select(FIELDS, SCORES, threshold=0.61).dropped == ("age", "clicks", "zip")


@pytest.mark.parametrize(("share", "kept"), [(0.25, 1), (0.5, 2), (0.74, 2), (1.0, 4)])
def test_share_keeps_that_share_rounded_down(share, kept):
    assert len(select(FIELDS, SCORES, share=share).kept) == kept


def test_share_is_not_cheated_by_rounding():
    many = Fields({f"f{i}": 1 for i in range(100)})
    assert len(select(many, dict.fromkeys(many.names, 0.5), share=0.29).kept) == 29


@pytest.mark.parametrize(
    ("dims", "kept"),
    [
        (64, ("user_id",)),
        (72, ("user_id", "age")),
        (73, ("user_id", "age", "zip")),
        (9999, FIELDS.names),
    ],
)
def test_dims_take_the_best_that_fit(dims, kept):
    selection = select(FIELDS, SCORES, dims=dims)
    assert selection.kept == kept
    assert selection.dims <= dims


def test_cost_is_a_budget_of_its_own():
    fields = Fields([Field("a", 100, cost=1), Field("b", 1, cost=50), Field("c", 1, cost=2)])
    assert select(fields, {"a": 0.1, "b": 0.9, "c": 0.5}, cost=3).kept == ("a", "c")


def test_costs_that_add_up_to_the_budget_fit():
    fields = Fields([Field(name, 1, cost=0.1) for name in "abc"])
    assert select(fields, dict.fromkeys("abc", 0.5), cost=0.3).kept == ("a", "b", "c")


def test_a_group_is_kept_whole_even_if_its_scores_differ():
    fields = Fields([Field("a", 1, group="g"), Field("b", 1, group="g"), Field("c", 1)])
    assert select(fields, {"a": 0.9, "b": 0.1, "c": 0.2}).kept == ("a", "b")


def test_ties_go_to_the_cheaper_then_to_the_first_name():
    fields = Fields([Field("z", 4, cost=1), Field("b", 4, cost=2), Field("a", 4, cost=2)])
    scores = dict.fromkeys("zba", 0.7)
    assert select(fields, scores, share=0.34).kept == ("z",)
    assert select(fields, scores, share=0.67).kept == ("z", "a")


def test_selection_is_immutable_hashable_and_pickles():
    selection = select(FIELDS, SCORES, settings={"alpha": 0.1})
    with pytest.raises(FrozenInstanceError):
        selection.keep = ()
    with pytest.raises(TypeError):
        selection.settings["alpha"] = 1
    selection.scores["user_id"] = 0  # a copy
    assert selection.scores == SCORES
    assert pickle.loads(pickle.dumps(selection)) == selection
    assert len({selection, select(FIELDS, SCORES, settings={"alpha": 0.1})}) == 1


def test_selection_prints_as_a_table():
    lines = str(select(FIELDS, SCORES)).splitlines()
    assert lines[0] == "Selection: 2 of 4 fields kept, 65 of 329 dimensions"
    assert lines[2].split() == ["user_id", "0.9000", "64", "kept"]
    assert lines[-1].split() == ["zip", "0.1000", "8", "dropped"]


def test_jaccard():
    first, second = select(FIELDS, SCORES, share=0.5), select(FIELDS, SCORES, share=0.75)
    assert first.jaccard(second) == second.jaccard(first) == pytest.approx(2 / 3)
    assert first.jaccard(first) == 1.0


def test_save_and_load_round_trip(tmp_path):
    fields = Fields([Field("a", 2, cost=3.5, protected=True, group="g"), Field("b", 1)])
    selection = select(
        fields, {"a": 0.25, "b": 0.75}, settings={"alpha": 1e-3, "clip": [1, 2]}, method="leap_base"
    )
    path = tmp_path / "selection.json"
    selection.save(path)
    assert Selection.load(path) == selection
    assert Selection.load(path, fields=fields) == selection
    content = json.loads(path.read_text())
    assert content["format"] == 1
    assert [record["name"] for record in content["fields"]] == ["a", "b"]
    assert content["settings"]["threshold"] == 0.5
    assert [p.name for p in tmp_path.iterdir()] == ["selection.json"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "selection.json"
    select(FIELDS, SCORES).save(path)
    before = path.read_text()
    monkeypatch.setattr(
        Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        select(FIELDS, SCORES, share=0.5).save(path)
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


def broken(change):
    content = select(FIELDS, SCORES).to_json()
    change(content)
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (broken(lambda c: c.update(format=2)), "format 1, but found 2"),
        (broken(lambda c: c.update(format=True)), "format 1, but found True"),
        (broken(lambda c: c.update(method=3)), "values of other types"),
        (
            broken(lambda c: c["fields"][0].update(score=float("nan"))),
            "found NaN, which is not a number",
        ),
        (
            broken(lambda c: c["fields"][0].update(protected="no")),
            "protected of 'user_id' must be True or False",
        ),
        (broken(lambda c: c["fields"][0].update(name=["a"])), "non-empty string"),
        (broken(lambda c: c["fields"][0].update(group=["a"])), "group of 'user_id'"),
        (broken(lambda c: c.pop("format")), "found 'none'"),
        ([1, 2], "found 'list'"),
        (broken(lambda c: c.update(colour="red")), "expected the keys"),
        (broken(lambda c: c.pop("settings")), "expected the keys"),
        (broken(lambda c: c["fields"][0].update(colour="red")), "unknown key 'colour'"),
        (broken(lambda c: c["fields"][0].pop("score")), "expected name, width, score and kept"),
        (broken(lambda c: c["fields"][0].update(kept="yes")), "true or false"),
        (broken(lambda c: c["fields"][0].update(width=0)), "width of 'user_id'"),
        (broken(lambda c: c["fields"].append(c["fields"][0])), "used 2 times"),
        (broken(lambda c: [r.update(kept=False) for r in c["fields"]]), "keeps none"),
    ],
)
def test_files_of_other_formats_are_refused(tmp_path, content, message):
    path = tmp_path / "selection.json"
    path.write_text(json.dumps(content))
    with pytest.raises(SelectionError, match=message):
        Selection.load(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "selection.json"
    select(FIELDS, SCORES).save(path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(SelectionError, match="expected JSON"):
        Selection.load(path)


@pytest.mark.parametrize(
    "other",
    [
        {"user_id": 64, "age": 1, "clicks": 256},
        {**dict(zip(FIELDS.names, FIELDS.widths, strict=True)), "x": 1},
        {"user_id": 64, "age": 1, "clicks": 256, "zip": 9},
    ],
)
def test_a_file_for_other_fields_is_refused(tmp_path, other):
    path = tmp_path / "selection.json"
    select(FIELDS, SCORES).save(path)
    with pytest.raises(SelectionError, match="'zip'|'x'"):
        Selection.load(path, fields=Fields(other))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: select(FIELDS, SCORES, threshold=0.5, share=0.5), "threshold and share"),
        (lambda: select(FIELDS, SCORES, threshold=0.95), "best score is 0.9000"),
        (
            lambda: select(FIELDS, SCORES, share=0.2),
            "share=0.2 leaves no field at all. Give at least 0.25",
        ),
        (lambda: select(FIELDS, SCORES, share=0.0), "above 0"),
        (lambda: select(FIELDS, SCORES, share=1.5), "not above 1"),
        (lambda: select(FIELDS, SCORES, dims=0), "dims must be above 0, but is 0"),
        (
            lambda: select(Fields({"a": 4, "b": 2}), {"a": 1, "b": 0}, dims=1),
            "leaves no field at all. Give at least 2",
        ),
        (lambda: select(FIELDS, SCORES, dims="5"), "dims must be a number, but is '5'"),
        (lambda: select(FIELDS, SCORES, threshold=float("nan")), "threshold must be a number"),
        (lambda: select(FIELDS, SCORES, cost=-1), "cost must be above 0"),
        (lambda: select(FIELDS, SCORES, settings={"bad": object()}), "finite numbers, text"),
        (lambda: select(FIELDS, SCORES, settings={"bad": float("nan")}), "finite numbers, text"),
        (
            lambda: select(
                Fields([Field("a", 9, protected=True), Field("b", 1)]), {"a": 1, "b": 0}, dims=4
            ),
            "protected fields alone take 9",
        ),
        (lambda: select(FIELDS, {"user_id": 1.0}), "'age', 'clicks', 'zip' has none"),
        (lambda: select(FIELDS, {**SCORES, "age": float("nan")}), "that of 'age' is nan"),
        (lambda: Selection(FIELDS, (1.0,), (True,)), "1 scores and 1 decisions"),
    ],
)
def test_bad_requests_are_refused(call, message):
    with pytest.raises(SelectionError, match=message):
        call()


def test_an_unknown_field_gets_the_nearest_name():
    with pytest.raises(FieldError, match="Did you mean 'user_id'"):
        select(FIELDS, {**SCORES, "user_ids": 0.1})


def test_jaccard_of_sets_that_overlap_divides_by_all_that_either_keeps():
    first = Selection(FIELDS, (0.0,) * 4, (True, True, True, False))
    second = Selection(FIELDS, (0.0,) * 4, (False, False, True, True))
    assert first.jaccard(second) == second.jaccard(first) == pytest.approx(1 / 4)


def test_a_share_smaller_than_the_protected_fields_keeps_these():
    fields = Fields([Field(name, 1, protected=name in "ab") for name in "abcd"])
    scores = {"a": 0.1, "b": 0.2, "c": 0.9, "d": 0.8}
    assert select(fields, scores, share=0.25).kept == ("a", "b")
    assert select(fields, scores, share=0.1).kept == ("a", "b")
    assert select(fields, scores, share=0.75).kept == ("a", "b", "c")
