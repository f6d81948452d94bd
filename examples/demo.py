"""Draw the gates of `torchleap demo` beside the ground truth, from the report of the demo.

torchleap demo --out torchleap-demo
python examples/demo.py torchleap-demo --picture gates.png   (needs matplotlib)
"""

import argparse
import json
from pathlib import Path
from typing import Any

COLOURS = {
    "main": "#2a78c2",
    "pair": "#7b4ab5",
    "redundant": "#e0912f",
    "noise": "#9aa0a6",
    "constant": "#c9cdd2",
}


def draw(path: Path, record: dict[str, Any]) -> None:
    """Draw the gates over the training, and their final values, coloured by the ground truth."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    role = {field["name"]: field["role"] for field in record["fields"]}
    final = {field["name"]: field["score"] for field in record["fields"]}
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(12, 6.4), width_ratios=[1, 1.15], layout="constrained"
    )
    steps = record["trajectories"]["steps"]
    for name, gate in record["trajectories"]["gates"].items():
        left.plot([0, *steps], [1.0, *gate], color=COLOURS[role[name]], linewidth=1.6, alpha=0.85)
    left.set(
        xlabel="training step",
        ylabel="gate",
        ylim=(-0.02, 1.02),
        xlim=(0, steps[-1]),
        title="The gates during training",
    )
    legend = [
        Line2D([], [], color=colour, label=word, linewidth=3) for word, colour in COLOURS.items()
    ]
    order = sorted(final, key=lambda name: final[name])
    colours = [COLOURS[role[name]] for name in order]
    right.barh(order, [final[name] for name in order], color=colours)
    right.set(
        xlabel="gate",
        xlim=(0, 1.0),
        title="The final gates: the number in a name is the field's width",
    )
    right.tick_params(axis="y", labelsize=8)
    right.margins(y=0.01)
    right.legend(handles=legend, title="ground truth", loc="lower right", frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    left.axhline(0.5, color="#5f6368", linewidth=0.8, linestyle="--")
    right.axvline(0.5, color="#5f6368", linewidth=0.8, linestyle="--")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the results of torchleap demo")
    parser.add_argument("--picture", type=Path, default=Path("gates.png"), help="the PNG to write")
    options = parser.parse_args()
    record = json.loads((options.folder / "report.json").read_text(encoding="utf-8"))
    draw(options.picture, record)
    print(f"Drawn: {options.picture}")


if __name__ == "__main__":
    main()
