"""Rules for layers with weights: which rows and columns go, and what is folded into which bias."""

import operator

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from .base import Elementwise, Opaque
from .facts import Facts, Form, View, form_of
from .writer import Writer, Written


class Layer(Opaque):
    """A layer of one input."""

    def applies(self, node: fx.Node, view: View) -> bool:
        return len(view.row_sources(node)) == 1 and len(node.all_input_nodes) == 1

    def stays(self, node: fx.Node, view: View) -> bool:
        """Whether the weights must stay as they are: the layer is called twice, or shares them with another."""
        module = view.trace.module(node)
        return module is not None and view.uncut(
            *module._parameters.values(), *module._buffers.values()
        )


class Linear(Layer):
    """nn.Linear and products with a matrix: columns of constants go, and what they contributed is added to the bias."""

    def weight(self, node: fx.Node, view: View) -> tuple[str, Tensor, bool]:
        """The path and value of the weight, and whether it is (inputs, outputs)."""
        module = view.trace.module(node)
        if module is not None:
            assert isinstance(module, nn.Linear)
            return f"{node.target}.weight", module.weight, False
        matrix = node.args[1]
        assert isinstance(matrix, fx.Node)
        return str(matrix.target), view.trace.values[matrix], node.target is not functional.linear

    def applies(self, node: fx.Node, view: View) -> bool:
        if node.op == "call_module":
            return super().applies(node, view)
        matrix = node.args[1] if len(node.args) > 1 else None
        if (
            not isinstance(matrix, fx.Node)
            or not view.is_fixed(matrix)
            or view.row_sources(node) != [node.args[0]]
        ):
            return False
        path, value, _ = self.weight(node, view)
        return (
            matrix.op == "get_attr"
            and value.dim() == 2
            and not view.uncut(value)
            and path not in view.trace.constants
        )

    def known(self, node: fx.Node, view: View) -> Facts:
        source = view.row_sources(node)[0]
        facts, (_, weight, swapped) = view.facts[source], self.weight(node, view)
        matrix = weight.detach().cpu().double()
        value = facts.value @ (matrix if swapped else matrix.T) + self.bias(node, view)
        return Facts(facts.const.all(-1, keepdim=True).expand(value.shape), value)

    def bias(self, node: fx.Node, view: View) -> Tensor:
        """The bias, or 0."""
        module = view.trace.module(node)
        if isinstance(module, nn.Linear):
            return torch.zeros(()) if module.bias is None else module.bias.detach().cpu().double()
        given = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
        return (
            view.trace.values[given].detach().cpu().double()
            if isinstance(given, fx.Node)
            else torch.zeros(())
        )

    def ask(self, node: fx.Node, view: View) -> None:
        source = view.row_sources(node)[0]
        view.want(
            source, view.live(node).any(-1, keepdim=True).expand(view.trace.shape(source)).clone()
        )
        for other in node.all_input_nodes:
            if other is not source:
                view.want(other)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        view, source = writer.view, writer.view.row_sources(node)[0]
        held, facts, live = writer.written[source], view.facts[source], view.live(node)
        last = len(view.trace.shape(source))
        if (
            held.form is not None and held.form.axis != last
        ):  # whole tokens are absent, the weight stays
            return Written(writer.copy(node, lambda _: writer.plain(source).node), held.form)
        if self.stays(node, view):
            return Written(writer.copy(node, writer.whole))
        column = form_of(~facts.const)
        if held.form is None and column is not None and column.axis == last:
            held = writer.as_form(source, column)
        if not self._same_for_all(held):
            held = writer.plain_part(source, held.form)
        columns = (
            torch.tensor(held.form.index) if held.form else torch.arange(facts.const.shape[-1])
        )
        outputs = torch.arange(live.shape[-1])
        if live.dim() == 1 and not live.all():  # nobody asks for the others
            outputs = live.nonzero().flatten()
        added = self._fold(node, view, held, facts, columns)[..., outputs]
        form = Form(last, tuple(outputs.tolist())) if len(outputs) < live.shape[-1] else None
        return Written(self._write(node, writer, held, columns, outputs, added), form)

    def _same_for_all(self, held: Written) -> bool:
        """Whether a pending scale and shift can be folded into a weight: they are the same for every token."""
        return held.scale is None or held.scale.dim() == 1

    def _fold(
        self, node: fx.Node, view: View, held: Written, facts: Facts, columns: Tensor
    ) -> Tensor:
        """What the absent columns and the pending shift contribute to each output."""
        _, weight, swapped = self.weight(node, view)
        matrix = (
            weight.detach().cpu().double() if swapped else weight.detach().cpu().double().T
        )  # (inputs, outputs)
        rest = facts.value.clone()
        rest[..., columns] = 0.0 if held.shift is None else held.shift[..., columns]
        added = rest @ matrix
        first = added.reshape(-1, added.shape[-1])[0]
        return first if torch.equal(added, first.expand_as(added)) else added

    def _write(
        self,
        node: fx.Node,
        writer: Writer,
        held: Written,
        columns: Tensor,
        outputs: Tensor,
        added: Tensor,
    ) -> fx.Node:
        path, weight, swapped = self.weight(node, writer.view)
        inputs_dim, outputs_dim = (0, 1) if swapped else (1, 0)
        narrow = len(columns) < weight.shape[inputs_dim] or len(outputs) < weight.shape[outputs_dim]
        if narrow or held.scale is not None:
            scale = None if held.scale is None else held.scale[columns]
            factor = scale[:, None] if scale is not None and swapped else scale
            writer.cut(path, weight, {inputs_dim: columns, outputs_dim: outputs}, factor)
        module = writer.view.trace.module(node)
        if isinstance(module, nn.Linear) and added.dim() == 1:
            writer.attributes[str(node.target)] = {
                "in_features": len(columns),
                "out_features": len(outputs),
            }
            if narrow or bool(added.any()):
                self._write_bias(str(node.target), module, writer, outputs, added)
            return writer.copy(node, lambda _: held.node)
        bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
        if isinstance(bias, fx.Node) and len(outputs) < weight.shape[outputs_dim]:
            matrix = writer.other(node.all_input_nodes[1])
            cut = writer.part_of_fixed(bias, 0, outputs.tolist())
            new = writer.graph.call_function(functional.linear, (held.node, matrix, cut))
        else:
            new = writer.copy(node, lambda _: held.node)
        return writer.add(new, added, node) if bool(added.any()) else new

    def _write_bias(
        self, path: str, module: nn.Linear, writer: Writer, outputs: Tensor, added: Tensor
    ) -> None:
        if module.bias is not None:
            writer.cut(f"{path}.bias", module.bias, {0: outputs})
            old = writer.parameters[f"{path}.bias"]
            writer.parameters[f"{path}.bias"] = (old.double() + added.to(old.device)).to(old.dtype)
        elif bool(added.any()):
            writer.parameters[f"{path}.bias"] = added.to(module.weight.device, module.weight.dtype)


