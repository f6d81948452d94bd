"""plan -> print -> check -> apply: what surgery will do to a model, and then the model that it makes."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal, get_args

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from .._common.errors import FieldError, SurgeryError, TorchleapError
from .._common.text import first_line, plural, table
from ..distributed.torchrec import is_jagged, is_sharded, rows_of
from ..gates.leap import LeAP
from ..selection import Selection
from ..sites.calls import Call, few_rows
from ..sites.site import Site
from .compare import alike, difference, leaves_of
from .cuts import Cut, count, cuts_of, size, work
from .rounding import with_other_rounding
from .rules.writer import Origin, runs_of
from .trace.examples import Examples, another, run, untouched
from .trace.trace import Trace, affine, trace
from .write.build import as_pruned, build
from .write.feed import feed, remove_tables, unread_tables
from .write.rewrite import (
    Rewrite,
    features_unread,
    inputs_of_dropped,
    inputs_past_the_gates,
    rewrite,
)

Fill = Literal["mean", "zero"]
MOST_ASSUMPTIONS = 12  # that are printed


@dataclass(frozen=True)
class Unread:
    """An input that the pruned model does not read: an entry of the batch, or columns of a tensor."""

    name: str
    columns: tuple[int, ...] | None = None  # None is all of it

    def __str__(self) -> str:
        return self.name if self.columns is None else f"{self.name} columns {_ranges(self.columns)}"


@dataclass(frozen=True)
class Plan:
    """Every cut that `Plugin.prune` makes; prints as a table. Making a plan changes nothing."""

    selection: Selection
    fill: Fill
    cuts: tuple[Cut, ...]
    notes: tuple[str, ...]  # what could not be cut and why, and what is not exact
    unread: tuple[Unread, ...]
    parameters: tuple[int, int]  # before and after
    bytes: tuple[int, int]  # of parameters and buffers
    multiply_adds: tuple[int, int]  # a row, in matrix products and convolutions
    means: dict[str, list[float]] = field(
        repr=False
    )  # of the dropped fields: what they are in the pruned model
    change: float  # of the output on the example by fill="zero", at most; 0 with means
    origins: dict[str, Origin] = field(repr=False)  # of parameters that were cut, by name
    assumptions: tuple[str, ...] = ()  # about the batch; the pruned model checks them at each call

    def __repr__(self) -> str:
        fields, dims = self.selection.fields, self.selection.dims
        return (
            f"Plan: drop {len(self.selection.dropped):,} of {plural(len(fields), 'field')}, {fields.dims - dims:,} of "
            f"{plural(fields.dims, 'dimension')}; {_change(self.parameters)} parameters, {_change(self.bytes)} bytes, "
            f"{_change(self.multiply_adds)} multiply-adds a row"
        )

    def __str__(self) -> str:
        cells = [
            [cut.path, f"{cut.before} => {cut.after}", f"{cut.parameters:+,}"] for cut in self.cuts
        ]
        lines = [repr(self)]
        if cells:
            width = max(len(cell[1]) for cell in cells)
            lines.append(
                table(
                    ["layer", "before => after", "parameters"],
                    [[p, c.ljust(width), n] for p, c, n in cells],
                )
            )
        if self.unread:
            lines.append("No longer read: " + ", ".join(map(str, self.unread)) + ".")
        if self.assumptions:
            more = len(self.assumptions) - MOST_ASSUMPTIONS
            shown = [
                *self.assumptions[:MOST_ASSUMPTIONS],
                *([f"{more} more in .assumptions"] if more > 0 else []),
            ]
            lines.append("Assumes: " + "; ".join(shown) + ".")
        return "\n".join([*lines, *self.notes])


def prepare(
    model: nn.Module,
    gates: LeAP,
    sites: tuple[Site, ...],
    selection: Selection,
    example: Call,
    fill: Fill = "mean",
) -> tuple[Plan, Callable[[], nn.Module]]:
    """Work out every cut and compare the pruned model, still on the old weights, with the masked one.

    Returns the plan, and what makes the pruned model with weights of its own.
    """
    if fill not in get_args(Fill):
        raise SurgeryError(f"fill must be 'mean' or 'zero', but is {fill!r}.")
    sharded = [path for path, module in model.named_modules() if is_sharded(module)]
    if sharded:
        raise SurgeryError(
            f"{sharded[0]} is sharded over several ranks. Build the model again without sharding, attach, load the gathered "
            "weights and gates into it, and prune that; docs/torchrec.md shows how."
        )
    with untouched(model):
        return Surgery(model, gates, sites, selection, example, fill).prepare()


@dataclass
class Candidate:
    """A way to make the pruned model.

    Attributes:
        make: Makes it; `share=True` leaves the weights where they are.
        graph: Its forward(), if that is written anew.
    """

    make: Callable[[bool], nn.Module]
    graph: fx.Graph | None = None
    notes: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()
    origins: dict[str, Origin] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A batch, and what the pruned model should make of it.

    Attributes:
        rounded: Computes the output again, several times, with other roundings of every operation.
    """

    batch: Call
    output: Any
    rounded: Callable[[], list[Any]]

    @classmethod
    def of(cls, reference: Callable[[Call], Any], batch: Call) -> "Case":
        """Ask the reference."""
        return cls(
            batch, reference(batch), cache(partial(with_other_rounding, partial(reference, batch)))
        )


