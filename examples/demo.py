"""Draw the price path of `torchleap demo` and the worth of its fields, from its report.

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
    """Draw the metric along the path, and the worth of each field, coloured by the ground truth."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    role = {field["name"]: field["role"] for field in record["fields"]}
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(12, 6.4), width_ratios=[1, 1.15], layout="constrained"
    )
    points = record["path"]["points"]
    counts = [len(point["kept"]) for point in points]
    metric = [point["metric"] for point in points]
    low = [point["low"] for point in points]
    high = [point["high"] for point in points]
    left.fill_between(counts, low, high, color="#2a78c2", alpha=0.18, linewidth=0)
    left.plot(counts, metric, color="#2a78c2", marker="o", markersize=4)
    kept = sum(field["kept"] for field in record["fields"])
    left.axvline(kept, color="#5f6368", linewidth=0.8, linestyle="--")
    left.invert_xaxis()
    left.set(
        xlabel="fields kept (dashed: the selection)",
        ylabel=f"validation {record['path']['metric'].upper()} of the adapted model",
        title="What each further field costs",
    )
    worth = {field["name"]: field["worth"] for field in record["fields"]}
    order = sorted(worth, key=lambda name: worth[name])
    colours = [COLOURS[role[name]] for name in order]
    right.barh(order, [worth[name] for name in order], color=colours)
    right.set_xscale("symlog", linthresh=1e-3)
    right.set(
        xlabel="worth in nats",
        title="The worth of each field: the number in a name is its width",
    )
    right.tick_params(axis="y", labelsize=8)
    right.margins(y=0.01)
    legend = [
        Line2D([], [], color=colour, label=word, linewidth=3) for word, colour in COLOURS.items()
    ]
    right.legend(handles=legend, title="ground truth", loc="lower right", frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
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
