"""Parquet and Arrow files, also damaged ones, are read or refused, and never end the process."""

import io

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather
from pyarrow import parquet as pq

import torchleap as tl
from tests.data.files.reading import FRAME, refuse_everywhere
from torchleap.data.files import arrow
from torchleap.data.files.open import open_source


def test_a_size_that_no_machine_has_is_an_error_and_not_the_end(tmp_path):
    sink = pa.BufferOutputStream()
    feather.write_feather(
        FRAME.to_arrow(compat_level=pl.CompatLevel.oldest()), sink, compression="zstd"
    )
    content = bytearray(sink.getvalue())
    frame = content.index(
        bytes.fromhex("28b52ffd")
    )  # of zstd; before it stands how long the buffer will be
    content[frame - 8 : frame] = (1 << 60).to_bytes(8, "little")
    (tmp_path / "log.feather").write_bytes(content)
    refuse_everywhere(
        tmp_path / "log.feather", r"log.feather cannot be read: malloc of size \d+ failed"
    )


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_files_that_are_cut_off_or_changed(tmp_path, ending):
    sink = io.BytesIO()
    (FRAME.write_parquet if ending == "parquet" else FRAME.write_ipc)(sink)
    content, path = sink.getvalue(), tmp_path / f"log.{ending}"
    for damaged in (
        content[:-9],
        content[: len(content) // 2],
        b"x" * 100,
        content[:40] + b"\xff" * 400 + content[440:],
    ):
        path.write_bytes(damaged)
        refuse_everywhere(path, f"log.{ending} cannot be read: ")


def test_names_that_are_not_text_do_not_panic(tmp_path, capfd):
    sink = io.BytesIO()
    pl.DataFrame({"click": [0, 1], "naame": ["a", "b"]}).write_ipc(sink)
    (tmp_path / "log.arrow").write_bytes(sink.getvalue().replace(b"naame", b"n\xff\xfeme"))
    refuse_everywhere(
        tmp_path / "log.arrow", "log.arrow cannot be read: 'utf-8' codec can't decode"
    )
    assert "panicked" not in capfd.readouterr().err


def test_the_notes_of_a_writer_are_not_trusted(tmp_path, capfd):
    levels = pl.Series("level", ["lo", "hi"] * 20, dtype=pl.Enum(["lo", "hi"]))
    for note in (b"9;lo2;hi", b"x;lo2;hi", b"2;lo9;hi"):
        sink = io.BytesIO()
        pl.DataFrame([pl.Series("click", [0, 1] * 20), levels]).write_ipc(sink)
        content = sink.getvalue()
        assert b"2;lo2;hi" in content
        (tmp_path / "log.arrow").write_bytes(content.replace(b"2;lo2;hi", note))
        task = tl.data.read(
            tmp_path / "log.arrow", label="click", cache=tmp_path / note.hex(), split="order"
        )
        assert sorted(task.vocabulary("level")) == ["hi", "lo"]
    assert "panicked" not in capfd.readouterr().err


def test_files_with_other_columns_or_types_than_the_first_are_refused(tmp_path):
    FRAME.write_parquet(tmp_path / "0.parquet")
    for other, told in (
        (FRAME.drop("x"), "it lacks 'x'"),
        (FRAME.with_columns(y=1), "it has 'y'"),
        (FRAME.with_columns(pl.col("x").cast(pl.String)), "'x' holds String, not Float64"),
    ):
        other.write_parquet(tmp_path / "1.parquet")
        with pytest.raises(
            tl.DataError,
            match=f"1.parquet has other columns than the first file: {told}. Give all files",
        ):
            tl.data.read(tmp_path, label="click", cache=tmp_path / "cache")


def test_pyarrow_gives_what_polars_would(tmp_path):
    frame = FRAME.with_columns(
        day=pl.Series(range(600)).cast(pl.Date),
        moment=pl.Series(range(600)).cast(pl.Datetime("ms", "UTC")),
        kind=pl.col("s").cast(pl.Categorical),
        tags=pl.concat_list("s", "s"),
        vector=pl.concat_arr("x", "x"),
        nothing=pl.lit(None),
        flag=pl.col("x") > 3,
        small=pl.col("click").cast(pl.UInt8),
    )
    frame.write_parquet(tmp_path / "log.parquet", row_group_size=100)
    frame.write_ipc(tmp_path / "log.arrow", record_batch_size=100)
    for name in ("log.parquet", "log.arrow"):
        source = open_source(tmp_path / name)
        whole = source.frame
        assert whole.collect().equals(frame)
        assert pl.concat(part.collect() for part in source.parts()).equals(frame)
        assert (
            whole.select("s", "x")
            .slice(95, 10)
            .collect()
            .equals(frame.select("s", "x").slice(95, 10))
        )
        assert whole.select(pl.len()).collect().item() == 600


def test_large_files_come_in_parts(tmp_path, monkeypatch):
    pq.write_table(FRAME.to_arrow(), tmp_path / "log.parquet", row_group_size=100)
    monkeypatch.setattr(arrow, "PART", 1)
    parts = open_source(tmp_path / "log.parquet").parts()
    assert [len(part.collect()) for part in parts] == [100] * 6
