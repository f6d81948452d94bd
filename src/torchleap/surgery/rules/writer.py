"""The new graph in the making: which part of each node it computes, and what has to be put back, selected or cut for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..._common.errors import FieldError
from .facts import Form, View


@dataclass(frozen=True)
class Written:
    """A node of the new graph that holds a part of an old one: the old values are `scale` times these plus `shift`."""

    node: fx.Node
    form: Form | None = None
    scale: Tensor | None = None  # one whole row
    shift: Tensor | None = None


@dataclass(frozen=True)
class Origin:
    """Where a new parameter comes from: these indices of each dimension of the old one, times `factor`."""

    name: str
    index: tuple[Tensor | None, ...]
    factor: Tensor | None = None

    def take(self, old: Tensor) -> Tensor:
        """The same part of a tensor that has the old parameter's shape."""
        for dim, index in enumerate(self.index):
            old = old if index is None else old.index_select(dim, index.to(old.device))
        return old


def kept_columns(
    x: Tensor, axis: int, index: Tensor, width: int, runs: tuple[tuple[int, int], ...]
) -> Tensor:
    """The columns that the pruned model reads, of a batch as before or of one that holds them alone.

    Args:
        runs: The same columns as start and length of neighbours, where these are long; copying them is then faster.
    """
    if x.shape[axis] == len(index):
        return x
    if x.shape[axis] != width:
        raise FieldError(
            f"Expected {width} columns, or the {len(index)} that are still read, but found {x.shape[axis]}."
        )
    return (
        torch.cat([x.narrow(axis, *run) for run in runs], axis)
        if runs
        else x.index_select(axis, index)
    )


def runs_of(index: Sequence[int]) -> list[tuple[int, int]]:
    """Rising numbers as runs of neighbours, each with its start and length.

    >>> runs_of([0, 1, 2, 5])
    [(0, 3), (5, 1)]
    """
    runs: list[tuple[int, int]] = []
    for place in index:
        if runs and place == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs


