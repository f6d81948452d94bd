"""How soon drift is noticed on an industrial stream with a switch, and what probes cost.

    python benchmarks/drift.py                    # all sections, roughly half an hour on one core
    python benchmarks/drift.py --only alarms --seeds 1

alarms: the stream of `IndustrialLog`, each batch seen once by model and gates. At the switch the
effects of some fields end, and fields that had no effect until then, and so were dropped, have
one. The number of steps from the switch to each alarm is printed, and every other alarm with the
role of its field: all steps before the switch are a control.

without: the same without probes: which of the fields that come to life are open in the end.

cost: the first 2,500 steps of the same stream, with and without probes: the AUC in eval mode on
batches that are then learned from, over the last 1,000 steps, and the median time of a step,
without that of drawing the rows.

level: evidence of useless fields, drawn from normal and from heavy-tailed numbers: steps between
false alarms, against the setting `quiet`.
"""

import argparse
import math
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from torchleap.data import IndustrialLog
from torchleap.training.drift import Drift

COST_STEPS = 2_500
SECTIONS = ("alarms", "without", "cost", "level")
ROWS_PER_DAY = 50_000  # of the log
FIELDS = 40
DIMS = 320
BATCH = 1_024
SWITCH = 4_500
STEPS = 7_000
SETTLE = 3_000
FRACTION = 0.05
QUIET = 1_000_000


