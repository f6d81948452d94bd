"""Labels in words: obvious ones are read, others are refused with their values and the cure."""

import polars as pl
import pytest

import torchleap as tl
from torchleap._common.errors import DataError
from torchleap.data.files.labels import obvious_positive


def read(values, **settings):
    frame = pl.DataFrame({"label": values, "x": range(len(values))})
    return tl.data.read(frame, label="label", split="order", shares=(1, 0, 0), **settings)


def read_csv(folder, values, **settings):
    path = folder / "rows.csv"
    path.write_text("label,x\n" + "".join(f"{value},{row}\n" for row, value in enumerate(values)))
    return tl.data.read(path, label="label", split="order", shares=(1, 0, 0), **settings)


@pytest.mark.parametrize(
    ("positive", "negative"),
    [
        ("True", "False"),
        ("true", "false"),
        ("TRUE", "FALSE"),
        ("t", "f"),
        ("yes", "no"),
        ("Yes", "No"),
        ("Y", "N"),
        ("click", "no-click"),
        ("clicked", "not clicked"),
        ("Converted", "not_converted"),
        ("fraud", "non-fraud"),
        ("pos", "neg"),
        ("Positive", "Negative"),
        ("1", "-1"),
        ("1.0", "-1.0"),
        ("1", "0"),
    ],
)
def test_two_words_with_an_obvious_meaning_need_no_option(positive, negative, tmp_path):
    task = read_csv(tmp_path, [positive, negative, negative, positive] * 5)
    assert task.train.label.tolist() == [1.0, 0.0, 0.0, 1.0] * 5


def test_numbers_and_truth_values_of_a_frame_are_read_as_well():
    assert read([True, False, False] * 5).train.label.tolist() == [1.0, 0.0, 0.0] * 5
    assert read([-1, 1, 1] * 5).train.label.tolist() == [0.0, 1.0, 1.0] * 5
    assert read([-1.0, 1.0, 1.0] * 5).train.label.tolist() == [0.0, 1.0, 1.0] * 5


def test_the_task_knows_which_value_was_taken_for_positive(tmp_path):
    assert read_csv(tmp_path, ["Y", "N"] * 10).roles["positive"] == "Y"
    assert read_csv(tmp_path, [1, 0] * 10).roles["positive"] is None


def test_the_positive_word_may_come_late(tmp_path):
    task = read_csv(tmp_path, ["no"] * 25_000 + ["yes"])
    assert task.train.label.tolist()[-2:] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            ["red", "blue", "blue"],
            r"two values, 'blue' \(10 rows\) and 'red' \(5 rows\): "
            "say which one is 1: positive='red'",
        ),
        (
            ["low", "mid", "high"],
            r"It has 3 values: '\w+' \(5 rows\), '\w+' \(5 rows\), '\w+' \(5 rows\)\. .* positive=",
        ),
        (["yes", "no", "maybe"], r"It has 3 values"),
        (["yes", "no", "YES"], r"It has 3 values"),
        (
            [0, 1, 2],
            r"It has 3 values: '0' \(5 rows\), '1' .*, '2' .* threshold=1 \(above it is 1\); "
            ".* positive='2'",
        ),
        (
            [1, 2, 2],
            r"two values, '1' \(5 rows\) and '2' \(10 rows\): say which one is 1: positive='2'",
        ),
        (
            [3.5, 4.0, 1.0, 2.0, 5.0, 2.5, 0.5],
            r"If it is a rating, say from where on it counts as 1: threshold=2.5",
        ),
        (["yes"], r"It has the one value 'yes' \(5 rows\)"),
    ],
)
def test_other_labels_are_refused_with_their_values(values, words):
    with pytest.raises(DataError, match=f"expected the label 0 or 1, but found .*{words}"):
        read(values * 5)


def test_many_values_are_counted_and_long_ones_are_cut():
    with pytest.raises(DataError, match=r"It has 50 values: .* and 44 more\.") as caught:
        read([f"{'long' * 1000} {row}" for row in range(50)])
    assert len(str(caught.value)) < 900


def test_a_value_that_no_row_has_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(DataError, match=r"No row has 'Yes' in 'label'\. Did you mean 'yes'\?"):
        read_csv(tmp_path, ["yes", "no"] * 10, positive="Yes")


def test_a_number_may_be_given_as_text_as_the_command_line_does():
    assert read([2.0, 1.0, 1.0] * 5, positive="2").train.label.tolist() == [1.0, 0.0, 0.0] * 5
    assert read(["2.0", "1", "1"] * 5, positive="2").train.label.tolist() == [1.0, 0.0, 0.0] * 5


def test_inspect_reads_the_same_words(tmp_path):
    frame = pl.DataFrame({"label": ["yes", "no"] * 50, "x": range(100)})
    assert tl.data.inspect(frame, label="label").base_rate == 0.5


@pytest.mark.parametrize(
    "values", [["table", "notable"], ["a", "b"], ["yes"], ["yes", "no", "n"], ["2", "1"]]
)
def test_what_is_not_obvious_is_not_guessed(values):
    assert obvious_positive(values) is None
