"""Count what a pruned model saves: layer by layer, and in total."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .._common.text import words
from ..gates.leap import LeAP
from ..sites.calls import Call
from .rules.written import made_from
from .trial.run import run

_SIZES = words(
    "num_embeddings embedding_dim in1_features in2_features in_features out_features "
    "num_features in_channels out_channels"
)


@dataclass(frozen=True)
class Cut:
    """One layer, or a parameter outside of layers, before and after.

    Attributes:
        path: Its name in the model.
        before: Its kind and sizes, or "new" for a product of weights with constants.
        after: The same of the pruned model, or "removed".
        parameters: How many parameters it has more than before; negative for fewer.
    """

    path: str
    before: str
    after: str
    parameters: int


def cuts_of(model: nn.Module, gates: LeAP, trial: nn.Module) -> list[Cut]:
    """Return every layer, and every parameter outside of layers, whose shape changed or is new."""
    after = dict(trial.named_modules())
    found = []
    for path, module in model.named_modules():
        shapes = _shapes(module)
        new = after.get(path)
        if module is gates or not shapes or (new is not None and _shapes(new) == shapes):
            continue
        saved = count(_own(module))
        if new is None or not isinstance(new, type(module)) or not _shapes(new):
            found.append(Cut(path, describe(module), "removed", -saved))
        elif _sizes(module):
            left = count(_own(new))
            found.append(Cut(path, describe(module), describe(new), left - saved))
        else:
            found += _cut_tensors(path, module, new)
    return found + _new_weights(model, trial)


def _new_weights(model: nn.Module, trial: nn.Module) -> list[Cut]:
    """Return the weights that surgery made which are new, cut or removed."""
    before = {name: each for name, each in model.named_parameters() if made_from(name)}
    after = {name: each for name, each in trial.named_parameters() if made_from(name)}
    cuts = []
    for name in {**before, **after}:
        old = before.get(name)
        new = after.get(name)
        if old is None and new is not None:
            cuts.append(Cut(name, "new", _parameter(new), new.numel()))
        elif old is not None and new is None:
            cuts.append(Cut(name, _parameter(old), "removed", -old.numel()))
        elif old is not None and new is not None and old.shape != new.shape:
            saved = new.numel() - old.numel()
            cuts.append(Cut(name, _parameter(old), _parameter(new), saved))
    return cuts


def _cut_tensors(path: str, module: nn.Module, new: nn.Module) -> list[Cut]:
    """Return the parameters and buffers of a module whose shape changed."""
    before = _shapes(module)
    after = _shapes(new)
    cuts = []
    for name, shape in before.items():
        if shape == after.get(name):
            continue
        kind = "Parameter" if name in module._parameters else "Buffer"
        left = f"{kind}{after[name]}" if name in after else "removed"
        saved = 0
        if kind == "Parameter":
            saved = torch.Size(after.get(name, (0,))).numel() - torch.Size(shape).numel()
        cuts.append(Cut(f"{path}.{name}".lstrip("."), f"{kind}{shape}", left, saved))
    return cuts


def _parameter(parameter: nn.Parameter) -> str:
    return f"Parameter{tuple(parameter.shape)}"


def _own(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module itself, but for weights that surgery made."""
    named = module.named_parameters(recurse=False)
    return [parameter for name, parameter in named if not made_from(name)]


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's own parameters and buffers, but for those of surgery."""
    found = {}
    for name, tensor in {**module._parameters, **module._buffers}.items():
        if tensor is not None and not name.startswith("pruned_") and not made_from(name):
            found[name] = tuple(tensor.shape)
    return found


def _sizes(module: nn.Module) -> list[int]:
    sizes = [getattr(module, name, None) for name in _SIZES]
    return [size for size in sizes if isinstance(size, int)]


def describe(module: nn.Module) -> str:
    """Return the kind and the sizes of a layer, or else its number of parameters."""
    sizes = _sizes(module) or [count(module.parameters(recurse=False))]
    kind = type(module).__name__.removeprefix("Pruned")  # of a layer that is cut by itself
    return f"{kind}({', '.join(f'{size:,}' for size in sizes)})"


def count(parameters: Iterable[nn.Parameter]) -> int:
    """Return the number of elements of all parameters."""
    return sum(parameter.numel() for parameter in parameters)


def size(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers."""
    tensors = (*model.parameters(), *model.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def work(model: nn.Module, example: Call, rows: int) -> int | None:
    """Return the multiply-adds per row in matrix products and convolutions.

    Args:
        model: The model.
        example: A batch.
        rows: The number of rows of the batch.

    Returns:
        The number; None if PyTorch cannot count it.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it would not be counted
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _Nowhere()  # type: ignore[assignment]
    try:
        with counter:
            run(model, example)
    except Exception:  # a formula of PyTorch's that does not cover a call of the model
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops() // 2 // rows)


class _Nowhere(nullcontext[None]):
    """Stand in for the tracker of modules, whose hooks refuse some inputs without gradients."""

    parents = frozenset({"Global"})
