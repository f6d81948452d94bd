import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from torchleap import Report, TorchleapError
from torchleap.bench.statistics import Mean
from torchleap.bench.tables import Table, interval_text, signed, write_tables

HOSTILE = st.text(max_size=8) | st.text(
    alphabet="|\\&%$#_{}~^±<>[]*`-\n\r\x85\u2028 a1", max_size=8
)
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.builds(
        Table,
        HOSTILE,
        st.tuples(*[HOSTILE] * width),
        st.lists(
            st.tuples(*[HOSTILE | st.floats() | st.none() | st.integers()] * width), max_size=4
        ).map(tuple),
        st.lists(HOSTILE, max_size=2).map(tuple),
    )
)
EXAMPLE = Table(
    "Test AUC at 50 %",
    ("method", "AUC", "difference", "fields", "verdict"),
    (
        ("leap_base", 0.80974, "+0.0032 ± 0.0005", 12, "better"),
        ("lasso", None, "-0.0100 ± 0.0020", 7, "worse"),
    ),
    ("Mean and 95 % interval.", "Reference: all fields."),
)
LATEX_NAMES = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textbar": "|"}


def cells_of_latex(row):
    """Read a row back as TeX does, and refuse what TeX would take for a command of its own."""
    assert row.endswith(r" \\")
    cells = [""]
    for token in re.findall(
        r"\\[a-z]+\{\}|\\.|\$(?:\\pm|[<>-])\$|\{[\[*]\}|.", row.removesuffix(r" \\")
    ):
        if token == "&":
            cells.append("")
        elif token.endswith("{}"):
            cells[-1] += LATEX_NAMES[token[1:-2]]
        elif token[0] == "$":
            cells[-1] += "±" if token == r"$\pm$" else token[1]
        elif len(token) == 3:
            cells[-1] += token[1]
        else:
            assert token[0] != "\\" or token[1] in "&%$#_{}", token
            assert len(token) == 2 or token not in set("%$#_{}~^<>|[*"), token
            cells[-1] += token[-1]
    return [cell.strip() for cell in cells]


