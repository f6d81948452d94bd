"""Prepare a plan: try ways to make the pruned model, the smallest first, until one is exact."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, get_args

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from .._common.errors import FieldError, SurgeryError, TorchleapError
from .._common.strict import InexactError, is_strict, raise_mistake
from .._common.text import first_line
from ..distributed.torchrec import is_sharded, rows_of
from ..gates.leap import LeAP
from ..selection import Selection
from ..sites.calls import Call, few_rows
from ..sites.site import Site
from .attachment import Attachment
from .cuts import count, cuts_of, size, work
from .holdings import carry_holdings
from .plan import Fill, Plan
from .recipe import Recipe, State
from .regions.cut import Given, given_aside
from .regions.find import Regions, made
from .rules.written import Origin
from .trace.follow import by_module
from .trace.graph import affine_of, trace
from .trace.tracer import Affine
from .trial.compare import alike, difference, leaves_of
from .trial.deadline import check_time, time_left, time_limit
from .trial.examples import Examples, another
from .trial.rounding import with_other_rounding
from .trial.run import forget_pass, leaves_of_batch, run, untouched
from .write.build import Edits, as_pruned, build, joined, refuse_references
from .write.feed import feed
from .write.notes import constants_fed, hint_at_zeros
from .write.rewrite import rewrite
from .write.tables import remove_tables, unread_tables
from .write.unread import Unread, features_unread, inputs_of_dropped

MOST_NAMES = 8  # that a note has
WAY_TIME = 0.6  # the fraction of the time that is left for each way but the last
Make = Callable[[bool], nn.Module]


def make_plan(
    model: nn.Module,
    gates: LeAP,
    sites: tuple[Site, ...],
    selection: Selection,
    example: Call,
    fill: Fill = "mean",
    *,
    source: nn.Module | None = None,
) -> Plan:
    """Find every cut, and compare the pruned model, still on the old weights, with the masked one.

    Args:
        model: The attached model; it is not changed.
        gates: Its gates.
        sites: Where they sit.
        selection: Which fields to keep.
        example: A batch.
        fill: The value of a dropped field: its "mean", which is exact, or "zero".
        source: The model that must not change until the plan is applied, where `model` is a
            gathered copy of it; the model itself if left out.
    """
    if fill not in get_args(Fill):
        raise SurgeryError(f"fill must be 'mean' or 'zero', but is {fill!r}.")
    for path, module in model.named_modules():
        if is_sharded(module):
            raise SurgeryError(
                f"{path} is sharded over several ranks. Build the model again without sharding, "
                "attach, load the gathered weights and gates into it, and prune that; "
                "docs/torchrec.md shows how."
            )
    with untouched(model):
        surgery = Surgery(model, gates, sites, selection, example, fill)
        plan, candidate = surgery.plan()
    source = model if source is None else source
    recipe = Recipe(
        model=model,
        source=source,
        state=State.of(source),
        build=candidate.make,
        graph=candidate.graph,
        example=surgery.examples.once,
        output=surgery.exact,
        masked=surgery.masked,
    )
    notes = carry_holdings(source, candidate.make(True), plan.origins, with_state=False)
    attachment = Attachment.of(gates, sites, surgery.examples.once)
    return replace(plan, recipe=recipe, attachment=attachment, notes=(*plan.notes, *notes))


@dataclass(frozen=True)
class Candidate:
    """A way to make the pruned model.

    Attributes:
        make: Makes it; True shares the weights of the old model.
        graph: Its forward(), if that is written from a graph.
        notes: Remarks for the plan.
        unread: Inputs that it does not read.
        origins: Where its cut parameters come from.
        assumptions: Its assumptions about the batch.
        alone: The modules that are cut by themselves, by name.
    """

    make: Make
    graph: fx.Graph | None = None
    notes: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()
    origins: dict[str, Origin] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A batch, and the output that the pruned model should return for it.

    Attributes:
        batch: The batch.
        output: The output of the reference.
        rounded: Computes the output again, several times, with other roundings.
    """

    batch: Call
    output: Any
    rounded: Callable[[], list[Any]]

    @classmethod
    def of(cls, reference: Callable[[Call], Any], batch: Call) -> "Case":
        """Run the reference on a batch."""
        rounded = cache(partial(with_other_rounding, partial(reference, batch)))
        return cls(batch, reference(batch), rounded)


