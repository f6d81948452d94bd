"""Synthetic records: closing gates, wide and sparse fields, and names that contain HTML."""

import json
import math
import random
from dataclasses import asdict

from torchleap.fields import Field, Fields
from torchleap.pipeline.record import PathRecord
from torchleap.report import numbers
from torchleap.selection import select
from torchleap.selection.path import Path, PathPoint, Substitute, Worth

UGLY = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=\"window.hacked = 'image'\">",
    "she said \"no\" & 'yes'",
    "user_behaviour_sequence_embedding_last_90_days_weighted_by_dwell_time_and_recency_v2_final",
    "用户最近点击的商品类目",
    "prix_du_café_☕_🚀",
    "{{ 7 * 7 }} ${window.hacked = 1}",
    "line\u2028separator",
    "constructor",
    "a\\b\tc",
)
THEMES = ("user", "item", "shop", "query", "context", "session", "ad", "city")
SIGNALS = (
    *("ctr_7d", "clicks_30d", "price", "id", "age", "embedding"),
    *("category", "hour", "rating", "dwell", "position", "brand"),
)
WIDTHS = (1, 1, 1, 4, 8, 16, 16, 32, 64, 128, 256)


def select_record(
    fields=12,
    *,
    seed=0,
    ugly=True,
    method="leap",
    difference=(-0.0003, (-0.0011, 0.0005)),
    steps=80,
):
    """Return a record as `torchleap select` makes it, with every part."""
    rng = random.Random(seed)
    made = [_field(rng, name, place) for place, name in enumerate(_names(rng, fields, ugly))]
    groups = {f["group"]: f["score"] for f in made if f["group"]}
    for field in made:
        field["score"] = groups.get(field["group"], field["score"])  # a group has one gate
    if method != "leap":
        for field in made:
            field |= {
                "score": (field["score"] - 0.02) * rng.random() * 3e-3,
                "price": None,
                "divergence": None,
            }
    chosen = selection_of(made, **({"threshold": 0.5} if method == "leap" else {"share": 0.5}))
    for field, keep in zip(made, chosen.keep, strict=True):
        field["kept"] = keep
    total, kept = (
        sum(f["width"] for f in made if f["kept"] or everything) for everything in (True, False)
    )
    value, interval = difference
    return {
        "format": 1,
        "kind": "select",
        "title": f"Clicks of {fields} fields",
        "created": "2026-11-17T07:00:00",
        "command": "torchleap select clicks.parquet --label click --out clicks --group user_id",
        "versions": {"torchleap": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        "machine": "Intel Xeon, 2 cores, Linux",
        "task": {
            "label": "click",
            "source": "/data/clicks.parquet",
            "rows": {"train": 80_000, "valid": 10_000, "test": 10_000},
            "fields": fields,
            "dims": total,
            "group": "user_id",
        },
        "method": method,
        "settings": {
            "strength": None,
            "alpha": 1e-3,
            "temperature": 0.2,
            "momentum": 0.99,
            "gates_on": "valid",
        },
        "model": "wide_deep",
        "model_settings": {"hidden": [256, 128], "dropout": 0.0},
        "training": {"epochs": 3, "batch": 512, "lr": 0.001, "patience": 2},
        "seed": 0,
        "rule": {"threshold": 0.5} if method == "leap" else {"share": 0.5},
        "fields": made,
        "trajectories": _trajectories(rng, made, steps) if method == "leap" else None,
        "history": _history(rng, steps),
        "curve": _curve(rng, made),
        "metrics": {
            "before": {"auc": 0.8312, "log_loss": 0.4410, "gauc": 0.7921},
            "after": {"auc": 0.8312 + value, "log_loss": 0.4413, "gauc": 0.7915},
            "difference": {
                "metric": "auc",
                "value": value,
                "interval": list(interval) if interval else None,
            },
        },
        "savings": {
            "parameters": [total * 256 + 40_000, kept * 256 + 40_000],
            "bytes": [total * 40_000, kept * 40_000],
            "multiply_adds": [total * 256 + 33_000, kept * 256 + 33_000],
            "milliseconds": [1.9, 0.84],
            "batch": 512,
        },
        "certificate": certificate_record(value, interval) if interval else None,
        "cuts": _cuts(made, total, kept),
        "notes": ["2 columns hold the same values: item_id and shop_item. One of them is enough."],
        "seconds": {
            "read": 3.2,
            "search": 71.4,
            "surgery": 0.2,
            "fine-tuning": 22.0,
            "report": 2.1,
        },
    }


def certificate_record(value, interval, *, metric="auc", margin=0.001, support=900, **parts):
    """Return the certificate of a change, whose verdict follows from its interval."""
    sign = -1 if metric == "log_loss" else 1
    before = 0.8312
    error = (interval[1] - interval[0]) / 3.92
    largest = 1.645 * error - sign * value
    verdict, reasons, needed = "safe", [], None
    if sign * value + 1.645 * error < -margin:
        verdict = "not safe"
        reasons = [f"The AUC loses more than {margin:g}, at 95 % confidence."]
    elif largest >= margin:
        verdict = "undecided"
        reasons = ["If both models are equally good, 45,210 rows would show it at 80 % power."]
        needed = {"units": 45_210, "rows": 45_210, "support": 4_100}
    return {
        **{"metric": metric, "margin": margin, "relative": None},
        **{"before": before, "after": before + value, "low": interval[0], "high": interval[1]},
        **{"largest_loss": largest, "verdict": verdict, "rows": 10_000, "support": support},
        **{"unit": "rows", "units": 10_000, "needed": needed, "needed_as_measured": None},
        **{"repeats": 1, "training_deviation": None, "typical_training": 0.0007},
        **{"reasons": reasons, "slices": [], "slices_examined": 0, "slice_margin": None},
        "notes": ["The interval covers the chance of the rows, not that of another training."],
        **parts,
    }


def path_record(fields=12, *, rule=None, metric="auc", costs=False, **settings):
    """Return a record of a search with a price path: worth in nats, points and substitutes.

    The selection is the point of the path within one standard error of the best, unless another
    rule is given; that of the path then remains. With `costs` fields have costs of their own.
    """
    record = select_record(fields, **settings)
    rng = random.Random(fields)
    for field in record["fields"]:
        if costs:
            field["cost"] = round(rng.uniform(0.1, 3), 2)
        field |= _worth(rng, field)
        field |= {"score": field["worth"], "price": None}
    path = _path(rng, record["fields"], metric)
    kept = set(path.smallest_within().kept)
    for field in record["fields"]:
        field["kept"] = field["name"] in kept
    return record | {
        "rule": rule or {"tolerance": "1se"},
        "path": json.loads(json.dumps(asdict(PathRecord.of(path)))),
        "known_metrics": {
            "auc": {"title": "AUC", "higher_is_better": True},
            "log_loss": {"title": "log loss", "higher_is_better": False},
        },
    }


def _worth(rng, field):
    useful = field["role"] == "useful"
    nats = 10 ** rng.uniform(-3.6, -1.4) if useful else rng.gauss(2e-5, 8e-5)
    error = 4e-5 + 0.12 * abs(nats)
    return {"worth": nats, "worth_low": nats - 2 * error, "worth_high": nats + 2 * error}


def _path(rng, fields, metric):
    """Return a path on which the field of least worth closes first; protected ones stay open."""
    sign = {"auc": 1, "log_loss": -1}[metric]
    groups = {}
    for field in fields:
        groups.setdefault(field["group"] or field["name"], []).append(field)
    order = [group for group in groups.values() if not any(f["protected"] for f in group)]
    order.sort(key=lambda group: max(field["worth"] for field in group))
    level = {"auc": 0.8312, "log_loss": 0.441}[metric]
    start = level
    best = -math.inf
    kept = list(fields)
    points = []
    for count in range(len(order) + 1):
        closed = order[count - 1] if count else []
        kept = [field for field in kept if field not in closed]
        level -= sign * sum(0.9 * field["worth"] for field in closed) + rng.gauss(0, 1e-4)
        error = 2e-4 * math.sqrt(count)
        best = max(best, sign * level)
        behind = best - sign * level
        point = PathPoint(
            kept=tuple(field["name"] for field in kept),
            closed=tuple(field["name"] for field in closed),
            dims=sum(field["width"] for field in kept),
            cost=sum(field["cost"] for field in kept),
            metric=level,
            low=level - 2 * error,
            high=level + 2 * error,
            behind=behind,
            error=error if behind else 0.0,
            loss=0.441 + abs(start - level),
            price=2e-5 * 1.3**count,
            step=400 + 25 * count,
        )
        points.append(point)
    substitutes = [
        Substitute(closed["name"], other["name"], other["worth"], other["worth"] + 0.01)
        for (closed, *_), (other, *_) in list(zip(order, order[::-1], strict=True))[:3]
    ]
    worth = {f["name"]: Worth(f["worth"], f["worth_low"], f["worth_high"]) for f in fields}
    return Path(metric, worth, tuple(points), tuple(substitutes))


def selection_of(fields, *, method="leap", **rule):
    """Return the selection of the library itself from the fields of a record."""
    keys = ("name", "width", "cost", "protected", "group")
    known = Fields(
        [Field(**{key: f[key] for key in keys if f.get(key) is not None}) for f in fields]
    )
    return select(known, {f["name"]: f["score"] for f in fields}, method=method, **rule)


def _cuts(fields, total, kept):
    dropped = [f for f in fields if not f["kept"]][:40]
    tables = [
        {
            "layer": f"embedding.{f['name']}",
            "before": f"Embedding(200, {f['width']})",
            "after": "removed",
            "parameters": -200 * f["width"],
        }
        for f in dropped
    ]
    first = {
        "before": f"Linear({total}, 256)",
        "after": f"Linear({kept}, 256)",
        "parameters": (kept - total) * 256,
    }
    return [*tables, {"layer": "deep.0", **first}]


def _names(rng, fields, ugly):
    plain = [f"{theme}_{signal}" for theme in THEMES for signal in SIGNALS]
    plain += [f"{name}_{place}" for place in range(2, 9) for name in plain]
    rng.shuffle(plain)
    names = [*(UGLY[: fields // 3] if ugly else ()), *plain][:fields]
    rng.shuffle(names)
    return names


def _field(rng, name, place):
    width = rng.choice(WIDTHS)
    sparsity = rng.choice((rng.random() * 0.4, 1 - 10 ** -rng.uniform(0.3, 3.5)))
    useful = rng.random() < 0.4
    score = 1 - 0.3 * rng.random() ** 4 if useful else rng.random() ** 6 * 0.9
    divergence = math.sqrt(width * (1 - sparsity)) * rng.uniform(0.7, 1.4)
    return {
        "name": name,
        "width": width,
        "kind": rng.choice(("number", "id", "list of ids")) if width > 1 else "number",
        "score": round(score, 6),
        "kept": False,
        "protected": place == 3,
        "cost": float(width),
        "group": f"pair {place // 10}" if place % 10 in (5, 6) else None,
        "sparsity": sparsity,
        "missing": rng.choice((0.0, 0.0, rng.random() * 0.2)),
        "ids": rng.randrange(2, 90_000) if width > 1 else None,
        "divergence": divergence,
        "price": 1e-3 * divergence,
        "role": "useful" if useful else rng.choice(("noise", "redundant", "constant")),
        "bytes": width * 4 * rng.randrange(1, 90_000),
    }


def _trajectories(rng, fields, steps):
    def path(final, speed):
        start = 0.993
        return [
            min(
                1.0,
                max(
                    0.0,
                    final
                    + (start - final) / (1 + math.exp((step / steps - speed) * 18))
                    + rng.gauss(0, 0.008),
                ),
            )
            for step in range(steps)
        ]

    return {
        "steps": [25 * step for step in range(steps)],
        "gates": {f["name"]: path(f["score"], rng.uniform(0.2, 0.6)) for f in fields},
    }


def _history(rng, steps):
    rows = []
    for step in range(0, steps, 4):
        level = 1 - math.exp(-step / steps * 5)
        rows.append(
            {
                "step": 25 * step,
                "seconds": step * 0.9,
                "train_loss": 0.69 - 0.24 * level + rng.gauss(0, 0.004),
                "lr": 1e-3,
            }
        )
        rows[-1] |= {
            "valid_auc": 0.55 + 0.28 * level + rng.gauss(0, 0.001),
            "valid_log_loss": 0.69 - 0.24 * level,
        }
    return rows


def _curve(rng, fields):
    order = sorted((f for f in fields if not f["protected"]), key=lambda f: (f["score"], f["name"]))
    total = sum(f["width"] for f in fields)
    points, removed = [{"fields": 0, "dims": 0, "value": 0.831}], 0
    loss = 0.0
    for count, field in enumerate(order, 1):
        removed += field["width"]
        loss += max(0.0, field["score"]) ** 3 * 0.3 / len(fields) * 2 + rng.gauss(0, 0.0001)
        points.append({"fields": count, "dims": removed, "value": 0.831 - max(0, min(loss, 0.3))})
    thin = points if len(points) < 60 else points[:: len(points) // 60] + points[-1:]
    retrained = [
        {
            "dims": round(total * part),
            "value": 0.8305 - part**4 * 0.05,
            "interval": [0.8295 - part**4 * 0.05, 0.8315 - part**4 * 0.05],
        }
        for part in (0.25, 0.5, 0.75)
    ]
    for point in retrained:
        point["label"] = "retrained"
    return {
        "metric": "auc",
        "order": [f["name"] for f in order],
        "points": thin,
        "retrained": retrained,
    }


def bench_record():
    """Return a small comparison of methods."""
    methods = ("leap", "permutation", "lasso", "random")
    return {
        "format": 1,
        "kind": "bench",
        "title": "Methods on two sets",
        "created": "2026-11-17T07:00:00",
        "machine": "two cores",
        "versions": {"torchleap": "0.1.0"},
        "tables": [
            {
                "title": "Test AUC at half of the fields",
                "columns": ["method", "census", "movielens"],
                "rows": [
                    [name, f"0.9{50 - place} ± 0.0004", 0.8 - place / 100]
                    for place, name in enumerate(methods)
                ],
            }
        ],
        "curves": [
            {
                "title": "AUC by share of fields",
                "x": "share of fields kept",
                "y": "test AUC",
                "series": [
                    {
                        "name": name,
                        "points": [
                            [
                                share / 10,
                                0.7 + share / 100 - place / 80,
                                0.69 + share / 100 - place / 80,
                                0.71 + share / 100 - place / 80,
                            ]
                            for share in range(1, 11)
                        ],
                    }
                    for place, name in enumerate(methods)
                ],
            }
        ],
    }


METHODS = (
    *("leap", "leap_base", "permutation", "shark", "lasso", "gradient", "integrated_gradients"),
    *("autofield", "adafs", "lpfs", "optfs", "sfs", "xgboost", "random_forest"),
    *("mutual_information", "stochastic_gates", "random", "all fields"),
)


def large_bench_record():
    """Return a comparison as `torchleap bench` makes it, with many methods and two shares."""
    rng = random.Random(0)
    rows = [
        [
            name,
            share,
            f"{value:.4f} ± {rng.random() / 1000:.4f}",
            *_compared(rng, value),
            "-" if name == "all fields" else place,
        ]
        for share in (0.25, 0.5)
        for place, name in enumerate(METHODS, 1)
        for value in [0.8097 - place * 0.0011 - (0.5 - share) * 0.02 * rng.random()]
    ]
    shares = (0.05, 0.1, 0.25, 0.4, 0.5, 0.75, 1.0)
    curve = [
        {"name": name, "points": [_banded(rng, share, place) for share in shares]}
        for place, name in enumerate(METHODS[:6])
    ]
    gates = [
        {
            "name": f"{theme}_embedding",
            "points": [[25 * step, gate] for step, gate in enumerate(path)],
        }
        for theme, path in zip((*THEMES, UGLY[0]), _nine_gates(rng), strict=True)
    ]
    pays = [
        [
            f"{share:.0%}",
            64 - round(64 * share),
            round(1.2e6 * share),
            f"{1.9 * share + 0.2:.2f} ms",
            0.81 - (1 - share) ** 3 / 40,
        ]
        for share in shares
    ]
    return {
        "format": 1,
        "kind": "bench",
        "title": "Methods on the search-ranking log",
        "created": "2026-11-17T07:00:00",
        "machine": "Intel Xeon, 2 cores, Linux",
        "command": "torchleap bench methods --rows 1000000 --seeds 5 --shares 0.25,0.5",
        "versions": {"torchleap": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        "settings": {
            "rows": 1_000_000,
            "seeds": [0, 1, 2, 3, 4],
            "shares": [0.25, 0.5],
            "model": "wide_deep",
            "batch": 1024,
        },
        "summary": [
            "LeAP keeps the AUC of all fields with half of them.",
            "At a quarter of the fields it is 0.0011 above the next method, in 5 of 5 seeds.",
        ],
        "tables": [
            {
                "title": "Test AUC after training again, by method and share of the fields",
                "columns": [
                    "method",
                    "share",
                    "test AUC",
                    "against random",
                    "time to score",
                    "useful kept",
                    "rank",
                ],
                "rows": [
                    *rows,
                    [UGLY[1], 0.5, None, None, None, None, "-"],
                    [UGLY[3], 0.5, "-", "-", "-", "-", "-"],
                ],
                "notes": [
                    "Mean and standard error of 5 seeds.",
                    "Time on two cores; higher AUC is better.",
                ],
            },
            {
                "title": "The return on pruning",
                "columns": [
                    "share kept",
                    "fields dropped",
                    "parameters",
                    "a batch takes",
                    "test AUC",
                ],
                "rows": pays,
            },
        ],
        "curves": [
            {
                "title": "AUC by share of fields",
                "x": "share of fields kept",
                "y": "test AUC",
                "series": curve,
            },
            {
                "title": "Gates over training",
                "x": "step",
                "y": "gate",
                "notes": ["One seed, 80 evaluations."],
                "series": gates,
            },
        ],
    }


def _compared(rng, value):
    seconds = rng.choice((0.4, 12.3, 59, 125, 7260)) * rng.uniform(0.9, 1.1)
    return (
        f"{value - 0.79:+.4f} ± 0.0005",
        numbers.seconds(seconds),
        f"{rng.randrange(12, 25)} of 24",
    )


def _banded(rng, share, place):
    value = 0.81 - (1 - share) ** 3 * (0.02 + place * 0.008) + rng.gauss(0, 0.0004)
    return [
        share,
        value,
        value - 0.0015 - 0.002 * (1 - share),
        value + 0.0015 + 0.002 * (1 - share),
    ]


def _nine_gates(rng):
    finals = (1.0, 0.97, 0.9, 0.6, 0.45, 0.2, 0.05, 0.02, 0.0)
    return _trajectories(rng, [{"name": str(final), "score": final} for final in finals], 80)[
        "gates"
    ].values()
