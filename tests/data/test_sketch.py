"""Sketches: rows are recognised by their content, natural duplicates are not mistaken for it."""

import json
import os

import numpy as np
import pytest
import torch

import torchleap as tl
from torchleap.data.batches import Batch
from torchleap.data.sketch import CAPACITY, Share, Sketch, encoded_hashes, row_hashes

from ..pipeline.test_decide import COLUMNS, rows


def batch(count=3000, seed=0):
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, (count, 4), generator=rng, dtype=torch.int32)
    numbers = torch.randn(count, 3, generator=rng)
    return Batch(ids, numbers, torch.randint(2, (count,), generator=rng).float())


def blocks(hashes, size=700):
    return [hashes[start : start + size] for start in range(0, len(hashes), size)]


def test_a_hash_depends_on_every_value_and_on_its_place():
    rows = batch(200)
    before = row_hashes(rows)
    assert len(np.unique(before)) == 200
    assert int(before.max()) < 1 << 63
    for part in ("ids", "numbers", "label"):
        changed = getattr(rows, part).clone()
        changed.view(200, -1)[:, -1] += 1
        other = row_hashes(Batch(**{**vars(rows), part: changed}))
        assert not (other == before).any(), part
    swapped = rows.ids[:, [1, 0, 2, 3]]
    differ = (rows.ids[:, 0] != rows.ids[:, 1]).numpy()
    same = row_hashes(Batch(swapped, rows.numbers, rows.label)) == before
    assert not same[differ].any()


def test_a_hash_does_not_depend_on_the_other_rows_of_a_batch():
    rows = batch(20_000)
    parts = [row_hashes(rows.take(slice(start, start + 777))) for start in range(0, 20_000, 777)]
    assert np.array_equal(np.concatenate(parts), row_hashes(rows))


def test_columns_of_one_kind_alone_are_hashed():
    rows = batch(100)
    none = torch.zeros(100, 0)
    assert len(np.unique(row_hashes(Batch(none.int(), rows.numbers, rows.label)))) == 100
    assert len(np.unique(row_hashes(Batch(rows.ids, none, rows.label)))) > 50


def test_a_sketch_keeps_the_smallest_hashes_whatever_the_blocks():
    hashes = row_hashes(batch(20_000))
    once = Sketch.of([hashes], capacity=500)
    many = Sketch.of(blocks(hashes), capacity=500)
    assert np.array_equal(once.hashes, np.unique(hashes)[:500])
    assert np.array_equal(once.hashes, many.hashes)
    assert (once.threshold, once.rows) == (many.threshold, 20_000)
    assert once.threshold == int(once.hashes[-1])


def test_the_share_of_known_rows_is_estimated_from_a_sample():
    hashes = row_hashes(batch(40_000))
    sketch = Sketch.of(blocks(hashes[:30_000]), capacity=4_000)
    share = sketch.share(blocks(hashes[20_000:]))
    assert share.rows < 4_000
    assert share.fraction == pytest.approx(0.5, abs=0.05)
    assert Sketch.of([]).share([hashes]) == Share(0, 40_000)


def test_clear_repetition_is_seen_and_natural_duplicates_are_not():
    natural = Share(400, 1_000)
    assert Share(410, 1_000).seen_beyond(natural) == 0.0
    assert Share(1_000, 1_000).seen_beyond(natural) == 1.0
    assert Share(700, 1_000).seen_beyond(natural) == pytest.approx(0.5)
    assert Share(2, 2).seen_beyond(natural) == 0.0
    assert Share(0, 0).seen_beyond(Share(0, 0)) == 0.0
    assert Share(42_000, 100_000).seen_beyond(Share(40_000, 100_000)) == 0.0


@pytest.mark.parametrize("categories", [3, 8, 10_000])
def test_new_rows_of_the_same_kind_are_not_refused_however_often_rows_repeat(categories):
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, categories + 1)

    def drawn(count):
        ids = rng.choice(categories, (count, 3), p=weights / weights.sum())
        labels = torch.from_numpy(rng.integers(0, 2, count)).float()
        return row_hashes(Batch(torch.from_numpy(ids).int(), torch.zeros(count, 0), labels))

    train = drawn(50_000)
    sketch = Sketch.of([train], capacity=1_000)
    natural = sketch.share([drawn(5_000)])
    for _ in range(10):
        assert sketch.share([drawn(20_000)]).seen_beyond(natural) == 0.0
    if categories == 10_000:
        mixture = np.concatenate([drawn(14_000), train[:6_000]])
        assert sketch.share([mixture]).seen_beyond(natural) > 0.1


def test_a_sketch_comes_back_from_its_file(tmp_path):
    sketch = Sketch.of([row_hashes(batch())], capacity=100)
    described = json.loads(json.dumps(sketch.save(tmp_path / "rows.sketch")))
    back = Sketch.load(tmp_path / "rows.sketch", described)
    assert np.array_equal(back.hashes, sketch.hashes)
    assert (back.threshold, back.rows) == (sketch.threshold, sketch.rows)


def damaged(path, described, how):
    """Damage the file or its description in one way."""
    if how == "flipped":
        content = bytearray(path.read_bytes())
        content[9] ^= 1
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif how == "huge":
        path.write_bytes(bytes(8 * CAPACITY + 8))
    elif how == "gone":
        path.unlink()
    elif how == "link":
        path.rename(path.with_suffix(".else"))
        path.symlink_to(path.with_suffix(".else"))
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "description":
        return None
    elif how == "threshold":
        return {**described, "threshold": -1}
    return described


@pytest.mark.parametrize(
    "how",
    ["flipped", "cut", "huge", "gone", "link", "pipe", "folder", "description", "threshold"],
)
def test_a_damaged_sketch_is_one_clear_sentence(tmp_path, how):
    path = tmp_path / "rows.sketch"
    described = Sketch.of([row_hashes(batch())], capacity=100).save(path)
    with pytest.raises(tl.DataError, match=r"rows\.sketch is damaged: .*\. Select again\.$"):
        Sketch.load(path, damaged(path, described, how))


def test_encoded_rows_have_the_same_hashes_in_memory_and_from_disk(monkeypatch):
    task = tl.data.read(rows(600), label="click", columns=COLUMNS)
    hashes = np.concatenate(list(encoded_hashes(task.train, task.valid)))
    assert len(hashes) == 540
    monkeypatch.setattr("torchleap.data.batches.IN_MEMORY", 0)
    again = tl.data.Task.load(task.folder, task.keep)
    assert np.array_equal(np.concatenate(list(encoded_hashes(again.train, again.valid))), hashes)
