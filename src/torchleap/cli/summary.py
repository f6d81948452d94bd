"""The summary of a decision, as select and demo print it at the end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._common.text import plural
from .inputs import show_findings
from .lists import joined
from .messages import in_options
from .show import show, show_json

if TYPE_CHECKING:
    from ..data.synthetic.truth import KnownTruth
    from ..pipeline.decide import Decision
    from ..selection import Selection

COLOURS = {"safe": "green", "not safe": "red", "undecided": "yellow"}
OPTIONS = {"repeats": "--repeats"}  # which a certificate names as settings
NEAR = 0.2  # from the threshold, within which a score is a close call


def json_of(decision: Decision, out: Path) -> dict[str, Any]:
    """Return the summary of a decision for scripts, as plain JSON."""
    record = decision.record
    found: dict[str, Any] = {
        "kept": decision.selection.kept,
        "dropped": decision.selection.dropped,
    }
    for key in (
        "rule",
        "metrics",
        "savings",
        "seconds",
        "findings",
        "undecided",
        "certificate",
        "reruns",
    ):
        found[key] = record[key]
    if record["rehearsal"] is not None:
        found["rehearsal"] = record["rehearsal"]
    return {**found, "out": str(out)}


def show_summary(
    context: typer.Context,
    decision: Decision,
    out: Path,
    *,
    json: bool = False,
    time_limit: float | None = None,
) -> None:
    """Print which fields to drop, what that costs and saves, and where the results are.

    Args:
        context: The context of the command.
        decision: The decision, which has been written.
        out: The folder that it was written to.
        json: Print JSON for scripts instead.
        time_limit: The seconds that the run was given; None without a limit.
    """
    from ..report.verdict import headline, outcome

    if json:
        show_json(json_of(decision, out))
        return
    record = decision.record
    quiet = context.obj["quiet"]
    if not quiet:
        show("")
    show(headline(record), style=f"bold {COLOURS.get(outcome(record), '')}".strip())
    leaks = [one for one in record["findings"] if one["kind"] == "leak"]
    show_findings(leaks, str(record["task"]["source"]))
    _show_evidence(record, decision.selection, time_limit)
    if record["rehearsal"] is not None:
        from ..evidence.rehearsal import Rehearsal

        show(str(Rehearsal.from_json(record["rehearsal"])))
    close = close_calls(record)
    if close and not record["undecided"]:
        show(f"Close calls: {close}.")
    if not quiet:
        show(f"\nWrote {out}: the report is {out / 'report.html'}, the model {out / 'model'}.")
        scores = shlex.quote(str(out / "scores.parquet"))
        show(f"Next: torchleap predict {shlex.quote(str(out))} NEW_FILE --out {scores}")


def _show_evidence(
    record: Mapping[str, Any], selection: Selection, time_limit: float | None
) -> None:
    """Print the comparison of both models, or why all fields stay."""
    from ..report.certificate import left_out
    from ..report.reruns import sentences
    from ..report.verdict import advice, certainty, further_reasons, rule, savings, tolerance

    if selection.dropped:
        show(f"{measured(record)} {certainty(record)}")
        for sentence in (*further_reasons(record), *sentences(record), *left_out(record)):
            show(in_options(sentence, OPTIONS))
        show(savings(record))
        if tolerance(record) or {"worth", "fdr"} & set(record["rule"]):
            show(rule(record))
        show(f"Keep: {shortened(selection.kept)}.\nDrop: {shortened(selection.dropped)}.")
    elif record["undecided"]:
        again = "" if "fdr" in record["rule"] else ", without training again"
        resume = "" if "fdr" in record["rule"] else "--resume "  # a search with decoys is another
        show(
            f"{advice(record)} To keep the better half{again}: "
            f"{resume}--share 0.5 in place of another rule."
        )
    else:
        reason = why_all_stay(record, time_limit)
        show(f"{reason} Another rule drops some: torchleap select ... --share 0.5.")


def why_all_stay(record: Mapping[str, Any], time_limit: float | None) -> str:
    """Return the reason for which a rule drops no field."""
    from ..report.numbers import worth
    from ..report.record import is_masked
    from ..report.verdict import tolerance

    accepted = tolerance(record)
    if accepted:
        unadapted = ", without adaptation," if is_masked(record) else ""
        return (
            f"Every smaller model on the path{unadapted} is worse than the best by more than "
            f"{accepted}."
        )
    if "worth" in record["rule"]:
        return f"Every unprotected field is worth at least {worth(record['rule']['worth'])} nats."
    if "fdr" in record["rule"]:
        return "All fields are clearly better than their decoys."
    if "threshold" not in record["rule"]:
        return "This rule leaves room for all of them."
    reason = "No unprotected field scores low enough for this rule."
    if time_limit is None:
        return reason
    late = f"Gates close late: within {time_limit:g} seconds they may have had too few steps."
    return f"{reason} {late}"


def measured(record: Mapping[str, Any]) -> str:
    """Return the headline metric of both models, and on how many rows it was measured."""
    from ..objectives import METRICS

    metrics = record["metrics"]
    metric = METRICS[metrics["difference"]["metric"]]
    before = metric.format(metrics["before"][metric.name])
    after = metric.format(metrics["after"][metric.name])
    rows = plural(record["task"]["rows"]["test"], "test row")
    return f"{metric.title} on {rows}: {before} with all fields, {after} with those kept."


def shortened(names: Sequence[str], count: int = 12, where: str = ", see selection.json") -> str:
    """Return the first names, and how many more there are.

    >>> shortened(["a", "b", "c"], count=2, where="")
    'a, b and 1 more'
    """
    if not names:
        return "nothing"
    first = joined(names[:count])
    if len(names) <= count:
        return first
    return f"{first} and {len(names) - count:,} more{where}"


def close_calls(record: Mapping[str, Any], count: int = 3) -> str:
    """Return the fields whose gates ended near the threshold; "" if there are none."""
    from ..report.record import decision, threshold

    bar = threshold(record)
    if bar is None:
        return ""
    near = []
    for field in record["fields"]:
        distance = abs(field["score"] - bar)
        if distance <= NEAR and not field["protected"]:
            near.append((distance, field["name"], field))
    near.sort(key=lambda one: one[:2])
    shown = [f"{name} ({field['score']:.2f}, {decision(field)})" for _, name, field in near[:count]]
    if not shown:
        return ""
    return f"{', '.join(shown)}; the threshold is {bar:g}"


def against_truth(selection: Selection, truth: KnownTruth) -> str:
    """Return how many fields a selection got right, where the ground truth is known."""
    kept = set(selection.kept)
    lost = [name for name in truth.useful if name not in kept]
    useless = [name for name in truth.useless if name not in kept]
    copies = [name for name in truth.source if name not in kept]
    found = len(truth.useful) - len(lost)
    counts = (
        f"Against the ground truth: {found} of {plural(len(truth.useful), 'useful field')} kept, "
        f"{len(useless)} of {plural(len(truth.useless), 'useless field')} dropped, "
        f"{len(copies)} of {len(truth.source)} redundant copies dropped."
    )
    if not lost:
        return counts
    return f"{counts} Useful, but dropped: {shortened(lost, 6, '')}."
