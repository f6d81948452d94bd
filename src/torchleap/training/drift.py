"""Drift: dropped fields that become useful, and kept ones that no longer are, on a stream that never ends.

A closed gate hides its field from the model, so nothing would ever show that the field is worth reading again. So in a small
share of the batches, the probes, closed gates are held at 1: the model learns what such a field is good for, and the gradient of
the loss with respect to the gate tells whether the clean field lowered the loss. docs/drift.md has the reasons and the figures.
"""

import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.optim import Optimizer

from .._common.checks import is_number, is_whole, refuse_settings
from .._common.states import check_tensors
from ..distributed import ranks
from ..plugin import Plugin
from .hook import Hook, Run

Kind = Literal["revived", "died"]
BET = 0.8  # the signal to bet on; one of less than about half of it never adds up to an alarm
MEMORY = 0.95  # of the moving average of the squared gains, a probe
SHORT_MEMORY = 0.9  # the same of the gates: one that is below its average is on its way down


@dataclass(frozen=True)
class Alarm:
    """A field that is no longer what it was.

    Attributes:
        step: After how many steps it was noticed.
        since: The step from which on the evidence points to it.
        gate_before: Where the gate stood then, and `gate` where it stood when it was noticed.
        probes: How many there were since then.
        signal: By how much the clean field lowered the loss in these, on average, by the root mean square of earlier probes.
        nats: Log of the odds against so much evidence from a useless field; 0 if the gate moved first.
    """

    field: str
    step: int
    kind: Kind
    since: int
    gate_before: float
    gate: float
    probes: int
    signal: float
    nats: float

    @property
    def evidence(self) -> str:
        """The reason, in a sentence."""
        seen = f"in {self.probes} probes since step {self.since:,} its signal was {self.signal:.2f} of its noise"
        if self.nats:
            return f"{seen}; a useless field shows as much once in {math.exp(self.nats):.0e} times"
        moved = f"its gate, at {self.gate_before:.2f} before, {'opened' if self.kind == 'revived' else 'closed'} to {self.gate:.2f}"
        return f"{moved}; {seen}" if self.probes else moved

    def __str__(self) -> str:
        return f"{self.field} {self.kind}, step {self.step:,}: {self.evidence}."


