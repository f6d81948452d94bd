"""Served: a saved result of `decide` scores new rows and needs the kept columns alone."""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from torchleap import export
from torchleap._common.locks import held
from torchleap._common.plain import write_json
from torchleap.objectives import OBJECTIVES
from torchleap.pipeline.decide import decide
from torchleap.pipeline.serve import Served, _digest

from .test_decide import COLUMNS, TRAINING, rows

QUICK = replace(TRAINING, epochs=1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    task = tl.data.read(rows(1200), label="click", split="order", columns=COLUMNS).priced(
        protect=["item", "price"]
    )
    decision = decide(task, model="deepfm", method="permutation", training=QUICK, share=0.5)
    decision.save(folder)
    return folder, decision


def scores_of(folder, data, **settings):
    return torch.cat(list(Served.load(folder).probabilities(data, **settings)))


def test_dropped_columns_and_the_label_need_not_be_there(saved):
    folder, decision = saved
    every, kept = rows(1200), rows(1200).select(decision.selection.kept)
    assert len(decision.selection.dropped) == 2
    assert torch.equal(scores_of(folder, every), scores_of(folder, kept))
    assert torch.equal(
        scores_of(folder, kept.select(reversed(kept.columns))), scores_of(folder, kept)
    )


def test_a_kept_column_has_to_be_there(saved):
    folder, decision = saved
    with pytest.raises(
        tl.DataError,
        match=f"lacks the column '{decision.selection.kept[0]}', which the model reads",
    ):
        scores_of(folder, rows(1200).drop(decision.selection.kept[0]))


def test_files_are_scored_as_frames_are(saved, tmp_path):
    folder, _ = saved
    new = rows(300, seed=5)
    new.write_parquet(tmp_path / "new.parquet")
    new.write_csv(tmp_path / "new.csv", separator="|")
    reported = []
    expected = scores_of(folder, new)
    assert torch.equal(
        scores_of(folder, tmp_path / "new.parquet", progress=lambda *done: reported.append(done)),
        expected,
    )
    assert torch.allclose(scores_of(folder, tmp_path / "new.csv", separator="|"), expected)
    assert reported[-1] == ("reading", 300, 300)


def made(count=1200):
    """Return columns of each kind; the shop and the weight matter."""
    rng = np.random.default_rng(0)
    shop, weight = rng.integers(0, 9, count), rng.normal(size=count)
    chance = 1 / (1 + np.exp(-2 * np.sin(shop) - weight))
    return pl.DataFrame(
        {
            "label": (rng.random(count) < chance).astype(int),
            "shop": [f"s{number}" for number in shop],
            "brand": [f"b{number}" for number in rng.integers(0, 5, count)],
            "weight": weight,
            "height": rng.normal(size=count),
            "tags": [
                [f"t{tag}" for tag in rng.integers(0, 6, size)]
                for size in rng.integers(0, 4, count)
            ],
            "image": rng.normal(size=(count, 3)).tolist(),
            "sound": rng.normal(size=(count, 2)).tolist(),
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
    ids=[
        "ids",
        "numbers",
        "one number",
        "lists and vectors",
        "vectors",
        "one of ids",
        "one of numbers",
    ],
)
def test_tasks_of_all_kinds_come_back(tmp_path, names, kept):
    frame = made()
    columns = {
        "tags": "list",
        "image": "vector",
        "sound": "vector",
        "shop": "categorical",
        "brand": "categorical",
    }
    chosen = {name: kind for name, kind in columns.items() if name in names}
    task = tl.data.read(frame, label="label", only=names, split="order", columns=chosen).priced(
        protect=kept
    )
    decision = decide(task, model="wide_deep", method="random", training=QUICK, threshold=2.0)
    assert list(decision.selection.kept) == [name for name in task.fields.names if name in kept]
    decision.save(tmp_path)
    test = frame.tail(120)
    scores = scores_of(tmp_path, test.select(kept))
    after = decision.record["metrics"]["after"]
    assert tl.auc(test["label"].to_numpy(), scores) == pytest.approx(after["auc"], abs=1e-9)
    assert tl.log_loss(test["label"].to_numpy(), scores) == pytest.approx(
        after["log_loss"], rel=1e-5
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda layout: "{", "layout.json is damaged"),
        (lambda layout: "[]", "layout.json is damaged"),
        (lambda layout: "[" * 100_000, "layout.json is damaged"),
        (
            lambda layout: {"ids": layout["ids"]},
            "is damaged or of an earlier version \\(KeyError: 'numbers'\\)",
        ),
        (lambda layout: {**layout, "ids": {"item": [0]}}, "is damaged"),
        (
            lambda layout: {**layout, "ids": {"item": [0, 1], "user": [5, 6]}},
            "the ids of 'user' do not follow those before",
        ),
        (
            lambda layout: {**layout, "numbers": {"price": [0, 9], "size": [9, 10]}},
            "'price' needs 1 slots",
        ),
        (
            lambda layout: {**layout, "numbers": {"price": [0, 10**9]}},
            "1000000000 is not a place in a batch",
        ),
        (lambda layout: {**layout, "numbers": {"price": [0.0, True]}}, "is not a place in a batch"),
        (
            lambda layout: {name: layout[name] for name in ("ids", "numbers")},
            "of an earlier version",
        ),
        (
            lambda layout: {**layout, "numbers": {"size": [0, 1]}},
            "'price' needs 1 slots, but has 0",
        ),
    ],
)
def test_a_damaged_layout_is_one_clear_sentence(saved, tmp_path, change, sentence):
    folder, decision = saved
    assert decision.selection.kept == ("item", "price")
    content = change(json.loads((folder / "layout.json").read_text()))
    for name in ("model", "encoding"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "layout.json").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )
    with pytest.raises(tl.DataError, match=sentence) as caught:
        Served.load(tmp_path)
    assert str(caught.value).endswith("Select again.")


