"""Encoded data beside a user's files is ignored by git, listed, and cleared alone."""

import fcntl
import os
from threading import Event, Thread

import polars as pl
import pytest

import torchleap as tl
from torchleap import cli
from torchleap._common.locks import locked
from torchleap.data.files import caches
from torchleap.data.files.cache import HIDDEN, cache_folder

pytest.importorskip("typer")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHLEAP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "data"
    folder.mkdir()
    pl.DataFrame({"click": [0, 1] * 50, "x": range(100)}).write_csv(folder / "rows.csv")
    return folder


def encoded(place):
    return tl.data.read(place / "rows.csv", label="click")


def test_git_passes_over_the_folder_beside_the_data(place):
    encoded(place)
    assert (place / ".torchleap" / ".gitignore").read_text().splitlines()[-1] == "*"


def test_a_folder_of_the_users_own_gets_no_gitignore(place, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    tl.data.read(place / "rows.csv", label="click", cache=own)
    assert not (own / ".gitignore").exists()


def test_copies_are_listed_with_their_size_and_file(place):
    task = encoded(place)
    (folder,) = caches.cache_folders(place)
    (found,) = caches.cached_in(folder)
    assert (found.path, found.source) == (task.folder, str(place / "rows.csv"))
    assert found.bytes > 100
    assert caches.cache_folders(place / "rows.csv") == [folder]


def test_clearing_removes_ours_alone(place, tmp_path):
    task = encoded(place)
    folder = task.folder.parent
    (folder / "notes.txt").write_text("mine")
    (folder / "other").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "task.json").write_text("{}")
    (folder / ("a" * 24)).symlink_to(outside)
    assert [found.path for found in caches.clear(folder)] == [task.folder]
    assert {path.name for path in folder.iterdir()} == {
        "notes.txt",
        "other",
        ".gitignore",
        "a" * 24,
    }
    assert (outside / "task.json").exists()


def test_an_empty_folder_goes_and_comes_again(place):
    folder = encoded(place).folder.parent
    list(caches.clear(folder))
    assert not folder.exists()
    assert len(encoded(place).train) == 80


def test_what_another_process_works_on_stays(place):
    task = encoded(place)
    with (task.folder.parent / f"{task.folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert list(caches.clear(task.folder.parent)) == []
    assert task.folder.exists()


def test_who_waits_for_a_lock_that_is_removed_holds_the_new_one(tmp_path, monkeypatch):
    path, waiting, there = tmp_path / "key.lock", Event(), []
    usual = fcntl.flock

    def flock(handle, how):
        waiting.set()
        usual(handle, how)

    def hold():
        with locked(path):
            there.append(path.exists())

    with locked(path):
        monkeypatch.setattr(fcntl, "flock", flock)
        thread = Thread(target=hold)
        thread.start()
        assert waiting.wait(30)
        path.unlink()
    thread.join(30)
    assert there == [True]


def test_the_command_lists_and_clears(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    assert cli.main(["data", "cache"]) == 0
    assert capsys.readouterr().out == "Nothing is kept here or in the user's cache.\n"
    encoded(place)
    assert cli.main(["data", "cache"]) == 0
    out = capsys.readouterr().out
    assert str(place / "rows.csv") in out
    assert "1 folder, " in out
    assert cli.main(["data", "cache", "--clear"]) == 0
    assert "Removed 1 folder" in capsys.readouterr().out
    assert not (place / ".torchleap").exists()
    assert cli.main(["data", "cache", "nowhere"]) == 2
    assert "There is no folder nowhere." in capsys.readouterr().err


def test_a_cache_that_another_reader_makes_meanwhile_is_used(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHLEAP_CACHE", raising=False)
    access = os.access

    def access_after_the_other(path, mode):
        (tmp_path / HIDDEN).mkdir(exist_ok=True)
        return access(path, mode)

    monkeypatch.setattr(os, "access", access_after_the_other)
    assert cache_folder(tmp_path, None) == tmp_path / HIDDEN


def test_a_file_in_place_of_a_cache_leaves_the_users_own(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHLEAP_CACHE", raising=False)
    (tmp_path / HIDDEN).write_text("")
    assert cache_folder(tmp_path, None) != tmp_path / HIDDEN
