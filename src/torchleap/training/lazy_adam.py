"""LazyAdam: Adam for tables of which a batch reads few rows, at the cost of those rows."""

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
from ..native import library as native

WINDOW = 512  # steps after which a row without gradients stands still: 0.9005 ** 512 is nothing
LONGEST = (
    1 << 20
) - 1  # steps that are counted before they are counted from 0 again: 16 bytes each


class LazyAdam(Optimizer):
    """What `torch.optim.Adam` does to a table with dense gradients, for a table with sparse ones.

    Adam moves every row in every step: one whose id is not in the batch goes on by its momentum. How far, in all the steps that
    a row has missed, is a sum that depends on its last step alone; so a row is moved when it is next read, and all of them by
    `settle()`. Sparse and lazy Adams elsewhere leave these steps out, and so move rare rows about ten times less.

    Args:
        tables: With `sparse=True`. They get a hook that brings the rows of a batch up to date; `release()` takes it away.
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
        weights = list(dict.fromkeys(by_table))  # two tables may share theirs
        super().__init__(weights, {"lr": lr, "betas": betas, "eps": eps})
        self._first: dict[Tensor, Tensor] = {
            weight: torch.zeros(len(weight), dtype=torch.int32)
            for weight in weights
            if _is_native(weight)
        }
        for weight in weights:
            rows, width = weight.shape
            self.state[weight] = {
                "step": 0,
                "base": 0,  # the step from which the next two count
                "moments": weight.new_zeros(
                    rows, 2, width
                ),  # the averages of the gradient and of its square, side by side
                "last": torch.zeros(
                    rows, dtype=torch.int32, device=weight.device
                ),  # the step up to which a row has moved
                "reach": torch.zeros(
                    WINDOW, 2, dtype=torch.float64, device=weight.device
                ),  # by such a step, see _reach_further
            }
        self._settled = True
        self._hooks = [
            table.register_forward_pre_hook(partial(self._before_look_up, weight))
            for table, weight in zip(tables, by_table, strict=True)
        ]

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move the rows that the batch has read; the others later. Gradients of a row that comes twice are added up in place."""
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
        """Bring all rows up to date, before the weights are read by anything but the tables' own look-ups."""
        if not self._settled:
            for group in self.param_groups:
                for weight in group["params"]:
                    self._catch_up(weight, torch.arange(len(weight), device=weight.device))
        self._settled = True

    def release(self) -> None:
        """Bring all rows up to date, and take the hooks away."""
        self.settle()
        for hook in self._hooks:
            hook.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on; the tables are as they were saved, with some rows behind."""
        for weight, saved in zip(self.state, state_dict["state"].values(), strict=True):
            _check_state(weight, saved)
        super().load_state_dict(state_dict)
        for weight, saved in zip(self.state, state_dict["state"].values(), strict=True):
            for name in ("last", "reach"):  # PyTorch has given them the weights' dtype
                self.state[weight][name] = saved[name].to(weight.device, copy=True)
            self.state[weight].setdefault("base", 0)  # of a state of before there was one
        self._settled = False

    @torch.no_grad()
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_look_up(self, weight: Tensor, table: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0].flatten()
        if not self._settled and len(rows):
            first, last = rows.aminmax()
            if first < 0 or last >= len(weight):  # before the native kernel writes there
                raise IndexError(
                    f"Expected ids from 0 to {len(weight) - 1:,}, but found {int(first)} to {int(last)}."
                )
            self._catch_up(weight, rows)

    def _catch_up(self, weight: Tensor, rows: Tensor) -> None:
        """Move rows as if they had had gradients of 0 since their last step; a row may come more than once."""
        state, (beta1, beta2) = self.state[weight], self.param_groups[0]["betas"]
        moments, last, now = state["moments"], state["last"], state["step"] - state["base"]
        if _is_native(weight):
            rows = rows.to(torch.int64).contiguous()
            tensors = (weight, moments, last, state["reach"])
            sizes = (rows.data_ptr(), len(rows), weight.shape[1])
            _functions().catch_up(
                *sizes, *(one.data_ptr() for one in tensors), now, beta1, beta2, *_threads()
            )
            return
        since = last[rows]
        reach, drag = state["reach"][since].to(weight.dtype).unsqueeze(2).unbind(1)  # (n, 1) each
        missed = (now - since).unsqueeze(1).to(weight.dtype)
        first, second = moments[rows].unbind(1)  # (n, width) each
        eps = torch.where(reach > 0, drag / reach, 1.0)
        weight[rows] = weight[rows] - reach * first / (second.sqrt() + eps)
        moments[rows] = torch.stack([first * beta1**missed, second * beta2**missed], dim=1)
        last[rows] = now

    def _step_one(self, weight: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if (
            weight.grad is not None and ranks.count() > 1
        ):  # rows that other ranks have read, and this one has not
            self._catch_up(weight, weight.grad._indices()[0])
        if state["step"] - state["base"] == LONGEST:
            self._catch_up(weight, torch.arange(len(weight), device=weight.device))
            state.update(
                base=state["step"],
                last=torch.zeros_like(state["last"]),
                reach=state["reach"].new_zeros(WINDOW, 2),
            )
        state["step"] += 1
        beta1, beta2 = group["betas"]
        correction = math.sqrt(1 - beta2 ** state["step"])
        step = group["lr"] * correction / (1 - beta1 ** state["step"])
        eps = group["eps"] * correction
        self._reach_further(state, step, eps, group)
        if weight.grad is not None:
            self._move(weight, weight.grad, state, group, step, eps)

    def _move(
        self,
        weight: Tensor,
        gradient: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        step: float,
        eps: float,
    ) -> None:
        """Adam's step for the rows with a gradient."""
        (beta1, beta2), moments, last, now = (
            group["betas"],
            state["moments"],
            state["last"],
            state["step"] - state["base"],
        )
        if _is_native(weight):
            rows, values = gradient._indices()[0].contiguous(), gradient._values().contiguous()
            tensors = (values, weight, moments, last, self._first[weight])
            sizes = (rows.data_ptr(), len(rows), weight.shape[1])
            _functions().move(
                *sizes,
                *(one.data_ptr() for one in tensors),
                now,
                beta1,
                beta2,
                step,
                eps,
                *_threads(),
            )
            return
        whole = gradient.coalesce()
        rows, values = whole.indices()[0], whole.values()
        first = moments[rows, 0].lerp_(values, 1 - beta1)
        second = moments[rows, 1].lerp_(values.square(), 1 - beta2)
        weight[rows] = weight[rows] - step * first / (second.sqrt() + eps)
        moments[rows] = torch.stack([first, second], dim=1)
        last[rows] = now

    def _reach_further(
        self, state: dict[str, Any], step: float, eps: float, group: dict[str, Any]
    ) -> None:
        """How far rows have to go by now that have moved up to each step: the sum of step * ratio**missed, and eps weighed by it.

        In a step k after its last, a row with averages m and v moves by step * (b1**k m) / (sqrt(b2**k v) + eps).
        """
        now = state["step"] - state["base"]
        if now >= len(state["reach"]):
            state["reach"] = torch.cat([state["reach"], torch.zeros_like(state["reach"])])
        window = state["reach"][max(0, now - WINDOW) : now]
        window.addcmul_(
            _falls(*group["betas"], window.device)[-len(window) :],
            window.new_tensor([step, step * eps]),
        )


