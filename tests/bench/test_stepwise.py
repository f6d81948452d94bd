import json
import math

import numpy as np
import pytest

from torchleap import Report, TorchleapError
from torchleap.bench import DataSet, Grid, Runner, Stepwise, record_of, stepwise
from torchleap.bench.statistics import Mean
from torchleap.bench.stepwise import utility
from torchleap.bench.trials import RetrainTrial, SearchTrial
from torchleap.objectives import METRICS

from .tiny import ONCE, TINY, lines_of

TINIEST = 1e-9


@pytest.mark.parametrize(
    ("value", "low", "high", "alone", "label"),
    [
        (0.02, 0.01, 0.03, None, "strong"),
        (0.01, TINIEST, 0.03, None, "strong"),  # from 0.01 on
        (0.01, TINIEST, 0.03, 0.9, "strong"),
        (0.01 - TINIEST, TINIEST, 0.02, None, "weak"),
        (0.0001, TINIEST, 0.0002, 0.9, "weak"),
        (0.5, 0.0, 1.0, None, "no impact"),  # not beyond noise
        (0.5, 0.0, 1.0, 0.55, "redundant"),
        (0.0, 0.0, 0.0, 0.55, "redundant"),  # informative from 0.55 on
        (0.0, 0.0, 0.0, 0.55 - TINIEST, "no impact"),
        (0.0, -0.1, 0.1, None, "no impact"),
        (-0.001, -0.002, -TINIEST, None, "harmful"),  # from -0.001 on
        (-0.001, -0.002, -TINIEST, 0.9, "harmful"),
        (-0.001, -0.002, 0.0, 0.5, "no impact"),  # not beyond noise
        (-0.001 + TINIEST, -0.002, -TINIEST, 0.5, "no impact"),  # too small to matter
        (-0.001 + TINIEST, -0.002, -TINIEST, 0.6, "redundant"),
        (0.3, math.nan, math.nan, None, "no impact"),  # one seed tells nothing beyond noise
        (-0.3, math.nan, math.nan, 0.6, "redundant"),
    ],
)
def test_labels_by_hand(value, low, high, alone, label):
    assert utility(Mean(value, low, high, 3), alone) == label


GATES = {
    **{"main_dense_1": 0.99, "main_dense_4": 0.9, "main_sparse_1": 0.8, "noise_dense_1": 0.7},
    **{"copy_1": 0.5, "noise_dense_4": 0.4, "noise_sparse_1": 0.3, "pair_1_a": 0.2},
}
EFFECT = {
    **{"main_dense_1": 0.1, "main_dense_4": 0.05, "main_sparse_1": 0.005, "noise_dense_1": -0.002},
    **{"copy_1": 0.0, "noise_sparse_1": -0.01, "pair_1_a": 0.02},
}
ALONE = {"copy_1": 0.1}
OPEN = ["noise_dense_1", "main_dense_1", "main_sparse_1", "main_dense_4"]  # in another order


@pytest.fixture
def trained(monkeypatch):
    """Trainings by hand: each field has an effect on the AUC; the sets that were trained."""
    names = TINY.load().task.fields.names
    scores = {name: GATES.get(name, 0.01) for name in reversed(names)}
    gates = {"steps": [15, 30], "gates": {name: [1.0, GATES.get(name, 0.01)] for name in names}}
    sets = []

    def auc(self, found, state):
        sets.append((self.kept, self.training.seed))
        effect = EFFECT | ALONE if len(self.kept) == 1 else EFFECT
        value = 0.5 + 0.001 * self.training.seed + sum(effect.get(name, 0.0) for name in self.kept)
        return {"metrics": {"valid_auc": value, "test_auc": 0.0}}

    found = {"scores": scores, "gates": gates, "open": OPEN}
    monkeypatch.setattr(SearchTrial, "run", lambda *_: found)
    monkeypatch.setattr(RetrainTrial, "run", auc)
    return sets


@pytest.fixture
def grid():
    return Grid.of([TINY], "leap", retrain_seeds=3, training=ONCE)


