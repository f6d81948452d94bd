"""Real processes for tests: each rank runs one function of the test's module."""

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

WAIT = 20.0  # seconds that a rank waits for the others
ROOT = Path(__file__).parents[2]


def start(function: Callable[..., None], folder: Path, *, ranks: int = 2, wait: float = WAIT) -> list[subprocess.Popen[str]]:
    """Start `function(folder)` as so many ranks of one gloo job."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    call = [sys.executable, "-m", __name__, function.__module__, function.__name__, str(folder), str(port), str(wait)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks), "PYTHONPATH": str(ROOT)}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    return [subprocess.Popen(call, env={**environment, "RANK": str(rank)}, **pipes) for rank in range(ranks)]


def finish(processes: list[subprocess.Popen[str]], *, within: float = 120.0) -> list[tuple[int, str]]:
    """Exit code and standard error of each rank; none may hang."""
    try:
        told = [process.communicate(timeout=within)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, told, strict=True)]


def run(function: Callable[..., None], folder: Path, *, ranks: int = 2, wait: float = WAIT) -> list[Any]:
    """Run it to its end; what each rank has saved to `folder/RANK.pt`."""
    for code, text in finish(start(function, folder, ranks=ranks, wait=wait)):
        assert code == 0, text
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def keep(folder: Path, value: Any) -> None:
    """Save what `run` returns of this rank."""
    torch.save(value, folder / f"{os.environ['RANK']}.pt")


if __name__ == "__main__":
    module, name, folder, port, wait = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=float(wait)),
    )
    getattr(importlib.import_module(module), name)(Path(folder))
    torch.distributed.destroy_process_group()
