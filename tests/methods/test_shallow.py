"""Methods without a deep model: each finds the useful fields; as published, it is its package's."""

import sys

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from torchleap import models
from torchleap.methods import GBDT, Forest, Lasso, Search, XGBoost
from torchleap.methods.lasso import out_of_fold
from torchleap.training.fit import Training

ALL = (Lasso, Forest, XGBoost, GBDT)
USEFUL = {"item", "price", "taste"}


def known_truth(seed=0, rows=6000):
    """Return rows in which an id, a number and a vector matter, and fields of every kind do not."""
    rng = np.random.default_rng(seed)
    item, user, visit = (rng.integers(0, count, rows) for count in (20, 20, 1500))
    price, noise = rng.normal(size=rows), rng.normal(size=rows)
    taste, blur = (rng.normal(size=(rows, 6)).astype(np.float32) for _ in range(2))
    log_odds = 2 * np.sin(3 * item) + 1.5 * price + taste @ np.array([1, -1, 0.5, 0, 0, 0])
    chance = 1 / (1 + np.exp(-log_odds))
    vector = pl.Array(pl.Float32, 6)
    return pl.DataFrame(
        {
            "click": (rng.random(rows) < chance).astype(int),
            "item": item,
            "user": user,
            "price": price,
            "visit": visit,
            "noise": noise,
            "taste": pl.Series(taste, dtype=vector),
            "blur": pl.Series(blur, dtype=vector),
            "constant": np.ones(rows),
            "shop": np.zeros(rows, dtype=int),
        }
    )


def read(frame):
    ids = {
        name: {"kind": "categorical", "width": 4}
        for name in ("item", "user", "visit", "shop")
        if name in frame.columns
    }
    return tl.data.read(frame, label="click", split="order", columns=ids)


@pytest.fixture(scope="module")
def task():
    return read(known_truth())


@pytest.fixture(scope="module")
def narrow():
    """One column per field, as in the published benchmarks."""
    return read(known_truth(rows=2000).drop("taste", "blur"))


def scores(task, method, seed=0):
    return method.score(Search(task, models.benchmark("wide_deep"), Training(batch=128), seed))


def plain(task):
    """Return the train rows as columns side by side, and the label, for scikit-learn."""
    batch = task.train.all()
    ids = task.slots(ids=True)
    numbers = task.slots(ids=False)
    columns = []
    for name in task.fields.names:
        own = batch.ids[:, ids[name]] if name in ids else batch.numbers[:, numbers[name]]
        columns.append(own.double().numpy())
    return np.concatenate(columns, axis=1), batch.label.numpy()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_method_finds_the_useful_fields(kind, seed):
    task = read(known_truth(seed))
    found = scores(task, kind(), seed)
    assert list(found) == list(task.fields.names)
    assert set(sorted(found, key=found.get)[-3:]) == USEFUL, found
    assert found["constant"] == found["shop"] == 0


def test_a_search_takes_them_as_it_takes_any_method(task):
    result = tl.search(task, method=Forest(), seed=0)
    assert set(result.select(share=0.34).kept) == USEFUL


@pytest.mark.parametrize("kind", [Forest, XGBoost])
def test_as_published_wide_noise_comes_before_a_narrow_useful_field(kind, task):
    found = scores(task, kind(as_published=True))
    assert found["blur"] > found["item"]


def test_as_published_lasso_is_that_of_scikit_learn_on_raw_ids(narrow):
    from sklearn.linear_model import Lasso as Direct

    expected = np.abs(Direct(alpha=1e-3).fit(*plain(narrow)).coef_)
    assert list(scores(narrow, Lasso(as_published=True)).values()) == pytest.approx(
        expected.tolist(), rel=1e-9
    )
    # Coefficients follow the size of the ids.
    assert 0 < expected[narrow.fields.index("visit")] < expected[narrow.fields.index("user")]


def test_as_published_forest_is_that_of_scikit_learn(narrow):
    from sklearn.ensemble import RandomForestClassifier

    expected = (
        RandomForestClassifier(n_estimators=10, max_depth=None, random_state=3)
        .fit(*plain(narrow))
        .feature_importances_
    )
    assert list(scores(narrow, Forest(as_published=True), 3).values()) == pytest.approx(
        expected.tolist(), rel=1e-9
    )


