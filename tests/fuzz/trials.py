"""Damage files, open them and report what happened, in a process of its own that may abort."""

import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from tests.fuzz.mutators import damaged

HANG = 60.0  # seconds, after which a file counts as one that never ends
FINDINGS = ("traceback", "panic", "abort", "hang", "unreadable")
ROOT = Path(__file__).parents[2]


class Worker:
    """A process that damages and opens files; another takes its place if one ends it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz_")
        self._process: Any = None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def outcome(self, name: str, seed: int) -> tuple[str, str]:
        """Open one damaged file; return "read", "refused" or one of FINDINGS, and details."""
        if self._process is None:
            self._process = self._start()
        self._process.stdin.write(json.dumps([name, seed]) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], HANG)[0]:
            self._end()
            return "hang", f"not at its end after {HANG:.0f} s"
        line = self._process.stdout.readline()
        if line:
            outcome, told = json.loads(line)
            return outcome, told
        code = self._end()
        messages = (Path(self._folder.name) / "messages").read_text("utf-8", "replace")
        return "abort", f"exit code {code}: {messages[-300:]}"

    def _start(self) -> Any:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        variables = {
            **os.environ,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": self._folder.name,
        }
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.trials",
            str(Path(self._folder.name) / "messages"),
        ]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=pipe, stdout=pipe, text=True
        )

    def _end(self) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.kill()
        with process:
            return int(process.wait())


def main(messages: Path) -> None:
    """Answer each line of the input, a format and a seed, with the outcome."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    healthy: dict[str, Path] = {}
    with messages.open("wb+") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)  # where the panics of polars are shown
        for line in sys.stdin:
            name, seed = json.loads(line)
            if name not in healthy:
                healthy[name] = _healthy(name)
            printed.seek(0)
            printed.truncate()
            outcome, told = _outcome(name, healthy[name], seed)
            shown = messages.read_bytes()
            if b"panicked at" in shown:
                outcome, told = "panic", shown.decode("utf-8", "replace")[:300]
            answers.write(json.dumps([outcome, told]) + "\n")


def _healthy(name: str) -> Path:
    from tests.fuzz.formats import FORMATS

    return FORMATS[name].make(Path(tempfile.mkdtemp()))


def _outcome(name: str, healthy: Path, seed: int) -> tuple[str, str]:
    from tests.fuzz.formats import FORMATS
    from torchleap._common.errors import TorchleapError

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / healthy.name
        if healthy.is_dir():
            shutil.copytree(healthy, copy)
        else:
            shutil.copyfile(healthy, copy)
        _damage(copy, seed)
        (scratch := Path(folder) / "scratch").mkdir()
        try:
            FORMATS[name].open(copy, scratch)
        except TorchleapError as error:
            sentence = str(error)
            return ("refused", "") if _is_readable(sentence) else ("unreadable", sentence[:500])
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return (
                "traceback",
                f"{type(error).__name__}: {str(error)[:150]} ({place.filename}:{place.lineno})",
            )
    return "read", ""


def _is_readable(sentence: str) -> bool:
    """Whether a message is one line that fits on a screen, without control characters."""
    return len(sentence) < 1200 and sentence.isprintable() and bool(sentence.strip())


def _damage(path: Path, seed: int) -> None:
    """Damage a file, or one of those in a folder; seed 0 leaves it as it is."""
    files = (
        sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
        if path.is_dir()
        else [path]
    )
    file = random.Random(seed).choice(files)
    if seed:
        file.write_bytes(damaged(file.read_bytes(), seed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
