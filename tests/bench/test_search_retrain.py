import json
from collections import Counter

import pytest

import torchleap as tl
from torchleap import TorchleapError
from torchleap.bench import DataSet, Grid, Recipe, Runner, SearchRetrain, search_retrain
from torchleap.bench.search_retrain import kept_by, truth_found
from torchleap.bench.statistics import Sample, mean_of
from torchleap.bench.tables import interval_text
from torchleap.bench.trials import RetrainTrial
from torchleap.methods import Lasso, Random
from torchleap.selection import Path

from .tiny import MODEL, ONCE, TINY, WORLD, lines_of

METHODS = ("leap", "lasso", "random", "none")
SHARES = (0.5, 0.15)
OTHER = Recipe("other", "truth", {**WORLD, "seed": 1})


@pytest.fixture(scope="module")
def grid():
    return Grid.of([TINY, OTHER], METHODS, shares=SHARES, training=ONCE)


@pytest.fixture(scope="module")
def done(grid, tmp_path_factory):
    runner = Runner(tmp_path_factory.mktemp("bench"))
    return search_retrain(grid, runner), runner


def slowly(grid, data, method, share, search_seed, retrain_seed):
    """Return the test metrics of a pair of seeds, and the kept fields, by search and retrain."""
    training = grid.training_for(data, 0)
    selection = None
    if method != "none":
        found = tl.search(
            data.task, model=MODEL, method=method, training=training, seed=search_seed
        )
        selection = found.select(share=share)
    result = tl.retrain(data.task, selection, model=MODEL, training=training, seed=retrain_seed)
    return result.metrics, data.task.fields.names if selection is None else selection.kept


def test_all_metrics_are_those_of_a_plain_loop_over_search_and_retrain(grid, done):
    result, _ = done
    checked = 0
    for method in METHODS:
        for share in SHARES:
            for pair in ((0, 0), (1, 0), (0, 1), (1, 1)):
                metrics, _ = slowly(grid, result.data["tiny"], method, share, *pair)
                for metric in ("auc", "log_loss"):
                    sample = result.samples("tiny", "wide_deep", share, metric)[method][pair]
                    assert sample.value == metrics[f"test_{metric}"], (method, share, pair)
                    checked += 1
    assert checked == 64


def test_equal_sets_of_fields_are_trained_once(grid, done):
    result, runner = done
    records = [json.loads(line) for line in lines_of(runner.folder)]
    wanted = set()
    for name, data in result.data.items():
        for method in METHODS:
            searches = (
                [None]
                if method == "none"
                else list(result.searches[name, "wide_deep", method].values())
            )
            kept = {
                None if own is None else kept_by(data, own, share)
                for own in searches
                for share in SHARES
            }
            wanted |= {(name, fields, seed) for fields in kept for seed in range(2)}
    settings = [r["settings"] for r in records if r["settings"]["trial"] == "retrain"]
    found = Counter(
        (s["data"]["name"], s["kept"] and tuple(s["kept"]), s["training"]["seed"]) for s in settings
    )
    assert found == Counter(wanted)
    assert (
        sum(r["settings"]["trial"] == "search" for r in records) == 2 * 3 * 2
    )  # none is not searched for
    assert len(wanted) < 2 * (3 * 2 * 2 + 1) * 2  # some are shared, or this shows nothing


def test_the_row_of_none_is_all_fields_whatever_the_share_and_one_run_for_each_retrain_seed(done):
    result, runner = done
    rows = [result.samples("tiny", "wide_deep", share, "auc")["none"] for share in SHARES]
    assert rows[0] == rows[1]
    assert rows[0][0, 0] == rows[0][1, 0] != rows[0][0, 1]
    assert mean_of(list(rows[0].values())).runs == 2
    trial = RetrainTrial(TINY, MODEL, result.grid.training_for(result.data["tiny"], 0), None)
    assert runner.store[runner.key(trial)]["result"]["metrics"]["test_auc"] == rows[0][0, 0].value


def table_named(result, title):
    (found,) = [table for table in result.tables() if title in table.title]
    return found


def cells(table):
    return {row[0]: row[1:] for row in table.record()["rows"]}


