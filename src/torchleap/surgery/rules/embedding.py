"""Rules for nn.Embedding and nn.EmbeddingBag."""

import torch
from torch import fx, nn

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
        looked_up = form_of(live.any(-1)) if several else None
        stays = writer.view.uncut(module.weight) or module.max_norm is not None
        (source,) = node.all_input_nodes
        ids = None
        if looked_up is not None and not stays:
            ids = self._drop_rows(node, writer, module, looked_up)
        if ids is None:
            ids = writer.plain_part(source, looked_up).node
        new = writer.copy(node, lambda _: ids)
        columns = form_of(live.flatten(0, -2).any(0) if several else live)
        if columns is None or looked_up is not None or stays:
            return Written(new, looked_up)
        path = str(node.target)
        writer.cut(f"{path}.weight", module.weight, {1: torch.tensor(columns.index)})
        writer.attributes[path] = {"embedding_dim": len(columns.index)}
        return Written(new, Form(live.dim(), columns.index))

    def _drop_rows(
        self, node: fx.Node, writer: Writer, module: nn.Embedding, looked_up: Form
    ) -> fx.Node | None:
        """Remove the rows of dropped fields from one table for all fields: table(ids + offsets).

        Returns:
            The ids of the kept fields, moved to the rows that these have now; None if the table
            stays as it is.
        """
        (ids,) = node.all_input_nodes
        blocks = row_blocks(ids, writer.view, module.num_embeddings, module.padding_idx)
        if blocks is None or looked_up.axis != 1:
            return None
        rows = blocks.rows_of(torch.tensor(looked_up.index))
        writer.cut(f"{node.target}.weight", module.weight, {0: rows})
        writer.attributes[str(node.target)] = {"num_embeddings": len(rows)}
        writer.notes.append(
            f"{node.target}: the rows of dropped fields are removed; "
            "each id must lie within the rows of its own field."
        )
        return write_moved(ids, blocks, looked_up, writer)


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
