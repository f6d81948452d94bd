"""All methods on a small task with known ground truth: each finds the useful fields."""

import pytest

import torchleap as tl
from tests.data.frames import USEFUL
from tests.methods.tasks import TRAINING
from torchleap import methods, models
from torchleap.methods import LPFS, SFS, AdaFS, AutoField, Permutation, Search, Shark
from torchleap.methods.pressure import GateSteps
from torchleap.training.fit import Hook, Training, fit

CONTROLS = ("random", "none")
ELSEWHERE = ("adafs", "optfs")  # their defaults are for millions of rows


@pytest.mark.parametrize(
    "name", [name for name in methods.METHODS if name not in (*CONTROLS, *ELSEWHERE)]
)
def test_every_method_finds_the_useful_fields(name, task):
    backbone = models.benchmark("wide_deep")
    result = tl.search(task, model=backbone, method=name, training=TRAINING, seed=0)
    assert list(result.scores) == list(task.fields.names)
    assert set(result.select(share=0.43).kept) == set(USEFUL), result.scores
    assert result.seconds > 0


def test_the_controls_do_not_find_them(task):
    results = [tl.search(task, method="random", seed=seed) for seed in range(5)]
    assert len({result.select(share=0.43).kept for result in results}) > 2
    assert set(tl.search(task, method="none").scores.values()) == {1.0}


def test_gates_close_on_noise_and_stay_open_on_useful_fields(task):
    backbone = models.benchmark("wide_deep")
    result = tl.search(task, model=backbone, method="leap_pressure", training=TRAINING)
    selection = result.select()
    assert set(selection.kept) == set(USEFUL)
    assert selection.method == "leap_pressure"
    assert selection.settings["strength"] == 0.4
    assert result.history[-1]["gate_noise"] < 0.5
    train_gates = methods.PressureMethod(gates_on="train", strength=None, alpha=1e-2, lr=1e-2)
    scores = tl.search(task, model=backbone, method=train_gates, training=TRAINING).scores
    lowest_useful = min(scores[name] for name in USEFUL)
    assert lowest_useful > max(scores["noise"], scores["constant"])


def test_a_path_ranks_useful_fields_above_noise_and_permutation_measures_worth_too(task):
    for method in ("leap", "permutation"):
        result = tl.search(task, method=method, training=TRAINING)
        assert result.select(share=0.43).kept == tuple(USEFUL)
        worth = {name: one.nats for name, one in result.worth.items()}
        assert min(worth[name] for name in USEFUL) > max(worth["noise"], worth["constant"])
        assert set(result.select(worth=min(worth[name] for name in USEFUL)).kept) == set(USEFUL)
    assert worth["constant"] == 0.0


def test_one_seed_gives_one_result(task):
    quick = Training(batch=256, epochs=2)
    first, second = (tl.search(task, method="leap", training=quick, seed=3) for _ in range(2))
    assert first.scores == second.scores
    assert tl.search(task, method="leap", training=quick, seed=4).scores != first.scores


def test_retraining_on_the_useful_fields_loses_nothing(task):
    result = tl.search(task, method="permutation", training=TRAINING)
    full = tl.retrain(task, training=TRAINING)
    kept = tl.retrain(task, result.select(share=0.43), training=TRAINING)
    assert kept.metrics["test_auc"] > full.metrics["test_auc"] - 0.01 > 0.8
    assert {"valid_auc", "valid_log_loss", "test_auc", "test_log_loss"} == set(kept.metrics)
    assert kept.model.inputs.columns[0].name == "item"


def test_unknown_names_are_refused(task):
    with pytest.raises(tl.TorchleapError, match="There is no method 'leep'. Did you mean 'leap'"):
        tl.search(task, method="leep")
    with pytest.raises(tl.TorchleapError, match="There is no backbone"):
        tl.search(task, model="deep")


