"""A new file format is one function and one entry of FORMATS."""

import polars as pl
import pytest

import torchleap as tl
from tests.data.frames import log
from torchleap.data.files.foreign import refuse_foreign
from torchleap.data.files.formats import FORMATS, Format
from torchleap.data.files.source import Source


def open_halves(found, layout):
    """Open files of two halves, each a Parquet file behind a mark."""
    frames = [pl.read_parquet(file.read_bytes()[4:]) for file in found.files]
    return Source(str(found.path), pl.concat(frames).lazy(), files=found.files, root=found.root)


def write_half(path, frame):
    frame.write_parquet(path)
    path.write_bytes(b"HALF" + path.read_bytes())


def test_a_new_format_is_one_entry(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, ".half", Format("a half", open_halves, magic=b"HALF"))
    write_half(tmp_path / "a.half", log()[:300])
    write_half(tmp_path / "b.half", log()[300:])
    task = tl.data.read(tmp_path, label="click", split="order")
    assert len(task.train) == 480
    assert task.fields == tl.data.read(log(), label="click", split="order").fields


def test_a_file_of_a_known_format_under_another_name_is_recognised(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, ".half", Format("a half", open_halves, magic=b"HALF"))
    write_half(tmp_path / "rows.csv", log())
    with pytest.raises(tl.DataError, match="it is a half without the ending that shows it"):
        refuse_foreign(tmp_path / "rows.csv", ".csv")


def test_every_ending_has_its_format():
    assert {ending for ending, known in FORMATS.items() if known.magic is None} == {
        ".csv",
        ".tsv",
        ".txt",
        ".dat",
    }
