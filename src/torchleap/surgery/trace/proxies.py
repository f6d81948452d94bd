"""Stand in for values while a model is traced, and answer the questions of its code."""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.proxy import TraceError
from torch.utils._pytree import tree_leaves

from ..._common.text import words
from ..runtime import with_item
from ..trial.deadline import check_time
from ..trial.state import tensors_of
from .inputs import Query
from .sizes import Sizes

Values = tuple[Any, ...]  # of a node on the example and on the other runs, see `Examples.calls`

_PROPERTIES = {  # the property that decides on the answer
    "ndim": "size",
    "dtype": "dtype",
    "device": "device",
    "is_sparse": "layout",
    "is_cuda": "device",
    "layout": "layout",
}

TENSORS = frozenset(words("data T mT H mH real imag"))  # properties that are tensors

SPLITS: set[Any] = {  # the parts of these are elements of the same rows
    *("split", "chunk", "unbind", "tensor_split", "split_with_sizes"),
    *(torch.split, torch.chunk, torch.unbind, torch.tensor_split, torch.split_with_sizes),
}


COMPARISONS = {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge}


def split_dim(split: fx.Node) -> Any:
    """Return the dimension along which a tensor is split."""
    place = 1 if getattr(split.target, "__name__", split.target) == "unbind" else 2
    return split.args[place] if len(split.args) > place else split.kwargs.get("dim", 0)


