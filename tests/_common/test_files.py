from pathlib import Path

import pytest

from torchleap._common.errors import SurgeryError, TorchleapError, WriteError
from torchleap._common.files import (
    append,
    put_in_place,
    remove_leftovers,
    replace_file,
    replace_folder,
    replace_together,
    write_atomically,
)

MARKER = "manifest.json"


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_file_is_written_as_text_or_bytes_and_readable_by_all(tmp_path):
    write_atomically(tmp_path / "text", "größer\n")
    write_atomically(tmp_path / "bytes", b"\xff")
    assert (tmp_path / "text").read_text(encoding="utf-8") == "größer\n"
    assert (tmp_path / "bytes").read_bytes() == b"\xff"
    assert (tmp_path / "text").stat().st_mode & 0o777 == 0o644


def write_and_fail(path):
    path.write_text("half")
    raise ZeroDivisionError


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(ZeroDivisionError), replace_file(tmp_path / "file") as temporary:
        write_and_fail(temporary)
    assert content(tmp_path) == {"file": "old"}


def test_append_adds_to_the_end(tmp_path):
    append(tmp_path / "log", b"a\n")
    append(tmp_path / "log", b"b\n")
    assert (tmp_path / "log").read_bytes() == b"a\nb\n"


def test_a_folder_is_replaced_with_all_its_files(tmp_path):
    target = tmp_path / "not" / "yet" / "model"
    for names in (("a", "b"), ("c",)):
        with replace_folder(target) as new:
            for name in names:
                (new / name).write_text(name)
        assert content(target) == {name: name for name in names}
        assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert target.stat().st_mode & 0o777 == 0o755


def test_a_folder_that_fails_half_way_leaves_the_old_one(tmp_path):
    with replace_folder(tmp_path / "model") as new:
        (new / "a").write_text("old")
    with pytest.raises(ZeroDivisionError), replace_folder(tmp_path / "model") as new:
        write_and_fail(new / "a")
    assert content(tmp_path) == {"model/a": "old"}


def fill(folder, *names, text="new"):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(text)


@pytest.mark.parametrize("name", ["photos", "file"])
def test_a_folder_of_somebody_else_is_not_replaced(tmp_path, name):
    fill(tmp_path / "photos", "a", text="precious")
    fill(tmp_path, "file", text="precious")
    replacing = replace_folder(
        tmp_path / name, marker=MARKER, what="a saved model", refused=SurgeryError
    )
    with pytest.raises(SurgeryError) as found, replacing:
        pytest.fail("nothing should be written")
    expected = "exists and is not a saved model, so it is not replaced. Choose another folder."
    assert str(found.value) == f"{tmp_path / name} {expected}"
    assert content(tmp_path) == {"file": "precious", "photos/a": "precious"}


def test_a_folder_that_somebody_makes_meanwhile_is_not_replaced(tmp_path):
    replacing = replace_folder(tmp_path / "x", marker=MARKER)
    with pytest.raises(TorchleapError, match="is not a result"), replacing:
        fill(tmp_path / "x", "a", text="precious")
    assert content(tmp_path) == {"x/a": "precious"}


def test_an_empty_folder_and_one_with_the_marker_are_replaced(tmp_path):
    (tmp_path / "x").mkdir()
    for text in ("first", "second"):
        with replace_folder(tmp_path / "x", marker=MARKER) as new:
            (new / MARKER).write_text(text)
        assert content(tmp_path) == {f"x/{MARKER}": text}


def test_a_folder_in_a_place_that_is_a_file_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    sentence = "cannot be written: (Not a directory|File exists); give another place"
    with pytest.raises(WriteError, match=sentence), replace_folder(tmp_path / "file" / "model"):
        pytest.fail("nothing should be written")


def test_the_old_folder_returns_if_the_new_one_cannot_take_its_name(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a").write_text("old")
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "missing", tmp_path / "x", tmp_path / "aside")
    assert content(tmp_path) == {"x/a": "old"}


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    for name in (".model.abc", ".model2.abc", "model"):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model2.abc", "model"]


def test_entries_are_replaced_together_and_others_stay(tmp_path):
    for name in ("mine", "model", "layout"):
        (tmp_path / name).write_text("old")
    with replace_together(tmp_path, last="layout") as new:
        fill(new, "model", "layout", "more")
    assert content(tmp_path) == {"layout": "new", "mine": "old", "model": "new", "more": "new"}


@pytest.mark.parametrize("fails_at", range(5))
def test_entries_that_cannot_all_be_replaced_are_as_they_were(tmp_path, monkeypatch, fails_at):
    (tmp_path / "model").write_text("old")
    (tmp_path / "layout").write_text("old")
    moves = iter(range(100))
    replace = Path.replace

    def failing(self, target):
        if next(moves) == fails_at:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    replacing = replace_together(tmp_path, last="layout")
    with pytest.raises(WriteError, match="make room"), replacing as new:
        fill(new, "model", "layout", "more")
    assert content(tmp_path) == {"layout": "old", "model": "old"}
