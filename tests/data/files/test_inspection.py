import json
from datetime import datetime, timedelta

import numpy as np
import pytest

from torchleap import DataError

pl = pytest.importorskip("polars")

from torchleap.data.files.convert import convert  # noqa: E402
from torchleap.data.files.inspection import inspect  # noqa: E402

ROWS = 1_000
DICE = np.random.default_rng(0)
LABEL = (DICE.random(ROWS) < 0.3).astype(int)
NOISE = DICE.normal(size=ROWS)


def frame(**columns):
    return pl.DataFrame({"click": LABEL, **columns})


def notes(data, name, **settings):
    return facts(data, name, **settings).notes


def facts(data, name, **settings):
    (found,) = [column for column in inspect(data, **settings).columns if column.name == name]
    return found


@pytest.fixture
def write(tmp_path):
    def write_text(text, name="rows.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_text


def test_ordinary_columns_have_no_notes():
    data = frame(x=NOISE, count=DICE.integers(0, 50, ROWS), city=DICE.choice(["a", "b", "c"], ROWS))
    found = inspect(data, label="click")
    assert [column.notes for column in found.columns] == [()] * 4
    assert [column.kind for column in found.columns] == [
        "label",
        "numeric",
        "numeric",
        "categorical",
    ]
    assert str(found).endswith("No column looks wrong.")


def test_shares_and_the_most_common_value_are_counted():
    column = facts(pl.DataFrame({"city": ["a", "b", "a", None, None, None, "a", "a"]}), "city")
    assert (column.missing, column.distinct, column.common, column.common_value) == (
        3 / 8,
        2,
        0.5,
        "a",
    )


def test_missing_counts_as_the_most_common_value_but_not_as_a_distinct_one():
    column = facts(pl.DataFrame({"x": [1.5, None, float("nan"), 2.5, None]}), "x")
    assert (column.missing, column.distinct, column.common, column.common_value) == (
        0.6,
        2,
        0.6,
        None,
    )


def test_words_for_missing_are_missing_in_text(write):
    column = facts(write("x,y\n1,a\nNA,b\n,c\nnull,d\n2.5,e\n"), "x")
    assert (column.missing, column.distinct, column.kind, column.dtype) == (
        0.6,
        2,
        "numeric",
        "Float64",
    )


def test_types_of_text_are_what_it_stands_for(write):
    path = write("whole,real,word\n" + "".join(f"{i},{i / 2},w{i % 3}\n" for i in range(20)))
    assert [column.dtype for column in inspect(path).columns] == ["Int64", "Float64", "String"]


def test_a_constant_column_is_noted():
    assert notes(frame(country=["de"] * ROWS), "country", label="click") == ("constant",)


def test_a_column_without_values_is_noted():
    assert notes(frame(x=pl.Series([None] * ROWS, dtype=pl.Float64)), "x", label="click") == (
        "all missing",
    )


def test_one_value_that_is_sometimes_missing_is_not_constant():
    assert notes(pl.DataFrame({"x": [1, None, 1, None]}), "x") == ()


def test_unique_ids_are_noted_but_not_measured_numbers():
    data = pl.DataFrame({"id": range(ROWS), "uuid": [f"u{i}" for i in range(ROWS)], "x": NOISE})
    assert notes(data, "id") == notes(data, "uuid") == ("a value of its own in every row",)
    assert notes(data, "x") == ()


def test_ids_in_text_differ_from_measured_numbers_even_beyond_64_bits(write):
    path = write("id,x\n" + "".join(f"{10**19 + i * 10**6},{i}.25\n" for i in range(50)))
    assert [column.notes for column in inspect(path).columns] == [
        ("a value of its own in every row",),
        (),
    ]


def test_a_column_at_its_default_is_noted():
    assert notes(pl.DataFrame({"x": [0] * 992 + [1, 2] * 4}), "x") == (
        "the same value in 99.2 % of rows",
    )
    assert notes(pl.DataFrame({"x": [None] * 992 + [1, 2] * 4}), "x") == (
        "missing in 99.2 % of rows",
    )


def test_a_share_short_of_all_does_not_read_as_all():
    assert notes(pl.DataFrame({"x": [0] * 9_999 + [1]}), "x") == (
        "the same value in >99.9 % of rows",
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_that_predicts_the_label_is_noted(sign):
    data = frame(leak=sign * (LABEL + 0.1 * NOISE))
    assert notes(data, "leak", label="click") == ("predicts the label: AUC 1.000",)


def test_a_category_that_predicts_the_label_is_noted():
    words = np.where(LABEL == 1, DICE.choice(["a", "b"], ROWS), DICE.choice(["c", "d", "e"], ROWS))
    assert notes(frame(leak=words), "leak", label="click") == ("predicts the label: AUC 1.000",)


def test_a_number_that_is_missing_where_the_label_is_0_predicts_it():
    data = frame(
        refund=pl.Series(NOISE).zip_with(
            pl.Series(LABEL == 1), pl.Series([None] * ROWS, dtype=pl.Float64)
        )
    )
    assert notes(data, "refund", label="click") == ("predicts the label: AUC 1.000",)


def test_a_code_whose_middle_value_predicts_the_label_is_noted():
    data = frame(code=np.where(LABEL == 1, 50, DICE.choice([0, 20, 70, 100], ROWS)))
    assert notes(data, "code", label="click") == ("predicts the label: AUC 1.000",)


def test_values_that_were_not_seen_before_tell_nothing():
    assert notes(frame(id=[f"u{i // 2}" for i in range(ROWS)]), "id", label="click") == ()


def test_leaks_are_found_though_labels_alternate():
    label = np.arange(ROWS) % 2
    data = pl.DataFrame(
        {
            "click": label,
            "leak": np.char.add(np.where(label, "p", "n"), DICE.integers(0, 9, ROWS).astype(str)),
        }
    )
    assert notes(data, "leak", label="click") == ("predicts the label: AUC 1.000",)


def test_few_rows_tell_too_little_for_a_leak():
    data = pl.DataFrame({"click": [0, 1, 0, 1, 0, 1], "x": [0.1, 0.7, 0.2, 0.8, 0.3, 0.9]})
    assert notes(data, "x", label="click") == ()


def test_a_renamed_label_is_noted():
    assert notes(frame(bought=np.where(LABEL, "yes", "no")), "bought", label="click") == (
        "same as the label 'click'",
    )


def test_a_copy_of_the_label_behind_a_threshold_is_noted():
    rating = DICE.integers(1, 6, ROWS)
    data = pl.DataFrame({"rating": rating, "liked": rating > 3, "stars": rating * 10})
    assert notes(data, "liked", label="rating", threshold=3) == ("same as the label 'rating'",)
    assert notes(data, "stars", label="rating", threshold=3) == ("same as the label 'rating'",)
    assert notes(data, "rating", label="rating", threshold=3) == ()


def test_columns_that_are_the_same_up_to_names_are_noted():
    movie = DICE.integers(0, 40, ROWS)
    data = pl.DataFrame(
        {
            "movie_id": movie,
            "title": [f"Movie {number}" for number in movie],
            "other": DICE.permutation(movie),
        }
    )
    assert [column.notes for column in inspect(data).columns] == [(), ("same as 'movie_id'",), ()]


def test_measured_numbers_are_the_same_only_if_they_are_equal():
    data = pl.DataFrame({"x": NOISE, "y": DICE.normal(size=ROWS), "copy": NOISE})
    assert [column.notes for column in inspect(data).columns] == [(), (), ("same as 'x'",)]


def test_numbers_that_are_missing_in_the_same_rows_are_not_the_same():
    gaps = pl.Series(DICE.random(ROWS) < 0.5)
    data = pl.DataFrame({"x": NOISE, "y": NOISE**2 + 1}).select(pl.when(gaps).then(pl.all()))
    assert [column.notes for column in inspect(data).columns] == [(), ()]


def test_text_among_numbers_is_noted_with_its_line(write):
    lines = [str(number) for number in range(100)]
    lines[41] = lines[57] = "n.a."
    (note,) = notes(write("x\n" + "\n".join(lines) + "\n"), "x")
    assert note == "numbers but for 2 rows, such as 'n.a.' in line 43"


def test_hashes_of_which_some_look_like_numbers_are_not_mixed(write):
    path = write("c\n" + "07815270\n" * 80 + "1fbe01fe\n28905ebd\n" * 10)
    assert notes(path, "c") == ()


def test_infinities_are_noted_with_the_first_row():
    assert notes(pl.DataFrame({"x": [0.5, 1.5, float("inf"), -float("inf")]}), "x") == (
        "2 infinite values, the first in row 3",
    )


def test_lists_are_described_by_their_lengths():
    data = pl.DataFrame({"tags": [["a", "b"], [], ["a"], None, ["a", "b", "c"], ["d"]]})
    column = facts(data, "tags")
    assert (column.kind, column.dtype, column.missing, column.distinct) == (
        "list",
        "List(String)",
        1 / 6,
        5,
    )
    assert column.notes == ("1.4 items per row, at most 3; 20.0 % are empty",)


def test_vectors_have_a_width_and_a_default():
    vectors = np.zeros((ROWS, 3), dtype=np.float32)
    vectors[:5] = DICE.normal(size=(5, 3))
    column = facts(pl.DataFrame({"v": pl.Series(vectors)}), "v")
    assert (column.kind, column.dtype, column.notes) == (
        "vector",
        "3 x Float32",
        ("the same value in 99.5 % of rows",),
    )
    assert column.common_value == "[0.0, 0.0, 0.0]"


def test_times_booleans_bytes_and_structs_are_understood():
    times = [datetime(2026, 1, 1) + timedelta(hours=i % 50) for i in range(ROWS)]
    data = frame(
        time=times,
        flag=DICE.random(ROWS) < 0.5,
        raw=[b"a", b"b"] * (ROWS // 2),
        pair=[{"a": i % 7} for i in range(ROWS)],
    )
    assert [column.distinct for column in inspect(data, label="click").columns] == [2, 50, 2, 2, 7]


def test_names_that_polars_would_expand_are_read_as_they_are():
    data = pl.DataFrame({"*": [1, 1], "^a.*$": ["x", "y"], "ab": [2, 3]})
    assert [column.name for column in inspect(data).columns] == ["*", "^a.*$", "ab"]


def test_only_the_first_rows_are_looked_at(write):
    path = write("x\n" + "1\n" * 10 + "2\n" * 10)
    found = inspect(path, rows=10)
    assert (found.rows, found.all_rows, found.columns[0].distinct) == (10, False, 1)
    assert "the first 10 rows" in str(found)
    assert inspect(path, rows=20).all_rows
    assert not inspect(pl.DataFrame({"x": [1, 2, 3]}), rows=2).all_rows


def test_json_is_plain():
    found = inspect(frame(x=NOISE, tags=[["a"]] * ROWS), label="click")
    content = found.to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["base_rate"] == pytest.approx(LABEL.mean())
    assert [column["name"] for column in content["columns"]] == ["click", "x", "tags"]


def test_the_table_is_aligned_and_fits_100_columns():
    lines = str(
        inspect(
            frame(x=NOISE, long=["a value that is far too long to be shown in full"] * ROWS),
            label="click",
        )
    ).splitlines()
    assert (
        lines[0]
        == f"the frame: 1,000 rows, 3 columns; click is 1 in {100 * LABEL.mean():.1f} % of rows"
    )
    assert lines[2].startswith("column  kind")
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(lines[3:6], ("label", "numeric", "categorical"), strict=True)
            }
        )
        == 1
    )
    assert max(map(len, lines)) <= 100


