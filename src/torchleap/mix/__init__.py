"""The one hot operation: permute each field's rows, mix by its gate, measure its divergence.

`reference` is the definition; `blocks` (plain PyTorch), `native` (C) and `triton_kernel` (GPU) are
faster versions of it, `dispatch` chooses among them, and `operators` is the door for autograd.
"""

from .dispatch import choose
from .operators import join, mix
from .reference import Mixed
from .shuffle import Draw, streams

__all__ = ["Draw", "Mixed", "choose", "join", "mix", "streams"]
