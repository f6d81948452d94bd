"""The words about a certificate on the page."""

import pytest

from torchleap.report import Report
from torchleap.report.certificate import (
    certificate_rows,
    excluded,
    left_out,
    slice_rows,
    slices_note,
)
from torchleap.report.numbers import MINUS, UNKNOWN

from .records import certificate_record, select_record


def with_certificate(**parts):
    return select_record(12) | {
        "certificate": certificate_record(-0.0003, (-0.0009, 0.0003), **parts)
    }


def test_the_parts_of_a_certificate_are_listed():
    assert certificate_rows(with_certificate()) == [
        ("Accepted loss, the margin", "0.001 of AUC"),
        ("Measured change", f"{MINUS}0.0003, 95 % interval {MINUS}0.0009 to +0.0003"),
        ("Largest loss not excluded", "0.0008, one-sided at 95 %"),
        ("Untouched test rows", "10,000, 900 of the rarer class"),
        ("Another training", "not covered, typically 0.0007 (standard deviation)"),
    ]
    assert certificate_rows(select_record(12) | {"certificate": None}) == []


@pytest.mark.parametrize(
    ("parts", "name", "words"),
    [
        ({"relative": 0.01, "margin": 0.0083}, "Accepted loss, the margin", "0.0083 of AUC, 1.0 %"),
        ({"largest_loss": -0.1}, "Largest loss not excluded", "none"),
        ({"unit": "user", "units": 70}, "Untouched test rows", "rarer class, of 70 groups (user)"),
        ({"support": 10_000}, "Untouched test rows", "10,000"),
        ({"typical_training": None}, "Another training", "not covered, of unknown size"),
        (
            {"repeats": 3, "training_deviation": 0.0021},
            "Another training",
            "covered by 3 trainings, standard deviation 0.0021",
        ),
    ],
)
def test_a_part_has_the_words_of_its_values(parts, name, words):
    assert words in dict(certificate_rows(with_certificate(**parts)))[name]


def test_on_few_rows_no_change_is_listed():
    names = [name for name, _ in certificate_rows(with_certificate(support=9))]
    assert names == ["Accepted loss, the margin", "Untouched test rows", "Another training"]


def test_a_bound_that_is_not_known_is_left_out():
    record = with_certificate(largest_loss=None)
    assert excluded(record) == "The margin is 0.001."
    assert "Largest loss not excluded" not in dict(certificate_rows(record))


def test_the_page_shows_what_a_verdict_leaves_out():
    record = with_certificate()
    page = Report(record).html()
    assert "Can I ship this? <b>Yes, it is safe</b>" in page
    (note,) = left_out(record)
    assert f'<p class="aside">{note}</p>' in page
    assert '<section id="verdict" class="verdict safe"' in page


def test_the_page_of_an_older_record_has_no_certificate():
    record = select_record(12)
    del record["certificate"]
    page = Report(record).html()
    assert "Can I ship this? <b>Not certified</b>" in page
    assert "can go" not in page
    assert "Accepted loss" not in page


SLICE = {
    **{"name": "country = <NL>", "field": "country", "dropped": True, "rows": 2041},
    **{"change": -0.0213, "lowest": -0.034, "p": 0.0004, "is_damaged": True},
}


def test_the_worst_slices_are_a_table():
    harmless = SLICE | {"dropped": False, "lowest": 0.001, "is_damaged": False}
    unknown = SLICE | {"lowest": None}
    parts = {"slices": [SLICE, harmless, unknown], "slices_examined": 612, "slice_margin": 0.01}
    record = with_certificate(**parts)
    first, second, third = slice_rows(record)
    assert list(first.values())[1:] == [
        *("dropped", "2,041", f"{MINUS}0.0213", "0.0340", "damaged", True)
    ]
    assert (second["field"], second["loss"]) == ("kept", "none")
    assert second["verdict"] == "no damage shown"
    assert third["loss"] == UNKNOWN
    assert "the worst of 612" in slices_note(record)
    assert "more than 0.01 is surely lost" in slices_note(record)
    page = Report(record).html()
    assert "country = &lt;NL&gt;</td><td>dropped</td><td>2,041</td>" in page
    assert '<a href="#slices">Slices</a>' in page


def test_a_page_without_slices_has_no_section_for_them():
    assert slice_rows(select_record(12) | {"certificate": None}) == []
    assert 'id="slices"' not in Report(with_certificate()).html()
