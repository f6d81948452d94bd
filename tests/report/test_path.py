"""The path in a report: its chart, the worth of the fields, and the words of its rules."""

import json
from itertools import pairwise

import pytest

from torchleap._common.errors import TorchleapError
from torchleap.pipeline.record import PathPointRecord, SelectRecord, SubstituteRecord
from torchleap.report import Report, numbers, script, verdict
from torchleap.report.charts import charts_of
from torchleap.report.charts.path import path_best, path_points, path_selected
from torchleap.report.nats import nats_axis, symlog
from torchleap.report.record import checked, has_gates, threshold
from torchleap.report.select import select_context
from torchleap.report.shape import misfits

from .records import UGLY, path_record, select_record


def drawn(record):
    return charts_of(checked(record))


def context_of(record):
    record = checked(record)
    return select_context(record, charts_of(record))


def small_path(metrics, *, rule=None, kept=2, **more):
    """Return a record of as many fields as metrics; field 0 closes first."""
    names = [f"f{place}" for place in range(len(metrics))]
    fields = [
        {"name": name, "width": 2, "cost": 2.0, "score": place / 100, "worth": place / 100}
        for place, name in enumerate(names)
    ]
    for field in fields[-kept:]:
        field["kept"] = True
    points = []
    for place, metric in enumerate(metrics):
        open_fields = names[place:]
        point = {
            "kept": open_fields,
            "closed": names[place - 1 : place] if place else [],
            "dims": 2 * len(open_fields),
            "cost": 2.0 * len(open_fields),
            "metric": metric,
            "low": metric - 0.01,
            "high": metric + 0.01,
            "behind": max(metrics[: place + 1]) - metric,
            "error": 0.02,
            "price": 1e-4 * (place + 1),
        }
        points.append(point)
    path = {"metric": "auc", "points": points, "substitutes": []}
    return {
        "format": 1,
        "kind": "select",
        "method": "leap",
        "rule": rule or {"tolerance": "1se"},
        "fields": fields,
        "path": path,
        **more,
    }


# ---- the record ----


def test_a_complete_record_with_a_path_fits_its_schema():
    assert list(misfits(path_record(12), SelectRecord, "record")) == []


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"path": []}, "expected a dict as record.path"),
        ({"path": {"metric": 1}}, "expected text as record.path.metric"),
        ({"path": {"points": [{"kept": "a"}]}}, "expected a list as record.path.points[0].kept"),
        ({"path": {"points": [{"low": "0"}]}}, "expected a number as record.path.points[0].low"),
        ({"path": {"substitutes": [{"field": 3}]}}, "text as record.path.substitutes[0].field"),
        ({"fields": [{"worth_low": "x"}]}, "expected a number as record.fields[0].worth_low"),
    ],
)
def test_a_part_of_a_path_of_another_type_is_named(part, sentence):
    (problem,) = misfits(part, SelectRecord, "record")
    assert sentence in problem


@pytest.mark.parametrize("missing", ["metric", "points", "substitutes"])
def test_any_part_of_a_path_may_be_missing(missing):
    record = path_record(12)
    record["path"][missing] = None
    assert "</html>" in Report(record).html()
    del record["path"][missing]
    assert "</html>" in Report(record).html()


@pytest.mark.parametrize("missing", sorted(PathPointRecord.__annotations__))
def test_any_part_of_a_point_may_be_missing(missing):
    record = path_record(12)
    for point in record["path"]["points"]:
        point[missing] = None
    assert "</html>" in Report(record).html()


@pytest.mark.parametrize("missing", sorted(SubstituteRecord.__annotations__))
def test_any_part_of_a_substitute_may_be_missing(missing):
    record = path_record(12)
    for one in record["path"]["substitutes"]:
        one[missing] = None
    has_names = missing in ("before", "after")
    assert ("Fields that took over" in Report(record).html()) is has_names


@pytest.mark.parametrize("missing", ["worth", "worth_low", "worth_high", "score", "width", "cost"])
def test_any_part_of_a_field_with_worth_may_be_missing(missing):
    record = path_record(40)
    for field in record["fields"]:
        field[missing] = None
    assert "</html>" in Report(record).html()


def test_a_damaged_path_is_refused():
    record = path_record(12)
    record["path"]["points"][3]["metric"] = "high"
    with pytest.raises(TorchleapError, match=r"a number as record\.path\.points\[3\]\.metric"):
        Report(record)


