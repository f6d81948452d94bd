import pytest

from torchleap.report import verdict
from torchleap.report.certificate import certificate_rows
from torchleap.report.numbers import MINUS

from .records import certificate_record, select_record


def certified(value, interval, metric="auc", **parts):
    """Return a record whose certificate has this change, and verdict by default what follows."""
    record = select_record(12, difference=(value, interval))
    record["metrics"]["difference"]["metric"] = metric
    record["certificate"] = certificate_record(value, interval, metric=metric, **parts)
    return record


@pytest.mark.parametrize(
    ("value", "interval", "metric", "outcome", "headline", "certainty"),
    [
        (
            -0.0003,
            (-0.0009, 0.0003),
            "auc",
            "safe",
            "8 of 12 fields can go: the AUC loses at most 0.001, at 95 % confidence.",
            "A loss of more than 0.0008 is excluded at 95 % confidence; the margin is 0.001.",
        ),
        (
            0.004,
            (0.002, 0.006),
            "auc",
            "safe",
            "8 of 12 fields can go: the AUC loses at most 0.001, at 95 % confidence.",
            "Any loss is excluded at 95 % confidence; the margin is 0.001.",
        ),
        (
            -0.004,
            (-0.006, -0.002),
            "log_loss",
            "safe",
            "8 of 12 fields can go: the log loss rises by at most 0.001, at 95 % confidence.",
            "Any loss is excluded at 95 % confidence",
        ),
        (
            -0.004,
            (-0.006, -0.002),
            "auc",
            "not safe",
            "8 of 12 fields would be dropped, but that is not safe: the AUC loses more than 0.001, "
            "at 95 % confidence.",
            "A loss of more than 0.0057 is excluded",
        ),
        (
            0.0,
            (-0.02, 0.02),
            "auc",
            "undecided",
            "8 of 12 fields would be dropped, but the test rows cannot exclude that the AUC loses "
            "more than 0.001: about 45,210, 4,100 of the rarer class, would decide.",
            "A loss of more than 0.0168 is excluded",
        ),
    ],
)
def test_can_go_is_said_only_of_what_is_safe(value, interval, metric, outcome, headline, certainty):
    record = certified(value, interval, metric)
    del record["task"]["rows"]["test"]
    assert verdict.outcome(record) == outcome
    assert verdict.headline(record) == headline
    assert certainty in verdict.certainty(record)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"unit": "user_id", "needed": {"units": 3_000, "rows": 40_000, "support": 900}},
            "about 40,000 of 3,000 groups (user_id) would decide.",
        ),
        (
            {"needed": {"units": 40_000, "rows": 40_000, "support": 40_000}},
            "more than 0.001: about 40,000 would decide.",
        ),
        (
            {
                "needed": {"units": 9_000, "rows": 9_000, "support": 800},
                "needed_as_measured": {"units": 70_000, "rows": 70_000, "support": 6_000},
            },
            "about 70,000, 6,000 of the rarer class, would decide.",
        ),
        ({"needed": None}, "cannot exclude that the AUC loses more than 0.001."),
    ],
)
def test_what_is_undecided_names_how_many_rows_would_decide(parts, words):
    record = certified(0.0, (-0.02, 0.02), **parts)
    assert verdict.headline(record).startswith("8 of 12 fields would be dropped, but 10,000 test")
    assert verdict.headline(record).endswith(words)


def test_what_the_data_do_not_allow_is_undecided_for_that_reason():
    reasons = ["The test rows are not new: 90 of 100 equal a train row.", "There is more."]
    record = certified(0.0, (-1e-4, 1e-4), verdict="undecided", reasons=reasons)
    assert verdict.headline(record) == (
        "8 of 12 fields would be dropped, but the data do not allow to call that safe: "
        "The test rows are not new: 90 of 100 equal a train row."
    )
    assert verdict.further_reasons(record) == ["There is more."]
    assert verdict.certainty(record).endswith(f"{MINUS}0.0001 to +0.0001).")
    assert "Largest loss not excluded" not in dict(certificate_rows(record))
    assert verdict.appearance(record) == "undecided"


def test_the_headline_of_what_is_not_safe_gives_its_first_reason():
    record = certified(-0.004, (-0.006, -0.002))
    assert verdict.further_reasons(record) == []
    record["certificate"]["reasons"] += ["'paid' gives the label away."]
    assert verdict.further_reasons(record) == ["'paid' gives the label away."]
    record["certificate"]["reasons"] = None
    assert verdict.headline(record).startswith("8 of 12 fields would be dropped, but that is not")


@pytest.mark.parametrize(
    ("value", "interval", "words"),
    [
        (
            -0.0003,
            (-0.0011, 0.0005),
            f"{MINUS}0.0011 to +0.0005). There is no certificate, so",
        ),
        (
            -0.0003,
            None,
            f"The AUC changes by {MINUS}0.0003. There is no certificate, so",
        ),
        (None, None, "was not measured"),
    ],
)
def test_without_a_certificate_fields_would_only_be_dropped(value, interval, words):
    record = select_record(12, difference=(value or 0.0, interval))
    record["metrics"]["difference"]["value"] = value
    del record["certificate"]
    assert verdict.outcome(record) == "unknown"
    assert verdict.headline(record) == "8 of 12 fields would be dropped."
    assert words in verdict.certainty(record)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (certified(0.0, (-1e-4, 1e-4)), "Yes, it is safe"),
        (certified(-0.004, (-0.006, -0.002)), "No, it is not safe"),
        (certified(0.0, (-0.02, 0.02)), "Undecided"),
        (certified(0.0, (-1e-4, 1e-4)) | {"certificate": None}, "Not certified"),
        (
            certified(0.0, (-1e-4, 1e-4))
            | {"findings": [{"kind": "leak", "column": "paid", "text": "same as the label"}]},
            "No",
        ),
    ],
)
def test_the_question_of_shipping_has_a_short_answer(record, words):
    assert verdict.answer(record) == words


def test_the_headline_reports_that_nothing_is_dropped():
    record = select_record(12)
    for field in record["fields"]:
        field["kept"] = True
    assert verdict.headline(record) == "All 12 fields stay."
    assert verdict.answer(record) == "Nothing is dropped"
    assert verdict.certainty(record).endswith(f"(95 % interval: {MINUS}0.0011 to +0.0005).")
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
    record = certified(-0.0003, (-0.0011, 0.0005), support=min(positives, rows - positives))
    record["task"] = {
        **record["task"],
        "rows": {"train": 900, "test": rows},
        "positives": {"train": 40, "test": positives},
    }
    return record | more


@pytest.mark.parametrize(("rows", "positives"), [(5, 2), (4_000, 9), (4_000, 3_995)])
@pytest.mark.parametrize("is_certified", [True, False])
def test_on_too_few_rows_no_field_can_go(rows, positives, is_certified):
    record = with_rows(rows, positives)
    record["certificate"]["verdict"] = "undecided"
    assert verdict.headline(record) == (
        f"8 of 12 fields would be dropped, but {rows:,} test rows, {positives:,} of them positive, "
        "are too few for any statement."
    )
    if not is_certified:
        del record["certificate"]
    assert "means nothing: at least 10 of each class" in verdict.certainty(record)


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
    assert verdict.appearance(record) == "not-safe"


def test_a_metric_of_too_few_rows_is_not_shown():
    assert any("AUC" in tile["label"] for tile in verdict.tiles(with_rows(4_000, 500)))
    assert not any("AUC" in tile["label"] for tile in verdict.tiles(with_rows(5, 2)))
