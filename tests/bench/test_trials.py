import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchleap.bench import Prunings, Recipe
from torchleap.bench.roi import FullTrial, RoiTrial
from torchleap.bench.trials import RetrainTrial, SearchTrial
from torchleap.methods import Lasso, LeAPMethod, Permutation, Random, Shark
from torchleap.models import benchmark

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
    "method setting": replace(SEARCH, method=replace(LeAPMethod(), strength=0.3)),
    "all rows": replace(SEARCH, method=Permutation()),
    "some rows": replace(SEARCH, method=Permutation(fraction=0.1)),
    "one round": replace(SEARCH, method=Shark()),
    "two rounds": replace(SEARCH, method=Shark(rounds=2)),
    "fewer": replace(RETRAIN, kept=("main_dense_1",)),
    "others": replace(RETRAIN, kept=("main_dense_1", "copy_4")),
    "all fields": replace(RETRAIN, kept=None),
    "prunings": replace(ROI, prunings=Prunings(shares=(0.5,))),
    "steps": replace(ROI, prunings=Prunings(steps=0)),
}


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
    found = SEARCH.run(data, tmp_path / "search")
    assert list(found["scores"]) == list(data.task.fields.names) == list(found["gates"]["gates"])
    assert {name: gates[-1] for name, gates in found["gates"]["gates"].items()} == pytest.approx(
        found["scores"], abs=0.01
    )  # and a little of the mean
    assert replace(SEARCH, method=Random()).run(data, tmp_path / "random")["gates"] is None
    metrics = RETRAIN.run(data, tmp_path / "retrain")["metrics"]
    assert metrics.keys() == {"valid_auc", "valid_log_loss", "test_auc", "test_log_loss"}
