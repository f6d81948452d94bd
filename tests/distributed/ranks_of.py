"""Real processes for tests: each rank runs one function of the test's module.

They are forked from a server that has imported torch and the tests once, because an import takes
seconds and there are many ranks.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

WAIT = 20.0  # seconds that a rank waits for the others
ROOT = Path(__file__).parents[2]
TESTS = ("fit", "gates", "lost", "path", "ranks", "reruns", "scale", "sharded", "stream", "window")
SERVER = get_context("forkserver")
SERVER.set_forkserver_preload([f"{__package__}.test_{name}" for name in TESTS])


class Rank:
    """A process that runs a function as one rank of a job."""

    def __init__(
        self,
        function: Callable[..., None],
        folder: Path,
        settings: dict[str, str],
        port: int,
        wait: float,
    ) -> None:
        self.printed = folder / f"printed-{os.getpid()}-{time.monotonic_ns()}"
        self.process = SERVER.Process(
            target=_run, args=(function, folder, settings, port, wait, self.printed)
        )
        self.process.start()

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()

    def poll(self) -> int | None:
        return self.process.exitcode

    def end(self, within: float) -> tuple[int, str]:
        """Return its exit code and the text that it printed."""
        self.process.join(within)
        code = self.process.exitcode
        assert code is not None, f"still running after {within} s: {self._text()}"
        text = self._text()
        self.printed.unlink(missing_ok=True)
        return code, text

    def _text(self) -> str:
        return self.printed.read_text(errors="replace") if self.printed.exists() else ""


def _run(
    function: Callable[..., None],
    folder: Path,
    settings: dict[str, str],
    port: int,
    wait: float,
    printed: Path,
) -> None:
    with printed.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (
        os.fdopen(1, "w", closefd=False),
        os.fdopen(2, "w", buffering=1, closefd=False),
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(settings)
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=int(settings["RANK"]),
        world_size=int(settings["WORLD_SIZE"]),
        timeout=timedelta(seconds=wait),
    )
    function(folder)
    torch.distributed.destroy_process_group()


def start(
    function: Callable[..., None], folder: Path, *, ranks: int = 2, wait: float = WAIT
) -> list[Rank]:
    """Start `function(folder)` on each rank of one gloo job."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return [
        Rank(function, folder, {"WORLD_SIZE": str(ranks), "RANK": str(rank)}, port, wait)
        for rank in range(ranks)
    ]


def finish(processes: Sequence[Rank], *, within: float = 120.0) -> list[tuple[int, str]]:
    """Return the exit code and the printed text of each rank; none may hang."""
    try:
        return [process.end(within) for process in processes]
    finally:
        for process in processes:
            process.kill()


def run(
    function: Callable[..., None], folder: Path, *, ranks: int = 2, wait: float = WAIT
) -> list[Any]:
    """Run it to its end, and return the value that each rank has saved with `keep`."""
    for code, text in finish(start(function, folder, ranks=ranks, wait=wait)):
        assert code == 0, text
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def keep(folder: Path, value: Any) -> None:
    """Save the value that `run` returns for this rank."""
    torch.save(value, folder / f"{os.environ['RANK']}.pt")
