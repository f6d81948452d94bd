"""A model as plain JSON: its graph and the settings of its layers. Reading it builds layers of PyTorch, and runs nothing else.

Functions, methods and layers come from the list that surgery knows; a graph that names anything else is refused. So a file can
at worst describe a useless model.
"""

import inspect
import math
import operator
import re
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from ..errors import SurgeryError
from ..surgery.channels import call_unchanged, expect_globals
from ..surgery.entries import expect_entries
from ..surgery.inputs import expect_inputs
from ..surgery.registry import CALLS, LAYERS
from ..surgery.writer import kept_columns

_EXTRA: tuple[Any, ...] = (
    kept_columns,
    expect_entries,
    expect_inputs,
    expect_globals,
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
    kind.__name__: kind for kind in (*LAYERS, nn.Softmax, nn.PReLU, nn.AlphaDropout, nn.BatchNorm2d, nn.GroupNorm)
}
_PATH = re.compile(r"[^\W.][^.\"'\\{}\[\]()]*(\.[^.\"'\\{}\[\]()]+)*")  # it ends up in quotes, in code that torch.fx writes
_SKIPPED = {"self", "device", "dtype", "_weight", "_freeze"}


def to_json(model: nn.Module, graph: fx.Graph) -> dict[str, Any]:
    """The graph and the layers; a SurgeryError names what JSON cannot describe."""
    names = {function: name for name, function in FUNCTIONS.items()}
    if model._forward_pre_hooks or model._forward_hooks:
        raise SurgeryError("the hooks on the model")
    nodes, layers = [], {}
    for node in graph.nodes:
        target = node.target
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
        elif node.op == "call_module":
            _refuse_path(str(target))
            layers[str(target)] = _describe(model.get_submodule(str(target)))
        elif node.op == "get_attr":
            _refuse_path(str(target))
        nodes.append([node.name, node.op, target, _encode(node.args), _encode(dict(node.kwargs))])
    return {"nodes": nodes, "layers": layers}


def _refuse_path(path: str) -> None:
    if not _is_path(path):
        raise SurgeryError(f"the name {path!r}")


def _is_path(path: str) -> bool:
    return path.isprintable() and _PATH.fullmatch(path) is not None


def _describe(layer: nn.Module) -> list[Any]:
    """The kind of a layer and the arguments that build it."""
    kind = type(layer)
    if KINDS.get(kind.__name__) is not kind:
        raise SurgeryError(f"the layer {kind.__name__}")
    if layer._forward_pre_hooks or layer._forward_hooks:
        raise SurgeryError(f"the hooks on the layer {kind.__name__}")
    settings = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in _SKIPPED or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
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


def from_json(content: dict[str, Any], tensors: dict[str, Tensor], trainable: dict[str, bool], name: str) -> fx.GraphModule:
    """The model, with these tensors; those in `trainable` are parameters, and it says whether they take gradients."""
    root = nn.Module()
    for path, (kind, settings) in content["layers"].items():
        _check(isinstance(kind, str) and kind in KINDS, f"the layer {kind!r}")
        arguments = {name: _decode(value, {}) for name, value in settings.items()}
        if "device" in inspect.signature(KINDS[kind]).parameters:
            arguments["device"] = "meta"  # the weights come from the file
        _place(root, path, KINDS[kind](**arguments))
    for path, tensor in tensors.items():
        parent, _, last = path.rpartition(".")
        _check(_is_path(path), f"the path {path!r}")
        holder = _container(root, parent)
        if path in trainable:
            holder.register_parameter(last, nn.Parameter(tensor, bool(trainable[path])))
        else:
            holder.register_buffer(last, tensor)
    absent = [path for path, tensor in (*root.named_parameters(), *root.named_buffers()) if tensor.is_meta]
    _check(not absent, f"no weights for {', '.join(absent[:3])}")
    graph = _graph(content["nodes"])
    _check([node.op for node in graph.nodes][-1:] == ["output"], "no output at the end")
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    read = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    unknown = [*called - set(content["layers"]), *read - {*tensors, "training"}]
    _check(not unknown, f"{', '.join(map(repr, unknown[:3]))} in its graph, but nowhere else")
    return fx.GraphModule(root, graph, name if name.isidentifier() else "Pruned")


def _graph(nodes: list[Any]) -> fx.Graph:
    graph = fx.Graph()
    known: dict[str, fx.Node] = {}
    for name, op, target, args, kwargs in nodes:
        _check(isinstance(name, str) and name.isidentifier() and isinstance(target, str), f"the node {name!r}")
        call: Any = target
        if op == "call_function":
            _check(target in FUNCTIONS, f"the function {target!r}")
            call = FUNCTIONS[target]
        elif op == "call_method":
            _check(target in METHODS, f"the method {target!r}")
        elif op in ("call_module", "get_attr"):
            _check(_is_path(target), f"the path {target!r}")
        else:
            _check(op in ("placeholder", "output") and target.isidentifier(), f"the node {op!r}")
        if op == "output":
            graph.output(_decode(args, known)[0])
        else:
            known[name] = graph.create_node(op, call, _decode(args, known), _decode(kwargs, known), name)
    return graph


def _check(holds: bool, found: str) -> None:
    if not holds:
        raise SurgeryError(f"The manifest describes a model with {found}, which torchleap does not build.")


def _decode(value: Any, nodes: dict[str, fx.Node]) -> Any:
    if isinstance(value, list):
        return [_decode(part, nodes) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, part),) = value.items()
    if kind == "node":
        return nodes[part]
    if kind == "float":
        return float(part)
    if kind == "slice":
        return slice(*(_decode(entry, nodes) for entry in part))
    if kind == "tuple":
        return tuple(_decode(entry, nodes) for entry in part)
    if kind == "dict":
        return {_decode(key, nodes): _decode(entry, nodes) for key, entry in part}
    if kind == "dtype":
        found = getattr(torch, part, None)
        _check(isinstance(found, torch.dtype), f"the dtype {part!r}")
        return found
    _check(kind == "ellipsis", f"a value of kind {kind!r}")
    return ...


def _container(root: nn.Module, path: str) -> nn.Module:
    module = root
    for name in path.split(".") if path else []:
        if name not in module._modules:
            module.add_module(name, nn.Module())
        child = module._modules[name]
        assert child is not None
        module = child
    return module


def _place(root: nn.Module, path: str, layer: nn.Module) -> None:
    _check(_is_path(path), f"the path {path!r}")
    parent, _, name = path.rpartition(".")
    _container(root, parent).add_module(name, layer)
