"""The price path: a price in units of the loss that rises until one gate after the other closes.

With a model that adapts, a gate stays open while the price is below twice the loss that a refitted
model would pay without the field, and collapses beyond (docs/theory.md). So the order in which
gates close under a rising price is the order of their worth, and the held-out loss that each one
costs on its way from open to closed is the worth itself.
"""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn.functional import softshrink
from torch.optim.optimizer import Optimizer

from .._common.errors import TorchleapError
from .._common.states import check_tensors, expect
from ..distributed import ranks
from .leap import LeAP

# In units of the logit theta / tau, in which a gate moves
OPEN = 5.0  # an open gate: 0.9933
SHUT = -1.0  # a gate that closes for good: 0.27
CLOSED = -100.0  # a closed gate: 0
LOWEST = -7.5  # that a gate can reach before it is closed

BETAS = (0.95, 0.99)  # the decay of the averages of the gradient and of its square
NOISE = 0.16  # the standard error of the first average, in units of the spread of single gradients
UNCLEAR = 0.5  # standard errors of the slope that do not move a gate
CLEARLY = 2.0  # standard errors of the slope beyond which a gate moves while the price waits
HARMFUL = 3.0  # times faster than by the price alone a field closes that does harm
ROUNDING = 1e-4  # of a logit
SMALLEST = 1e-30  # standard error, of a field that never varies
TENSORS = ("slope", "square", "worth", "variance", "distance", "moved", "is_open")


def rest_of_way(gate: Tensor) -> Tensor:
    """Return what a gate still has to cost on its way to 0, in units of its present slope, (G,).

    With a model that adapts, the loss is dJ (1 - g)^2 / (g^2 + (1 - g)^2) above its minimum
    (docs/theory.md): it is steepest at 0.5 and flat at 0, so that the rest is less than g.

    >>> round(float(rest_of_way(torch.tensor(0.5))), 3)
    0.25
    """
    spread = gate.square() + (1 - gate).square()
    return (gate * spread / (2 * (1 - gate).clamp_min(1e-12))).clamp_max(1.0)


