"""Trackers: TensorBoard and MLflow."""

import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from .._common.errors import TorchleapError
from .._common.optional import need
from .._common.text import first_line
from ..training.fit import Run
from .watcher import PURPOSE, Record, Watcher

LARGEST_BATCH = 1000  # metrics that MLflow takes at once


class TensorBoard(Watcher):
    """Curves of the loss, the metrics and the gates, for `tensorboard --logdir`.

    Args:
        folder: A folder for this run alone; a new run hides the curves that it finds there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        need("tensorboard", "tensorboard", PURPOSE)
        self._folder = Path(folder)
        self._writer: Any = None

    def at_start(self, run: Run) -> None:
        """Hide the evaluations of a killed run after its checkpoint."""
        tensorboard = import_module("torch.utils.tensorboard")
        self._writer = tensorboard.SummaryWriter(os.fspath(self._folder), purge_step=run.step + 1)

    def after_eval(self, run: Run, record: Record) -> None:
        """Write the numbers at once, so that a kill loses none."""
        for name, clean in _clean_names(record).items():
            if name != "step":
                self._writer.add_scalar(_tag(clean), record[name], run.step)
        self._writer.flush()

    def at_end(self, run: Run) -> None:
        """Close the files."""
        self._writer.close()


class MLflow(Watcher):
    """A run in MLflow with the settings, the numbers of fields and rows, and the metrics.

    A training that is resumed continues the same MLflow run. One that fails stays "RUNNING" there.

    Args:
        experiment: The name of the experiment, which is made if it does not exist. None is the one
            in MLFLOW_EXPERIMENT_NAME, or else "Default".
        run_name: The name of the run; None lets MLflow choose one.
        tracking_uri: Where MLflow stores it; None is MLFLOW_TRACKING_URI, or else MLflow's default.
    """

    def __init__(
        self,
        experiment: str | None = None,
        run_name: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        self._mlflow = need("mlflow", "mlflow", PURPOSE)
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._run_name = run_name
        self._uri = tracking_uri
        self._client: Any = None
        self._id = ""
        self._logged = 0  # the last step that MLflow has

    def state_dict(self) -> dict[str, Any]:
        """Return the id of the MLflow run."""
        return {"id": self._id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the id of the MLflow run, which is then continued."""
        self._id = state["id"]

    def at_start(self, run: Run) -> None:
        """Begin a run in MLflow, or find the one of the checkpoint."""
        try:
            self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            self._logged = 0
            if run.step and self._id:
                known = self._client.get_metric_history(self._id, f"valid_{run.training.metric}")
                self._logged = max((metric.step for metric in known), default=0)
            else:
                self._begin(run)
        except (self._mlflow.MlflowException, ImportError) as error:
            raise TorchleapError(
                f"MLflow cannot begin a run: {first_line(error)}. Give another tracking_uri=."
            ) from error

    def after_eval(self, run: Run, record: Record) -> None:
        """Log the numbers that MLflow does not have yet."""
        if run.step <= self._logged:
            return
        now = time.time_ns() // 1_000_000
        metrics = [
            self._mlflow.entities.Metric(key, float(record[name]), now, run.step)
            for name, key in _clean_names(record).items()
            if name != "step"
        ]
        with self._warn(f"the metrics of step {run.step}"):
            for first in range(0, len(metrics), LARGEST_BATCH):
                self._client.log_batch(self._id, metrics=metrics[first : first + LARGEST_BATCH])

    def at_end(self, run: Run) -> None:
        """End the run in MLflow."""
        with self._warn("the end of the run"):
            self._client.set_terminated(self._id, status="FINISHED")

    @contextmanager
    def _warn(self, what: str) -> Iterator[None]:
        """Warn of a server that does not answer, which must not end the training."""
        try:
            yield
        except self._mlflow.MlflowException as error:
            warnings.warn(f"MLflow did not take {what}: {error}", stacklevel=4)

    def _begin(self, run: Run) -> None:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            place = self._client.create_experiment(self._experiment)
        else:
            place = experiment.experiment_id
        self._id = self._client.create_run(place, run_name=self._run_name).info.run_id
        settings = asdict(run.training)
        if run.task is not None:
            settings["fields"] = len(run.task.fields)
            settings["train_rows"] = len(run.task.train)
        entity = self._mlflow.entities.Param
        params = [entity(name, str(value)) for name, value in settings.items()]
        self._client.log_batch(self._id, params=params)


def _clean_names(names: Iterable[str]) -> dict[str, str]:
    """Return each name as both trackers take it; different names stay different.

    >>> _clean_names(["gate_a/b", "gate_a_b", "gate_price in €"])
    {'gate_a/b': 'gate_a_b', 'gate_a_b': 'gate_a_b_', 'gate_price in €': 'gate_price_in__'}
    """
    owners: dict[str, str] = {}
    for name in names:
        clean = re.sub(r"[^\w.-]", "_", name)[:200]
        while clean in owners:
            clean += "_"
        owners[clean] = name
    return {name: clean for clean, name in owners.items()}


def _tag(name: str) -> str:
    """Return the name of a curve with its group before it.

    >>> [_tag(name) for name in ("valid_auc", "train_loss", "lr", "gate_user_id")]
    ['valid/auc', 'train/loss', 'train/lr', 'gates/user_id']
    """
    group, _, rest = name.partition("_")
    groups = {"valid": "valid", "train": "train", "gate": "gates"}
    if group not in groups:
        return f"train/{name}"
    return f"{groups[group]}/{rest}"
