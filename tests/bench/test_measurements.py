"""The measurements of the price path in benchmarks/, on a small set and by hand."""

import doctest
import importlib
import math

import pytest
from _shared import MODEL, Found, Laboratory, nearest_points, recipes
from _truth import noise_above_useful, truth_of, with_originals
from cost_path import METHODS as COST_METHODS
from cost_path import fewest_dims
from cost_path import report as cost_report
from path_curve import curve
from ranking import Marks, jaccard, results_of
from ranking import report as ranking_report
from speed import FACTORS, methods_of
from speed import report as speed_report
from training_epochs import Epoch
from training_search import times_table
from worth import Cost, covered, leave_one_out, nested, noise_of, summary
from worth import report as worth_report

from torchleap.bench import Grid, Runner
from torchleap.bench.statistics import Sample
from torchleap.models import benchmark
from torchleap.selection import Path, PathPoint, Worth

from .tiny import ONCE, TINY, lines_of

MODULES = ("_shared", "_truth", "cost_path", "ranking", "speed", "worth")


def point(kept, closed=()):
    return PathPoint(
        kept=tuple(kept),
        closed=tuple(closed),
        dims=len(kept),
        cost=0.0,
        metric=0.7,
        low=0.6,
        high=0.8,
        behind=0.0,
        error=0.0,
        loss=0.5,
        price=0.1,
        step=1,
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    grid = Grid.of([TINY], ["leap", "permutation"], training=ONCE, search_seeds=1, retrain_seeds=2)
    return Laboratory(grid, Runner(tmp_path_factory.mktemp("store")))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_hold(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0


def test_sets_of_a_path_lose_one_field_at_a_time_in_the_order_of_closing():
    path = Path("auc", {}, (point("abcd"), point("bd", "ca"), point("d", "b")))
    found = nested(path, "abcd")
    assert list(found) == ["c", "a", "b", "d"]
    assert found["c"] == (("a", "b", "c", "d"), ("a", "b", "d"))
    assert found["a"] == (("a", "b", "d"), ("b", "d"))
    assert found["d"] == (("d",), ())


def test_fields_that_are_open_at_the_end_of_a_path_have_no_place_in_it():
    path = Path("auc", {}, (point("abcd"), point("bd", "ca")))
    assert list(nested(path, "abcd")) == ["c", "a"]
    assert list(leave_one_out("abcd")) == list("abcd")


def test_coverage_allows_for_the_noise_of_retrained_models_only_where_it_is_given():
    worth = {"a": Worth(0.10, 0.08, 0.12), "b": Worth(0.00, -0.01, 0.01)}
    costs = {"a": Cost((0.10, 0.12), (0.1, 0.1)), "b": Cost((0.02, 0.04), (0.0, 0.0))}
    assert noise_of(costs) == pytest.approx(0.01)
    assert covered(worth, costs, 0.0) == 0.5
    assert covered(worth, costs, 0.02) == 1.0
    assert noise_of({"a": Cost((0.1,), (0.1,))}) == 0.0
    cells = summary("leap", "path", worth, costs)
    assert cells[:3] == ["leap, path", "2", "1.000"]
    assert cells[3] == "1.000"


def test_the_points_of_a_path_are_those_nearest_to_each_budget():
    points = (point("abcdef"), point("abcd"), point("a"))
    found = nearest_points(points, [6, 5.4, 3, 1, 0.5])
    assert [len(one.kept) for one in found] == [6, 4, 1]


def test_quick_recipes_have_few_rows_and_the_same_names():
    short = recipes(["truth@0-1", "census"], quick=True)
    assert [one.name for one in short] == ["truth@0", "truth@1", "census"]
    assert [dict(one.settings).get("rows") for one in short] == [6000, 6000, None]
    assert "rows" not in recipes(["truth@0"], quick=False)[0].settings


def test_a_copy_counts_as_its_original_once():
    source = {"copy": "main", "other copy": "main"}
    assert with_originals(["copy", "noise"], source) == {"main", "noise"}
    assert with_originals(["copy", "main"], source) == {"main", "copy"}
    assert with_originals(["copy", "other copy"], source) == {"main", "other copy"}


def test_noise_above_useful_fields_counts_wrong_orders(lab):
    data = lab.data["tiny"]
    good = dict.fromkeys(data.task.fields.names, 0.0)
    good.update(dict.fromkeys(data.useful, 1.0))
    found = Found(data, "leap", 0, good, None, 1.0)
    assert truth_of(found) == {"F1": 1.0, "pairs found": 2.0, "noise above useful": 0.0}
    bad = {name: -score for name, score in good.items()}
    bad.update(dict.fromkeys(data.source, -2.0))
    assert noise_above_useful(bad, data) == 1.0
    assert noise_above_useful(dict.fromkeys(good, 1.0), data) == 0.5


def test_jaccard_is_the_mean_over_all_pairs():
    assert jaccard(["ab", "ab", "cd"]) == pytest.approx(1 / 3)
    assert math.isnan(jaccard(["ab"]))


def test_a_lead_is_marked_once_without_and_twice_with_the_correction():
    def samples(method, values):
        return {(0, seed): Sample(f"{method} {seed}", v) for seed, v in enumerate(values)}

    own = {
        "leap": samples("leap", [0.70, 0.71, 0.72, 0.70]),
        "clear": samples("clear", [0.80, 0.81, 0.8201, 0.80]),
        "weak": samples("weak", [0.71, 0.73, 0.73, 0.73]),
        "same": samples("same", [0.705, 0.709, 0.715, 0.702]),
        "worse": samples("worse", [0.60, 0.61, 0.62, 0.6001]),
    }
    marks = Marks.of({"set": {"50%": own}}, "leap")
    found = {name: marks.mark(("set", "50%", name)) for name in own}
    assert found == {"leap": "", "clear": "++", "weak": "+", "same": "", "worse": "--"}
    assert "4 cells: 1 better, 1 worse after Holm's correction" in marks.summary()
    noise = Marks.of({"noise above useful": {"noise above useful": own}}, "leap")
    assert noise.mark(("noise above useful", "noise above useful", "clear")) == "--"


def test_the_fewest_dimensions_are_none_where_no_model_reaches_the_level():
    assert fewest_dims({100: 0.7, 50: 0.71}, 0.8) is None


def test_ratios_are_medians_over_rounds_against_the_plain_training():
    found = {
        "plain training": [Epoch(2.0, 0.8, 0.8), Epoch(1.0, 0.8, 0.8), Epoch(1.0, 0.8, 0.8)],
        "search": [Epoch(3.0, math.nan, math.nan)] * 3,
    }
    plain, search = times_table(found).splitlines()[1:]
    assert plain.split()[:3] == ["plain", "training", "1.0"]
    assert search.split() == ["search", "3.0", "3.00", "1.50", "to", "3.00", "2.0", "no", "-"]


def test_equal_sets_of_fields_are_trained_once_and_a_second_report_trains_nothing(lab):
    first = worth_report(lab)
    names = lab.data["tiny"].task.fields.names
    for name in names:
        assert f"\n{name} " in first
    trained = len(lines_of(lab.runner.folder))
    everything = lab.retrain([("tiny", names), ("tiny", names)])
    assert len(everything.values("tiny", names, "valid_log_loss")) == 2
    assert len(lines_of(lab.runner.folder)) == trained
    assert worth_report(lab) == first


def test_the_curve_has_the_points_of_the_path_and_retrained_models(lab):
    found = lab.search()["tiny", "leap", 0]
    retrained = lab.retrain([("tiny", point.kept) for point in found.points])
    title, header, *rows, last = curve(found, retrained).splitlines()
    assert title.startswith("tiny, search seed 0, AUC")
    assert header.split()[:2] == ["fields", "dims"]
    assert 1 <= len(rows) <= 6
    assert last.startswith("mean absolute difference")


def test_a_search_without_a_path_is_refused_where_one_is_needed(lab):
    found = lab.search()["tiny", "permutation", 0]
    with pytest.raises(SystemExit, match="permutation has no path on tiny"):
        _ = found.points


def test_the_ranking_has_a_line_for_each_method_and_says_what_is_beyond_noise(lab):
    grid = Grid.of(
        [TINY],
        ["leap", "permutation", "none"],
        shares=(0.5, 0.25, 0.05),
        training=ONCE,
        search_seeds=2,
        retrain_seeds=1,
    )
    text = ranking_report(results_of(grid, lab.runner))
    assert "tiny: test AUC, all fields" in text
    leap = next(line for line in text.splitlines() if line.startswith("leap "))
    assert leap.split().count("-") == 1, "5 % of 14 fields leave none"
    assert "Known ground truth, over all worlds" in text
    assert text.count("\npermutation ") == 3
    assert "Other methods against leap in " in text


def with_methods(lab, methods):
    models = {MODEL: benchmark(MODEL)}
    grid = Grid((TINY,), methods, models, search_seeds=1, retrain_seeds=1, training=ONCE)
    return Laboratory(grid, lab.runner)


def test_the_path_by_dimensions_stands_beside_the_plain_one_at_every_level(lab):
    text = cost_report(with_methods(lab, COST_METHODS))
    assert text.count(": leap ") == 6
    assert text.count(": leap_by_dims ") == 6
    assert "dims that reach a level of retrained models" in text


def test_there_is_a_line_for_each_speed(lab):
    lines = speed_report(with_methods(lab, methods_of(FACTORS))).splitlines()
    speeds = [line.split()[1] for line in lines if line.startswith("x ")]
    assert speeds == ["0.25", "0.5", "1", "2", "4"]