def test_retained_fields_come_one_by_one_by_their_gates_then_each_other_at_the_peak(
    trained, grid, tmp_path
):
    (found,) = stepwise(grid, Runner(tmp_path))
    names = found.data.task.fields.names
    retained = list(GATES)[:4]
    assert [step.added for step in found.steps[:8]] == list(GATES)
    assert [step.gate for step in found.steps] == [*GATES.values(), *[0.01] * 6]
    assert [step.retained for step in found.steps] == [True] * 4 + [False] * 10
    assert [step.added for step in found.steps if step.peak] == ["main_sparse_1"]
    wanted = [retained[: n + 1] for n in range(4)]
    wanted += [[*retained[:3], name] for name in names if name not in retained]
    wanted += [[name] for name in names if name not in retained]
    ordered = {tuple(name for name in names if name in kept) for kept in wanted}
    assert sorted(trained) == sorted(
        (kept, seed) for kept in ordered for seed in range(3)
    )  # each once


def test_labels_differences_and_metrics_of_the_steps(trained, grid, tmp_path):
    (found,) = stepwise(grid, Runner(tmp_path))
    steps = {step.added: step for step in found.steps}
    assert {name: steps[name].label for name in [*GATES, "constant_1"]} == {
        "main_dense_1": "strong",
        "main_dense_4": "strong",
        "main_sparse_1": "weak",
        "noise_dense_1": "harmful",
        "copy_1": "redundant",
        "noise_dense_4": "no impact",
        "noise_sparse_1": "harmful",
        "pair_1_a": "strong",
        "constant_1": "no impact",
    }
    assert steps["main_dense_1"].difference is None
    for name in list(GATES)[1:]:
        assert steps[name].difference.value == pytest.approx(EFFECT.get(name, 0.0), abs=1e-12), name
    assert steps["main_sparse_1"].metric.value == pytest.approx(0.656)  # over the seeds
    assert steps["pair_1_a"].metric.value == pytest.approx(
        0.676
    )  # with the peak, not with the last
    (table,) = found.tables()
    assert table.columns == (
        "step",
        "fields",
        "zone",
        "score",
        "validation AUC",
        "difference",
        "label",
    )
    assert table.rows[0][:4] + table.rows[0][5:] == (
        "1",
        "[main_dense_1]",
        "retained",
        "0.99",
        None,
        "strong",
    )
    assert table.rows[2][1] == "+ main_sparse_1 (peak)"
    assert table.rows[4][1:3] + table.rows[4][-1:] == ("+ copy_1", "suppressed", "redundant")
    assert table.notes[0].startswith("Mean and 95 % interval over 3 seeds; ")
    assert table.notes[1].endswith("no impact: all others. The first field is called strong.")
    assert "Polarisation: 50% of the gates" in table.notes[2]  # 0.99 and six of 0.01, of 14


def test_one_seed_is_named_as_the_basis_of_its_labels(trained, tmp_path):
    (found,) = stepwise(Grid.of([TINY], "leap", retrain_seeds=1, training=ONCE), Runner(tmp_path))
    (table,) = found.tables()
    assert "±" not in table.text()
    assert table.notes[0].startswith("One seed, so there is no interval; ")
    assert table.notes[1].endswith(
        "so no other gain or loss counts as beyond it: give more --seeds."
    )
    assert {step.label for step in found.steps[1:]} == {
        "redundant",
        "no impact",
    }  # as the note says


def test_open_fields_are_retained_whatever_their_scores(trained, grid, tmp_path, monkeypatch):
    names = TINY.load().task.fields.names
    gates = {"steps": [1], "gates": {name: [0.1] for name in names}}
    scores = dict.fromkeys(names, -1e-3) | {"main_dense_1": 0.02, "pair_1_a": 3e-5, "copy_1": 0.9}
    result = {"scores": scores, "gates": gates, "open": ["pair_1_a", "main_dense_1"]}
    monkeypatch.setattr(SearchTrial, "run", lambda *_: result)
    (found,) = stepwise(grid, Runner(tmp_path))
    assert [step.added for step in found.steps if step.retained] == ["main_dense_1", "pair_1_a"]
    assert found.steps[2].added == "copy_1"  # the best of the suppressed ones
    (table,) = found.tables()
    assert [row[3] for row in table.rows[:4]] == ["0.02", "3e-05", "0.9", "-0.001"]


