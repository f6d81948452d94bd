"""The folder for the results of select: checked before any work, and held by one run at a time."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import typer

from .._common.errors import TorchleapError
from .._common.locks import held
from .show import show_problem

STATE = ".state"  # the checkpoints of a run that is not finished
RESULTS = (
    "selection.json",
    "model",
    "encoding",
    "full",
    "layout.json",
    "metrics.json",
    "history.jsonl",
    "report.json",
    "report.html",
)


def check_writable(out: Path) -> None:
    """Refuse a folder that cannot be written to."""
    nearest = next(place for place in (out, *out.absolute().parents) if place.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return
    reason = "is not writable" if nearest.is_dir() else "is a file"
    raise TorchleapError(
        f"The results cannot be written to {out}: {nearest} {reason}. Give another --out."
    )


def alone(out: Path) -> AbstractContextManager[None]:
    """Hold the folder, by the first rank, so that no other run writes to it."""
    if os.environ.get("RANK", "0") == "0":
        return held(out)
    return nullcontext()


def check_unused(out: Path, *, resume: bool, force: bool) -> None:
    """Refuse a folder in which something would be lost.

    Args:
        out: The folder for the results.
        resume: Whether an interrupted run is to be continued, which then must exist.
        force: Whether existing results may be replaced.
    """
    state = out / STATE
    # as `is_saved`, which imports torch
    has_state = (state / "full.pt").exists() or any((state / "search").glob("*.pt"))
    existing = [name for name in RESULTS if (out / name).exists()]
    if resume and not has_state:
        reason = "is done already" if existing else "has no run to resume"
        raise TorchleapError(f"{out} {reason}. Leave --resume out.")
    if resume or force:
        return
    if has_state:
        raise TorchleapError(
            f"{out} has a run that was not finished. "
            "Give --resume to continue it, or --force to start again."
        )
    if existing:
        raise TorchleapError(
            f"{out} has results already: {', '.join(existing[:3])}. "
            "Give another --out, or --force to replace them."
        )


@contextmanager
def resumable(context: typer.Context, out: Path) -> Iterator[None]:
    """Print the command that resumes a run which is interrupted in this context."""
    from ..distributed import ranks
    from ..pipeline.checkpoint import is_saved

    try:
        yield
    except KeyboardInterrupt:
        if ranks.is_first() and is_saved(out / STATE):
            again = command_line(context, "--resume")
            show_problem(f"Saved; continue with: {again}", style="")
        raise


def command_line(context: typer.Context, *more: str) -> str:
    """Return the command that was called, without --resume and --force, for a shell.

    Args:
        context: The context of the command.
        more: Words to add at the end.
    """
    words = [word for word in context.obj["words"] if word not in ("--resume", "--force")]
    processes = os.environ.get("WORLD_SIZE", "1") if "LOCAL_RANK" in os.environ else "1"
    program = ["torchleap"]
    if processes != "1":
        program = ["torchrun", f"--nproc-per-node={processes}", "-m", "torchleap.cli"]
    return shlex.join([*program, *words, *more])