@pytest.mark.parametrize(("as_published", "importance"), [(True, "gain"), (False, "total_gain")])
def test_xgboost_is_that_of_its_package(narrow, as_published, importance):
    from xgboost import XGBClassifier

    model = XGBClassifier(n_estimators=10, max_depth=None, importance_type=importance).fit(
        *plain(narrow)
    )
    found = scores(narrow, XGBoost(as_published=as_published))
    assert list(found.values()) == pytest.approx(model.feature_importances_.tolist(), rel=1e-5)


def test_as_published_gbdt_is_that_of_scikit_learn(narrow):
    from sklearn.ensemble import GradientBoostingClassifier

    model = GradientBoostingClassifier(
        n_estimators=100, learning_rate=0.1, max_depth=3, n_iter_no_change=3, random_state=1
    )
    expected = model.fit(*plain(narrow)).feature_importances_
    found = scores(narrow, GBDT(as_published=True), 1)
    assert list(found.values()) == pytest.approx(expected.tolist(), rel=1e-9)
    similar = scores(narrow, GBDT(), 1)
    assert list(similar.values()) == pytest.approx(expected.tolist(), abs=0.1)


def test_a_vectors_columns_are_added_up_and_a_lassos_coefficients_by_their_norm(task):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import Lasso as Direct

    x, label = plain(task)
    own = slice(5, 11)  # of taste
    forest = RandomForestClassifier(n_estimators=10, random_state=0).fit(x, label)
    assert scores(task, Forest(as_published=True))["taste"] == pytest.approx(
        forest.feature_importances_[own].sum()
    )
    lasso = Direct(alpha=1e-3).fit(x, label)
    assert scores(task, Lasso(as_published=True))["taste"] == pytest.approx(
        np.linalg.norm(lasso.coef_[own])
    )


def test_fair_lasso_is_that_of_scikit_learn_on_encoded_and_standardised_columns(narrow):
    from sklearn.linear_model import Lasso as Direct
    from sklearn.preprocessing import StandardScaler

    x, label = plain(narrow)
    fold = np.random.default_rng(0).permutation(len(x)) % 5
    for place, name in enumerate(narrow.fields.names):
        if name in narrow.slots(ids=True):
            x[:, [place]] = out_of_fold(x[:, [place]].astype(np.int32), label, fold, smoothing=20.0)
    x[:, narrow.fields.index("shop")] = 0  # but for rounding errors
    expected = np.abs(Direct(alpha=1e-3).fit(StandardScaler().fit_transform(x), label).coef_)
    assert list(scores(narrow, Lasso()).values()) == pytest.approx(expected.tolist(), abs=1e-4)


def test_mean_labels_equal_a_loop_over_rows_of_other_folds():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 6, (60, 3))
    label = rng.integers(0, 2, 60).astype(np.float32)
    fold = rng.permutation(60) % 4
    found = out_of_fold(ids, label, fold, smoothing=2.5)
    for row in range(60):
        others = fold != fold[row]
        mean = label[others].mean()
        for slot in range(3):
            # how often each other row has the category
            same = (ids[others] == ids[row, slot]).sum(1)
            smoothed = ((same * label[others]).sum() + 2.5 * mean) / (same.sum() + 2.5)
            assert found[row, slot] == pytest.approx(smoothed - mean, abs=1e-6)


def test_a_row_is_not_encoded_with_the_labels_of_its_own_fold():
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 30, (200, 1))
    label = rng.integers(0, 2, 200).astype(np.float64)
    fold = rng.permutation(200) % 5
    before = out_of_fold(ids, label, fold, smoothing=1.0)
    for one in range(5):
        after = out_of_fold(ids, np.where(fold == one, 1 - label, label), fold, smoothing=1.0)
        assert np.array_equal(after[fold == one], before[fold == one])
        assert not np.allclose(after[fold != one], before[fold != one])


def test_an_id_of_its_own_for_almost_every_row_is_worth_nothing_to_the_lasso():
    rng = np.random.default_rng(0)
    twice = rng.permutation(6000) // 2  # each twice, so that it has an id
    frame = known_truth().with_columns(once=pl.Series(twice))
    task = tl.data.read(
        frame, label="click", split="random", columns={"once": "categorical", "item": "categorical"}
    )
    found = scores(task, Lasso())
    assert found["once"] < 0.1 * min(found[name] for name in USEFUL)