def test_if_no_field_is_open_the_best_one_is_retained(trained, grid, tmp_path, monkeypatch):
    names = TINY.load().task.fields.names
    gates = {"steps": [1], "gates": {name: [0.1] for name in names}}
    scores = dict.fromkeys(names, 0.1) | {"pair_1_a": 0.2}
    result = {"scores": scores, "gates": gates, "open": []}
    monkeypatch.setattr(SearchTrial, "run", lambda *_: result)
    (found,) = stepwise(grid, Runner(tmp_path))
    assert [(step.added, step.peak) for step in found.steps if step.retained] == [
        ("pair_1_a", True)
    ]


def test_many_gates_become_quantiles_and_a_report_shows_them(trained, grid, tmp_path):
    runner = Runner(tmp_path)
    (found,) = stepwise(grid, runner)
    lines, polar = found.curves()
    assert [series["name"] for series in lines["series"]] == [
        f"{n}% quantile" for n in (5, 25, 50, 75, 95)
    ]
    ends = [series["points"][-1] for series in lines["series"]]
    values = [gates[-1] for gates in found.gates["gates"].values()]
    assert ends == [
        [30, pytest.approx(np.quantile(values, q)), None, None]
        for q in (0.05, 0.25, 0.5, 0.75, 0.95)
    ]
    assert polar["series"][0]["points"] == [[15, 1.0, None, None], [30, 0.5, None, None]]
    assert (
        "Polarisation: tiny"
        in Report(record_of("Gates", found.tables(), found.curves(), grid, runner)).html()
    )


def few(count):
    gates = {f"field {n}": [1.0, n / 100] for n in range(count)}
    return Stepwise(
        DataSet("made", None, 32), "mlp", METRICS["auc"], (), {"steps": [1, 2], "gates": gates}, 3
    )


def test_up_to_twelve_gates_have_a_line_each():
    lines = few(12).curves()[0]["series"]
    assert [line["name"] for line in lines] == [f"field {n}" for n in range(12)]
    assert lines[7]["points"] == [[1, 1.0, None, None], [2, 0.07, None, None]]
    assert len(few(13).curves()[0]["series"]) == 5
    assert few(12).polarisation == 0.5  # 0.00 to 0.05


def test_it_needs_gates(tmp_path):
    with pytest.raises(
        TorchleapError, match="needs gates: expected the method leap, but found lasso"
    ):
        stepwise(Grid.of([TINY], ["lasso"]), Runner(tmp_path))


def test_it_needs_all_of_its_models(trained, grid, tmp_path, monkeypatch):
    def refuse(*_):
        raise TorchleapError("Too few rows.")

    monkeypatch.setattr(RetrainTrial, "run", refuse)
    with pytest.raises(
        TorchleapError,
        match="needs all of its models, but: tiny: train on 1 field, seed 0: Too few rows",
    ):
        stepwise(grid, Runner(tmp_path))


def test_a_real_one_adds_all_fields_and_is_shared_with_the_store(tmp_path):
    grid = Grid.of([TINY], "leap", retrain_seeds=2, training=ONCE)
    (found,) = stepwise(grid, Runner(tmp_path))
    assert sorted(step.added for step in found.steps) == sorted(found.data.task.fields.names)
    (search,) = [one for one in map(json.loads, lines_of(tmp_path)) if "open" in one["result"]]
    retained = [step for step in found.steps if step.retained]
    assert sorted(step.added for step in retained) == sorted(search["result"]["open"])
    for zone in (retained, found.steps[len(retained) :]):
        gates = [step.gate for step in zone]
        assert gates == sorted(gates, reverse=True)
    standings = []
    (again,) = stepwise(grid, Runner(tmp_path, on_progress=standings.append))
    assert (again.steps, standings) == (found.steps, [])
