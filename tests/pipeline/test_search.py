"""search scores fields and retrain trains a fresh model; both resume where they were killed."""

from dataclasses import fields, replace

import pytest

import torchleap as tl
from torchleap.methods import METHODS, LeAPMethod, Random, Shark
from torchleap.training.fit import Hook, Training, TrainingError

from ..training.test_fit import KINDS, clicks

TRAINING = Training(batch=128, epochs=3, patience=5, lr=1e-2, checkpoint_steps=7)


@pytest.fixture(scope="module")
def task():
    return tl.data.read(clicks(rows=2000), label="click", split="order", columns=KINDS)


class KilledError(Exception):
    pass


class KillAt(Hook):
    """A power cut at a step, counted over all training runs of a search."""

    def __init__(self, step):
        self.left = step

    def after_step(self, run):
        self.left -= 1
        if not self.left:
            raise KilledError


@pytest.mark.parametrize(
    "name", ["leap", "autofield", "lpfs", "optfs", "deep_lasso", "adafs", "stg"]
)
def test_a_killed_search_resumes_to_the_same_scores(task, tmp_path, name):
    undisturbed = tl.search(task, method=name, model="mlp", training=TRAINING, seed=3)
    folder = tmp_path / "search"
    with pytest.raises(KilledError):
        tl.search(
            task,
            method=name,
            model="mlp",
            training=TRAINING,
            seed=3,
            callbacks=[KillAt(26)],
            checkpoint=folder,
        )
    assert {path.name for path in folder.iterdir()} == {"0.pt", "search.txt"}
    again = tl.search(task, method=name, model="mlp", training=TRAINING, seed=3, checkpoint=folder)
    assert again.scores == undisturbed.scores
    without_time = [
        [{**record, "seconds": 0} for record in result.history] for result in (again, undisturbed)
    ]
    assert without_time[0] == without_time[1]
    assert not folder.exists()


def test_a_search_of_another_method_is_not_resumed(task, tmp_path):
    with pytest.raises(KilledError):
        tl.search(
            task,
            method=LeAPMethod(optimism=0.2),
            training=TRAINING,
            callbacks=[KillAt(9)],
            checkpoint=tmp_path / "search",
        )
    with pytest.raises(
        TrainingError,
        match=r"another search: LeAPMethod.*optimism=0.2.*not LeAPMethod.*optimism=0.25.*Remove it",
    ):
        tl.search(task, method=LeAPMethod(), training=TRAINING, checkpoint=tmp_path / "search")
    method, other = LeAPMethod(optimism=0.2), replace(TRAINING, lr=0.02)
    with pytest.raises(TrainingError, match="its lr is 0.01, not 0.02"):
        tl.search(task, method=method, training=other, checkpoint=tmp_path / "search")


def test_a_folder_with_other_things_stays(task, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    tl.search(task, method=Random(), checkpoint=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_callbacks_see_what_a_method_records(task):
    class Watch(Hook):
        def __init__(self):
            self.seen = []

        def after_eval(self, run, record):
            self.seen.append(record)

    watch = Watch()
    result = tl.search(task, method="leap", training=TRAINING, callbacks=[watch])
    assert watch.seen == result.history
    assert {"gate_item", "gate_price", "gate_user", "train_loss", "lr"} <= set(result.history[-1])


def test_a_killed_retraining_resumes(task, tmp_path):
    undisturbed = tl.retrain(task, training=TRAINING, seed=1)
    with pytest.raises(KilledError):
        tl.retrain(
            task, training=TRAINING, seed=1, callbacks=[KillAt(20)], checkpoint=tmp_path / "run.pt"
        )
    assert (
        tl.retrain(task, training=TRAINING, seed=1, checkpoint=tmp_path / "run.pt").metrics
        == undisturbed.metrics
    )


def test_an_unknown_method_or_setting_is_refused_with_the_nearest_name(task):
    with pytest.raises(tl.TorchleapError, match="There is no method 'laep'. Did you mean 'leap'"):
        tl.search(task, method="laep")
    with pytest.raises(
        tl.TorchleapError, match="PressureMethod has no setting 'strenght'. Did you mean 'strength'"
    ):
        tl.methods.named("leap_pressure", {"strenght": 0.3})
    with pytest.raises(tl.TorchleapError, match="There is no backbone 'dcm'. Did you mean 'dcn'"):
        tl.search(task, model="dcm")
    with pytest.raises(
        tl.TorchleapError, match="WideDeep has no setting 'droput'. Did you mean 'dropout'"
    ):
        tl.models.named("wide_deep", {"droput": 0.3})
    assert tl.methods.named(Shark(), {"signed": True}) == Shark(signed=True)


@pytest.mark.parametrize("name", METHODS)
def test_settings_of_the_wrong_kind_are_refused(name):
    method = tl.methods.named(name)
    for setting in (field.name for field in fields(method)):
        with pytest.raises(tl.TorchleapError, match=f"{setting} must be .*, but is 'wrong'"):
            tl.methods.named(name, {setting: "wrong"})


def test_no_fields_and_few_rows_are_refused(task):
    with pytest.raises(tl.FieldError, match="No field is left"):
        tl.search(task.only([]))
    with pytest.raises(
        TrainingError, match="one batch of 4,096 train rows, but found 1,600 rows. Lower batch="
    ):
        tl.search(task, training=Training(batch=4096))
