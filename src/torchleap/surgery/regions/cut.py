"""Cut one module by itself: trace it on what it receives, and rewrite it like a model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx, nn

from ...gates.leap import LeAP
from ...sites.calls import Call
from ..rules.facts import Facts, View
from ..trace.follow import Sites
from ..trace.forwards import is_replaced
from ..trace.graph import Trace, trace
from ..trace.tracer import Affine
from ..trial.examples import Examples
from ..write.build import LAYER, Edits
from ..write.notes import constants_fed
from ..write.rewrite import Surroundings, contents, rewrite

Given = dict[str, dict[int | str, Facts]]  # by module, and by the place or name of the argument


class Alone(nn.Module):
    """Calls one layer, so that a layer can be traced like a model.

    Args:
        layer: The layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.pruned_layer = layer  # as LAYER says

    def forward(self, input: Any) -> Any:  # noqa: A002  the name is that of the layer
        """Call the layer."""
        return self.pruned_layer(input)


@dataclass(frozen=True)
class Region:
    """A module that is cut by itself.

    Attributes:
        path: Its name in the model.
        edits: What to change, by names in the model.
        traced: Its trace.
        aside: The modules inside that it calls as they are, by names in the model.
        notes: Remarks for the plan.
        assumptions: Assumptions about what it receives.
        output: The constants in what it returns.
        given: The constants in what it gives to the modules that it calls as they are.
    """

    path: str
    edits: Edits
    traced: Trace
    aside: tuple[str, ...]
    notes: tuple[str, ...]
    assumptions: tuple[str, ...]
    output: Facts | None
    given: Given

    @property
    def is_smaller(self) -> bool:
        """Return whether anything is cut."""
        edits = self.edits
        return bool(edits.origins or edits.layers or edits.tensors or edits.collections)

    def covers(self, path: str) -> bool:
        """Return whether a module is cut with this one: it is inside, and not called as it is."""
        if not is_inside(path, self.path):
            return False
        return not any(is_inside(path, aside) and path != aside for aside in self.aside)


def is_inside(path: str, other: str) -> bool:
    """Return whether a module is the other one or inside it, by their names."""
    return not other or path == other or path.startswith(f"{other}.")


def cut_region(
    model: nn.Module,
    path: str,
    gates: LeAP,
    sites: Sites,
    calls: Sequence[Call],
    rows: int,
    affine: Affine,
    known: Mapping[str, Facts],
) -> Region:
    """Return a module that is cut by itself.

    Args:
        model: The attached model.
        path: The name of the module.
        gates: The gates.
        sites: The sites inside the module, by their modules.
        calls: What the module receives on the examples.
        rows: The number of rows of the first example.
        affine: Scale and shift of each column by the gates.
        known: The constants in its arguments, by name.

    Raises:
        SurgeryError: The module cannot be traced.
    """
    module = model.get_submodule(path)
    is_layer = module.__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential)
    is_layer = is_layer and not is_replaced(module)
    examples = Examples(*_four(calls), rows, ordered=True)
    inside = set(module.modules())
    outside = [other for other in model.modules() if other not in inside]
    part = Alone(module) if is_layer else module
    traced = trace(part, gates, sites, examples, affine, outside)
    around = Surroundings(known, _uses_outside(model, module), path)
    rewritten = rewrite(traced, affine, around)
    notes = (*rewritten.writer.notes, *constants_fed(rewritten))
    return Region(
        path=path,
        edits=_renamed(rewritten.edits, path, module, is_layer),
        traced=traced,
        aside=tuple(_joined(path, each) for each in traced.aside),
        notes=tuple(f"{path}: {note}" for note in notes),
        assumptions=tuple(f"in {path}, {each}" for each in rewritten.writer.assumptions),
        output=_constant_output(rewritten.view),
        given={_joined(path, each): part for each, part in given_aside(rewritten.view).items()},
    )


def given_aside(view: View) -> Given:
    """Return the constants in the arguments of modules that are called once, as they are."""
    calls = [node for node in view.trace.graph.nodes if str(node.target) in view.trace.aside]
    several = Counter(node.target for node in calls)
    found: Given = {}
    for node in calls:
        if node.op != "call_module" or several[node.target] > 1:
            continue
        for key, source in (*enumerate(node.args), *node.kwargs.items()):
            if view.is_rows(source) and bool(view.facts[source].const.any()):
                found.setdefault(str(node.target), {})[key] = view.facts[source]
    return found


def _constant_output(view: View) -> Facts | None:
    """Return the constants in the output, if it is one tensor with rows."""
    (end,) = (node for node in view.trace.graph.nodes if node.op == "output")
    facts = view.facts.get(end.args[0])
    return facts if facts is not None and bool(facts.const.any()) else None


def _four(calls: Sequence[Call]) -> tuple[Call, Call, Call, Call | None]:
    once, twice, longer, *others = calls
    return once, twice, longer, others[0] if others else None


def _uses_outside(model: nn.Module, module: nn.Module) -> Counter[int]:
    """Return how often other modules hold layers, parameters and buffers of a module, by id."""
    inside = set(module.modules())
    found: Counter[int] = Counter()
    for other in model.modules():
        if other in inside or isinstance(other, LeAP):
            continue
        held = (*other._parameters.values(), *other._buffers.values())
        found.update(id(tensor) for tensor in held if tensor is not None)
        for child in other._modules.values():
            if child in inside and child is not module:
                found.update(contents(child))
    return found


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _renamed(edits: Edits, path: str, module: nn.Module, is_layer: bool) -> Edits:
    """Return the edits of a module by names in the complete model."""
    weights = (*module._parameters, *module._buffers)

    def name(own: str) -> str:
        if is_layer:
            own = own.removeprefix(LAYER).removeprefix(".")
        return _joined(path, own)

    for node in edits.graph.nodes if is_layer and edits.graph is not None else ():
        if node.op == "get_attr":  # the layer reads its weights itself
            node.target = str(node.target).removeprefix(f"{LAYER}.")
    tensors = [name(own) for own in edits.tensors]
    layers = [name(own) for own in edits.layers]
    if is_layer and layers:  # the layer itself stays, but without its weights
        layers = []
        tensors = [name(own) for own in weights]
    origins = {
        name(own): replace(origin, name=name(origin.name)) for own, origin in edits.origins.items()
    }
    return Edits(
        origins=origins,
        parameters={name(own): value for own, value in edits.parameters.items()},
        buffers={name(own): value for own, value in edits.buffers.items()},
        weights={name(own): value for own, value in edits.weights.items()},
        attributes={name(own): value for own, value in edits.attributes.items()},
        collections={name(own): value for own, value in edits.collections.items()},
        layers=tuple(layers),
        tensors=tuple(tensors),
        inner={path: _by_own_names(edits.graph)} if edits.graph is not None else {},
    )


def _by_own_names(graph: fx.Graph) -> fx.Graph:
    """Return a graph in which a layer that is cut by itself reads its own weights by their names.

    It was traced inside of `Alone`; only the call of what it computes keeps that name.
    """
    for node in graph.nodes:
        if node.op == "get_attr":
            node.target = str(node.target).removeprefix(f"{LAYER}.")
    return graph
