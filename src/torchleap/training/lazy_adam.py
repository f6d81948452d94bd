"""LazyAdam: Adam for large tables, at the cost of the few rows that a batch reads."""

import copy
import math
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int, c_int32, c_int64, c_void_p
from functools import cache, partial
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from .._common.checks import is_whole
from .._common.errors import TorchleapError
from ..distributed import ranks
from ..native.library import Library, load
from ..surgery.optimizers import Kept, parameters_of

WINDOW = 512  # steps after which a row without gradients no longer moves: 0.9005 ** 512 is about 0
LONGEST = (1 << 20) - 1  # steps that are counted before the count restarts at 0: 16 bytes per step


class LazyAdam(Optimizer):
    """Does to tables with sparse gradients what `torch.optim.Adam` does to dense ones.

    Adam moves every row in every step: a row whose id is not in the batch continues by its
    momentum. How far it moves in all the steps that it has missed is a sum that depends only on
    its last step; so a row is moved when it is next read, and all rows are moved by `settle()`.
    Other sparse and lazy Adams skip these moves, and so move rare rows about ten times less.

    **Shape**

    - The weight of each table: (rows, width), float32 on the CPU for the native kernel, else any.

    Args:
        tables: Embeddings or embedding bags with `sparse=True`. Each one gets a hook that brings
            the rows of a batch up to date before they are read; `release()` removes it.
        lr: The learning rate.
        betas: The decay of the averages of the gradient and of its square, as in Adam.
        eps: The number that is added to the denominator, as in Adam.

    >>> table = nn.Embedding(1000, 8, sparse=True)
    >>> optimizer = LazyAdam([table], lr=1e-2)
    >>> table(torch.tensor([3, 5, 3])).sum().backward()
    >>> optimizer.step()
    >>> optimizer.settle()  # before the weights are read directly, for example to save them
    """

    def __init__(
        self,
        tables: Sequence[nn.Module],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        by_table = [table.get_parameter("weight") for table in tables]
        weights = list(dict.fromkeys(by_table))  # two tables may have the same weight
        super().__init__(weights, {"lr": lr, "betas": betas, "eps": eps})
        self._first: dict[Tensor, Tensor] = {}  # memory that the native kernel works in
        for weight in weights:
            self.state[weight] = _fresh_state(weight)
            if _is_native(weight):
                self._first[weight] = torch.zeros(len(weight), dtype=torch.int32)
        self._settled = True
        self._hooks = [
            table.register_forward_pre_hook(partial(self._before_lookup, weight))
            for table, weight in zip(tables, by_table, strict=True)
        ]

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move the rows that the batch has read; the others move when they are next read.

        Gradients of a row that the batch contains twice are added up in place.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                self._step_one(weight, self.state[weight], group)
        self._settled = False
        return loss

    @torch.no_grad()
    def settle(self) -> None:
        """Bring all rows up to date, before anything but the tables reads the weights."""
        if not self._settled:
            for group in self.param_groups:
                for weight in group["params"]:
                    self._catch_up_all(weight)
        self._settled = True

    def release(self) -> None:
        """Bring all rows up to date, and remove the hooks from the tables."""
        self.settle()
        for hook in self._hooks:
            hook.remove()

    def for_pruned(self, kept: Kept) -> "LazyAdam":
        """Return one for the tables of a pruned model, with the state of the rows kept.

        Args:
            kept: The parameters that are left.
        """
        new = {kept.new[name]: name for name in kept.names.values()}
        modules = kept.pruned.modules()
        tables = [
            one for one in modules if is_sparse_table(one) and one.get_parameter("weight") in new
        ]
        group = self.param_groups[0]
        carried = LazyAdam(tables, lr=group["lr"], betas=group["betas"], eps=group["eps"])
        weights = {kept.names[id(one)]: one for one in parameters_of(self) if id(one) in kept.names}
        states = {}
        for place, weight in enumerate(parameters_of(carried)):
            name = new[weight]
            states[place] = _kept_rows(self.state[weights[name]], weights[name], kept, name)
        carried.load_state_dict({**carried.state_dict(), "state": states})
        return carried

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the averages and steps of all rows, for tables as they were saved with them."""
        saved_states = list(state_dict["state"].values())
        for weight, saved in zip(self.state, saved_states, strict=True):
            _check_state(weight, saved)
        super().load_state_dict(state_dict)
        for weight, saved in zip(self.state, saved_states, strict=True):
            state = self.state[weight]
            for name in ("last", "reach"):  # PyTorch has given them the weights' dtype
                state[name] = saved[name].to(weight.device, copy=True)
            state.setdefault("base", 0)  # states of earlier versions have none
        self._settled = False

    @torch.no_grad()
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_lookup(self, weight: Tensor, table: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Bring the rows that a table is about to read up to date."""
        rows = inputs[0].flatten()
        if self._settled or not len(rows):
            return
        first, last = rows.aminmax()
        if first < 0 or last >= len(weight):  # before the native kernel writes there
            raise IndexError(
                f"Expected ids from 0 to {len(weight) - 1:,}, "
                f"but found {int(first)} to {int(last)}."
            )
        self._catch_up(weight, rows)

    def _catch_up_all(self, weight: Tensor) -> None:
        self._catch_up(weight, torch.arange(len(weight), device=weight.device))

    def _catch_up(self, weight: Tensor, rows: Tensor) -> None:
        """Move rows as if they had had gradients of 0 since their last step.

        Args:
            weight: The weight of the table, (table rows, width).
            rows: The numbers of the rows, (n,); a row may appear more than once.
        """
        state = self.state[weight]
        beta1, beta2 = self.param_groups[0]["betas"]
        now = state["step"] - state["base"]
        if _is_native(weight):
            _native().catch_up(rows, weight, state, now, beta1, beta2)
            return
        since = state["last"][rows]
        reach, drag = state["reach"][since].to(weight.dtype).unsqueeze(2).unbind(1)  # (n, 1) each
        missed = (now - since).unsqueeze(1).to(weight.dtype)
        first, second = state["moments"][rows].unbind(1)  # (n, width) each
        eps = torch.where(reach > 0, drag / reach, 1.0)
        weight[rows] = weight[rows] - reach * first / (second.sqrt() + eps)
        decayed = [first * beta1**missed, second * beta2**missed]
        state["moments"][rows] = torch.stack(decayed, dim=1)
        state["last"][rows] = now

    def _step_one(self, weight: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Count a step of one table, and move the rows with a gradient."""
        gradient = weight.grad
        if gradient is not None and ranks.is_distributed():
            self._catch_up(weight, gradient._indices()[0])  # rows that only other ranks have read
        if state["step"] - state["base"] == LONGEST:
            self._restart_count(weight, state)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        correction = math.sqrt(1 - beta2 ** state["step"])
        step = group["lr"] * correction / (1 - beta1 ** state["step"])
        eps = group["eps"] * correction
        self._extend_reach(state, step, eps, group)
        if gradient is not None:
            self._move(weight, gradient, group, step, eps)

    def _restart_count(self, weight: Tensor, state: dict[str, Any]) -> None:
        """Count the steps from 0 again, so that the memory for them stays bounded."""
        self._catch_up_all(weight)
        state["base"] = state["step"]
        state["last"] = torch.zeros_like(state["last"])
        state["reach"] = state["reach"].new_zeros(WINDOW, 2)

    def _move(
        self, weight: Tensor, gradient: Tensor, group: dict[str, Any], step: float, eps: float
    ) -> None:
        """Do Adam's step for the rows with a gradient, with a step size that is bias-corrected."""
        state = self.state[weight]
        beta1, beta2 = group["betas"]
        now = state["step"] - state["base"]
        if _is_native(weight):
            numbers = (now, beta1, beta2, step, eps)
            _native().move(gradient, weight, state, self._first[weight], numbers)
            return
        gradient = gradient.coalesce()
        rows = gradient.indices()[0]
        values = gradient.values()
        moments = state["moments"]
        first = moments[rows, 0].lerp_(values, 1 - beta1)
        second = moments[rows, 1].lerp_(values.square(), 1 - beta2)
        weight[rows] = weight[rows] - step * first / (second.sqrt() + eps)
        moments[rows] = torch.stack([first, second], dim=1)
        state["last"][rows] = now

    def _extend_reach(
        self, state: dict[str, Any], step: float, eps: float, group: dict[str, Any]
    ) -> None:
        """Add a step to the distance that rows still have to move, by the step of their last move.

        In a step k after its last, a row with averages m and v moves by
        step * (b1**k m) / (sqrt(b2**k v) + eps). Its reach is the sum of step * ratio**k over the
        steps that it has missed, and its drag is eps weighted by the same terms.
        """
        now = state["step"] - state["base"]
        if now >= len(state["reach"]):
            state["reach"] = torch.cat([state["reach"], torch.zeros_like(state["reach"])])
        window = state["reach"][max(0, now - WINDOW) : now]
        decay = _decay(*group["betas"], window.device)[-len(window) :]
        window.addcmul_(decay, window.new_tensor([step, step * eps]))


def _fresh_state(weight: Tensor) -> dict[str, Any]:
    """Return the state of a table before its first step."""
    rows, width = weight.shape
    return {
        "step": 0,
        "base": 0,  # the step from which `last` and `reach` count
        # the averages of the gradient and of its square, side by side
        "moments": weight.new_zeros(rows, 2, width),
        # the step up to which each row has moved
        "last": torch.zeros(rows, dtype=torch.int32, device=weight.device),
        # by such a step, the reach and the drag of `_extend_reach`
        "reach": torch.zeros(WINDOW, 2, dtype=torch.float64, device=weight.device),
    }


def is_sparse_table(module: nn.Module) -> bool:
    """Return whether a module is a table of embeddings with sparse gradients."""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse


def _kept_rows(state: dict[str, Any], old: Tensor, kept: Kept, name: str) -> dict[str, Any]:
    """Return the state of the rows and columns of a table that were kept."""
    first, second = state["moments"].unbind(1)  # (rows, width) each
    averages = (
        kept.entry("exp_avg", first, old, name),
        kept.entry("exp_avg_sq", second, old, name),
    )
    last = state["last"]
    origin = kept.origins.get(name)
    if origin is not None and origin.index[0] is not None:
        last = last.index_select(0, origin.index[0].to(last.device))
    moved = {"moments": torch.stack(averages, dim=1), "last": last.clone()}
    return {**copy.deepcopy({**state, "moments": None, "last": None}), **moved}


def _check_state(weight: Tensor, saved: dict[str, Any]) -> None:
    """Refuse a saved state that does not fit a table."""
    if not _fits(weight, saved):
        rows, width = weight.shape
        raise TorchleapError(
            f"The state of LazyAdam is not of a table of {rows:,} rows, {width} wide."
        )


def _fits(weight: Tensor, saved: dict[str, Any]) -> bool:
    """Return whether a state fits a table.

    The native kernel trusts its shapes, and uses its steps as indices.
    """
    rows, width = weight.shape
    now = saved["step"] - saved.get("base", 0)
    moments, last, reach = saved["moments"], saved["last"], saved["reach"]
    for tensor in (moments, last, reach):
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            return False
    if moments.shape != (rows, 2, width) or not moments.is_floating_point():
        return False
    if last.shape != (rows,) or last.dtype != torch.int32:
        return False
    if reach.dim() != 2 or reach.shape[1] != 2 or reach.dtype != torch.float64:
        return False
    if not is_whole(now) or not 0 <= now <= LONGEST or now >= len(reach):
        return False
    return rows == 0 or 0 <= int(last.min()) <= int(last.max()) <= now


@cache
def _decay(beta1: float, beta2: float, device: torch.device) -> Tensor:
    """Return the decay of a row's moves by the steps since its last, and of eps, (WINDOW, 2).

    The longest wait comes first. The second column is the first one times the growth of eps
    relative to the denominator.
    """
    missed = torch.arange(WINDOW, 0, -1, dtype=torch.float64, device=device)
    moved = (beta1 / math.sqrt(beta2)) ** missed
    return torch.stack([moved, moved * beta2 ** (-missed / 2)], dim=1)


class _Native:
    """The functions of native/lazy_adam.c with their signatures."""

    def __init__(self, library: Library) -> None:
        rows = [c_void_p, c_int64, c_int64]  # their numbers, how many, and the width of the table
        now_and_betas = [c_int32, c_double, c_double]
        threads = [c_int, c_void_p]
        self._parallel = library.parallel
        self._catch_up = library.function(
            "adam_catch_up", [*rows, *[c_void_p] * 4, *now_and_betas, *threads]
        )
        self._move = library.function(
            "adam_move", [*rows, *[c_void_p] * 5, *now_and_betas, c_double, c_double, *threads]
        )

    def catch_up(
        self,
        rows: Tensor,
        weight: Tensor,
        state: dict[str, Any],
        now: int,
        beta1: float,
        beta2: float,
    ) -> None:
        """Do what `LazyAdam._catch_up` defines."""
        rows = rows.to(torch.int64).contiguous()
        self._catch_up(
            rows.data_ptr(),
            len(rows),
            weight.shape[1],
            weight.data_ptr(),
            state["moments"].data_ptr(),
            state["last"].data_ptr(),
            state["reach"].data_ptr(),
            now,
            beta1,
            beta2,
            torch.get_num_threads(),
            self._parallel,
        )

    def move(
        self,
        gradient: Tensor,
        weight: Tensor,
        state: dict[str, Any],
        first: Tensor,
        numbers: tuple[float, ...],
    ) -> None:
        """Do what `LazyAdam._move` defines; `numbers` are now, the betas, step size and eps."""
        rows = gradient._indices()[0].contiguous()
        values = gradient._values().contiguous()
        self._move(
            rows.data_ptr(),
            len(rows),
            weight.shape[1],
            values.data_ptr(),
            weight.data_ptr(),
            state["moments"].data_ptr(),
            state["last"].data_ptr(),
            first.data_ptr(),
            *numbers,
            torch.get_num_threads(),
            self._parallel,
        )


@cache
def _native() -> Any:
    """Return the native functions, or None where there is no compiled library."""
    library = load()
    if library is None:
        return None
    return _Native(library)


def _is_native(weight: Tensor) -> bool:
    """Return whether the native kernel moves the rows of this table."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.is_contiguous()
        and _native() is not None
    )