@pytest.mark.parametrize("kind", ALL)
def test_one_seed_gives_one_result_and_rows_are_drawn_by_it(kind, task):
    few = kind(rows=1000)
    assert scores(task, few, 5) == scores(task, few, 5)
    assert scores(task, few, 5) != scores(task, few, 6)
    assert scores(task, kind(rows=len(task.train)), 5) == scores(task, kind(rows=None), 5)
    scores(task, few, -1)
    scores(task, few, 2**40)


def test_rows_and_random_state_are_not_changed(task):
    batch = task.train.all()
    ids, numbers, state = batch.ids.clone(), batch.numbers.clone(), torch.get_rng_state()
    for kind in ALL:
        scores(task, kind())
    assert torch.equal(task.train.all().ids, ids)
    assert torch.equal(task.train.all().numbers, numbers)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture(scope="module")
def ragged():
    """A list, a vector and a number with gaps matter, beside useless ones of the same kinds."""
    rng, rows = np.random.default_rng(2), 5000
    lengths = rng.integers(0, 5, (rows, 2))
    tags, words = (
        [rng.integers(0, 12, length).astype(str).tolist() for length in part] for part in lengths.T
    )
    taste, blur = rng.normal(size=(2, rows, 4)).astype(np.float32)
    age, hour = rng.normal(size=(2, rows))
    gone, lost = rng.random((2, rows)) < 0.3
    worth = np.array([sum(np.cos(2 * int(tag)) for tag in row) for row in tags])
    log_odds = 2 * worth + taste @ np.array([2, -1, 0, 0]) + 2.5 * gone  # the gap itself matters
    chance = 1 / (1 + np.exp(-log_odds))
    vector = pl.Array(pl.Float32, 4)
    frame = pl.DataFrame(
        {
            "click": (rng.random(rows) < chance).astype(int),
            "words": words,
            "taste": pl.Series(taste, dtype=vector),
            "age": pl.Series(np.where(gone, np.nan, age), nan_to_null=True),
            "tags": tags,
            "hour": pl.Series(np.where(lost, np.nan, hour), nan_to_null=True),
            "blur": pl.Series(blur, dtype=vector),
        }
    )
    return tl.data.read(frame, label="click", split="order")


@pytest.mark.parametrize("kind", ALL)
def test_lists_vectors_and_gaps_are_fields_like_any_other(kind, ragged):
    assert [column.slots for column in ragged.columns] == [4, 4, 2, 4, 2, 4]
    found = scores(ragged, kind())
    assert set(sorted(found, key=found.get)[-3:]) == {"tags", "taste", "age"}, found
    assert set(scores(ragged, kind(as_published=True))) == set(ragged.fields.names)


@pytest.mark.parametrize(
    ("method", "package", "name"),
    [
        (Lasso(), "sklearn.linear_model", "scikit-learn"),
        (Forest(), "sklearn.ensemble", "scikit-learn"),
        (GBDT(as_published=True), "sklearn.ensemble", "scikit-learn"),
        (GBDT(), "xgboost", "xgboost-cpu"),
        (XGBoost(), "xgboost", "xgboost-cpu"),
    ],
)
def test_a_missing_package_is_named_with_its_cure(method, package, name, narrow, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        tl.TorchleapError,
        match=rf"needs the package {name}. Install it: pip install 'torchleap\[bench\]'",
    ):
        scores(narrow, method)


def test_settings_that_cannot_be_used_are_refused():
    for kind in ALL:
        with pytest.raises(
            tl.TorchleapError, match="rows must be a whole number of at least 2 or None, but is 1"
        ):
            kind(rows=1)
    sentence = "folds must be .* at least 2, but is 1; smoothing must be .* above 0, but is 0"
    with pytest.raises(tl.TorchleapError, match=sentence):
        Lasso(folds=1, smoothing=0)


def test_rows_of_one_label_are_refused():
    task = read(known_truth(rows=500).with_columns(click=pl.Series([0, 1] + [0] * 498)))
    with pytest.raises(
        tl.TorchleapError,
        match="Expected rows of both labels, but all 20 train rows that were drawn",
    ):
        scores(task, XGBoost(rows=20))
