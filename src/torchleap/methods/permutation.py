"""Full permutation (Breiman 2001): the loss of a trained model when one field is shuffled."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._common.checks import check_settings, one_of, setting
from ..models import Ranker
from ..objectives import METRICS
from ..selection import Path, Worth
from ..selection.path import NORMAL_95
from .base import Method, Scores, Search
from .shuffled import ShuffledOutputs


@dataclass(frozen=True)
class Permutation(Method):
    """The fall of the metric on validation rows when the values of a field are shuffled over them.

    The last record of the search's history contains the standard deviation over the repeats,
    `fall_std_<field>`: a fall that is not several times as large cannot be distinguished from none.
    The search also has the worth of each field: the rise of the loss in nats, with its interval.

    Args:
        repeats: The number of shuffles of each field; the mean over them is the score.
        fraction: The fraction of the validation rows that is used, drawn at random; 1 is all rows.
        metric: The name of the metric; where lower is better, its rise counts.
    """

    uses_trained_model: ClassVar[bool] = True
    measures_worth: ClassVar[bool] = True
    repeats: int = setting(3, at_least=1)
    fraction: float = setting(1.0, above=0, at_most=1)
    metric: str = "auc"

    def __post_init__(self) -> None:
        problem = one_of(self.metric, tuple(METRICS))
        check_settings(self, {f"metric {problem}": not problem})

    def score(self, search: Search) -> Scores:
        """Return the mean fall over the repeats."""
        model = search.fit_plain()
        falls = self.falls(search, model)
        if self.repeats > 1:
            deviations = search.by_field(falls.std(1))
            record = {f"fall_std_{name}": value for name, value in deviations.items()}
            search.history[-1].update(record)
        return search.by_field(falls.mean(1))

    def falls(self, search: Search, model: Ranker) -> Tensor:
        """Return the fall of the metric for each field and repeat, (F, repeats)."""
        rows = search.task.valid
        sample, orders = self.draw(len(rows), search.seed)
        objective = search.task.objective
        metric = objective.metric(self.metric)
        group = None if rows.group is None else rows.group[sample]
        score = objective.scorer(metric, rows.label[sample], group)
        outputs = ShuffledOutputs(model, search.task, sample, orders)
        unshuffled = metric.gain(score(outputs.unshuffled))
        falls = []
        worth = {}
        for place, name in enumerate(search.task.fields.names):
            shuffled = outputs.of(place)  # (repeats, N)
            falls.append([unshuffled - metric.gain(score(output)) for output in shuffled])
            worth[name] = self.worth(search, outputs.unshuffled, shuffled, sample)
        search.path = Path(metric.name, worth)
        return torch.tensor(falls, dtype=torch.float64)

    def worth(self, search: Search, unshuffled: Tensor, shuffled: Tensor, sample: Tensor) -> Worth:
        """Return the rise of the loss of the same model when the field is shuffled.

        The model does not adapt, so that it is an upper bound of what a retrained one would pay.

        Args:
            search: The search.
            unshuffled: The outputs of the rows, (N,).
            shuffled: Their outputs with the field shuffled, (repeats, N).
            sample: The positions of the rows, (N,).
        """
        objective = search.task.objective
        label = search.task.valid.label[sample]
        before = objective.row_losses(unshuffled, label)  # (N,)
        rises = torch.stack([objective.row_losses(one, label) - before for one in shuffled])
        by_row = rises.mean(0)
        error = NORMAL_95 * float(by_row.std()) / len(by_row) ** 0.5
        value = float(by_row.mean())
        return Worth(value, value - error, value + error)

    def draw(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return the rows to use and the orders to shuffle them into, the same for all fields.

        Args:
            rows: The number of validation rows.
            seed: The seed of the draw.

        Returns:
            The positions of the N rows, (N,), and for each repeat a permutation of them,
            (repeats, N).
        """
        rng = torch.Generator().manual_seed(seed)
        count = min(rows, max(2, round(self.fraction * rows)))
        sample = torch.arange(rows)
        if count < rows:
            sample = torch.randperm(rows, generator=rng)[:count].sort().values
        orders = [torch.randperm(count, generator=rng) for _ in range(self.repeats)]
        return sample, torch.stack(orders)
