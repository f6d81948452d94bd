"""Describe a model as plain JSON: its graph and the settings of its layers.

Functions, methods and layers come from the closed lists in `names` and `layers`; a graph that
contains anything else is not written, and not read: see `loaded`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from .._common.errors import SurgeryError
from ..surgery.runtime import call_unchanged, expect_globals
from ..surgery.trace.autocast import DEVICES, Settings, settings, settings_of
from .layers import describe_layer
from .names import KEYWORDS, METHODS, NAMES, is_path, works_in_place

Described = tuple[dict[str, Any], list[str]]  # what JSON can describe, and what it cannot


def to_json(model: nn.Module, graph: fx.Graph) -> Described:
    """Return the description of a graph and the layers that it calls, and what is in the way.

    What JSON cannot describe is named: functions, methods, layers, hooks and values. The
    description is complete only if there is nothing of this kind.
    """
    nodes = []
    problems = []
    for node in graph.nodes:
        if node.target is expect_globals:
            continue  # a loaded model has none of the code that reads these variables
        try:
            nodes.append(_described(model, node))
        except SurgeryError as problem:
            problems.append(str(problem))
    autocast = settings_of(graph)
    if autocast is not None:
        nodes.insert(0, _described_autocast(autocast, {node[0] for node in nodes}))
    layers, others = describe_layers(model, nodes)
    return {"nodes": nodes, "layers": layers}, list(dict.fromkeys([*others, *problems]))


def _described_autocast(autocast: Settings, names: set[str]) -> list[Any]:
    """Return the node that has the settings of autocast around all others."""
    name = "autocast"
    while name in names:
        name += "_again"
    each = tuple((device, *found) for device, found in zip(DEVICES, autocast, strict=True))
    return [name, "call_function", NAMES[settings], _encode(each), {"dict": []}]


def describe_layers(
    model: nn.Module, nodes: Sequence[Sequence[Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Return the layers that nodes of a description call, as they are now, and what is in the way.

    Args:
        model: The model.
        nodes: The nodes.
    """
    problems = []
    if model._forward_pre_hooks or model._forward_hooks:
        problems.append("the hooks on the model")
    if type(model).__call__ is not nn.Module.__call__:
        problems.append("a __call__() of its own")
    layers = {}
    for path in dict.fromkeys(str(target) for _, op, target, *_ in nodes if op == "call_module"):
        try:
            layers[path] = describe_layer(model.get_submodule(path), path, _encode)
        except SurgeryError as problem:
            problems.append(str(problem))
    return layers, problems


def _described(model: nn.Module, node: fx.Node) -> list[Any]:
    """Return one node as JSON has it."""
    target = _target(model, node)
    names = [name for name in node.kwargs if name not in KEYWORDS]
    if node.op in ("call_function", "call_method", "call_module") and names:
        raise SurgeryError(f"the argument {names[0]}= of {_label(node)}")
    if callable(node.target) and works_in_place(node.target, node.args, node.kwargs):
        raise SurgeryError(f"{_label(node)}, which changes its argument")
    device = _device(model)
    try:
        args = _encode(node.args, device)
        kwargs = _encode(dict(node.kwargs), device)
    except SurgeryError as problem:
        raise SurgeryError(f"{problem} as an argument of {_label(node)}") from problem
    return [node.name, node.op, target, args, kwargs]


def _device(model: nn.Module) -> torch.device | None:
    """Return the device of a model's weights."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return None


def _label(node: fx.Node) -> str:
    """Return how users know an operation."""
    target: Any = node.target
    if node.op == "call_method":
        return f"the method {target}()"
    if node.op == "call_function":
        name = getattr(target, "__name__", str(target))
        where = str(getattr(target, "__module__", None) or "")
        is_of_torch = where.startswith(("torch", "_operator", "builtins", "None")) or not where
        return f"the function {name}()" if is_of_torch else f"the function {where}.{name}()"
    return f"the layer {target!r}" if node.op == "call_module" else f"{target!r}"


def _target(model: nn.Module, node: fx.Node) -> Any:
    """Return the name of what a node calls or reads."""
    target: Any = node.target
    if node.op == "call_function":
        if target is call_unchanged:
            module: Any = node.args[0]
            layer = model.get_submodule(module.target)
            describe_layer(layer, module.target, _encode)
            raise SurgeryError(f"the layer {type(layer).__name__} at {module.target!r}")
        if target not in NAMES:
            raise SurgeryError(_label(node))
        return NAMES[target]
    if node.op == "call_method" and target not in METHODS:
        raise SurgeryError(_label(node))
    if node.op in ("call_module", "get_attr") and target != "training" and not is_path(target):
        raise SurgeryError(f"the name {target!r}")
    return target


def _encode(value: Any, device: torch.device | None = None) -> Any:
    """Return a value as JSON has it; `loaded` decodes it.

    Args:
        value: The value.
        device: The device of the weights, which is the only one that a graph may name.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, slice):
        return {"slice": [_encode(part, device) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, tuple):
        return {"tuple": [_encode(part, device) for part in value]}
    if isinstance(value, list):
        return [_encode(part, device) for part in value]
    if isinstance(value, dict):
        entries = [[_encode(key), _encode(part, device)] for key, part in value.items()]
        return {"dict": entries}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device) and device is not None and value.type == device.type:
        return {"device": "weights"}
    if value is Ellipsis:
        return {"ellipsis": True}
    raise SurgeryError(f"a {type(value).__name__} ({value!s:.40})")
