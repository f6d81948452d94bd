"""Rebuild a pruned model from its code: prune a model again as it was pruned, without a batch.

Where the manifest cannot describe a model, the folder holds in `rebuild.safetensors` what the
pruning read: the state of the gates, a batch of random numbers in the form of the example, and the
output of the pruned model for it, by which the result is checked. Only tensors and plain values are
read from the folder; the code is that of the model which is given.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._common.errors import SurgeryError
from .._common.plain import plain
from ..fields import Fields
from ..gates.leap import LeAP
from ..selection import Selection
from ..sites.calls import Call, as_call, few_rows
from ..sites.model import sites_of
from ..sites.placement import take_out_of
from ..sites.site import Site
from ..surgery import Plan, make_plan
from ..surgery.attachment import attach_again
from ..surgery.trial.compare import alike, difference, leaves_of
from ..surgery.trial.rounding import with_other_rounding
from ..surgery.trial.run import run

DEEPEST = 16  # levels of lists in lists
GATES, BATCH, OUTPUT = "gates.", "batch.", "output."


@dataclass(frozen=True)
class Rebuild:
    """What is written to rebuild a model.

    Attributes:
        described: The sites, fields, settings and the form of the batch, as JSON has them.
        tensors: The state of the gates, the batch and the output for it.
    """

    described: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, plan: Plan) -> "Rebuild | None":
        """Return what rebuilds a pruned model; None if its plan does not know."""
        known = plan.attachment
        if known is None:
            return None
        tensors = {GATES + name: tensor for name, tensor in known.gates.items()}
        form, output = _checked_batch(model, known.batch)
        tensors |= {f"{BATCH}{place}": tensor for place, tensor in enumerate(form.tensors)}
        tensors |= {f"{OUTPUT}{place}": tensor for place, tensor in enumerate(output)}
        described = {
            "sites": known.sites,
            "fields": known.fields,
            "settings": plain(known.settings, "settings"),
            "batch": form.described,
        }
        return cls(described, {name: _stored(tensor) for name, tensor in tensors.items()})


@dataclass
class _Form:
    """The form of a batch, as JSON has it, and its tensors in their order."""

    described: Any
    tensors: list[Tensor]


def _checked_batch(model: nn.Module, batch: Call | None) -> tuple[_Form, list[Tensor]]:
    """Return a batch with the output of the model; empty if it cannot be written, or is refused."""
    nothing = _Form(None, [])
    if batch is None:
        return nothing, []
    tensors: list[Tensor] = []
    try:
        form = _Form(_encode(list(batch), tensors), tensors)
        return form, _numbers(run(model, batch))
    except Exception:  # the model's own code may refuse random numbers in any way
        return nothing, []


def _numbers(output: Any) -> list[Tensor]:
    """Return all tensors and numbers of an output, in their order, as tensors."""
    found = []
    for leaf in leaves_of(output):
        if isinstance(leaf, Tensor | bool | int | float | complex):
            found.append(torch.as_tensor(leaf))
    return found


def _stored(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone().contiguous()


def _encode(value: Any, tensors: list[Tensor]) -> Any:
    """Return the form of a batch; its tensors are appended to `tensors`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    inner = partial(_encode, tensors=tensors)
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if type(value) is list:
        return [inner(part) for part in value]
    if type(value) is tuple:
        return {"tuple": [inner(part) for part in value]}
    if type(value) is dict and all(isinstance(key, str | int) for key in value):
        return {"dict": [[key, inner(part)] for key, part in value.items()]}
    raise SurgeryError(f"a {type(value).__name__} in the batch")


def _decode(form: Any, tensors: Mapping[str, Tensor], depth: int = 0) -> Any:
    """Return the batch of a form."""
    if depth > DEEPEST:
        raise SurgeryError(f"The batch of the folder has lists more than {DEEPEST} deep.")
    inner = partial(_decode, tensors=tensors, depth=depth + 1)
    if isinstance(form, list):
        return [inner(part) for part in form]
    if not isinstance(form, dict):
        return form
    ((kind, part),) = form.items()
    if kind == "tensor":
        return tensors[f"{BATCH}{int(part)}"]
    if kind == "tuple":
        return tuple(inner(each) for each in part)
    return {key: inner(each) for key, each in part}