class Drift(Hook):
    """Probes closed gates, and raises an alarm where a dropped field has become useful or a kept one has died.

    A hook of the training loop. In a loop of one's own, `step()` comes after each backward pass, and `stop()` after the last one:

        drift = Drift(plugin, optimizer=gate_optimizer, alarm=print)
        for x, y in stream:
            criterion(model(x), y).backward()
            ...
            drift.step()

    Args:
        optimizer: That of the gates, to forget what it knows of a gate that is opened again.
        share: Of the batches that are probes.
        quiet: Steps between two false revivals of any field, on average, at least.
        settle: Steps that a gate has to stand on one side of 0.5 to count as kept or dropped: before, it is still being learnt.
        reopen: Open the gate of a revived field; whether it stays open is up to the optimizer.
        alarm: Is called with each alarm, on the first rank; all are in `alarms` on every rank.
        seed: Of the choice of the probes; the same on all ranks.
    """

    def __init__(
        self,
        plugin: Plugin,
        *,
        optimizer: Optimizer | None = None,
        share: float = 0.05,
        quiet: int = 1_000_000,
        settle: int = 5_000,
        reopen: bool = True,
        alarm: Callable[[Alarm], object] | None = None,
        seed: int = 0,
    ) -> None:
        refuse_settings(
            {
                f"share must be above 0 and below 1, but is {share!r}": is_number(share)
                and 0 < share < 1,
                f"quiet must be a whole number of at least 1, but is {quiet!r}": is_whole(quiet)
                and quiet >= 1,
                f"settle must be a whole number of at least 0, but is {settle!r}": is_whole(settle)
                and settle >= 0,
                f"seed must be a whole number, but is {seed!r}": is_whole(seed),
            }
        )
        self.alarms: list[Alarm] = []
        self.steps = 0
        self._gates, self._optimizer = plugin.gates, optimizer
        self._share, self._quiet, self._settle, self._seed = share, quiet, settle, seed
        self._reopen, self._tell = reopen, alarm or (lambda alarm: None)
        self._known: dict[str, Tensor] = {}  # about each gate, (G,)
        self._arm()

    # As a hook

    def at_start(self, run: Run) -> None:
        """Make ready for the next batch."""
        self.steps = run.step
        self._arm()

    def after_step(self, run: Run) -> None:
        """Look at the batch, and make ready for the next."""
        self.steps = run.step - 1
        self.step()

    def at_end(self, run: Run) -> None:
        """Leave the gates alone."""
        self.stop()

    def state_dict(self) -> dict[str, Any]:
        """What is known of each gate, and all alarms."""
        known = {name: tensor.clone() for name, tensor in self._known.items()}
        return {
            "steps": self.steps,
            "known": known,
            "alarms": [asdict(alarm) for alarm in self.alarms],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on."""
        if state["known"]:
            check_tensors(
                state["known"], _nothing_known(self._gates.gate(), 0), "what is known of the gates"
            )
        self.steps, self.alarms = state["steps"], [Alarm(**alarm) for alarm in state["alarms"]]
        self._known = {
            name: tensor.to(self._gates.theta.device, copy=True)
            for name, tensor in state["known"].items()
        }
        self._arm()

    # By hand

    def step(self) -> None:
        """Look at the batch that has just been learnt from, and make ready for the next."""
        self.steps += 1
        if self._gates.context.probe is not None:
            with torch.no_grad():
                self._look(self._gain_on_all_ranks(self._gates.context.probe))
        self._arm()

    def stop(self) -> None:
        """No more probes."""
        self._gates.context.stop_probe()

    def _arm(self) -> None:
        """Whether the next batch is a probe: a matter of seed and step, so that all ranks and a resumed run agree."""
        chosen = random.Random((self._seed << 64) + self.steps).random() < self._share
        ready = (
            chosen and self._gates.fields is not None
        )  # else they are to come from the first batch
        if ready:
            self._gates.context.start_probe(self._gates.distance)
        else:
            self._gates.context.stop_probe()

    def _gain_on_all_ranks(self, probe: Tensor) -> Tensor:
        """By how much the loss falls for a little more of each clean field, (G,): the one collective, of 4 bytes a gate."""
        slope = (
            torch.zeros_like(probe) if probe.grad is None else probe.grad
        )  # a rank may have had no rows
        return -ranks.average(slope.clone(), self._gates.process_group).nan_to_num(0.0, 0.0, 0.0)

    # What is known

    def _look(self, gain: Tensor) -> None:
        gate = self._gates.gate()
        if not self._known:
            self._known = _nothing_known(gate, self.steps)
        known = self._known
        closed, settled = known["closed"], self.steps - known["turned"] >= self._settle
        self._weigh(self._in_deviations(gain), gate, closed & settled)
        turned = closed != (gate < 0.5)
        proved = (known["nats"] > self._enough()) & ~known["told"]
        noticed = settled & (turned & ~known["told"] | proved)
        if bool(noticed.any()):
            self._raise_alarms(noticed, gate, turned)
        known["told"] |= proved
        if self._reopen and bool(proved.any()):
            self._open(proved)
            turned, gate = turned | proved, self._gates.gate()
        self._turn(turned, gate)

    def _in_deviations(self, gain: Tensor) -> Tensor:
        """The gain in units of what is usual: the past alone decides on these, so a useless field's expected gain remains 0."""
        known = self._known
        usual = (known["square"] / (1 - MEMORY ** known["looks"]).clamp_min(1e-12)).sqrt()
        signal = torch.where(usual > 0, gain / usual.clamp_min(1e-30), 0)
        known["square"].lerp_(gain.square(), 1 - MEMORY)
        known["looks"] += 1
        return signal

    def _weigh(self, signal: Tensor, gate: Tensor, dropped: Tensor) -> None:
        """Add a probe to the evidence of dropped fields, which starts anew whenever it is used up."""
        known = self._known
        bet = math.log(2) - softplus(
            -2 * BET * signal
        )  # log of exp(BET * signal) / cosh(BET * signal)
        known["nats"] = torch.where(dropped, (known["nats"] + bet).clamp_min(0), 0)
        anew = torch.where(known["closed"], known["nats"] == 0, gate >= known["average"])
        known["before"] = torch.where(anew, known["average"], known["before"])
        known["since"] = torch.where(anew, self.steps, known["since"])
        known["probes"] = torch.where(anew, 0, known["probes"] + 1)
        known["signal"] = torch.where(anew, 0, known["signal"] + signal)

    def _enough(self) -> float:
        """The evidence for an alarm, in nats: a useless field reaches it once in exp(nats) probes, at most."""
        return max(1.0, math.log(len(self._gates.theta) * self._share * self._quiet))

    def _raise_alarms(self, noticed: Tensor, gate: Tensor, turned: Tensor) -> None:
        known = {name: tensor.tolist() for name, tensor in self._known.items()}
        chosen, by_itself, standing = noticed.tolist(), turned.tolist(), gate.tolist()
        fields = self._gates.known_fields()
        for name, one in zip(fields.names, fields.gates, strict=True):
            if chosen[one]:
                alarm = Alarm(
                    field=name,
                    step=self.steps,
                    kind="revived" if known["closed"][one] else "died",
                    since=known["since"][one],
                    gate_before=known["before"][one],
                    gate=standing[one],
                    probes=known["probes"][one],
                    signal=known["signal"][one] / max(1, known["probes"][one]),
                    nats=0.0 if by_itself[one] else known["nats"][one],
                )
                self.alarms.append(alarm)
                if ranks.is_first():
                    self._tell(alarm)

    def _open(self, chosen: Tensor) -> None:
        """Put gates back to where they started, and let their optimizer start anew with them."""
        theta, own = (
            self._gates.theta,
            ranks.own_part(chosen, like=self._gates.theta),
        )  # of gates that are sharded
        ranks.own_part(theta).masked_fill_(own, self._gates.settings.init)
        state = {} if self._optimizer is None else self._optimizer.state[theta]
        for value in state.values():
            if isinstance(value, Tensor) and value.shape == theta.shape:
                ranks.own_part(value).masked_fill_(own, 0)

    def _turn(self, turned: Tensor, gate: Tensor) -> None:
        """Note on which side each gate stands, and since when."""
        known = self._known
        known["average"] = torch.where(turned, gate, known["average"].lerp(gate, 1 - SHORT_MEMORY))
        known["turned"] = torch.where(turned, self.steps, known["turned"])
        known["closed"] = gate < 0.5
        known["told"] &= ~turned
        known["nats"] = torch.where(turned, 0, known["nats"])


def _nothing_known(gate: Tensor, step: int) -> dict[str, Tensor]:
    """A place for what there is to know of each gate, (G,)."""
    zero, count, no = (
        torch.zeros_like(gate),
        torch.zeros_like(gate, dtype=torch.int64),
        torch.zeros_like(gate, dtype=torch.bool),
    )
    sides = {"closed": gate < 0.5, "turned": count + step, "average": gate.clone(), "told": no}
    gains = {"square": zero.clone(), "looks": count.clone()}
    evidence = {
        "nats": zero.clone(),
        "since": count + step,
        "before": gate.clone(),
        "probes": count.clone(),
        "signal": zero.clone(),
    }
    return {**sides, **gains, **evidence}
