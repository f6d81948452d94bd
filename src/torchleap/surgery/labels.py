"""Compare the names of the fields with the inputs that move their columns.

Two fields of the same width that arrive in another order than their names would otherwise be
selected under each other's name, without any error.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from torch import nn

from .._common.text import plural
from ..gates.leap import LeAP
from ..sites.calls import Call
from ..sites.site import Site
from .trial.deadline import OutOfTimeError, time_left, time_limit
from .trial.movers import NOTHING, SEVERAL, Input, Movers, movers_of

PROBE_SECONDS = 5.0  # that the runs of the model may take
PROBE_TIME = 0.2  # the fraction of the time that is left for a plan
MOST_NAMES = 6  # that a message lists
ORDER = "fields= names them in the order in which they arrive."


@dataclass(frozen=True)
class Labels:
    """What does not fit between the names of fields and their columns.

    Attributes:
        errors: What is wrong for certain.
        doubts: What is probably wrong.
    """

    errors: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def check_labels(model: nn.Module, gates: LeAP, sites: tuple[Site, ...], call: Call) -> Labels:
    """Return what does not fit between the names of the fields and a batch.

    There is nothing to report where the model cannot be probed, as if it is not deterministic.

    Args:
        model: The attached model; it is left as it was.
        gates: Its gates.
        sites: Where they are.
        call: The batch.
    """
    labels = Labels()
    try:
        with time_limit(min(PROBE_SECONDS, time_left() * PROBE_TIME)):
            movers = movers_of(model, gates, call)
    except OutOfTimeError:
        labels.doubts.append(
            "The model is too slow to find out which input moves which columns. Check that fields= "
            "names them in the order in which they arrive, or give fewer rows, example=."
        )
        return labels
    if movers is None:
        return labels
    layout = gates.known_layout()
    checked = []
    for site in sites:
        blocks = layout.blocks_in(site.columns)
        if not blocks or blocks in checked:  # sites may receive one and the same tensor
            continue
        checked.append(blocks)
        if not movers.again:
            _Comparison(model, site.label, blocks, layout.fields.names, movers).report(labels)
            continue
        for number, each in enumerate((movers, *movers.again)):
            label = replace(site.place, call=number).label
            comparison = _Comparison(model, label, blocks, layout.fields.names, each)
            comparison.report(labels)
            if number:
                comparison.report_call(movers, labels)
    return Labels(list(dict.fromkeys(labels.errors)), list(dict.fromkeys(labels.doubts)))


class _Comparison:
    """Compare the fields of one site with what moves their columns.

    Args:
        model: The model.
        place: How messages call the site.
        blocks: The columns of each field that arrives at the site, in their order.
        names: The names of all fields.
        movers: What moves each column.
    """

    def __init__(
        self,
        model: nn.Module,
        place: str,
        blocks: dict[str, slice],
        names: tuple[str, ...],
        movers: Movers,
    ) -> None:
        self.model = model
        self.place = place
        self.blocks = blocks
        self.names = names
        self.movers = movers
        counts = Counter(one.name for one in movers.inputs)
        self.inputs = {one.name: one for one in movers.inputs if counts[one.name] == 1}

    def report(self, labels: Labels) -> None:
        """Add what does not fit."""
        errors = [self._other_order() or self._names_of_others(), self._ids()]
        doubts = [self._unmoved(), self._perhaps_ids()]
        if not any(errors):
            doubts += [self._columns_out_of_order(one) for one in self.movers.inputs]
        labels.errors.extend(filter(None, errors))
        labels.doubts.extend(filter(None, doubts))

    def report_call(self, first: Movers, labels: Labels) -> None:
        """Add what differs between this call of a module and its first one.

        Args:
            first: What moves the columns in the first call.
            labels: What does not fit; added to.
        """
        if any(problem.startswith(f"{self.place}:") for problem in labels.errors):
            return
        own = [place for block in self.blocks.values() for place in _range(block)]
        before = [(first.by_input[place], first.by_column[place]) for place in own]
        found = [(self.movers.by_input[place], self.movers.by_column[place]) for place in own]
        if found != before:
            problem = "other inputs move the columns than in its first call"
        elif any(moved_by == SEVERAL for moved_by, _ in found):
            problem = "the example does not show whether they have the order of its first call"
        else:
            return
        labels.doubts.append(
            f"{self.place}: the module is called several times in one forward pass, and all of its "
            f"calls have the same fields; but {problem}. If the columns of a call have another "
            "order, each gate is given those of another field: name the fields of each call, "
            "at={tl.Place(name, call=1): {field: width}}."
        )

    def _mover(self, column: int) -> str | None:
        """Return the name of the field whose input alone moves a column; None if it is not sure."""
        index = self.movers.by_input[column]
        if index in (NOTHING, SEVERAL):
            return None
        name = self.movers.inputs[index].name
        return name if name in self.inputs and name in self.names else None

    def _other_order(self) -> str | None:
        """Return the order of the columns, if it is known of all, and not that of the names."""
        columns = [column for block in self.blocks.values() for column in _range(block)]
        runs = [(name, len(list(run))) for name, run in groupby(map(self._mover, columns))]
        found = dict(runs)
        widths = {name: block.stop - block.start for name, block in self.blocks.items()}
        is_order = len(runs) == len(found) and set(found) == set(widths)
        if not is_order or runs == list(widths.items()):
            return None
        return (
            f"{self.place}: the columns of the example arrive in another order than the names in "
            f"fields=, or in other widths. The fields should be {found}."
        )

    def _names_of_others(self) -> str | None:
        """Return which fields have the columns of others."""
        wrong = {}
        for name, block in self.blocks.items():
            found = {self._mover(column) for column in _range(block)}
            if name in self.inputs and None not in found and name not in found:
                wrong[name] = sorted(map(str, found))
        if not wrong:
            return None
        shown = [f"{name!r} has those of {', '.join(map(repr, wrong[name]))}" for name in wrong]
        return (
            f"{self.place}: on the example fields have the columns of others: {_first_of(shown)}. "
            f"{ORDER}"
        )

    def _ids(self) -> str | None:
        """Return which fields are ids that pass the gates as floating-point numbers."""
        names = [repr(name) for name, own in self.blocks.items() if any(self.movers.as_ids[own])]
        if not names:
            return None
        return (
            f"{self.place}: behind the gates the model makes integers of {_first_of(names)}, as of "
            f"ids. Gates would mix them into other ids. {self._cure_of_ids()}."
        )

    def _perhaps_ids(self) -> str | None:
        """Return which fields may be ids, where the example has too few values to be certain."""
        names = []
        for name, block in self.blocks.items():
            if any(self.movers.perhaps_ids[block]) and not any(self.movers.as_ids[block]):
                names.append(repr(name))
        if not names:
            return None
        return (
            f"{self.place}: behind the gates the model reads only whole numbers of "
            f"{_first_of(names)}, but the example has too few values to tell whether they are ids, "
            f"which gates would mix into others. Give more rows, example=. {self._cure_of_ids()}, "
            "if they are."
        )

    def _cure_of_ids(self) -> str:
        tables = [
            path
            for path, module in self.model.named_modules()
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and path
        ]
        cure = "Gate what the tables return"
        if tables:
            cure += f", such as at={tables[0]!r}, side='output', or the input of a layer behind"
        return cure

    def _unmoved(self) -> str | None:
        """Return which fields no input moves."""
        names = []
        for name, block in self.blocks.items():
            own = self.inputs.get(name)
            varies = self.movers.is_complete or (own is not None and own.varies)
            if varies and set(self.movers.by_input[block]) == {NOTHING}:
                names.append(repr(name))
        if not names:
            return None
        return (
            f"{self.place}: no input of the example moves the columns of {_first_of(names)}. Do "
            "other columns come before those of the first field, or is a width wrong?"
        )

    def _columns_out_of_order(self, one: Input) -> str | None:
        """Return the order in which the columns of one tensor arrive, if it is not theirs."""
        index = self.movers.inputs.index(one)
        found: dict[str, list[int]] = {}
        for name, block in self.blocks.items():
            columns = set(self.movers.by_column[block])
            if set(self.movers.by_input[block]) == {index} and SEVERAL not in columns:
                found[name] = sorted(columns)
        if one.width == 1 or len(found) < 2:
            return None
        pairs = list(pairwise(found.values()))
        shown = [f"{name!r} by {_columns(columns)}" for name, columns in found.items()]
        source = f"the columns of {one.name!r}" if one.name else "the columns of the input"
        if any(after[0] < before[0] for before, after in pairs):
            return (
                f"{self.place}: {source} arrive in another order than their own. The fields are "
                f"moved as follows: {_first_of(shown)}. {ORDER} If it does, ignore this."
            )
        if any(after[0] == before[-1] and len(before) > 1 for before, after in pairs):
            return (
                f"{self.place}: a field has a part of the columns of the next one. The fields are "
                f"moved as follows: {_first_of(shown)}. Are the widths right?"
            )
        return None


def _range(block: slice) -> range:
    return range(block.start, block.stop)


def _columns(columns: list[int]) -> str:
    if len(columns) == 1:
        return f"column {columns[0]}"
    return f"{plural(len(columns), 'column')} from {columns[0]} to {columns[-1]}"


def _first_of(entries: list[str]) -> str:
    if len(entries) > MOST_NAMES:
        entries = [*entries[:MOST_NAMES], f"and {len(entries) - MOST_NAMES} more"]
    return ", ".join(entries)
