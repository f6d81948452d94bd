import pytest

from torchleap.report import verdict

from .records import select_record


def with_difference(value, interval, metric="auc"):
    record = select_record(12, difference=(value, interval))
    record["metrics"]["difference"]["metric"] = metric
    return record


@pytest.mark.parametrize(
    ("value", "interval", "metric", "outcome", "words"),
    [
        (
            -0.0003,
            (-0.0011, 0.0005),
            "auc",
            "same",
            "no difference can be shown; a loss of more than 0.0011 is unlikely",
        ),
        (
            0.0,
            (-0.02, 0.02),
            "auc",
            "coarse",
            "so is a loss of 0.0200: these rows are too few to measure it",
        ),
        (
            -0.004,
            (-0.006, -0.002),
            "gauc",
            "worse",
            "the loss is real, though it may be as small as 0.0020",
        ),
        (0.004, (0.002, 0.006), "auc", "better", "better by more than chance explains"),
        (
            0.004,
            (0.002, 0.006),
            "log_loss",
            "worse",
            "the loss is real, though it may be as small as 0.0020",
        ),
        (-0.004, (-0.006, -0.002), "log_loss", "better", "better by more than chance explains"),
        (-0.004, None, "auc", "unsure", "No interval was computed, so this may be chance"),
        (None, None, "auc", "unknown", "was not measured"),
    ],
)
def test_the_words_are_no_more_certain_than_the_interval(value, interval, metric, outcome, words):
    record = with_difference(0.0 if value is None else value, interval, metric)
    record["metrics"]["difference"]["value"] = value
    assert verdict.outcome(record) == outcome
    assert words in verdict.certainty(record)
    assert verdict.headline(record).startswith("8 of 12 fields")


def test_the_headline_reports_that_nothing_is_dropped():
    record = select_record(12)
    for field in record["fields"]:
        field["kept"] = True
    assert verdict.headline(record) == "All 12 fields stay."
    record["fields"] = record["fields"][:1]
    assert verdict.headline(record) == "The only field stays."


def test_protected_fields_count_as_kept():
    record = select_record(12)
    kept = sum(f["kept"] or f["protected"] for f in record["fields"])
    assert verdict.tiles(record)[0]["after"] == str(kept)


def test_savings_name_only_measured_sizes():
    record = {"fields": [], "savings": {"bytes": [100, 43], "milliseconds": [2.0, 1.99]}}
    assert (
        verdict.savings(record)
        == "Pruning saves 57 % of the memory. Scoring is about as fast as before."
    )
    assert verdict.savings({"fields": []}) == ""


def with_rows(rows, positives, **more):
    record = with_difference(-0.0003, (-0.0011, 0.0005))
    record["task"] = {
        **record["task"],
        "rows": {"train": 900, "test": rows},
        "positives": {"train": 40, "test": positives},
    }
    return record | more


@pytest.mark.parametrize(("rows", "positives"), [(5, 2), (4_000, 9), (4_000, 3_995)])
def test_on_too_few_rows_no_field_can_go(rows, positives):
    record = with_rows(rows, positives)
    assert verdict.outcome(record) == "few"
    assert verdict.headline(record) == (
        f"8 of 12 fields would be dropped, but {rows:,} test rows, {positives:,} of them positive, "
        "are too few for any statement."
    )
    assert "means nothing: at least 10 of each class" in verdict.certainty(record)


def test_where_the_interval_contains_a_large_loss_no_field_can_go():
    record = with_difference(0.0, (-0.02, 0.02))
    record["task"] = {"rows": {"test": 400}, "positives": {"test": 40}}
    assert verdict.headline(record) == (
        "8 of 12 fields would be dropped, but 400 test rows, 40 of them positive, "
        "are too few to measure the cost."
    )


def test_an_open_decision_has_a_reason_and_an_advice():
    record = with_rows(
        4_000, 13, undecided="no field scores 0.5 or more, the best is 'price' with 0.31"
    )
    for field in record["fields"]:
        field["kept"] = True
    assert (
        verdict.headline(record)
        == "All 12 fields stay: no field scores 0.5 or more, the best is 'price' with 0.31."
    )
    assert "of the rarer class above all: 40 of 900 train rows are positive." in verdict.advice(
        record
    )
    assert verdict.advice(with_rows(4_000, 500)) == ""


def test_a_leak_comes_before_any_other_verdict():
    leak = {
        "kind": "leak",
        "column": "refunded",
        "text": "gives the label away: AUC 1.000",
        "cure": "Leave it out: --drop refunded.",
    }
    record = with_rows(4_000, 500, findings=[leak, leak | {"kind": "id", "column": "id"}])
    assert (
        verdict.headline(record)
        == "This result cannot be trusted: 'refunded' gives the label away."
    )


def test_a_metric_of_too_few_rows_is_not_shown():
    assert any("AUC" in tile["label"] for tile in verdict.tiles(with_rows(4_000, 500)))
    assert not any("AUC" in tile["label"] for tile in verdict.tiles(with_rows(5, 2)))
