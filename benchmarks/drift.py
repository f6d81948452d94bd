"""How soon drift is noticed on an industrial stream with a switch in the middle, what is noticed wrongly, and what probes cost.

    python benchmarks/drift.py                    # all sections, roughly half an hour on one core
    python benchmarks/drift.py --only alarms --seeds 1

alarms: the stream of `IndustrialLog`, each batch seen once by model and gates. At the switch the effects of some fields end, and
fields that said nothing until then, and so were dropped, have effects. Printed is the number of steps from the switch to each
alarm, and every other alarm with the role of its field: all steps before the switch are a control.

without: the same without probes: which of the fields that come to life are open in the end.

cost: the first 2,500 steps of the same stream, with and without probes: the AUC in eval mode on batches that are then learnt
from, over the last 1,000 steps, and the median time of a step, without that of drawing the rows.

level: evidence of fields that say nothing, drawn from normal and from heavy-tailed numbers: steps between false alarms, against
the setting `quiet`.
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
ROWS_A_DAY = 50_000  # of the log
FIELDS, DIMS = 40, 320
BATCH, SWITCH, STEPS, SETTLE = 1_024, 4_500, 7_000, 3_000
SHARE, QUIET = 0.05, 1_000_000


class Model(nn.Module):
    """Tables for ids, all fields side by side, and two hidden layers."""

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
        """The log odds, (B,)."""
        parts = [
            self.tables[name](batch[name]) if kind == "ids" else batch[name]
            for name, kind in self.kinds.items()
        ]
        return self.net(torch.cat(parts, 1))[:, 0]


def batches(log: IndustrialLog, rows: int) -> Any:
    """Batches without end: the fields by name, and the label."""
    for frame in log.stream(rows):
        found = {}
        for name, kind in log.kind.items():
            shape = (
                (rows, log.widths[name])
                if kind == "vector"
                else (rows,)
                if kind == "ids"
                else (rows, 1)
            )
            values = (
                np.zeros(shape)
                if frame[name].null_count()
                else frame[name].to_numpy().reshape(shape)
            )
            found[name] = torch.tensor(
                values, dtype=torch.int64 if kind == "ids" else torch.float32
            )
        yield found, torch.tensor(frame["label"].to_numpy(), dtype=torch.float32)


@dataclass
class Found:
    """What a run of the stream found."""

    log: IndustrialLog
    alarms: list[Any]
    scores: dict[str, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    auc: float = 0.0


def run(seed: int, steps: int, *, probes: bool = True) -> Found:
    log = IndustrialLog(
        fields=FIELDS, dims=DIMS, seed=seed, switch_days=SWITCH * BATCH / ROWS_A_DAY
    )
    torch.manual_seed(seed)
    model = Model(log)
    plugin = tl.attach(model, log.widths, at="net", seed=seed)
    gate_optimizer = plugin.optimizer(strength=0.4, lr=2e-3)
    optimizer = torch.optim.Adam(plugin.model_parameters(), lr=1e-3)
    drift = (
        Drift(
            plugin, optimizer=gate_optimizer, fraction=SHARE, quiet=QUIET, settle=SETTLE, seed=seed
        )
        if probes
        else None
    )
    found, log_odds, labels = Found(log, drift.alarms if drift else []), [], []
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
    print(
        f"{FIELDS} fields, {DIMS} dimensions, batches of {BATCH}, switch at step {SWITCH} of {STEPS},",
        end=" ",
    )
    print(f"share {SHARE}, settle {SETTLE}, quiet {QUIET}")
    delays: dict[str, list[int]] = {"revived": [], "died": []}
    for seed in seeds:
        found = run(seed, STEPS)
        expected = {
            name: "revived" if way == "grows" else "died" for name, way in found.log.drift.items()
        }
        print(f"\nseed {seed}")
        for alarm in found.alarms:
            right = expected.get(alarm.field) == alarm.kind and alarm.step > SWITCH
            if right:
                delays[alarm.kind].append(alarm.step - SWITCH)
                expected.pop(alarm.field)
            print(
                f"  {f'after {alarm.step - SWITCH:,} steps' if right else 'not expected'}: {alarm}"
            )
        print(
            *(f"  not noticed: {name} {kind}" for name, kind in expected.items()),
            sep="\n",
            flush=True,
        )
    for kind, steps in delays.items():
        if steps:
            print(
                f"{kind}: {len(steps)} noticed, after {min(steps):,} to {max(steps):,} steps, median {np.median(steps):,.0f}"
            )


def show_without(seeds: range) -> None:
    print()
    for seed in seeds:
        found = run(seed, STEPS, probes=False)
        growing = [name for name, way in found.log.drift.items() if way == "grows"]
        opened = [name for name in growing if found.scores[name] >= 0.5]
        print(
            f"seed {seed}, without probes: of {len(growing)} fields that came to life {len(opened)} are open {opened}",
            flush=True,
        )


def show_cost(seeds: range) -> None:
    print(f"\nthe last 1,000 of {COST_STEPS:,} steps, each learnt from after it was predicted")
    ratios = []
    for seed in seeds:
        with_probes, without = (run(seed, COST_STEPS, probes=probes) for probes in (True, False))
        ratios.append(np.median(with_probes.seconds[500:]) / np.median(without.seconds[500:]))
        print(
            f"seed {seed}: AUC {with_probes.auc:.4f} with probes, {without.auc:.4f} without; time of a step x {ratios[-1]:.3f}"
        )
    print(f"median of the ratios: {np.median(ratios):.3f}", flush=True)


def show_level() -> None:
    fields, quiet, probes = 500, 2_000, 40_000
    for name, degrees in (("normal", math.inf), ("Student's t, 3 degrees of freedom", 3.0)):
        rng = np.random.default_rng(0)
        gates = tl.LeAP(tl.Fields({f"f{i}": 1 for i in range(fields)}), init=-1.0)
        drift = Drift(
            SimpleNamespace(gates=gates), fraction=SHARE, quiet=quiet, settle=0, reopen=False
        )
        for _ in range(probes):
            drift.steps += 1
            drawn = (
                rng.standard_normal(fields)
                if math.isinf(degrees)
                else rng.standard_t(degrees, fields)
            )
            with torch.no_grad():
                drift._evaluate(torch.tensor(drawn, dtype=torch.float32))
            if drift._known:
                drift._known["nats"][drift._known["reported"]] = 0
                drift._known["reported"][:] = False
        steps = probes / SHARE
        print(
            f"{name}: {len(drift.alarms)} false alarms of {fields} fields in {steps:,.0f} steps;",
            end=" ",
        )
        print(f"quiet={quiet:,} allows {steps / quiet:,.0f}", flush=True)


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
