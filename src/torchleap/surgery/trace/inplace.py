"""Replace changes in place by new tensors: no node of a graph may change what another one reads."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from ..._common.errors import SurgeryError
from ..._common.text import words
from ..trial.state import tensors_of

_OUT_OF_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    torch.relu_: torch.relu,
    torch.tanh_: torch.tanh,
    torch.sigmoid_: torch.sigmoid,
    torch.dropout_: torch.dropout,
    torch.exp_: torch.exp,
    torch.abs_: torch.abs,
    torch.clamp_: torch.clamp,
}


_METHODS: dict[str, Any] = {"fill_": torch.fill, "zero_": torch.zeros_like}  # those without a twin
_TWINS = frozenset(  # methods that return what the method with `_` leaves in the tensor
    words(
        "abs add addcdiv addcmul ceil clamp clamp_max clamp_min cos detach div divide exp "
        "expm1 floor hardtanh index_add index_copy index_fill index_put leaky_relu lerp log log1p "
        "masked_fill masked_scatter mul multiply nan_to_num neg pow reciprocal relu round rsqrt "
        "scatter scatter_add sigmoid sin sqrt square squeeze sub subtract tanh transpose tril triu "
        "unsqueeze"
    )
)


def is_in_place(node: fx.Node, module: nn.Module | None) -> bool:
    """Return whether an operation is one that may change its input, in eval() or in train()."""
    if node.target in _OUT_OF_PLACE or node.kwargs.get("inplace") is True:
        return True
    if node.op == "call_module":
        return getattr(module, "inplace", False) is True
    if node.target in (operator.and_, operator.or_):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_") and not name.endswith("__")


def put_out_of_place(
    graph: fx.Graph, changing: set[fx.Node], values: dict[fx.Node, Any], model: nn.Module
) -> set[str]:
    """Make each change in place a new tensor, and return the layers that must not work in place.

    Args:
        graph: The graph; the operations in it are replaced.
        changing: The nodes that change an input.
        values: Each node's value on the example.
        model: The model that was traced.

    Raises:
        SurgeryError: Another node, a weight or the batch would show the change.
    """
    place = {node: i for i, node in enumerate(graph.nodes)}
    layers = set()
    for node in graph.nodes:
        if node not in changing:
            continue
        _read_result(node, place, values)
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
        elif node.op == "call_method" and _keeps_dtype(node, values):
            _call_out_of_place(node)
        else:
            raise SurgeryError(f"forward() changes a tensor in place, by {_name(node)}")
    return layers


def recompute(
    graph: fx.Graph,
    changing: set[fx.Node],
    values: dict[fx.Node, Any],
    compute: Callable[[fx.Node], Any],
) -> None:
    """Give each tensor that was changed in place the value that it had before the change.

    Args:
        graph: The graph, in which nothing changes in place any more but layers.
        changing: The nodes that changed an input.
        values: Each node's value on the example; changed.
        compute: Computes a node from these values.
    """
    changed = {each for node in changing for each in _memory(values.get(node))}
    for node in graph.nodes:
        if not changed & _memory(values.get(node)) or node.op == "output":
            continue
        inputs = {source: values[source] for source in node.all_input_nodes}
        for source in inputs:  # a layer may work in place
            values[source] = tree_map_only(Tensor, torch.clone, inputs[source])
        values[node] = compute(node)
        values.update(inputs)


def _read_result(node: fx.Node, place: dict[fx.Node, int], values: dict[fx.Node, Any]) -> None:
    """Let operations that read a changed tensor later read the result of the change."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or source.op in ("placeholder", "get_attr"):
        return
    if values.get(source) is not values.get(node):
        return
    for user in list(source.users):
        if place[user] > place[node]:
            user.replace_input_with(source, node)


def _keeps_dtype(node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    """Return whether the same method without a change in place returns the dtype of its tensor."""
    tensors = [tensor for source in node.all_input_nodes for tensor in tensors_of(values[source])]
    return len({tensor.dtype for tensor in tensors if tensor.dtype != torch.bool}) == 1


def _call_out_of_place(node: fx.Node) -> None:
    """Call the method of the same name that returns a new tensor."""
    name = str(node.target)
    if name in _METHODS:
        node.op = "call_function"
        node.target = _METHODS[name]
    elif name.removesuffix("_") in _TWINS:
        node.target = name.removesuffix("_")
    else:
        raise SurgeryError(f"forward() changes a tensor in place, by {_name(node)}")


def _is_seen(node: fx.Node, place: dict[fx.Node, int], values: dict[fx.Node, Any]) -> bool:
    """Return whether a change shows in a weight, in the batch, or in a tensor read later."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return False
    memory = _memory(values.get(source))
    for other, position in place.items():
        if other is node or position > place[node] or not memory & _memory(values.get(other)):
            continue
        read_later = any(place[user] > place[node] for user in other.users)
        if read_later or other.op in ("placeholder", "get_attr"):
            return True
    return False


def _memory(value: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors_of(value)}


def _name(node: fx.Node) -> str:
    return f"{getattr(node.target, '__name__', node.target)}()"
