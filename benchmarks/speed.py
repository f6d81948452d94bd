"""How the quality of the path depends on its speed: a quarter to four times the usual steps.

    TORCHLEAP_DATA=... python benchmarks/speed.py --data census truth@0-2 industrial@0 --out DIR

The steps in which the price rises are those of the default times a factor. For each there are the
seconds of a search, the test metric of models that are retrained with 50, 25 and 10 % of the fields
(the mean over searches and trainings, with the standard deviation), and, where the ground truth is
known, F1 and the others of ranking.py. Seconds are those of the run that filled the store.
"""

import statistics
from collections.abc import Sequence

from _shared import (
    Found,
    Laboratory,
    Retrained,
    laboratory,
    parser_of,
    possible_shares,
    spread_text,
)
from _truth import TRUTH, truth_of

from torchleap._common.text import table
from torchleap.methods import LeAPMethod
from torchleap.selection import Rule

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
SHARES = (0.5, 0.25, 0.1)


def methods_of(factors: Sequence[float]) -> dict[str, LeAPMethod]:
    """Return the path at each speed.

    >>> methods_of([0.25])["x 0.25"].slowness
    0.25
    """
    return {f"x {factor:g}": LeAPMethod(slowness=factor) for factor in factors}


def line(searches: list[Found], retrained: Retrained) -> list[str]:
    """Return the cells of one speed."""
    data = searches[0].data
    cells = [f"{statistics.mean(found.seconds for found in searches):.1f}"]
    for share in possible_shares(data, SHARES):
        values = []
        for found in searches:
            kept = found.kept(Rule.of(share=share))
            values += retrained.values(data.name, kept, f"test_{data.headline.name}")
        cells.append(spread_text(values))
    if data.useful:
        measured = [truth_of(found) for found in searches]
        cells += [spread_text([one[column] for one in measured]) for column in TRUTH]
    return cells


def report(lab: Laboratory) -> str:
    """Run what is not in the store for the data set of a laboratory, and return its table."""
    [data] = lab.data.values()
    searches = lab.search()
    shares = possible_shares(data, SHARES)
    wanted = []
    for found in searches.values():
        wanted += [(data.name, found.kept(Rule.of(share=share))) for share in shares]
    retrained = lab.retrain(wanted)
    rows = []
    for name in lab.grid.methods:
        own = [found for (_, method, _), found in searches.items() if method == name]
        rows.append([name, *line(own, retrained)])
    head = ["steps", "seconds", *(f"{share:.0%}" for share in shares)]
    if data.useful:
        head += TRUTH
    title = f"{data.name}: test {data.headline.title}"
    return "\n".join([title, table(head, rows), ""])


def main() -> None:
    """Print a table for each data set."""
    parser = parser_of(__doc__, ["census", "truth@0-2", "industrial@0"])
    given = parser.parse_args()
    methods = methods_of(FACTORS)
    for name in laboratory(given, methods).data:
        given.data = [name]
        print(report(laboratory(given, methods)))


if __name__ == "__main__":
    main()
