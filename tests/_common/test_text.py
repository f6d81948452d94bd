from torchleap._common.text import plural, table


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
