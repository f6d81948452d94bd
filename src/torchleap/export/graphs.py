"""Describe a model as plain JSON: its graph and the settings of its layers.

Functions, methods and layers come from the closed lists in `names`; a graph that contains anything
else is not written, and not read: see `loaded`.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from .._common.errors import SurgeryError
from ..surgery.runtime import call_unchanged, expect_globals
from .names import KINDS, METHODS, NAMES, is_path

_SKIPPED = {"self", "device", "dtype", "_weight", "_freeze"}


def to_json(model: nn.Module, graph: fx.Graph) -> dict[str, Any]:
    """Return the description of a graph and the layers that it calls.

    Raises:
        SurgeryError: The graph contains something that JSON cannot describe; the message names it.
    """
    nodes = []
    for node in graph.nodes:
        if node.target is expect_globals:
            continue  # a loaded model has none of the code that reads these variables
        target = _target(model, node)
        nodes.append([node.name, node.op, target, _encode(node.args), _encode(dict(node.kwargs))])
    return {"nodes": nodes, "layers": describe_layers(model, nodes)}


def _target(model: nn.Module, node: fx.Node) -> Any:
    """Return the name of what a node calls or reads."""
    target: Any = node.target
    if node.op == "call_function":
        if target is call_unchanged:
            module: Any = node.args[0]
            layer = model.get_submodule(module.target)
            _describe(layer)
            raise SurgeryError(f"the layer {type(layer).__name__}")
        if target not in NAMES:
            raise SurgeryError(f"the function {getattr(target, '__name__', target)}()")
        return NAMES[target]
    if node.op == "call_method" and target not in METHODS:
        raise SurgeryError(f"the method {target}()")
    if node.op in ("call_module", "get_attr") and target != "training" and not is_path(target):
        raise SurgeryError(f"the name {target!r}")
    return target


def describe_layers(model: nn.Module, nodes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the description of the layers that nodes of a description call, as they are now."""
    if model._forward_pre_hooks or model._forward_hooks:
        raise SurgeryError("the hooks on the model")
    if type(model).__call__ is not nn.Module.__call__:
        raise SurgeryError("a __call__() of its own")
    called = [str(target) for _, op, target, *_ in nodes if op == "call_module"]
    return {path: _describe(model.get_submodule(path)) for path in called}


def constructor(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a layer's constructor that a manifest contains."""
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name not in _SKIPPED and parameter.kind not in loose:
            found[name] = parameter
    return found


def _describe(layer: nn.Module) -> list[Any]:
    """Return the kind of a layer and the arguments that build it."""
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
    """Return a value as JSON has it; `loaded` decodes it."""
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
