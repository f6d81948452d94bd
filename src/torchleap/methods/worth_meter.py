"""WorthMeter: what each open field is worth in the present model of a path."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from ..distributed import ranks
from ..gates.leap import LeAP
from ..gates.turn_trainer import FieldWorth, PaidWorth
from ..models import Ranker
from .base import Search
from .contributions import Contributions, Mask, Samples, contributions
from .interactions import Interactions
from .redraws import Redraws
from .takeover import rises_after_takeover


class WorthMeter:
    """Measures what a model loses without each field, and without both fields of a pair.

    The loss on validation rows rises when a field becomes its mean; that it rises even more on
    train rows is memory, and counts against the field. What a pair of fields would still gain, if
    the model learned their product, counts for both.

    Args:
        search: The search.
        interactions: The pairs of fields that the plain model has not learned.
        samples: The rows.
        optimism: How much it counts against a field that it helps on train rows more than on
            validation rows.
        redraws: Other draws of the rows; None without.

    Attributes:
        first_gain: What each pair would have gained at the first measurement.
        together: The pairs that were worth something only together when they were last measured.
    """

    def __init__(
        self,
        search: Search,
        interactions: Interactions,
        samples: Samples,
        optimism: float,
        redraws: Redraws | None = None,
    ) -> None:
        self.search = search
        self.interactions = interactions
        self.samples = samples
        self.optimism = optimism
        self.redraws = redraws
        self.first_gain: dict[Mask, float] = {}
        self.together: set[Mask] = set()

    def measure(
        self, model: Ranker, names: Sequence[str], outputs: Tensor, gates: LeAP | None = None
    ) -> dict[str, FieldWorth]:
        """Return the worth of fields; the same on all ranks.

        Args:
            model: The model, which is left in eval mode.
            names: The fields.
            outputs: The outputs of the model for all validation rows, (N,).
            gates: The gates in front of its network; None if it has none.
        """
        gains = self._gains(names, outputs)
        masks: list[Mask] = [(name,) for name in names]
        masks += list(gains)
        measured = partial(contributions, self.search, model, gates=gates, masks=masks)
        on_valid = measured(self.samples.valid)
        on_train = measured(self.samples.train)
        rises = on_valid.rises - self.optimism * (on_train.rises - on_valid.rises)
        errors = torch.hypot((1 + self.optimism) * on_valid.errors, self.optimism * on_train.errors)
        loss = dict(zip(masks, ranks.averages(rises.tolist()), strict=True))
        error = dict(zip(masks, ranks.averages(errors.tolist()), strict=True))
        alone = {name: loss[name,] for name in names}
        for pair, gain in gains.items():
            unlearned = min(gain, max(0.0, self.first_gain[pair] - loss[pair]))
            loss[pair] += unlearned
            for name in pair:
                alone[name] = max(alone[name], loss[name,] + unlearned)
        share = dict(alone)
        moves = self._moves(masks, on_valid, on_train)
        for pair in gains:
            one, other = pair
            self.together.discard(pair)
            if loss[pair] < 2 * min(alone[one], alone[other]):  # neither is worth much by itself
                self.together.add(pair)
                for name in pair:  # both close in the same turn
                    share[name] = min(share[name], loss[pair] / 2)
                    error[name,] = error[pair]
                    moves[name,] = tuple(move / 2 for move in moves[pair])
        return {
            name: FieldWorth(alone[name], error[name,], share[name], moves[name,]) for name in names
        }

    def _moves(
        self, masks: Sequence[Mask], on_valid: Contributions, on_train: Contributions
    ) -> dict[Mask, tuple[float, ...]]:
        """Return by how much other draws of the rows change the worth of each mask."""
        if self.redraws is None or on_valid.by_row is None or on_train.by_row is None:
            return dict.fromkeys(masks, ())
        moved = self.redraws.moves(on_valid.by_row, on_train.by_row, self.optimism)  # (M, R)
        means = torch.tensor(ranks.averages(moved.flatten().tolist())).view_as(moved)
        return dict(zip(masks, map(tuple, means.tolist()), strict=True))

    def paid(
        self,
        model: Ranker,
        closing: Sequence[Mask],
        stay: Sequence[str],
        gates: LeAP | None = None,
    ) -> dict[Mask, PaidWorth]:
        """Return what it costs to close some fields one after the other; the same on all ranks.

        Each cost is next to the fields that stay open at that moment, after these have taken over
        what they can. Without either field of a pair that is worth something only together, the
        model loses what both are worth.

        Args:
            model: The model, which is left in eval mode.
            closing: The fields that close together, the first to close first.
            stay: The fields that are open at present, those that close included.
            gates: The gates in front of its network; None if it has none.
        """
        if not closing:
            return {}
        sample = self.samples.valid
        found = contributions(self.search, model, sample, gates=gates, masks=closing, nested=True)
        closed = list(accumulate(closing, lambda before, own: (*before, *own)))
        rises = rises_after_takeover(self.search, model, sample, found, closed, stay)  # (M, N)
        costs = rises.diff(dim=0, prepend=torch.zeros_like(rises[:1]))
        errors = (costs.std(1) / costs.shape[1] ** 0.5).nan_to_num(0.0)
        nats = dict(zip(closing, ranks.averages(costs.mean(1).tolist()), strict=True))
        error = dict(zip(closing, ranks.averages(errors.tolist()), strict=True))
        for one, other in self.together:
            if (one,) in nats and (other,) in nats:
                both = nats[one,] + nats[other,]
                nats[one,] = both
                nats[other,] = both
        return {mask: PaidWorth(nats[mask], error[mask]) for mask in closing}

    def _gains(self, names: Sequence[str], outputs: Tensor) -> dict[Mask, float]:
        """Return what each pair of these fields would still gain."""
        found: dict[Mask, float] = {}
        gains = self.interactions.gains(outputs).tolist()
        for pair, gain in zip(self.interactions.pairs, gains, strict=True):
            if set(pair) <= set(names):
                found[pair] = gain
        found = dict(zip(found, ranks.averages(list(found.values())), strict=True))
        self.first_gain = {**found, **self.first_gain}
        return found