def test_escape_codes_and_line_breaks_of_the_data_are_not_printed():
    text = str(inspect(pl.DataFrame({"a\x1b[31m": ["x\n\ny", "x\n\ny", "z"]})))
    assert "\x1b" not in text
    assert text.count("\n\n") == 2


def test_progress_counts_columns():
    told = []
    inspect(frame(x=NOISE), progress=lambda *told_now: told.append(told_now))
    assert told == [("inspecting", 1, 2), ("inspecting", 2, 2)]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"label": "clik"}, "There is no column 'clik' for label=. Did you mean 'click'"),
        ({"rows": 0}, "rows must be a whole number of at least 1, but is 0."),
        (
            {"label": "click", "threshold": 1, "positive": 1},
            "Expected threshold= or positive=, but found both.",
        ),
        (
            {"threshold": 1},
            "threshold= and positive= say how to read the label, but there is none. "
            "Name its column: label=...",
        ),
        ({"label": "city", "positive": "aa"}, "No row has 'aa' in 'city'. Did you mean 'a'?"),
        ({"label": "city"}, "expected the label 0 or 1, but found 'a'"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(settings, sentence):
    with pytest.raises(DataError) as caught:
        inspect(frame(city=["a", "b"] * (ROWS // 2)), **settings)
    assert sentence in str(caught.value)


def test_no_rows_and_no_file_are_refused(write, tmp_path):
    with pytest.raises(DataError, match="has columns but no rows"):
        inspect(write("a,b\n"))
    with pytest.raises(DataError, match="There is no file"):
        inspect(tmp_path / "nothing.csv")


MIXED = "whole,real,word,gap,late\n" + "".join(
    f"{i},{i}.5,w{i},{'NA' if i % 2 else i},{i}\n" for i in range(300)
)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_numbers_of_text_become_numbers(write, tmp_path, ending):
    out = tmp_path / f"out.{ending}"
    assert convert(write(MIXED), out) == (300, 5)
    found = pl.read_parquet(out) if ending == "parquet" else pl.read_ipc(out)
    assert found.dtypes == [pl.Int64, pl.Float64, pl.String, pl.Int64, pl.Int64]
    assert found["whole"].to_list() == list(range(300))
    assert found["gap"].null_count() == 150


def test_a_column_that_turns_out_to_hold_fractions_or_words_late_keeps_every_value(write, tmp_path):
    rows = [f"{i},{i},{i}" for i in range(25_000)] + ["0.5,word,12345678901234567890"]
    convert(write("a,b,c\n" + "\n".join(rows) + "\n"), tmp_path / "out.parquet")
    found = pl.read_parquet(tmp_path / "out.parquet")
    assert found.dtypes == [pl.Float64, pl.String, pl.String]
    assert found.row(-1) == (0.5, "word", "12345678901234567890")


def test_parquet_goes_to_csv_and_arrow_and_back_unchanged(tmp_path):
    data = pl.DataFrame({"x": NOISE, "n": range(ROWS), "word": [f"a,{i}" for i in range(ROWS)]})
    data.write_parquet(tmp_path / "1.parquet")
    for old, new in (("1.parquet", "2.arrow"), ("2.arrow", "3.csv"), ("3.csv", "4.parquet")):
        convert(tmp_path / old, tmp_path / new)
    assert pl.read_parquet(tmp_path / "4.parquet").equals(data)


def test_lists_survive_and_are_refused_for_csv(tmp_path):
    pl.DataFrame({"tags": [["a"], []]}).write_parquet(tmp_path / "1.parquet")
    convert(tmp_path / "1.parquet", tmp_path / "2.arrow")
    assert pl.read_ipc(tmp_path / "2.arrow")["tags"].to_list() == [["a"], []]
    with pytest.raises(DataError, match="CSV cannot hold lists and vectors, as tags do"):
        convert(tmp_path / "1.parquet", tmp_path / "3.csv")


def test_a_file_that_is_there_is_overwritten_only_on_demand(write, tmp_path):
    out = write("old", "out.csv")
    with pytest.raises(DataError, match="is there already"):
        convert(write(MIXED), out)
    assert out.read_text() == "old"
    convert(write(MIXED), out, overwrite=True)
    assert out.read_text().startswith("whole,real")


def test_a_file_can_be_overwritten_with_itself(write):
    path = write(MIXED)
    convert(path, path, overwrite=True)
    assert path.read_text().splitlines()[:2] == ["whole,real,word,gap,late", "0,0.5,w0,0,0"]
    assert len(path.read_text().splitlines()) == 301


def test_an_interrupted_conversion_leaves_nothing_behind(write, tmp_path):
    def stop(what, done, total):
        if what == "writing":
            raise KeyboardInterrupt

    source = write(MIXED)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out.parquet", progress=stop)
    assert list(tmp_path.iterdir()) == [source]


def test_a_broken_file_is_explained_and_leaves_nothing_behind(tmp_path):
    source = tmp_path / "broken.csv"
    source.write_bytes(b"a,b\n1,2\n3,\xff\n")
    with pytest.raises(DataError, match="line 3: expected UTF-8"):
        convert(source, tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == [source]


def test_progress_counts_the_rows_of_both_passes(write, tmp_path):
    told = []
    convert(write(MIXED), tmp_path / "out.parquet", progress=lambda *now: told.append(now))
    assert told[0][0] == "finding types"
    assert told[-1] == ("writing", 300, 300)


@pytest.mark.parametrize(
    ("out", "sentence"),
    [("out.xlsx", "ends in .parquet or .arrow or .csv"), ("no/out.csv", "There is no folder")],
)
def test_impossible_targets_are_refused(write, tmp_path, out, sentence):
    with pytest.raises(DataError, match=sentence):
        convert(write(MIXED), tmp_path / out)