class Surgery:
    """One selection on one model: ways to make the pruned model are tried, the smallest first, until one is exact."""

    def __init__(
        self,
        model: nn.Module,
        gates: LeAP,
        sites: tuple[Site, ...],
        selection: Selection,
        example: Call,
        fill: Fill,
    ) -> None:
        self.model = model
        self.gates = gates
        self.sites = sites
        self.selection = selection
        self.fill = fill
        kept = torch.zeros(selection.fields.dims, dtype=torch.bool)
        for name in selection.kept:
            kept[selection.fields.columns(name)] = True
        scale, shift = affine(gates, kept)
        self.affine = (
            scale,
            shift if fill == "mean" else torch.where(kept.to(shift.device), shift, 0),
        )
        self.given = example
        example = few_rows(example)
        self.exact = self._on_example(example)
        leaves_of(self.exact)  # raises if it cannot be compared
        self.reference: Callable[[Call], Any] = self.masked
        if fill == "zero":
            self.reference = partial(run, feed(model, gates, sites, self.affine, share=True))
        self.examples = Examples.of(model, gates, example)
        self.expected = self.expect()
        self.other_lengths = self.expect_of_others()

    def _on_example(self, example: Call) -> Any:
        """Run the model for the first time: it may not take such a batch."""
        try:
            return self.masked(example)
        except TorchleapError:
            raise
        except Exception as error:
            raise SurgeryError(
                f"The model does not take the example ({type(error).__name__}: {first_line(error)}). "
                "Give a batch as forward() takes it; a tuple is several arguments."
            ) from error

    def masked(self, example: Call) -> Any:
        """What the model computes with the dropped fields at their means."""
        with self.gates.masked(self.selection.kept):
            try:
                return run(self.model, example)
            except Exception:
                self.gates.context.end()  # of a pass that did not come to its end
                raise

    def expect(self) -> list[Case]:
        """Batches, each with what the pruned model should make of it: the example, and others that differ from it."""
        reference = self.reference
        expected = [Case.of(reference, self.examples.once)]
        if not alike(reference(self.examples.once), expected[0].output):
            raise SurgeryError(
                f"Nothing was changed: {type(self.model).__name__} returns something else when it is called with the same batch "
                "again. Is the model deterministic in eval()?"
            )
        if _rows(self.given) != _rows(self.examples.once):  # the graph is of a few rows of it
            expected.append(Case.of(reference, self.given))
        for rows in (self.examples.rows + 3, 1):
            try:
                expected.append(Case.of(reference, another(self.examples, rows)))
            except Exception:  # a batch that the model does not take, such as one whose offsets are no longer in order
                continue
        return expected

    def expect_of_others(self) -> list[Case]:
        """Return batches of other lengths, with what the pruned model should make of them if it does not refuse them."""
        return [Case.of(self.reference, batch) for batch in self.examples.calls[2:]]

    def prepare(self) -> tuple[Plan, Callable[[], nn.Module]]:
        """The plan, and what makes the model."""
        reasons: list[str] = []
        for attempt in (self.cut, self.fed_without_tables, self.fed):
            try:
                candidate = attempt()
                trial = as_pruned(candidate.make(True), None, candidate.graph)
                self.check(trial)
                plan = self.plan(candidate, trial, reasons)
            except Exception as error:  # whatever it is: the next way is simpler
                reasons.append(first_line(error))
            else:
                return plan, partial(_make, candidate, plan, self.examples.once)
        raise SurgeryError(
            f"Nothing was changed: {reasons[-1]}. Is the model deterministic in eval(), and can it be copied? If so, this is a "
            "bug of torchleap; please report the model."
        )

    def cut(self) -> Candidate:
        """Rewrite the graph of the model."""
        traced = trace(self.model, self.gates, self.sites, self.examples, *self.affine)
        rewritten = rewrite(traced, *self.affine)
        unread, still_read = _inputs(rewritten)
        notes = [*rewritten.writer.notes, *_constants_fed(rewritten)]
        if still_read:
            notes.append(
                f"Dropped, but still read past the gates: {', '.join(map(str, still_read))}."
            )
        return Candidate(
            make=lambda share: build(self.model, rewritten, share=share),
            graph=rewritten.writer.graph,
            notes=tuple(notes),
            unread=(*unread, *(Unread(name) for name in features_unread(rewritten))),
            origins=rewritten.writer.origins,
            assumptions=tuple(rewritten.writer.assumptions),
        )

    def fed_without_tables(self) -> Candidate:
        """Feed constants to the model as it is, and remove the tables that nothing reads any more."""
        paths = unread_tables(self.fed().make, [expected.batch for expected in self.expected])
        if not paths:
            return self.fed()

        def make(share: bool) -> nn.Module:
            small = self.fed().make(share)
            remove_tables(small, paths)
            return small

        removed = ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
        note = f"Only dropped fields read {removed} on the example; if forward() does otherwise on another batch, it raises."
        return Candidate(make, notes=(note,))

    def fed(self) -> Candidate:
        """Feed constants to the model as it is."""
        return Candidate(
            lambda share: feed(self.model, self.gates, self.sites, self.affine, share=share)
        )

    def check(self, trial: nn.Module) -> None:
        """Compare with what is expected; batches of other lengths may be refused."""
        for expected in self.expected:
            self.compare(run(trial, expected.batch), expected)
        for expected in self.other_lengths:
            with suppress(FieldError):
                self.compare(run(trial, expected.batch), expected)

    def compare(self, found: Any, expected: Case) -> None:
        """Refuse a pruned model whose output differs."""
        if not alike(found, expected.output, expected.rounded):
            apart = difference(found, expected.output)
            raise SurgeryError(f"the pruned model would differ from the masked one by {apart:.2g}")

    def plan(self, candidate: Candidate, trial: nn.Module, reasons: list[str]) -> Plan:
        """What is done, and what it saves."""
        notes = list(candidate.notes)
        if reasons:
            notes.append(
                f"Nothing behind the gates is cut, constants are fed instead (exact): {reasons[0]}."
            )
        change = (
            difference(run(trial, self.examples.once), self.exact) if self.fill == "zero" else 0.0
        )
        if self.fill == "zero":
            notes.append(
                f"Not exact: zeros in place of means change the output on the example by up to {change:.3g}. Fine-tune."
            )
        fields, rows = self.selection.fields, self.examples.rows
        return Plan(
            selection=self.selection,
            fill=self.fill,
            cuts=tuple(cuts_of(self.model, self.gates, trial)),
            notes=tuple(dict.fromkeys(notes)),
            unread=candidate.unread,
            parameters=(count(self.model) - self.gates.theta.numel(), count(trial)),
            bytes=(size(self.model) - size(self.gates), size(trial)),
            multiply_adds=(
                work(self.model, self.examples.once, rows),
                work(trial, self.examples.once, rows),
            ),
            means={
                name: self.affine[1][fields.columns(name)].tolist()
                for name in self.selection.dropped
            },
            change=change,
            origins=candidate.origins,
            assumptions=candidate.assumptions,
        )