def rebuilt(
    content: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    example: Any,
    load_weights: Callable[[nn.Module], None],
) -> nn.Module:
    """Prune a model as the saved one was pruned, and return the result with the saved weights.

    Args:
        content: The manifest.
        tensors: Those of `Rebuild`.
        model: The model as it was before pruning, with or without gates; it is left as it is.
        example: A batch; None takes the one of the folder.
        load_weights: Gives a model the saved weights, or raises if it is another model.
    """
    described = content["rebuild"]
    batch = _batch_for(described, tensors, model, example)
    kept = tuple(bool(record["kept"]) for record in content["fields"])
    scores = tuple(float(record["score"]) for record in content["fields"])
    with _gates_in(model, described, tensors, batch) as (gates, sites):
        selection = Selection(gates.known_fields(), scores, kept, content["method"])
        small = make_plan(model, gates, sites, selection, batch, content["fill"]).apply()
    load_weights(small)
    _check(small.eval(), described, tensors)
    return small


def _batch_for(
    described: Mapping[str, Any], tensors: Mapping[str, Tensor], model: nn.Module, example: Any
) -> Call:
    """Return the batch to prune with, on the device of the model."""
    if example is not None:
        return few_rows(as_call(example))
    if described["batch"] is None:
        raise SurgeryError(
            "The folder holds no batch, since the example was of a class of its own or the model "
            "takes no random numbers. Give a batch as the model takes it: "
            "load(folder, model=MyModel(), example=batch)."
        )
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    moved = {name: tensor.to(device) for name, tensor in tensors.items()}
    args, kwargs = _decode(described["batch"], moved)
    return tuple(args), dict(kwargs)


@contextmanager
def _gates_in(
    model: nn.Module, described: Mapping[str, Any], tensors: Mapping[str, Tensor], batch: Call
) -> Iterator[tuple[LeAP, tuple[Site, ...]]]:
    """Put the gates into the model within this context, or into those that it has."""
    state = {
        name.removeprefix(GATES): tensor
        for name, tensor in tensors.items()
        if name.startswith(GATES)
    }
    found = next(sites_of(model), None)
    if found is not None:
        module, site = found
        gates = site.gates(module)
        before = {name: tensor.clone() for name, tensor in gates.state_dict().items()}
        gates.load_state_dict(state)
        try:
            yield gates, site.siblings
        finally:
            gates.load_state_dict(before)
        return
    fields = Fields.from_json(described["fields"])
    if fields.dims != state["mean"].numel():  # the gates would allocate as much
        raise SurgeryError(
            f"The folder is damaged: it has {fields.dims:,} columns of fields, but gates for "
            f"{state['mean'].numel():,}. Save the model again."
        )
    gates, sites = attach_again(model, described["sites"], fields, described["settings"], batch)
    try:
        gates.load_state_dict(state)
        yield gates, sites
    finally:
        take_out_of(model, sites)


def same_output(model: nn.Module, other: nn.Module, batch: Call) -> bool:
    """Return whether two models compute the same for a batch, up to rounding.

    Also true if the first of them does not take the batch, so that there is nothing to compare.
    """
    try:
        expected = _on_cpu(_numbers(run(model, batch)))
    except Exception:  # the model's own code may refuse random numbers in any way
        return True

    def rounded() -> list[Any]:
        outputs = with_other_rounding(partial(run, model, batch))
        return [_on_cpu(_numbers(output)) for output in outputs]

    return alike(_on_cpu(_numbers(run(other, batch))), expected, rounded)


def _on_cpu(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.cpu() for tensor in tensors]


def _check(small: nn.Module, described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a model that computes something else than the saved one on the batch of the folder."""
    if described["batch"] is None:
        return
    batch = _batch_for(described, tensors, small, None)
    expected: list[Tensor] = []
    while f"{OUTPUT}{len(expected)}" in tensors:
        expected.append(tensors[f"{OUTPUT}{len(expected)}"])
    found = _on_cpu(_numbers(run(small, batch)))

    def rounded() -> list[Any]:
        outputs = with_other_rounding(partial(run, small, batch))
        return [_on_cpu(_numbers(output)) for output in outputs]

    if not alike(found, expected, rounded):
        raise SurgeryError(
            f"The rebuilt model differs from the saved one by {difference(found, expected):.2g} on "
            "the batch of the folder. Is its code as it was when the model was saved?"
        )
