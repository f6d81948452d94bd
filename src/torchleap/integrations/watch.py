"""Watch which submodules a model calls on an example, to find the places of its fields."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from .._common.errors import AttachError
from ..sites.calls import as_call
from ..sites.notation import Place


class Called(NamedTuple):
    """One call of a submodule.

    Attributes:
        path: The name of the submodule.
        number: How many times it was called before, in the same forward pass.
        args: Its arguments by position.
        kwargs: Its arguments by name.
        output: What it returned.
    """

    path: str
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    def argument(self, position: int, name: str, otherwise: Any = None) -> Any:
        """Return an argument that may be given by position or by name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, otherwise)


def outputs(calls: list[Called]) -> Iterator[tuple[Place, Called]]:
    """Return the place of the output of each call; numbered if its module is called again."""
    counts = Counter(call.path for call in calls)
    for call in calls:
        number = call.number if counts[call.path] > 1 else None
        yield Place(call.path, side="output", call=number), call


def watch(model: nn.Module, example: Any, wanted: Callable[[str, nn.Module], bool]) -> list[Called]:
    """Return the calls of some submodules on an example, in order; the model is left as it was.

    Args:
        model: The model.
        example: A batch, as the model takes it (a tuple is several arguments).
        wanted: Whether to watch the submodule of this name.
    """
    if example is None:
        raise AttachError("Expected a batch to find the places of the fields with: example=batch.")
    calls: list[Called] = []
    handles = []
    for path, module in model.named_modules():
        if not wanted(path, module):
            continue

        def see(_: Any, args: Any, kwargs: Any, output: Any, path: str = path) -> None:
            number = sum(1 for call in calls if call.path == path)
            if isinstance(output, dict):
                output = dict(output)  # the model may put other values into it afterwards
            calls.append(Called(path, number, args, kwargs, output))

        handles.append(module.register_forward_hook(see, with_kwargs=True))
    modes = {module: module.training for module in model.modules()}
    args, kwargs = as_call(example)
    try:
        with torch.no_grad():
            model.eval()(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    return calls
