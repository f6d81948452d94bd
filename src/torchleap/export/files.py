"""Save and load a pruned model: a folder with its weights (safetensors) and a manifest (JSON).

The manifest contains which fields were dropped, and why. Loading runs no code: weights are plain
numbers, and the manifest's list of layers and operations is checked and interpreted. The folder is
written atomically, and a damaged one is refused.
"""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, fx, nn

from .._common.errors import SurgeryError, TorchleapError
from .._common.files import replace_folder
from .._common.plain import as_json, read_json
from .._common.sealed import digest_of
from .._common.strict import raise_mistake
from .._common.text import first_line, words
from ..sites.calls import on_device
from ..surgery import Plan, plan_of
from ..surgery.write.build import find
from . import graphs
from .loaded import LoadedModel, from_json, paths_of
from .rebuild import Rebuild, rebuilt, same_output

FORMAT = 2  # raise it when a name in `names` or an argument of a function in it changes
WEIGHTS = "model.safetensors"
REBUILD = "rebuild.safetensors"  # what rebuilds a model from its code
MANIFEST = "manifest.json"
AGAIN = "Save the model again."
MOST_NAMES = 5  # that a message shows
_DESCRIBED = words(
    "method settings fields fill no_longer_read cuts notes parameters bytes multiply_adds"
)
_REQUIRED = {"sha256", "weights", "trainable", "aliases", "graph", "model", *_DESCRIBED}
_DAMAGES = (  # a RecursionError is a RuntimeError
    *(KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError),
    *(AssertionError, OSError, ArithmeticError, MemoryError),
)


@dataclass(frozen=True)
class Saved:
    """What `save` wrote.

    Attributes:
        path: The folder.
        loads_without_code: Whether `load(path)` returns the model without its code.
        in_the_way: The operations, layers and hooks that a folder cannot describe, if it does not.
    """

    path: Path
    loads_without_code: bool
    in_the_way: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.loads_without_code:
            return f"{self.path} can be loaded without the model's code."
        return (
            f"{self.path} cannot be loaded without the model's code, because of "
            f"{shortened(self.in_the_way)}. Load it with the model as built from code, before "
            f"attach(): load(folder, model=MyModel()). To need no code, replace these by layers "
            "and functions of PyTorch."
        )


def save(
    model: nn.Module, folder: str | os.PathLike[str], *, metrics: Mapping[str, float] | None = None
) -> Saved:
    """Write a pruned model, or one that was loaded, to a folder; a saved model there is replaced.

    It warns if the folder cannot be loaded without the model's code.

    Args:
        model: The model.
        folder: The folder.
        metrics: Figures of its quality to keep in the manifest, such as {"auc_before": 0.8123,
            "auc_after": 0.8121}; none if left out.

    Returns:
        Whether `load` will need the model's code, and which operations are in the way.
    """
    saved = save_silently(model, folder, metrics)
    if not saved.loads_without_code:
        warnings.warn(str(saved), stacklevel=2)
    return saved


def save_silently(
    model: nn.Module, folder: str | os.PathLike[str], metrics: Mapping[str, float] | None = None
) -> Saved:
    """Write a model as `save` does, without its warning.

    Args:
        model: The model.
        folder: The folder.
        metrics: Figures of its quality.
    """
    described = model.torchleap_origin if _is_loaded(model) else _describe(plan_of(model))
    tensors, aliases = _tensors(model)
    parameters = model.named_parameters(remove_duplicate=False)
    trainable = {name: parameter.requires_grad for name, parameter in parameters}
    graph, in_the_way = _graph(model, _with_aliases(tensors, aliases), trainable)
    content = {
        "format": FORMAT,
        "versions": {"torchleap": version("torchleap"), "torch": torch.__version__},
        "model": type(model).__name__.removeprefix("Pruned"),
        **described,
        "metrics": _numbers(metrics or {}),
        "trainable": trainable,
        "aliases": aliases,
        "graph": graph,
        "needs_code": in_the_way,
    }
    rebuild = None
    if graph is None and not _is_loaded(model):
        rebuild = Rebuild.of(model, plan_of(model))
    with replace_folder(folder, marker=MANIFEST, what="a saved model", refused=SurgeryError) as new:
        _write(new, tensors, content, rebuild)
    return Saved(Path(folder), graph is not None, tuple(in_the_way))


