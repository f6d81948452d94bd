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
        rise: How much higher it was at the last evaluation.
        rises: The rise of the loss of the last weights when each field is masked, (F,).
        errors: Its standard errors, (F,).
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.metric = PathMetric(search)
        self.best = float("inf")
        self.rise = 0.0
        self.rises = torch.zeros(len(search.task.fields))
        self.errors = torch.zeros(len(search.task.fields))

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Note how far the loss is above its lowest value."""
        assert run.outputs is not None
        loss = self.metric.loss(run.outputs)
        self.best = min(self.best, loss)
        self.rise = loss - self.best

    def at_end(self, run: Run) -> None:
        """Measure what each field costs the model of the last step, if its loss has risen."""
        if self.rise <= NOTICEABLE * self.best or not isinstance(run.model, Ranker):
            return
        steps = run.step // len(run.history)
        rows = affordable_rows(self.search, run.model, steps, len(self.search.task.fields))
        found = contributions(self.search, run.model, Samples(self.search, rows).valid)
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
        """Return what has been seen so far."""
        return {"best": self.best, "rise": self.rise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what was seen before."""
        self.best = float(state["best"])
        self.rise = float(state["rise"])

    def _on_all_ranks(self, values: Tensor) -> Tensor:
        return torch.tensor(ranks.averages(values.tolist()))
