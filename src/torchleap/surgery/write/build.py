"""The new model: a copy of the old one with its cut weights, and with forward() as the new graph says.

It is of a class derived from the model's own, so that its other methods, isinstance() and the names of its layers remain.
"""

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from ..._common.copies import memo_of
from ..._common.errors import SurgeryError
from ...distributed.torchrec import narrowed
from ...sites.model import hooks_of

if TYPE_CHECKING:
    from .rewrite import Rewrite


def build(model: nn.Module, rewritten: "Rewrite", *, share: bool = False) -> nn.Module:
    """Copy the model, without copying what goes.

    Args:
        share: Don't copy what stays either: a look at the new model, to run and to count, that costs no memory.
    """
    writer = rewritten.writer
    memo = memo_of(model, share=share)
    for path, tensor in writer.parameters.items():
        old = find(model, path)
        if old is not None:
            new = (
                nn.Parameter(tensor, old.requires_grad) if isinstance(old, nn.Parameter) else tensor
            )
            memo[id(old)] = new
    for old in gone(model, rewritten).values():
        memo[id(old)] = (
            nn.Parameter(old.new_empty(0), requires_grad=False)
            if isinstance(old, nn.Parameter)
            else old.new_empty(0)
        )
    small = without_gates(model, memo)
    _remove(small, rewritten)
    for path, configs in writer.collections.items():
        small.set_submodule(path, narrowed(small.get_submodule(path), configs))
    for path, tensor in writer.parameters.items():
        if find(model, path) is None:  # a bias is created where there was none
            parent, _, name = path.rpartition(".")
            layer: Any = small.get_submodule(parent)
            layer.register_parameter(name, nn.Parameter(tensor, layer.weight.requires_grad))
    for path, attributes in writer.attributes.items():
        for name, value in attributes.items():
            setattr(small.get_submodule(path), name, value)
    for name, tensor in {**writer.buffers, **rewritten.view.trace.constants}.items():
        if any(node.target == name for node in writer.graph.nodes if node.op == "get_attr"):
            small.register_buffer(name, tensor)
    return small


def without_gates(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A copy of the model that is not attached."""
    try:
        small = copy.deepcopy(model, memo)
    except Exception as error:
        raise SurgeryError(
            f"pruning makes a new model, but {type(model).__name__} cannot be copied: {error}. Set the attribute that cannot be "
            "copied to None before pruning, or give its class a __deepcopy__"
        ) from error
    for module, hook in list(hooks_of(small)):
        hook.release(module)
    return small


def gone(model: nn.Module, rewritten: "Rewrite") -> dict[str, Tensor]:
    """Parameters and buffers that only removed layers hold."""
    layers = {
        id(model.get_submodule(path))
        for path in (*rewritten.layers, *_tables_of_collections(model, rewritten))
    }
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


def _tables_of_collections(model: nn.Module, rewritten: "Rewrite") -> list[str]:
    """The tables that leave a collection."""
    found = []
    for path, configs in rewritten.writer.collections.items():
        tables: Any = model.get_submodule(path).embedding_bags
        found += [
            f"{path}.embedding_bags.{name}"
            for name in tables
            if name not in {config.name for config in configs}
        ]
    return found


def as_pruned(model: nn.Module, plan: Any, graph: fx.Graph | None) -> nn.Module:
    """Make a model remember its plan, and give it a forward() that is written from a graph.

    Without a graph it keeps the forward() that it has: the user's, or the one of an earlier pruning.
    """
    kind: Any = type(model)
    base = next(c for c in kind.__mro__ if "pruned_plan" not in vars(c))
    written = graph if graph is not None else getattr(kind, "pruned_forward", None)
    members = {
        "pruned_graph": graph,
        "pruned_forward": written,
        "pruned_plan": plan,
        "__reduce__": _reduce,
    }
    if written is not None:
        stubs: dict[str, Any] = {
            str(node.target): nn.Identity() for node in written.nodes if node.op == "call_module"
        }
        stubs |= {
            str(node.target): torch.empty(0) for node in written.nodes if node.op == "get_attr"
        }
        code = fx.GraphModule({**stubs, "training": False}, copy.deepcopy(written))
        members["forward"] = type(code).forward
    model.__class__ = type(f"Pruned{base.__name__}", (base,), members)
    return model


def _reduce(model: nn.Module) -> Any:
    """Copies and pickles of a pruned model: the class is made anew."""
    kind: Any = type(model)
    base = next(c for c in kind.__mro__ if "pruned_plan" not in vars(c))
    return rebuild, (base, kind.pruned_plan, kind.pruned_graph, kind.pruned_forward), model.__dict__


def rebuild(
    base: type[nn.Module], plan: Any, graph: fx.Graph | None, written: fx.Graph | None = None
) -> nn.Module:
    """An empty pruned model; its state follows."""
    model = base.__new__(base)
    if graph is None and written is not None:
        model = as_pruned(model, None, written)
    return as_pruned(model, plan, graph)


def find(model: nn.Module, path: str) -> Tensor | None:
    """The parameter, buffer or other tensor of this name."""
    parent, _, name = path.rpartition(".")
    found = getattr(model.get_submodule(parent), name, None)
    return found if isinstance(found, Tensor) else None


def _remove(small: nn.Module, rewritten: "Rewrite") -> None:
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