# ---- the chart ----


def test_the_chart_has_a_point_for_each_number_of_fields_with_its_interval():
    rows = drawn(small_path([0.8, 0.81, 0.7])).data["path"]
    assert [(row["fields"], row["dims"], row["metric"]) for row in rows] == [
        (3, 6, 0.8),
        (2, 4, 0.81),
        (1, 2, 0.7),
    ]
    assert (rows[0]["low"], rows[0]["high"]) == (0.79, 0.81)


def test_a_tooltip_names_the_metric_the_price_and_what_closes_next():
    rows = drawn(small_path([0.8, 0.81, 0.7])).data["path"]
    assert rows[1]["tip"] == {
        "title": "2 fields",
        "lines": [
            ("AUC", "0.8100 (0.8000 to 0.8200)"),
            ("dimensions", "4"),
            ("price", "0.0002 nats"),
            ("closes next", "f1"),
        ],
    }
    assert "closes next" not in dict(rows[2]["tip"]["lines"])


def test_a_tooltip_has_a_few_of_many_names():
    record = small_path([0.8] * 3)
    record["path"]["points"][1]["closed"] = list("abcde")
    lines = dict(drawn(record).data["path"][0]["tip"]["lines"])
    assert lines["closes next"] == "a, b, c and 2 more"


def test_the_best_point_and_the_selection_are_marked():
    best, selection = drawn(small_path([0.8, 0.81, 0.805, 0.7], kept=2)).data["path_marks"]
    assert (best["fields"], best["mark"]) == (3, "best: 3 fields, AUC 0.8100")
    assert (selection["fields"], selection["mark"]) == (2, "selection: 2 fields, AUC 0.8050")


def test_the_best_point_is_the_lowest_where_lower_is_better():
    record = small_path([0.5, 0.4, 0.6])
    record["path"]["metric"] = "log_loss"
    assert path_best(record) == 1


def test_of_equal_metrics_the_one_with_most_fields_is_the_best():
    assert path_best(small_path([0.7, 0.8, 0.8, 0.6])) == 1


def test_a_selection_beside_the_path_is_marked_at_the_nearest_point():
    record = small_path([0.8, 0.81, 0.805, 0.7], kept=3)
    del record["path"]["points"][1]
    selection = drawn(record).data["path_marks"][1]
    assert selection["mark"] == "selection: 3 fields; nearest point: 4 fields, AUC 0.8000"


def test_of_points_with_as_many_fields_the_one_with_the_same_fields_is_the_selection():
    record = small_path([0.8, 0.81, 0.805])
    other = {**record["path"]["points"][1], "kept": ["f0", "f1"]}
    record["path"]["points"].insert(1, other)
    assert path_selected(record) == 2


@pytest.mark.parametrize(
    ("rule", "within"),
    [
        ({"tolerance": "1se"}, [True, True, True, False]),
        ({"tolerance": 0.001}, [True, True, False, False]),
        ({"tolerance": 0.2}, [True, True, True, True]),
        ({"share": 0.5}, [True, True, True, True]),
    ],
)
def test_points_outside_the_tolerance_are_hollow(rule, within):
    record = small_path([0.8, 0.81, 0.795, 0.7], rule=rule)
    assert [row["within"] for row in drawn(record).data["path"]] == within


def test_points_before_the_best_one_are_never_hollow():
    record = small_path([0.8, 0.7, 0.81, 0.7])
    assert [row["within"] for row in drawn(record).data["path"]] == [True, True, True, False]


def limits_of(record):
    return drawn(record).specs["path"]["layer"][1]["encoding"]["y"]["scale"]


def views(limits):
    """Return the ends of the axis of the metric with all points, and near the best."""
    found = []
    for key in ("domainMin", "domainMax"):
        condition, near = limits[key]["expr"].split(" : ")
        complete = condition.removeprefix("complete ? ")
        found.append((float(complete), float(near)))
    return [pytest.approx(view, abs=1e-9) for view in zip(*found, strict=True)]


def test_the_chart_begins_near_the_best_points_where_the_last_are_far_below():
    record = small_path([0.8, 0.81, 0.805, 0.8, 0.5], kept=3)
    # Points down to the selection span 0.79 to 0.82; as much is shown below, and a margin of 5 %.
    assert views(limits_of(record)) == [(0.49 - 0.0165, 0.82 + 0.0165), (0.757, 0.823)]
    assert context_of(record)["path"]["close_view"]


