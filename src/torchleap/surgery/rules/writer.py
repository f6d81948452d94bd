"""Write the new graph: which part of each node it computes, and what is restored, selected, cut."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from .facts import Form, View, form_of
from .written import OF_PART, OF_SUMS, Origin, Written


class Writer:
    """Writes the new graph, node by node, and records every change of the model.

    Args:
        view: The trace with what is known about it.

    Attributes:
        written: The new node, and its form, of each old node with rows that is computed.
        others: The new node of each old node without rows.
        placeholders: The new node of each argument.
        buffers: New buffers of the model, by name.
        weights: New parameters of the model, by name: weights of a layer times those of sums.
        origins: Parameters and buffers that are cut, by name.
        parameters: New values of parameters and buffers, by name; they may be new ones, and come
            before the origin of the same name.
        attributes: New attributes of layers, such as in_features, by the layer's name.
        collections: The tables that are left in a collection of tables.
        notes: Remarks for the plan.
        assumptions: Assumptions about the batch.
        restored: The old nodes whose constants were put back, by the node that reads them.
        reader: The old node that is being written.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.graph = fx.Graph()
        self.written: dict[fx.Node, Written] = {}
        self.others: dict[fx.Node, Any] = {}
        self.placeholders: dict[fx.Node, fx.Node] = {}
        self.buffers: dict[str, Tensor] = {}
        self.weights: dict[str, Tensor] = {}
        self.origins: dict[str, Origin] = {}
        self.parameters: dict[str, Tensor] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        self.collections: dict[str, list[Any]] = {}
        self.notes: list[str] = []
        self.assumptions: list[str] = []
        self.restored: dict[fx.Node, list[fx.Node]] = {}
        self.reader: fx.Node | None = None
        self._complete: dict[fx.Node, Written] = {}
        self._plain: dict[tuple[fx.Node, fx.Node], Written] = {}
        self._splits: dict[tuple[fx.Node, fx.Node], fx.Node] = {}
        self._parts: dict[str, list[tuple[fx.Node, dict[int, Tensor], fx.Node]]] = {}
        self._gathered: dict[tuple[int, ...], fx.Node] = {}
        self._batch: fx.Node | None = None

    # Reading nodes that are written already

    def is_written(self, source: fx.Node) -> bool:
        """Return whether any part of a node is computed."""
        return source in self.written

    def complete(self, source: fx.Node) -> fx.Node:
        """Return all of a node, with its constants."""
        return self.plain_part(source, None).node

    def plain(self, source: fx.Node) -> Written:
        """Return the part of a node that is computed, with scale and shift applied."""
        if source not in self.written:
            return self.as_form(source, None)
        return self._apply(source, self.written[source])

    def plain_part(self, source: fx.Node, form: Form | None) -> Written:
        """Return this part of a node, with scale and shift applied."""
        return self._apply(source, self.as_form(source, form))

    def varying_part(self, source: fx.Node) -> Written:
        """Return the elements of a node that are not constant, with scale and shift applied."""
        return self.plain_part(source, form_of(~self.view.facts[source].const))

    def as_form(self, source: fx.Node, form: Form | None) -> Written:
        """Return this part of a node; a scale and shift may be pending."""
        held = self.written.get(source)
        if held is None:
            return self._constant_rows(source, form)
        if held.form == form:
            return held
        if form is not None and _contains(held.form, form):
            assert held.form is not None
            places = held.form.places(form.index)
            chosen = self.select(held.node, form.axis, places)
            return Written(chosen, form, held.scale, held.shift)
        if held.form is not None:
            held = self._restore(source)
        if form is None:
            return held
        chosen = self.select(held.node, form.axis, list(form.index))
        return Written(chosen, form, held.scale, held.shift)

    def _constant_rows(self, source: fx.Node, form: Form | None) -> Written:
        """Return a node that is not computed: its constants in every row."""
        rows = self._rest(source, form)
        self._note(source)
        return Written(rows, form)

    def _rest(self, source: fx.Node, form: Form | None) -> fx.Node:
        """Return a part of a node that is not computed: its constants and sums in every row."""
        facts = self.view.facts[source]
        part = facts.value if form is None else form.take(facts.value)
        if facts.sums is not None:
            wanted = self.view.requested[source] & facts.sums.mask
            matrix = torch.where(wanted[..., None], facts.sums.matrix, 0.0)
            if form is not None:
                matrix = form.take(matrix)
            if bool(matrix.any()):
                return self.sum_of(facts.sums.features, matrix, source, offset=part)
        return self._expanded(self.buffer(part[None], source), part.dim())

    def sum_of(
        self,
        features: Tensor,
        matrix: Tensor,
        like: fx.Node,
        *,
        offset: Tensor | None = None,
        beside: str | None = None,
    ) -> fx.Node:
        """Return a new node with weighted sums of features.

        Args:
            features: The numbers of the features, (K,).
            matrix: The weights, of the shape of a row and then K.
            like: An old node, in whose precision the sums are computed.
            offset: What is added, of the shape of a row; None is 0.
            beside: The name of a parameter, if the weights are to be one beside it.
        """
        shape = matrix.shape[:-1]
        flat = matrix.reshape(-1, matrix.shape[-1])
        used = (flat != 0).any(0)
        flat = flat[:, used]
        weight = self.buffer(flat, like) if beside is None else self._weight(flat, like, beside)
        arguments: tuple[Any, ...] = (self.features(features[used]), weight)
        if offset is not None and bool(offset.any()):
            arguments += (self.buffer(offset.reshape(-1), like),)
        total = self.graph.call_function(functional.linear, arguments)
        if len(shape) == 1:
            return total
        return self.graph.call_method("reshape", (total, -1, *shape))

    def features(self, numbers: Tensor) -> fx.Node:
        """Return a new node with these features, in any order, (B, n)."""
        distinct, places = torch.unique(numbers, return_inverse=True)
        found = self._gather(distinct)
        if torch.equal(places, torch.arange(len(distinct))):
            return found
        return self.select(found, 1, places.tolist())

    def _gather(self, numbers: Tensor) -> fx.Node:
        """Return a new node with features in rising order, (B, K)."""
        key = tuple(numbers.tolist())
        if key not in self._gathered:
            groups = self.view.features.groups(numbers)
            parts = [elements.write(self, index) for elements, index in groups]
            found = parts[0]
            if len(parts) > 1:
                found = self.graph.call_function(torch.cat, (parts, 1))
            self._gathered[key] = found
        return self._gathered[key]

    def _expanded(self, row: fx.Node, rank: int) -> fx.Node:
        return self.graph.call_method("expand", (row, self.batch(), *[-1] * rank))

    def operand(self, source: fx.Node, form: Form | None) -> fx.Node:
        """Return an input of an elementwise operation on this part; constants are broadcast."""
        if form is not None and self.view.trace.shape(source)[form.axis - 1] <= 1:
            form = None  # it is broadcast along the axis
        if source in self.written:
            return self.plain_part(source, form).node
        if self.view.facts[source].sums is not None:
            return self._rest(source, form)
        value = self.view.facts[source].value
        part = value if form is None else form.take(value)
        return self.buffer(part[None], source)

    def fixed_operand(self, source: fx.Node, form: Form | None, rank: int) -> Any:
        """Return a parameter in an elementwise operation on this part.

        Args:
            source: The parameter.
            form: The part.
            rank: The number of dimensions of the operation's result.
        """
        value = self.view.trace.values[source]
        if form is None:
            return self.other(source)
        dim = form.axis - (rank - value.dim())
        if dim < 0 or value.shape[dim] == 1:
            return self.other(source)
        return self.part_of_fixed(source, dim, list(form.index))

    def part_of_fixed(self, source: fx.Node, dim: int, index: list[int]) -> Any:
        """Return a part of a parameter: cut if nothing else reads it, else selected."""
        path = str(source.target)
        if source.op == "get_attr" and path not in self.view.trace.constants:
            tensor = self.view.trace.values[source]
            if not self.view.uncut(tensor):
                self.cut(path, tensor, {dim: torch.tensor(index)})
                return self.other(source)
        return self.select(self.other(source), dim, index)

    def other(self, source: fx.Node) -> Any:
        """Return a node without rows as it was written, or the number of rows."""
        if self.view.trace.kinds[source] == "batch":
            return self.batch()
        return self.others[source]

    def batch(self) -> fx.Node:
        """Return the number of rows, read from the first tensor that is computed."""
        if self._batch is None:
            first = self._first_with_rows()
            with self.graph.inserting_after(first):
                self._batch = self.graph.call_method("size", (first, 0))
        return self._batch

    def _first_with_rows(self) -> fx.Node:
        """Return the first new node with rows: an argument, if nothing is computed so far."""
        for node in self.view.trace.graph.nodes:
            if node in self.written:
                return self.written[node].node
        return next(new for node, new in self.placeholders.items() if self.view.is_rows(node))

    # Writing

    def copy(
        self,
        node: fx.Node,
        rows: Callable[[fx.Node], Any],
        fixed: Callable[[fx.Node], Any] | None = None,
    ) -> fx.Node:
        """Write the same operation on other inputs.

        Args:
            node: The old operation.
            rows: Returns the new node for an input with rows.
            fixed: Returns the new node for a parameter; the one that was written if left out.
        """

        def translate(source: fx.Node) -> Any:
            if self.view.is_rows(source):
                return rows(source)
            if fixed is not None and self.view.is_fixed(source):
                return fixed(source)
            return self.other(source)

        # the inputs must be written before the node itself
        inputs = {source: translate(source) for source in node.all_input_nodes}
        args = fx.map_arg(node.args, inputs.__getitem__)
        kwargs = fx.map_arg(node.kwargs, inputs.__getitem__)
        return self.graph.create_node(node.op, node.target, args, kwargs, node.name)

    def copy_once(self, node: fx.Node, source: fx.Node) -> fx.Node:
        """Write a split of a new node, once for all its parts."""
        if (node, source) not in self._splits:
            self._splits[node, source] = self.copy(node, lambda _: source)
        return self._splits[node, source]

    def carry(
        self,
        node: fx.Node,
        held: Mapping[fx.Node, Written],
        form: Form | None,
        written: fx.Node | None = None,
    ) -> Written:
        """Write an operation that moves elements; a pending scale and shift move along.

        Args:
            node: The old operation.
            held: What was written of its inputs.
            form: The part of the result that is computed.
            written: The new operation; a copy of the old one if left out.
        """
        new = written or self.copy(node, lambda source: held[source].node)
        if all(part.scale is None for part in held.values()):
            return Written(new, form)
        scales = {}
        shifts = {}
        for source in self.view.row_sources(node):
            part = held.get(source)
            ones = torch.ones(self.view.trace.shape(source), dtype=torch.float64)
            scales[source] = ones
            shifts[source] = torch.zeros_like(ones)
            if part is not None and part.scale is not None:
                scales[source] = part.scale
            if part is not None and part.shift is not None:
                shifts[source] = part.shift
        scale = self.view.evaluate(node, scales)
        return Written(new, form, scale, self.view.evaluate(node, shifts))

    def select(self, node: fx.Node, axis: int, places: list[int]) -> fx.Node:
        """Select places along an axis of a new node; neighbours are a view."""
        if places == list(range(places[0], places[0] + len(places))):
            return self.graph.call_method("narrow", (node, axis, places[0], len(places)))
        index = self.register("index", torch.tensor(places))
        return self.graph.call_method("index_select", (node, axis, index))

    def add(self, node: fx.Node, array: Tensor, like: fx.Node) -> fx.Node:
        """Add a constant to every row, in the precision of an old node."""
        return self.graph.call_function(torch.add, (node, self.buffer(array[None], like)))

    def buffer(self, array: Tensor, like: fx.Node) -> fx.Node:
        """Return a constant as a node, in the precision of an old node."""
        value = self.view.trace.values[like]
        return self.register("constant", array.to(value.device, value.dtype))

    def _weight(self, array: Tensor, like: fx.Node, beside: str) -> fx.Node:
        """Return a new parameter beside another one, in the precision of an old node."""
        value = self.view.trace.values[like]
        name = self._name_beside(beside, OF_SUMS)
        self.weights[name] = array.to(value.device, value.dtype).contiguous()
        return self.graph.get_attr(name)

    def _name_beside(self, path: str, ending: str) -> str:
        taken = {name for name, _ in self.view.trace.model.named_parameters()} | {*self.weights}
        name = path + ending
        while name in taken:
            name += "_"
        return name

    def register(self, hint: str, tensor: Tensor) -> fx.Node:
        """Return a node that reads a new buffer of the model; equal tensors share a buffer."""
        for name, known in self.buffers.items():
            if known.dtype == tensor.dtype and torch.equal(known, tensor):
                return self.graph.get_attr(name)
        name = self._free_name(hint)
        self.buffers[name] = tensor.detach().clone().contiguous()
        return self.graph.get_attr(name)

    def _free_name(self, hint: str) -> str:
        """Return a name for a tensor that no earlier pruning of the model has taken."""
        number = len(self.buffers)
        name = f"pruned_{hint}_{number}"
        while name in self.buffers or hasattr(self.view.trace.model, name):
            number += 1
            name = f"pruned_{hint}_{number}"
        return name

    def cut(
        self, path: str, old: Tensor, index: dict[int, Tensor], factor: Tensor | None = None
    ) -> None:
        """Cut a parameter or buffer.

        Args:
            path: Its name in the model.
            old: The tensor.
            index: The indices that are kept, by dimension; all of the others.
            factor: A factor for the entries that are kept.
        """
        kept = tuple(index.get(dim) for dim in range(old.dim()))
        self.origins[path] = Origin(path, kept, factor)
        self.parameters.pop(path, None)

    def cut_part(
        self, path: str, source: fx.Node, index: dict[int, Tensor], reader: fx.Node
    ) -> None:
        """Cut a parameter, or a part of one, that one new node reads; see `cut_parts`.

        Args:
            path: The name of the parameter.
            source: The old node of the parameter or of its part.
            index: The indices that are kept, by dimension of that node.
            reader: The new node.
        """
        self._parts.setdefault(path, []).append((source, index, reader))

    def cut_parts(self) -> None:
        """Cut parameters that are read in parts, or several times.

        If all readers need the same cut, the parameter is cut. Else parts that do not overlap
        become parameters of their own; of others, each reader selects what it needs.
        """
        for path, parts in self._parts.items():
            whole = self.view.trace.model.get_parameter(path)
            values = [self.view.trace.values[source] for source, _, _ in parts]
            indices = [index for _, index, _ in parts]
            cuts = [
                _of_whole(value, whole, index) for value, index in zip(values, indices, strict=True)
            ]
            first = cuts[0]
            if first is not None and all(_is_same_cut(first, other) for other in cuts):
                if first:
                    self.cut(path, whole, first)
            elif _are_apart(values):
                for source, index, reader in parts:
                    self._cut_apart(path, source, index, reader)
            else:
                for source, index, reader in parts:
                    self._select_part(source, index, reader)

    def _select_part(self, source: fx.Node, index: dict[int, Tensor], reader: fx.Node) -> None:
        """Let a new node read a part of a parameter that stays."""
        part = self.others[source]
        with self.graph.inserting_before(reader):
            for dim, places in index.items():
                part = self.select(part, dim, places.tolist())
        reader.replace_input_with(self.others[source], part)

    def _cut_apart(
        self, path: str, source: fx.Node, index: dict[int, Tensor], reader: fx.Node
    ) -> None:
        """Make a part of a parameter a parameter of its own."""
        part = self.view.trace.values[source].detach()
        for dim, places in index.items():
            part = part.index_select(dim, places.to(part.device))
        name = self._name_beside(path, OF_PART)
        self.weights[name] = part.clone(memory_format=torch.contiguous_format)
        with self.graph.inserting_before(reader):
            own = self.graph.get_attr(name)
        reader.replace_input_with(self.others[source], own)

    def add_to_parameter(self, path: str, old: Tensor, added: Tensor) -> None:
        """Add to a parameter that was cut; the optimizer's state still follows its origin."""
        part = self.origins[path].cut(old)
        self.parameters[path] = (part.double() + added.to(part.device)).to(part.dtype)

    def _apply(self, source: fx.Node, held: Written) -> Written:
        if held.scale is None or held.shift is None:
            return held
        if (source, held.node) not in self._plain:
            scale = held.scale
            shift = held.shift
            if held.form is not None:
                scale = held.form.take(scale)
                shift = held.form.take(shift)
            factor = self.buffer(scale[None], source)
            scaled = self.graph.call_function(torch.mul, (held.node, factor))
            self._plain[source, held.node] = Written(self.add(scaled, shift, source), held.form)
        return self._plain[source, held.node]

    def _restore(self, source: fx.Node) -> Written:
        """Return the complete node, from a part of it and its constants."""
        if source not in self._complete:
            held = self.plain(source)
            assert held.form is not None
            axis = held.form.axis
            shape = self.view.trace.shape(source)
            absent = sorted({*range(shape[axis - 1])} - {*held.form.index})
            rest = self._rest(source, Form(axis, tuple(absent)))
            joined = self.graph.call_function(torch.cat, ([held.node, rest], axis))
            order = torch.tensor([*held.form.index, *absent]).argsort().tolist()
            if order != sorted(order):
                joined = self.select(joined, axis, order)
            self._complete[source] = Written(joined)
        self._note(source)
        return self._complete[source]

    def _note(self, source: fx.Node) -> None:
        if self.reader is not None and bool(self.view.facts[source].const.any()):
            self.restored.setdefault(self.reader, []).append(source)


