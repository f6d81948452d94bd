"""Files of other formats get one sentence that names the format and the cure; never bytes, never kilobytes."""

import gzip
import json
import pickle
import sqlite3
import zipfile

import numpy as np
import polars as pl
import pytest

import torchleap as tl
from torchleap._common.errors import DataError

CSV = "click,price\n" + "".join(f"{row % 2},{row}.5\n" for row in range(40))
BYTES = {
    "a DuckDB database": b"\x01\x02\x03\x04\x05\x06\x07\x08DUCK" + bytes(100),
    "an old Excel or Office file": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500),
    "an ORC file": b"ORC" + bytes(range(200)),
    "an Avro file": b"Obj\x01\x04\x16avro.schema" + bytes(100),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(200),
    "a tar archive": b"rows.csv".ljust(257, b"\0") + b"ustar" + bytes(300),
    "packed by bzip2": b"BZh91AY&SY" + bytes(range(128, 255)),
    "packed by xz": b"\xfd7zXZ\0" + bytes(range(128, 255)),
    "a Parquet file without the ending": b"PAR1" + bytes(100),
    "an Arrow file without the ending": b"ARROW1\0\0" + bytes(100),
    "packed by gzip without the ending": gzip.compress(CSV.encode()),
    "packed by zstd without the ending": b"\x28\xb5\x2f\xfd" + bytes(100),
    "text in UTF-16": CSV.encode("utf-16"),
    "JSON lines": b'{"click": 1, "price": 2.5}\n{"click": 0, "price": 3}\n',
    "JSON": json.dumps([{"click": 1, "price": 2.5}] * 5).encode(),
    "a web page": b"\n<!DOCTYPE html><html><body>Log in</body></html>",
    "a pickle of Python": pickle.dumps({"click": [1, 0], "price": np.arange(3)}),
    "an array of numpy": b"\x93NUMPY\x01\0v\0{'descr': '<f8'}" + bytes(64),
    "binary data of an unknown format": np.random.default_rng(0).bytes(3000),
}


def refused(path, **settings):
    with pytest.raises(DataError) as caught:
        tl.data.read(path, label="click", **settings)
    told = str(caught.value)
    assert len(told) < 500
    assert told.isprintable()
    assert "\\x" not in told
    return told


@pytest.mark.parametrize(("name", "content"), BYTES.items())
@pytest.mark.parametrize("ending", [".csv", ".data"])
def test_a_format_is_named_by_its_bytes_whatever_the_ending(name, content, ending, tmp_path):
    path = tmp_path / f"rows{ending}"
    path.write_bytes(content)
    told = refused(path)
    assert told.startswith(f"{path} cannot be read: it is {name}")
    assert ", but Parquet, CSV, TSV or Arrow was expected. " in told


def test_utf_16_without_a_mark_is_named(tmp_path):
    (tmp_path / "rows.csv").write_bytes(CSV.encode("utf-16-le"))
    assert "iconv -f UTF-16 -t UTF-8 rows.csv > rows-utf8.csv" in refused(tmp_path / "rows.csv")


def test_sqlite_and_excel_as_they_are_written(tmp_path):
    base = sqlite3.connect(tmp_path / "rows.db")
    base.execute("create table rows (click int)")
    base.commit()
    base.close()
    assert "it is an SQLite database" in refused(tmp_path / "rows.db")
    with zipfile.ZipFile(tmp_path / "rows.xlsx", "w") as book:
        book.writestr("[Content_Types].xml", "<Types/>")
        book.writestr("xl/workbook.xml", "<workbook/>")
    assert "it is an Excel workbook" in refused(tmp_path / "rows.xlsx")
    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as archive:
        archive.writestr("rows.csv", CSV)
    assert "it is a ZIP archive" in refused(tmp_path / "rows.zip")


def test_what_is_packed_is_looked_into(tmp_path):
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(CSV.encode("utf-16")))
    assert "it is text in UTF-16" in refused(tmp_path / "rows.csv.gz")
    (tmp_path / "rows.tar.gz").write_bytes(gzip.compress(BYTES["a tar archive"]))
    assert "it is a tar archive" in refused(tmp_path / "rows.tar.gz")


def test_text_that_is_called_parquet_is_text(tmp_path):
    (tmp_path / "rows.parquet").write_text(CSV)
    assert "it is text, not what .parquet means" in refused(tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    ("address", "cure"),
    [
        ("s3://bucket/rows.parquet", "aws s3 cp s3://bucket/rows.parquet ."),
        ("https://example.com/rows.csv", "curl -LO https://example.com/rows.csv"),
        ("gs://bucket/rows.parquet", "gcloud storage cp gs://bucket/rows.parquet ."),
        ("hdfs://node/rows.parquet", "hdfs dfs -get hdfs://node/rows.parquet ."),
        ("abfs://box@account/rows.parquet", "Copy it here first."),
        ("file:///data/rows.csv", "Give /data/rows.csv instead."),
    ],
)
def test_an_address_keeps_its_slashes_and_gets_a_cure(address, cure, tmp_path):
    told = refused(address)
    assert cure in told
    with pytest.raises(DataError, match="but found the address"):
        tl.data.inspect(address)
    rows = tmp_path / "rows.csv"
    rows.write_text(CSV)
    with pytest.raises(DataError, match="but found the address"):
        tl.data.convert(rows, address)


def test_a_delta_table_is_not_read_as_the_sum_of_its_files(tmp_path):
    (tmp_path / "_delta_log").mkdir()
    pl.DataFrame({"click": [0, 1] * 20, "price": range(40)}).write_parquet(
        tmp_path / "part-0.parquet"
    )
    assert "is a Delta table" in refused(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        CSV.encode(),
        b"\xef\xbb\xbf" + CSV.encode(),
        CSV.replace(",", "\x01").encode(),
        CSV.replace("click,price", "click,price,Größe").encode("latin-1"),
        b'"{a}",click\n1,0\n',
        b"{,click\n1,0\n",
        b"PKs,click\n1,0\n",
        b"[x],click\n1,0\n",
    ],
)
def test_text_is_not_taken_for_another_format(content, tmp_path):
    from torchleap.data.files.foreign import refuse_foreign

    (tmp_path / "rows.csv").write_bytes(content)
    refuse_foreign(tmp_path / "rows.csv", ".csv")


def test_what_polars_says_is_cut(tmp_path):
    (tmp_path / "rows.csv").write_text("click,price\n" + "x" * 100_000 + ",1,2,3\n")
    with pytest.raises(DataError) as caught:
        tl.data.read(tmp_path / "rows.csv", label="clock")
    assert len(str(caught.value)) < 500
