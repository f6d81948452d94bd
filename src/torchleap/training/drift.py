"""Drift: notice dropped fields that become useful and kept ones that no longer are, on a stream.

A closed gate hides its field from the model, so nothing would ever show that the field is worth
reading again. So in a small fraction of the batches, the probes, closed gates are held at 1: the
model learns to use such a field, and the gradient of the loss with respect to the gate shows
whether the clean field lowered the loss. docs/drift.md has the reasons and the figures.
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

from .._common.checks import check_arguments, number, whole
from .._common.states import check_tensors
from ..distributed import ranks
from ..gates.price_path import PathOptimizer
from ..plugin import Plugin
from .hook import Hook, Run

Kind = Literal["revived", "died"]
BET = 0.8  # the signal to bet on; one below about half of it never adds up to an alarm
MEMORY = 0.95  # of the moving average of the squared gains, per probe
SHORT_MEMORY = 0.9  # the same of the gates: one below its average is closing


@dataclass(frozen=True)
class Alarm:
    """A field whose use has changed.

    Attributes:
        field: The name of the field.
        step: The step after which the change was noticed.
        kind: Whether the field became useful or useless.
        since: The step from which on the evidence points to it.
        gate_before: The gate at that step.
        gate: The gate when the change was noticed.
        probes: Probes since then.
        signal: By how much the clean field lowered the loss in these probes on average, relative
            to the root mean square of earlier probes.
        nats: The log of the odds against so much evidence from a useless field; 0 if the gate
            moved first.
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
        """Return the reason as a sentence without a full stop."""
        seen = (
            f"in {self.probes} probes since step {self.since:,} its signal was "
            f"{self.signal:.2f} of its noise"
        )
        if self.nats:
            return f"{seen}; a useless field shows as much once in {math.exp(self.nats):.0e} times"
        verb = "opened" if self.kind == "revived" else "closed"
        moved = f"its gate, at {self.gate_before:.2f} before, {verb} to {self.gate:.2f}"
        if not self.probes:
            return moved
        return f"{moved}; {seen}"

    def __str__(self) -> str:
        return f"{self.field} {self.kind}, step {self.step:,}: {self.evidence}."


