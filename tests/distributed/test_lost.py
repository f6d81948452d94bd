"""A rank is killed outside of a training: the others end with a RankError, wherever they are."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import torchleap as tl
from torchleap import models
from torchleap.distributed import ranks
from torchleap.training.checkpoints import Checkpoints
from torchleap.training.fit import evaluate

from .ranks_of import finish, start
from .test_fit import TRAINING, task_in


def die() -> None:
    """End this rank as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)


def first() -> None:
    """Let the first rank begin something that the others wait for."""
    with ranks.first_before_others():
        pass


def statistics() -> None:
    """Measure gates of all ranks together."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    plugin = tl.attach(model, {"a": 2, "b": 2}, at="", side="input")
    for _ in range(20):
        (model(torch.randn(8, 4)).sum() + plugin.penalty()).backward()


SENT: dict[str, Callable[[], object]] = {
    "total": lambda: ranks.total(torch.ones(2)),
    "average": lambda: ranks.average(torch.ones(2)),
    "broadcast": lambda: ranks.broadcast(torch.ones(2)),
    "from_first": lambda: ranks.from_first(3),
    "all_gather": lambda: ranks.all_gather(torch.ones(2)),
    "barrier": ranks.barrier,
    "first_before_others": first,
    "statistics": statistics,
}


def every_exchange(folder: Path) -> None:
    """Lose the other rank, and then try to send."""
    ranks.barrier()
    if ranks.rank() == 1:
        die()
    for name, send in SENT.items():
        with pytest.raises(
            ranks.RankError, match=r"Rank 0 of 2 has lost another one: .* Start the job again\.$"
        ):
            send()
        (folder / name).touch()


def test_every_collective_reports_that_another_rank_is_lost(tmp_path: Path) -> None:
    (code, text), (killed, _) = finish(start(every_exchange, tmp_path))
    assert (code, killed) == (0, -signal.SIGKILL), text
    assert {path.name for path in tmp_path.iterdir()} >= set(SENT)


def in_evaluation(folder: Path) -> None:
    task = task_in(folder)
    model = models.build("wide_deep", task)
    if ranks.rank() == 1:
        die()
    evaluate(model, task.valid, together=True)


def in_first_work(folder: Path) -> None:
    ranks.barrier()  # until all ranks have joined: a rank may die before the others are connected
    with ranks.first_before_others():
        if ranks.is_first():
            die()


def decided(folder: Path, stage: str) -> None:
    def on_stage(name: str) -> None:
        if name == stage and ranks.rank() == 1:
            die()

    small = models.WideDeep(hidden=(4,))
    with suppress(KeyboardInterrupt):
        tl.decide(
            task_in(folder),
            model=small,
            training=TRAINING,
            method="permutation",
            share=0.5,
            on_stage=on_stage,
        )


def in_search(folder: Path) -> None:
    decided(folder, "searching")


def in_comparison(folder: Path) -> None:
    decided(folder, "comparing")


def in_resume(folder: Path) -> None:
    checkpoints = Checkpoints(folder / "state")
    checkpoints.save(1, {"a": torch.ones(2)}, {})
    latest = checkpoints.latest()
    assert latest is not None
    if ranks.rank() == 1:
        die()
    checkpoints.load(
        latest, {"a": torch.ones(2)}
    )  # the checkpoint is good, and no error may blame it


@pytest.mark.parametrize(
    "place", [in_evaluation, in_first_work, in_search, in_comparison, in_resume]
)
def test_a_rank_that_is_killed_outside_of_a_training_ends_the_others(
    tmp_path: Path, place: Callable[[Path], None]
) -> None:
    ended = finish(start(place, tmp_path))
    assert sorted(code for code, _ in ended) == [-signal.SIGKILL, 1]
    (text,) = [text for code, text in ended if code == 1]
    assert (
        text.strip().splitlines()[-1].startswith("torchleap.distributed.ranks.RankError: Rank ")
    ), text
    assert "has lost another one" in text