@pytest.mark.parametrize(
    ("method", "wrong", "sentence"),
    [
        (Permutation, {"repeats": 0}, "repeats must be a whole number of at least 1, but is 0"),
        (Permutation, {"fraction": 0.0}, "fraction must be a number above 0 and at most 1"),
        (Permutation, {"fraction": 1.5}, "fraction must be a number above 0 and at most 1"),
        (Permutation, {"metric": "accuracy"}, "metric must be one of"),
        (Shark, {"rounds": 0}, "rounds must be a whole number of at least 1"),
        (Shark, {"epochs": 0}, "epochs must be a whole number of at least 1"),
        (SFS, {"batches": 0}, "batches must be a whole number of at least 1"),
        (AutoField, {"every": 0}, "every must be a whole number of at least 1"),
        (AdaFS, {"every": 0}, "every must be a whole number of at least 1"),
        (LPFS, {"planned_epochs": 0}, "planned_epochs must be a whole number of at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(method, wrong, sentence):
    with pytest.raises(tl.TorchleapError, match=sentence):
        method(**wrong)


def test_a_search_that_is_resumed_ends_with_the_same_gates(task, tmp_path):
    """Checkpoints contain the gates' trainer and the position among the validation rows."""

    class Stop(Hook):
        def after_step(self, run):
            if run.step == 30:
                raise KeyboardInterrupt

    settings = Training(batch=256, epochs=3, checkpoint_steps=10)

    def start(*extra, path):
        search = Search(task, models.benchmark("wide_deep"), settings)
        model = search.model()
        plugin = tl.attach(model, task.fields, at="net", seed=0)
        hook = GateSteps(plugin.trainer(search.planned_steps), search, on_train=False)
        fit(model, task, settings, hooks=[hook, *extra], checkpoint=path)
        return hook.scores

    uninterrupted = start(Hook(), path=None)
    with pytest.raises(KeyboardInterrupt):
        start(Stop(), path=tmp_path / "run.ckpt")
    assert start(Hook(), path=tmp_path / "run.ckpt") == uninterrupted


class Watched(Hook):
    """Record the pressure and the gates after each step."""

    def __init__(self, hook):
        self.hook = hook
        self.strength = []
        self.gates = []

    def after_step(self, run):
        self.strength.append(self.hook.trainer.pressure)
        self.gates.append(self.hook.trainer.gates.scores())


def test_the_pressure_rises_and_of_closed_gates_the_last_to_close_ranks_first(task):
    settings = Training(batch=256, epochs=6)
    search = Search(task, models.benchmark("wide_deep"), settings)
    model = search.model()
    plugin = tl.attach(model, task.fields, at="net", seed=0)
    hook = GateSteps(plugin.trainer(search.planned_steps), search, on_train=False)
    watched = Watched(hook)
    run = fit(model, task, settings, hooks=[hook, watched])
    rise = [0.4 * min(1, step / hook.trainer.rise) for step in range(1, run.step + 1)]
    assert watched.strength == pytest.approx(rise)
    assert 0 < hook.trainer.rise <= run.steps / 2
    for name, score in hook.scores.items():
        mean = sum(gates[name] for gates in watched.gates) / len(watched.gates)
        assert score == pytest.approx(0.99 * watched.gates[-1][name] + 0.01 * mean, abs=1e-5)


def test_a_search_lasts_until_a_useless_gate_could_close(task):
    impatient = Training(batch=256, epochs=40, patience=1)
    found = tl.search(
        task,
        model=models.benchmark("wide_deep"),
        method=methods.PressureMethod(lr=2e-2),
        training=impatient,
    )
    assert found.history[-1]["step"] >= 1.5 * 1.6 / (2e-2 * 0.4)


def test_gates_learn_from_the_rows_of_a_single_epoch(task):
    once = Training(batch=64, epochs=1)
    found = [
        tl.search(task, method=methods.PressureMethod(gates_on=where), training=once, seed=1).scores
        for where in ("auto", "train", "valid")
    ]
    assert found[0] == found[1] != found[2]