class BatchNorm(Layer):
    """BatchNorm1d on the concatenation: it shrinks with it, and a pending scale and shift go into its statistics."""

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        return (
            super().applies(node, view)
            and isinstance(module, nn.BatchNorm1d)
            and module.running_mean is not None
        )

    def known(self, node: fx.Node, view: View) -> Facts:
        (source,) = view.row_sources(node)
        facts, mean, variance, weight, bias = (
            view.facts[source],
            *self._arrays(node, view, len(view.trace.shape(source))),
        )
        return Facts(facts.const, (facts.value - mean) / variance.sqrt() * weight + bias)

    def _arrays(
        self, node: fx.Node, view: View, rank: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        module = view.trace.module(node)
        assert isinstance(module, nn.BatchNorm1d)
        assert module.running_mean is not None
        assert module.running_var is not None
        weight = torch.ones_like(module.running_mean) if module.weight is None else module.weight
        bias = torch.zeros_like(module.running_mean) if module.bias is None else module.bias
        shape = [-1, *[1] * (rank - 1)]
        mean, variance, slope, start = (
            array.detach().cpu().double().reshape(shape)
            for array in (
                module.running_mean,
                module.running_var.double() + module.eps,
                weight,
                bias,
            )
        )
        return mean, variance, slope, start

    def ask(self, node: fx.Node, view: View) -> None:
        (source,) = view.row_sources(node)
        view.want(source, view.live(node))

    def write(self, node: fx.Node, writer: Writer) -> Written:
        (source,) = writer.view.row_sources(node)
        module, path = writer.view.trace.module(node), str(node.target)
        assert isinstance(module, nn.BatchNorm1d)
        assert module.running_mean is not None
        assert module.running_var is not None
        if self.stays(node, writer.view):
            return Written(writer.copy(node, writer.whole))
        form = form_of(writer.view.live(node))
        held = writer.as_form(source, form if form and form.axis == 1 else None)
        kept = torch.tensor(held.form.index) if held.form else torch.arange(module.num_features)
        if held.scale is not None and (held.scale.dim() > 1 or bool((held.scale[kept] <= 0).any())):
            held = writer.plain_part(source, held.form)
        for name, tensor in (
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ):
            if tensor.dim():
                writer.cut(f"{path}.{name}", tensor, {0: kept})
        if held.scale is not None and held.shift is not None:
            scale, shift = held.scale[kept], held.shift[kept]
            mean, variance = (
                module.running_mean.cpu().double()[kept],
                module.running_var.cpu().double()[kept],
            )
            new_mean, new_variance = (
                (mean - shift) / scale,
                (variance + module.eps) / scale.square() - module.eps,
            )
            for name, array in (("running_mean", new_mean), ("running_var", new_variance)):
                writer.parameters[f"{path}.{name}"] = array.to(
                    module.running_mean.device, module.running_mean.dtype
                )
        writer.attributes[path] = {"num_features": len(kept)}
        return Written(writer.copy(node, lambda _: held.node), held.form)


class Convolution(Layer):
    """A convolution whose channels are columns or fields: constant channels go, what they contributed is added."""

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        return (
            super().applies(node, view)
            and isinstance(module, nn.Conv1d | nn.Conv2d)
            and module.groups == 1
        )

    def known(self, node: fx.Node, view: View) -> Facts:
        (source,) = view.row_sources(node)
        facts = view.facts[source]
        shape = view.trace.shape(node)
        return Facts(
            facts.const.all().expand(shape), self._convolve(node, view, facts.value, with_bias=True)
        )

    def _convolve(self, node: fx.Node, view: View, row: Tensor, with_bias: bool) -> Tensor:
        module = view.trace.module(node)
        assert isinstance(module, nn.Conv1d | nn.Conv2d)
        bias = (
            module.bias.detach().cpu().double() if with_bias and module.bias is not None else None
        )
        convolved: Tensor = module._conv_forward(
            row[None], module.weight.detach().cpu().double(), bias
        )
        return convolved[0]

    def write(self, node: fx.Node, writer: Writer) -> Written:
        (source,) = writer.view.row_sources(node)
        module, path = writer.view.trace.module(node), str(node.target)
        assert isinstance(module, nn.Conv1d | nn.Conv2d)
        held = writer.plain(source)
        if held.form is None or held.form.axis != 1 or self.stays(node, writer.view):
            return Written(writer.copy(node, writer.whole))
        kept = torch.tensor(held.form.index)
        rest = torch.where(
            held.form.mask(writer.view.trace.shape(source)), 0.0, writer.view.facts[source].value
        )
        added = self._convolve(node, writer.view, rest, with_bias=False)
        writer.cut(f"{path}.weight", module.weight, {1: kept})
        writer.attributes[path] = {"in_channels": len(kept)}
        channel = added.flatten(1)[:, :1]
        if torch.allclose(
            added.flatten(1), channel.expand_as(added.flatten(1)), rtol=1e-12, atol=1e-14
        ):  # no border
            old = (
                torch.zeros_like(module.weight[:, 0].flatten(1)[:, 0])
                if module.bias is None
                else module.bias
            )
            if module.bias is not None:
                writer.cut(f"{path}.bias", module.bias, {})
            writer.parameters[f"{path}.bias"] = (
                old.detach().double() + channel[:, 0].to(old.device)
            ).to(old.dtype)
            return Written(writer.copy(node, lambda _: held.node))
        return Written(writer.add(writer.copy(node, lambda _: held.node), added, node))


class Bilinear(Opaque):
    """nn.Bilinear: a constant on one side makes the product linear in the other side."""

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        assert isinstance(module, nn.Bilinear)
        flat = all(
            view.is_rows(side) and len(view.trace.shape(side)) == 1
            for side in node.args
            if isinstance(side, fx.Node)
        )
        return flat and len(node.args) == 2 and not view.uncut(*module._parameters.values())

    def write(self, node: fx.Node, writer: Writer) -> Written:
        module, path = writer.view.trace.module(node), str(node.target)
        left, right = node.args
        assert isinstance(module, nn.Bilinear)
        assert isinstance(left, fx.Node)
        assert isinstance(right, fx.Node)
        held = [writer.plain(side) if writer.is_written(side) else None for side in (left, right)]
        if any(part is None for part in held):
            return Written(writer.copy(node, writer.whole))
        weight = module.weight.detach().cpu().double()  # (outputs, left, right)
        one, two = (
            self._split(writer, side, part) for side, part in zip((left, right), held, strict=True)
        )
        total = torch.einsum("oij,i,j->o", weight, one[1], two[1])
        old = torch.zeros(len(weight)) if module.bias is None else module.bias.detach()
        writer.cut(f"{path}.weight", module.weight, {1: one[0], 2: two[0]})
        if module.bias is not None:
            writer.cut(f"{path}.bias", module.bias, {})
        writer.parameters[f"{path}.bias"] = (old.double() + total.to(old.device)).to(
            module.weight.device, module.weight.dtype
        )
        writer.attributes[path] = {"in1_features": len(one[0]), "in2_features": len(two[0])}
        assert held[0] is not None
        assert held[1] is not None
        new = writer.graph.call_module(path, (held[0].node, held[1].node))
        for side, matrix in ((held[0], torch.einsum("oij,j->oi", weight, two[1])[:, one[0]]),
                             (held[1], torch.einsum("oij,i->oj", weight, one[1])[:, two[0]])):  # fmt: skip
            if bool(matrix.any()):
                linear = writer.graph.call_function(
                    functional.linear, (side.node, writer.buffer(matrix, node))
                )
                new = writer.graph.call_function(torch.add, (new, linear))
        return Written(new)

    def _split(self, writer: Writer, side: fx.Node, held: Written | None) -> tuple[Tensor, Tensor]:
        """The columns that vary, and the constants at the places of the others."""
        value = writer.view.facts[side].value
        kept = (
            torch.arange(len(value))
            if held is None or held.form is None
            else torch.tensor(held.form.index)
        )
        rest = value.clone()
        rest[kept] = 0.0
        return kept, rest


class Embedding(Opaque):
    """nn.Embedding: ids of dropped fields are not looked up, dropped dimensions leave the table."""

    def applies(self, node: fx.Node, view: View) -> bool:
        return (
            len(node.all_input_nodes) == 1
            and view.is_rows(node.all_input_nodes[0])
            and len(node.args) == 1
        )

    def ask(self, node: fx.Node, view: View) -> None:
        view.want(node.all_input_nodes[0], view.live(node).any(-1))

    def write(self, node: fx.Node, writer: Writer) -> Written:
        module, path = writer.view.trace.module(node), str(node.target)
        assert isinstance(module, nn.Embedding)
        live = writer.view.live(node)
        looked_up = form_of(live.any(-1)) if live.dim() > 1 else None
        stays = writer.view.uncut(module.weight) or module.max_norm is not None
        if looked_up is not None and not stays:
            self._drop_rows(node, writer, module, looked_up)
        new = writer.copy(node, lambda source: writer.plain_part(source, looked_up).node)
        columns = form_of(live.flatten(0, -2).any(0) if live.dim() > 1 else live)
        if columns is None or looked_up is not None or stays:
            return Written(new, looked_up)
        writer.cut(f"{path}.weight", module.weight, {1: torch.tensor(columns.index)})
        writer.attributes[path] = {"embedding_dim": len(columns.index)}
        return Written(new, Form(live.dim(), columns.index))

    def _drop_rows(
        self, node: fx.Node, writer: Writer, module: nn.Embedding, looked_up: Form
    ) -> None:
        """One table for all fields, table(ids + offsets): the rows of dropped fields go."""
        offsets = _offsets(node, writer.view, module)
        if offsets is None or looked_up.axis != 1 or module.padding_idx is not None:
            return
        path, buffer = offsets
        start = buffer.detach().cpu().flatten()
        stop = torch.cat([start[1:], torch.tensor([module.num_embeddings])])
        kept = torch.tensor(looked_up.index)
        rows = torch.cat(
            [torch.arange(int(a), int(b)) for a, b in zip(start[kept], stop[kept], strict=True)]
        )
        sizes = (stop - start)[kept]
        writer.cut(f"{node.target}.weight", module.weight, {0: rows})
        writer.attributes[str(node.target)] = {"num_embeddings": len(rows)}
        moved = sizes.cumsum(0) - sizes
        if (
            path not in writer.parameters
        ):  # all ids are added up, and those of kept fields are taken from the sum
            moved = torch.zeros_like(start).index_copy(0, kept, moved)
        old = writer.parameters.get(path, buffer)
        writer.parameters[path] = moved.to(old).reshape(old.shape)
        writer.notes.append(
            f"{node.target}: the rows of dropped fields go, by {path}; each id must lie within the rows of its own field."
        )


def _offsets(node: fx.Node, view: View, module: nn.Embedding) -> tuple[str, Tensor] | None:
    """The buffer that shifts each field's ids to its own rows, if the ids are batch entries plus such a buffer."""
    (total,) = node.all_input_nodes
    if (
        total.target not in (operator.add, torch.add, "add")
        or len(total.users) > 1
        or len(total.all_input_nodes) != 2
    ):
        return None
    found = [
        source
        for source in total.all_input_nodes
        if view.is_fixed(source) and source.op == "get_attr"
    ]
    if (
        len(found) != 1
        or str(found[0].target) in view.trace.constants
        or view.uncut(view.trace.values[found[0]])
    ):
        return None
    buffer: Tensor = view.trace.values[found[0]]
    start = buffer.detach().cpu().flatten()
    rising = (
        start.numel() == view.facts[total].const.numel() > 1
        and int(start[0]) == 0
        and bool((start.diff() > 0).all())
    )
    return (
        (str(found[0].target), buffer)
        if rising and int(start[-1]) < module.num_embeddings
        else None
    )


class EmbeddingBag(Layer):
    """nn.EmbeddingBag: dropped dimensions leave the table."""

    reads = None  # ids and offsets are copied as they are

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        assert isinstance(module, nn.EmbeddingBag)
        return not view.uncut(module.weight) and module.max_norm is None

    def write(self, node: fx.Node, writer: Writer) -> Written:
        module, path = writer.view.trace.module(node), str(node.target)
        assert isinstance(module, nn.EmbeddingBag)
        form = form_of(writer.view.live(node))
        new = writer.copy(node, writer.whole)
        if form is None:
            return Written(new)
        writer.cut(f"{path}.weight", module.weight, {1: torch.tensor(form.index)})
        writer.attributes[path] = {"embedding_dim": len(form.index)}
        return Written(new, form)


class Tokenwise(Elementwise):
    """A layer that treats each token alone, such as LayerNorm over the width of an embedding: whole tokens may be absent."""

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        tokens = isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1
        return super().applies(node, view) and tokens and len(view.trace.shape(node)) > 1

    def known(self, node: fx.Node, view: View) -> Facts:
        (source,) = view.row_sources(node)
        module = view.trace.module(node)
        assert isinstance(module, nn.LayerNorm)
        weight, bias = (
            None if t is None else t.detach().cpu().double() for t in (module.weight, module.bias)
        )
        value = functional.layer_norm(
            view.facts[source].value, list(module.normalized_shape), weight, bias, module.eps
        )
        return Facts(view.facts[source].const.all(-1, keepdim=True).expand(value.shape), value)

    def ask(self, node: fx.Node, view: View) -> None:
        (source,) = view.row_sources(node)
        view.want(
            source, view.live(node).any(-1, keepdim=True).expand(view.trace.shape(source)).clone()
        )

    def write(self, node: fx.Node, writer: Writer) -> Written:
        (source,) = writer.view.row_sources(node)
        held = writer.plain(source)
        if held.form is not None and held.form.axis == len(writer.view.trace.shape(source)):
            held = writer.plain_part(source, None)
        return Written(writer.copy(node, lambda _: held.node), held.form)