def linked(saved, tmp_path, content):
    """Return a folder with another layout, whose other parts are those of a saved result."""
    for name in ("model", "encoding"):
        (tmp_path / name).symlink_to(saved[0] / name)
    write_json(tmp_path / "layout.json", {**content, "result": _digest(saved[0], content)})
    return tmp_path


def test_the_objective_is_saved_and_results_without_one_are_binary(saved, tmp_path):
    content = json.loads((saved[0] / "layout.json").read_text())
    assert content.pop("objective") == "binary"
    content.pop("result")
    earlier = Served.load(linked(saved, tmp_path, content))
    assert earlier.objective == Served.load(saved[0]).objective == OBJECTIVES["binary"]


def test_an_unknown_objective_is_refused(saved, tmp_path):
    content = json.loads((saved[0] / "layout.json").read_text())
    content.pop("result")
    folder = linked(saved, tmp_path, {**content, "objective": "binray"})
    with pytest.raises(tl.DataError, match="Did you mean 'binary'.*Select again"):
        Served.load(folder)


def test_a_folder_without_results_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(
            tl.DataError,
            match="holds no complete result of `torchleap select`: expected layout.json in it",
        ):
            Served.load(folder)


class Dead(BaseException):
    """The process was killed: it does nothing more."""


def killed_at(monkeypatch, folder, step):
    """Let the process die at this change in a folder; afterwards it changes nothing there."""
    count = iter(range(10**6))
    dead = []

    def dying(act):
        def call(path, *args, **rest):
            inside = str(path).startswith(str(folder))
            if inside and (dead or next(count) == step):
                dead.append(True)
                raise Dead
            return act(path, *args, **rest)

        return call

    for place, name in (
        (os, "replace"),
        (os, "rename"),
        (os, "unlink"),
        (os, "rmdir"),
        (shutil, "rmtree"),
    ):
        monkeypatch.setattr(place, name, dying(getattr(place, name)))
    return dead


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another result of the same columns, from other rows."""
    folder = tmp_path_factory.mktemp("other")
    task = tl.data.read(rows(1200, seed=9), label="click", split="order", columns=COLUMNS).priced(
        protect=["item", "price"]
    )
    decision = decide(task, model="deepfm", method="permutation", training=QUICK, share=0.5)
    decision.save(folder)
    return folder, decision


def test_a_kill_at_any_moment_leaves_one_result_or_one_that_is_refused(
    saved, other, tmp_path, monkeypatch
):
    new = rows(50, seed=5)
    expected = [scores_of(folder, new) for folder, _ in (saved, other)]
    chosen = [(folder / "selection.json").read_text() for folder, _ in (saved, other)]
    assert not torch.equal(*expected)
    outcomes = []
    for step in range(200):
        folder = tmp_path / str(step)
        shutil.copytree(saved[0], folder)
        (folder / "notes.txt").write_text("mine")
        with monkeypatch.context() as patch:
            dead = killed_at(patch, folder, step)
            with suppress(Dead):
                other[1].save(folder)
        assert (folder / "notes.txt").read_text() == "mine"
        try:
            scores = scores_of(folder, new)
            found = [torch.equal(scores, each) for each in expected].index(True)
            assert (folder / "selection.json").read_text() == chosen[found]
            outcomes.append(("old", "new")[found])
        except tl.DataError as error:
            assert "holds no complete result" in str(error)
            outcomes.append("refused")
        if not dead:
            break
    assert outcomes[0] == "old"
    assert outcomes[-1] == "new"
    assert outcomes == sorted(outcomes, key=["old", "refused", "new"].index)
    assert len(outcomes) > 20
    with held(tmp_path / "3"):
        other[1].save(tmp_path / "3")
    assert not list((tmp_path / "3").glob(".*"))


def test_a_failed_save_leaves_the_old_result(saved, other, tmp_path, monkeypatch):
    shutil.copytree(saved[0], tmp_path / "result")
    before = {path.name for path in (tmp_path / "result").iterdir()}
    replace_ = os.replace

    def fail(source, target, **rest):
        if str(target) == str(tmp_path / "result" / "layout.json") and "new" in str(source):
            raise OSError(5, "Input/output error")
        return replace_(source, target, **rest)

    expected = scores_of(saved[0], rows(50))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="Input/output error"):
            other[1].save(tmp_path / "result")
    assert {path.name for path in (tmp_path / "result").iterdir()} == before
    assert torch.equal(scores_of(tmp_path / "result", rows(50)), expected)


@pytest.mark.parametrize("part", ["model", "encoding", "layout.json"])
def test_parts_of_another_result_are_refused(part, saved, other, tmp_path):
    for name in ("model", "encoding", "layout.json"):
        source = (other if name == part else saved)[0] / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    with pytest.raises(
        tl.DataError,
        match="mixes several results: its model, encoding and layout.json were not written",
    ):
        Served.load(tmp_path)


def test_a_result_says_once_whether_its_model_needs_code(saved, tmp_path, recwarn):
    decision = saved[1]
    result = decision.save(tmp_path / "result")
    assert result == export.Saved(tmp_path / "result" / "model", True, ())
    assert not recwarn.list
    decision.model.register_forward_hook(lambda *call: call[2])
    try:
        result = decision.save(tmp_path / "result")
    finally:
        decision.model._forward_hooks.clear()
    assert result.in_the_way == ("the hooks on the model",)
    assert [str(warning.message) for warning in recwarn.list] == [str(result)]
    assert f"{tmp_path / 'result' / 'model'} cannot be loaded" in str(result)


def test_folders_that_are_not_results_are_not_replaced(saved, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.tex").write_text("")
    with pytest.raises(
        tl.DataError, match="model exists and is not a result, so it is not replaced"
    ):
        saved[1].save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


class Answers(torch.nn.Module):
    """A model that returns what a function makes of its inputs."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, ids, numbers):
        return self.answer(ids, numbers)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda ids, numbers: ids.bmm(3), "cannot score rows \\(TypeError: bmm"),
        (lambda ids, numbers: numbers.reshape(-1, 0), "cannot score rows \\(RuntimeError: "),
        (lambda ids, numbers: None, "does not return one number per row"),
        (lambda ids, numbers: [1.0], "does not return one number per row"),
        (lambda ids, numbers: numbers[:3, 0], "does not return one number per row"),
        (lambda ids, numbers: ids[:, 0], "does not return one number per row"),
    ],
)
def test_a_model_that_scores_no_rows_is_one_clear_sentence(saved, answer, sentence):
    served = replace(Served.load(saved[0]), model=Answers(answer))
    with pytest.raises(tl.DataError, match=f"The model of this result {sentence}.*Select again"):
        list(served.probabilities(rows(50)))