def run_masked(model: nn.Module, gates: LeAP, kept: tuple[str, ...], example: Call) -> Any:
    """Return the model's output with the dropped fields at their means."""
    with gates.masked(kept):
        try:
            return run(model, example)
        except Exception:
            forget_pass(gates)
            raise


class Surgery:
    """One selection on one model.

    Args:
        model: The attached model.
        gates: Its gates.
        sites: Where they sit.
        selection: Which fields to keep.
        example: A batch.
        fill: The value of dropped fields.
    """

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
        self.affine = _affine(gates, selection, fill)
        self.masked = partial(run_masked, model, gates, selection.kept)
        self.exact = self._first_output(few_rows(example))
        leaves_of(self.exact)  # raises if it cannot be compared
        self.reference: Callable[[Call], Any] = self.masked
        if fill == "zero":
            self.reference = partial(run, self.fed().make(True))
        self.examples = Examples.of(model, gates, few_rows(example))
        self.traced: Any = None  # the output of the model's graph on the example
        self.has_products = False  # whether constants are read that zeros could remove
        self.expected = self._cases(example)
        # batches of other lengths, which the pruned model may refuse
        self.other_lengths = [Case.of(self.reference, batch) for batch in self.examples.calls[2:]]

    def _first_output(self, example: Call) -> Any:
        """Run the masked model for the first time; raise if it does not take the example."""
        try:
            return self.masked(example)
        except TorchleapError:
            raise
        except Exception as error:
            raise SurgeryError(
                f"The model does not take the example ({type(error).__name__}: "
                f"{first_line(error)}). Give a batch as forward() takes it; a tuple is several "
                "arguments."
            ) from error

    def _cases(self, given: Call) -> list[Case]:
        """Return batches with their outputs: the example, and others that differ from it."""
        once = self.examples.once
        cases = [Case.of(self.reference, once)]
        if not alike(self.reference(once), cases[0].output):
            raise SurgeryError(
                f"Nothing was changed: {type(self.model).__name__} returns something else when it "
                "is called with the same batch again. Is the model deterministic in eval()?"
            )
        if _rows(given) != _rows(once):  # the graph is made of a few rows of it
            cases.append(Case.of(self.reference, given))
        for rows in (self.examples.rows + 3, 1):
            # the model may not take the batch, as when its offsets are no longer in order
            with suppress(Exception):
                cases.append(Case.of(self.reference, another(self.examples, rows)))
        return cases

    def plan(self) -> tuple[Plan, Candidate]:
        """Return the first way that is exact, with its plan."""
        reasons: list[str] = []
        ways = (self.cut, self.cut_locally, self.fed_without_tables, self.fed)
        for attempt in ways:
            share = 1.0 if attempt is ways[-1] else WAY_TIME
            try:
                with time_limit(time_left() * share):
                    candidate = attempt()
                    trial = as_pruned(candidate.make(True), None, candidate.graph)
                    self.check(trial)
                found = self._describe(candidate, trial, reasons), candidate
            except Exception as error:  # whatever it is: the next way is simpler
                check_time()
                self._raise_mistake(error)
                reasons.append(first_line(error))
                continue
            refuse_references(trial, self.model)
            return found
        refuse_references(self.fed().make(True), self.model)
        raise SurgeryError(
            f"Nothing was changed: {reasons[-1]}. Is the model deterministic in eval(), and can it "
            "be copied? If so, this is a bug of torchleap; please report the model."
        )

    def _raise_mistake(self, error: Exception) -> None:
        """Raise the mistake of a rule in strict mode.

        An inexact result is not the mistake of a rule if the trace itself is inexact: the model's
        Python may take another path with stand-ins, as by `isinstance(x, Tensor)`.
        """
        if not is_strict() or (isinstance(error, InexactError) and not self._is_traced_well()):
            return
        raise_mistake(error)

    def _is_traced_well(self) -> bool:
        """Return whether the graph of the model computes what the model does."""
        found = tree_leaves(self.traced)
        case = self.expected[0]
        rounded = [tree_leaves(output) for output in case.rounded()]
        return alike(found, tree_leaves(case.output), lambda: rounded)

    def _hint(self, trial: nn.Module) -> list[str]:
        """Return a note on what zeros in place of means would remove, if that is much more."""
        try:
            with time_limit(time_left() * WAY_TIME):
                zero = _affine(self.gates, self.selection, "zero")
                sites = by_module(self.model, self.sites)
                traced = trace(self.model, self.gates, sites, self.examples, zero)
                edits = rewrite(traced, zero).edits
                small = as_pruned(build(self.model, edits, shared=True), None, edits.graph)
                change = difference(run(small, self.examples.once), self.exact)
        except Exception as error:  # whatever it is: a plan needs no hint
            check_time()
            self._raise_mistake(error)
            return []
        before = count(self.model.parameters()) - self.gates.theta.numel()
        return hint_at_zeros(before, count(trial.parameters()), count(small.parameters()), change)

    def cut(self) -> Candidate:
        """Rewrite the graph of the model, and what can be cut inside of modules not followed."""
        sites = by_module(self.model, self.sites)
        traced = trace(self.model, self.gates, sites, self.examples, self.affine)
        self.traced = traced.output()
        rewritten = rewrite(traced, self.affine)
        self.has_products = bool(rewritten.writer.restored or rewritten.edits.weights)
        writer = rewritten.writer
        edits = rewritten.edits
        unread, still_read = inputs_of_dropped(rewritten.view, rewritten.rules)
        unread += features_unread(traced.graph, writer.graph, self.model, edits.collections)
        notes = [*writer.notes, *constants_fed(rewritten)]
        if still_read:
            names = ", ".join(map(str, still_read))
            notes.append(f"Dropped, but still read past the gates: {names}.")
        candidate = self._with_regions(edits, list(traced.aside), given_aside(rewritten.view))
        return replace(
            candidate,
            graph=edits.graph,
            notes=(*notes, *candidate.notes),
            unread=tuple(unread),
            assumptions=(*writer.assumptions, *candidate.assumptions),
        )

    def cut_locally(self) -> Candidate:
        """Cut modules by themselves, feed constants elsewhere, and remove unread tables."""
        candidate = self._with_regions(Edits(), [""], {})
        if not candidate.alone:
            raise SurgeryError("no module can be cut by itself")
        return self._without_tables(candidate)

    def _with_regions(self, edits: Edits, aside: list[str], given: Given) -> Candidate:
        """Return the model with edits, and with modules cut by themselves.

        Args:
            edits: What is changed already.
            aside: The modules that are called as they are, in which to search; "" is the model.
            given: The constants that these receive.
        """
        others = [case.batch for case in self.expected[1:]]
        finder = Regions(
            self.model, self.gates, self.sites, self.examples, others, self.affine, self.check
        )
        regions = finder.find(edits, aside, given) if aside else []
        edits = joined(edits, *(region.edits for region in regions))
        sites = finder.sites_left(edits, regions)
        return Candidate(
            make=partial(made, self.model, self.gates, sites, self.affine, edits),
            notes=tuple(note for region in regions for note in region.notes),
            origins=edits.origins,
            assumptions=tuple(each for region in regions for each in region.assumptions),
            alone=tuple(region.path for region in regions),
        )

    def fed_without_tables(self) -> Candidate:
        """Feed constants to the model as it is, and remove the tables that nothing reads."""
        return self._without_tables(self.fed())

    def _without_tables(self, candidate: Candidate) -> Candidate:
        """Remove the tables that nothing reads."""
        make = candidate.make
        paths = unread_tables(make, [case.batch for case in self.expected])
        if not paths:
            return candidate
        removed = ", ".join(paths[:MOST_NAMES])
        if len(paths) > MOST_NAMES:
            removed += f" and {len(paths) - MOST_NAMES} more"
        note = (
            f"Only dropped fields read {removed} on the example; if forward() does otherwise on "
            "another batch, it raises."
        )
        return replace(
            candidate, make=partial(_without_tables, make, paths), notes=(*candidate.notes, note)
        )

    def fed(self) -> Candidate:
        """Feed constants to the model as it is."""
        return Candidate(partial(_feed, self.model, self.gates, self.sites, self.affine))

    def check(self, trial: nn.Module) -> None:
        """Compare a pruned model with the reference; it may refuse batches of other lengths."""
        for case in self.expected:
            self._compare(run(trial, case.batch), case)
        for case in self.other_lengths:
            with suppress(FieldError):
                self._compare(run(trial, case.batch), case)

    def _compare(self, found: Any, case: Case) -> None:
        """Refuse an output that differs from the reference."""
        if not alike(found, case.output, case.rounded):
            apart = difference(found, case.output)
            raise InexactError(f"the pruned model would differ from the masked one by {apart:.2g}")

    def _describe(self, candidate: Candidate, trial: nn.Module, reasons: list[str]) -> Plan:
        """Return the plan of a candidate.

        Args:
            candidate: The way to make the pruned model.
            trial: The pruned model, on the old weights.
            reasons: Why smaller ways were not possible.
        """
        once = self.examples.once
        rows = self.examples.rows
        notes = list(candidate.notes)
        change = 0.0
        if reasons:
            notes.append(_instead(candidate.alone, reasons[0]))
        if self.fill == "zero":
            change = difference(run(trial, once), self.exact)
            notes.append(
                "Not exact: zeros in place of means change the output on the example by up to "
                f"{change:.3g}. Fine-tune."
            )
        elif self.has_products and not reasons and not candidate.alone:
            notes += self._hint(trial)
        means = {}
        for name in self.selection.dropped:
            blocks = [self.affine[1][columns] for columns in self.gates.columns_of(name)]
            means[name] = torch.cat(blocks).tolist()
        before = count(self.model.parameters()) - self.gates.theta.numel()
        return Plan(
            selection=self.selection,
            fill=self.fill,
            cuts=tuple(cuts_of(self.model, self.gates, trial)),
            notes=tuple(dict.fromkeys(notes)),
            unread=candidate.unread,
            parameters=(before, count(trial.parameters())),
            bytes=(size(self.model) - size(self.gates), size(trial)),
            multiply_adds=(work(self.model, once, rows), work(trial, once, rows)),
            means=means,
            change=change,
            origins=candidate.origins,
            assumptions=candidate.assumptions,
            untraced=reasons[0] if reasons and candidate.graph is None else "",
        )


