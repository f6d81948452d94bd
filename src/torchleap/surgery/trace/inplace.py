"""Changes in place: a graph says what is computed from what, so nothing in it may change under another reader's hands."""

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from ..._common.errors import SurgeryError

_OUT_OF_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    **{
        getattr(torch, f"{name}_"): getattr(torch, name)
        for name in ("relu", "tanh", "sigmoid", "dropout", "exp", "abs", "clamp")
    },
}


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors in a value."""
    if isinstance(value, Tensor):
        return [value]
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def versions(inputs: Any) -> list[int]:
    """How often each tensor has been changed in place."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_of(inputs)]


def is_in_place(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether an operation is one that may change its input, in eval() or in train()."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    by_name = node.op != "call_module" and name.endswith("_") and not name.endswith("__")
    return (
        node.target in _OUT_OF_PLACE
        or by_name
        or node.kwargs.get("inplace") is True
        or getattr(module, "inplace", False) is True
    )


def put_out_of_place(
    graph: fx.Graph, changing: set[fx.Node], values: dict[fx.Node, Any], model: nn.Module
) -> set[str]:
    """Make every change a new tensor, where nobody else sees it; raises where somebody does.

    Returns the layers that must not work in place any more.
    """
    place = {node: i for i, node in enumerate(graph.nodes)}
    layers = set()
    for node in graph.nodes:
        if node not in changing:
            continue
        if _is_seen(node, place, values):
            raise SurgeryError(
                f"forward() changes a tensor in place that it reads again, by {_name(node)}"
            )
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        if module is not None and getattr(module, "inplace", False) is True:
            layers.add(str(node.target))
        elif node.target in _OUT_OF_PLACE:
            node.target = _OUT_OF_PLACE[node.target]
        elif node.kwargs.get("inplace") is True:
            node.kwargs = {**node.kwargs, "inplace": False}
        else:
            raise SurgeryError(f"forward() changes a tensor in place, by {_name(node)}")
    return layers


def _is_seen(node: fx.Node, place: dict[fx.Node, int], values: dict[fx.Node, Any]) -> bool:
    """Whether a change shows in a weight, in the batch, or in anything that is read after it."""
    source = node.args[0] if node.args else None
    memory = (
        {t.untyped_storage().data_ptr() for t in tensors_of(values.get(source))}
        if isinstance(source, fx.Node)
        else set()
    )
    for other, position in place.items():
        if (
            other is node
            or position > place[node]
            or not memory
            & {tensor.untyped_storage().data_ptr() for tensor in tensors_of(values.get(other))}
        ):
            continue
        if other.op in ("placeholder", "get_attr") or any(
            place[user] > place[node] for user in other.users
        ):
            return True
    return False


def _name(node: fx.Node) -> str:
    return f"{getattr(node.target, '__name__', node.target)}()"
