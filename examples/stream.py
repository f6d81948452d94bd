"""A training job without end: gates learn from each fresh batch, and drift is noticed.

torchrun --nproc-per-node=2 examples/stream.py

"trend" carries the label until half of the steps are done; from then on "season" does. Stop the
job at any time, with Ctrl-C or kill -9, and start it again with the same --folder: it resumes from
its latest checkpoint.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchleap as tl
from torchleap.callbacks import Watcher
from torchleap.distributed import ranks
from torchleap.training.fit import Run

FIELDS = {"user": 8, "price": 1, "trend": 4, "season": 4, "noise": 8}
ROWS = 512  # per step, of all ranks


class Stream:
    """Draw fresh rows of a world that changes once.

    The position is the same on all ranks, so that any number of them can resume from it.

    Args:
        switch: The step from which on "season" carries the label instead of "trend".
    """

    def __init__(self, switch: int) -> None:
        self.switch = switch
        self.place = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            rng = torch.Generator().manual_seed(self.place)
            x = torch.randn(ROWS, sum(FIELDS.values()), generator=rng)
            user, price, trend, season, _ = x.split(list(FIELDS.values()), dim=1)
            useful = trend if self.place < self.switch else season
            log_odds = 4 * user.mean(1) + 2 * price[:, 0] + 4 * useful.mean(1)
            y = (torch.rand(ROWS, generator=rng) < log_odds.sigmoid()).float()
            self.place += 1
            yield x.chunk(ranks.count())[ranks.rank()], y.chunk(ranks.count())[ranks.rank()]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches drawn."""
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the batch that comes next."""
        self.place = state["place"]


class Ranker(nn.Module):
    """Predict the log odds of a click."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Sequential(nn.Linear(sum(FIELDS.values()), 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the log odds of each row, (B,)."""
        log_odds: Tensor = self.deep(x)[:, 0]
        return log_odds


class Windows(Watcher):
    """Print each window."""

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Print the AUC on rows not learned from yet, and the gates."""
        gates = " ".join(f"{name} {record[f'gate_{name}']:.2f}" for name in FIELDS)
        print(f"step {run.step:>6,}  AUC {record['valid_auc']:.3f}  {gates}", flush=True)


def main(steps: int, folder: Path) -> None:
    torch.manual_seed(0)
    model = Ranker()
    plugin = tl.attach(model, FIELDS, at="deep", seed=0)
    gates = tl.LearnGates(plugin, lr=1e-2)
    drift = tl.Drift(
        plugin,
        optimizer=gates.optimizer,
        fraction=0.2,
        settle=steps // 8,
        quiet=100_000,
        alarm=print,
    )
    training = tl.Training(
        epochs=1, steps=steps, lr=3e-3, eval_every=steps // 12, checkpoint_steps=steps // 10
    )
    hooks = [gates, drift, Windows()]
    run = tl.stream(
        model, Stream(steps // 2), training, hooks=hooks, checkpoint=folder, background=True
    )
    if ranks.is_first():
        kept = ", ".join(plugin.select().kept)
        print(f"Ended after {run.step:,} steps: {run.stopped}. Keep: {kept}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2_400)
    parser.add_argument(
        "--folder", type=Path, help="for the checkpoints; a temporary one if left out"
    )
    arguments = parser.parse_args()
    with ranks.joined(), tempfile.TemporaryDirectory() as temporary:
        main(arguments.steps, arguments.folder or Path(ranks.from_first(temporary)))