def _rows(batch: Call) -> list[int | None]:
    return [rows_of(leaf) for leaf in tree_leaves(batch, is_leaf=is_jagged)]


def _make(candidate: Candidate, plan: Plan, example: Call) -> nn.Module:
    made = as_pruned(candidate.make(False), plan, candidate.graph)
    if (
        candidate.graph is None
    ):  # what feeds constants learns the shapes of the entries that may be missing
        with untouched(made):
            run(made, example)
    return made


def _constants_fed(rewritten: Rewrite) -> list[str]:
    """Which operations still read constants, and why."""
    trace, notes = rewritten.view.trace, []
    for reader, sources in rewritten.writer.restored.items():
        columns = sum(
            int(rewritten.view.facts[source].const.sum()) for source in dict.fromkeys(sources)
        )
        notes.append(
            f"{_name(reader, trace)} {_why(reader, trace)}: {plural(columns, 'constant')} fed (exact)."
        )
    return notes


def _name(node: fx.Node, trace: Trace) -> str:
    module = trace.module(node)
    if module is not None:
        return f"{node.target} ({type(module).__name__})"
    if node.op == "output":
        return "The output"
    stack = node.meta.get("nn_module_stack") or {}
    inside = next(reversed(stack.values()))[0] if stack else ""
    return f"{getattr(node.target, '__name__', node.target)}() in {inside or type(trace.model).__name__}"


