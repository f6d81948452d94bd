"""The one hot operation: permute each field's rows, mix by its gate, measure its divergence."""

from .reference import Mixed, mix, permutations

__all__ = ["Mixed", "mix", "permutations"]
