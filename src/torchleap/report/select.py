"""The page of a selection: the words and numbers of its sections, one function per section."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._common.checks import is_number
from . import certificate, colours, numbers, reruns, verdict
from .charts.fields import score_title
from .charts.path import path_axes, path_has_close_view
from .charts.pieces import Charts
from .charts.training import history_titles
from .measures import rank_correlation
from .planner import budget
from .record import (
    created,
    decision,
    dig,
    findings,
    has_gates,
    in_nats,
    is_masked,
    least_worth,
    metric_named,
    scored,
)
from .script import DECISIONS, is_known, script_data

OPTION = re.compile(r"(--[a-z-]+ (?:'[^']*'|[^\s,;]*[^\s,;.]))")


def select_context(record: Mapping[str, Any], drawn: Charts) -> dict[str, Any]:
    """Return the variables of the template for a selection.

    Args:
        record: The record.
        drawn: Its charts; a section without charts is left out.
    """
    undecided = dig(record, "undecided")
    titles = {key: title for key, title in history_titles(record).items() if key in drawn.specs}
    return {
        "answer": verdict.answer(record),
        "headline": _unbroken(verdict.headline(record)),
        "certificate": _certificate(record),
        "reasons": [_unbroken(one) for one in verdict.further_reasons(record)],
        "left_out": [
            _unbroken(one) for one in (*reruns.sentences(record), *certificate.left_out(record))
        ],
        "certainty": _unbroken(_certainty(record)),
        "findings": [{**one, "parts": _parts(one.get("cure", ""))} for one in findings(record)],
        "savings": "" if undecided else _unbroken(verdict.savings(record)),
        "outcome": verdict.appearance(record),
        "on_few_rows": certificate.is_on_few_rows(record),
        "slices": certificate.slice_rows(record),
        "slices_note": certificate.slices_note(record),
        "tiles": verdict.tiles(record),
        "facts": _facts(record),
        "score": score_title(record),
        "gated": has_gates(record),
        "nats": in_nats(record),
        "short": _short(record),
        "rule": verdict.rule(record),
        "by_worth": least_worth(record) is not None,
        "tolerance": verdict.tolerance(record),
        "path": _path(record, drawn),
        "planned": budget(record) is not None,
        "substitutes": _substitutes(record),
        "legends": _legends(record),
        "history": titles,
        "correlations": _correlations(record),
        "adaptive": _price_follows_divergence(record),
        "roles": _roles(record),
        "replicas": is_known(record, "kept_in"),
        "metrics": _metrics(record),
        "cuts": sorted(record.get("cuts") or [], key=_size_of_cut, reverse=True),
        "sections": _sections(record, drawn),
        "script": script_data(record),
    }


def _certificate(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the parts of the certificate as pairs of a name and a text; none without one."""
    rows = certificate.certificate_rows(record)
    return [(name, _unbroken(text)) for name, text in rows]


def _certainty(record: Mapping[str, Any]) -> str:
    """Return the words about the change; "" where the parts of a certificate stand beside it."""
    advice = verdict.advice(record)
    if advice or not certificate.certificate_rows(record) or certificate.is_on_few_rows(record):
        return advice or verdict.certainty(record)
    return ""


def _sections(record: Mapping[str, Any], drawn: Charts) -> list[tuple[str, str]]:
    """Return the anchors and headings of the sections that the page has."""
    names = set(drawn.specs)
    found = [("verdict", "Verdict")]
    if certificate.slice_rows(record):
        found.append(("slices", "Slices"))
    if "path" in names:
        found.append(("path", "Path"))
    found.append(("gates", {"gate": "Gates", "worth": "Worth"}.get(_short(record), "Scores")))
    if names & {"trajectories", *history_titles(record)}:
        found.append(("training", "Training"))
    if names & {"width", "sparsity", "divergence"}:
        found.append(("size", "Width and sparsity"))
    if "return" in names or (budget(record) and "path" not in names):
        found.append(("budget", "Budget"))
    return [*found, ("fields", "Fields"), ("settings", "Settings")]


def _short(record: Mapping[str, Any]) -> str:
    """Return the word for a score of this method."""
    if in_nats(record):
        return "worth"
    return "gate" if has_gates(record) else "score"


def _path(record: Mapping[str, Any], drawn: Charts) -> dict[str, Any]:
    """Return the switches of the chart of the path; none where it is not drawn."""
    if "path" not in drawn.specs:
        return {}
    titles = {"fields": "fields", "dims": "dimensions", "cost": "cost"}
    return {
        "axes": {key: titles[key] for key in path_axes(record)},
        "close_view": path_has_close_view(record),
        "masked": is_masked(record),
    }


