"""Which operation follows which rule; what is not listed is opaque."""

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from ...distributed.torchrec import keyed_values
from ..trace.hooks import has_hooks
from ..trace.tracer import gated, is_input
from .base import Elementwise, Gate, Input, Opaque, Product, Reduce
from .facts import View
from .layers import BatchNorm, Bilinear, Convolution, Embedding, EmbeddingBag, Linear, Tokenwise
from .layouts import Join, Layout, Pick, Reshape
from .tables import Keyed

OPAQUE = Opaque()
INPUT = Input()

LAYERS: dict[type[nn.Module], Opaque] = {
    nn.Linear: Linear(),
    nn.BatchNorm1d: BatchNorm(),
    nn.Conv1d: Convolution(),
    nn.Conv2d: Convolution(),
    nn.Bilinear: Bilinear(),
    nn.Embedding: Embedding(),
    nn.EmbeddingBag: EmbeddingBag(),
    nn.LayerNorm: Tokenwise(),
    nn.Flatten: Reshape(),
    nn.Unflatten: Reshape(),
}
for _layer in (
    *(
        nn.Dropout,
        nn.Identity,
        nn.ReLU,
        nn.ReLU6,
        nn.LeakyReLU,
        nn.ELU,
        nn.SELU,
        nn.CELU,
        nn.GELU,
        nn.SiLU,
        nn.Mish,
    ),
    *(
        nn.Sigmoid,
        nn.LogSigmoid,
        nn.Tanh,
        nn.Softplus,
        nn.Softsign,
        nn.Hardtanh,
        nn.Hardsigmoid,
        nn.Hardswish,
    ),
):
    LAYERS[_layer] = Elementwise()

CALLS: dict[Any, Opaque] = {
    gated: Gate(),
    keyed_values: Keyed(),
    operator.getitem: Pick(),
    functional.linear: Linear(),
    torch.matmul: Linear(),
    operator.matmul: Linear(),
    torch.mm: Linear(),
    torch.bmm: Product(),
    "bmm": Product(),
    torch.cat: Join(),
    torch.concat: Join(),
    torch.stack: Join(),
    torch.sum: Reduce(),
    torch.mean: Reduce(),
    "sum": Reduce(),
    "mean": Reduce(),
    "matmul": Linear(),
    "mm": Linear(),
}
for _name in ("flatten", "reshape", "unsqueeze", "squeeze", "unflatten"):
    CALLS[_name] = CALLS[getattr(torch, _name)] = Reshape()
CALLS["view"] = Reshape()
for _name in ("transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis"):
    CALLS[_name] = CALLS[getattr(torch, _name)] = Layout()
for _name in ("narrow", "select", "index_select"):
    CALLS[_name] = CALLS[getattr(torch, _name)] = Pick()
for _name in ("add", "sub", "mul", "truediv", "neg", "pow", "floordiv", "mod"):
    CALLS[getattr(operator, _name)] = Elementwise()
for _name in (
    *(
        "add",
        "sub",
        "subtract",
        "mul",
        "multiply",
        "div",
        "divide",
        "true_divide",
        "neg",
        "pow",
        "square",
        "sqrt",
        "rsqrt",
    ),
    *(
        "exp",
        "expm1",
        "log",
        "log1p",
        "abs",
        "sin",
        "cos",
        "sigmoid",
        "tanh",
        "relu",
        "clamp",
        "maximum",
        "minimum",
    ),
    *("logical_not", "ge", "gt", "le", "lt", "eq", "ne", "remainder", "where"),
):
    CALLS[getattr(torch, _name)] = Elementwise()
    if hasattr(torch.Tensor, _name):
        CALLS[_name] = Elementwise()
for _name in (
    "contiguous",
    "clone",
    "float",
    "double",
    "half",
    "bfloat16",
    "long",
    "int",
    "to",
    "type",
):
    CALLS[_name] = Elementwise()
for _name in (
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "gelu",
    "silu",
    "mish",
    "sigmoid",
    "tanh",
    "softplus",
    "hardswish",
    "dropout",
):
    CALLS[getattr(functional, _name)] = Elementwise()


def rule_for(node: fx.Node, view: View) -> Opaque:
    """The rule for a node with rows."""
    if is_input(node):
        return INPUT
    module = view.trace.module(node)
    if node in view.trace.varying or (module is not None and not is_plain(module)):
        return OPAQUE
    rule = CALLS.get(node.target, OPAQUE) if module is None else LAYERS.get(type(module), OPAQUE)
    others = {
        view.trace.kinds[source]
        for source in node.all_input_nodes
        if source is not view.split_of(node)
    }
    return (
        rule
        if (rule.reads is None or others <= rule.reads) and rule.applies(node, view)
        else OPAQUE
    )


def is_plain(module: nn.Module) -> bool:
    """Whether a layer computes what its type says: no hooks but ours, and weights that are its own parameters."""
    own = all(name in module._parameters for name in ("weight", "bias") if hasattr(module, name))
    return own and not has_hooks(module)
