"""Avazu's click-through rate competition."""

import pytest

import torchleap as tl


def values(task, name, part="train"):
    ids = getattr(task, part).all().ids[:, task.slots(ids=True)[name]]
    words = ["missing", "unseen", *task.vocabulary(name)]
    return [[words[number] for number in row] for row in ids.tolist()]


def test_avazu_has_22_fields_and_no_id(tmp_path):
    names = ["id", "click", "hour", "C1", "banner_pos"]
    rows = [f"{1000 + i},{i % 2},1410210{i % 3},1005,{i % 4}" for i in range(40)]
    (tmp_path / "train.csv").write_text("\n".join([",".join(names), *rows]))
    task = tl.data.avazu(tmp_path)
    assert task.fields.names == ("hour", "C1", "banner_pos")
    assert [value for (value,) in values(task, "hour")[:3]] == ["14102100", "14102101", "14102102"]
    (tmp_path / "train.csv").write_text("a,b\n1,2\n")
    with pytest.raises(tl.DataError, match="expected Avazu's column 'click', but found a, b"):
        tl.data.avazu(tmp_path)
