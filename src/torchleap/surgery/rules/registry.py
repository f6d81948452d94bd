"""The rule of each operation; an operation that is not listed is opaque."""

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from ..._common.text import words
from ...distributed.torchrec import keyed_values
from ..runtime import own_rows, with_item
from ..trace.forwards import is_replaced
from ..trace.hooks import has_hooks
from ..trace.tracer import gated, is_input
from .base import OPAQUE, CutRule
from .bilinear import Bilinear
from .collection import Keyed
from .contraction import Contraction
from .convolution import Convolution
from .elementwise import Elementwise, SetElements
from .embedding import Embedding, EmbeddingBag
from .ends import Gate, Input
from .expand import Expand
from .facts import View
from .fresh import Fresh
from .layout import Join, Layout, Pick, Reshape
from .linear import Linear
from .norm import BatchNorm, ColumnNorm, Tokenwise
from .outer import Outer
from .reduction import Product, Reduce
from .shared_table import OwnRows

INPUT = Input()

LAYERS: dict[type[nn.Module], CutRule | tuple[CutRule, ...]] = {
    nn.Linear: Linear(),
    nn.BatchNorm1d: BatchNorm(),
    nn.Conv1d: Convolution(),
    nn.Conv2d: Convolution(),
    nn.Bilinear: Bilinear(),
    nn.Embedding: Embedding(),
    nn.EmbeddingBag: EmbeddingBag(),
    nn.LayerNorm: (Tokenwise(), ColumnNorm()),
    nn.Flatten: Reshape(),
    nn.Unflatten: Reshape(),
}
for _name in words(
    "Dropout Identity ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Sigmoid LogSigmoid Tanh "
    "Softplus Softsign Hardtanh Hardsigmoid Hardswish"
):
    LAYERS[getattr(nn, _name)] = Elementwise()

# functions, and names of methods; of several rules, the first that applies
CALLS: dict[Any, CutRule | tuple[CutRule, ...]] = {
    gated: Gate(),
    with_item: SetElements(),
    own_rows: OwnRows(),
    keyed_values: Keyed(),
    operator.getitem: Pick(),
    functional.linear: Linear(),
    torch.matmul: (Linear(), Contraction(), Product()),
    operator.matmul: (Linear(), Contraction(), Product()),
    torch.mm: Linear(),
    "matmul": (Linear(), Contraction(), Product()),
    torch.tensordot: Contraction(),
    torch.einsum: (Contraction(), Outer()),
    "mm": Linear(),
    torch.bmm: Product(),
    "bmm": Product(),
    torch.cat: Join(),
    torch.concat: Join(),
    torch.concatenate: Join(),
    torch.column_stack: Join(),
    torch.hstack: Join(),
    torch.stack: Join(),
    torch.sum: Reduce(),
    torch.mean: Reduce(),
    "sum": Reduce(),
    "mean": Reduce(),
    "view": Reshape(),
    "expand": Expand(),
    "new_zeros": Fresh(),
    "new_ones": Fresh(),
    "new_full": Fresh(),
}


def _register(rule: CutRule, names: str, module: Any = torch) -> None:
    """Register functions of a module, and the methods of the same name if the module is torch."""
    for name in names.split():
        CALLS[getattr(module, name)] = rule
        if module is torch and hasattr(torch.Tensor, name):
            CALLS[name] = rule


_register(Reshape(), "flatten reshape unsqueeze squeeze unflatten")
_register(Layout(), "transpose permute swapaxes swapdims movedim moveaxis")
_register(Pick(), "narrow select index_select")
_register(Elementwise(), "add sub mul truediv neg pow floordiv mod", operator)
_register(
    Elementwise(),
    "add sub subtract mul multiply div divide true_divide neg pow square sqrt rsqrt exp expm1 log "
    "log1p abs sin cos sigmoid tanh relu clamp maximum minimum logical_not ge gt le lt eq ne "
    "remainder where masked_fill nan_to_num",
)
_register(
    Elementwise(),
    "relu relu6 leaky_relu elu gelu silu mish sigmoid tanh softplus hardswish dropout",
    functional,
)
for _name in words("contiguous clone float double half bfloat16 long int to type"):
    CALLS[_name] = Elementwise()


def rule_for(node: fx.Node, view: View) -> CutRule:
    """Return the rule for a node with rows."""
    if is_input(node):
        return INPUT
    module = view.trace.module(node)
    if node in view.trace.varying or (module is not None and not is_plain(module)):
        return OPAQUE
    rules = CALLS.get(node.target, OPAQUE)
    if module is not None:
        rules = LAYERS.get(type(module), OPAQUE)
    split = view.split_of(node)
    kinds = {view.trace.kinds[each] for each in node.all_input_nodes if each is not split}
    for rule in rules if isinstance(rules, tuple) else (rules,):
        covered = rule.reads is None or kinds <= rule.reads
        if covered and rule.applies(node, view):
            return rule
    return OPAQUE


def is_plain(module: nn.Module) -> bool:
    """Return whether a layer computes what its type says.

    It has no hooks but the gates', its forward() was not replaced, and its weight and bias are its
    own parameters.
    """
    own = all(name in module._parameters for name in ("weight", "bias") if hasattr(module, name))
    return own and not has_hooks(module) and not is_replaced(module)