def _affine(gates: LeAP, selection: Selection, fill: Fill) -> Affine:
    """Return scale and shift of each column; a dropped column is its mean, or 0."""
    kept = torch.zeros(selection.fields.dims, dtype=torch.bool)
    for name in selection.kept:
        for columns in gates.columns_of(name):
            kept[columns] = True
    scale, shift = affine_of(gates, kept)
    if fill == "zero":
        shift = torch.where(kept.to(shift.device), shift, 0)
    return scale, shift


def _instead(alone: tuple[str, ...], reason: str) -> str:
    """Return a note on what is done where the model is not one graph."""
    if not alone:
        return f"Nothing behind the gates is cut, constants are fed instead (exact): {reason}."
    names = ", ".join(alone[:MOST_NAMES])
    if len(alone) > MOST_NAMES:
        names += f" and {len(alone) - MOST_NAMES} more"
    return f"Cut by themselves: {names}; elsewhere constants are fed instead (exact): {reason}."


# Ways to make a model are functions of few arguments, since a plan keeps these alive.


def _feed(
    model: nn.Module, gates: LeAP, sites: tuple[Site, ...], affine: Affine, shared: bool
) -> nn.Module:
    return feed(model, gates, sites, affine, shared=shared)


def _without_tables(make: Make, paths: list[str], shared: bool) -> nn.Module:
    small = make(shared)
    remove_tables(small, paths)
    return small


def _rows(batch: Call) -> list[int | None]:
    return [rows_of(leaf) for leaf in leaves_of_batch(batch)]