def test_where_lower_is_better_the_far_points_are_above():
    record = small_path([0.4, 0.41, 0.4, 0.41, 0.9], kept=3)
    record["path"]["metric"] = "log_loss"
    assert views(limits_of(record))[1] == (0.39 - 0.003, 0.45 + 0.003)


def test_points_that_fit_into_one_view_need_no_switch():
    record = small_path([0.8, 0.81, 0.8])
    low, high = limits_of(record)["domain"]
    assert 0.7 < low < 0.79
    assert 0.82 < high < 0.9
    assert not context_of(record)["path"]["close_view"]
    assert 'name="complete"' not in Report(record).html()


def test_the_usual_cost_is_not_an_axis_of_its_own():
    assert list(context_of(path_record(12))["path"]["axes"]) == ["fields", "dims"]
    assert list(context_of(path_record(12, costs=True))["path"]["axes"]) == [
        "fields",
        "dims",
        "cost",
    ]


def test_the_path_takes_the_place_of_the_curve_by_masking():
    assert "return" in drawn(select_record(12)).specs
    record = path_record(12)
    assert record["curve"]["points"]
    specs = drawn(record).specs
    assert next(iter(specs)) == "path"
    assert "return" not in specs
    page = Report(record).html()
    assert page.index('data-chart="path"') < page.index('id="gates"')
    assert page.count('id="planner"') == 1
    assert 'id="budget"' not in page


@pytest.mark.parametrize("points", [0, 1])
def test_without_two_points_the_curve_by_masking_stays(points):
    record = path_record(12)
    del record["path"]["points"][points:]
    specs = drawn(record).specs
    assert "path" not in specs
    assert "return" in specs
    assert script.script_data(checked(record))["path"] is None
    page = Report(record).html()
    assert 'id="path"' not in page
    assert page.count('id="planner"') == 1


def test_points_without_fields_or_a_metric_are_left_out():
    record = small_path([0.8, 0.81, 0.805, 0.7])
    record["path"]["points"][1]["metric"] = None
    record["path"]["points"][2]["kept"] = []
    record["path"]["points"].append(None)
    assert [point["metric"] for point in path_points(checked(record))] == [0.8, 0.7]


def test_the_planner_knows_which_fields_close_at_each_point():
    record = small_path([0.8, 0.81, 0.7])
    found = script.script_data(checked(record))["path"]
    assert found["metric"] == "AUC"
    assert [point["closed"] for point in found["points"]] == [[], [0], [1]]
    assert found["points"][2]["text"] == "0.7000 (0.6900 to 0.7100)"


def test_long_paths_keep_the_page_small():
    page = Report(path_record(500, steps=400)).html()
    assert len(page.encode()) < 2_000_000


# ---- worth ----


def test_scores_of_a_record_with_a_path_are_not_gates():
    record = small_path([0.8, 0.81], rule={"threshold": 0.5})
    assert not has_gates(record)
    assert threshold(record) is None
    del record["path"]
    for field in record["fields"]:
        del field["worth"]
    assert has_gates(record)
    assert threshold(record) == 0.5


def test_the_axis_of_worth_spans_decades_on_both_sides_of_zero():
    record = path_record(40)
    axis = nats_axis(record)
    lows = [field["worth_low"] for field in record["fields"]]
    highs = [field["worth_high"] for field in record["fields"]]
    assert (axis.low, axis.high) == (min(lows), max(highs))
    assert axis.constant == 1e-4
    assert {0.0, 0.01} <= set(axis.ticks)
    scale = drawn(record).specs["ranks"]["layer"][-1]["encoding"]["y"]["scale"]
    assert (scale["type"], scale["constant"]) == ("symlog", 1e-4)


@pytest.mark.parametrize(
    "scores", [[0.0], [3e-7, -1e-7], [0.2, 0.1, -0.3], [5.0, -1e-5], [-0.02, -0.003], [2e-3]]
)
def test_ticks_of_worth_are_apart_and_inside(scores):
    fields = [{"name": str(score), "score": score, "worth": score} for score in scores]
    axis = nats_axis({"fields": fields})
    places = [symlog(tick, axis.constant) for tick in axis.ticks]
    length = symlog(axis.high, axis.constant) - symlog(axis.low, axis.constant)
    assert 2 <= len(places) <= 7
    assert axis.low <= min(axis.ticks) <= max(axis.ticks) <= axis.high
    gaps = [right - left for left, right in pairwise(places)]
    assert min(gaps) >= 0.15 * length * (1 - 1e-9)