def _substitutes(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the field that closed, the one that took over, and the rise of its worth."""
    rows = []
    for one in dig(record, "path", "substitutes") or []:
        if one and one.get("closed") and one.get("field"):
            before = numbers.worth(one.get("before"))
            after = numbers.worth(one.get("after"))
            rows.append((one["closed"], one["field"], f"rose from {before} to {after} nats"))
    return rows


def _parts(text: str) -> list[tuple[str, str]]:
    """Split a text into pairs of plain words and the option after them, which no line may break.

    >>> _parts("Leave it out: --drop 'a b'.")
    [('Leave it out: ', "--drop 'a b'"), ('.', '')]
    """
    found = OPTION.split(text)
    return list(zip(found[::2], [*found[1::2], ""], strict=True))


def _unbroken(text: str) -> str:
    """Return a text in which no line ends between a number and its per cent sign."""
    return text.replace(" %", "\u00a0%")


def _facts(record: Mapping[str, Any]) -> list[str]:
    """Return the line below the title: the method, the model, the data and the date."""
    rows = dig(record, "task", "rows") or {}
    counts = [f"{numbers.count(count)} {part}" for part, count in rows.items() if is_number(count)]
    label = dig(record, "task", "label")
    source = dig(record, "task", "source") or ""
    facts = (
        f"Method {record['method']}" if record.get("method") else "",
        f"model {record['model']}" if record.get("model") else "",
        f"label {label}" if label else "",
        f"{', '.join(counts)} rows" if counts else "",
        _positives(record),
        source if " " in source else Path(source).name,
        created(record),
    )
    return [fact for fact in facts if fact]


def _positives(record: Mapping[str, Any]) -> str:
    """Return how many of all rows are positive; "" if unknown."""
    positives = dig(record, "task", "positives") or {}
    rows = dig(record, "task", "rows") or {}
    counts = [count for part in positives for count in (positives[part], rows.get(part))]
    if not counts or not all(map(is_number, counts)):
        return ""
    total = sum(rows[part] for part in positives)
    found = sum(positives.values())
    fraction = numbers.percent(found / total) if total else numbers.UNKNOWN
    return f"{numbers.count(found)} positive ({fraction})"


def _legends(record: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """Return the legends of the colours that can be chosen, by the key of the choice."""
    legends = {}
    if is_known(record, "sparsity"):
        legends["sparsity"] = colours.legend(colours.SPARSITIES)
    if is_known(record, "width"):
        legends["width"] = colours.legend(colours.WIDTHS)
    found = {decision(field) for field in record["fields"]}
    legends["decision"] = [
        {"colour": colour, "text": DECISIONS[name]}
        for name, colour in colours.DECISIONS.items()
        if name in found
    ]
    return legends


def _correlation(record: Mapping[str, Any], first: str, second: str) -> float | None:
    """Return the rank correlation of two numbers over the fields that have both."""
    pairs = []
    for field in scored(record):
        if is_number(field.get(first)) and is_number(field.get(second)):
            pairs.append((field[first], field[second]))
    if not pairs:
        return None
    return rank_correlation([one for one, _ in pairs], [other for _, other in pairs])


def _correlations(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the rank correlation of the score with the sizes that should not decide it."""
    found = {}
    for key in ("width", "sparsity", "divergence"):
        value = _correlation(record, "score", key)
        if value is not None:
            found[key] = f"{value:+.2f}".replace("-", numbers.MINUS)
    return found


def _price_follows_divergence(record: Mapping[str, Any]) -> bool:
    """Return whether the price of a gate grows with its divergence, or is the same for all."""
    value = _correlation(record, "price", "divergence")
    return value is not None and value > 0.9


def _size_of_cut(cut: Mapping[str, Any]) -> float:
    return float(abs(cut.get("parameters") or 0))


def _roles(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how many fields of each role are kept and dropped, where the roles are known."""
    if not is_known(record, "role"):
        return []
    by_role: dict[str, list[str]] = {}
    for field in record["fields"]:
        by_role.setdefault(str(field.get("role") or "unknown"), []).append(decision(field))
    rows = []
    for role, decisions in sorted(by_role.items()):
        dropped = decisions.count("dropped")
        kept = len(decisions) - dropped
        rows.append({"role": role.replace("_", " "), "kept": kept, "dropped": dropped})
    return rows


def _metrics(record: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the title of each metric, its value before and after, and its change."""
    before = dig(record, "metrics", "before") or {}
    after = dig(record, "metrics", "after") or {}
    rows = []
    for name, value in before.items():
        if is_number(value) and is_number(after.get(name)):
            title = metric_named(record, name).title
            change = numbers.signed(after[name] - value)
            rows.append((title, numbers.metric(value), numbers.metric(after[name]), change))
    return rows
