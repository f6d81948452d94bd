"""The result of a removed table: a tensor that tracks its absent elements and refuses to be read.

A model that is fed constants keeps its own Python, and an example cannot show everything that this
Python does. So a table that was removed must not return numbers: its rows may be moved, computed
with and joined with others on their way to the gates, where constants replace them. Code that reads
their values gets an error that names the table.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# as torch.compiler.disable, without importing the compiler, which takes a second
from torch._compile import _disable_dynamo
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..._common.errors import RemovedTableError
from ..._common.text import words

# In place of an absent number: logarithms, roots, quotients and their gradients are finite there.
STAND_IN = 0.5

# the same elements at the same places
_CASTS = frozenset(
    words(
        "alpha_dropout bfloat16 clone contiguous cpu cuda data detach double dropout "
        "feature_alpha_dropout float half to type type_as"
    )
)
# the same elements at other places
_MOVES = frozenset(
    words(
        "H T adjoint broadcast_to cat chunk column_stack concat concatenate diagonal dsplit "
        "dstack expand expand_as flatten flip gather getitem hsplit hstack index_select mH mT "
        "matrix_H moveaxis movedim narrow permute ravel repeat repeat_interleave reshape "
        "reshape_as roll select split split_with_sizes squeeze stack swapaxes swapdims t "
        "take_along_dim tensor_split tile transpose tril triu unbind unflatten unsqueeze view "
        "view_as vsplit vstack"
    )
)
# each element from those at its own place
_ELEMENTWISE = frozenset(
    words(
        "abs add addcdiv addcmul celu clamp cos div divide elu eq erf exp expm1 fill floordiv "
        "ge gelu gt hardsigmoid hardswish hardtanh isfinite isinf isnan le leaky_relu lerp log "
        "log1p logical_and logical_not logical_or logsigmoid lt masked_fill maximum minimum "
        "mish mod mul multiply nan_to_num ne neg pow prelu reciprocal relu relu6 remainder "
        "round rsqrt selu sigmoid sign silu sin softplus softsign sqrt square sub subtract tanh "
        "true_divide truediv where zero"
    )
)
# every element from all of them
_MIXTURES = frozenset(
    words(
        "addmm amax amin argmax argmin argsort avg_pool1d baddbmm bilinear bmm conv1d conv2d "
        "cosine_similarity cumprod cumsum einsum inner layer_norm linear log_softmax logsumexp "
        "matmul max max_pool1d mean median min mm mv norm normalize outer pad prod rms_norm "
        "scaled_dot_product_attention softmax sort std sum tensordot topk var"
    )
)
# a new tensor of the same kind
_BLANKS = frozenset(
    words(
        "empty_like full_like new_empty new_full new_ones new_zeros ones_like rand_like "
        "randn_like zeros_like"
    )
)
# properties that do not depend on values
_SETTINGS = frozenset(
    words(
        "dim element_size get_device hash is_complex is_contiguous is_floating_point "
        "is_inference is_same_size len ndimension nelement numel size storage_offset stride"
    )
)


_groups: list[frozenset[str]] = [frozenset()]  # sets of tables, each by its number
_numbers: dict[frozenset[str], int] = {frozenset(): 0}


def _number(tables: frozenset[str]) -> int:
    if tables not in _numbers:
        _groups.append(tables)
        _numbers[tables] = len(_groups) - 1
    return _numbers[tables]


class Absent(Tensor):
    """A tensor some or all of whose elements depend on removed tables.

    It has no memory of its own, so that code which bypasses Python cannot read it either.

    Attributes:
        known: The numbers, with a stand-in for each absent element.
        labels: The number of the set of tables that each element depends on; 0 is none.

    **Shape**: `known` and `labels` have the shape of the tensor.
    """

    known: Tensor
    labels: Tensor

    def __new__(cls, known: Tensor, labels: Tensor) -> "Absent":
        """Wrap numbers and labels of the same shape."""
        shell: Absent = Tensor._make_wrapper_subclass(
            cls, known.shape, dtype=known.dtype, device=known.device, strides=known.stride()
        )
        shell.known = known
        shell.labels = labels
        return shell

    @classmethod
    def of(cls, table: str, like: Tensor, shape: tuple[int, ...]) -> "Absent":
        """Return the tensor that stands for the rows of a removed table."""
        labels = torch.full(
            shape, _number(frozenset((table,))), dtype=torch.int32, device=like.device
        )
        return cls(like.new_full(shape, STAND_IN), labels)

    @classmethod
    @_disable_dynamo
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute with the known elements, and track the absent ones."""
        with torch._C.DisableTorchFunctionSubclass():
            return _Call(func, args, kwargs or {}).answer()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse calls that do not come from Python: of a scripted function, or of an extension."""
        raise RemovedTableError(_tables_in((args, kwargs)), _title(func))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Absent":
        return Absent(self.known.detach().clone(), self.labels)


def tables_of(labels: Tensor) -> frozenset[str]:
    """Return the tables that these elements depend on."""
    return frozenset().union(*(_groups[number] for number in torch.unique(labels).tolist()))


def refuse_absent(leaves: Iterable[Any], reader: str) -> None:
    """Raise if any of these values depends on a removed table."""
    for leaf in leaves:
        if isinstance(leaf, Absent):
            _refuse(leaf.labels, reader)


@_disable_dynamo
def present(x: Absent, kept: Tensor) -> Tensor:
    """Return the numbers of a tensor, or raise if one of the kept columns is absent.

    Args:
        x: The tensor, (B, ...).
        kept: The columns that are read, (...) of bool.
    """
    _refuse(x.labels * kept, "the gate of a kept field")
    return x.known


def _refuse(labels: Tensor, reader: str) -> None:
    if bool(labels.any()):
        raise RemovedTableError(tables_of(labels), reader)


class _Call:
    """One call of a function of torch with absent arguments.

    Args:
        func: The function.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.in_place, self.name = _plain_name(func)
        self.sources = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Absent)]

    def answer(self) -> Any:
        """Compute the result, or raise."""
        if self.name in _SETTINGS or (self._is_getter and self.name not in _MOVES | _CASTS):
            return self._setting()
        if "out" in self.kwargs or any(source.requires_grad for source in self.sources):
            raise self.refusal
        if self.in_place:
            return self._change()
        if self.name in _BLANKS and self._only_first:
            return self._run(_known)
        for names, labels_of in _RULES:
            if self.name in names:
                return self._result(labels_of(self))
        raise self.refusal

    @property
    def _is_getter(self) -> bool:
        return getattr(self.func, "__name__", "") == "__get__"

    @property
    def _only_first(self) -> bool:
        """Return whether only the first argument, or a tensor in it, is absent."""
        first = set(map(id, tree_leaves(self.args[:1])))
        return all(id(source) in first for source in self.sources)

    @property
    def refusal(self) -> RemovedTableError:
        """Return the error that names function and tables."""
        return RemovedTableError(_tables_in(self.sources), _title(self.name))

    def _setting(self) -> Any:
        found = self._run(_known)
        if isinstance(found, Tensor):
            raise self.refusal
        return found

    def _run(self, substitute: Callable[[Any], Any]) -> Any:
        args, kwargs = tree_map(substitute, (self.args, self.kwargs))
        return self.func(*args, **kwargs)

    def _change(self) -> Any:
        """Change a tensor in place; its absent elements stay absent, whatever is written there."""
        target = self.args[0]
        allowed = self.name in _ELEMENTWISE or self.name in ("setitem", "requires_grad")
        if not isinstance(target, Absent) or not allowed:
            raise self.refusal
        everything = bool((target.labels != 0).all())
        if len(self.sources) > 1 and not everything:
            raise self.refusal
        with torch.set_grad_enabled(torch.is_grad_enabled() and not everything):
            self._run(_known)
        return target

    def cast(self) -> Tensor:
        """Return the labels at the same places."""
        if not isinstance(self.args[0], Absent) or not self._only_first:
            raise self.refusal
        return self.args[0].labels

    def moved(self) -> Any:
        """Return the labels, moved like the elements; the places must not depend on absent ones."""
        if not self._only_first or any(isinstance(arg, torch.dtype) for arg in self.args):
            raise self.refusal
        return self.func(tree_map(_labels, self.args[0]), *self.args[1:], **self.kwargs)

    def joined(self) -> Tensor:
        """Return labels in which every element that is made of an absent one is absent."""
        values = tree_leaves((self.args, self.kwargs))
        leaves = [leaf for leaf in values if isinstance(leaf, Tensor)]
        labels = torch.stack(torch.broadcast_tensors(*map(_labels, leaves)))  # type: ignore[no-untyped-call]
        if len(self.sources) == 1:
            return labels.amax(0)
        return (labels != 0).any(0).int() * _number(_tables_in(self.sources))

    def mixed(self) -> None:
        """Return no labels: everything is absent."""

    def _result(self, labels: Any) -> Any:
        """Return the result with its labels; no gradient flows into absent results."""
        everything = labels is None or all(bool((part != 0).all()) for part in tree_leaves(labels))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not everything):
            found = self._run(_known)
        leaves, form = tree_flatten(found)
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise self.refusal
        marks = tree_leaves(labels)
        if labels is None:
            number = _number(_tables_in(self.sources))
            marks = [torch.full_like(leaf, number, dtype=torch.int32) for leaf in leaves]
        if [leaf.shape for leaf in leaves] != [mark.shape for mark in marks]:
            raise self.refusal
        return tree_unflatten([_wrap(*pair) for pair in zip(leaves, marks, strict=True)], form)


