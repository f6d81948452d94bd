"""The new model: a copy of the old one with its cut weights, and with forward() as the new graph says.

It is of a class derived from the model's own, so that its other methods, isinstance() and the names of its layers remain.
"""

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..sites import hooks_of
from .rewrite import Rewrite


def build(model: nn.Module, rewritten: Rewrite, *, share: bool = False) -> nn.Module:
    """Copy the model, without copying what goes.

    Args:
        share: Don't copy what stays either: a look at the new model, to run and to count, that costs no memory.
    """
    writer = rewritten.writer
    tensors = (*model.parameters(), *model.buffers()) if share else ()
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    for path, tensor in writer.parameters.items():
        old = _find(model, path)
        if old is not None:
            new = nn.Parameter(tensor, old.requires_grad) if isinstance(old, nn.Parameter) else tensor
            memo[id(old)] = new
    for old in gone(model, rewritten).values():
        memo[id(old)] = nn.Parameter(old.new_empty(0), requires_grad=False) if isinstance(old, nn.Parameter) else old.new_empty(0)
    small = copy.deepcopy(model, memo)
    for module, hook in list(hooks_of(small)):
        hook.release(module)
    _remove(small, rewritten)
    for path, tensor in writer.parameters.items():
        if _find(model, path) is None:  # a bias is created where there was none
            parent, _, name = path.rpartition(".")
            small.get_submodule(parent).register_parameter(name, nn.Parameter(tensor))
    for path, attributes in writer.attributes.items():
        for name, value in attributes.items():
            setattr(small.get_submodule(path), name, value)
    for name, tensor in {**writer.buffers, **rewritten.view.trace.constants}.items():
        if any(node.target == name for node in writer.graph.nodes if node.op == "get_attr"):
            small.register_buffer(name, tensor)
    return small


def gone(model: nn.Module, rewritten: Rewrite) -> dict[str, Tensor]:
    """Parameters and buffers that only removed layers hold."""
    layers = {id(model.get_submodule(path)) for path in rewritten.layers}
    removed: dict[str, Tensor] = {}
    kept: set[int] = set()

    def visit(module: nn.Module, prefix: str, dropped: bool) -> None:
        dropped = dropped or id(module) in layers
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and (dropped or prefix + name in rewritten.tensors):
                removed[prefix + name] = tensor
            elif tensor is not None:
                kept.add(id(tensor))
        for name, child in module._modules.items():
            if child is not None:
                visit(child, f"{prefix}{name}.", dropped)

    visit(model, "", False)
    return {path: tensor for path, tensor in removed.items() if id(tensor) not in kept}


def as_pruned(model: nn.Module, plan: Any, graph: fx.Graph | None) -> nn.Module:
    """Make a model remember its plan, and give it a forward() that is written from a graph."""
    name = f"Pruned{type(model).__name__.removeprefix('Pruned')}"
    members: dict[str, Any] = {"pruned_graph": graph, "pruned_plan": plan, "__reduce__": _reduce}
    if graph is not None:
        stubs: dict[str, Any] = {str(node.target): nn.Identity() for node in graph.nodes if node.op == "call_module"}
        stubs |= {str(node.target): torch.empty(0) for node in graph.nodes if node.op == "get_attr"}
        code = fx.GraphModule({**stubs, "training": False}, copy.deepcopy(graph))
        members["forward"] = type(code).forward
    model.__class__ = type(name, (type(model),), members)
    return model


def _reduce(model: nn.Module) -> Any:
    """Copies and pickles of a pruned model: the class is made anew."""
    kind: Any = type(model)
    return rebuild, (kind.__mro__[1], kind.pruned_plan, kind.pruned_graph), model.__dict__


def rebuild(base: type[nn.Module], plan: Any, graph: fx.Graph | None) -> nn.Module:
    """An empty pruned model; its state follows."""
    return as_pruned(base.__new__(base), plan, graph)


def _find(model: nn.Module, path: str) -> Tensor | None:
    parent, _, name = path.rpartition(".")
    found = getattr(model.get_submodule(parent), name, None)
    return found if isinstance(found, Tensor) else None


def _remove(small: nn.Module, rewritten: Rewrite) -> None:
    layers = {id(small.get_submodule(path)) for path in rewritten.layers}
    for module in list(small.modules()):
        for name, child in list(module._modules.items()):
            if id(child) in layers:
                if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
                    del module._modules[name]
                else:
                    module._modules[name] = None
    for path in rewritten.tensors:
        parent, _, name = path.rpartition(".")
        module = small.get_submodule(parent)
        if name in module._parameters:
            module._parameters[name] = None
        else:
            module._buffers[name] = None