def test_fields_are_ordered_by_worth_and_drawn_with_their_intervals():
    record = path_record(40)
    rows = drawn(record).data["fields"]
    worths = [row["score"] for row in rows]
    assert worths == sorted((field["worth"] for field in record["fields"]), reverse=True)
    assert all(row["low"] < row["score"] < row["high"] for row in rows)
    whiskers = drawn(record).specs["ranks"]["layer"][-2]
    assert whiskers["encoding"]["y2"] == {"field": "high"}
    assert len(drawn(select_record(40)).specs["ranks"]["layer"]) == 3  # two of the threshold


def test_the_table_has_the_worth_with_its_interval_in_place_of_the_score():
    record = small_path([0.8, 0.81])
    record["fields"][1] |= {"worth": 0.0312, "score": 0.0312}
    record["fields"][1] |= {"worth_low": 0.0298, "worth_high": 0.0326}
    data = script.script_data(checked(record))
    titles = [column["title"] for column in data["columns"]]
    assert titles[:3] == ["Field", "Decision", "Worth in nats"]
    assert "Score" not in titles
    assert [field["shown"][2] for field in data["fields"]] == ["0", "0.0312 (0.0298 to 0.0326)"]
    assert [field["amount"] for field in data["fields"]] == ["0", "0.031"]
    assert data["sorted"] == "worth"


def test_scores_that_are_not_the_worth_have_a_column_of_their_own():
    record = small_path([0.8, 0.81])
    record["fields"][1]["score"] = 7.0
    titles = [column["title"] for column in script.script_data(checked(record))["columns"]]
    assert titles[2:4] == ["Worth in nats", "Score"]


def test_without_intervals_there_are_no_whiskers():
    data = script.script_data(checked(small_path([0.8, 0.81])))
    assert {field["whisker"] for field in data["fields"]} == {None}
    data = script.script_data(checked(path_record(12)))
    assert None not in {field["whisker"] for field in data["fields"]}


@pytest.mark.parametrize(
    ("value", "bounds", "text"),
    [
        (0.0001, (-1e-7, 0.00021), "0.00010 (0.00000 to 0.00021)"),
        (0.5, (0.5, 0.5), "0.5 (0.5 to 0.5)"),
        (None, (0.1, 0.2), numbers.UNKNOWN),
    ],
)
def test_a_worth_is_written_with_the_decimals_that_its_interval_allows(value, bounds, text):
    assert numbers.worth_interval(value, bounds) == text


# ---- a path by masking ----


def masked_path_of(method, *, worth, rule=None):
    """Return a record whose points have neither a price nor a step."""
    record = small_path([0.8, 0.81, 0.7], rule=rule)
    for point in record["path"]["points"]:
        point |= {"price": None, "step": None}
    record["path"]["adapted"] = False
    record["method"] = method
    if not worth:
        for field in record["fields"]:
            field["worth"] = None
    return record


def test_a_path_by_masking_is_labelled_wherever_it_is_shown():
    record = masked_path_of("permutation", worth=True)
    assert list(misfits(record, SelectRecord, "record")) == []
    chart = drawn(record)
    title = "AUC on validation rows, without adaptation"
    assert chart.specs["path"]["layer"][1]["encoding"]["y"]["title"] == title
    assert [line[0] for line in chart.data["path"][0]["tip"]["lines"]] == [
        *("AUC", "dimensions", "masked next")
    ]
    assert context_of(record)["script"]["path"]["unadapted"] == ", without adaptation"
    page = Report(record).html()
    assert "one field after the other is replaced by its mean" in page
    assert "for what is masked next" in page
    assert "rise of the held-out loss without it, in nats" in page
    for words in ("The price of an open gate rises", "closes next", "while it closed"):
        assert words not in page
    assert page.count(verdict.rule(record)) == 1


def test_a_path_of_adapted_models_is_not_labelled():
    record = small_path([0.8, 0.81, 0.7])
    assert drawn(record).specs["path"]["layer"][1]["encoding"]["y"]["title"] == (
        "AUC on validation rows"
    )
    assert context_of(record)["script"]["path"]["unadapted"] == ""
    assert "without adaptation" not in Report(record).html().replace("unadapted", "")