class Model(nn.Module):
    """A network with tables for ids, all fields side by side, and two hidden layers."""

    def __init__(self, log: IndustrialLog) -> None:
        super().__init__()
        self.kinds = log.kind
        self.tables = nn.ModuleDict(
            {name: nn.Embedding(rows, log.widths[name]) for name, rows in log.cardinality.items()}
        )
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.1)
        self.net = nn.Sequential(
            nn.Linear(sum(log.widths.values()), 64),
            nn.ReLU(),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the log odds, (B,)."""
        parts = [
            self.tables[name](batch[name]) if kind == "ids" else batch[name]
            for name, kind in self.kinds.items()
        ]
        return self.net(torch.cat(parts, 1))[:, 0]


def batches(log: IndustrialLog, rows: int) -> Any:
    """Yield batches without end: the fields by name, and the label."""
    for frame in log.stream(rows):
        found = {}
        for name, kind in log.kind.items():
            shapes = {"vector": (rows, log.widths[name]), "ids": (rows,)}
            shape = shapes.get(kind, (rows, 1))
            values = np.zeros(shape)
            if not frame[name].null_count():
                values = frame[name].to_numpy().reshape(shape)
            dtype = torch.int64 if kind == "ids" else torch.float32
            found[name] = torch.tensor(values, dtype=dtype)
        yield found, torch.tensor(frame["label"].to_numpy(), dtype=torch.float32)


@dataclass
class Found:
    """The results of a run over the stream."""

    log: IndustrialLog
    alarms: list[Any]
    scores: dict[str, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    auc: float = 0.0


def run(seed: int, steps: int, *, probes: bool = True) -> Found:
    """Train a model and its gates on the stream, with or without probes."""
    log = IndustrialLog(
        fields=FIELDS, dims=DIMS, seed=seed, switch_days=SWITCH * BATCH / ROWS_PER_DAY
    )
    torch.manual_seed(seed)
    model = Model(log)
    plugin = tl.attach(model, log.widths, at="net", seed=seed)
    gate_optimizer = plugin.optimizer(strength=0.4, lr=2e-3)
    optimizer = torch.optim.Adam(plugin.model_parameters(), lr=1e-3)
    found = Found(log, [])
    drift = None
    if probes:
        limits = {"fraction": FRACTION, "quiet": QUIET, "settle": SETTLE}
        drift = Drift(plugin, optimizer=gate_optimizer, seed=seed, **limits)
        found.alarms = drift.alarms
    log_odds = []
    labels = []
    for step, (x, y) in zip(range(steps), batches(log, BATCH), strict=False):
        if step >= steps - 1_000 and not step % 4:
            with torch.no_grad():
                log_odds.append(model.eval()(x))
            labels.append(y)
            model.train()
        start = time.perf_counter()
        optimizer.zero_grad()
        gate_optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()
        gate_optimizer.step()
        if drift:
            drift.step()
        found.seconds.append(time.perf_counter() - start)
    found.scores = plugin.scores()
    found.auc = tl.auc(torch.cat(labels), torch.cat(log_odds))
    return found


def show_alarms(seeds: range) -> None:
    """Print all alarms, and after how many steps those came that were expected."""
    print(
        f"{FIELDS} fields, {DIMS} dimensions, batches of {BATCH}, "
        f"switch at step {SWITCH} of {STEPS}, fraction {FRACTION}, settle {SETTLE}, quiet {QUIET}"
    )
    delays: dict[str, list[int]] = {"revived": [], "died": []}
    for seed in seeds:
        found = run(seed, STEPS)
        kinds = {"grows": "revived"}
        expected = {name: kinds.get(way, "died") for name, way in found.log.drift.items()}
        print(f"\nseed {seed}")
        for alarm in found.alarms:
            when = "not expected"
            if expected.get(alarm.field) == alarm.kind and alarm.step > SWITCH:
                delay = alarm.step - SWITCH
                delays[alarm.kind].append(delay)
                expected.pop(alarm.field)
                when = f"after {delay:,} steps"
            print(f"  {when}: {alarm}")
        for name, kind in expected.items():
            print(f"  not noticed: {name} {kind}", flush=True)
    for kind, steps in delays.items():
        if steps:
            print(
                f"{kind}: {len(steps)} noticed, after {min(steps):,} to {max(steps):,} steps, "
                f"median {np.median(steps):,.0f}"
            )


def show_without(seeds: range) -> None:
    """Print which of the fields that come to life are open without probes."""
    print()
    for seed in seeds:
        found = run(seed, STEPS, probes=False)
        growing = [name for name, way in found.log.drift.items() if way == "grows"]
        opened = [name for name in growing if found.scores[name] >= 0.5]
        print(
            f"seed {seed}, without probes: of {len(growing)} fields that came to life "
            f"{len(opened)} are open {opened}",
            flush=True,
        )


def show_cost(seeds: range) -> None:
    """Print the AUC and the time of a step with and without probes."""
    print(f"\nthe last 1,000 of {COST_STEPS:,} steps, each learned from after it was predicted")
    ratios = []
    for seed in seeds:
        with_probes = run(seed, COST_STEPS, probes=True)
        without = run(seed, COST_STEPS, probes=False)
        ratio = np.median(with_probes.seconds[500:]) / np.median(without.seconds[500:])
        ratios.append(ratio)
        print(
            f"seed {seed}: AUC {with_probes.auc:.4f} with probes, {without.auc:.4f} without; "
            f"time of a step x {ratio:.3f}"
        )
    print(f"median of the ratios: {np.median(ratios):.3f}", flush=True)


def show_level() -> None:
    """Print how many false alarms useless fields raise, against the setting `quiet`."""
    fields = 500
    quiet = 2_000
    probes = 40_000
    for name, degrees in (("normal", math.inf), ("Student's t, 3 degrees of freedom", 3.0)):
        rng = np.random.default_rng(0)
        gates = tl.LeAP(tl.Fields({f"f{i}": 1 for i in range(fields)}), init=-1.0)
        drift = Drift(
            SimpleNamespace(gates=gates), fraction=FRACTION, quiet=quiet, settle=0, reopen=False
        )
        for _ in range(probes):
            drift.steps += 1
            if math.isinf(degrees):
                drawn = rng.standard_normal(fields)
            else:
                drawn = rng.standard_t(degrees, fields)
            with torch.no_grad():
                drift._evaluate(torch.tensor(drawn, dtype=torch.float32))
            if drift._known:
                drift._known["nats"][drift._known["reported"]] = 0
                drift._known["reported"][:] = False
        steps = probes / FRACTION
        print(
            f"{name}: {len(drift.alarms)} false alarms of {fields} fields in {steps:,.0f} steps; "
            f"quiet={quiet:,} allows {steps / quiet:,.0f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SECTIONS)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wanted = SECTIONS if arguments.only is None else (arguments.only,)
    if "level" in wanted:
        show_level()
    if "alarms" in wanted:
        show_alarms(range(arguments.seeds))
    if "without" in wanted:
        show_without(range(arguments.seeds))
    if "cost" in wanted:
        show_cost(range(arguments.seeds))


if __name__ == "__main__":
    main()
