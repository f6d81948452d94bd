import json
from dataclasses import dataclass, replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchleap.bench import Prunings, Recipe
from torchleap.bench.prune import FullTrial, RoiTrial
from torchleap.bench.trials import RetrainTrial, SearchTrial, registered_name
from torchleap.methods import (
    METHODS,
    Lasso,
    LeAPMethod,
    Permutation,
    PressureMethod,
    Random,
    Shark,
)
from torchleap.models import BACKBONES, benchmark
from torchleap.objectives import OBJECTIVES
from torchleap.selection import Path

from .tiny import MODEL, TINY, TRAINING, WORLD

SEARCH = SearchTrial(TINY, MODEL, TRAINING, LeAPMethod())
RETRAIN = RetrainTrial(TINY, MODEL, TRAINING, ("main_dense_1", "copy_1"))
ROI = RoiTrial(TINY, MODEL, TRAINING, LeAPMethod(), Prunings())


@pytest.fixture(scope="module")
def data():
    return TINY.load()


def key(trial, data, threads=1):
    return trial.key(data, threads)


@pytest.mark.parametrize(
    "world", [{"seed": 1}, {"rows": 601}, {"widths": (1, 3)}, {"active": 0.02}]
)
def test_other_data_is_another_trial(data, world):
    other = Recipe("tiny", "truth", {**WORLD, **world})
    assert key(replace(RETRAIN, data=other, kept=None), other.load()) != key(
        replace(RETRAIN, kept=None), data
    )


def test_the_name_of_the_data_plays_no_part(data):
    other = Recipe("another name", "truth", WORLD)
    found = other.load()
    for trial in (SEARCH, RETRAIN, ROI, replace(RETRAIN, kept=None)):
        renamed = replace(trial, data=other)
        assert key(renamed, found) == key(trial, data)
        assert renamed.settings(found, 1)["data"]["name"] == "another name"


TRIALS = {
    "search": SEARCH,
    "retrain": RETRAIN,
    "roi": ROI,
    "full": FullTrial(TINY, MODEL, TRAINING, Prunings()),
    **{
        f"model {name}": replace(SEARCH, model=benchmark(name)) for name in ("mlp", "deepfm", "dcn")
    },
    "model setting": replace(SEARCH, model=replace(MODEL, dropout=0.1)),
    "layers": replace(SEARCH, model=replace(MODEL, hidden=(8,))),
    "seed": replace(SEARCH, training=replace(TRAINING, seed=1)),
    "rate": replace(SEARCH, training=replace(TRAINING, lr=0.01)),
    "batch": replace(SEARCH, training=replace(TRAINING, batch=33)),
    "epochs": replace(SEARCH, training=replace(TRAINING, epochs=2)),
    "method": replace(SEARCH, method=Lasso()),
    "method without settings": replace(SEARCH, method=Random()),
    "method setting": replace(SEARCH, method=replace(LeAPMethod(), optimism=0.3)),
    "price of the path": replace(SEARCH, method=LeAPMethod(price_by="dims")),
    "steps of the path": replace(SEARCH, method=LeAPMethod(steps=40)),
    "pressure": replace(SEARCH, method=PressureMethod()),
    "strength": replace(SEARCH, method=PressureMethod(strength=0.3)),
    "all rows": replace(SEARCH, method=Permutation()),
    "some rows": replace(SEARCH, method=Permutation(fraction=0.1)),
    "one round": replace(SEARCH, method=Shark()),
    "two rounds": replace(SEARCH, method=Shark(rounds=2)),
    "fewer": replace(RETRAIN, kept=("main_dense_1",)),
    "others": replace(RETRAIN, kept=("main_dense_1", "copy_4")),
    "all fields": replace(RETRAIN, kept=None),
    "prunings": replace(ROI, prunings=Prunings(fractions=(0.5,))),
    "steps": replace(ROI, prunings=Prunings(steps=0)),
}


def test_keys_contain_names_of_registries_in_place_of_those_of_classes(data):
    settings = [trial.settings(data, 1) for trial in TRIALS.values()]
    assert {one["trial"] for one in settings} == {"search", "retrain", "roi", "full"}
    assert {one["method"]["is"] for one in settings if "method" in one} <= set(METHODS)
    assert {one["model"]["is"] for one in settings} <= set(BACKBONES)
    assert all("is" not in one["training"] for one in settings)


