"""Make parameters nodes where code reaches them not as an attribute, as by `named_parameters()`."""

from inspect import unwrap
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property
from torch.utils._pytree import tree_leaves, tree_map

from ..._common.text import words

if TYPE_CHECKING:
    from .tracer import SiteTracer

_TENSORS = {"data", "T", "mT", "H", "mH", "real", "imag", "grad"}  # properties that are tensors
_CONSTANT = frozenset(  # training does not change these
    words(
        "__hash__ __repr__ __format__ __dir__ __len__ dim size numel stride element_size "
        "is_floating_point is_inference is_contiguous untyped_storage data_ptr"
    )
)


class OwnTensors(TorchFunctionMode):
    """Turn everything that is computed with a model's parameters and buffers into nodes.

    Without this context, tracing would compute such values once, and fine-tuning the pruned model
    would not change them.

    Args:
        tracer: The tracer that is following the model.
        model: The model.
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
        if self.tracer.executing or name in _CONSTANT or not self._reads_mine((args, kwargs)):
            return func(*args, **kwargs)
        if name in ("__get__", "__set__", "__delete__"):
            return self._property(func, args)
        args, kwargs = tree_map(self._node, (args, kwargs))
        if is_tensor_method_or_property(unwrap(func)):  # `answered` wraps some methods
            return getattr(args[0], name)(*args[1:], **kwargs)
        return func(*args, **kwargs)

    def _reads_mine(self, inputs: Any) -> bool:
        return any(self._is_mine(leaf) for leaf in tree_leaves(inputs))

    def _is_mine(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and id(leaf) in self.paths

    def _property(self, func: Any, args: Any) -> Any:
        name = func.__self__.__name__
        if func.__name__ != "__get__":
            raise TraceError(f"it changes {name} of a parameter")
        if name in _TENSORS:
            return getattr(self._node(args[0]), name)
        return func(*args)

    def _node(self, leaf: Any) -> Any:
        if not self._is_mine(leaf):
            return leaf
        return self.tracer.create_proxy("get_attr", self.paths[id(leaf)], (), {})


def refuse_trained(tensor: Tensor, tracer: fx.Tracer) -> None:
    """Refuse a tensor that requires gradients but would not be an attribute of the pruned model."""
    if isinstance(tensor, nn.Parameter) or not tensor.requires_grad:
        return
    if not tensor.is_leaf or tensor not in tracer.tensor_attrs:
        raise TraceError(
            "it computes with a tensor that requires gradients but is not an attribute of the model"
        )
