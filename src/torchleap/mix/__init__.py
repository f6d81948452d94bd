"""The one hot operation: permute each field's rows, mix by its gate, measure its divergence."""

from .dispatch import choose, join, mix
from .reference import Mixed
from .shuffle import Draw, streams

__all__ = ["Draw", "Mixed", "choose", "join", "mix", "streams"]
