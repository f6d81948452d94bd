"""Watch a hostile file being loaded: files written, code compiled, programs and sockets."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ALWAYS = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "subprocess.Popen",
    "socket.",
    "ctypes.dlopen",
    "webbrowser.",
)
CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.symlink",
    "os.link",
    "os.chmod",
    "shutil.rmtree",
)
CODE = ("exec", "compile", "import", "code.__new__", "marshal.loads")
OURS = Path(__file__).parents[2] / "src" / "torchleap"

_state: dict = {"seen": None, "allowed": (), "code": True, "installed": False}


def _hook(event, args):
    seen = _state["seen"]
    if seen is None:
        return
    _state["seen"] = None  # what the hook does itself is not watched
    try:
        if event.startswith(ALWAYS) or _is_code(event, args) or _is_outside(event, args):
            seen.append(f"{event} {str(args)[:200]}")
    finally:
        _state["seen"] = seen


def _is_code(event, args):
    if not _state["code"]:
        return False
    if (
        event == "code.__new__"
    ):  # Program names the arguments of forward() by a copy of its own code
        return not str(args[1]).startswith(str(OURS))
    if event == "import":
        return args[0] not in sys.modules and args[1] is not None
    return event in CODE


def _is_outside(event, args):
    """Whether it changes a file elsewhere than in the folders that are allowed."""
    if event == "open":
        path, _, flags = args
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            return False
    elif event in CHANGES:
        path = args[0]
    else:
        return False
    if isinstance(path, int):
        return False
    found = Path(os.fsdecode(path)).absolute()
    return not any(found.is_relative_to(folder) for folder in (*_state["allowed"], "/dev"))


@contextmanager
def watched(*allowed: Path, code: bool = True) -> Iterator[list[str]]:
    """Collect what happens that should not.

    Args:
        allowed: Folders in which files may be written.
        code: Whether compiling, executing and importing count as well; PyTorch imports a lot
            when it is first used.
    """
    if not _state["installed"]:
        sys.addaudithook(_hook)
        _state["installed"] = True
    seen: list[str] = []
    _state.update(seen=seen, allowed=allowed, code=code)
    try:
        yield seen
    finally:
        _state["seen"] = None
