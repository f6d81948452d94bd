"""A model knows the rows that it was trained on, and certify refuses them as test rows."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch

import torchleap as tl
from torchleap.pipeline.full import without_gates
from torchleap.training.trained_on import note_training, trained_on

from ..pipeline.test_decide import COLUMNS, TRAINING, rows

QUICK = replace(TRAINING, epochs=1)


def read(data=None, **settings):
    frame = rows(1200) if data is None else data
    return tl.data.read(frame, label="click", columns=COLUMNS, **settings)


@pytest.fixture(scope="module")
def task():
    return read()


@pytest.fixture(scope="module")
def model(task):
    return tl.retrain(task, model="mlp", training=QUICK).model


def test_copies_pickles_and_pruned_models_remember_what_they_were_trained_on(model, task):
    (found,) = trained_on(model)
    assert (found.label, found.rows) == ("click", 1080)
    assert trained_on(copy.deepcopy(model)) == (found,)
    assert trained_on(without_gates(model, task)) == (found,)
    (back,) = trained_on(pickle.loads(pickle.dumps(model)))
    assert back.rows == found.rows
    assert trained_on(torch.nn.Linear(1, 1)) == ()


def test_another_training_on_the_same_rows_adds_nothing_and_other_rows_are_added(model, task):
    twin = copy.deepcopy(model)
    note_training(twin, task.only(["item", "price"]))
    assert len(trained_on(twin)) == 1
    note_training(twin, read(seed=1))
    assert len(trained_on(twin)) == 2


def test_the_same_split_certifies_also_when_it_was_read_again(model, task):
    for again in (task, read(), task.only(task.fields.names)):
        assert tl.certify(again, model, model, 0.01).verdict == "safe"


def test_another_split_of_the_same_rows_is_refused(model):
    with pytest.raises(
        tl.DataError,
        match=r"Expected test rows that the full model has not seen, but about \d\d% of them are "
        r"among the 1,080 rows that it was trained on .* Give test rows that nothing",
    ):
        tl.certify(read(seed=1), model, model, 0.01)


def test_a_smaller_model_that_has_seen_the_rows_is_refused_too(model, task):
    other = read(seed=1)
    small = tl.retrain(other, model="mlp", training=QUICK).model
    with pytest.raises(tl.DataError, match="the smaller model has not seen"):
        tl.certify(task, model, small, 0.01)


def test_rows_that_train_or_validate_as_well_are_refused(model):
    frame = rows(1200)
    for parts in ((rows(300, seed=5), frame), (rows(300, seed=5), rows(300, seed=5))):
        task = read(frame, valid=parts[0], test=parts[1])
        with pytest.raises(tl.DataError, match="they are the (train|valid) rows once more"):
            tl.certify(task, torch.nn.Module(), torch.nn.Module(), 0.01)


def test_rows_that_repeat_by_chance_are_no_reason():
    frame = rows(2400).select("click", "item", "user").with_columns(user=1)
    columns = {name: COLUMNS[name] for name in ("item", "user")}
    task, other = (tl.data.read(frame, label="click", columns=columns, seed=n) for n in (0, 1))
    model = tl.retrain(task, model="mlp", training=QUICK).model
    assert tl.certify(other, model, model, 0.01).verdict == "safe"


def test_data_of_an_earlier_version_is_not_judged(model, task):
    other = read(seed=1)
    files = {name: sizes for name, sizes in other.files.items() if name != "rows.bin"}
    assert tl.certify(replace(other, files=files), model, model, 0.01).verdict == "safe"
    fresh = torch.nn.Linear(1, 1)
    note_training(fresh, replace(task, files=files))
    assert trained_on(fresh) == ()
