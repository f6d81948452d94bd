"""Memorised: which field makes a model worse, the longer it is trained."""

from typing import Any

import torch
from torch import Tensor

from ..distributed import ranks
from ..gates.turn_trainer import FieldWorth
from ..models import Ranker
from ..training.fit import Hook, Run
from .base import Search
from .contributions import Samples, affordable_rows, contributions
from .path_points import PathMetric

MOST = 0.5  # of the rise of the loss: what the model must regain without the field
SURE = 4.0  # standard errors of that
NOTICEABLE = 2e-3  # of the best loss: the smallest rise that is examined


class Memorised(Hook):
    """Watches a plain training, which goes on for a while after its best evaluation.

    The weights of these evaluations are not kept, but they show what further training does. If
    the loss on validation rows has risen and masking a single field undoes most of the rise, the
    model has memorised that field: a time stamp, a session or a request.

    Args:
        search: The search.

    Attributes:
        best: The lowest loss on the validation rows so far.
        rise: How much higher it was at the last evaluation that was examined.
        rises: The rise of the loss there when each field is masked, (F,).
        errors: Its standard errors, (F,).
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.metric = PathMetric(search)
        self.samples: Samples | None = None
        self.best = float("inf")
        self.rise = 0.0
        self.rises = torch.zeros(len(search.task.fields))
        self.errors = torch.zeros(len(search.task.fields))

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Measure what each field costs, if the loss is higher than it was."""
        assert run.outputs is not None
        loss = self.metric.loss(run.outputs)
        self.best = min(self.best, loss)
        if loss - self.best <= NOTICEABLE * self.best or not isinstance(run.model, Ranker):
            return
        if self.samples is None:
            steps = run.step // len(run.history)
            rows = affordable_rows(self.search, run.model, steps, len(self.search.task.fields))
            self.samples = Samples(self.search, rows)
        found = contributions(self.search, run.model, self.samples.valid)
        self.rise = loss - self.best
        self.rises = self._on_all_ranks(found.rises)
        self.errors = self._on_all_ranks(found.errors)

    def worth(self) -> dict[str, FieldWorth]:
        """Return the memorised fields, with their worth in the model that has memorised them."""
        found = {}
        names = self.search.task.fields.names
        values = zip(names, self.rises.tolist(), self.errors.tolist(), strict=True)
        for name, rise, error in values:
            if -rise > max(MOST * self.rise, SURE * error):
                found[name] = FieldWorth(rise, error, rise)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what has been measured so far."""
        measured = {"rises": self.rises.clone(), "errors": self.errors.clone()}
        return {"best": self.best, "rise": self.rise, **measured}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what was measured before."""
        self.best = float(state["best"])
        self.rise = float(state["rise"])
        self.rises = state["rises"].clone()
        self.errors = state["errors"].clone()

    def _on_all_ranks(self, values: Tensor) -> Tensor:
        return torch.tensor(ranks.averages(values.tolist()))