def test_tables_show_means_verdicts_and_the_summary(done):
    result, _ = done
    assert [table.title for table in result.tables()] == [
        "Test AUC, 50% of the fields kept, wide_deep",
        "Test AUC, 15% of the fields kept, wide_deep",
        "Test log loss, 50% of the fields kept, wide_deep",
        "Test log loss, 15% of the fields kept, wide_deep",
        "F1 on useful fields, 2 data sets with known ground truth, wide_deep",
        "Seconds of a search, wide_deep",
    ]
    table = table_named(result, "AUC, 15%")
    assert table.columns == ("method", "tiny", "other", "S_AUC", "mean rank")
    shown = cells(table)
    assert list(shown) == list(METHODS)
    means = {}
    for place, name in enumerate(result.data):
        for method, own in result.samples(name, "wide_deep", 0.15, "auc").items():
            mean = mean_of(list(own.values()))
            means[method, name] = mean.value
            cell = shown[method][place]
            assert cell in (
                [interval_text(mean)]
                if method == "leap"
                else [f"{interval_text(mean)} {mark}" for mark in "<>="]
            )
    best = {name: max(means[method, name] for method in METHODS) for name in result.data}
    for method in METHODS:
        assert float(shown[method][2]) == pytest.approx(
            sum(means[method, n] / best[n] for n in best) / 2, abs=6e-5
        )
        ranks = [1 + sum(means[other, n] > means[method, n] for other in METHODS) for n in best]
        assert float(shown[method][3]) == pytest.approx(sum(ranks) / 2, abs=0.06)


def made(samples, grid=None, metric="auc"):
    """A result by hand: method -> pair -> value, on one set at one share."""
    grid = grid or Grid.of([TINY], list(samples), shares=(0.5,), training=ONCE)
    metrics = {
        ("tiny", "wide_deep", 0.5, method): {
            metric: {pair: Sample(f"{method} {pair}", v) for pair, v in own.items()}
        }
        for method, own in samples.items()
    }
    return SearchRetrain(grid, {"tiny": DataSet("tiny", None, 32)}, metrics, {})


@pytest.mark.parametrize(
    ("search_seeds", "retrain_seeds", "note"),
    [
        (
            2,
            1,
            "Mean and 95 % interval over 2 search seeds x 1 retrain seed; "
            "seeds that led to the same fields count as one run.",
        ),
        (
            1,
            3,
            "Mean and 95 % interval over 1 search seed x 3 retrain seeds; "
            "seeds that led to the same fields count as one run.",
        ),
        (
            1,
            1,
            "1 search seed x 1 retrain seed: one run each, so there is no interval, "
            "and no lead counts as one.",
        ),
    ],
)
def test_notes_count_the_seeds(search_seeds, retrain_seeds, note):
    grid = Grid.of(
        [TINY],
        ["leap", "lasso"],
        shares=(0.5,),
        search_seeds=search_seeds,
        retrain_seeds=retrain_seeds,
    )
    assert (
        table_named(made({"leap": {(0, 0): 0.7}, "lasso": {(0, 0): 0.6}}, grid), "AUC").notes[0]
        == note
    )


def test_lower_log_loss_is_better_in_verdicts_and_ranks():
    clear = {
        "leap": {(0, 0): 0.40, (0, 1): 0.41, (1, 0): 0.40},
        "lasso": {(0, 0): 0.50, (0, 1): 0.51, (1, 0): 0.501},
        "random": {(0, 0): 0.30, (0, 1): 0.31, (1, 0): 0.301},
    }
    loss = cells(table_named(made(clear, metric="log_loss"), "log loss, 50%"))
    assert {method: row[0][-1] for method, row in loss.items() if method != "leap"} == {
        "lasso": "<",
        "random": ">",
    }
    assert {method: row[1:] for method, row in loss.items()} == {
        "leap": ["0.4033", "2.0"],
        "lasso": ["0.5037", "3.0"],
        "random": ["0.3037", "1.0"],
    }
    area = cells(table_named(made(clear), "AUC, 50%"))
    assert {method: row[0][-1] for method, row in area.items() if method != "leap"} == {
        "lasso": ">",
        "random": "<",
    }
    assert {method: row[2] for method, row in area.items()} == {
        "leap": "2.0",
        "lasso": "1.0",
        "random": "3.0",
    }


def test_methods_that_share_no_seed_with_leap_are_shown_without_a_verdict():
    shown = cells(
        table_named(
            made({"leap": {(0, 0): 0.7}, "lasso": {(1, 0): 0.6}, "random": {(0, 0): 0.5}}), "AUC"
        )
    )
    assert [row[0] for row in shown.values()] == ["0.7000", "0.6000", "0.5000 ="]


@pytest.fixture
def broken_lasso(monkeypatch):
    def refuse(self, search):
        raise TorchleapError("Lasso cannot.")

    monkeypatch.setattr(Lasso, "score", refuse)


def test_a_method_whose_search_fails_is_shown_as_a_dash_and_the_others_are_there(
    broken_lasso, tmp_path
):
    runner = Runner(tmp_path)
    result = search_retrain(
        Grid.of([TINY], ("random", "lasso", "none"), shares=(0.5,), search_seeds=1, training=ONCE),
        runner,
    )
    shown = cells(table_named(result, "AUC, 50%"))
    assert shown["lasso"] == ["-", "-", "-"]
    assert "-" not in shown["random"] + shown["none"]
    assert cells(table_named(result, "Seconds"))["lasso"] == ["-"]
    assert cells(table_named(result, "F1"))["lasso"] == ["-", "-"]
    assert (
        table_named(result, "F1").title
        == "F1 on useful fields, 1 data set with known ground truth, wide_deep"
    )
    assert list(runner.failures.values()) == ["tiny: search by lasso, seed 0: Lasso cannot."]


