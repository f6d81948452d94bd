"""Rules for nn.Embedding and nn.EmbeddingBag."""

import torch
from torch import Tensor, fx, nn

from .base import CutRule
from .facts import Form, View, form_of
from .shared_table import row_blocks, write_moved
from .writer import Writer
from .written import Written


class Embedding(CutRule):
    """Ids of dropped fields are not looked up; dropped dimensions leave the table."""

    def applies(self, node: fx.Node, view: View) -> bool:
        if len(node.all_input_nodes) != 1 or len(node.args) != 1:
            return False
        return view.is_rows(node.all_input_nodes[0])

    def request(self, node: fx.Node, view: View) -> None:
        view.request(node.all_input_nodes[0], view.live(node).any(-1))

    def write(self, node: fx.Node, writer: Writer) -> Written:
        module = writer.view.trace.module(node)
        assert isinstance(module, nn.Embedding)
        live = writer.view.live(node)
        several = live.dim() > 1  # (fields, E), not (E,)
        looked_up = _looked_up(live)
        stays = writer.view.uncut(module.weight) or module.max_norm is not None
        (source,) = node.all_input_nodes
        ids = self._drop_rows(node, writer, module, looked_up)
        if ids is None:
            ids = writer.plain_part(source, looked_up).node
        new = writer.copy(node, lambda _: ids)
        columns = form_of(live.flatten(0, -2).any(0) if several else live)
        path = str(node.target)
        if columns is None or looked_up is not None or stays or path in writer.attributes:
            return Written(new, looked_up)
        writer.cut(f"{path}.weight", module.weight, {1: torch.tensor(columns.index)})
        writer.attributes[path] = {"embedding_dim": len(columns.index)}
        return Written(new, Form(live.dim(), columns.index))

    def _drop_rows(
        self, node: fx.Node, writer: Writer, module: nn.Embedding, looked_up: Form | None
    ) -> fx.Node | None:
        """Remove the rows of dropped fields from one table for all fields: table(ids + offsets).

        Returns:
            The ids of the kept fields, moved to the rows that these have now; None if the table
            stays as it is.
        """
        (ids,) = node.all_input_nodes
        calls = self._calls(node, writer.view)
        if calls is None or module.max_norm is not None:
            return None
        blocks = row_blocks(node, writer.view, calls, module)
        if blocks is None:
            return None
        path = str(node.target)
        writer.cut(f"{path}.weight", module.weight, {0: blocks.left})
        writer.attributes[path] = {"num_embeddings": len(blocks.left)}
        assumption = f"each id in `{path}` lies within the rows of its own field"
        if assumption not in writer.assumptions:
            writer.assumptions.append(assumption)
        return write_moved(ids, blocks, looked_up, writer)

    def _calls(self, node: fx.Node, view: View) -> dict[fx.Node, Form | None] | None:
        """Return the calls of a table that are computed, each with its part along the fields.

        None if anything but such calls uses the table.
        """
        nodes = view.trace.graph.nodes
        calls = [other for other in nodes if (other.op, other.target) == (node.op, node.target)]
        module = view.trace.module(node)
        assert isinstance(module, nn.Embedding)
        if any(view.rules.get(call) is not self for call in calls):
            return None
        if view.uses.get(id(module.weight), 0) > len(calls):
            return None
        found = {call: _looked_up(view.live(call)) for call in calls if view.is_live(call)}
        if any(form is not None and form.axis != 1 for form in found.values()):
            return None
        return found


def _looked_up(live: Tensor) -> Form | None:
    """Return the part of the ids that is looked up, (fields, ...); None is all of them."""
    return form_of(live.any(-1)) if live.dim() > 1 else None


class EmbeddingBag(CutRule):
    """Dropped dimensions leave the table."""

    reads = None  # ids and offsets are copied as they are

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        assert isinstance(module, nn.EmbeddingBag)
        return not view.uncut(module.weight) and module.max_norm is None

    def write(self, node: fx.Node, writer: Writer) -> Written:
        module = writer.view.trace.module(node)
        assert isinstance(module, nn.EmbeddingBag)
        form = form_of(writer.view.live(node))
        new = writer.copy(node, writer.complete)
        if form is None:
            return Written(new)
        path = str(node.target)
        writer.cut(f"{path}.weight", module.weight, {1: torch.tensor(form.index)})
        writer.attributes[path] = {"embedding_dim": len(form.index)}
        return Written(new, form)