class Drift(Hook):
    """Probe closed gates, and raise an alarm where a field has become useful or useless.

    It is a hook of the training loops. In a loop of one's own, call `step()` after each backward
    pass and `stop()` after the last one:

        drift = Drift(plugin, optimizer=gate_optimizer, alarm=print)
        for x, y in stream:
            criterion(model(x), y).backward()
            ...
            drift.step()

    Args:
        plugin: The plug-in of the attached model.
        optimizer: The optimizer of the gates, whose state of a gate that is reopened is cleared;
            None clears nothing.
        fraction: The fraction of the batches that are probes.
        quiet: The average number of steps between two false revivals of any field, at least.
        settle: Steps that a gate has to stay on one side of 0.5 to count as kept or dropped; before
            that it is still being trained.
        reopen: Whether the gate of a revived field is opened; its optimizer decides whether it
            stays open.
        alarm: Is called with each alarm on the first rank; None calls nothing. Every rank has all
            alarms in `alarms`.
        seed: The seed of the choice of probes, the same on all ranks.
    """

    def __init__(
        self,
        plugin: Plugin,
        *,
        optimizer: Optimizer | None = None,
        fraction: float = 0.05,
        quiet: int = 1_000_000,
        settle: int = 5_000,
        reopen: bool = True,
        alarm: Callable[[Alarm], object] | None = None,
        seed: int = 0,
    ) -> None:
        check_arguments(
            fraction=number(fraction, above=0, below=1),
            quiet=whole(quiet, at_least=1),
            settle=whole(settle, at_least=0),
            seed=whole(seed),
        )
        self.alarms: list[Alarm] = []
        self.steps = 0
        self._gates = plugin.gates
        self._optimizer = optimizer
        self._fraction = fraction
        self._quiet = quiet
        self._settle = settle
        self._reopen = reopen
        self._report = alarm
        self._seed = seed
        self._known: dict[str, Tensor] = {}  # of each gate, (G,); see _nothing_known
        self._choose_probe()

    # As a hook

    def at_start(self, run: Run) -> None:
        """Decide whether the first batch is a probe."""
        self.steps = run.step
        self._choose_probe()

    def after_step(self, run: Run) -> None:
        """Evaluate the batch if it was a probe, and decide whether the next one is."""
        self.steps = run.step - 1
        self.step()

    def at_end(self, run: Run) -> None:
        """End the probes."""
        self.stop()

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics of each gate, and all alarms."""
        return {
            "steps": self.steps,
            "known": {name: tensor.clone() for name, tensor in self._known.items()},
            "alarms": [asdict(alarm) for alarm in self.alarms],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the statistics of each gate, and all alarms."""
        if state["known"]:
            expected = _nothing_known(self._gates.gate(), 0)
            check_tensors(state["known"], expected, "the statistics of the gates")
        self.steps = state["steps"]
        self.alarms = [Alarm(**alarm) for alarm in state["alarms"]]
        self._known = {}
        for name, tensor in state["known"].items():
            self._known[name] = tensor.to(self._gates.theta.device, copy=True)
        self._choose_probe()

    # By hand

    def step(self) -> None:
        """Evaluate the last batch if it was a probe, and decide whether the next one is."""
        self.steps += 1
        probe = self._gates.context.probe
        if probe is not None:
            with torch.no_grad():
                self._evaluate(self._gain_on_all_ranks(probe))
        self._choose_probe()

    def stop(self) -> None:
        """End the probes."""
        self._gates.context.stop_probe()

    def _choose_probe(self) -> None:
        """Decide whether the next batch is a probe.

        The choice depends on seed and step alone, so that all ranks and a resumed run agree. Gates
        whose fields come from the first batch are not probed in it.
        """
        rng = random.Random((self._seed << 64) + self.steps)
        chosen = rng.random() < self._fraction
        if chosen and self._gates.fields is not None:
            self._gates.context.start_probe(self._gates.distance)
        else:
            self._gates.context.stop_probe()

    def _gain_on_all_ranks(self, probe: Tensor) -> Tensor:
        """Return how much the loss falls for a little more of each clean field, (G,).

        This is the only collective, of 4 bytes per gate.
        """
        slope = torch.zeros_like(probe)  # a rank may have had no rows
        if probe.grad is not None:
            slope = probe.grad.clone()
        return -ranks.average(slope, self._gates.process_group).nan_to_num(0.0, 0.0, 0.0)

    # Evidence

    def _evaluate(self, gain: Tensor) -> None:
        """Add a probe to the evidence, and raise alarms.

        Args:
            gain: How much the loss falls for a little more of each clean field, (G,).
        """
        gate = self._gates.gate()
        if not self._known:
            self._known = _nothing_known(gate, self.steps)
        known = self._known
        closed = known["closed"]
        settled = self.steps - known["turned"] >= self._settle
        self._add_evidence(self._in_deviations(gain), gate, closed & settled)
        turned = closed != (gate < 0.5)
        proved = (known["nats"] > self._enough()) & ~known["reported"]
        noticed = settled & (turned & ~known["reported"] | proved)
        if bool(noticed.any()):
            self._raise_alarms(noticed, gate, turned)
        known["reported"] |= proved
        if self._reopen and bool(proved.any()):
            self._open(proved)
            turned = turned | proved
            gate = self._gates.gate()
        self._note_sides(turned, gate)

    def _in_deviations(self, gain: Tensor) -> Tensor:
        """Return the gain in units of its usual size, (G,).

        The past alone decides on these units, so the expected gain of a useless field remains 0.
        """
        known = self._known
        usual = (known["square"] / (1 - MEMORY ** known["measured"]).clamp_min(1e-12)).sqrt()
        signal = torch.where(usual > 0, gain / usual.clamp_min(1e-30), 0)
        known["square"].lerp_(gain.square(), 1 - MEMORY)
        known["measured"] += 1
        return signal

    def _add_evidence(self, signal: Tensor, gate: Tensor, dropped: Tensor) -> None:
        """Add a probe to the evidence of dropped fields, which starts again whenever it is used up.

        Args:
            signal: The gain of each field in units of its usual size, (G,).
            gate: The gates, (G,).
            dropped: Whether each gate has been closed for long, (G,).
        """
        known = self._known
        # the log of exp(BET * signal) / cosh(BET * signal)
        bet = math.log(2) - softplus(-2 * BET * signal)
        known["nats"] = torch.where(dropped, (known["nats"] + bet).clamp_min(0), 0)
        restart = torch.where(known["closed"], known["nats"] == 0, gate >= known["average"])
        known["before"] = torch.where(restart, known["average"], known["before"])
        known["since"] = torch.where(restart, self.steps, known["since"])
        known["probes"] = torch.where(restart, 0, known["probes"] + 1)
        known["signal"] = torch.where(restart, 0, known["signal"] + signal)

    def _enough(self) -> float:
        """Return the evidence for an alarm in nats.

        A useless field reaches it once in exp(nats) probes, at most.
        """
        return max(1.0, math.log(len(self._gates.theta) * self._fraction * self._quiet))

    def _raise_alarms(self, noticed: Tensor, gate: Tensor, turned: Tensor) -> None:
        """Raise an alarm for each field of the gates that were noticed.

        Args:
            noticed: Whether each gate was noticed, (G,).
            gate: The gates, (G,).
            turned: Whether each gate moved to the other side of 0.5 by itself, (G,).
        """
        statistics = {**self._known, "noticed": noticed, "gate": gate, "moved": turned}
        columns = {name: tensor.tolist() for name, tensor in statistics.items()}
        fields = self._gates.known_fields()
        for name, place in zip(fields.names, fields.gates, strict=True):
            of_gate = {key: column[place] for key, column in columns.items()}
            if not of_gate["noticed"]:
                continue
            alarm = Alarm(
                field=name,
                step=self.steps,
                kind="revived" if of_gate["closed"] else "died",
                since=of_gate["since"],
                gate_before=of_gate["before"],
                gate=of_gate["gate"],
                probes=of_gate["probes"],
                signal=of_gate["signal"] / max(1, of_gate["probes"]),
                nats=0.0 if of_gate["moved"] else of_gate["nats"],
            )
            self.alarms.append(alarm)
            if self._report is not None and ranks.is_first():
                self._report(alarm)

    def _open(self, chosen: Tensor) -> None:
        """Reset gates to their start, and the state of their optimizer with them.

        Args:
            chosen: Whether each gate is reset, (G,); the gates themselves may be sharded.
        """
        theta = self._gates.theta
        own = ranks.own_part(chosen, like=theta)
        ranks.own_part(theta).masked_fill_(own, self._gates.settings.init)
        if self._optimizer is None:
            return
        if isinstance(self._optimizer, PathOptimizer):
            self._optimizer.forget(chosen)
        for value in self._optimizer.state[theta].values():
            if isinstance(value, Tensor) and value.shape == theta.shape:
                ranks.own_part(value).masked_fill_(own, 0)

    def _note_sides(self, turned: Tensor, gate: Tensor) -> None:
        """Note on which side of 0.5 each gate is, and since when.

        Args:
            turned: Whether each gate has just moved to the other side, (G,).
            gate: The gates, (G,).
        """
        known = self._known
        known["average"] = torch.where(turned, gate, known["average"].lerp(gate, 1 - SHORT_MEMORY))
        known["turned"] = torch.where(turned, self.steps, known["turned"])
        known["closed"] = gate < 0.5
        known["reported"] &= ~turned
        known["nats"] = torch.where(turned, 0, known["nats"])


def _nothing_known(gate: Tensor, step: int) -> dict[str, Tensor]:
    """Return the statistics of gates before the first probe, (G,) each."""
    zero = torch.zeros_like(gate)
    count = torch.zeros_like(gate, dtype=torch.int64)
    return {
        # the side of 0.5 that a gate is on, the step of its last turn, its moving average
        "closed": gate < 0.5,
        "turned": count + step,
        "average": gate.clone(),
        "reported": torch.zeros_like(gate, dtype=torch.bool),  # by an alarm since that turn
        # the moving average of the squared gains, and the number of gains
        "square": zero.clone(),
        "measured": count.clone(),
        # the evidence: its size, the step and gate at its start, its probes, their summed signal
        "nats": zero.clone(),
        "since": count + step,
        "before": gate.clone(),
        "probes": count.clone(),
        "signal": zero.clone(),
    }