class Writer:
    """Writes the new graph, node by node."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.graph = fx.Graph()
        self.written: dict[fx.Node, Written] = {}  # nodes with rows
        self.others: dict[fx.Node, Any] = {}
        self.placeholders: dict[fx.Node, fx.Node] = {}
        self.buffers: dict[str, Tensor] = {}
        self.parameters: dict[str, Tensor] = {}  # new tensors by the old path
        self.origins: dict[str, Origin] = {}
        self.attributes: dict[str, dict[str, Any]] = {}  # of layers, such as in_features
        self.collections: dict[
            str, list[Any]
        ] = {}  # the tables that are left in a collection of tables
        self.notes: list[str] = []
        self.assumptions: list[str] = []  # about the batch
        self.restored: dict[
            fx.Node, list[fx.Node]
        ] = {}  # where constants were put back, and for whom
        self.reader: fx.Node | None = None  # the node that is being written
        self._whole: dict[fx.Node, Written] = {}
        self._plain: dict[tuple[fx.Node, fx.Node], Written] = {}
        self._splits: dict[tuple[fx.Node, fx.Node], fx.Node] = {}
        self._batch: fx.Node | None = None

    # Reading nodes that are written already

    def is_written(self, source: fx.Node) -> bool:
        """Whether any part of a node is computed."""
        return source in self.written

    def whole(self, source: fx.Node) -> fx.Node:
        """All of a node, with its constants."""
        return self.plain_part(source, None).node

    def plain(self, source: fx.Node) -> Written:
        """The part of a node that is there, as it should be: scale and shift applied."""
        return (
            self._apply(source, self.written[source])
            if source in self.written
            else self.as_form(source, None)
        )

    def plain_part(self, source: fx.Node, form: Form | None) -> Written:
        """This part of a node, scale and shift applied."""
        return self._apply(source, self.as_form(source, form))

    def as_form(self, source: fx.Node, form: Form | None) -> Written:
        """This part of a node; a scale and shift may be pending."""
        held = self.written.get(source)
        if held is None:
            value = self.view.facts[source].value
            array = self.buffer((form.take(value) if form else value)[None], source)
            self._note(source)
            return Written(
                self.graph.call_method("expand", (array, self.batch(), *[-1] * value.dim())), form
            )
        if held.form == form:
            return held
        if (
            held.form is not None
            and form is not None
            and held.form.axis == form.axis
            and {*form.index} <= {*held.form.index}
        ):
            chosen = self.select(held.node, form.axis, held.form.places(form.index))
            return Written(chosen, form, held.scale, held.shift)
        if held.form is not None:
            held = self._restore(source)
        if form is None:
            return held
        return Written(
            self.select(held.node, form.axis, list(form.index)), form, held.scale, held.shift
        )

    def operand(self, source: fx.Node, form: Form | None) -> fx.Node:
        """An input of an elementwise operation on this part; constants are broadcast."""
        fits = form is not None and self.view.trace.shape(source)[form.axis - 1] > 1
        if source not in self.written:
            value = self.view.facts[source].value
            return self.buffer((form.take(value) if form and fits else value)[None], source)
        return self.plain_part(source, form if fits else None).node

    def fixed_operand(self, source: fx.Node, form: Form | None, rank: int) -> Any:
        """A parameter in an elementwise operation on this part of a tensor with `rank` dimensions."""
        value = self.view.trace.values[source]
        dim = -1 if form is None else form.axis - (rank - value.dim())
        if form is None or dim < 0 or value.shape[dim] == 1:
            return self.other(source)
        return self.part_of_fixed(source, dim, list(form.index))

    def part_of_fixed(self, source: fx.Node, dim: int, index: list[int]) -> Any:
        """A part of a parameter: cut if nobody else reads it, else selected at each call."""
        path = str(source.target)
        if source.op == "get_attr" and path not in self.view.trace.constants:
            tensor = self.view.trace.values[source]
            if not self.view.uncut(tensor):
                self.cut(path, tensor, {dim: torch.tensor(index)})
                return self.other(source)
        return self.select(self.other(source), dim, index)

    def other(self, source: fx.Node) -> Any:
        """A node without rows: as it was written, or the number of rows."""
        return self.batch() if self.view.trace.kinds[source] == "batch" else self.others[source]

    def batch(self) -> fx.Node:
        """The number of rows, asked of the first tensor that is read."""
        if self._batch is None:
            first = next(node for node in self.view.trace.graph.nodes if node in self.written)
            with self.graph.inserting_after(self.written[first].node):
                self._batch = self.graph.call_method("size", (self.written[first].node, 0))
        return self._batch

    # Writing

    def copy(
        self,
        node: fx.Node,
        rows: Callable[[fx.Node], Any],
        fixed: Callable[[fx.Node], Any] | None = None,
    ) -> fx.Node:
        """The same operation, on inputs with rows, and on parameters, as these functions give them."""

        def translate(source: fx.Node) -> Any:
            if self.view.is_rows(source):
                return rows(source)
            return (
                fixed(source)
                if fixed is not None and self.view.is_fixed(source)
                else self.other(source)
            )

        inputs = {
            source: translate(source) for source in node.all_input_nodes
        }  # written before the node itself
        return self.graph.create_node(
            node.op,
            node.target,
            fx.map_arg(node.args, inputs.__getitem__),
            fx.map_arg(node.kwargs, inputs.__getitem__),
            node.name,
        )

    def copy_once(self, node: fx.Node, source: fx.Node) -> fx.Node:
        """A split, written once for all its parts."""
        if (node, source) not in self._splits:
            self._splits[node, source] = self.copy(node, lambda _: source)
        return self._splits[node, source]

    def carry(
        self,
        node: fx.Node,
        held: dict[fx.Node, Written],
        form: Form | None,
        written: fx.Node | None = None,
    ) -> Written:
        """An operation that moves elements around: a pending scale and shift move along."""
        new = written or self.copy(node, lambda source: held[source].node)
        if all(part.scale is None for part in held.values()):
            return Written(new, form)
        sources = self.view.row_sources(node)
        scales, shifts = {}, {}
        for source in sources:
            part = held.get(source)
            ones = torch.ones(self.view.trace.shape(source), dtype=torch.float64)
            scales[source] = ones if part is None or part.scale is None else part.scale
            shifts[source] = (
                torch.zeros_like(ones) if part is None or part.shift is None else part.shift
            )
        return Written(
            new, form, self.view.evaluate(node, scales), self.view.evaluate(node, shifts)
        )

    def select(self, node: fx.Node, axis: int, places: list[int]) -> fx.Node:
        """These places along an axis; neighbours are a view."""
        if places == list(range(places[0], places[0] + len(places))):
            return self.graph.call_method("narrow", (node, axis, places[0], len(places)))
        return self.graph.call_method(
            "index_select", (node, axis, self.register("index", torch.tensor(places)))
        )

    def add(self, node: fx.Node, array: Tensor, like: fx.Node) -> fx.Node:
        """Add a constant to every row."""
        return self.graph.call_function(torch.add, (node, self.buffer(array[None], like)))

    def buffer(self, array: Tensor, like: fx.Node) -> fx.Node:
        """A constant in the precision of the old node."""
        value = self.view.trace.values[like]
        return self.register("constant", array.to(value.device, value.dtype))

    def register(self, hint: str, tensor: Tensor) -> fx.Node:
        """Read a new buffer of the model."""
        for name, known in self.buffers.items():
            if known.dtype == tensor.dtype and torch.equal(known, tensor):
                return self.graph.get_attr(name)
        name = f"pruned_{hint}_{len(self.buffers)}"
        self.buffers[name] = tensor.detach().clone().contiguous()
        return self.graph.get_attr(name)

    def cut(
        self, path: str, old: Tensor, index: dict[int, Tensor], factor: Tensor | None = None
    ) -> None:
        """Keep these indices of a parameter's dimensions, each entry times `factor`."""
        origin = Origin(path, tuple(index.get(dim) for dim in range(old.dim())), factor)
        part = origin.take(old.detach())
        self.parameters[path] = (
            part if factor is None else (part.double() * factor.to(part.device)).to(part.dtype)
        )
        self.origins[path] = origin

    def _apply(self, source: fx.Node, held: Written) -> Written:
        if held.scale is None or held.shift is None:
            return held
        if (source, held.node) not in self._plain:
            scale, shift = (held.form.take(a) if held.form else a for a in (held.scale, held.shift))
            scaled = self.graph.call_function(
                torch.mul, (held.node, self.buffer(scale[None], source))
            )
            self._plain[source, held.node] = Written(self.add(scaled, shift, source), held.form)
        return self._plain[source, held.node]

    def _restore(self, source: fx.Node) -> Written:
        """The whole node from a part of it and its constants."""
        if source not in self._whole:
            held = self.plain(source)
            assert held.form is not None
            axis, shape = held.form.axis, self.view.trace.shape(source)
            absent = sorted({*range(shape[axis - 1])} - {*held.form.index})
            rest = self.buffer(
                Form(axis, tuple(absent)).take(self.view.facts[source].value)[None], source
            )
            rest = self.graph.call_method("expand", (rest, self.batch(), *[-1] * len(shape)))
            joined = self.graph.call_function(torch.cat, ([held.node, rest], axis))
            order = torch.tensor([*held.form.index, *absent]).argsort().tolist()
            self._whole[source] = Written(
                self.select(joined, axis, order) if order != sorted(order) else joined
            )
        self._note(source)
        return self._whole[source]

    def _note(self, source: fx.Node) -> None:
        if self.reader is not None and bool(self.view.facts[source].const.any()):
            self.restored.setdefault(self.reader, []).append(source)
