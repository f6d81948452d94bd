"""A field that a model memorises when it is trained on."""

import copy

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from tests.methods.tasks import QUICK
from torchleap import models
from torchleap.methods import LeAPMethod, Search
from torchleap.methods.memorised import Memorised
from torchleap.training.fit import Run, Training

TRAINING = Training(batch=64, epochs=12, patience=6, lr=1e-2)


@pytest.fixture(scope="module")
def stamped():
    """Return rows whose stamp, an id for every other row, says nothing about the label."""
    rng = np.random.default_rng(0)
    count = 6000
    user = rng.integers(0, 8, count)
    frame = pl.DataFrame(
        {
            "click": (rng.random(count) < 0.2 + 0.6 * (user % 2)).astype(int),
            "user": user,
            "noise": rng.integers(0, 4, count),
            "stamp": rng.permutation(count) // 2,
        }
    )
    ids = {name: {"kind": "categorical"} for name in ("user", "noise", "stamp")}
    return tl.data.read(frame, label="click", columns=ids, min_count=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


def watch(stamped, folder):
    """Return what watched a training that is saved in a folder, or was saved there before."""
    search = Search(stamped, models.benchmark("wide_deep"), TRAINING, checkpoints=folder)
    hook = Memorised(search)
    search.fit(search.model(), hook)
    return hook


@pytest.fixture(scope="module")
def watched(stamped, folder):
    return watch(stamped, folder)


def test_the_field_that_further_training_memorises_is_found(watched):
    found = watched.worth()
    assert list(found) == ["stamp"]
    assert found["stamp"].alone == found["stamp"].share < -0.5 * watched.rise
    assert 0 < found["stamp"].error < -found["stamp"].alone / 4


def test_a_training_whose_loss_does_not_rise_has_no_memorised_field(stamped):
    search = Search(stamped, models.benchmark("wide_deep"), QUICK)
    hook = Memorised(search)
    rows = len(stamped.valid)
    run = Run(search.model(), stamped, QUICK)
    for outputs in (torch.zeros(rows), torch.zeros(rows) + 1e-4):
        run.outputs = outputs
        hook.after_eval(run, {})
    hook.at_end(run)
    assert not hook.rises.any(), "nothing was measured"
    assert hook.worth() == {}


def test_no_single_field_is_to_blame_where_masking_regains_less_than_half(watched):
    hook = copy.copy(watched)
    hook.rise = 10.0
    assert hook.worth() == {}


def test_a_finished_training_that_is_loaded_again_is_measured_again(stamped, folder, watched):
    hook = watch(stamped, folder)
    assert hook.worth() == watched.worth()
    assert hook.best == watched.best


def test_on_the_path_it_closes_before_all_others(stamped):
    method = LeAPMethod(steps=60)
    model = models.benchmark("wide_deep")
    result = tl.search(stamped, model=model, method=method, training=TRAINING, seed=0)
    assert result.path.points[1].closed[0] == "stamp"
    assert result.worth["stamp"].high < 0
    assert min(result.scores, key=result.scores.get) == "stamp"
    assert max(result.scores, key=result.scores.get) == "user"