def _write(
    folder: Path, tensors: dict[str, Tensor], content: dict[str, Any], rebuild: Rebuild | None
) -> None:
    """Write weights and manifest to a new folder."""
    content["weights"] = _write_tensors(folder / WEIGHTS, tensors)
    if rebuild is not None:
        written = _write_tensors(folder / REBUILD, rebuild.tensors)
        content["rebuild"] = {**rebuild.described, "file": written}
    content["sha256"] = _digest_of(content)
    (folder / MANIFEST).write_text(as_json(content, indent=1), encoding="utf-8")
    for file in folder.iterdir():  # safetensors makes files that only their owner can read
        file.chmod((folder / MANIFEST).stat().st_mode & 0o777)


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Write a file of tensors; return its size and digest."""
    save_file(tensors, path)
    return {"bytes": path.stat().st_size, "sha256": digest_of(path)}


def manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `save` wrote about a model.

    That is its fields with their scores, the inputs that it does not read, metrics and cuts.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():  # reading a pipe would wait
        raise SurgeryError(
            f"{folder} holds no pruned model: expected {MANIFEST} in it. Write one with save()."
        )
    try:
        content = read_json(path, "a manifest", SurgeryError, AGAIN)
    except OSError as error:
        raise SurgeryError(f"{path} cannot be read: {first_line(error)}.") from error
    found = content.get("format") if isinstance(content, dict) else None
    if type(found) is not int or found != FORMAT:
        raise SurgeryError(
            f"{path}: expected a manifest of format {FORMAT}, but found {found!r}. {AGAIN}"
        )
    missing = _REQUIRED - set(content)
    if missing:
        raise SurgeryError(f"{path} is damaged: {', '.join(sorted(missing))} is missing. {AGAIN}")
    if _digest_of(content) != content["sha256"]:
        raise SurgeryError(f"{path} is damaged: its content is not what was written. {AGAIN}")
    return dict(content)


def load(
    folder: str | os.PathLike[str], model: nn.Module | None = None, *, example: Any = None
) -> nn.Module:
    """Return the model that `save` wrote, in eval mode.

    Args:
        folder: The folder.
        model: The model as built from its code, before `attach`; only needed where the manifest
            cannot describe the pruned one, as the message of `save` then explains. It is left as
            it is: it is pruned again as the saved one was, and the result gets the saved weights.
            A model that is pruned already gets the saved weights itself.
        example: A batch as the model takes it; only needed where the folder holds none, since the
            batches are objects of the model's own classes.
    """
    content = manifest(folder)
    try:
        return _load(folder, content, model, example)
    except TorchleapError:
        raise
    except _DAMAGES as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        if model is not None:
            raise SurgeryError(
                f"{folder} does not fit the given {type(model).__name__} ({reason}). Build it as "
                "it was before attach()."
            ) from error
        raise SurgeryError(
            f"{folder} is damaged: its model cannot be built ({reason}). {AGAIN}"
        ) from error


def _load(
    folder: str | os.PathLike[str], content: dict[str, Any], model: nn.Module | None, example: Any
) -> nn.Module:
    weights = _read(Path(folder) / WEIGHTS, content["weights"])
    tensors = _with_aliases(weights, content["aliases"])
    if model is not None:
        give = partial(_give_weights, folder, tensors)
        if hasattr(type(model), "pruned_plan") or "rebuild" not in content:
            give(model)
            return model.eval()
        held = _read(Path(folder) / REBUILD, content["rebuild"]["file"])
        return rebuilt(content, held, model, example, give).eval()
    if content["graph"] is None:
        raise SurgeryError(
            f"{folder} cannot be loaded without its code, because of "
            f"{shortened(_needs_code(content))}. Build the model as before attach(), and give it: "
            "load(folder, model=MyModel())."
        )
    loaded = from_json(content["graph"], tensors, content["trainable"], content["model"])
    loaded.torchleap_origin = {key: content[key] for key in _DESCRIBED}
    return loaded.eval()


def _give_weights(
    folder: str | os.PathLike[str], tensors: Mapping[str, Tensor], model: nn.Module
) -> None:
    """Give a pruned model the saved weights, or raise if it is another model."""
    problems = _mismatches(model, tensors)
    if problems:
        raise SurgeryError(f"{folder} holds another model: {'; '.join(problems[:3])}.")
    state = model.state_dict()
    model.load_state_dict({name: tensors[name] for name in state})
    for name in set(tensors) - set(state):  # tensors that are not a part of the state
        target = find(model, name)
        if target is not None:
            target.data.copy_(tensors[name])


def _needs_code(content: Mapping[str, Any]) -> list[str]:
    """Return what is in the way of loading without code; earlier versions wrote one reason."""
    found = content.get("needs_code")
    return [str(found)] if not isinstance(found, list) else [str(each) for each in found]


def shortened(names: Sequence[str]) -> str:
    """Return a list of names, of a long one the first few."""
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    shown = [*names[:MOST_NAMES], *more]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def _with_aliases(tensors: dict[str, Tensor], aliases: Mapping[str, str]) -> dict[str, Tensor]:
    """Return tensors also under the other names that they have."""
    return {**tensors, **{alias: tensors[name] for alias, name in aliases.items()}}


def _is_loaded(model: nn.Module) -> TypeGuard[LoadedModel]:
    """Return whether a model is as it was loaded, and has not been pruned again since."""
    return isinstance(model, LoadedModel) and not hasattr(type(model), "pruned_plan")


def _pruned_graph(model: nn.Module) -> fx.Graph | None:
    graph: fx.Graph | None = getattr(type(model), "pruned_graph", None)
    return graph


def _graph(
    model: nn.Module, tensors: dict[str, Tensor], trainable: dict[str, bool]
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the description of the graph, or None and what is in the way of one."""
    graph = _pruned_graph(model)
    try:
        if _is_loaded(model):
            nodes = model.torchleap_graph["nodes"]
            layers, problems = graphs.describe_layers(model, nodes)
            described = {"nodes": nodes, "layers": layers}
        elif graph is not None:
            described, problems = graphs.to_json(model, graph)
        else:
            return None, [f"a forward() that could not be traced{_reason(model)}"]
        if problems:
            return None, problems
        trial = from_json(described, tensors, trainable, "Trial")
        if not _is_loaded(model) and not _computes_the_same(model, trial):
            return None, ["an operation that computes something else when it is loaded"]
    except _DAMAGES as error:
        raise_mistake(error)
        return None, [str(error).removesuffix(".")]
    return described, []


