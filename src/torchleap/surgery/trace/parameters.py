"""Code that reaches parameters by another way than an attribute, such as `named_parameters()`: they become nodes too."""

from typing import TYPE_CHECKING, Any

from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from .tracer import SiteTracer

_TENSORS = {
    "data",
    "T",
    "mT",
    "H",
    "mH",
    "real",
    "imag",
    "grad",
}  # properties that are tensors themselves
_ABOUT = {  # what no training changes
    *(
        "__hash__",
        "__repr__",
        "__format__",
        "__dir__",
        "__len__",
        "dim",
        "size",
        "numel",
        "stride",
        "element_size",
    ),
    *("is_floating_point", "is_inference", "is_contiguous", "untyped_storage", "data_ptr"),
}


class OwnTensors(TorchFunctionMode):
    """While a model is traced: whatever is computed with its parameters and buffers becomes a node of the graph.

    Without it, tracing would compute such values once, and fine-tuning the pruned model would not change them.
    """

    def __init__(self, tracer: "SiteTracer", model: nn.Module) -> None:
        super().__init__()
        self.tracer = tracer
        held = (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
        self.paths = {id(tensor): path for path, tensor in held}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.tracer.executing or name in _ABOUT or not self._reads_mine((args, kwargs)):
            return func(*args, **kwargs)
        if name in ("__get__", "__set__", "__delete__"):
            return self._property(func, args)
        args, kwargs = tree_map(self._node, (args, kwargs))
        if is_tensor_method_or_property(func):
            return getattr(args[0], name)(*args[1:], **kwargs)
        return func(*args, **kwargs)

    def _reads_mine(self, inputs: Any) -> bool:
        return any(
            isinstance(leaf, Tensor) and id(leaf) in self.paths for leaf in tree_leaves(inputs)
        )

    def _property(self, func: Any, args: Any) -> Any:
        name = func.__self__.__name__
        if func.__name__ != "__get__":
            raise TraceError(f"it changes {name} of a parameter")
        return getattr(self._node(args[0]), name) if name in _TENSORS else func(*args)

    def _node(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or id(leaf) not in self.paths:
            return leaf
        return self.tracer.create_proxy("get_attr", self.paths[id(leaf)], (), {})


def refuse_trained(tensor: Tensor, tracer: fx.Tracer) -> None:
    """Refuse a tensor that takes gradients, but that the pruned model would not hold as its own."""
    if isinstance(tensor, nn.Parameter) or not tensor.requires_grad:
        return
    if not tensor.is_leaf or tensor not in tracer.tensor_attrs:
        raise TraceError(
            "it computes with a tensor that takes gradients, but that no attribute of the model holds"
        )
