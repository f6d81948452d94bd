"""What a result may suffer from is found in the file, the worst first, each with a cure."""

import numpy as np
import polars as pl
import pytest

import torchleap as tl
from torchleap._common.errors import DataError

ROWS = 400


def columns(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "click": rng.integers(0, 2, ROWS),
        "x": rng.normal(size=ROWS),
        "city": rng.choice(["Rome", "Oslo", "Lima"], ROWS),
    }


def found(tmp_path, label="click", head=None, **more):
    frame = pl.DataFrame(columns() | more)
    path = tmp_path / "rows.csv"
    text = frame.write_csv(separator=";")
    path.write_text(text if head is None else head + text[text.index("\n") :])
    return tl.data.inspect(path, label=label).findings


def test_a_healthy_file_has_no_findings(tmp_path):
    assert found(tmp_path) == ()


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        (
            lambda rng: [f"{v:.2f}".replace(".", ",") for v in rng.uniform(1, 99, ROWS)],
            "number",
            "numbers with a decimal comma",
        ),
        (
            lambda rng: [f"${v:.2f}" for v in rng.uniform(1, 99, ROWS)],
            "number",
            "amounts with a sign or unit",
        ),
        (
            lambda rng: [f"{v:.2f} €" for v in rng.uniform(1, 99, ROWS)],
            "number",
            "amounts with a sign or unit",
        ),
        (
            lambda rng: [f"{v} %" for v in rng.integers(1, 99, ROWS)],
            "number",
            "amounts with a sign or unit",
        ),
        (lambda rng: [f"{v:,}" for v in rng.integers(100, 99_999, ROWS)], "number", "numbers with"),
        (
            lambda rng: [f"2024-03-{v:02d}" for v in rng.integers(1, 28, ROWS)],
            "date",
            "dates, such as '2024-03-",
        ),
        (
            lambda rng: [f"{v:02d}.03.2024 10:00" for v in rng.integers(1, 28, ROWS)],
            "date",
            "dates, such as",
        ),
    ],
)
def test_numbers_and_dates_that_become_categories_are_found(values, kind, words, tmp_path):
    (one,) = found(tmp_path, price=values(np.random.default_rng(1)))
    assert (one.kind, one.column) == (kind, "price")
    assert one.text.startswith(words)


@pytest.mark.parametrize(
    "values", [["a1", "b2"], ["10-20", "20-30"], ["v1.2", "v1.3"], ["S", "M"], ["1", "2"]]
)
def test_plain_categories_are_not_taken_for_numbers_or_dates(values, tmp_path):
    assert found(tmp_path, size=np.random.default_rng(1).choice(values, ROWS)) == ()


def test_a_leak_comes_first_and_names_the_setting_that_drops_it(tmp_path):
    label = columns()["click"]
    leaks = {"refunded": np.where(label == 1, "r", "k"), "id": [f"k{row}" for row in range(ROWS)]}
    first, second = found(tmp_path, **leaks)
    assert (first.kind, first.column) == ("leak", "refunded")
    assert "drop=['refunded']" in first.cure
    assert (second.kind, second.text) == ("id", "a value of its own in every row")


def test_ids_of_which_a_few_repeat_are_ids(tmp_path):
    rng = np.random.default_rng(0)
    (one,) = found(tmp_path, session=[f"s{row}" for row in rng.integers(0, 20 * ROWS, ROWS)])
    assert (one.kind, one.column) == ("id", "session")


def test_columns_that_are_the_same_are_found(tmp_path):
    (one,) = found(tmp_path, town=columns()["city"])
    assert (one.kind, one.text) == ("twin", "same as 'city'")


def test_columns_of_one_value_and_of_none_are_found_last(tmp_path):
    ids = [f"k{row}" for row in range(ROWS)]
    about = found(tmp_path, country=["IT"] * ROWS, note=[None] * ROWS, key=ids)
    assert [(one.kind, one.column, one.text) for one in about[1:]] == [
        ("constant", "country", "constant"),
        ("constant", "note", "all missing"),
    ]
    assert about[1].cure == "It says nothing; leave it out: drop=['country']."


def test_a_name_that_stands_twice_is_found(tmp_path):
    renamed = found(
        tmp_path, head="click;x;city;city", other=np.random.default_rng(1).integers(0, 50, ROWS)
    )
    assert [(one.kind, one.column) for one in renamed] == [("renamed", "city_duplicated_0")]


def test_a_file_without_a_header_is_found(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(pl.DataFrame(columns()).write_csv(include_header=False))
    first, *_ = tl.data.inspect(path).findings
    assert (first.kind, first.column) == ("header", None)
    assert "looks like data" in first.text
    assert "looks like data" in str(tl.data.inspect(path))
    assert tl.data.inspect(path, names=["click", "x", "city"]).findings == ()


def test_a_label_that_is_missed_in_such_a_file_gets_the_cure(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(pl.DataFrame(columns()).write_csv(include_header=False))
    with pytest.raises(DataError, match=r"The first line looks like data.*names=\[\.\.\.\]"):
        tl.data.read(path, label="click")


def test_years_as_names_are_names(tmp_path):
    rng = np.random.default_rng(0)
    years = {str(year): rng.uniform(0, 1, ROWS) for year in range(2015, 2024)}
    assert found(tmp_path, **years) == ()


def test_rows_that_repeat_are_found_unless_chance_repeats_them(tmp_path):
    frame = pl.DataFrame(columns())
    (one,) = tl.data.inspect(pl.concat([frame, frame.head(40)]), label="click").findings
    assert one.text == "40 rows of 440 are the same as an earlier one"
    assert tl.data.inspect(frame.select("click", "city"), label="click").findings == ()


def test_findings_are_in_the_json_and_the_table(tmp_path):
    frame = pl.DataFrame(columns() | {"price": [f"{row},5" for row in range(ROWS)]})
    inspected = tl.data.inspect(frame, label="click")
    assert inspected.to_json()["findings"][0]["kind"] == "number"
    assert "numbers with a decimal comma, such as '0,5'" in str(inspected)


def test_columns_that_are_not_inspected_have_no_findings(tmp_path):
    frame = pl.DataFrame(columns() | {"same": columns()["click"]})
    assert tl.data.inspect(frame, label="click", only=["x", "city"]).findings == ()
    assert [one.name for one in tl.data.inspect(frame, label="click", only=["x"]).columns] == [
        "click",
        "x",
    ]


def test_a_positive_word_that_comes_after_the_rows_that_are_looked_at(tmp_path):
    frame = pl.DataFrame({"y": ["no"] * 300 + ["yes"] * 10, "x": range(310)})
    assert tl.data.inspect(frame, label="y", rows=100).base_rate == 0
    assert tl.data.inspect(frame, label="y", positive="yes", rows=100).base_rate == 0