class KnownProxy(fx.Proxy):
    """A value in the trace that answers questions about its dimensions, sizes and lengths.

    It answers only where every batch gives the same answer. Python that decides by anything else
    cannot be followed.
    """

    __array_priority__ = 1000  # as of tensors: `array * x` is left to `x`

    @property
    def _known(self) -> Any:
        return self._runs[0]

    @property
    def _runs(self) -> Values:
        check_time()  # every answer needs the values
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
            if name in TENSORS:
                return self.tracer.create_proxy("call_function", getattr, (self, name), {})
            if name in _PROPERTIES:
                self._record(_PROPERTIES[name])
                return getattr(self._known, name)
        elif self.tracer.is_nothing(self.node, "attribute", name):  # type: ignore[attr-defined]
            return None
        if name.startswith("__array"):  # numpy asks what kind of array it is
            raise AttributeError(name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("node", "tracer"):
            raise TraceError("it changes the batch")
        super().__setattr__(name, value)

    def repeat_check(self, about: tuple[tuple[str, str], ...]) -> Any:
        """Return the example's value for a check of an earlier pruning.

        The check is recorded, so that the new model makes it as well.
        """
        self._record("size")
        for name, _ in about:
            self._record(name)
        return self._known

    def repeat_constants(self, index: fx.Proxy, values: fx.Proxy) -> None:
        """Record a check of an earlier pruning that some columns are constants."""
        if self.node.op != "placeholder":
            raise TraceError("an earlier pruning has cut it by itself")
        runs = self.tracer.runs  # type: ignore[attr-defined]
        folded = (self.node, runs[index.node][0], runs[values.node][0])
        self.tracer.folded.append(folded)  # type: ignore[attr-defined]

    def _record(self, about: str) -> None:
        self.tracer.queries.append(Query(self.node, about))  # type: ignore[attr-defined]

    def _method(self, name: str, *args: Any) -> Any:
        return self.tracer.create_proxy("call_method", name, (self, *args), {})

    def size(self, dim: int | None = None) -> Any:
        """Return numbers, except for the number of rows and for lengths."""
        if not isinstance(self._known, Tensor):
            return super().__getattr__("size")(*[] if dim is None else [dim])
        if len({run.dim() for run in self._runs}) > 1:
            raise TraceError(
                "it reads the shape of a tensor whose number of dimensions changes with the batch"
            )
        rank = self._known.dim()
        if dim is not None:
            return self._size(dim % rank)
        return tuple(self._size(place) for place in range(rank))

    def _size(self, place: int) -> Any:
        sizes = {run.shape[place] for run in self._runs}
        self._record("size")
        if len(sizes) == 1 and not self._sizes.is_free(self.node, place):
            return sizes.pop()
        return self._method("size", place)

    def numel(self) -> Any:
        """Return a number, unless it depends on the batch."""
        sizes = {run.numel() for run in self._runs} if isinstance(self._known, Tensor) else set()
        self._record("size")
        if len(sizes) == 1 and not self._sizes.free.get(self.node):
            return sizes.pop()
        return self._method("numel")

    def dim(self) -> int:
        """Return the number of dimensions."""
        self._record("size")
        dims: int = self._known.dim()
        return dims

    def length(self) -> Any:
        """Return what `len` does: of a tensor its first size, which may be the number of rows."""
        if isinstance(self._known, Tensor) and self._known.dim():
            return self.size(0)
        return self.__len__()

    def is_a(self, kinds: Any) -> bool:
        """Return what `isinstance` does, where every batch gives the same answer."""
        answers = {isinstance(run, kinds) for run in self._runs}
        if len(answers) > 1 or (self._is_argument(self.node) and not self._is_tensor_or_not(kinds)):
            raise TraceError(f"it asks for the class of {self._described()}")
        self._record("size")
        return answers.pop()

    def _is_tensor_or_not(self, kinds: Any) -> bool:
        """Return whether checks of the batch, which know tensors and others, cover a question."""
        return isinstance(self._known, Tensor) or kinds is Tensor

    def new_tensor(self, data: Any, **settings: Any) -> Any:
        """Return a constant of the dtype of this tensor, or a node if it is made of stand-ins."""
        inside = tree_leaves((data, settings))
        if not isinstance(self._known, Tensor) or any(
            isinstance(leaf, fx.Proxy) for leaf in inside
        ):
            return super().__getattr__("new_tensor")(data, **settings)
        if settings.get("dtype") is None:
            self._record("dtype")
        return self._known.new_tensor(data, **settings)

    def is_floating_point(self) -> bool:
        """Return whether it holds real numbers."""
        self._record("dtype")
        return bool(self._known.is_floating_point())

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and isinstance(self._known, tuple | list):
            return tuple(self)[key]
        if self.tracer.is_nothing(self.node, "item", key):  # type: ignore[attr-defined]
            return None
        return self.tracer.create_proxy("call_function", operator.getitem, (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        """Stand for the changed tensor from now on, where no other value shows the change."""
        runs: dict[fx.Node, Values] = self.tracer.runs  # type: ignore[attr-defined]
        shared = [
            node for node in runs if node is not self.node and self._shares_memory(runs[node])
        ]
        is_own = self.node.op in ("call_function", "call_method", "call_module")
        if not isinstance(self._known, Tensor) or not is_own or shared:
            raise TraceError(f"it sets elements of {self._described()} in place")
        changed = self.tracer.create_proxy("call_function", with_item, (self, key, value), {})
        self.node = changed.node

    def _shares_memory(self, runs: Values) -> bool:
        """Return whether another value of the example has the memory of this one."""
        memory = self._known.untyped_storage().data_ptr()
        return any(other.untyped_storage().data_ptr() == memory for other in tensors_of(runs[0]))

    def __iter__(self) -> Any:
        count = self.length()
        if not isinstance(count, int):
            raise TraceError(f"it goes through the rows of {self._described()}")
        return (self[place] for place in range(count))

    def __len__(self) -> int:
        if not isinstance(self._known, tuple | list) or self._is_argument(self.node):
            raise TraceError(f"it counts {self._described()}")
        inputs = [self.tracer.runs[source][0] for source in self.node.all_input_nodes]  # type: ignore[attr-defined]
        same = len({len(run) for run in self._runs}) == 1
        plain = all(isinstance(value, Tensor | tuple | list) for value in inputs)
        if not same or not plain or self._splits_the_batch():
            raise TraceError("it splits a tensor into a number of parts that depends on the batch")
        return len(self._known)

    def _splits_the_batch(self) -> bool:
        """Return whether the number of parts of a split depends on the batch."""
        if self.node.target not in SPLITS:
            return False
        dim = split_dim(self.node)
        split: Any = self.node.args[0]
        runs = self.tracer.runs[split]  # type: ignore[attr-defined]
        if not isinstance(dim, int) or len({run.shape[dim] for run in runs}) > 1:
            return True
        if self._sizes.is_free(split, dim % runs[0].dim()):
            return True
        return any(source in self._sizes.numbers for source in self.node.all_input_nodes)

    def __bool__(self) -> bool:
        if isinstance(self._known, tuple | list):
            return len(self) > 0
        if self._compares_rows():
            return bool(self._known)
        raise TraceError(f"it decides by {self._described()}")

    def _compares_rows(self) -> bool:
        """Return whether it compares two numbers of rows, and record that they are equal."""
        counts = [side for side in self.node.args if self._counts_rows(side)]
        others = [side for side in self.node.args if side not in counts]
        if self.node.target not in COMPARISONS or not counts:
            return False
        if others:  # no batch has a negative number of rows
            return isinstance(others[0], int) and others[0] < 0
        for side in counts:
            self.tracer.queries.append(Query(side, "rows"))  # type: ignore[attr-defined, arg-type]
        return True

    def _counts_rows(self, side: Any) -> bool:
        """Return whether a value is the number of rows of a tensor."""
        if not isinstance(side, fx.Node) or side.target != "size" or side.args[1:] != (0,):
            return False
        (source,) = side.all_input_nodes
        counts = self.tracer.counts  # type: ignore[attr-defined]
        return self.tracer.runs[side] == counts and not self._sizes.is_free(source, 0)  # type: ignore[attr-defined]

    def _is_argument(self, node: fx.Node) -> bool:
        if node.op == "placeholder":
            return True
        first = node.args[0] if node.target is operator.getitem else None
        return isinstance(first, fx.Node) and self._is_argument(first)

    def _described(self) -> str:
        name = getattr(self.node.target, "__name__", self.node.target)
        if name == "gated":
            return "the fields"
        if self.node.op == "placeholder":
            return f"the argument {name}"
        return f"the result of {name}()"