_RULES: tuple[tuple[frozenset[str], Callable[[_Call], Any]], ...] = (
    (_CASTS, _Call.cast),
    (_MOVES, _Call.moved),
    (_ELEMENTWISE, _Call.joined),
    (_MIXTURES, _Call.mixed),
)


def _wrap(known: Tensor, labels: Tensor) -> Tensor:
    return Absent(known, labels.to(known.device)) if bool(labels.any()) else known


def _known(leaf: Any) -> Any:
    return leaf.known if isinstance(leaf, Absent) else leaf


def _labels(leaf: Any) -> Any:
    if isinstance(leaf, Absent):
        return leaf.labels
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.zeros(leaf.shape, dtype=torch.int32, device=leaf.device)


def _tables_in(values: Any) -> frozenset[str]:
    absent = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Absent)]
    return frozenset().union(*(tables_of(leaf.labels) for leaf in absent))


def _plain_name(func: Any) -> tuple[bool, str]:
    """Return whether a function changes its first argument, and its name without underscores.

    The name of `__iadd__` is "add".
    """
    name = str(getattr(func, "__name__", func))
    if name == "__get__":
        return False, str(func.__self__.__name__)
    bare = name.strip("_")
    if name.startswith("__") and bare[1:] in _ELEMENTWISE and bare[0] in "ir":
        return bare[0] == "i", bare[1:]
    in_place = bare == "setitem" or (name.endswith("_") and not name.endswith("__"))
    return in_place, bare


def _title(func: Any) -> str:
    return f"{getattr(func, '__name__', func)}()"