def _check_state(weight: Tensor, saved: dict[str, Any]) -> None:
    """Refuse a state that does not belong to a table: the native kernel trusts its shapes, and its steps as places."""
    rows, width = weight.shape
    now = saved["step"] - saved.get("base", 0)
    moments, last, reach = saved["moments"], saved["last"], saved["reach"]
    plain = all(
        tensor.layout == torch.strided and tensor.is_contiguous()
        for tensor in (moments, last, reach)
    )
    fits = plain and (moments.shape, last.shape) == ((rows, 2, width), (rows,)) and reach.dim() == 2
    fits = (
        fits
        and (last.dtype, reach.dtype) == (torch.int32, torch.float64)
        and moments.is_floating_point()
    )
    fits = (
        fits and is_whole(now) and 0 <= now <= LONGEST and now < len(reach) and reach.shape[1] == 2
    )
    if not fits or (rows and not 0 <= int(last.min()) <= int(last.max()) <= now):
        raise TorchleapError(
            f"The state of LazyAdam is not of a table of {rows:,} rows, {width} wide."
        )


@cache
def _falls(beta1: float, beta2: float, device: torch.device) -> Tensor:
    """How much less a row moves in each step after its last, latest last; and that times the growth of eps, (WINDOW, 2)."""
    missed = torch.arange(WINDOW, 0, -1, dtype=torch.float64, device=device)
    moved = (beta1 / math.sqrt(beta2)) ** missed
    return torch.stack([moved, moved * beta2 ** (-missed / 2)], dim=1)


class _Functions:
    """LazyAdam's part of the native kernel."""

    def __init__(self, library: Any) -> None:
        sizes: list[Any] = [c_void_p, c_int64, c_int64]
        betas: list[Any] = [c_int32, c_double, c_double]
        threads: list[Any] = [c_int, c_void_p]
        self.catch_up = library.torchleap_adam_catch_up
        self.catch_up.argtypes, self.catch_up.restype = (
            [*sizes, *[c_void_p] * 4, *betas, *threads],
            None,
        )
        self.move = library.torchleap_adam_move
        self.move.argtypes, self.move.restype = (
            [*sizes, *[c_void_p] * 5, *betas, c_double, c_double, *threads],
            None,
        )


@cache
def _functions() -> Any:
    """None where there is no native kernel."""
    kernel = native.load()
    return None if isinstance(kernel, str) else _Functions(kernel.functions)


def _is_native(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.is_contiguous()
        and _functions() is not None
    )


def _threads() -> tuple[int, int | None]:
    kernel = native.load()
    assert not isinstance(kernel, str)
    return torch.get_num_threads(), kernel.parallel
