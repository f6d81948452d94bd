import json

import pytest

from torchleap.report import script
from torchleap.report.charts import charts_of
from torchleap.report.charts.fields import FEWEST_ACTIVE
from torchleap.report.charts.training import MOST_POINTS
from torchleap.report.record import checked

from .records import certificate_record, select_record


def drawn(**settings):
    return charts_of(checked(select_record(**settings)))


def test_gates_run_from_0_to_1_and_have_a_threshold():
    specs = drawn().specs
    assert "threshold 0.5" in json.dumps(specs["ranks"])
    axis = specs["width"]["layer"][-1]["encoding"]["y"]
    assert (axis["title"], axis["axis"]["values"]) == ("gate", [0, 0.25, 0.5, 0.75, 1])


def test_other_scores_have_their_own_words_and_no_threshold():
    record = select_record(method="permutation")
    record["rule"] = {"threshold": 0.5}
    chart = charts_of(checked(record))
    assert "threshold" not in json.dumps(chart.specs["ranks"])
    assert chart.specs["ranks"]["layer"][-1]["encoding"]["y"]["title"] == "metric lost by shuffling"
    assert {"trajectories", "polarisation", "price"}.isdisjoint(chart.specs)


def test_long_trajectories_are_thinned_to_both_ends():
    chart = drawn(fields=300, steps=400)
    rows = chart.data["trajectories"]
    steps = next(
        param["value"]
        for param in chart.specs["trajectories"]["params"]
        if param["name"] == "steps"
    )
    assert (steps[0], steps[-1]) == (0, 25 * 399)
    assert {len(row["gate"]) for row in rows} == {len(steps)}
    assert len(rows) * len(steps) <= MOST_POINTS


def test_a_trajectory_of_another_length_is_left_out():
    record = select_record(12)
    name = record["fields"][0]["name"]
    record["trajectories"]["gates"][name] = [0.5]
    chart = charts_of(checked(record))
    assert len(chart.data["trajectories"]) == 11


def test_a_field_without_a_positive_number_is_not_on_a_log_axis():
    record = select_record(12)
    for field in record["fields"]:
        field |= {"divergence": 0.0, "sparsity": 1.0}
    chart = charts_of(checked(record))
    assert "divergence" not in chart.specs
    assert {row["active"] for row in chart.data["fields"]} == {FEWEST_ACTIVE}


@pytest.mark.parametrize(
    "scores", [[0.0, 0.0], [-3e-7, 5e-7], [-0.2, 0.0], [12.0, 4123.0], [1e-12, 3e-11]]
)
def test_the_axis_of_the_ladder_has_round_ticks_inside_it(scores):
    record = {
        "method": "permutation",
        "fields": [{"name": str(score), "score": score} for score in scores],
    }
    axis = script.axis_of(record)
    assert axis["low"] <= min(scores) <= max(scores) <= axis["high"]
    assert 2 <= len(axis["ticks"]) <= 6
    assert all(axis["low"] <= tick["at"] <= axis["high"] * (1 + 1e-9) for tick in axis["ticks"])


def test_a_difference_without_bounds_is_not_drawn():
    record = select_record(12)
    record["metrics"]["difference"]["interval"] = [None, None]
    assert "difference" not in charts_of(checked(record)).specs


@pytest.mark.parametrize(("metric", "sign"), [("auc", 1), ("log_loss", -1)])
def test_the_change_is_drawn_against_the_margin_on_the_side_of_losses(metric, sign):
    record = select_record(12, difference=(0.0, (-0.0005, 0.0005)))
    record["metrics"]["difference"]["metric"] = metric
    record["certificate"] = certificate_record(0.0, (-0.0005, 0.0005), metric=metric, margin=0.01)
    drawn = charts_of(checked(record))
    area, *_ = drawn.specs["difference"]["layer"]
    assert area["data"]["values"] == [{"value": -sign * 0.01, "end": -sign * 0.0125}]
    assert drawn.data["difference"][0]["bound"] == pytest.approx(-sign * 0.0005 * 1.645 / 1.96)
    del record["certificate"]
    drawn = charts_of(checked(record))
    assert len(drawn.specs["difference"]["layer"]) == 3
    assert "bound" not in drawn.data["difference"][0]


def test_a_strength_without_units_has_no_price():
    record = select_record(12)
    assert "price" in charts_of(checked(record)).specs
    record["settings"]["strength"] = 0.4
    assert "price" not in charts_of(checked(record)).specs
    assert "price" not in [column.key for column in script.columns_of(checked(record))]


def test_points_without_intervals_have_no_bars():
    record = select_record(12)
    assert len(charts_of(checked(record)).specs["return"]["layer"]) == 5
    for point in record["curve"]["retrained"]:
        point["interval"] = None
    assert len(charts_of(checked(record)).specs["return"]["layer"]) == 4
