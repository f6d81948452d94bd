"""Full permutation agrees with scikit-learn and with scoring shuffled rows."""

import numpy as np
import pytest
import torch
from sklearn.inspection import permutation_importance

import torchleap as tl
from tests.data.frames import USEFUL
from tests.methods.tasks import TRAINING
from tests.methods.test_shuffled import WIDTHS, fully_shuffled, with_large_weights
from torchleap import models
from torchleap.methods import Permutation, Search
from torchleap.training.fit import Training


def test_permutation_equals_scoring_shuffled_rows(trained, task):
    search, model = trained
    falls = Permutation(repeats=2).falls(search, model)
    assert falls.shape == (7, 2)
    batch = task.valid.all()
    rng = torch.Generator().manual_seed(0)
    order = torch.randperm(len(task.valid), generator=rng)
    slot = task.slots(ids=False)["price"]
    numbers = batch.numbers.clone()
    numbers[:, slot] = numbers[order][:, slot]
    with torch.no_grad():
        unshuffled = tl.auc(batch.label, model(batch.ids, batch.numbers))
        shuffled = tl.auc(batch.label, model(batch.ids, numbers))
    fall = falls[task.fields.index("price"), 0].item()
    assert fall == pytest.approx(unshuffled - shuffled, abs=1e-6)
    assert falls[task.fields.index("constant")].abs().max() < 1e-6


class AsEstimator:
    """A trained model for scikit-learn; each column of X numbers the rows of one field."""

    classes_ = np.array([0, 1])
    _estimator_type = "classifier"

    def __init__(self, model, task):
        self.model = model
        self.fields = task.fields
        with torch.no_grad():
            self.x = model.inputs(*task.valid.all().inputs)

    def fit(self, *_):
        return self

    def score(self, rows, label):
        taken = torch.from_numpy(rows)
        blocks = [
            self.x[taken[:, place]][:, self.fields.columns(name)]
            for place, name in enumerate(self.fields.names)
        ]
        with torch.no_grad():
            return tl.auc(label, self.model.net(torch.cat(blocks, dim=1)))


def test_permutation_agrees_with_scikit_learn(trained, task):
    search, model = trained
    repeats = 25
    rows = np.repeat(np.arange(len(task.valid))[:, None], len(task.fields), axis=1)
    label = task.valid.label.numpy()
    theirs = permutation_importance(
        AsEstimator(model, task), rows, label, n_repeats=repeats, random_state=0
    )
    ours = Permutation(repeats=repeats).falls(search, model).numpy()
    spread = np.sqrt((ours.var(1) + theirs.importances.var(1)) / repeats)
    assert (np.abs(ours.mean(1) - theirs.importances_mean) <= 4 * spread + 1e-9).all()
    assert ours.mean(1)[task.fields.index("item")] > 0.1
    useful = [task.fields.index(name) for name in USEFUL]
    assert np.allclose(ours.std(1)[useful], theirs.importances_std[useful], rtol=0.6)
    assert (ours[task.fields.index("constant")] == 0).all()


def test_the_rows_of_a_fraction_are_drawn_at_random(trained, task):
    search, model = trained
    method = Permutation(repeats=1, fraction=0.25)
    sample, orders = method.draw(len(task.valid), 0)
    other, _ = method.draw(len(task.valid), 1)
    assert len(sample) == 150 == orders.shape[1]
    assert sample.max() > 500 > 100 > sample.min()
    assert torch.equal(sample, method.draw(len(task.valid), 0)[0])
    assert not torch.equal(sample, other)
    rows = task.valid.all().take(sample)
    with torch.no_grad():
        unshuffled = tl.auc(rows.label, model(*rows.inputs))
    shuffled = tl.auc(rows.label, fully_shuffled(model, task, rows, "item", orders[0]))
    fall = method.falls(search, model)[task.fields.index("item"), 0].item()
    assert fall == pytest.approx(unshuffled - shuffled, abs=1e-6)


def test_other_metrics_fall_too():
    task = WIDTHS[3]
    search = Search(task, models.named("mlp"), TRAINING)
    model = with_large_weights(search.model(), 0)
    rows = task.valid.all()
    _, orders = Permutation(repeats=1).draw(len(task.valid), 0)
    with torch.no_grad():
        both = [model(*rows.inputs), fully_shuffled(model, task, rows, "price", orders[0])]
    loss = [tl.log_loss(rows.label, torch.sigmoid(log_odds.double())) for log_odds in both]
    gauc = [tl.gauc(rows.label, log_odds, rows.group) for log_odds in both]
    place = task.fields.index("price")
    found = {}
    for name in ("log_loss", "gauc"):
        falls = Permutation(repeats=1, metric=name).falls(search, model)
        found[name] = falls[place, 0].item()
    assert found["log_loss"] == pytest.approx(loss[1] - loss[0], abs=1e-6)
    assert abs(found["log_loss"]) > 1e-3
    assert found["gauc"] == pytest.approx(gauc[0] - gauc[1], abs=1e-6)


def test_permutation_records_the_deviation_over_repeats(task):
    quick = Training(batch=256, epochs=2)
    result = tl.search(task, method=Permutation(repeats=4), training=quick)
    search = Search(task, models.named("wide_deep"), quick)
    model = search.model()
    search.fit(model)
    falls = Permutation(repeats=4).falls(search, model)
    assert result.scores == search.by_field(falls.mean(1))
    assert result.history[-1]["fall_std_price"] == pytest.approx(
        falls[task.fields.index("price")].std().item(), rel=1e-9
    )
    assert result.history[-1]["valid_auc"] > 0.5
    once = tl.search(task, method=Permutation(repeats=1), training=quick)
    assert not any(name.startswith("fall_std") for name in once.history[-1])


def test_gauc_needs_groups(trained):
    with pytest.raises(
        tl.TorchleapError, match="metric='gauc' needs groups. Read the data with group="
    ):
        Permutation(metric="gauc").falls(*trained)
