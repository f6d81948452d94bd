"""The charts of the training: gates, their polarisation, metrics and loss over steps."""

import math
from collections.abc import Mapping
from typing import Any

from ..._common.checks import is_number
from .. import colours
from ..measures import polarisation, thinned
from ..record import decision, dig, metric_named, threshold
from .fields import GATE_AXIS, decision_colour
from .pieces import (
    DETAILS,
    Charts,
    Rows,
    Spec,
    count_axis,
    fading,
    framed,
    line_at,
    lines_over_steps,
    number_axis,
    signals,
)

MOST_POINTS = 10_000  # of all trajectories together: as many as a browser draws at once
MOST_STEPS = 120  # of a trajectory
FEW_LINES = 100
MEASURES = ("gates within 0.05 of 0 or 1", "mean of |2g − 1|")  # noqa: RUF001


def training_charts(record: Mapping[str, Any]) -> Charts:
    """Return the charts of the training that the record has numbers for."""
    return _trajectories(record) | _polarisation(record) | _history(record)


def history_titles(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of the metrics and the loss that were recorded over training, by key."""
    titles = {}
    for entry in record.get("history") or []:
        for key in entry:
            if key.startswith("valid_"):
                metric = metric_named(record, key.removeprefix("valid_"))
                titles[key] = f"{metric.title} on validation rows"
    return {**titles, "train_loss": "loss on train rows"}


def _gate_paths(record: Mapping[str, Any]) -> tuple[list[float], dict[str, list[float]]]:
    """Return the steps, and the gates of each field that has one at every step."""
    steps = dig(record, "trajectories", "steps") or []
    gates = dig(record, "trajectories", "gates") or {}
    if len(steps) < 2:
        return [], {}
    paths = {}
    for name, path in gates.items():
        if len(path) == len(steps) and all(map(is_number, path)):
            paths[name] = path
    return steps, paths


def _trajectories(record: Mapping[str, Any]) -> Charts:
    """Return the gate of each field over training."""
    steps, gates = _gate_paths(record)
    if not gates:
        return Charts()
    places = thinned(len(steps), min(MOST_STEPS, MOST_POINTS // len(gates)))
    rows = _trajectory_rows(record, gates, places)
    transform = [
        {"flatten": ["gate"]},
        {"window": [{"op": "row_number", "as": "place"}]},
        {"calculate": "steps[(datum.place - 1) % length(steps)]", "as": "step"},
    ]
    spec = framed(
        320,
        params=signals(steps=[steps[place] for place in places]),
        data={"name": "trajectories"},
        transform=transform,
        layer=[*line_at(threshold(record), "y"), *_trajectory_layers(rows)],
    )
    return Charts({"trajectories": spec}, {"trajectories": rows})


def _trajectory_rows(
    record: Mapping[str, Any], gates: Mapping[str, list[float]], places: list[int]
) -> Rows:
    """Return a row per field, those of kept fields last, so that they are drawn on top."""
    decisions = {field["name"]: decision(field) for field in record["fields"]}
    rows: Rows = []
    for name, path in gates.items():
        drawn = [round(path[place], 3) for place in places]
        rows.append({"name": name, "decision": decisions.get(name, "dropped"), "gate": drawn})
    order = list(colours.DECISIONS)
    rows.sort(key=lambda row: order.index(row["decision"]), reverse=True)
    for place, row in enumerate(rows):
        row["line"] = place  # Vega cannot group by a field that is called "constructor"
    return rows


def _trajectory_layers(rows: Rows) -> list[Spec]:
    few = len(rows) <= FEW_LINES
    opacity = max(0.3, min(0.85, 5 / math.sqrt(len(rows))))
    encoding = {
        "x": count_axis("step", "training step"),
        "y": number_axis("gate", "gate", **GATE_AXIS),
        "detail": {"field": "line", "type": "nominal"},
        "color": decision_colour(rows),
        "opacity": fading(opacity),
    }
    line = {"type": "line", "strokeWidth": 1.8 if few else 1.2, "tooltip": DETAILS}
    layers: list[Spec] = [{"mark": line, "encoding": encoding}]
    if few:  # wide invisible lines are easier to point at
        wide = {"type": "line", "strokeWidth": 9, "tooltip": DETAILS}
        layers.append({"mark": wide, "encoding": {**encoding, "opacity": {"value": 0}}})
    return layers


def _polarisation(record: Mapping[str, Any]) -> Charts:
    """Return two measures of how decided the gates are, over training."""
    steps, gates = _gate_paths(record)
    if not gates:
        return Charts()
    rows: Rows = []
    for place in thinned(len(steps), 200):
        values = polarisation([path[place] for path in gates.values()])
        for name, value in zip(MEASURES, values, strict=True):
            rows.append({"step": steps[place], "measure": name, "value": value})
    y = number_axis("value", None, scale={"domain": [0, 1]}, axis={"format": "%"})
    colour = {"domain": list(MEASURES), "range": ["var(--accent)", "var(--second)"]}
    spec = lines_over_steps("polarisation", y, colour, height=200)
    return Charts({"polarisation": spec}, {"polarisation": rows})


def _history(record: Mapping[str, Any]) -> Charts:
    """Return the metrics on validation rows and the loss on train rows, over training."""
    drawn = Charts()
    for key, title in history_titles(record).items():
        known = []
        for entry in record.get("history") or []:
            if is_number(entry.get(key)) and is_number(entry.get("step")):
                known.append({"step": entry["step"], "value": round(entry[key], 6)})
        if len(known) > 1:
            rows = [known[place] for place in thinned(len(known), 300)]
            y = number_axis("value", title, scale={"zero": False})
            drawn |= Charts({key: lines_over_steps(key, y, None, height=200)}, {key: rows})
    return drawn
