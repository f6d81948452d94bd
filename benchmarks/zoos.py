"""Public zoos: attach, train in their own loop, prune, fine-tune, save and load each model.

    make zoos                                  all zoos, each in a virtual environment of its own
    python benchmarks/zoos.py --zoo rechub --rows 8000
    python benchmarks/zoos.py --print          only the table of what is stored

Each zoo runs where it is installed. The results are appended to a store, one JSON object per line,
so that the table joins the results of several environments; the last result of a model counts.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.zoos.log import ROWS  # noqa: E402
from tests.zoos.registry import ZOOS, Zoo  # noqa: E402
from tests.zoos.run import Loader, Record, run  # noqa: E402

STORE = ROOT / "zoos.jsonl"
CLOSE = 0.10  # how near the cut should be to what the zoo's own configuration would save
AIM_NATIVE = 70
AIM_LOADS = 60
AIM_ALL = 84
HEADER = ("zoo", "model", "attach", "train", "selected", "pruning", "exact", "cut")
HEADER += ("configured", "tuned", "loads")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the zoos that are installed, and print the table."""
    options = _options(arguments)
    if not options.print:
        for zoo in ZOOS:
            if options.zoo and zoo.module not in options.zoo:
                continue
            if zoo.installed:
                _run(zoo, options)
            else:
                print(f"{zoo.name} is not installed here: skipped.", file=sys.stderr)
    records = stored(options.store)
    print(table(records))
    print(totals(records))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    modules = [zoo.module for zoo in ZOOS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--zoo", nargs="*", choices=modules, help="the zoos to run; all by default")
    parser.add_argument("--model", nargs="*", help="the models to run; all of the zoos")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the log")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, default=STORE, help="where results are appended")
    parser.add_argument("--print", action="store_true", help="run nothing")
    return parser.parse_args(arguments)


def _run(zoo: Zoo, options: argparse.Namespace) -> None:
    """Run the combinations of a zoo, and append each record to the store."""
    loader = Loader()
    for combination in zoo.combinations():
        if options.model and combination.name not in options.model:
            continue
        record = run(combination, loader, options.rows, options.seed)
        with options.store.open("a") as store:
            store.write(json.dumps(asdict(record)) + "\n")
        print(f"{zoo.name} {record.name}: {_outcome(record)}", file=sys.stderr, flush=True)
        for stage, error in record.errors.items():
            print(f"    {stage}: {error[:300]}", file=sys.stderr, flush=True)
    loader.close()


def stored(path: Path) -> list[Record]:
    """Return the last record of each model in a store, in the order of the registry."""
    known = {one.name for one in fields(Record)}
    found: dict[tuple[str, str], Record] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            values = {name: value for name, value in json.loads(line).items() if name in known}
            record = Record(**values)
            found[record.zoo, record.name] = record
    order = [zoo.name for zoo in ZOOS]
    return sorted(found.values(), key=lambda record: order.index(record.zoo))


def table(records: Sequence[Record]) -> str:
    """Return the records as a table in Markdown."""
    lines = [_row(HEADER), _row(["---"] * len(HEADER))]
    for one in records:
        cells = [one.zoo, one.name, _yes(one.attached), _yes(one.trained), one.selected or "-"]
        cells += [_outcome(one), _exact(one), _percent(one.cut), _percent(one.configured)]
        cells += [_yes(one.tuned), _loads(one)]
        lines.append(_row(cells))
    return "\n".join(lines)


def totals(records: Sequence[Record]) -> str:
    """Return how many models reach each aim."""
    lines = ["", f"{len(records)} of {AIM_ALL} combinations:"]
    lines += [f"  {text}" for text in _counts(records)]
    return "\n".join(lines)


def _counts(records: Sequence[Record]) -> Iterator[str]:
    def count(holds: Callable[[Record], bool]) -> int:
        return sum(1 for record in records if holds(record))

    pruned = [one for one in records if one.difference is not None]
    compared = [one for one in pruned if one.configured is not None]
    near = [one for one in compared if (one.cut or 0) > (one.configured or 0) - CLOSE]
    longest = max((one.plan_seconds or 0 for one in records), default=0)
    yield f"cut natively        {count(lambda one: one.native)} (aim {AIM_NATIVE})"
    yield f"plans that hang     {count(lambda one: one.hangs)} (aim 0), longest {longest:.1f} s"
    yield f"inexact             {sum(1 for one in pruned if not one.exact)} (aim 0)"
    yield f"load without code   {count(lambda one: one.loads)} (aim {AIM_LOADS})"
    yield f"fine-tuned          {count(lambda one: one.tuned)} of {len(pruned)} pruned"
    yield f"cut within {CLOSE:.0%} of the configuration: {len(near)} of {len(compared)} compared"


def _outcome(record: Record) -> str:
    """Return how a model was pruned, or where it failed."""
    for stage in ("attach", "train", "select", "plan", "prune"):
        if stage in record.errors:
            return f"FAIL {stage}: {record.errors[stage][:80]}"
    kind = "native" if record.native else "fed"
    if record.native and record.fed:
        kind += " + constants at " + ", ".join(record.fed)
    return kind


def _loads(record: Record) -> str:
    """Return whether the saved model loads without code, or what is in the way."""
    if record.loads:
        return "yes"
    error = record.errors.get("load", "")
    if "because of" in error:
        return "needs code: " + error.split("because of ")[1].split(". ")[0]
    return error[:60] or "-"


def _exact(record: Record) -> str:
    if record.difference is None:
        return "-"
    return f"{record.difference:.0e}" if record.exact else f"INEXACT {record.difference:.1g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _yes(value: bool) -> str:
    return "yes" if value else "-"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
