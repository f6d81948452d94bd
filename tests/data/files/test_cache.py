"""The cache: which changes of files and options read the data again."""

import polars as pl
import torch

import torchleap as tl
from tests.data.files.reading import RAW, every, in_order, refuse, small


def partitioned(folder, frame, **by):
    for number, (name, value) in enumerate(by.items()):
        place = folder / f"{name[0]}={value}"
        place.mkdir(parents=True)
        frame[number * 100 : number * 100 + 100].write_parquet(place / "a.parquet")


def test_a_renamed_partition_is_read_again(tmp_path):
    partitioned(tmp_path, small(), d1=1, d2=2)
    assert every(in_order(tmp_path, columns={"d": RAW}), "d")[-1].item() == 2
    (tmp_path / "d=2").rename(tmp_path / "d=9")
    assert every(in_order(tmp_path, columns={"d": RAW}), "d")[-1].item() == 9


def test_other_names_of_columns_are_read_again(tmp_path):
    path = tmp_path / "log.csv"
    small().with_columns(pl.col("x") * 100, a=pl.col("x")).write_csv(path, include_header=False)
    first = in_order(path, names=["click", "q", "z"], only=["q"], columns={"q": RAW})
    second = in_order(path, names=["click", "z", "q"], only=["q"], columns={"q": RAW})
    assert torch.allclose(every(first, "q") * 100, every(second, "q"))


def test_frames_as_valid_and_test_rows_are_read_each_time(tmp_path):
    small().write_parquet(tmp_path / "train.parquet")
    for rows in (50, 70):
        task = tl.data.read(
            tmp_path / "train.parquet", label="click", valid=small(rows), test=small(10)
        )
        assert task.rows == {"train": 200, "valid": rows, "test": 10}


def test_the_cache_falls_back_to_the_users(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHLEAP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".torchleap").write_text("not a folder")
    small().write_parquet(tmp_path / "data" / "log.parquet")
    assert (
        in_order(tmp_path / "data" / "log.parquet").folder.parent == tmp_path / "mine" / "torchleap"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert (
        in_order(tmp_path / "data" / "log.parquet").folder.parent
        == tmp_path / "home" / ".cache" / "torchleap"
    )
    refuse(
        "cache= takes the path of a folder, but found 5", tmp_path / "data" / "log.parquet", cache=5
    )
