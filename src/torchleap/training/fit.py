"""fit: training on a task, epoch by epoch, until nothing gets better. For a stream without an end see `streaming`."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._common.errors import WriteError
from .._common.files import replace_file
from .._common.sealed import load_sealed, save_sealed
from .._common.states import check_tensors
from .._common.text import first_line
from ..data.task import Batch, Rows, Task
from ..distributed import ranks
from ..objectives import auc, gauc, log_loss
from .loop import Hook, Loop, Metric, Run, Training, TrainingError, go_on_by_chance, optimizers_for
from .states import UNFIT, restore_run

__all__ = [
    "Hook",
    "Metric",
    "Run",
    "Training",
    "TrainingError",
    "evaluate",
    "fit",
    "large_batch",
    "optimizers_for",
    "predict",
]  # fmt: skip

FORMAT = 3
STANDING = ("step", "history", "best", "best_metric", "evals_since_best", "seconds", "stopped")
LARGE_BATCH = 1 << 15  # rows at once where nothing is learnt, at most
LARGE_INPUT = 1 << 28  # bytes of their input, about: a model holds several tensors of that size


def fit(
    model: nn.Module,
    task: Task,
    training: Training | None = None,
    *,
    hooks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
) -> Run:
    """Train until the metric on the validation rows no longer rises, and leave the model with its best weights.

    The same seed on the same machine gives the same weights, also after a resume. On several ranks (`torchrun`) each trains on
    its share of every batch, and all end with the same weights; the first one writes the checkpoint, from which another number
    of ranks can go on as well.

    Args:
        model: As in `torchleap.models`, (ids, numbers) -> log odds; it may have gates.
        checkpoint: A file to save the run to and, if it is there, to go on from; it is removed at the end. Ctrl-C saves it first.
            All ranks have to reach it.
        keep_checkpoint: Leave it instead: the same call then finds the run finished, and only loads what it found.
    """
    training = training or Training()
    if len(task.train) < training.batch:
        raise TrainingError(
            f"Expected at least one batch of {training.batch:,} train rows, but found {len(task.train):,} rows. Lower batch=."
        )
    path = None if checkpoint is None else Path(checkpoint)
    with ranks.explained(
        "Start the job again"
        + (f": it goes on from {path}." if path else " with checkpoint= to lose less.")
    ):
        run = _Loop(model, task, training, hooks, path).run_to_its_end()
        model.load_state_dict(run.best)
        model.eval()
        ranks.barrier()  # no rank may still have to read the checkpoint
    if path is not None and not keep_checkpoint and ranks.is_first():
        path.unlink(missing_ok=True)
    return run


def large_batch(task: Task) -> int:
    """Rows at once where nothing is learnt."""
    return min(LARGE_BATCH, max(1, LARGE_INPUT // (4 * task.fields.dims)))


@torch.no_grad()
def predict(model: nn.Module, rows: Rows, *, share: tuple[int, int] = (0, 1)) -> Tensor:
    """The log odds of all rows, in their order; the model is in eval mode for it.

    Args:
        share: Which of how many neighbouring shares of the rows, such as (rank, ranks).
    """
    was_training = model.training
    model.eval()
    number, count = share
    start, stop = (len(rows) * place // count for place in (number, number + 1))
    try:
        found = [
            model(*batch.inputs).float()
            for batch in rows.between(start, stop, large_batch(rows.task))
        ]
    finally:
        model.train(was_training)
    return torch.cat(found) if found else torch.zeros(0)


def evaluate(model: nn.Module, rows: Rows, *, together: bool = False) -> dict[str, float]:
    """AUC and log loss on some rows, and GAUC where they have groups.

    Args:
        together: Each rank computes its share of the rows; all of them have to call this.
    """
    if together:
        log_odds = torch.cat(
            ranks.gathered(predict(model, rows, share=(ranks.rank(), ranks.count())))
        )
    else:
        log_odds = predict(model, rows)
    label, group = rows.label, rows.group
    found = {
        "auc": auc(label, log_odds),
        "log_loss": log_loss(label, torch.sigmoid(log_odds.double())),
    }
    return found if group is None else {**found, "gauc": gauc(label, log_odds, group)}


class _Loop(Loop):
    """One run of `fit`."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        training: Training,
        hooks: Sequence[Hook],
        path: Path | None,
    ) -> None:
        super().__init__(Run(model, task, training), hooks, saves=path is not None)
        self.task = task
        self.path = path
        self.batches = task.train.batches(
            training.batch, shuffle=True, seed=training.seed, together=True
        )
        if not len(self.batches):
            raise TrainingError(
                f"Expected rows for each of {ranks.count()} ranks, but {len(task.train):,} train rows leave one without. "
                "Start fewer ranks, or hold the rows in memory."
            )
        if path is not None and not path.parent.is_dir():
            raise TrainingError(
                f"Expected a folder for the checkpoint {path}, but there is no {path.parent}. Make it first."
            )
        if path is not None and ranks.from_first(path.exists()):
            if not path.exists():
                raise TrainingError(
                    f"The first rank has the checkpoint {path}, but rank {ranks.rank()} cannot reach it. Give another path."
                )
            self._resume(path)

    def _train(self) -> None:
        run, training, stop = self.run, self.run.training, False
        while not run.stopped:
            for batch in self.batches:
                stop = late = due = False
                if (
                    len(batch) > 1
                ):  # a single row, at the end of an epoch, can be neither shuffled nor normalised
                    stop, late, due = self.learn(
                        batch.inputs, batch.label, partial(self._suspects, batch)
                    )
                end_of_epoch = self.batches.position == len(self.batches)
                last = run.step == run.steps and training.steps is not None
                if last or (
                    run.step % training.eval_every == 0 if training.eval_every else end_of_epoch
                ):
                    self._look()
                if last:
                    run.stopped = run.stopped or "all steps are done"
                if late and not run.stopped:
                    run.stopped = f"the time limit of {training.time_limit:g} seconds"
                if run.stopped:
                    break
                if self.path is not None and (due or stop):
                    self._save(self.path)
                if stop:
                    raise KeyboardInterrupt
            if not run.stopped and self.batches.epoch >= training.epochs:
                run.stopped = "all epochs are done"
        if not run.best:
            self._look()
        self.stop_the_clock()
        if self.path is not None:
            self._save(self.path)
        if stop or (self.interrupted and ranks.count() == 1):
            raise KeyboardInterrupt

    def _look(self) -> None:
        run, stepper = self.run, self.stepper
        stepper.settle()
        found = evaluate(run.model, self.task.valid, together=True)
        if run.training.metric not in found:
            raise TrainingError("metric='gauc' needs groups. Read the data with group=.")
        score = (
            -found["log_loss"] if run.training.metric == "log_loss" else found[run.training.metric]
        )
        self.tell(found)
        run.evals_since_best += 1
        if score > run.best_metric or not run.best:
            run.best_metric, run.evals_since_best = score, 0
            run.best = {
                name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()
            }
        elif run.evals_since_best >= run.training.patience and all(
            hook.settled(run) for hook in stepper.hooks
        ):
            run.stopped = (
                f"{run.training.metric} did not get better in {run.training.patience} looks"
            )

    def _suspects(self, batch: Batch) -> str:
        inputs = getattr(self.run.model, "inputs", None)
        suspects: list[str] = []
        if isinstance(inputs, nn.Module):
            with torch.no_grad():
                side_by_side = inputs(*batch.inputs)
            fields = self.task.fields
            suspects = [
                name
                for name in fields.names
                if not side_by_side[:, fields.columns(name)].isfinite().all()
            ]
            if not suspects:
                sizes = {
                    name: float(side_by_side[:, fields.columns(name)].abs().max())
                    for name in fields.names
                }
                suspects = sorted(sizes, key=lambda name: -sizes[name])[:3]
        return f"Suspicious fields: {', '.join(suspects[:5]) or 'none'}."

    # Checkpoints

    def _save(self, path: Path) -> None:
        self.stepper.agree()
        random = ranks.gathered(torch.get_rng_state())
        with ranks.first_before_others():
            if ranks.is_first():
                self._write(path, random)
        self.pace.begin(self.run.step)

    def _write(self, path: Path, random: list[Tensor]) -> None:
        run = self.run
        content = {
            "format": FORMAT,
            "training": asdict(run.training),
            "fields": list(self.task.fields.names),
            "model": run.model.state_dict(),
            **self.stepper.state_dict(),
            "batches": self.batches.state_dict(),
            "random": random,
            "run": {
                "step": run.step,
                "history": run.history,
                "best": run.best,
                "best_metric": run.best_metric,
                "evals_since_best": run.evals_since_best,
                "seconds": self.seconds(),
                "stopped": run.stopped,
            },
        }
        try:
            with replace_file(path) as temporary:
                save_sealed(content, temporary)
        except (
            OSError,
            RuntimeError,
        ) as error:  # PyTorch's writer hides a full disk in a RuntimeError
            problem = str(error)
            if not isinstance(error, WriteError):
                problem = f"{path} cannot be written: {first_line(error)}; make room or give another place."
            kept = " The one before is complete." if path.exists() else ""
            raise TrainingError(f"The checkpoint {problem}{kept} Then start again.") from error

    def _resume(self, path: Path) -> None:
        try:
            content = load_sealed(path)
        except Exception as error:
            reason = first_line(error)
            raise TrainingError(
                f"{path} is not a complete checkpoint of this version ({reason}). Remove it to start again."
            ) from error
        try:
            self._check(path, content)
            self._restore(content)
        except TrainingError:
            raise
        except UNFIT as error:
            ranks.raise_if_lost(error)
            raise TrainingError(
                f"{path} cannot be resumed: {first_line(error)}. Remove it to start again."
            ) from error

    def _restore(self, content: dict[str, Any]) -> None:
        """Set all that a checkpoint holds, each part only if it fits."""
        own = self.run.model.state_dict()
        check_tensors(content["model"], own, "the model")
        if content["run"]["best"]:
            check_tensors(content["run"]["best"], own, "the best model")
        self.run.model.load_state_dict(content["model"])
        self.stepper.load_state_dict(content)
        self.batches.load_state_dict(content["batches"])
        random = content["random"]
        state = random[ranks.rank()] if len(random) == ranks.count() else None
        restore_run(self.run, content["run"], STANDING)
        go_on_by_chance(state, self.run.training.seed, self.run.step)

    def _check(self, path: Path, content: Any) -> None:
        run = self.run
        problems = []
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            problems.append(f"it has another format than {FORMAT}")
        else:
            ours = {name: tuple(tensor.shape) for name, tensor in run.model.state_dict().items()}
            theirs = {name: tuple(tensor.shape) for name, tensor in content["model"].items()}
            if content["fields"] != list(self.task.fields.names):
                problems.append("it has other fields")
            if ours != theirs:
                problems.append("its model has other weights")
            if len(content["hooks"]) != len(self.stepper.hooks_with_state()):
                problems.append("it has other hooks")
            settings = asdict(run.training)
            other = {
                name: value
                for name, value in content["training"].items()
                if value != settings.get(name)
            }
            problems += [
                f"its {name} is {value!r}, not {settings.get(name)!r}"
                for name, value in other.items()
            ]
        if problems:
            raise TrainingError(
                f"{path} is a checkpoint of another run: {'; '.join(problems[:3])}. Remove it to start again."
            )