def test_a_renamed_class_keeps_its_key(data, monkeypatch):
    @dataclass(frozen=True)
    class Renamed(Random):
        pass

    before = key(replace(SEARCH, method=Random()), data)
    monkeypatch.setitem(METHODS, "random", Renamed)
    assert key(replace(SEARCH, method=Renamed()), data) == before


def test_a_method_outside_of_the_registry_is_named_by_its_class():
    @dataclass(frozen=True)
    class Mine(Random):
        pass

    assert registered_name(Mine()) == "Mine"


def test_whatever_determines_a_result_changes_its_key(data):
    keys = {name: key(trial, data) for name, trial in TRIALS.items()}
    assert len(set(keys.values())) == len(TRIALS), keys
    assert len({key(SEARCH, data, threads) for threads in (1, 2, 3)}) == 3


@given(st.sampled_from(["torch", "torchleap"]), st.text(min_size=1))
def test_other_software_is_another_trial(data, package, number):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "torchleap.bench.trials.version", lambda name: number if name == package else "fixed"
        )
        changed = key(SEARCH, data)
        patch.setattr("torchleap.bench.trials.version", lambda name: "fixed")
        assert (changed == key(SEARCH, data)) == (number == "fixed")


@given(
    st.lists(st.sampled_from(["a", "b", "a,b", "c"]), unique=True),
    st.lists(st.sampled_from(["a", "b", "a,b", "c"]), unique=True),
)
def test_two_sets_of_fields_share_a_key_only_if_they_are_the_same(data, first, second):
    keys = [key(replace(RETRAIN, kept=tuple(kept)), data) for kept in (first, second)]
    assert (keys[0] == keys[1]) == (first == second)


@pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)
def test_settings_are_plain_json_and_equal_trials_have_equal_keys(data, trial):
    settings = trial.settings(data, 1)
    assert json.loads(json.dumps(settings, allow_nan=False)).keys() == settings.keys()
    assert key(trial, TINY.load()) == key(trial, data)
    assert trial.title.startswith("tiny: ")
    assert trial.title.endswith(f"seed {trial.training.seed}")


def test_a_search_keeps_its_gates_and_a_retrain_its_metrics(data, tmp_path):
    pressure = replace(SEARCH, method=PressureMethod())
    found = pressure.run(data, tmp_path / "search")
    assert list(found["scores"]) == list(data.task.fields.names) == list(found["gates"]["gates"])
    assert {name: gates[-1] for name, gates in found["gates"]["gates"].items()} == pytest.approx(
        found["scores"], abs=0.01
    )  # and a little of the mean
    assert found["open"] == [name for name, score in found["scores"].items() if score > 0.5]
    assert found["path"] is None
    assert replace(SEARCH, method=Random()).run(data, tmp_path / "random")["gates"] is None
    metrics = RETRAIN.run(data, tmp_path / "retrain")["metrics"]
    names = [metric.name for metric in OBJECTIVES["binary"].metrics_for(None)]
    assert metrics.keys() == {f"{part}_{name}" for part in ("valid", "test") for name in names}


def test_a_search_by_leap_keeps_its_path_and_the_fields_within_a_standard_error(data, tmp_path):
    search = replace(SEARCH, method=LeAPMethod(steps=80))
    found = search.run(data, tmp_path / "search")
    names = data.task.fields.names
    assert list(found["scores"]) == list(names) == list(found["gates"]["gates"])
    stored = json.loads(json.dumps(found, allow_nan=False))
    path = Path.from_json(stored["path"])
    assert path == Path.from_json(found["path"])
    assert list(path.worth) == list(names)
    assert path.points[0].kept == names
    metrics = [point.metric for point in path.points]
    best_so_far = list(accumulate(metrics, max))
    behind = [best - metric for best, metric in zip(best_so_far, metrics, strict=True)]
    assert [point.behind for point in path.points] == pytest.approx(behind, abs=1e-6)
    assert max(behind) > 0
    assert path.best.metric == max(metrics)
    assert found["open"] == list(path.smallest_within().kept)


def test_a_method_that_measures_worth_without_a_path_has_open_fields_by_its_scores(data, tmp_path):
    found = replace(SEARCH, method=Permutation()).run(data, tmp_path / "search")
    path = Path.from_json(found["path"])
    assert (list(path.worth), path.points) == (list(data.task.fields.names), ())
    assert found["open"] == [name for name, score in found["scores"].items() if score > 0.5]
