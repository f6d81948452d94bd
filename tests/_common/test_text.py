from torchleap._common.text import first_line, plural, table


def test_a_table_aligns_names_to_the_left_and_numbers_to_the_right():
    lines = table(["field", "gate"], [["a", "1.0"], ["long_name", "0.25"]]).splitlines()
    assert lines == ["field      gate", "a           1.0", "long_name  0.25"]


def test_a_table_without_rows_is_its_header():
    assert table(["field", "gate"], []) == "field  gate"


def test_plural():
    assert (plural(0, "field"), plural(1, "field"), plural(1_000, "field")) == (
        "0 fields",
        "1 field",
        "1,000 fields",
    )


def test_the_first_line_of_an_error_is_short_and_printable():
    assert first_line(ValueError("no such\x1b[31m file.\nTraceback")) == "no such?[31m file"
    assert first_line(ValueError("x" * 1000)) == "x" * 300
    assert first_line(KeyError()) == "KeyError"
