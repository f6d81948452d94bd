import os
import subprocess
import sys

import pytest

from torchleap._common.errors import TorchleapError
from torchleap._common.files import STAGED
from torchleap._common.locks import held, locked


def test_a_lock_file_is_held_by_one(tmp_path):
    path = tmp_path / "x.lock"
    with locked(path) as first, locked(path, wait=False) as second:
        assert (first, second) == (True, False)
    with locked(path, wait=False) as third:
        assert third


def test_a_lock_file_that_was_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
    path = tmp_path / "x.lock"
    opened = os.open
    removed = []

    def open_and_remove_once(*arguments, **options):
        handle = opened(*arguments, **options)
        if not removed:
            path.unlink()
            removed.append(path)
        return handle

    monkeypatch.setattr(os, "open", open_and_remove_once)
    with locked(path) as is_held:
        assert is_held
        assert path.exists()


def test_a_link_in_the_place_of_a_lock_file_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("x")
    (tmp_path / "x.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "x.lock"):
        pass


def test_a_folder_is_held_by_one_and_removed_if_it_stays_empty(tmp_path):
    target = tmp_path / "a" / "b"
    with held(target):
        with (
            pytest.raises(TorchleapError, match=f"Another run is writing to {target}. Wait for it"),
            held(target),
        ):
            pass
        assert target.is_dir()
    assert not list(tmp_path.iterdir())


def test_a_folder_behind_a_link_can_be_held(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with held(tmp_path / "link"):
        (tmp_path / "link" / "file").write_text("x")
    assert (tmp_path / "real" / "file").exists()


def test_a_killed_process_holds_nothing_and_its_parts_are_removed(tmp_path):
    code = (
        "import os, sys; from torchleap._common.locks import held\n"
        f"with held(sys.argv[1]): os.mkdir(os.path.join(sys.argv[1], '{STAGED}x')); os._exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 7
    assert [path.name for path in tmp_path.iterdir()] == [f"{STAGED}x"]
    with held(tmp_path):
        assert not list(tmp_path.iterdir())
