import ctypes
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from torchleap.native import build, library

ROOT = Path(__file__).parent.parent.parent


def has_compiler():
    try:
        build._find_compiler()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_compiler(), reason="no C compiler")
def test_the_kernel_compiles_and_loads(tmp_path):
    built = build.build(tmp_path)
    assert build.library_path("baseline", tmp_path) in built
    assert sorted(tmp_path.iterdir()) == sorted(built)  # nothing half-made beside them
    assert (
        library.Library(
            ctypes.CDLL(str(build.library_path("baseline", tmp_path))), "baseline"
        ).level
        == "baseline"
    )


def test_without_a_compiler_the_reason_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(OSError, match="no C compiler: install gcc or clang, or name one in CC"):
        build.build(tmp_path)


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", f"{sys.executable} -c 'import sys; sys.exit(\"no such option\")'")
    with pytest.raises(OSError, match="no such option"):
        build.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_windows_has_no_native_kernel(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(OSError, match="for Linux and macOS"):
        build.build()


def test_a_library_of_another_version_is_not_used(tmp_path, monkeypatch):
    class Old:
        @staticmethod
        def torchleap_interface():
            return 0

    with pytest.raises(OSError, match="it has interface 0, but 4 is expected"):
        library.Library(Old(), "baseline")
    (tmp_path / "_kernel_baseline.so").write_bytes(b"not a library")
    monkeypatch.setattr(build, "library_path", lambda level: tmp_path / f"_kernel_{level}.so")
    found, reason = library._search.__wrapped__()
    assert found is None
    assert "cannot be loaded" in reason


def test_the_package_installs_without_a_compiler(tmp_path):
    """The wheel is built all the same, as pure Python, and the build reports the reason."""
    pytest.importorskip(
        "hatchling", reason="hatchling builds the package; it is not installed here"
    )
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    script = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "installs without its native kernel, which is slower: no C compiler" in done.stderr
    name = done.stdout.split()[-1]
    assert name.endswith("py3-none-any.whl")
    assert (
        "torchleap/native/mix.c" in zipfile.ZipFile(tmp_path / name).namelist()
    )  # to compile it later
