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
        (-0.0003, (-0.0011, 0.0005), "auc", "same", "no difference can be shown; a loss of more than 0.0011 is unlikely"),
        (0.0, (-0.02, 0.02), "auc", "coarse", "so is a loss of 0.0200: these rows are too few to tell"),
        (-0.004, (-0.006, -0.002), "gauc", "worse", "the loss is real, though it may be as small as 0.0020"),
        (0.004, (0.002, 0.006), "auc", "better", "better by more than chance explains"),
        (0.004, (0.002, 0.006), "log_loss", "worse", "the loss is real, though it may be as small as 0.0020"),
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


def test_nothing_to_drop_is_said_so():
    record = select_record(12)
    for field in record["fields"]:
        field["kept"] = True
    assert verdict.headline(record) == "All 12 fields stay."


def test_protected_fields_count_as_kept():
    record = select_record(12)
    kept = sum(f["kept"] or f["protected"] for f in record["fields"])
    assert verdict.tiles(record)[0]["after"] == str(kept)


def test_savings_name_what_was_measured_alone():
    record = {"fields": [], "savings": {"bytes": [100, 43], "milliseconds": [2.0, 1.99]}}
    assert verdict.savings(record) == "Pruning saves 57 % of the memory. Scoring is about as fast as before."
    assert verdict.savings({"fields": []}) == ""
