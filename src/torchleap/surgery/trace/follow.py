"""Trace a model as far as its Python can be followed; other modules become one node each."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, fx, nn

from ..._common.errors import SurgeryError
from ..._common.text import first_line
from ...gates.leap import LeAP
from ...sites.places import find_module
from ...sites.site import Site
from ..trial.examples import Examples
from ..trial.state import Attributes
from .functions import answered
from .hooks import bind, has_hooks, muted, refuse_hooks_between
from .parameters import OwnTensors
from .side_effects import Globals, globals_read, names_changed, reads_environment, watched
from .tracer import Affine, SiteTracer

Sites = Mapping[nn.Module, list[Site]]  # where the gates sit, by module
Constants = dict[str, Tensor]  # tensors that the code makes, by the name in the graph


def by_module(model: nn.Module, sites: Iterable[Site]) -> dict[nn.Module, list[Site]]:
    """Return sites by the module at which they sit."""
    found: dict[nn.Module, list[Site]] = {}
    for site in sites:
        found.setdefault(find_module(model, site.at), []).append(site)
    return found


def follow(
    model: nn.Module,
    gates: LeAP,
    sites: Sites,
    examples: Examples,
    affine: Affine,
    before: SiteTracer | None = None,
    outside: Sequence[nn.Module] = (),
) -> tuple[SiteTracer, fx.Graph, Constants]:
    """Trace a model in its present mode; return the tracer, the graph and the tensors made by code.

    A submodule that cannot be followed becomes one opaque operation. This ends, since each round
    but the last makes at least one more submodule of the model opaque.

    Args:
        model: The attached model.
        gates: Its gates.
        sites: Where they sit, by module.
        examples: The batches to compute every node on.
        affine: Scale and shift of each column by the gates.
        before: The trace in eval mode, which a trace in train mode must equal.
        outside: Modules around the model, which are not followed.
    """
    for module, several in sites.items():
        for site in several:
            refuse_hooks_between(module, site, is_root=module is model)
    opaque: set[nn.Module] = set() if before is None else before.opaque
    while True:
        given = tuple(bind(model, call) for call in examples.calls)
        tracer = SiteTracer(gates, dict(sites), given, affine, opaque, before, examples.counts)
        attempt = _attempt(model, tracer, outside)
        if attempt is not None:
            break
    if tracer.marked != {site for several in sites.values() for site in several}:
        inside = next(iter(opaque), model)
        raise SurgeryError(f"the gates sit inside {type(inside).__name__}, which cannot be traced")
    return tracer, *attempt


def _attempt(
    model: nn.Module, tracer: SiteTracer, outside: Sequence[nn.Module]
) -> tuple[fx.Graph, Constants] | None:
    """Trace a model; None if it failed and one more module has become opaque.

    A trace fails if code raises, or sets attributes outside of opaque modules.
    """
    attributes = Attributes(model)
    try:
        found = _trace(model, tracer, outside)
        changed = set(attributes.changed())
    except SurgeryError:
        raise
    except Exception as error:  # anything: the model's own code runs with stand-ins here
        _make_opaque(model, tracer, error)
        return None
    finally:
        attributes.restore()
    inside = {inner for module in tracer.opaque for inner in module.modules()}
    writing = changed - inside  # opaque modules run as they are, and may set attributes
    if not writing:
        for module in tracer.opaque:
            if not changed.isdisjoint(module.modules()):
                tracer.writing.add(module)
        return found
    if model in writing or tracer.before is not None:
        raise SurgeryError(f"{type(model).__name__}.forward cannot be traced: it sets attributes")
    tracer.opaque.update(writing)
    return None


def _make_opaque(model: nn.Module, tracer: SiteTracer, error: Exception) -> None:
    """Make the innermost module opaque in which tracing failed; raise if there is none."""
    candidates = set(model.modules()) - tracer.opaque
    failed = [module for module in tracer.failed if module in candidates]
    if not failed or tracer.before is not None:
        raise SurgeryError(
            f"{type(model).__name__}.forward cannot be traced: {first_line(error)}"
        ) from error
    tracer.opaque.add(failed[-1])


def _trace(
    model: nn.Module, tracer: SiteTracer, outside: Sequence[nn.Module]
) -> tuple[fx.Graph, Constants]:
    """Run forward() with stand-ins; return its graph, and the tensors that its code makes."""
    variables = Globals(model)
    aside = _modules_inside(model, tracer) | set(outside)
    names = _changeable(aside - set(tracer.gates.modules()))
    executing = partial(getattr, tracer, "executing")
    with (
        muted(model),
        watched(model, names, executing),
        OwnTensors(tracer, model),
        answered(tracer),
    ):
        graph = tracer.trace(model)
    if tracer.arguments.changed():
        raise SurgeryError("forward() changes the batch")
    if variables.changed():
        raise SurgeryError("forward() changes a global variable or an attribute of a class")
    _mark_output(graph, tracer)
    return graph, _take_constants(model)


def _mark_output(graph: fx.Graph, tracer: SiteTracer) -> None:
    """Mark the gates on the output of the model itself."""
    if not any(site.side == "output" for site in tracer.sites.get(tracer.root, ())):
        return
    (end,) = (node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(end):
        proxies: Any = tracer.proxy
        value = fx.map_arg(end.args[0], proxies)
        end.args = (tracer.create_arg(tracer.mark_output(tracer.root, value, 0)),)


def _take_constants(model: nn.Module) -> Constants:
    """Take the tensors off the model that its code made; the tracer leaves them there."""
    made: Constants = {}
    for holder in (vars(model), model._buffers):
        for name in [name for name in holder if name.startswith("_tensor_constant")]:
            made[name] = holder.pop(name)  # type: ignore[assignment]
    return made


def modules_aside(model: nn.Module, tracer: SiteTracer) -> list[tuple[str, nn.Module]]:
    """Return the modules that are not followed, by name."""
    found = []
    for path, module in model.named_modules(remove_duplicate=False):
        if path and (module in tracer.opaque or has_hooks(module)):
            found.append((path, module))
    return found


def _modules_inside(model: nn.Module, tracer: SiteTracer) -> set[nn.Module]:
    """Return the modules that are not followed, and all modules in them."""
    return {inner for _, module in modules_aside(model, tracer) for inner in module.modules()}


def variables_read(model: nn.Module, tracer: SiteTracer) -> tuple[tuple[str, str, Any], ...]:
    """Return the global variables that the code of followed modules reads."""
    inside = _modules_inside(model, tracer)
    found: dict[tuple[str, str, Any], None] = {}
    for module in model.modules():
        if module in inside:
            continue
        if reads_environment(module):
            raise SurgeryError(
                "forward() may depend on the environment, on the default dtype or on types of "
                "tensors"
            )
        found |= dict.fromkeys(globals_read(module))
    return tuple(found)


def _changeable(aside: set[nn.Module]) -> set[str]:
    """Return the attributes that modules which are not followed could change.

    Raises:
        SurgeryError: One of them could change a global variable.
    """
    attributes: set[str] = set()
    variables: set[str] = set()
    for module in aside:
        names, others = names_changed(module)
        attributes |= names
        variables |= others
    if variables:
        raise SurgeryError(
            f"a module that cannot be followed may change the global variable {min(variables)}"
        )
    return attributes