def _why(node: fx.Node, trace: Trace) -> str:
    if getattr(node.target, "__name__", node.target) in ("mul", "multiply"):
        return "multiplies dropped fields with others"
    return "reads them whole"


def _inputs(rewritten: Rewrite) -> tuple[list[Unread], list[Unread]]:
    """What the dropped fields were made of: the inputs that nothing reads any more, and those that are read past the gates."""
    unread: list[Unread] = []
    still: list[Unread] = []
    past_the_gates = inputs_past_the_gates(rewritten)
    for node, mask in inputs_of_dropped(rewritten).items():
        name = str(node.target if node.op == "placeholder" else node.args[1])
        live = rewritten.view.live(node)
        for found, part in ((unread, mask & ~live), (still, mask & past_the_gates[node])):
            columns = part if part.dim() < 2 else part.flatten(1).any(1)
            if bool(columns.any()):
                everything = part.dim() == 0 or (found is unread and not live.any())
                found.append(
                    Unread(
                        name, None if everything else tuple(columns.nonzero().flatten().tolist())
                    )
                )
    return unread, still


def _ranges(columns: tuple[int, ...]) -> str:
    """Columns as ranges: (0, 1, 2, 5) is "0-2, 5"."""
    shown = [
        str(first) if length == 1 else f"{first}-{first + length - 1}"
        for first, length in runs_of(columns)
    ]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more ranges" if len(shown) > 8 else "")


def _change(pair: tuple[int, int]) -> str:
    before, after = pair
    return f"{before:,} => {after:,}" + (f" ({after / before - 1:+.0%})" if before else "")


def plan_of(pruned: nn.Module) -> Plan:
    """The plan that a pruned model was made by."""
    plan = getattr(type(pruned), "pruned_plan", None)
    if not isinstance(plan, Plan):
        raise SurgeryError(
            f"Expected a model that plugin.prune() returned, but found {type(pruned).__name__}."
        )
    return plan