def _reason(model: nn.Module) -> str:
    """Return why a model could not be traced, in brackets."""
    untraced = plan_of(model).untraced.replace(" cannot be traced:", ":")
    return f" ({untraced})" if untraced else ""


def _computes_the_same(model: nn.Module, trial: nn.Module) -> bool:
    """Return whether a model that was built from a description computes what the model does."""
    known = plan_of(model).attachment
    if known is None or known.batch is None or any(map(_is_elsewhere, model.parameters())):
        return True
    return same_output(model, trial, on_device(known.batch, torch.device("cpu")))


def _is_elsewhere(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu"


def _describe(plan: Plan) -> dict[str, Any]:
    """Return what a manifest contains of a plan."""
    selection = plan.selection.to_json()
    fields = []
    for record in selection["fields"]:
        mean = plan.means.get(record["name"])
        fields.append(record if mean is None else {**record, "mean": mean})
    unread = []
    for item in plan.unread:
        columns = None if item.columns is None else list(item.columns)
        unread.append({"name": item.name, "columns": columns})
    cuts = []
    for cut in plan.cuts:
        sizes = {"before": cut.before, "after": cut.after, "parameters": cut.parameters}
        cuts.append({"layer": cut.path, **sizes})
    return {
        "method": selection["method"],
        "settings": selection["settings"],
        "fields": fields,
        "fill": plan.fill,
        "no_longer_read": unread,
        "cuts": cuts,
        "notes": list(plan.notes),
        "parameters": list(plan.parameters),
        "bytes": list(plan.bytes),
        "multiply_adds": list(plan.multiply_adds),
    }


def _tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return all weights and what else the graph reads, each once, and the other names of them.

    Several layers may share one tensor.
    """
    held = dict(model.state_dict(keep_vars=True))
    for path in sorted(_read_by_graph(model) - set(held)):
        tensor = find(model, path)
        if tensor is not None:
            held[path] = tensor
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in held.items():
        if not isinstance(tensor, Tensor):
            raise SurgeryError(
                f"{name} in the model's state is not a tensor, but {type(tensor).__name__}; "
                "it cannot be saved."
            )
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            tensors[name] = tensor.detach().cpu().clone().contiguous()
    return tensors, aliases


def _read_by_graph(model: nn.Module) -> set[str]:
    """Return the paths of what a model reads besides its layers."""
    if _is_loaded(model):
        return paths_of(model.torchleap_graph, "get_attr")
    graph = _pruned_graph(model)
    if graph is None:
        return set()
    return {str(node.target) for node in graph.nodes if node.op == "get_attr"}


def _numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics as finite numbers by name."""
    try:
        numbers = {str(name): float(value) for name, value in metrics.items()}
    except (TypeError, ValueError):
        numbers = {"": math.nan}
    if not all(map(math.isfinite, numbers.values())):
        raise SurgeryError(
            f"Expected metrics as finite numbers by name, but found {dict(metrics)!r}."
        )
    return numbers


def _read(path: Path, expected: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the weights, if the file is the one that the manifest describes."""
    if not path.is_file():
        raise SurgeryError(f"{path} is missing. {AGAIN}")
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise SurgeryError(
            f"{path} is damaged: expected {expected['bytes']:,} bytes, but found {size:,}. {AGAIN}"
        )
    if digest_of(path) != expected["sha256"]:
        raise SurgeryError(f"{path} is damaged: its content is not that of the manifest. {AGAIN}")
    try:
        # copied, since products of matrices round differently by where these lie in memory, and
        # since the file may be replaced while it is mapped
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise SurgeryError(f"{path} is damaged: {first_line(error)}. {AGAIN}") from error


def _mismatches(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return how the saved tensors differ from those of a given model, in names or shapes."""
    ours = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    problems = []
    for name in tensors:
        if name not in ours and find(model, name) is None:  # state_dict() omits some tensors
            problems.append(f"it has {name}, the given model does not")
    for name in ours:
        if name not in tensors:
            problems.append(f"the given model has {name}, it does not")
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if shape != ours.get(name, shape):
            problems.append(f"{name} is {shape} there and {ours[name]} in the given model")
    return problems


def _digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest of a manifest without its digest, whatever its layout."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