def _contains(held: Form | None, form: Form) -> bool:
    """Return whether a form holds all indices of another one along the same axis."""
    return held is not None and held.axis == form.axis and {*form.index} <= {*held.index}


def _of_whole(part: Tensor, whole: Tensor, index: dict[int, Tensor]) -> dict[int, Tensor] | None:
    """Return the cut of a parameter that cuts a part of it, which is a view; None if there is none.

    >>> whole = torch.zeros(3, 4, 5)
    >>> _of_whole(whole[1].T, whole, {0: torch.tensor([2])})
    {2: tensor([2])}
    """
    sizes = list(zip(whole.shape, whole.stride(), strict=True))
    found = {}
    for dim, places in index.items():
        same = [at for at, size in enumerate(sizes) if size == (part.shape[dim], part.stride(dim))]
        if len(same) != 1:
            return None
        found[same[0]] = places
    return found


def _are_apart(parts: list[Tensor]) -> bool:
    """Return whether no two tensors overlap in memory.

    >>> whole = torch.zeros(3, 4)
    >>> _are_apart([whole[0], whole[2]]), _are_apart([whole[0], whole])
    (True, False)
    """
    extents = []
    for part in parts:
        pairs = zip(part.shape, part.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in pairs)
        extents.append((part.data_ptr(), part.data_ptr() + (last + 1) * part.element_size()))
    extents.sort()
    return all(one[1] <= two[0] for one, two in itertools.pairwise(extents))


def _is_same_cut(one: dict[int, Tensor], other: dict[int, Tensor] | None) -> bool:
    if other is None or one.keys() != other.keys():
        return False
    return all(torch.equal(places, other[dim]) for dim, places in one.items())
