"""Rules for nn.Embedding and nn.EmbeddingBag."""

import operator

import torch
from torch import Tensor, fx, nn

from .base import CutRule
from .facts import Form, View, form_of
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
        if looked_up is not None and not stays:
            self._drop_rows(node, writer, module, looked_up)
        new = writer.copy(node, lambda source: writer.plain_part(source, looked_up).node)
        columns = form_of(live.flatten(0, -2).any(0) if several else live)
        if columns is None or looked_up is not None or stays:
            return Written(new, looked_up)
        path = str(node.target)
        writer.cut(f"{path}.weight", module.weight, {1: torch.tensor(columns.index)})
        writer.attributes[path] = {"embedding_dim": len(columns.index)}
        return Written(new, Form(live.dim(), columns.index))

    def _drop_rows(
        self, node: fx.Node, writer: Writer, module: nn.Embedding, looked_up: Form
    ) -> None:
        """Remove the rows of dropped fields from one table for all fields: table(ids + offsets)."""
        offsets = _offsets(node, writer.view, module)
        if offsets is None or looked_up.axis != 1 or module.padding_idx is not None:
            return
        path, buffer = offsets
        start = buffer.detach().cpu().flatten()
        stop = torch.cat([start[1:], torch.tensor([module.num_embeddings])])
        kept = torch.tensor(looked_up.index)
        pairs = zip(start[kept], stop[kept], strict=True)
        rows = torch.cat([torch.arange(int(first), int(end)) for first, end in pairs])
        writer.cut(f"{node.target}.weight", module.weight, {0: rows})
        writer.attributes[str(node.target)] = {"num_embeddings": len(rows)}
        sizes = (stop - start)[kept]
        moved = sizes.cumsum(0) - sizes
        old = buffer
        if path in writer.origins:
            old = writer.origins[path].cut(buffer)
        else:  # offsets are added to all ids, and the sums of kept fields are selected
            moved = torch.zeros_like(start).index_copy(0, kept, moved)
        writer.parameters[path] = moved.to(old).reshape(old.shape)
        writer.notes.append(
            f"{node.target}: the rows of dropped fields are removed, by {path}; "
            "each id must lie within the rows of its own field."
        )


def _offsets(node: fx.Node, view: View, module: nn.Embedding) -> tuple[str, Tensor] | None:
    """Return name and value of the buffer that shifts each field's ids to its own rows of a table.

    The ids of the table must be the sum of entries of the batch and such a buffer.
    """
    (total,) = node.all_input_nodes
    if total.target not in (operator.add, torch.add, "add") or len(total.users) > 1:
        return None
    sources = total.all_input_nodes
    found = [each for each in sources if view.is_fixed(each) and each.op == "get_attr"]
    if len(sources) != 2 or len(found) != 1:
        return None
    path = str(found[0].target)
    buffer: Tensor = view.trace.values[found[0]]
    if path in view.trace.constants or view.uncut(buffer):
        return None
    start = buffer.detach().cpu().flatten()
    if start.numel() != view.facts[total].const.numel() or start.numel() < 2:
        return None
    rises = int(start[0]) == 0 and bool((start.diff() > 0).all())
    return (path, buffer) if rises and int(start[-1]) < module.num_embeddings else None


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
