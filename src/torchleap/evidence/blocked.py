"""Which findings about the data forbid the word "safe", whatever the test rows show."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

# A certificate says that new rows would not be served worse. It cannot if the test rows are unlike
# new rows, or if the model that it compares with is not the one that the user would have. All other
# findings (ids, dates, twins, constants, doubtful headers, rows that repeat in one part) touch both
# models alike: they may make a model worse than it could be, but the comparison holds.
ALWAYS = {
    # new rows do not have the label, so both models are measured on what they will not see
    "leak": "{column!r} gives the label away: {text}.",
    # a model may have memorised these test rows, and they count as more evidence than they are
    "copies": "The test rows are not new: {text}.",
}
# A column that was misread had no chance: the full model lacks what it says, so that leaving it out
# costs nothing here and may cost much in a model that reads it correctly.
IF_DROPPED = {
    "number": "{column!r} would be dropped, but may have been misread: {text}.",
    "mixed": "{column!r} would be dropped, but may have been misread: {text}.",
}


def blocked_by(findings: Iterable[Mapping[str, Any]], dropped: Collection[str]) -> list[str]:
    """Return a sentence for each finding for which nothing may be called safe.

    >>> blocked_by([{"kind": "leak", "column": "paid", "text": "same as the label"}], [])
    ["'paid' gives the label away: same as the label."]

    Args:
        findings: Problems of the data: `asdict` of those of `data.inspect`.
        dropped: The names of the fields that would be dropped.
    """
    found = []
    for one in findings:
        sentence = ALWAYS.get(one["kind"])
        if one["column"] in dropped:
            sentence = sentence or IF_DROPPED.get(one["kind"])
        if sentence is not None:
            found.append(sentence.format(**one))
    return found
