"""Task: columns, vocabularies and copies of encoded rows."""

import copy
import gc
import pickle
import shutil

import pytest
import torch

import torchleap as tl
from tests.data.frames import log

pytestmark = pytest.mark.usefixtures("small_blocks")


def test_a_task_can_be_pickled_and_moved(task):
    again = pickle.loads(pickle.dumps(task.valid))
    assert torch.equal(again.all().ids, task.valid.all().ids)
    assert task.valid.all().to("meta").ids.device.type == "meta"


def test_fewer_fields_need_no_new_encoding(task):
    small = task.only(["price", "user"])
    assert small.fields.names == ("user", "price")
    assert small.folder == task.folder
    place = task.slots(ids=True)["user"]
    assert torch.equal(small.test.all().ids, task.test.all().ids[:, place])
    selection = tl.Selection(
        task.fields,
        tuple(0.9 for _ in task.fields),
        tuple(name == "age" for name in task.fields.names),
    )
    assert task.only(selection).fields.names == ("age",)
    with pytest.raises(tl.FieldError, match="There is no field 'prize'. Did you mean 'price'"):
        task.only(["prize"])
    with pytest.raises(tl.FieldError, match="There is no field 1"):
        task.only([1, "prize"])
    with pytest.raises(tl.FieldError, match="No field is left"):
        task.only([])


def test_damaged_columns_are_refused():
    task = tl.data.read(log(), label="click")
    path = task.folder / "0.bin"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(tl.DataError, match="0.bin is damaged or gone"):
        task.test.all()


def test_a_vocabulary_that_is_gone_is_refused(tmp_path):
    log().write_parquet(tmp_path / "log.parquet")
    task = tl.data.read(tmp_path / "log.parquet", label="click", columns={"city": {"buckets": 5}})
    with pytest.raises(tl.DataError, match="'city' has no vocabulary: it holds hashed categories"):
        task.vocabulary("city")
    (task.folder / task.columns[0].file).with_suffix(".parquet").write_bytes(b"damaged")
    with pytest.raises(tl.DataError, match="0.parquet is damaged"):
        task.vocabulary("user")
    shutil.rmtree(task.folder)
    with pytest.raises(tl.DataError, match="0.parquet is damaged"):
        task.vocabulary("user")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_frames_task_holds_its_folder(duplicate):
    again = duplicate(tl.data.read(log(), label="click"))
    gc.collect()
    assert len(again.train.all()) == 480


def test_a_frames_folder_goes_with_its_task():
    task = tl.data.read(log(), label="click")
    folder = task.folder
    assert folder.exists()
    small = task.only(["age"])
    del task
    assert len(small.train.all()) == 480
    del small
    gc.collect()
    assert not folder.exists()
