"""Rules for the two ends of the cut: tensors of the batch, and the gates."""

import torch
from torch import Tensor, fx

from ..runtime import kept_columns
from .base import CutRule
from .facts import Facts, View, form_of
from .writer import Writer
from .written import Written, runs_of

LONG_RUN = 64  # columns from which on copying neighbours is faster than selecting columns


class Input(CutRule):
    """A tensor of the batch: columns that nothing reads may be missing in it."""

    def facts(self, node: fx.Node, view: View) -> Facts:
        known = view.known.get(str(node.target)) if node.op == "placeholder" else None
        return known or super().facts(node, view)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        held = writer.placeholders.get(node) or writer.copy(node, writer.complete)
        form = form_of(writer.view.live(node))
        if form is None:
            return Written(held)
        index = writer.register("columns", torch.tensor(form.index))
        width = writer.view.trace.shape(node)[form.axis - 1]
        runs = tuple(runs_of(form.index))
        if len(form.index) < LONG_RUN * len(runs):
            runs = ()
        arguments = (held, form.axis, index, width, runs)
        return Written(writer.graph.call_function(kept_columns, arguments), form)


class Gate(CutRule):
    """The gates: dropped columns are constants; the others have a pending scale and shift."""

    def facts(self, node: fx.Node, view: View) -> Facts:
        scale, shift = self._affine(node, view)
        return Facts(scale == 0, shift)

    def _affine(self, node: fx.Node, view: View) -> tuple[Tensor, Tensor]:
        """Return scale and shift of one row."""
        start, stop = node.args[1:]
        shape = view.trace.shape(node)
        return view.scale[start:stop].reshape(shape), view.shift[start:stop].reshape(shape)

    def request(self, node: fx.Node, view: View) -> None:
        (source,) = view.row_sources(node)
        view.request(source, view.live(node))

    def write(self, node: fx.Node, writer: Writer) -> Written:
        (source,) = writer.view.row_sources(node)
        scale, shift = self._affine(node, writer.view)
        held = writer.plain_part(source, form_of(writer.view.live(node)))
        present = torch.ones_like(scale, dtype=torch.bool)
        if held.form is not None:
            present = held.form.mask(tuple(scale.shape))
        if bool((scale == 1)[present].all()) and not bool(shift[present].any()):
            return held
        return Written(held.node, held.form, scale, shift)