class PathOptimizer(Optimizer):
    """Move gates against a price, close them for good, and measure what each closing costs.

    With m and v the averages of the gradient of the loss on theta and of its square, a step is

        push  = price * cost * g (1 - g) / tau
        error = 0.16 sqrt(v)                                             the standard error of m
        theta = theta - lr * clip(shrink(m + push, error / 2) / (error + push), -1, 3)

    where shrink(x, y) is x moved towards 0 by y. A gate moves at full speed as soon as its field is
    clearly worth less than the price, or more, however noisy the field is, and not by chance. Only
    a field that does harm, m > 0, can close faster than by the price: before the model has
    memorised it any further. While the price waits, a gate moves only by a slope beyond two
    standard errors.

    The worth of field i is the line integral of dL/dg_i over the way of its gate. Each piece of
    the way is multiplied by the gradient of the *next* batch, which had no part in choosing it.

    Args:
        gates: The gates to move.
        lr: How far a gate moves per step, in logits.
        optimism: How much it counts against a field that it helps on train rows more than on
            held-out rows, see `GateOptimizer`.
        costs: The cost of each gate relative to the mean, (G,); None prices all gates equally.

    Attributes:
        price: The price of an open gate of cost 1, in the unit of the loss; set before each step.
        is_waiting: Whether the price waits; set before each step.
    """

    def __init__(
        self, gates: LeAP, *, lr: float, optimism: float, costs: Tensor | None = None
    ) -> None:
        self._gates = gates
        super().__init__([gates.theta], {"lr": lr, "optimism": optimism})
        gates.known_fields()
        like = gates.free
        self.price = 0.0
        self.is_waiting = False
        self.count = 0
        self.costs = torch.ones_like(like) if costs is None else costs.to(like)
        self.tensors = {name: torch.zeros_like(like) for name in TENSORS}
        self.tensors["is_open"].fill_(1.0)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Measure the last move of each gate, and make the next one.

        Args:
            closure: Not supported: the gradient has to be there.
        """
        if closure is not None:
            raise TorchleapError("The optimizer of a price path takes no closure.")
        self._gates.wait_for_ranks()
        theta = self.param_groups[0]["params"][0]
        signal = self._signal(self._complete(theta.grad))
        state = self.tensors
        self.count += 1
        state["slope"].lerp_(signal, 1 - BETAS[0])
        state["square"].lerp_(signal.square(), 1 - BETAS[1])
        mean, square = self._averages()
        logit = self.logits()
        per_gate = self._slope(logit)  # dg / dtheta
        self._measure(signal / per_gate, square / per_gate.square())
        price = 0.0 if self.is_waiting else self.price
        push = price * self.costs * per_gate
        self._gates.note_pressure()
        moved = self._moved(logit, mean, NOISE * square.sqrt(), push)
        is_moving = self.is_moving()
        moved = torch.where(is_moving, moved, logit)
        state["moved"] = torch.sigmoid(moved) - torch.sigmoid(logit)
        self._write(moved)
        return None

    @property
    def is_open(self) -> Tensor:
        """Return for each gate whether it is open, (G,)."""
        return self.tensors["is_open"] > 0

    def is_moving(self) -> Tensor:
        """Return for each gate whether it is open and may close, (G,)."""
        return self.is_open & (self._gates.free > 0)

    @torch.no_grad()
    def move(self, speed: Tensor) -> bool:
        """Move gates that may close, whatever their gradient.

        Args:
            speed: How far each logit moves, (G,), in units of the learning rate; above 0 opens.

        Returns:
            Whether any of them has moved.
        """
        self._gates.note_pressure()
        logits = self.logits()
        moved = (logits + self.param_groups[0]["lr"] * speed).clamp(LOWEST, OPEN)
        moved = torch.where(self.is_moving(), moved, logits)
        self._write(moved)
        return bool(((moved - logits).abs() > ROUNDING).any())

    def ready_to_close(self) -> list[int]:
        """Return the gates that have fallen far enough to close for good, the least worth first."""
        ready = self.is_moving() & (self.logits() < SHUT)
        worth = self.current_worth()
        return sorted(ready.nonzero().flatten().tolist(), key=lambda gate: float(worth[gate]))

    @torch.no_grad()
    def close(self, gate: int) -> None:
        """Close a gate for good, after `measure_rest`."""
        self.tensors["is_open"][gate] = 0.0
        self.tensors["moved"][gate] = 0.0
        logits = self.logits()
        logits[gate] = CLOSED
        self._write(logits)

    def forget(self, chosen: Tensor) -> None:
        """Clear the averages of gates that were reset from outside.

        Args:
            chosen: For each gate whether it was reset, (G,).
        """
        for name in ("slope", "square", "moved"):
            self.tensors[name].masked_fill_(chosen, 0.0)

    @torch.no_grad()
    def measure_rest(self, gate: int) -> None:
        """Add the rest of the way of a gate to its worth, by the present slope."""
        mean, square = self._averages()
        logits = self.logits()
        rest = rest_of_way(torch.sigmoid(logits))[gate]
        per_gate = self._slope(logits)[gate]
        error = NOISE**2 * square[gate] / per_gate.square()
        self.tensors["worth"][gate] -= mean[gate] / per_gate * rest
        self.tensors["variance"][gate] += error * rest.square()
        self.tensors["distance"][gate] -= (square[gate].sqrt() / per_gate) * rest
        self.tensors["moved"][gate] = 0.0

    def current_worth(self) -> Tensor:
        """Return the worth measured so far plus the slope times the rest of the way, (G,)."""
        mean, _ = self._averages()
        logits = self.logits()
        rest = -mean / self._slope(logits) * rest_of_way(torch.sigmoid(logits))
        return self.tensors["worth"] + torch.where(self.tensors["is_open"] > 0, rest, 0.0)

    def deviations(self, batches: int | None) -> Tensor:
        """Return the standard error of each measured worth, (G,).

        Args:
            batches: How many different held-out batches there are: rows that come again add no
                information, so that their chance stays in the sum over the way of a gate (and
                cancels where the gate goes back). None is a stream, where every row is new.
        """
        variance = self.tensors["variance"].clone()
        if batches is not None:
            variance += self.tensors["distance"].square() / max(1, batches)
        return variance.sqrt()

    def logits(self) -> Tensor:
        """Return theta / tau of all gates, (G,), also of sharded ones."""
        theta = self._complete(self.param_groups[0]["params"][0].detach())
        return theta / self._gates.settings.temperature

    def path_state(self) -> dict[str, Any]:
        """Return the state of the path, which is the same on all ranks."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return {"tensors": tensors, "price": self.price, "count": self.count}

    def load_path_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `path_state` returned, if it fits these gates."""
        check_tensors(state["tensors"], self.tensors, "the price path")
        expect(isinstance(state["count"], int), "the price path has no count of steps")
        device = self._gates.free.device
        self.tensors = {name: one.clone().to(device) for name, one in state["tensors"].items()}
        self.price = float(state["price"])
        self.count = state["count"]

    def _moved(self, logit: Tensor, mean: Tensor, error: Tensor, push: Tensor) -> Tensor:
        """Return the logits after a step, (G,).

        Args:
            logit: The logits before it, (G,).
            mean: The average gradient of the loss, (G,).
            error: Its standard error, (G,).
            push: The gradient of the price, (G,); 0 while the price waits.
        """
        clearly = softshrink(mean / error.clamp_min(SMALLEST), CLEARLY)
        total = mean + push
        beyond_noise = (total.abs() - UNCLEAR * error).clamp_min(0)
        under_price = total.sign() * beyond_noise / (error + push).clamp_min(SMALLEST)
        speed = torch.where(push > 0, under_price, clearly)
        rate: float = self.param_groups[0]["lr"]
        return (logit - rate * speed.clamp(-1, HARMFUL)).clamp(LOWEST, OPEN)

    def _averages(self) -> tuple[Tensor, Tensor]:
        """Return the averages of the gradient and of its square without the bias of the start."""
        count = max(1, self.count)
        mean = self.tensors["slope"] / (1 - BETAS[0] ** count)
        square = self.tensors["square"] / (1 - BETAS[1] ** count)
        return mean, square

    def _signal(self, gradient: Tensor) -> Tensor:
        """Return the gradient with the correction for memorised fields, (G,)."""
        on_train = self._gates.context.train_gradient
        if on_train is None:
            return gradient
        optimism = self.param_groups[0]["optimism"]
        signal: Tensor = gradient + optimism * (gradient - self._complete(on_train))
        return signal

    def _slope(self, logit: Tensor) -> Tensor:
        """Return g (1 - g) / tau, the derivative of each gate with respect to theta, (G,)."""
        gate = torch.sigmoid(logit)
        return (gate * (1 - gate) / self._gates.settings.temperature).clamp_min(1e-12)

    def _measure(self, slope: Tensor, square: Tensor) -> None:
        """Add the last move of each gate times the fresh slope of the loss to its worth."""
        moved = self.tensors["moved"]
        has_moved = moved != 0  # a closed gate has no slope, by which the square was divided
        slope = torch.where(has_moved, slope, 0.0)
        square = torch.where(has_moved, square, 0.0)
        self.tensors["worth"] += slope * moved
        self.tensors["variance"] += square * moved.square()
        self.tensors["distance"] += square.sqrt() * moved

    def _complete(self, tensor: Tensor | None) -> Tensor:
        """Return a tensor of all gates, (G,), on every rank."""
        theta = self.param_groups[0]["params"][0]
        if not ranks.is_sharded(theta):
            assert tensor is not None
            return tensor
        own = torch.zeros_like(ranks.own_part(theta.detach()))
        if tensor is not None:
            own = ranks.own_part(tensor, like=theta)
        return ranks.all_rows(own)

    def _write(self, logits: Tensor) -> None:
        theta = self.param_groups[0]["params"][0]
        values = logits * self._gates.settings.temperature
        ranks.own_part(theta.detach()).copy_(ranks.own_part(values, like=theta))
