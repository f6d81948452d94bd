"""Certificate: the verdict, its reasons, and what would decide."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from torchleap.evidence.certificate import Evidence, SliceChange, certificate_of
from torchleap.evidence.change import Change
from torchleap.objectives import METRICS

MARGIN = 0.001
ROWS = Evidence(rows=1000, support=200)


def change(gain, error, units=1000, metric="auc", trainings=()):
    """Return a change whose parts are alike, so that it is nearly normal."""
    parts = np.where(np.arange(units) % 2, 1.0, -1.0) * error / math.sqrt(units)
    before = 0.7
    return Change(METRICS[metric], before, before + METRICS[metric].gain(gain), parts, trainings)


DAMAGED = SliceChange("country = NL", "country", False, 50, -0.03, -0.04, 0.001, True)
UNHARMED = replace(DAMAGED, p=0.3, is_damaged=False)


def test_a_loss_that_the_rows_exclude_is_safe():
    found = certificate_of(change(0.0, 0.0005), MARGIN, ROWS)
    assert (found.verdict, found.is_safe) == ("safe", True)
    assert found.largest_loss == pytest.approx(1.6449 * 0.0005, rel=1e-3)
    assert found.headline() == "Safe: the AUC loses at most 0.001, at 95 % confidence."
    assert found.reasons == ()
    assert found.needed is None
    assert found.needed_as_measured is None


def test_a_loss_beyond_the_margin_is_not_safe():
    found = certificate_of(change(-0.004, 0.001), MARGIN, ROWS)
    assert found.verdict == "not safe"
    assert found.headline() == "Not safe: the AUC loses more than 0.001, at 95 % confidence."


def test_what_the_rows_neither_exclude_nor_show_is_undecided_with_the_rows_that_would_decide():
    found = certificate_of(change(0.0, 0.002), MARGIN, ROWS)
    assert found.verdict == "undecided"
    times = ((1.6449 + 0.8416) * 2) ** 2
    assert found.needed.rows == pytest.approx(1000 * times, rel=1e-3)
    assert found.needed.units == found.needed.rows
    assert found.needed.support == pytest.approx(200 * times, rel=1e-2)
    assert found.headline() == "Undecided: these rows cannot exclude a loss of AUC above 0.001."
    (reason,) = found.reasons
    assert "If both models are equally good, 24,7" in reason
    assert "of them of the rarer class, would show it at 80 % power; there are 1,000." in reason
    assert "beyond" not in reason


def test_what_is_needed_as_measured_is_more_after_a_loss():
    found = certificate_of(change(-0.0005, 0.001), MARGIN, ROWS)
    assert found.needed_as_measured.rows == pytest.approx(4 * found.needed.rows, rel=1e-2)
    at_margin = certificate_of(change(-MARGIN, 0.001), MARGIN, ROWS)
    assert at_margin.needed_as_measured is None


def test_a_margin_that_no_such_rows_resolve_is_named():
    (reason,) = certificate_of(change(0.0, 0.1), MARGIN, ROWS).reasons
    assert "beyond what such rows can resolve: choose a larger one." in reason


def test_rows_of_groups_are_counted_as_groups():
    evidence = replace(ROWS, unit="user", support=1000)
    found = certificate_of(change(0.0, 0.002, units=50), MARGIN, evidence)
    assert "of 1,2" in found.reasons[0]
    assert "groups (user)" in found.reasons[0]
    assert "rarer class" not in found.reasons[0]  # where there is none
    assert "of 50 groups (user)." in found.evidence()


def test_few_rows_of_a_class_allow_no_statement():
    for gain in (-0.1, 0.0, 0.1):
        few = replace(ROWS, support=9, blocked=("The label leaks.",))
        found = certificate_of(change(gain, 0.0005), MARGIN, few)
        assert found.verdict == "undecided"
        assert found.reasons[0] == "The label leaks."
        assert "the rarer class has 9." in found.reasons[1]


def test_a_damaged_slice_is_not_safe_although_the_average_is():
    evidence = replace(
        ROWS,
        slices=(DAMAGED, UNHARMED),
        slices_examined=40,
        slice_margin=0.01,
        blocked=("A leak.",),
    )
    found = certificate_of(change(0.0, 0.0001), MARGIN, evidence)
    assert found.verdict == "not safe"
    assert found.reasons == ("The AUC loses 0.0300 where country = NL.", "A leak.")
    assert (found.slices_examined, found.slice_margin) == (40, 0.01)
    unharmed = replace(evidence, slices=(UNHARMED,), blocked=())
    assert certificate_of(change(0.0, 0.0001), MARGIN, unharmed).verdict == "safe"


def test_what_is_blocked_is_never_safe_but_may_be_not_safe():
    blocked = replace(ROWS, blocked=("The field price is a copy of the label.",))
    safe = certificate_of(change(0.0, 0.0001), MARGIN, blocked)
    assert (safe.verdict, safe.reasons) == ("undecided", blocked.blocked)
    lost = certificate_of(change(-0.1, 0.001), MARGIN, blocked)
    assert lost.verdict == "not safe"
    assert lost.reasons[1:] == blocked.blocked


def test_models_of_the_same_order_are_safe_and_other_certainties_are_not():
    assert certificate_of(change(0.0, 0.0), MARGIN, ROWS).verdict == "safe"
    gain = certificate_of(change(0.01, 0.0), MARGIN, ROWS)
    assert gain.verdict == "undecided"
    assert "no chance at all" in gain.reasons[0]


def test_a_metric_of_a_loss_is_judged_by_its_fall():
    assert certificate_of(change(0.01, 0.001, metric="log_loss"), MARGIN, ROWS).verdict == "safe"
    worse = certificate_of(change(-0.01, 0.001, metric="log_loss"), MARGIN, ROWS)
    assert worse.verdict == "not safe"
    assert worse.change == pytest.approx(0.01)


def test_what_the_interval_leaves_out_is_said():
    one = certificate_of(change(0.0, 0.0001), MARGIN, ROWS)
    assert "not that of another training: repeats=3" in one.notes[0]
    typical = certificate_of(change(0.0, 0.0001), MARGIN, replace(ROWS, typical_training=0.0021))
    assert "typically varies by 0.0021 (one standard deviation)" in typical.notes[0]
    assert (one.repeats, one.training_deviation) == (1, None)
    many = change(0.0, 0.0001, trainings=(0.0, 0.0001, -0.0001))
    found = certificate_of(many, MARGIN, replace(ROWS, notes=("Weekends only.",)))
    assert found.notes[0].startswith("The interval is that of the mean of 3 trainings")
    assert found.notes[1:] == ("Weekends only.",)
    assert found.repeats == 3
    assert found.training_deviation == pytest.approx(0.0001)


def test_a_certificate_is_printed_in_sentences_and_is_plain_json():
    found = certificate_of(change(0.0, 0.002), MARGIN, replace(ROWS, slices=(DAMAGED,)))
    lines = str(found).splitlines()
    assert lines[0] == found.headline()
    assert lines[1].startswith("AUC 0.7000 => 0.7000 (+0.0000, 95 % interval -0.0039 to +0.0039)")
    assert lines[1].endswith("on 1,000 untouched rows.")
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert record["slices"][0]["name"] == "country = NL"
    assert record["verdict"] == found.verdict
    assert record["relative"] is None