def test_a_search_that_fails_for_one_seed_leaves_the_pairs_of_the_other(monkeypatch, tmp_path):
    usual = Random.score

    def sometimes(self, search):
        if search.seed == 0:
            raise TorchleapError("Not with this seed.")
        return usual(self, search)

    monkeypatch.setattr(Random, "score", sometimes)
    grid = Grid.of([TINY], ("none", "random"), shares=(0.5,), retrain_seeds=1, training=ONCE)
    result = search_retrain(grid, Runner(tmp_path))
    found = result.samples("tiny", "wide_deep", 0.5, "auc")
    assert (list(found["none"]), list(found["random"])) == ([(0, 0), (1, 0)], [(1, 0)])


def test_a_second_run_does_nothing_again_and_a_larger_one_only_what_is_missing(
    grid, done, monkeypatch
):
    result, runner = done
    before = lines_of(runner.folder)
    standings = []
    again = search_retrain(grid, Runner(runner.folder, on_progress=standings.append))
    assert (again.metrics, standings, lines_of(runner.folder)) == (result.metrics, [], before)
    larger = Grid.of([TINY], ("random",), shares=SHARES, retrain_seeds=3, training=ONCE)
    search_retrain(larger, Runner(runner.folder))
    added = [json.loads(line)["settings"] for line in lines_of(runner.folder)[len(before) :]]
    assert {(s["trial"], s["training"]["seed"]) for s in added} == {("retrain", 2)}
    assert lines_of(runner.folder)[: len(before)] == before


def world(useful, source=None):
    return DataSet("made", None, 32, useful=tuple(useful), source=source or {})


@pytest.mark.parametrize(
    ("useful", "source", "scores", "opened", "of_best", "of_open"),
    [
        ("ab", {}, {"a": 0.9, "b": 0.8, "c": 0.1}, "ab", 1.0, 1.0),
        ("ab", {}, {"a": 0.9, "b": 0.1, "c": 0.8}, "ac", 0.5, 0.5),
        ("ab", {}, {"a": 0.9, "b": 0.5, "c": 0.1}, "a", 1.0, 2 / 3),
        ("ab", {}, {"a": 0.9, "b": 0.8, "c": 0.7}, "abc", 1.0, 0.8),
        ("ab", {}, {"a": 0.1, "b": 0.2, "c": 0.3}, "", 0.5, 0.0),
        ("ab", {}, {"a": 0.01, "b": -0.1, "c": 0.9}, "ba", 0.5, 1.0),  # whatever the scores are
        # the copy stands for its source
        ("ab", {"A": "a"}, {"a": 0.1, "A": 0.9, "b": 0.8, "c": 0.2}, "Ab", 1.0, 1.0),
        # both are one
        ("ab", {"A": "a"}, {"a": 0.9, "A": 0.8, "b": 0.7, "c": 0.1}, "aAb", 1.0, 1.0),
        ("ab", {"A": "a"}, {"a": 0.9, "A": 0.8, "b": 0.1, "c": 0.2}, "aA", 0.5, 2 / 3),
        (
            "ab",
            {"A": "a", "B": "b"},
            {"A": 0.9, "B": 0.9, "a": 0.0, "b": 0.0, "c": 0.6},
            "ABc",
            1.0,
            0.8,
        ),
    ],
)
def test_the_truth_is_found_by_hand(useful, source, scores, opened, of_best, of_open):
    assert truth_found(world(useful, source), scores, list(opened)) == (
        pytest.approx(of_best),
        pytest.approx(of_open),
    )


def test_the_table_of_the_truth_shows_open_fields_of_leap_alone(done):
    result, _ = done
    shown = cells(table_named(result, "F1"))
    assert list(shown) == ["leap", "lasso", "random"]
    assert [row[1] == "-" for row in shown.values()] == [False, True, True]
    data = result.data["tiny"]
    for method, column in (("lasso", 0), ("leap", 0), ("leap", 1)):
        own = [
            truth_found(d, r["scores"], r["open"])[column]
            for n, d in result.data.items()
            for r in result.searches[n, "wide_deep", method].values()
        ]
        assert float(shown[method][column].split()[0]) == pytest.approx(sum(own) / 4, abs=6e-5)
    for search in result.searches["tiny", "wide_deep", "leap"].values():
        path = Path.from_json(search["path"])
        assert search["open"] == list(path.smallest_within().kept)
    assert all(name in data.task.fields.names for name in data.useful)
