"""What a pruned model saves: layer by layer, and in all."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..gates.leap import LeAP
from ..sites.calls import Call
from .trace.examples import run


@dataclass(frozen=True)
class Cut:
    """One layer or parameter, before and after."""

    path: str
    before: str
    after: str
    parameters: int  # fewer than before


def cuts_of(model: nn.Module, gates: LeAP, trial: nn.Module) -> list[Cut]:
    """Every layer, and every parameter that belongs to none, whose shape changed."""
    after, found = dict(trial.named_modules()), []
    for path, module in model.named_modules():
        new = after.get(path)
        if (
            module is gates
            or not _shapes(module)
            or (new is not None and _shapes(module) == _shapes(new))
        ):
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
        cuts.append(
            Cut(
                f"{path}.{name}".lstrip("."),
                f"{kind}{before[name]}",
                left,
                saved if kind == "Parameter" else 0,
            )
        )
    return cuts


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors = {**module._parameters, **module._buffers}
    return {
        k: tuple(t.shape)
        for k, t in tensors.items()
        if t is not None and not k.startswith("pruned_")
    }


def _sizes(module: nn.Module) -> list[int]:
    return [
        getattr(module, name) for name in _SIZES if isinstance(getattr(module, name, None), int)
    ]


def describe(module: nn.Module) -> str:
    """A layer in a few words: its kind and its sizes."""
    sizes = _sizes(module) or [sum(p.numel() for p in module.parameters(recurse=False))]
    return f"{type(module).__name__}({', '.join(f'{size:,}' for size in sizes)})"


_SIZES = (
    *(
        "num_embeddings",
        "embedding_dim",
        "in1_features",
        "in2_features",
        "in_features",
        "out_features",
    ),
    *("num_features", "in_channels", "out_channels"),
)


def count(model: nn.Module) -> int:
    """Its parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def size(model: nn.Module) -> int:
    """The bytes of its parameters and buffers."""
    return sum(
        tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers())
    )


def work(model: nn.Module, example: Call, rows: int) -> int:
    """Multiply-adds a row, in matrix products and convolutions."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # which would not be counted
    try:
        with FlopCounterMode(display=False) as counter:
            run(model, example)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops() // 2 // rows)
