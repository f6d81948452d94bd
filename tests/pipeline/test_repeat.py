"""repeat: both models are trained again on the same fields, and the interval covers it."""

import math
from dataclasses import replace

import pytest

import torchleap as tl
from torchleap._common.checks import LARGEST_SEED
from torchleap.pipeline import repeat as module
from torchleap.pipeline.decide import decide
from torchleap.pipeline.pair import train_pair
from torchleap.pipeline.repeat import repeated
from torchleap.training.fit import Hook, TrainingError

from .test_decide import COLUMNS, TRAINING, KillIn, rows
from .test_search import KilledError

ONCE = replace(TRAINING, epochs=1)


@pytest.fixture(scope="module")
def task():
    return tl.data.read(rows(), label="click", split="order", columns=COLUMNS)


def by_permutation(task, **settings):
    """Decide without gates, so that a repetition trains no search."""
    return decide(
        task, model="mlp", method="permutation", training=ONCE, share=0.5, margin=0.05, **settings
    )


@pytest.fixture(scope="module")
def alone(task):
    return by_permutation(task)


@pytest.fixture(scope="module")
def thrice(task):
    return by_permutation(task, repeats=3)


class Runs(Hook):
    """Counts trainings."""

    def __init__(self):
        self.count = 0
        self.seeds = []

    def at_start(self, run):
        self.count += 1
        self.seeds.append(run.training.seed)


def test_repetitions_change_the_certificate_but_not_what_ships(alone, thrice):
    assert thrice.selection == alone.selection
    assert thrice.record["metrics"] == alone.record["metrics"]
    assert alone.certificate.repeats == 1
    assert alone.record["reruns"] is None
    found = thrice.certificate
    assert found.repeats == 3
    assert found.training_deviation > 0
    assert found.high - found.low > alone.certificate.high - alone.certificate.low


def test_the_change_is_the_mean_of_all_trainings(alone, thrice):
    record = thrice.record["reruns"]
    changes = [alone.certificate.change, *record["changes"]]
    assert thrice.certificate.change == pytest.approx(sum(changes) / 3)
    assert len(set(changes)) == 3
    assert (record["kind"], record["repeat_by"], record["seeds"]) == ("repeats", "training", [1, 2])
    assert (record["selections"], record["kept"], record["jaccard"]) == (0, {}, None)


def test_the_certificate_says_what_one_more_training_may_lose(alone, thrice):
    assert any("repeats=3" in note for note in alone.certificate.notes)
    (note,) = [note for note in thrice.certificate.notes if "one more" in note]
    assert note.startswith("The interval is that of the mean of 3 trainings; in one more, the AUC")
    assert "mean of 3 trainings" in thrice.certificate.evidence()


def test_a_repetition_is_a_decision_with_another_seed_on_the_same_fields(task, alone, thrice):
    other = by_permutation(task, seed=1)
    assert other.selection.kept == alone.selection.kept
    assert other.certificate.change == pytest.approx(thrice.record["reruns"]["changes"][0])


def test_gates_are_searched_again_and_their_selections_compared(task):
    found = decide(task, model="mlp", training=ONCE, share=0.5, repeats=2)
    record = found.record["reruns"]
    assert record["selections"] == 2
    assert set(record["kept"]) == set(task.fields.names)
    assert sum(record["kept"].values()) == 4
    assert 0 <= record["jaccard"] <= 1


def test_stages_say_which_repetition_runs(task):
    announced = []
    by_permutation(task, repeats=3, on_stage=announced.append)
    assert announced[-4:] == ["fine-tuning", "repeating 2 of 3", "repeating 3 of 3", "comparing"]


def test_weights_alone_can_differ(task, thrice):
    hook = Runs()
    found = by_permutation(task, repeats=3, repeat_by="weights", callbacks=[hook])
    assert set(hook.seeds) == {0}
    assert found.record["reruns"]["seeds"] == [1, 2]
    changes = found.record["reruns"]["changes"]
    assert len({*changes, *thrice.record["reruns"]["changes"]}) == 4


