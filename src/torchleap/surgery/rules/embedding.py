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
        ids = None
        if looked_up is not None and not stays:
            ids = self._drop_rows(node, writer, module, looked_up)
        if ids is None:
            ids = writer.plain_part(node.all_input_nodes[0], looked_up).node
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
            The ids of the kept fields, each moved to the rows that its field has now; None if the
            table stays as it is.
        """
        found = _offsets(node, writer.view, module)
        if found is None or looked_up.axis != 1 or module.padding_idx is not None:
            return None
        own, start = found
        stop = torch.cat([start[1:], torch.tensor([module.num_embeddings])])
        kept = torch.tensor(looked_up.index)
        pairs = zip(start[kept], stop[kept], strict=True)
        rows = torch.cat([torch.arange(int(first), int(end)) for first, end in pairs])
        writer.cut(f"{node.target}.weight", module.weight, {0: rows})
        writer.attributes[str(node.target)] = {"num_embeddings": len(rows)}
        sizes = (stop - start)[kept]
        writer.notes.append(
            f"{node.target}: the rows of dropped fields are removed; "
            "each id must lie within the rows of its own field."
        )
        return _moved(own, sizes.cumsum(0) - sizes, writer, looked_up)


def _moved(own: fx.Node, starts: Tensor, writer: Writer, looked_up: Form) -> fx.Node:
    """Write the ids of kept fields plus the first row of each field, once for several tables."""
    ids = writer.plain_part(own, looked_up).node
    value: Tensor = writer.view.trace.values[own]
    shape = (-1, *(1 for _ in value.shape[2:]))
    offsets = writer.register("offsets", starts.to(value.device).reshape(shape))
    for user in ids.users:
        if user.target is operator.add and getattr(user.args[1], "target", None) == offsets.target:
            return user
    return writer.graph.call_function(operator.add, (ids, offsets))


def _offsets(node: fx.Node, view: View, module: nn.Embedding) -> tuple[fx.Node, Tensor] | None:
    """Return the ids of a table for all fields before they are moved, and each field's first row.

    The ids of the table must be the sum of ids and of numbers that no batch changes.
    """
    (total,) = node.all_input_nodes
    if total.target not in (operator.add, torch.add, "add") or total.kwargs:
        return None
    sources = total.all_input_nodes
    own = [each for each in sources if view.is_rows(each)]
    added = [each for each in sources if view.is_fixed(each)]
    shape = view.trace.shape(total)
    if len(sources) != 2 or len(own) != 1 or len(added) != 1 or view.trace.shape(own[0]) != shape:
        return None
    value: Tensor = view.trace.values[added[0]]
    if value.is_floating_point() or (value.dim() > len(shape) and len(value) > 1):
        return None
    lines = value.detach().cpu().expand(1, *shape).reshape(shape[0], -1)  # (fields, ids per field)
    start = lines[:, 0]
    rises = int(start[0]) == 0 and bool((start.diff() > 0).all())
    is_one = bool((lines == start[:, None]).all())
    if not rises or not is_one or len(start) < 2 or int(start[-1]) >= module.num_embeddings:
        return None
    return own[0], start


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
