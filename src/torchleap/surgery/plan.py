"""plan -> print -> check -> apply: what surgery will do to a model, and then the model that it makes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ..errors import SurgeryError
from ..gates import LeAP
from ..selection import Selection
from ..sites import Call, Site
from ..text import plural, table
from .build import as_pruned, build
from .feed import feed
from .rewrite import Rewrite, inputs_of_dropped, inputs_past_the_gates, rewrite
from .trace import Trace, affine, batch_rows, in_eval, run, trace
from .writer import Origin, runs_of

Fill = Literal["mean", "zero"]


@dataclass(frozen=True)
class Cut:
    """One layer or parameter, before and after."""

    path: str
    before: str
    after: str
    parameters: int  # fewer than before


@dataclass(frozen=True)
class Unread:
    """An input that the pruned model does not read: an entry of the batch, or columns of a tensor."""

    name: str
    columns: tuple[int, ...] | None = None  # None is all of it

    def __str__(self) -> str:
        return self.name if self.columns is None else f"{self.name} columns {_ranges(self.columns)}"


@dataclass(frozen=True)
class Plan:
    """Every cut that `Plugin.prune` makes; prints as a table. Making a plan changes nothing."""

    selection: Selection
    fill: Fill
    cuts: tuple[Cut, ...]
    notes: tuple[str, ...]  # what could not be cut and why, and what is not exact
    unread: tuple[Unread, ...]
    parameters: tuple[int, int]  # before and after
    bytes: tuple[int, int]  # of parameters and buffers
    multiply_adds: tuple[int, int]  # a row, in matrix products and convolutions
    means: dict[str, list[float]] = field(repr=False)  # of the dropped fields: what they are in the pruned model
    change: float  # of the output on the example by fill="zero", at most; 0 with means
    origins: dict[str, Origin] = field(repr=False)  # of parameters that were cut, by name

    def __repr__(self) -> str:
        fields, dims = self.selection.fields, self.selection.dims
        return (
            f"Plan: drop {len(self.selection.dropped):,} of {plural(len(fields), 'field')}, {fields.dims - dims:,} of "
            f"{plural(fields.dims, 'dimension')}; {_change(self.parameters)} parameters, {_change(self.bytes)} bytes, "
            f"{_change(self.multiply_adds)} multiply-adds a row"
        )

    def __str__(self) -> str:
        cells = [[cut.path, f"{cut.before} => {cut.after}", f"{cut.parameters:+,}"] for cut in self.cuts]
        lines = [repr(self)]
        if cells:
            width = max(len(cell[1]) for cell in cells)
            lines.append(table(["layer", "before => after", "parameters"], [[p, c.ljust(width), n] for p, c, n in cells]))
        if self.unread:
            lines.append("No longer read: " + ", ".join(map(str, self.unread)) + ".")
        return "\n".join([*lines, *self.notes])


def prepare(
    model: nn.Module, gates: LeAP, sites: tuple[Site, ...], selection: Selection, example: Call, fill: Fill = "mean"
) -> tuple[Plan, Callable[[], nn.Module]]:
    """Work out every cut and compare the pruned model, still on the old weights, with the masked one on the example.

    Returns the plan, and what makes the pruned model with weights of its own.
    """
    if fill not in get_args(Fill):
        raise SurgeryError(f"fill must be 'mean' or 'zero', but is {fill!r}.")
    kept = torch.zeros(selection.fields.dims, dtype=torch.bool)
    for name in selection.kept:
        kept[selection.fields.columns(name)] = True
    scale, shift = affine(gates, kept)
    exact = _masked(model, gates, selection, example)
    if fill == "zero":
        shift = torch.where(kept.to(shift.device), shift, 0)
    notes: list[str] = []
    unread: list[Unread] = []
    rewritten: Rewrite | None = None
    try:
        traced = trace(model, gates, sites, example, scale, shift)
        rewritten = rewrite(traced, scale, shift)
        expected = traced.output
        trial = as_pruned(build(model, rewritten, share=True), None, rewritten.writer.graph)
        if fill == "mean" and difference(expected, exact) > tolerance(exact):
            raise SurgeryError("its traced graph computes something else than forward()")
        unread, still_read = _inputs(rewritten)
        notes += [*rewritten.writer.notes, *_constants_fed(rewritten)]
        if still_read:
            notes.append(f"Dropped, but still read past the gates: {', '.join(map(str, still_read))}.")
    except SurgeryError as error:
        notes.append(f"Nothing behind the gates is cut, constants are fed instead (exact): {error}.")
        rewritten, trial = None, feed(model, gates, sites, scale, shift, example)
        expected = run(trial, example) if fill == "zero" else exact
    found = run(trial, example)
    if difference(found, expected) > tolerance(expected):
        raise SurgeryError(
            f"The pruned model would differ from the masked one by {difference(found, expected):.2g} on the example, so nothing "
            "was changed. Is the model deterministic in eval()? If so, this is a bug of torchleap; please report the model."
        )
    change = difference(found, exact) if fill == "zero" else 0.0
    if fill == "zero":
        notes.append(f"Not exact: zeros in place of means change the output on the example by up to {change:.3g}. Fine-tune.")
    plan = Plan(
        selection=selection,
        fill=fill,
        cuts=tuple(_cuts(model, gates, trial)),
        notes=tuple(dict.fromkeys(notes)),
        unread=tuple(unread),
        parameters=(_count(model) - gates.theta.numel(), _count(trial)),
        bytes=(_bytes(model) - _bytes(gates), _bytes(trial)),
        multiply_adds=(_work(model, example), _work(trial, example)),
        means={name: shift[selection.fields.columns(name)].tolist() for name in selection.dropped},
        change=change,
        origins=rewritten.writer.origins if rewritten else {},
    )

    def make() -> nn.Module:
        if rewritten is not None:
            return as_pruned(build(model, rewritten), plan, rewritten.writer.graph)
        return as_pruned(feed(model, gates, sites, scale, shift, example), plan, None)

    return plan, make


def _masked(model: nn.Module, gates: LeAP, selection: Selection, example: Call) -> Any:
    with gates.masked(selection.kept):
        return run(model, example)


def difference(found: Any, expected: Any) -> float:
    """The largest difference between two outputs, infinite if they are not alike at all."""
    ours, theirs = tree_leaves(found), tree_leaves(expected)
    if len(ours) != len(theirs):
        return float("inf")
    largest = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            if one.shape != other.shape:
                return float("inf")
            one, other = one.detach(), other.detach()
            apart = (one.double() - other.double()).abs()
            apart = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, apart).nan_to_num(float("inf"))
            largest = max(largest, float(apart.max()) if apart.numel() else 0.0)
    return largest


def tolerance(expected: Any) -> float:
    """How far two ways to compute the same output may be apart by rounding."""
    tensors = [leaf for leaf in tree_leaves(expected) if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel()]
    return max((torch.finfo(t.dtype).eps * 500 * (1 + float(t.nan_to_num().abs().max())) for t in tensors), default=0.0)


def _constants_fed(rewritten: Rewrite) -> list[str]:
    """Which operations still read constants, and why."""
    trace, notes = rewritten.view.trace, []
    for reader, sources in rewritten.writer.restored.items():
        columns = sum(int(rewritten.view.facts[source].const.sum()) for source in dict.fromkeys(sources))
        notes.append(f"{_name(reader, trace)} {_why(reader, trace)}: {plural(columns, 'constant')} fed (exact).")
    return notes


def _name(node: fx.Node, trace: Trace) -> str:
    module = trace.module(node)
    if module is not None:
        return f"{node.target} ({type(module).__name__})"
    if node.op == "output":
        return "The output"
    stack = node.meta.get("nn_module_stack") or {}
    inside = next(reversed(stack.values()))[0] if stack else ""
    return f"{getattr(node.target, '__name__', node.target)}() in {inside or type(trace.model).__name__}"


def _why(node: fx.Node, trace: Trace) -> str:
    if getattr(node.target, "__name__", node.target) in ("mul", "multiply"):
        return "multiplies dropped fields with others"
    return "reads them whole"


def _cuts(model: nn.Module, gates: LeAP, trial: nn.Module) -> list[Cut]:
    """Every layer, and every parameter that belongs to none, whose shape changed."""
    after, found = dict(trial.named_modules()), []
    for path, module in model.named_modules():
        new = after.get(path)
        if module is gates or not _shapes(module) or (new is not None and _shapes(module) == _shapes(new)):
            continue
        saved = sum(p.numel() for p in module.parameters(recurse=False))
        if new is None or not isinstance(new, type(module)):
            found.append(Cut(path, describe(module), "removed", -saved))
        elif _sizes(module):
            left = sum(p.numel() for p in new.parameters(recurse=False))
            found.append(Cut(path, describe(module), describe(new), left - saved))
        else:
            found += _cut_tensors(path, module, new)
    return found


def _cut_tensors(path: str, module: nn.Module, new: nn.Module) -> list[Cut]:
    before, after = _shapes(module), _shapes(new)
    names = [name for name in before if before[name] != after.get(name)]
    cuts = []
    for name in names:
        kind = "Parameter" if name in module._parameters else "Buffer"
        left = f"{kind}{after[name]}" if name in after else "removed"
        saved = torch.Size(after.get(name, (0,))).numel() - torch.Size(before[name]).numel()
        cuts.append(Cut(f"{path}.{name}".lstrip("."), f"{kind}{before[name]}", left, saved if kind == "Parameter" else 0))
    return cuts


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors = {**module._parameters, **module._buffers}
    return {k: tuple(t.shape) for k, t in tensors.items() if t is not None and not k.startswith("pruned_")}


def _sizes(module: nn.Module) -> list[int]:
    return [getattr(module, name) for name in _SIZES if isinstance(getattr(module, name, None), int)]


def describe(module: nn.Module) -> str:
    """A layer in a few words: its kind and its sizes."""
    sizes = _sizes(module) or [sum(p.numel() for p in module.parameters(recurse=False))]
    return f"{type(module).__name__}({', '.join(f'{size:,}' for size in sizes)})"


_SIZES = (
    *("num_embeddings", "embedding_dim", "in1_features", "in2_features", "in_features", "out_features"),
    *("num_features", "in_channels", "out_channels"),
)


def _inputs(rewritten: Rewrite) -> tuple[list[Unread], list[Unread]]:
    """What the dropped fields were made of: the inputs that nothing reads any more, and those that are read past the gates."""
    unread: list[Unread] = []
    still: list[Unread] = []
    past_the_gates = inputs_past_the_gates(rewritten)
    for node, mask in inputs_of_dropped(rewritten).items():
        name = str(node.target if node.op == "placeholder" else node.args[1])
        live = rewritten.view.live(node)
        for found, part in ((unread, mask & ~live), (still, mask & past_the_gates[node])):
            columns = part if part.dim() < 2 else part.flatten(1).any(1)
            if bool(columns.any()):
                everything = part.dim() == 0 or (found is unread and not live.any())
                found.append(Unread(name, None if everything else tuple(columns.nonzero().flatten().tolist())))
    return unread, still


def _ranges(columns: tuple[int, ...]) -> str:
    """Columns as ranges: (0, 1, 2, 5) is "0-2, 5"."""
    shown = [str(first) if length == 1 else f"{first}-{first + length - 1}" for first, length in runs_of(columns)]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more ranges" if len(shown) > 8 else "")


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _bytes(model: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))


def _work(model: nn.Module, example: Call) -> int:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # which would not be counted
    try:
        with FlopCounterMode(display=False) as counter, in_eval(model):
            model(*example[0], **example[1])
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops() // 2 // batch_rows(example))


def _change(pair: tuple[int, int]) -> str:
    before, after = pair
    return f"{before:,} => {after:,}" + (f" ({after / before - 1:+.0%})" if before else "")
