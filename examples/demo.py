"""LeAP on data with a known truth: train once, look at the gates beside the truth, prune by masking.

python examples/demo.py                       about a minute on two cores
python examples/demo.py --picture gates.png   also draws the gates (needs matplotlib)
"""

import argparse
import statistics
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as criterion

import torchleap as tl

BATCH = 256
WARMUP = 8 / 13  # share of the batches in which the model learns to use its fields before the gates may close
T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}  # Student's t by degrees of freedom
COLOURS = {"main": "#2a78c2", "pair": "#7b4ab5", "redundant": "#e0912f", "noise": "#9aa0a6", "constant": "#c9cdd2"}


def train(truth: tl.data.KnownTruth, steps: int, seed: int, console: Console) -> tuple[nn.Module, tl.Plugin, list[list[float]]]:
    """One pass over fresh rows: attaching and adding the penalty are all that LeAP asks of a training loop."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(truth.fields.dims, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    plugin = tl.attach(model, truth.fields, alpha=1e-3, warmup=int(steps * WARMUP), seed=seed)
    optimizer = torch.optim.Adam(plugin.parameter_groups(gate_lr=1e-2), lr=3e-3)
    console.print(repr(plugin), highlight=False)
    history = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=steps)
        for step in range(steps):
            if step % 16 == 0:
                rows, labels = truth.draw(16 * BATCH, seed=step)
            now = slice(step % 16 * BATCH, (step % 16 + 1) * BATCH)
            optimizer.zero_grad()
            loss = criterion(model(rows[now])[:, 0], labels[now]) + plugin.penalty()
            loss.backward()
            optimizer.step()
            progress.update(bar, advance=1, description=f"training, loss {loss.item():.3f}")
            if step % 10 == 9:
                history.append(list(plugin.scores().values()))
    return model, plugin, history


@torch.no_grad()
def auc(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """AUC of the model in eval mode on rows that it has not seen."""
    return tl.auc(y, model.eval()(x)[:, 0])


def gate_table(truth: tl.data.KnownTruth, plugin: tl.Plugin, selection: tl.Selection) -> Table:
    """The gates, best first, beside the truth."""
    table = Table(title="Gates beside the truth", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("field", no_wrap=True)
    for name in ("width", "sparsity", "divergence", "gate"):
        table.add_column(name, justify="right")
    table.add_column("truth", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    sparsity = dict(zip(truth.fields.names, plugin.gates.sparsity().tolist(), strict=True))
    divergence = dict(zip(truth.fields.names, plugin.gates.divergences().tolist(), strict=True))
    for name, gate in sorted(selection.scores.items(), key=lambda item: -item[1]):
        role, kept = truth.role[name], name in selection.kept
        right = role == "redundant" or kept == (name in truth.useful)
        verdict = f"{'kept' if kept else 'dropped'}{'' if right else ', wrongly'}"
        numbers = f"{truth.fields[name].width}", f"{sparsity[name]:.0%}", f"{divergence[name]:.3f}", f"{gate:.3f}"
        style = "red" if not right else "" if kept else "dim"
        table.add_row(name, *numbers, role, verdict, style=style)
    return table


def draw(path: Path, truth: tl.data.KnownTruth, history: list[list[float]]) -> None:
    """The gates over the training, and the ladder that they end on, coloured by the truth."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 6.4), width_ratios=[1, 1.15], layout="constrained")
    steps = range(10, 10 * len(history) + 1, 10)
    for index, name in enumerate(truth.fields.names):
        left.plot(steps, [row[index] for row in history], color=COLOURS[truth.role[name]], linewidth=1.6, alpha=0.85)
    warmup = steps[-1] * WARMUP
    left.axvspan(0, warmup, color="#f1f3f4")
    left.text(warmup / 2, 0.8, "warm-up:\ngates held open", ha="center", va="center", color="#5f6368")
    left.axhline(0.5, color="#5f6368", linewidth=0.8, linestyle="--")
    left.set(xlabel="batch", ylabel="gate", ylim=(-0.02, 1.02), xlim=(0, 10 * len(history)), title="How the gates got there")
    legend = [Line2D([], [], color=colour, label=role, linewidth=3) for role, colour in COLOURS.items()]
    left.legend(handles=legend, title="the truth", loc="lower left", bbox_to_anchor=(0.16, 0.06), frameon=False)
    final = dict(zip(truth.fields.names, history[-1], strict=True))
    order = sorted(final, key=lambda name: final[name])
    right.barh(order, [final[name] for name in order], color=[COLOURS[truth.role[name]] for name in order])
    right.axvline(0.5, color="#5f6368", linewidth=0.8, linestyle="--")
    right.set(xlabel="gate", xlim=(0, 1.0), title="Where they end: the number in a name is the field's width")
    right.tick_params(axis="y", labelsize=8)
    right.margins(y=0.01)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def run(seed: int, options: argparse.Namespace, console: Console) -> tuple[float, int, int]:
    """One world, one training: the change of the AUC by masking, useful fields dropped, useless fields kept."""
    truth = tl.data.KnownTruth(seed=seed)
    model, plugin, history = train(truth, options.steps, seed, console)
    selection = plugin.select()
    if options.seeds == 1:
        console.print(gate_table(truth, plugin, selection))

    x, y = truth.draw(20_000, seed=1_000_000)
    before = auc(model, x, y)
    with plugin.masked(selection):
        after = auc(model, x, y)
    console.print(repr(selection), highlight=False)
    console.print(f"Test AUC with the gates as learnt {before:.4f}, with the dropped fields masked {after:.4f}.", highlight=False)
    missed = sorted(set(truth.useful) & set(selection.dropped))
    wrong = sorted(set(truth.useless) & set(selection.kept))
    console.print(f"Useful fields dropped: {', '.join(missed) or 'none'}. Useless fields kept: {', '.join(wrong) or 'none'}.")
    if options.picture:
        draw(options.picture, truth, history)
        console.print(f"Drawn: {options.picture}")
    return after - before, len(missed), len(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="repeat with that many seeds and sum up")
    parser.add_argument("--picture", type=Path, help="write a PNG of the gates")
    options = parser.parse_args()
    console = Console()
    results = [run(options.seed + i, options, console) for i in range(options.seeds)]
    if options.seeds > 1:
        changes, missed, wrong = zip(*results, strict=True)
        half = T_95.get(len(changes) - 1, 1.96) * statistics.stdev(changes) / len(changes) ** 0.5
        console.print(
            f"Over {len(changes)} seeds: AUC change by masking {statistics.mean(changes):+.4f} +- {half:.4f} (95 % interval); "
            f"useful fields dropped {sum(missed)}, useless fields kept {sum(wrong)}.",
            highlight=False,
        )


if __name__ == "__main__":
    main()
