"""Random and Nothing: controls that every method has to beat."""

from dataclasses import dataclass

import torch

from .base import Method, Scores, Search


@dataclass(frozen=True)
class Random(Method):
    """Scores that are drawn at random."""

    def score(self, search: Search) -> Scores:
        """Return uniform numbers between 0 and 1."""
        rng = torch.Generator().manual_seed(search.seed)
        return search.by_field(torch.rand(len(search.task.fields), generator=rng))


@dataclass(frozen=True)
class Nothing(Method):
    """No selection: the same score for every field."""

    def score(self, search: Search) -> Scores:
        """Return 1 for every field."""
        return search.by_field(torch.ones(len(search.task.fields)))
