"""A full disk: every writer names the file that it could not write and keeps the old one."""

import errno
import os
import resource
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import polars as pl
import pytest
import torch
from torch import nn

import torchleap as tl
from tests.report.records import select_record
from torchleap._common.errors import TorchleapError, WriteError
from torchleap._common.files import append, make_folder, replace_file, write_atomically, writing
from torchleap.bench.store import Store
from torchleap.bench.tables import write_tables
from torchleap.callbacks import HistoryFile
from torchleap.data.files.cache import once
from torchleap.data.synthetic.industrial import IndustrialLog
from torchleap.export import to_onnx, to_program
from torchleap.selection import select

LIMIT = 300  # bytes that a file may have
OLD = b"what was there before"


@contextmanager
def full_disk():
    """Refuse to write more than a few bytes to any file, as the kernel does it."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


FRAME = pl.DataFrame({"click": [0, 1] * 2000, "x": [f"word{number}" for number in range(4000)]})
FIELDS = tl.Fields({f"field_{number}": 4 for number in range(40)})
SELECTION = select(FIELDS, dict.fromkeys(FIELDS.names, 0.9))
EXAMPLE = (torch.randn(4, 64),)


def model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU())


def scores(path):
    with replace_file(path) as temporary:
        FRAME.write_parquet(temporary)


def history(path):
    file = HistoryFile(path)
    record = {f"metric_{number}": 0.123456789 for number in range(40)}
    file._columns = list(record)
    file.after_eval(SimpleNamespace(history=[record]), record)


WRITERS = {
    "model.pt2": lambda path: to_program(model(), path, EXAMPLE),
    "model.onnx": lambda path: to_onnx(model(), path, EXAMPLE),
    "new.parquet": lambda path: tl.data.convert(FRAME, path, overwrite=True),
    "new.arrow": lambda path: tl.data.convert(FRAME, path, overwrite=True),
    "new.csv": lambda path: tl.data.convert(FRAME, path, overwrite=True),
    "scores.parquet": scores,
    "log.parquet": lambda path: IndustrialLog(fields=37, dims=400).write(path, 10),
    "selection.json": SELECTION.save,
    "report.html": lambda path: tl.Report(select_record(4, steps=3)).write(path),
    "report.json": lambda path: tl.Report(select_record(4, steps=3)).write(path),
    "history.csv": history,
    "note.txt": lambda path: write_atomically(path, "x" * 1000),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_is_told_with_the_cure(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(OLD)
    with full_disk(), pytest.raises(TorchleapError) as found:
        WRITERS[name](path)
    assert (
        str(found.value)
        == f"{path} cannot be written: File too large; make room or give another place."
    )
    assert path.read_bytes() == OLD
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_chart_that_does_not_fit_leaves_nothing(tmp_path):
    with (
        full_disk(),
        pytest.raises(
            WriteError, match=r"charts/.*\.svg cannot be written: File too large; make room"
        ),
    ):
        tl.Report(select_record(4, steps=3)).svg(tmp_path / "charts")
    assert not list((tmp_path / "charts").iterdir())


def test_a_store_keeps_the_trials_before_and_can_go_on(tmp_path):
    store = Store(tmp_path / "trials.jsonl")
    with store.writing():
        store.add("first", {"result": 1})
        whole = store.path.read_bytes()
        with (
            full_disk(),
            pytest.raises(
                WriteError, match=r"trials.jsonl cannot be written: File too large; make room"
            ),
        ):
            store.add("second", {"result": "x" * 1000})
        assert store.path.read_bytes() == whole
        store.add("third", {"result": 3})
    assert [record["key"] for record in Store(store.path)] == ["first", "third"]


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES]
)
def test_each_reason_is_told_with_its_cure(code):
    with pytest.raises(WriteError) as found, writing("out/x.json"):
        raise OSError(code, os.strerror(code))
    full = code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    cure = "make room or give another place" if full else "give another place"
    assert str(found.value) == f"out/x.json cannot be written: {os.strerror(code)}; {cure}."
    assert isinstance(found.value, OSError)  # for programs that know the system's errors alone
    assert found.value.errno == code
    assert found.value.__cause__ is not None


def test_a_file_of_a_cache_that_cannot_be_written_is_one_sentence(tmp_path):
    for code, sentence in (
        (errno.ENOSPC, "The disk is full: "),
        (errno.EROFS, "The encoded data cannot be written to "),
    ):

        def make(folder, code=code):
            with writing(folder / "log.parquet"):
                raise OSError(code, os.strerror(code))

        with pytest.raises(tl.DataError) as found:
            once(tmp_path, "key", make, complete="log.parquet")
        assert str(found.value).startswith(sentence)
        assert "log.parquet" not in str(found.value)


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError), writing("x"):
        raise ZeroDivisionError
    with pytest.raises(OSError, match="^no number$"), writing("x"):
        raise OSError("no number")


def test_a_folder_that_is_a_file_or_gone_is_told(tmp_path):
    (tmp_path / "file").write_bytes(OLD)
    for place in (tmp_path / "file" / "below", tmp_path / "file"):
        with pytest.raises(
            WriteError, match="cannot be written: (Not a directory|File exists); give another place"
        ):
            make_folder(place)
    for write in (
        lambda path: write_atomically(path, "x"),
        lambda path: append(path, b"x"),
        SELECTION.save,
    ):
        with pytest.raises(
            WriteError,
            match="gone/x.json cannot be written: No such file or directory; give another place",
        ):
            write(tmp_path / "gone" / "x.json")


def test_tables_of_a_benchmark_need_a_place(tmp_path):
    (tmp_path / "bench").write_bytes(OLD)
    with pytest.raises(WriteError, match="bench cannot be written: File exists"):
        write_tables([], tmp_path / "bench", "tables")
