"""The rule for nn.Linear and products with a matrix."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from .base import LayerRule, double, kept_index, spread
from .facts import Facts, Form, View, form_of
from .sums import Expression, Sums
from .writer import Writer
from .written import Written


@dataclass(frozen=True)
class Weight:
    """The weight of a product.

    Attributes:
        path: Its name in the model.
        value: The tensor.
        swapped: Whether it is (inputs, outputs), as for matmul, and not (outputs, inputs).
    """

    path: str
    value: Tensor
    swapped: bool

    @property
    def matrix(self) -> Tensor:
        """Return it as float64, (inputs, outputs)."""
        return double(self.value) if self.swapped else double(self.value).T

    @property
    def dims(self) -> tuple[int, int]:
        """Return the dimensions of the inputs and of the outputs."""
        return (0, 1) if self.swapped else (1, 0)


def _untransposed(matrix: fx.Node) -> tuple[fx.Node, bool]:
    """Return the matrix that a node is a transpose of, and whether it is one."""
    turned = False
    while _is_transpose(matrix):
        matrix = matrix.all_input_nodes[0]
        turned = not turned
    return matrix, turned


def _is_transpose(node: fx.Node) -> bool:
    """Return whether a node of two dimensions is a transpose: `x.T`, `x.t()`, `x.transpose()`."""
    if node.target is getattr:
        return node.args[1] in ("T", "mT")
    if node.target in ("t", torch.t):
        return True
    dims = {dim % 2 for dim in node.args[1:] if isinstance(dim, int)}
    return node.target in ("transpose", torch.transpose) and dims == {0, 1}


class Linear(LayerRule):
    """Columns of constants leave the weight, and their contribution is added to the bias."""

    def _weight(self, node: fx.Node, view: View) -> Weight:
        module = view.trace.module(node)
        if module is not None:
            assert isinstance(module, nn.Linear)
            return Weight(f"{node.target}.weight", module.weight, swapped=False)
        matrix = node.args[1]
        assert isinstance(matrix, fx.Node)
        matrix, turned = _untransposed(matrix)
        swapped = (node.target is not functional.linear) != turned
        return Weight(str(matrix.target), view.trace.values[matrix], swapped)

    def applies(self, node: fx.Node, view: View) -> bool:
        if node.op == "call_module":
            return super().applies(node, view)
        matrix = node.args[1] if len(node.args) > 1 else None
        if not isinstance(matrix, fx.Node) or not view.is_fixed(matrix):
            return False
        parameter, _ = _untransposed(matrix)
        if parameter.op != "get_attr" or view.row_sources(node) != [node.args[0]]:
            return False
        weight = self._weight(node, view)
        is_own = weight.path not in view.trace.constants and not view.uncut(weight.value)
        return is_own and weight.value.dim() == 2

    def facts(self, node: fx.Node, view: View) -> Facts:
        facts = view.facts[view.row_sources(node)[0]]
        value = facts.value @ self._weight(node, view).matrix + self._bias(node, view)
        const = facts.const.all(-1, keepdim=True).expand(value.shape)
        return Facts(const, value, self._sums(node, view, facts, const))

    def _sums(self, node: fx.Node, view: View, facts: Facts, const: Tensor) -> Sums | None:
        """Return the sums: tokens that are made of constants and sums alone."""
        tokens = facts.known.all(-1)
        mask = tokens[..., None].expand(const.shape) & ~const
        if facts.sums is None or not bool(mask.any()):
            return None
        rows = torch.where((facts.sums.mask & tokens[..., None])[..., None], facts.sums.matrix, 0.0)
        matrix = torch.einsum("...dk,do->...ok", rows, self._weight(node, view).matrix)
        return Sums(mask, facts.sums.features, matrix)

    def takes_sums(self, node: fx.Node, view: View, source: fx.Node) -> bool:
        """Return whether the layer becomes smaller by reading features in place of sums."""
        facts = view.facts[source]
        if facts.sums is None:
            return True
        tokens = facts.known.all(-1)[..., None]
        if bool((facts.sums.mask & tokens).any()) and view.facts[node].sums is None:
            return False  # what is made of sums alone is computed itself
        mixed = facts.sums.mask & ~tokens
        if not bool(mixed.any()):
            return True
        if mixed.dim() > 1 or (self.stays(node, view) and self._in_common(node, view) is None):
            return False
        return view.reach == math.inf or len(facts.sums.read(mixed)) <= int(mixed.sum())

    def express(self, node: fx.Node, view: View, index: Tensor) -> Expression | None:
        """Return outputs as sums of what the layer reads, unless these are too many features."""
        (source, *_) = view.row_sources(node)
        matrix = self._weight(node, view).matrix
        width, outputs = matrix.shape
        tokens, again = torch.unique(index // outputs, return_inverse=True)
        places = tokens[:, None] * width + torch.arange(width)
        found = view.express(source, places.flatten())
        if view.reach is None or found.used() > view.reach * len(index):
            return None
        weight = matrix[:, index % outputs].T  # (n, inputs)
        rows = found.matrix.reshape(len(tokens), width, -1)
        offset = found.offset.reshape(len(tokens), width)[again]
        bias = self._bias(node, view).expand(outputs)[index % outputs]
        combined = torch.zeros(len(index), rows.shape[-1], dtype=torch.float64)
        for token in range(len(tokens)):
            own = again == token
            combined[own] = weight[own] @ rows[token]
        return Expression(found.features, combined, (weight * offset).sum(1) + bias)

    def _bias(self, node: fx.Node, view: View) -> Tensor:
        """Return the bias, or 0."""
        module = view.trace.module(node)
        if isinstance(module, nn.Linear):
            return torch.zeros(()) if module.bias is None else double(module.bias)
        bias = self._bias_node(node)
        return torch.zeros(()) if bias is None else double(view.trace.values[bias])

    def _bias_node(self, node: fx.Node) -> fx.Node | None:
        bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
        return bias if isinstance(bias, fx.Node) else None

    def request(self, node: fx.Node, view: View) -> None:
        source = view.row_sources(node)[0]
        view.request(source, spread(view.live(node), -1, view.trace.shape(source)))
        for other in node.all_input_nodes:
            if other is not source:
                view.request(other)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        view = writer.view
        source = view.row_sources(node)[0]
        held = writer.written.get(source) or writer.as_form(source, None)
        facts = view.facts[source]
        live = view.live(node)
        last = len(view.trace.shape(source))
        if held.form is not None and held.form.axis != last:  # tokens are absent, the weight stays
            return Written(writer.copy(node, lambda _: writer.plain(source).node), held.form)
        if self.stays(node, view):
            return self._write_shared(node, writer)
        varying = form_of(~facts.known)
        if held.form is None and varying is not None and varying.axis == last:
            held = writer.as_form(source, varying)
        if held.scale is not None and held.scale.dim() > 1:  # it differs between tokens
            held = writer.plain_part(source, held.form)
        columns = kept_index(held.form, facts.const.shape[-1])
        outputs = torch.arange(live.shape[-1])
        if live.dim() == 1 and not live.all():  # nothing requests the others
            outputs = live.nonzero().flatten()
        added = self._contribution(node, view, held, facts, columns)[..., outputs]
        form = None
        if len(outputs) < live.shape[-1]:
            form = Form(last, tuple(outputs.tolist()))
        new = self._write(node, writer, held, columns, outputs, added)
        new = self._add_sums(node, writer, columns, outputs, new)
        return Written(new, form)

    def _in_common(self, node: fx.Node, view: View) -> Form | None:
        """Return the columns that vary in each call of a layer that is called several times."""
        module = view.trace.module(node)
        calls = [other for other in view.trace.graph.nodes if other.op == "call_module"]
        calls = [call for call in calls if call.target == node.target]
        if module is None or any(view.rules.get(call) is not self for call in calls):
            return None
        if any(view.uses.get(id(own), 0) > len(calls) for own in module.parameters()):
            return None
        forms = set()
        for call in calls:
            known = view.facts[view.row_sources(call)[0]].known
            if known.dim() > 1:
                return None
            if not known.all():  # else the result is known
                forms.add(form_of(~known))
        return forms.pop() if len(forms) == 1 else None

    def _write_shared(self, node: fx.Node, writer: Writer) -> Written:
        """Write one of several calls of a layer, which is cut if all calls are cut alike."""
        form = self._in_common(node, writer.view)
        if form is None:
            return Written(writer.copy(node, writer.complete))
        (source,) = writer.view.row_sources(node)
        held = writer.plain_part(source, form)
        facts = writer.view.facts[source]
        weight = self._weight(node, writer.view)
        columns = torch.tensor(form.index)
        writer.cut(weight.path, weight.value, {1: columns})
        writer.attributes[str(node.target)] = {"in_features": len(columns)}
        new = writer.copy(node, lambda _: held.node)
        added = self._contribution(node, writer.view, held, facts, columns)
        if bool(added.any()):
            new = writer.add(new, added, node)
        return Written(self._add_sums(node, writer, columns, torch.arange(len(added)), new))

    def _add_sums(
        self, node: fx.Node, writer: Writer, columns: Tensor, outputs: Tensor, new: fx.Node
    ) -> fx.Node:
        """Add what sums of features in the absent columns add to each output."""
        view = writer.view
        sums = view.facts[view.row_sources(node)[0]].sums
        if sums is None:
            return new
        rest = sums.mask.clone()
        rest[..., columns] = False
        rows = torch.where(rest[..., None], sums.matrix, 0.0)
        if not bool(rows.any()):
            return new
        weight = self._weight(node, view)
        weights = torch.einsum("...dk,do->...ok", rows, weight.matrix[:, outputs])
        total = writer.sum_of(sums.features, weights, node, beside=weight.path)
        return writer.graph.call_function(torch.add, (new, total))

    def _contribution(
        self, node: fx.Node, view: View, held: Written, facts: Facts, columns: Tensor
    ) -> Tensor:
        """Return what the absent columns and the pending shift add to each output."""
        rest = facts.value.clone()
        rest[..., columns] = 0.0 if held.shift is None else held.shift[..., columns]
        added = rest @ self._weight(node, view).matrix
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
        """Cut the weight to these columns and outputs, and write the product."""
        weight = self._weight(node, writer.view)
        inputs_dim, outputs_dim = weight.dims
        fewer_outputs = len(outputs) < weight.value.shape[outputs_dim]
        narrow = len(columns) < weight.value.shape[inputs_dim] or fewer_outputs
        if narrow or held.scale is not None:
            factor = None if held.scale is None else held.scale[columns]
            if factor is not None and weight.swapped:
                factor = factor[:, None]
            index = {inputs_dim: columns, outputs_dim: outputs}
            writer.cut(weight.path, weight.value, index, factor)
        module = writer.view.trace.module(node)
        if module is not None:
            sizes = {"in_features": len(columns), "out_features": len(outputs)}
            writer.attributes[str(node.target)] = sizes
        if isinstance(module, nn.Linear) and added.dim() == 1:
            if narrow or bool(added.any()):
                self._write_bias(str(node.target), module, writer, outputs, added)
            return writer.copy(node, lambda _: held.node)
        bias = self._bias_node(node)
        if bias is not None and fewer_outputs:
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
            writer.add_to_parameter(f"{path}.bias", module.bias, added)
        elif bool(added.any()):
            weight = module.weight
            writer.parameters[f"{path}.bias"] = added.to(weight.device, weight.dtype)