def test_nothing_is_repeated_where_no_field_is_dropped(task):
    hook = Runs()
    settings = {"model": "mlp", "method": "random", "training": ONCE, "share": 1.0}
    found = decide(task, **settings, repeats=3, callbacks=[hook])
    assert found.certificate is None
    assert found.record["reruns"] is None
    assert hook.count == 2


def test_models_of_repetitions_are_not_kept(task, monkeypatch):
    pairs = []
    monkeypatch.setattr(
        module, "train_pair", lambda *given: pairs.append(train_pair(*given)) or pairs[-1]
    )
    by_permutation(task, repeats=3)
    assert len(pairs) == 2
    assert all(pair.full is not pair.small for pair in pairs)


@pytest.mark.parametrize("run", [3, 4, 5], ids=["full of 2", "small of 2", "full of 3"])
def test_a_killed_repetition_resumes_to_the_same_certificate(task, thrice, tmp_path, run):
    folder = tmp_path / "state"
    every = replace(ONCE, checkpoint_steps=5)
    settings = {"model": "mlp", "method": "permutation", "share": 0.5, "margin": 0.05}

    def go(**more):
        return decide(task, **settings, training=every, repeats=3, checkpoint=folder, **more)

    with pytest.raises(KilledError):
        go(callbacks=[KillIn(run, 7)])
    assert (folder / "repeat-2" / "decision.json").exists()
    hook = Runs()
    again = go(callbacks=[hook])
    assert again.certificate == thrice.certificate
    assert again.record["reruns"] == thrice.record["reruns"]
    assert not folder.exists()


def test_more_repetitions_reuse_those_that_are_done(task, thrice, tmp_path):
    class Steps(Hook):
        count = 0

        def after_step(self, run):
            self.count += 1

    settings = {"checkpoint": tmp_path, "keep_checkpoint": True}
    by_permutation(task, repeats=2, **settings)
    hook = Steps()
    again = by_permutation(task, repeats=3, callbacks=[hook], **settings)
    assert again.certificate == thrice.certificate
    assert hook.count <= 20 + 80  # of the third repetition: one epoch, and fine-tuning
    with pytest.raises(TrainingError, match="repeat-2 is of another run: its seed is 1, not 0"):
        by_permutation(task, repeats=3, repeat_by="weights", **settings)


def test_the_time_limit_is_that_of_all_trainings(task):
    job = first_job(task, time_limit=12.0, runs=3)
    assert job.limited(0.5).time_limit == 2.0
    assert job.settings()["time_limit"] == 4.0
    found = by_permutation(task, repeats=3, time_limit=1e-3)
    assert found.certificate.repeats == 3


def first_job(task, **settings):
    from torchleap.methods import named
    from torchleap.models import named as backbone_named
    from torchleap.pipeline.job import Job

    known = {
        "task": task,
        "backbone": backbone_named("mlp"),
        "method": named("permutation"),
        "training": ONCE,
        "given": None,
        "margin": 0.001,
        "relative": False,
        "slice_margin": None,
        "slice_by": (),
        "seed": 0,
        "time_limit": None,
        "callbacks": (),
        "folder": None,
    }
    return Job(**{**known, **settings})


def test_seeds_of_repetitions_begin_again_behind_the_largest(task):
    job = first_job(task, seed=LARGEST_SEED, training=replace(ONCE, seed=LARGEST_SEED))
    assert [one.seed for one in repeated(job, 3, "training")] == [0, 1]
    assert [one.training.seed for one in repeated(job, 3, "weights")] == [LARGEST_SEED] * 2


def test_a_relative_margin_is_that_of_the_mean(task):
    found = by_permutation(task, repeats=2, relative=True).certificate
    assert found.margin == pytest.approx(0.05 * found.before)
    assert found.repeats == 2
    assert math.isfinite(found.largest_loss)
