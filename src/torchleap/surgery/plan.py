"""A plan: every cut that surgery makes in a model, to print, to check and to apply."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from .._common.errors import SurgeryError
from .._common.text import plural, table
from ..selection import Selection
from .attachment import Attachment
from .cuts import Cut
from .recipe import Recipe
from .rules.written import Origin
from .write.unread import Unread

Fill = Literal["mean", "zero"]
MOST_ASSUMPTIONS = 12  # that are printed


@dataclass(frozen=True)
class Plan:
    """Every cut that surgery makes in a model; it prints as a table, and `apply` makes the cuts.

    A plan is made by `Plugin.plan`, which changes nothing. It keeps the model alive that it was
    made for (of a model that FSDP2 has sharded, a gathered copy), with some constants and a few
    rows; the weights of the pruned model are copied by `apply`. The plan that a pruned model
    remembers (`plan_of`), and a plan that was copied or unpickled, hold none of this, and cannot be
    applied.

    Attributes:
        selection: Which fields are kept.
        fill: The value of dropped fields, "mean" or "zero".
        cuts: Every layer and parameter whose shape changes.
        notes: What could not be cut and why, and what is not exact.
        unread: The inputs that the pruned model does not read.
        parameters: The number of parameters before and after.
        bytes: The bytes of parameters and buffers before and after.
        multiply_adds: The multiply-adds per row before and after, in matrix products and
            convolutions; None where PyTorch cannot count them.
        means: The constants that stand for the dropped fields.
        change: The largest change of the output on the example by fill="zero"; 0 with means.
        origins: Where parameters that are cut come from, by name.
        assumptions: Assumptions about the batch; the pruned model checks them at each call.
        untraced: Why the model is not one graph; "" if it is.
        attachment: How the gates were attached, to rebuild the pruned model from code.
        recipe: How to make the pruned model; None if the plan cannot be applied.
    """

    selection: Selection
    fill: Fill
    cuts: tuple[Cut, ...]
    notes: tuple[str, ...]
    unread: tuple[Unread, ...]
    parameters: tuple[int, int]
    bytes: tuple[int, int]
    multiply_adds: tuple[int | None, int | None]
    means: dict[str, list[float]] = field(repr=False)
    change: float
    origins: dict[str, Origin] = field(repr=False)
    assumptions: tuple[str, ...] = ()
    untraced: str = ""
    attachment: Attachment | None = field(default=None, repr=False, compare=False)
    recipe: Recipe | None = field(default=None, repr=False, compare=False)

    def apply(self) -> nn.Module:
        """Return the pruned model: a new one without the dropped fields and without gates.

        The old model is untouched. Each call returns a model with weights of its own.

        Raises:
            SurgeryError: The model has changed since the plan was made, by training, `detach()` or
                otherwise; or the plan does not hold its model.
        """
        if self.recipe is None:
            raise SurgeryError(
                "This plan does not hold its model, since it was copied or belongs to a pruned "
                "model, so it cannot be applied. Make a new one: plugin.plan(selection)."
            )
        return self.recipe.make(replace(self, recipe=None))

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the model, for copies and pickles."""
        return {**vars(self), "recipe": None}

    def __repr__(self) -> str:
        fields = self.selection.fields
        dropped = fields.dims - self.selection.dims
        return (
            f"Plan: drop {len(self.selection.dropped):,} of {plural(len(fields), 'field')}, "
            f"{dropped:,} of {plural(fields.dims, 'dimension')}; "
            f"{_change(self.parameters)} parameters, {_change(self.bytes)} bytes, "
            f"{_change(self.multiply_adds)} multiply-adds per row"
        )

    def __str__(self) -> str:
        lines = [repr(self)]
        if self.cuts:
            lines.append(self._table())
        if self.unread:
            lines.append("No longer read: " + ", ".join(map(str, self.unread)) + ".")
        if self.assumptions:
            shown = list(self.assumptions[:MOST_ASSUMPTIONS])
            if len(self.assumptions) > MOST_ASSUMPTIONS:
                shown.append(f"{len(self.assumptions) - MOST_ASSUMPTIONS} more in .assumptions")
            lines.append("Assumes: " + "; ".join(shown) + ".")
        return "\n".join([*lines, *self.notes])

    def _table(self) -> str:
        """Return the cuts as a table."""
        changes = [f"{cut.before} => {cut.after}" for cut in self.cuts]
        width = max(map(len, changes))
        rows = []
        for cut, change in zip(self.cuts, changes, strict=True):
            rows.append([cut.path, change.ljust(width), f"{cut.parameters:+,}"])
        return table(["layer", "before => after", "parameters"], rows)


def _change(pair: tuple[int | None, int | None]) -> str:
    before, after = pair
    if before is None or after is None:
        return "unknown"
    text = f"{before:,} => {after:,}"
    if before:
        text += f" ({after / before - 1:+.0%})"
    return text


def plan_of(pruned: nn.Module) -> Plan:
    """Return the plan that a pruned model was made by."""
    plan = getattr(type(pruned), "pruned_plan", None)
    if not isinstance(plan, Plan):
        raise SurgeryError(
            f"Expected a model that plugin.prune() returned, but found {type(pruned).__name__}."
        )
    return plan
