"""Read attributes of tensors and of batches in a loaded model, and nothing else."""

from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, fx, nn

from .._common.errors import SurgeryError
from ..sites.batches import attributes_of

OF_TENSORS = ("T", "mT", "shape")


def attribute(value: Any, name: str) -> Any:
    """Return an attribute of a tensor, or a part of a batch that is not a dict.

    Args:
        value: A tensor, a named tuple such as the result of `max(1)`, or an object of the batch.
        name: The attribute: of a tensor one of a closed list, of others anything that is not a
            function, and either public or held by the object itself.
    """
    if isinstance(value, fx.Proxy):  # a loaded model is pruned again
        return getattr(value, name)
    label = name if isinstance(name, str) else type(name).__name__
    if not _is_allowed(value, name):
        raise _refused(value, label)
    found = getattr(value, name)
    if callable(found):
        raise _refused(value, label)
    return found


def _is_allowed(value: Any, name: Any) -> bool:
    if not isinstance(name, str) or name.startswith("__"):
        return False
    if isinstance(value, Tensor):
        return name in OF_TENSORS
    if name.startswith("_") and name not in attributes_of(value):  # else it is data of a batch
        return False
    return not isinstance(value, nn.Module | type | ModuleType | FunctionType)


def _refused(value: Any, name: str) -> SurgeryError:
    return SurgeryError(
        f"The manifest describes a model that reads the attribute {name!r:.40} of a "
        f"{type(value).__name__}, which torchleap does not read."
    )