def test_a_path_without_worth_shows_the_scores():
    context = context_of(masked_path_of("sfs", worth=False))
    assert not context["nats"]
    assert context["score"] == "gradient by a mask"


@pytest.mark.parametrize(("rule", "nats"), [({"tolerance": 0.1}, False), ({"worth": 0.01}, True)])
def test_shark_is_shown_by_its_scores_unless_the_worth_decides(rule, nats):
    record = masked_path_of("shark", worth=True, rule=rule)
    for field, score in zip(record["fields"], (3.0, 2.0, 1.0), strict=True):
        field |= {"score": score, "worth_low": -1.0, "worth_high": 1.0}
    context = context_of(record)
    assert context["nats"] == nats
    own = context["script"]
    assert own["order"] == ([2, 1, 0] if nats else [0, 1, 2])
    assert [field["bar"] for field in own["fields"]] == ([0.0, 0.01, 0.02] if nats else [3, 2, 1])
    assert (own["fields"][0]["whisker"] is not None) == nats
    assert own["sorted"] == ("worth" if nats else "score")
    assert {"worth", "score"} <= {column["key"] for column in own["columns"]}
    rows = drawn(record).data["fields"]
    assert [row["score"] for row in rows] == ([0.02, 0.01, 0.0] if nats else [3.0, 2.0, 1.0])


# ---- words ----


def test_substitutes_are_a_table_that_is_left_out_when_empty():
    record = small_path([0.8, 0.81])
    assert "Fields that took over" not in Report(record).html()
    record["path"]["substitutes"] = [
        {"closed": "title", "field": UGLY[0], "before": 0.002, "after": 0.03}
    ]
    page = Report(record).html()
    assert UGLY[0] not in page
    assert "<td>title</td><td>&lt;script&gt;" in page
    assert "rose from 0.002 to 0.03 nats" in page


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            {"tolerance": "1se"},
            "The fewest fields are kept whose AUC is at most one standard error worse than the "
            "best.",
        ),
        (
            {"tolerance": 0.001},
            "The fewest fields are kept whose AUC is at most 0.001 worse than the best.",
        ),
        ({"worth": 1e-4}, "Fields that are worth at least 0.0001 nats are kept."),
        (
            {"threshold": 0.5},
            "Fields with a gate of at least 0.5 at the best point of the path are kept.",
        ),
        ({"share": 0.5}, ""),
    ],
)
def test_a_rule_is_described_in_a_sentence_once(rule, words):
    record = small_path([0.8, 0.81, 0.7], rule=rule)
    assert verdict.rule(record) == words
    page = Report(record).html()
    if words:
        assert page.count(words) == 1
    record["undecided"] = "these rows are too few"
    assert verdict.rule(record) == ""


def test_a_threshold_of_gates_is_described_as_before():
    page = Report(select_record(12)).html()
    assert page.count("Fields with a gate of at least 0.5 are kept.") == 1
    assert "nats" not in page.split('id="gates"')[1].split("</section>")[0]


def test_the_worth_that_a_rule_demands_is_a_line():
    record = path_record(40, rule={"worth": 2e-4})
    assert "rule: 0.0002 nats" in json.dumps(drawn(record).specs["ranks"])
    assert script.axis_of(checked(record))["limit"] == 2e-4
    assert script.axis_of(checked(path_record(40)))["limit"] is None


def test_the_sections_are_named_by_what_they_show():
    assert context_of(path_record(12))["sections"][:3] == [
        ("verdict", "Verdict"),
        ("path", "Path"),
        ("gates", "Worth"),
    ]
    page = Report(path_record(12) | {"trajectories": None}).html()
    assert "Gates over time were not recorded." in page
    assert "this method has none" not in page


def test_the_table_says_in_how_many_replicas_a_field_is_kept():
    record = path_record(12)
    assert "Kept in" not in json.dumps(script.script_data(record)["columns"])
    for place, field in enumerate(record["fields"]):
        field |= {"kept_in": place % 9, "replicas": 8}
    data = script.script_data(record)
    assert {"key": "kept_in", "title": "Kept in", "number": True} in data["columns"]
    assert "8 of 8" in data["fields"][8]["shown"]
    assert "on other draws of the validation rows" in Report(record).html()
