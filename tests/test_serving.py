"""Served: what `decide` saved scores new rows, of which it needs the kept columns alone."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from torchleap.selecting import decide
from torchleap.serving import Served

from .test_selecting import COLUMNS, TRAINING, rows

QUICK = replace(TRAINING, epochs=1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    task = tl.data.read(rows(1200), label="click", split="order", columns=COLUMNS).priced(protect=["item", "price"])
    decision = decide(task, model="deepfm", method="permutation", training=QUICK, share=0.5)
    decision.save(folder)
    return folder, decision


def scores_of(folder, data, **settings):
    return torch.cat(list(Served.load(folder).probabilities(data, **settings)))


def test_dropped_columns_and_the_label_need_not_be_there(saved):
    folder, decision = saved
    whole, kept = rows(1200), rows(1200).select(decision.selection.kept)
    assert len(decision.selection.dropped) == 2
    assert torch.equal(scores_of(folder, whole), scores_of(folder, kept))
    assert torch.equal(scores_of(folder, kept.select(reversed(kept.columns))), scores_of(folder, kept))


def test_a_kept_column_has_to_be_there(saved):
    folder, decision = saved
    with pytest.raises(tl.DataError, match=f"lacks the column '{decision.selection.kept[0]}', which the model reads"):
        scores_of(folder, rows(1200).drop(decision.selection.kept[0]))


def test_files_are_scored_as_frames_are(saved, tmp_path):
    folder, _ = saved
    new = rows(300, seed=5)
    new.write_parquet(tmp_path / "new.parquet")
    new.write_csv(tmp_path / "new.csv", separator="|")
    told = []
    expected = scores_of(folder, new)
    assert torch.equal(scores_of(folder, tmp_path / "new.parquet", progress=lambda *done: told.append(done)), expected)
    assert torch.allclose(scores_of(folder, tmp_path / "new.csv", separator="|"), expected)
    assert told[-1] == ("reading", 300, 300)


def made(count=1200):
    """Columns of each kind, of which the first matters."""
    dice = np.random.default_rng(0)
    shop, weight = dice.integers(0, 9, count), dice.normal(size=count)
    chance = 1 / (1 + np.exp(-2 * np.sin(shop) - weight))
    return pl.DataFrame(
        {
            "label": (dice.random(count) < chance).astype(int),
            "shop": [f"s{number}" for number in shop],
            "brand": [f"b{number}" for number in dice.integers(0, 5, count)],
            "weight": weight,
            "height": dice.normal(size=count),
            "tags": [[f"t{tag}" for tag in dice.integers(0, 6, size)] for size in dice.integers(0, 4, count)],
            "image": dice.normal(size=(count, 3)).tolist(),
            "sound": dice.normal(size=(count, 2)).tolist(),
        }
    )


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["shop", "brand"], ["shop"]),
        (["weight", "height"], ["weight"]),
        (["weight"], ["weight"]),
        (["tags", "image", "sound", "shop"], ["tags", "image"]),
        (["tags", "image", "sound"], ["sound"]),
        (["tags", "weight", "brand"], ["brand"]),
        (["tags", "weight", "brand"], ["weight"]),
    ],
    ids=["ids", "numbers", "one number", "lists and vectors", "vectors", "one of ids", "one of numbers"],
)
def test_tasks_of_all_kinds_come_back(tmp_path, names, kept):
    frame = made()
    columns = {"tags": "list", "image": "vector", "sound": "vector", "shop": "categorical", "brand": "categorical"}
    chosen = {name: kind for name, kind in columns.items() if name in names}
    task = tl.data.read(frame, label="label", only=names, split="order", columns=chosen).priced(protect=kept)
    decision = decide(task, model="wide_deep", method="random", training=QUICK, threshold=2.0)
    assert list(decision.selection.kept) == [name for name in task.fields.names if name in kept]
    decision.save(tmp_path)
    test = frame.tail(120)
    scores = scores_of(tmp_path, test.select(kept))
    after = decision.record["metrics"]["after"]
    assert tl.auc(test["label"].to_numpy(), scores) == pytest.approx(after["auc"], abs=1e-9)
    assert tl.log_loss(test["label"].to_numpy(), scores) == pytest.approx(after["log_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda layout: "{", "layout.json is damaged"),
        (lambda layout: "[]", "layout.json is damaged"),
        (lambda layout: "[" * 100_000, "layout.json is damaged"),
        (lambda layout: {"ids": layout["ids"]}, "is damaged: KeyError\\('numbers'\\)"),
        (lambda layout: {**layout, "ids": {"item": [0]}}, "is damaged"),
        (lambda layout: {**layout, "ids": {"item": [0, 1], "user": [5, 6]}}, "the ids of 'user' do not follow those before"),
        (lambda layout: {**layout, "numbers": {"price": [0, 10**9], "size": [10**9, 10**9 + 1]}}, "'price' needs 1 places"),
        (lambda layout: {**layout, "numbers": {"size": [0, 1]}}, "'price' needs 1 places, but has 0"),
    ],
)
def test_a_damaged_layout_is_one_clear_sentence(saved, tmp_path, change, sentence):
    folder, decision = saved
    assert decision.selection.kept == ("item", "price")
    content = change(json.loads((folder / "layout.json").read_text()))
    for name in ("model", "encoding"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "layout.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(tl.DataError, match=sentence) as caught:
        Served.load(tmp_path)
    assert str(caught.value).endswith("Select anew.")


def test_a_folder_without_results_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(tl.DataError, match="holds no result of `torchleap select`: expected layout.json in it"):
            Served.load(folder)
