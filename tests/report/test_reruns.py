"""The words about further trainings."""

from torchleap.report.certificate import counted_rows as rows_of
from torchleap.report.numbers import MINUS
from torchleap.report.reruns import sentences

RECORD = {
    "metrics": {"difference": {"metric": "auc", "value": -0.001}},
    "certificate": {"metric": "auc", "low": -0.003, "high": 0.001, "rows": 1200, "folds": 0},
}


def with_reruns(**more):
    found = {"kind": "repeats", "changes": [0.0, -0.002], "selections": 0, "kept": {}}
    return {**RECORD, "reruns": {**found, "jaccard": None, **more}}


def test_without_further_trainings_nothing_is_said():
    assert sentences(RECORD) == []


def test_repetitions_show_the_change_of_each_training_and_their_mean():
    assert sentences(with_reruns()) == [
        f"In 3 trainings on the same fields the AUC changes by {MINUS}0.0010, 0.0000, "
        f"{MINUS}0.0020: {MINUS}0.0010 on average, with a 95 % interval from {MINUS}0.0030 to "
        "+0.0010."
    ]


def test_folds_leave_out_the_change_on_the_test_rows():
    text, _ = sentences(with_reruns(kind="folds", selections=2, kept={"a": 2}, jaccard=1.0))
    assert text.startswith(f"In 2 folds the AUC changes by 0.0000, {MINUS}0.0020: {MINUS}0.0010 on")


def test_fields_that_some_searches_keep_are_named():
    kept = {"a": 4, "b": 4, "c": 3, "d": 1, "e": 0}
    *_, text = sentences(with_reruns(selections=4, kept=kept, jaccard=0.75))
    assert text == (
        "4 searches keep 2 fields in common and 2 others in part: c in 3, d in 1. Two of them "
        "agree in 75 % of their fields."
    )


def test_many_fields_are_not_all_named():
    kept = {f"f{place}": 1 for place in range(12)}
    *_, text = sentences(with_reruns(selections=2, kept=kept, jaccard=0.0))
    assert "f7 in 1 and 4 more" in text


def test_the_rows_of_folds_are_all_rows():
    folds = {**RECORD, "certificate": {**RECORD["certificate"], "folds": 5}}
    assert rows_of(folds) == "1,200 rows in 5 folds"