def body_of_latex(text):
    lines = text.splitlines()
    start, middle, end = (lines.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert middle == start + 2
    return [lines[start + 1], *lines[middle + 1 : end]]


def test_text_stands_between_title_and_notes():
    lines = EXAMPLE.text().splitlines()
    assert lines[0] == "Test AUC at 50 %"
    assert lines[2].split() == ["method", "AUC", "difference", "fields", "verdict"]
    assert lines[4] == "lasso           -  -0.0100 ± 0.0020       7    worse"
    assert lines[-2:] == ["Mean and 95 % interval.", "Reference: all fields."]
    assert Table("t", ("a",), ()).text() == "t\n\na"


def test_a_cell_has_one_format_everywhere():
    row = (1 / 3, np.float32(0.25), 12345, np.int64(7), None, math.nan, -0.00001, "0.50", True)
    shown = ["0.3333", "0.2500", "12345", "7", "-", "-", "0.0000", "0.50", "True"]
    table = Table("t", tuple("abcdefghi"), (row,))
    assert table.record()["rows"] == [shown]
    assert table.text().splitlines()[-1].split() == shown
    assert table.markdown().splitlines()[-1].strip("| ").split(" | ") == shown
    assert cells_of_latex(body_of_latex(table.latex())[1]) == shown


def test_markdown_has_numbers_to_the_right_and_words_to_the_left():
    lines = EXAMPLE.markdown().splitlines()
    assert lines[0] == "### Test AUC at 50 %"
    assert lines[3] == "| --- | ---: | ---: | ---: | --- |"
    assert lines[4] == "| leap_base | 0.8097 | +0.0032 ± 0.0005 | 12 | better |"
    assert lines[-3:] == ["Mean and 95 % interval.", "", "Reference: all fields."]
    assert (
        "| --- | --- |" in Table("t", ("a", "b"), ((None, ""),)).markdown()
    )  # nothing is known of these columns
    assert "| --- | --- |" in Table("t", ("a", "b"), ()).markdown()


@given(TABLES)
def test_markdown_keeps_the_cells_of_every_row_whatever_their_text(table):
    tokens = MarkdownIt("commonmark").enable("table").parse(table.markdown())
    widths, rows = [], 0
    for token in tokens:
        rows += token.type == "tr_open"
        if token.type in ("th_open", "td_open"):
            widths.append(rows)
    assert [token.type for token in tokens].count("table_open") == 1
    assert [widths.count(row + 1) for row in range(rows)] == [len(table.columns)] * (
        len(table.rows) + 1
    )


@given(TABLES)
def test_markdown_has_no_bare_pipe_in_a_cell(table):
    """Some readers split at every pipe without a backslash; others know escaped backslashes."""
    grid = [line for line in table.markdown().split("\n")[2:] if line.startswith("| ")][
        : len(table.rows) + 2
    ]
    for line in grid:
        assert len(re.findall(r"(?<!\\)\|", line)) == len(table.columns) + 1
        assert len(re.findall(r"\|", re.sub(r"\\.", "", line))) == len(table.columns) + 1


def test_a_pipe_and_a_backslash_come_back_as_they_were():
    html = (
        MarkdownIt("commonmark")
        .enable("table")
        .render(Table("t", ("a", "b"), ((r"x|y\|z", "c\\"),)).markdown())
    )
    assert r"<td>x|y\|z</td>" in html
    assert "<td>c\\</td>" in html


def test_latex_is_a_complete_table_with_the_rules_of_booktabs():
    assert EXAMPLE.latex() == "\n".join(
        [
            r"\begin{table}[tbp]",
            r"\centering",
            r"\caption{Test AUC at 50 \%}",
            r"\begin{tabular}{lrrrl}",
            r"\toprule",
            r"method & AUC & difference & fields & verdict \\",
            r"\midrule",
            r"leap\_base & 0.8097 & +0.0032 $\pm$ 0.0005 & 12 & better \\",
            r"lasso & - & $-$0.0100 $\pm$ 0.0020 & 7 & worse \\",
            r"\bottomrule",
            r"\end{tabular}",
            r"\par\smallskip",
            r"{\footnotesize Mean and 95 \% interval.\par}",
            r"{\footnotesize Reference: all fields.\par}",
            r"\end{table}",
        ]
    )
    assert "footnotesize" not in Table("t", ("a",), ()).latex()


def test_latex_escapes_each_special_character():
    row = body_of_latex(Table("t", ("a",), (("& % $ # _ { } ~ ^ \\ ±",),)).latex())[1]
    assert (
        row
        == r"\& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{} \textbackslash{} $\pm$ \\"
    )


@given(TABLES)
def test_latex_prints_the_cells_whatever_their_text(table):
    shown = table.record()
    found = [cells_of_latex(row) for row in body_of_latex(table.latex())]
    assert found == [shown["columns"], *shown["rows"]]


@given(TABLES)
def test_a_record_is_plain_json_of_one_width(table):
    record = table.record()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert {len(row) for row in record["rows"]} <= {len(record["columns"])}
    assert all(
        len(cell.splitlines()) <= 1 for row in [record["columns"], *record["rows"]] for cell in row
    )
    assert (record["title"], record["notes"]) == (table.title, list(table.notes))


def test_the_report_shows_a_record_with_the_same_digits():
    page = Report({"format": 1, "kind": "bench", "tables": [EXAMPLE.record()]}).html()
    assert "Test AUC at 50 %" in page
    assert ">0.8097<" in re.sub(r"\s+", "", page)


def test_means_are_written_with_half_the_width_of_their_interval():
    assert interval_text(Mean(0.80971, 0.80911, 0.81031, 5)) == "0.8097 ± 0.0006"
    assert interval_text(Mean(0.80971, 0.80911, 0.81031, 5), digits=2) == "0.81 ± 0.00"
    assert interval_text(Mean(0.80971, math.nan, math.nan, 1)) == "0.8097"


def test_differences_are_written_with_their_sign():
    assert signed(Mean(0.0032, 0.0027, 0.0037, 5)) == "+0.0032 ± 0.0005"
    assert signed(Mean(-0.0032, -0.0042, -0.0022, 5), digits=3) == "-0.003 ± 0.001"
    assert signed(Mean(-0.00001, -0.00101, 0.00099, 5)) == "0.0000 ± 0.0010"
    assert signed(Mean(0.00001, math.nan, math.nan, 1)) == "0.0000"


def test_write_tables_leaves_three_complete_files(tmp_path):
    other = Table("Other", ("a",), ((1,),))
    write_tables([EXAMPLE, other], tmp_path / "new" / "folder", "auc.50")
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == [
        "auc.50.md",
        "auc.50.tex",
        "auc.50.txt",
    ]
    for ending, write in (("txt", Table.text), ("md", Table.markdown), ("tex", Table.latex)):
        text = (folder / f"auc.50.{ending}").read_text(encoding="utf-8")
        assert text.endswith("\n")
        assert text.index(write(EXAMPLE)) < text.index(write(other))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Table("auc", ("a", "b"), ((1, 2), (1,), (1, 2, 3))),
            "2 cells in each row.*'auc'.*row 1 has 1, row 2 has 3",
        ),
        (lambda: Table("auc", (), ()), "at least one column.*'auc'"),
    ],
)
def test_a_ragged_table_is_refused(call, message):
    with pytest.raises(TorchleapError, match=message):
        call()
