"""Build the new model: a copy of the old one with cut weights and a forward() from the new graph.

Its class is derived from the model's own, so that its other methods, isinstance() and the names of
its layers remain.
"""

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.optim import Optimizer

from ..._common.copies import copied, memo_of
from ..._common.errors import SurgeryError
from ..._common.functions import refers
from ...distributed.torchrec import narrowed
from ...sites.model import hooks_of
from ..rules.written import Origin

LAYER = "pruned_layer"  # the name by which the graph of a single layer calls the layer itself


CLOSED = (Tensor, Optimizer, type, ModuleType)  # whose attributes are not searched
REPLACED = ("forward", "_original_forward")  # attributes that hide the forward() of the class


@dataclass(frozen=True)
class Edits:
    """Everything that has to change in a copy of a model.

    Attributes:
        graph: The new forward(); None keeps that of the model.
        origins: Parameters and buffers that are cut, by name.
        parameters: New values of parameters and buffers, by name, where a cut alone does not give
            them; a name that the model does not have is a new bias.
        buffers: Further buffers that the graph reads, by name.
        weights: Further parameters that the graph reads, by name.
        attributes: New attributes of layers, such as in_features, by the layer's name.
        collections: The tables that are left in a collection of tables, by its name.
        layers: The names of layers that nothing calls any more.
        tensors: The names of parameters and buffers that nothing reads any more.
        inner: The new forward() of modules inside the model that are cut by themselves, by name.
    """

    graph: fx.Graph | None = None
    origins: dict[str, Origin] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    collections: dict[str, list[Any]] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    inner: dict[str, fx.Graph] = field(default_factory=dict)

    def values(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the new value of each changed parameter and buffer, in memory of its own."""
        found = {path: tensor.clone() for path, tensor in self.parameters.items()}
        for path, origin in self.origins.items():
            if path not in found:
                old = find(model, path)
                assert old is not None
                found[path] = origin.cut(old)
        return found


def joined(*several: Edits) -> Edits:
    """Return the edits of several parts of a model as one; the first has the graph of the model."""
    first, *others = several
    found = replace(
        first,
        layers=tuple(path for edits in several for path in edits.layers),
        tensors=tuple(path for edits in several for path in edits.tensors),
    )
    for edits in others:
        found = replace(
            found,
            origins={**found.origins, **edits.origins},
            parameters={**found.parameters, **edits.parameters},
            buffers={**found.buffers, **edits.buffers},
            weights={**found.weights, **edits.weights},
            attributes={**found.attributes, **edits.attributes},
            collections={**found.collections, **edits.collections},
            inner={**found.inner, **edits.inner},
        )
    return found


def build(model: nn.Module, edits: Edits, *, shared: bool = False) -> nn.Module:
    """Copy the model with all edits, without copying what is removed.

    Args:
        model: The attached model.
        edits: What to change.
        shared: Whether unchanged weights are those of the model itself instead of copies: for a
            model that is only run and counted, which then needs little memory.
    """
    memo = memo_of(model, share=shared)
    values = edits.values(model)
    for path, tensor in values.items():
        old = find(model, path)
        if old is not None:
            memo[id(old)] = _like(old, tensor, old.requires_grad)
    for old in removed_tensors(model, edits):
        memo[id(old)] = _like(old, old.new_empty(0), False)
    small = without_gates(model, memo)
    _remove(small, edits)
    for path, configs in edits.collections.items():
        small.set_submodule(path, narrowed(small.get_submodule(path), configs))
    for path, tensor in values.items():
        if find(model, path) is None:  # a new bias
            parent, _, name = path.rpartition(".")
            layer: Any = small.get_submodule(parent)
            layer.register_parameter(name, nn.Parameter(tensor, layer.weight.requires_grad))
    for path, attributes in edits.attributes.items():
        for name, value in attributes.items():
            setattr(small.get_submodule(path), name, value)
    for path, tensor in edits.buffers.items():
        parent, _, name = path.rpartition(".")
        module = small.get_submodule(parent)
        module.register_buffer(name, tensor if shared else tensor.clone())
    for path, tensor in edits.weights.items():
        parent, _, name = path.rpartition(".")
        weight = nn.Parameter(tensor if shared else tensor.clone())
        small.get_submodule(parent).register_parameter(name, weight)
    for path, graph in edits.inner.items():
        as_pruned(small.get_submodule(path), None, graph)
    return small


def _like(old: Tensor, tensor: Tensor, requires_grad: bool) -> Tensor:
    """Return a tensor as a parameter, if the old one is a parameter."""
    return nn.Parameter(tensor, requires_grad) if isinstance(old, nn.Parameter) else tensor


def without_gates(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a copy of an attached model without its gates.

    Args:
        model: The attached model.
        memo: The memo of copy.deepcopy: copies of objects, by the id of the original.
    """
    try:
        small = copied(model, memo)
    except Exception as error:
        raise SurgeryError(
            f"pruning makes a new model, but {type(model).__name__} cannot be copied: {error}. Set "
            "the attribute that cannot be copied to None before pruning, or give its class a "
            "__deepcopy__"
        ) from error
    for module, hook in list(hooks_of(small)):
        hook.release(module)
    return small


def refuse_references(small: nn.Module, model: nn.Module) -> None:
    """Refuse a copy that would run the modules of the model that it was made from.

    Functions in the copy refer to the copy, but not other objects that these refer to.

    Args:
        small: The copy, which may share parameters with the model.
        model: The model.
    """
    old = set(model.modules())
    new = set(small.modules())

    def is_old(value: Any) -> bool:
        return isinstance(value, nn.Module) and value in old

    def opens(value: Any) -> bool:
        return not isinstance(value, CLOSED) and not (isinstance(value, nn.Module) and value in new)

    for path, module in small.named_modules():
        called = {
            "forward()": [vars(module).get("forward")],
            "a hook": [*module._forward_pre_hooks.values(), *module._forward_hooks.values()],
        }
        for name, functions in called.items():
            if any(refers(each, is_old, opens=opens) for each in functions):
                raise SurgeryError(
                    f"Nothing was changed: {name} of {path or type(small).__name__} refers to the "
                    "model that is pruned through an object that is not a part of the model, so "
                    "the pruned model would run layers of both. Let the function refer to the "
                    "model itself, or make the object an attribute of the model."
                )


def removed_tensors(model: nn.Module, edits: Edits) -> list[Tensor]:
    """Return the parameters and buffers that only removed layers hold."""
    paths = (*edits.layers, *_tables_of_collections(model, edits))
    layers = {id(model.get_submodule(path)) for path in paths}
    removed: list[Tensor] = []
    kept: set[int] = set()

    def visit(module: nn.Module, prefix: str, is_removed: bool) -> None:
        is_removed = is_removed or id(module) in layers
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            if is_removed or prefix + name in edits.tensors:
                removed.append(tensor)
            else:
                kept.add(id(tensor))
        for name, child in module._modules.items():
            if child is not None:
                visit(child, f"{prefix}{name}.", is_removed)

    visit(model, "", False)
    return [tensor for tensor in removed if id(tensor) not in kept]


def _tables_of_collections(model: nn.Module, edits: Edits) -> list[str]:
    """Return the names of the tables that leave a collection."""
    found = []
    for path, configs in edits.collections.items():
        kept = {config.name for config in configs}
        tables: Any = model.get_submodule(path).embedding_bags
        found += [f"{path}.embedding_bags.{name}" for name in tables if name not in kept]
    return found


def _remove(small: nn.Module, edits: Edits) -> None:
    """Remove the layers, parameters and buffers that nothing reads from the new model."""
    for path in edits.tensors:
        parent, _, name = path.rpartition(".")
        module = small.get_submodule(parent)
        if name in module._parameters:
            module._parameters[name] = None
        else:
            module._buffers[name] = None
    layers = {id(small.get_submodule(path)) for path in edits.layers}
    for module in list(small.modules()):
        for name, child in list(module._modules.items()):
            if id(child) not in layers:
                continue
            if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
                del module._modules[name]
            else:
                module._modules[name] = None


def as_pruned(model: nn.Module, plan: Any, graph: fx.Graph | None) -> nn.Module:
    """Give a model a class that holds its plan, and whose forward() is written from a graph.

    Args:
        model: The model; it is changed in place and returned.
        plan: The plan, or None while the model is tried.
        graph: The graph; without one the model keeps its forward(), that of the user or of an
            earlier pruning.
    """
    base = _base_of(model)
    written = graph if graph is not None else getattr(type(model), "pruned_forward", None)
    members = {
        "pruned_graph": graph,
        "pruned_forward": written,
        "pruned_plan": plan,
        "__reduce__": _reduce,
    }
    if written is not None:
        members["forward"] = _forward_of(written)
        members[LAYER] = property(partial(_own_forward, base))
        for name in REPLACED:  # the graph has what they did
            vars(model).pop(name, None)
    model.__class__ = type(f"Pruned{base.__name__}", (base,), members)
    return model


def _own_forward(base: type[nn.Module], layer: nn.Module) -> Any:
    """Return what a layer that is cut by itself computes between selecting and restoring."""
    return MethodType(base.forward, layer)


def _base_of(model: nn.Module) -> Any:
    """Return the class of a model before any pruning."""
    return next(kind for kind in type(model).__mro__ if "pruned_plan" not in vars(kind))


def _forward_of(graph: fx.Graph) -> Any:
    """Return a function that computes a graph, with the model as its first argument."""
    stubs: dict[str, Any] = {"training": False}
    for node in graph.nodes:
        if node.op == "call_module":
            stubs[str(node.target)] = nn.Identity()
        elif node.op == "get_attr" and node.target != "training":
            stubs[str(node.target)] = torch.empty(0)
    code = fx.GraphModule(stubs, copy.deepcopy(graph))
    return type(code).forward


def _reduce(model: nn.Module) -> Any:
    """Copy and pickle a pruned model: its class is made again."""
    kind: Any = type(model)
    parts = (_base_of(model), kind.pruned_plan, kind.pruned_graph, kind.pruned_forward)
    return rebuild, parts, model.__dict__


def rebuild(
    base: type[nn.Module], plan: Any, graph: fx.Graph | None, written: fx.Graph | None = None
) -> nn.Module:
    """Return an empty pruned model, whose state pickle sets afterwards."""
    model = base.__new__(base)
    if graph is None and written is not None:
        model = as_pruned(model, None, written)
    return as_pruned(model, plan, graph)


def find(model: nn.Module, path: str) -> Tensor | None:
    """Return the parameter, buffer or other tensor of this name; None if there is none."""
    parent, _, name = path.rpartition(".")
    found = getattr(model.get_submodule(parent), name, None)
    return found if isinstance(found, Tensor) else None
