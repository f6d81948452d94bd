"""Remove embedding tables that only dropped columns read from a model that is fed constants.

Running examples shows which tables fill dropped columns and nothing else. What an example does not
show is refused: a removed table that is read after all raises an error.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._compile import _disable_dynamo

from ..._common.errors import RemovedTableError, SurgeryError
from ..._common.text import words
from ...sites.calls import Call
from ..trial.compare import leaves_of
from ..trial.run import fresh, run
from .absent import Absent, refuse_absent, tables_of
from .feed import Fed, Feed

_SETTINGS = words(
    "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse mode "
    "include_last_offset"
)


class NoTable(nn.Module):
    """Stands in place of a removed embedding table: it returns a tensor that refuses to be read.

    Args:
        table: The table that is removed.
        path: Its name in the model.
    """

    zero: Tensor

    def __init__(self, table: nn.Embedding | nn.EmbeddingBag, path: str) -> None:
        super().__init__()
        for name in _SETTINGS:
            if hasattr(table, name):
                setattr(self, name, getattr(table, name))
        self.path = path
        self.width = table.embedding_dim
        self.pools = isinstance(table, nn.EmbeddingBag)
        self.without_last = getattr(table, "include_last_offset", False)
        self.register_buffer("zero", table.weight.new_zeros(()), persistent=False)

    @_disable_dynamo  # absent elements must be followed in Python
    def forward(  # the names are those of the table
        self,
        input: Tensor,  # noqa: A002
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return a tensor of the shape that the table would return, which refuses to be read."""
        if isinstance(input, fx.Proxy):
            raise SurgeryError(
                f"the table {self.path} was removed by an earlier pruning that fed constants"
            )
        shape: tuple[int, ...] = tuple(input.shape)
        if self.pools and offsets is not None:
            shape = (offsets.shape[0] - self.without_last,)
        elif self.pools:
            shape = shape[:1]
        if torch.compiler.is_exporting():  # a program has no Python that could take another path
            return self.zero.repeat(*shape, self.width) * torch.nan
        return Absent.of(self.path, self.zero, (*shape, self.width))

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise RemovedTableError([self.path], ".weight")
        return super().__getattr__(name)


def remove_tables(small: nn.Module, paths: Iterable[str]) -> None:
    """Remove these tables from a model that is fed constants, in place."""
    for path in paths:
        table = small.get_submodule(path)
        assert isinstance(table, nn.Embedding | nn.EmbeddingBag)
        absent = NoTable(table, path)
        for name, child in table.named_children():  # the constants may sit here
            absent.add_module(name, child)
        for hook in table._forward_hooks.values():
            absent.register_forward_hook(hook)
        for alias, module in list(small.named_modules(remove_duplicate=False)):
            if module is table:
                small.set_submodule(alias, absent)
    small.register_forward_hook(_refuse_output)


@_disable_dynamo
def _refuse_output(model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Refuse an output that depends on a removed table."""
    with suppress(SurgeryError):  # an output that cannot be searched refuses where it is read
        refuse_absent(leaves_of(output), "the output")


def unread_tables(make: Callable[[bool], nn.Module], calls: list[Call]) -> list[str]:
    """Return the tables that reach dropped columns of the gates and nothing else.

    Args:
        make: Makes the model that is fed constants; True shares the weights of the old model.
        calls: Batches that the model takes; the first is tried in train mode too.
    """
    tables = _plain_tables(make(True))
    removed = set(tables)
    while removed:
        try:
            arrived = _arriving_tables(make(True), removed, calls)
            if removed == arrived:
                _train_without(make(False), removed, calls[0])
                break
        except RemovedTableError as error:
            removed -= error.tables
        else:
            removed = arrived
    return [path for path in tables if path in removed]


def _plain_tables(small: nn.Module) -> list[str]:
    """Return the tables without hooks of users, whose call only selects rows."""
    found = []
    for path, module in small.named_modules():
        if path and type(module) in (nn.Embedding, nn.EmbeddingBag) and _has_our_hooks_only(module):
            found.append(path)
    return found


def _has_our_hooks_only(table: nn.Module) -> bool:
    if table._forward_pre_hooks or table._backward_hooks or table._backward_pre_hooks:
        return False
    hooks = table._forward_hooks.values()
    return all(isinstance(getattr(hook, "__self__", None), Fed) for hook in hooks)


def _arriving_tables(small: nn.Module, removed: set[str], calls: list[Call]) -> set[str]:
    """Run the model without these tables, and return which of them arrive at the gates."""
    remove_tables(small, removed)
    arrived: set[str] = set()

    def see(_: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(args[0], Absent):
            arrived.update(tables_of(args[0].labels))

    for module in small.modules():
        if isinstance(module, Feed):
            module.register_forward_pre_hook(see)
    for call in calls:
        run(small, call)
    return arrived


def _train_without(small: nn.Module, removed: set[str], call: Call) -> None:
    """Run a copy of the model in train() without these tables; raise if it reads one of them."""
    remove_tables(small, removed)
    args, kwargs = fresh(call)
    try:
        with torch.random.fork_rng():
            small.train()(*args, **kwargs)
    except RemovedTableError:
        raise
    except Exception:  # a batch that cannot be trained on, such as a single row, proves nothing
        return
