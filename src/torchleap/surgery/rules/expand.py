"""The rule for copies of the same columns."""

import torch
from torch import fx

from .facts import Form, View
from .layout import Layout
from .writer import Writer
from .written import Written


class Expand(Layout):
    """expand: each copy of a column is constant where the column is."""

    reads = frozenset(("rows", "fixed", "mode", "batch"))

    def applies(self, node: fx.Node, view: View) -> bool:
        if node.kwargs or not super().applies(node, view):
            return False
        (source,) = view.row_sources(node)
        return len(view.trace.shape(source)) == len(view.trace.shape(node))

    def write_complete(
        self, node: fx.Node, writer: Writer, source: fx.Node, held: Written
    ) -> Written:
        return self._write(node, writer, source, held, None)

    def write_part(
        self,
        node: fx.Node,
        writer: Writer,
        source: fx.Node,
        held: Written,
        present: torch.Tensor,
        form: Form | None,
    ) -> Written:
        return self._write(node, writer, source, held, form)

    def _write(
        self, node: fx.Node, writer: Writer, source: fx.Node, held: Written, form: Form | None
    ) -> Written:
        """Write copies along the dimensions that have one place; the others stay as they are."""
        before = writer.view.trace.shape(source)
        after = writer.view.trace.shape(node)
        sizes = [new if old == 1 else -1 for old, new in zip(before, after, strict=True)]
        new = writer.graph.call_method("expand", (held.node, -1, *sizes))
        return writer.carry(node, {source: held}, form, new)
