"""What stands for a value while a model is traced, and which of the model's questions it answers."""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.proxy import TraceError

from .inputs import Asked
from .sizes import Sizes

Values = tuple[
    Any, ...
]  # of a node on the example, on its rows twice, on longer ones, and on other values

_PROPERTIES = {
    "ndim": "size",
    "dtype": "dtype",
    "device": "device",
    "is_sparse": "layout",
    "is_cuda": "device",
    "layout": "layout",
}

SPLITS: set[Any] = {  # whose parts are elements of the same rows
    *("split", "chunk", "unbind", "tensor_split", "split_with_sizes"),
    *(torch.split, torch.chunk, torch.unbind, torch.tensor_split, torch.split_with_sizes),
}


def split_dim(split: fx.Node) -> Any:
    """The dimension along which a tensor is split."""
    place = 1 if getattr(split.target, "__name__", split.target) == "unbind" else 2
    return split.args[place] if len(split.args) > place else split.kwargs.get("dim", 0)


class KnownProxy(fx.Proxy):
    """A value in the trace that knows its own kind: code that asks for dimensions, sizes or lengths gets an answer.

    But only where every batch would give the same answer. Python that decides by anything else cannot be followed.
    """

    @property
    def _known(self) -> Any:
        return self._runs[0]

    @property
    def _runs(self) -> Values:
        runs: Values = self.tracer.runs[self.node]  # type: ignore[attr-defined]
        return runs

    @property
    def _sizes(self) -> Sizes:
        sizes: Sizes = self.tracer.sizes  # type: ignore[attr-defined]
        return sizes

    def __getattr__(self, name: str) -> Any:
        if isinstance(self._known, Tensor):
            if name == "shape":
                return self.size()
            if name in _PROPERTIES:
                self._ask(_PROPERTIES[name])
                return getattr(self._known, name)
        elif self.tracer.is_nothing(self.node, "attribute", name):  # type: ignore[attr-defined]
            return None
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("node", "tracer"):
            raise TraceError("it changes the batch")
        super().__setattr__(name, value)

    def repeat_check(self, about: tuple[tuple[str, str], ...]) -> Any:
        """Return the example's value for the check of an earlier pruning, which the new model is to make as well."""
        self._ask("size")
        for name, _ in about:
            self._ask(name)
        return self._known

    def _ask(self, about: str) -> None:
        self.tracer.asked.append(Asked(self.node, about))  # type: ignore[attr-defined]

    def size(self, dim: int | None = None) -> Any:
        """Numbers, but for the number of rows and for lengths."""
        if not isinstance(self._known, Tensor):
            return super().__getattr__("size")(*[] if dim is None else [dim])
        if len({run.dim() for run in self._runs}) > 1:
            raise TraceError(
                "it asks for the shape of a tensor whose number of dimensions changes with the batch"
            )
        places = range(self._known.dim()) if dim is None else [dim % self._known.dim()]
        sizes = tuple(self._size(place) for place in places)
        return sizes if dim is None else sizes[0]

    def _size(self, place: int) -> Any:
        sizes = {run.shape[place] for run in self._runs}
        known = len(sizes) == 1 and not self._sizes.is_free(self.node, place)
        self._ask("size")
        return (
            sizes.pop()
            if known
            else self.tracer.create_proxy("call_method", "size", (self, place), {})
        )

    def numel(self) -> Any:
        """A number, unless it depends on the batch."""
        sizes = {run.numel() for run in self._runs} if isinstance(self._known, Tensor) else set()
        known = len(sizes) == 1 and not self._sizes.free.get(self.node)
        self._ask("size")
        return (
            sizes.pop() if known else self.tracer.create_proxy("call_method", "numel", (self,), {})
        )

    def dim(self) -> int:
        """The number of dimensions."""
        self._ask("size")
        dims: int = self._known.dim()
        return dims

    def is_floating_point(self) -> bool:
        """Whether it holds real numbers."""
        self._ask("dtype")
        return bool(self._known.is_floating_point())

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and isinstance(self._known, tuple | list):
            return tuple(self)[key]
        if self.tracer.is_nothing(self.node, "item", key):  # type: ignore[attr-defined]
            return None
        return self.tracer.create_proxy("call_function", operator.getitem, (self, key), {})

    def __iter__(self) -> Any:
        return (self[place] for place in range(len(self)))

    def __len__(self) -> int:
        if not isinstance(self._known, tuple | list) or self._is_argument(self.node):
            raise TraceError(f"it counts {self._what()}")
        inputs = (self.tracer.runs[source][0] for source in self.node.all_input_nodes)  # type: ignore[attr-defined]
        alike = len({len(run) for run in self._runs}) == 1 and all(
            isinstance(value, Tensor | tuple | list) for value in inputs
        )
        if not alike or self._splits_the_batch():
            raise TraceError("it splits a tensor into a number of parts that depends on the batch")
        return len(self._known)

    def _splits_the_batch(self) -> bool:
        if self.node.target not in SPLITS:
            return False
        dim, runs = split_dim(self.node), self.tracer.runs[self.node.args[0]]  # type: ignore[attr-defined]
        if not isinstance(dim, int) or len({run.shape[dim] for run in runs}) > 1:
            return True
        split: Any = self.node.args[0]
        return self._sizes.is_free(split, dim % runs[0].dim()) or any(
            source in self._sizes.numbers for source in self.node.all_input_nodes
        )

    def __bool__(self) -> bool:
        if isinstance(self._known, tuple | list):
            return len(self) > 0
        raise TraceError(f"it decides by {self._what()}")

    def _is_argument(self, node: fx.Node) -> bool:
        first = node.args[0] if node.target is operator.getitem else None
        return node.op == "placeholder" or (isinstance(first, fx.Node) and self._is_argument(first))

    def _what(self) -> str:
        name = getattr(self.node.target, "__name__", self.node.target)
        if name == "gated":
            return "the fields"
        return (
            f"the argument {name}" if self.node.op == "placeholder" else f"the result of {name}()"
        )
