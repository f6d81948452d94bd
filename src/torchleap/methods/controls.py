"""Controls: what a method has to beat."""

from dataclasses import dataclass

import torch

from .base import Method, Scores, Search


@dataclass(frozen=True)
class Random(Method):
    """Scores by lot."""

    def score(self, search: Search) -> Scores:
        """Numbers between 0 and 1."""
        rng = torch.Generator().manual_seed(search.seed)
        return search.by_field(torch.rand(len(search.task.fields), generator=rng))


@dataclass(frozen=True)
class Nothing(Method):
    """No selection: every field is worth the same."""

    def score(self, search: Search) -> Scores:
        """All 1."""
        return search.by_field(torch.ones(len(search.task.fields)))
