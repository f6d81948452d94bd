"""A model as plain JSON: its graph and the settings of its layers.

Functions, methods and layers come from the list that surgery knows; a graph that names anything else is not written, and not
read: see `loaded`.
"""

import inspect
import math
import operator
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from .._common.errors import SurgeryError
from ..surgery.rules.registry import CALLS, LAYERS
from ..surgery.rules.writer import kept_columns
from ..surgery.trace.channels import call_unchanged, expect_globals
from ..surgery.trace.entries import expect_entries
from ..surgery.trace.inputs import expect_inputs

_EXTRA: tuple[Any, ...] = (
    kept_columns,
    expect_entries,
    expect_inputs,
    torch.softmax,
    functional.softmax,
    functional.layer_norm,
    torch.bmm,
    torch.einsum,
    operator.gt,
)
FUNCTIONS: dict[str, Any] = {
    f"{function.__module__}.{function.__name__}".removeprefix("torch._C."): function
    for function in (*CALLS, *_EXTRA)
    if callable(function) and function.__name__ != "gated"
}
METHODS = {name for name in CALLS if isinstance(name, str)} | {
    "size",
    "expand",
    "softmax",
    "bmm",
    "split",
    "chunk",
    "unbind",
    "clamp_min",
}
KINDS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (*LAYERS, nn.Softmax, nn.PReLU, nn.AlphaDropout, nn.BatchNorm2d, nn.GroupNorm)
}
KEYWORDS = frozenset(
    (
        *(
            "_stacklevel",
            "absent",
            "alpha",
            "approximate",
            "axis",
            "axis0",
            "axis1",
            "batch",
            "beta",
            "bias",
            "chunks",
        ),
        *(
            "condition",
            "copy",
            "destination",
            "device",
            "dim",
            "dim0",
            "dim1",
            "dims",
            "dtype",
            "end_dim",
            "eps",
        ),
        *(
            "equation",
            "exponent",
            "index",
            "inplace",
            "input",
            "input1",
            "input2",
            "keepdim",
            "keepdims",
            "keys",
            "known",
        ),
        *(
            "length",
            "mat2",
            "max",
            "memory_format",
            "min",
            "needed",
            "negative_slope",
            "non_blocking",
            "normalized_shape",
        ),
        *(
            "offsets",
            "operands",
            "ordered",
            "other",
            "p",
            "per_sample_weights",
            "rounding_mode",
            "runs",
            "shape",
            "size",
        ),
        *(
            "sizes",
            "source",
            "split_size",
            "split_size_or_sections",
            "start",
            "start_dim",
            "tensors",
            "threshold",
        ),
        *("training", "value", "walked", "weight", "width", "x"),
    )
)
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8),
        *(torch.int64, torch.int32, torch.int16, torch.int8),
    )
}
_PATH = re.compile(r"[^\W.][^.\"'\\{}\[\]()]*(\.[^.\"'\\{}\[\]()]+)*")
_TAKEN = frozenset(
    (*dir(nn.Module), *vars(nn.Module()))
)  # what a layer or a tensor of this name would hide
_SKIPPED = {"self", "device", "dtype", "_weight", "_freeze"}


def to_json(model: nn.Module, graph: fx.Graph) -> dict[str, Any]:
    """Describe the graph and the layers; a SurgeryError names what JSON cannot describe."""
    names = {function: name for name, function in FUNCTIONS.items()}
    nodes = []
    for node in graph.nodes:
        target = node.target
        if target is expect_globals:
            continue  # a loaded model has none of the code whose variables these are
        if node.op == "call_function":
            if target is call_unchanged:
                layer = model.get_submodule(node.args[0].target)
                _describe(layer)
                raise SurgeryError(f"the layer {type(layer).__name__}")
            if target not in names:
                raise SurgeryError(f"the function {getattr(target, '__name__', target)}()")
            target = names[target]
        elif node.op == "call_method" and target not in METHODS:
            raise SurgeryError(f"the method {target}()")
        elif node.op in ("call_module", "get_attr") and target != "training":
            _refuse_path(str(target))
        nodes.append([node.name, node.op, target, _encode(node.args), _encode(dict(node.kwargs))])
    return {"nodes": nodes, "layers": describe_layers(model, nodes)}


def describe_layers(model: nn.Module, nodes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Describe the layers that nodes of a description call, as they are now."""
    if model._forward_pre_hooks or model._forward_hooks:
        raise SurgeryError("the hooks on the model")
    if type(model).__call__ is not nn.Module.__call__:
        raise SurgeryError("a __call__() of its own")
    called = [str(target) for _, op, target, *_ in nodes if op == "call_module"]
    return {path: _describe(model.get_submodule(path)) for path in called}


def _refuse_path(path: str) -> None:
    if not is_path(path):
        raise SurgeryError(f"the name {path!r}")


def is_path(path: object) -> bool:
    """Say whether it can be the path of a layer or tensor, and of nothing else that a module has."""
    if not isinstance(path, str) or not path.isprintable() or _PATH.fullmatch(path) is None:
        return False
    parts = path.split(".")
    return not any(part in _TAKEN or part.startswith(("__", "torchleap_")) for part in parts)


def constructor(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a layer that a manifest describes."""
    found = inspect.signature(kind).parameters.items()
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in found if name not in _SKIPPED and p.kind not in loose}


def _describe(layer: nn.Module) -> list[Any]:
    """The kind of a layer and the arguments that build it."""
    kind = type(layer)
    if KINDS.get(kind.__name__) is not kind:
        raise SurgeryError(f"the layer {kind.__name__}")
    if layer._forward_pre_hooks or layer._forward_hooks:
        raise SurgeryError(f"the hooks on the layer {kind.__name__}")
    settings = {}
    for name, parameter in constructor(kind).items():
        if name == "bias":
            settings[name] = getattr(layer, "bias", None) is not None
        elif hasattr(layer, name):
            settings[name] = _encode(getattr(layer, name))
        elif parameter.default is inspect.Parameter.empty:
            raise SurgeryError(f"the layer {kind.__name__}, whose {name} it does not keep")
    return [kind.__name__, settings]


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, slice):
        return {"slice": [_encode(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, tuple):
        return {"tuple": [_encode(part) for part in value]}
    if isinstance(value, list):
        return [_encode(part) for part in value]
    if isinstance(value, dict):
        return {"dict": [[_encode(key), _encode(part)] for key, part in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if value is Ellipsis:
        return {"ellipsis": True}
    raise SurgeryError(f"a {type(value).__name__} in the graph")
