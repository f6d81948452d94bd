"""save and load: a folder with the weights (safetensors) and a manifest (JSON) that says what was dropped, and why.

Loading runs no code: weights are plain numbers, and the manifest's list of layers and operations is checked and interpreted.
The folder is written atomically, and a damaged one is refused.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, fx, nn

from .._common.errors import SurgeryError
from .._common.files import make_folder, writing
from .._common.sealed import digest_of
from .._common.text import first_line
from ..surgery import Plan
from ..surgery.plan import plan_of
from ..surgery.write.build import find
from . import graphs
from .loaded import LoadedModel, from_json, paths_of

FORMAT = 1
_DESCRIBED = (
    *("method", "settings", "fields", "fill", "no_longer_read", "cuts", "notes"),
    *("parameters", "bytes", "multiply_adds"),
)
_DAMAGES = (
    *(
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
        IndexError,
        AssertionError,
        OSError,
    ),
    *(ArithmeticError, MemoryError),  # a RecursionError is a RuntimeError
)
WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"


def save(
    model: nn.Module, folder: str | os.PathLike[str], *, metrics: Mapping[str, float] | None = None
) -> None:
    """Write a pruned model, or one that was loaded, to a folder, which is replaced if it is there.

    Args:
        metrics: What to remember of its quality, such as {"auc_before": 0.8123, "auc_after": 0.8121}.
    """
    described = model.torchleap_origin if _is_loaded(model) else _describe(plan_of(model))
    tensors, aliases = _tensors(model)
    trainable = {
        name: p.requires_grad for name, p in model.named_parameters(remove_duplicate=False)
    }
    content = {
        "format": FORMAT,
        "versions": {"torchleap": version("torchleap"), "torch": torch.__version__},
        "model": type(model).__name__.removeprefix("Pruned"),
        **described,
        "metrics": _plain(metrics or {}),
        "trainable": trainable,
        "aliases": aliases,
        **_graph(
            model,
            {**tensors, **{alias: tensors[name] for alias, name in aliases.items()}},
            trainable,
        ),
    }
    target = Path(folder)
    make_folder(target.parent)
    with writing(target):
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        try:
            _write(temporary, tensors, content)
            _swap(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
    weights = folder / WEIGHTS
    save_file(tensors, weights)
    content["weights"] = {"bytes": weights.stat().st_size, "sha256": digest_of(weights)}
    content["sha256"] = _digest_of(content)
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    weights.chmod(
        (folder / MANIFEST).stat().st_mode & 0o777
    )  # safetensors gives it to the owner alone
    folder.chmod(0o755)


def manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save` wrote about a model: fields kept and dropped with their scores, inputs no longer read, metrics, cuts."""
    path = Path(folder) / MANIFEST
    if not path.is_file():  # a pipe would be waited for
        raise SurgeryError(
            f"{folder} holds no pruned model: expected {MANIFEST} in it. Write one with save()."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        digest = _digest_of(content) if isinstance(content, dict) else ""
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise SurgeryError(
            f"{path} is damaged: expected JSON, but {first_line(error)}. Save the model again."
        ) from error
    found = content.get("format") if isinstance(content, dict) else None
    if type(found) is not int or found != FORMAT:
        raise SurgeryError(
            f"{path}: expected a manifest of format {FORMAT}, but found {found!r}. Save the model again."
        )
    missing = {"sha256", "weights", "trainable", "aliases", "graph", "model", *_DESCRIBED} - set(
        content
    )
    if missing:
        raise SurgeryError(
            f"{path} is damaged: {', '.join(sorted(missing))} is missing. Save the model again."
        )
    if digest != content["sha256"]:
        raise SurgeryError(
            f"{path} is damaged: its content is not what was written. Save the model again."
        )
    return dict(content)


def load(folder: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """Read what `save` wrote; the model is in eval mode.

    Args:
        model: A pruned model whose weights to replace; only needed where the manifest cannot describe the model, as it says.
    """
    content = manifest(folder)
    try:
        return _load(folder, content, model)
    except SurgeryError:
        raise
    except _DAMAGES as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise SurgeryError(
            f"{folder} is damaged: its model cannot be built ({reason}). Save the model again."
        ) from error


def _load(
    folder: str | os.PathLike[str], content: dict[str, Any], model: nn.Module | None
) -> nn.Module:
    tensors = _read(Path(folder) / WEIGHTS, content["weights"])
    tensors |= {alias: tensors[name] for alias, name in content["aliases"].items()}
    if model is not None:
        problems = _mismatches(model, tensors)
        if problems:
            raise SurgeryError(f"{folder} holds another model: {'; '.join(problems[:3])}.")
        model.load_state_dict({name: tensors[name] for name in model.state_dict()})
        return model.eval()
    if content["graph"] is None:
        raise SurgeryError(
            f"{folder} cannot be loaded without its code, because of {content.get('needs_code')}. "
            "Build and prune the model as before, and give it: load(folder, model=pruned)."
        )
    loaded = from_json(content["graph"], tensors, content["trainable"], content["model"])
    loaded.torchleap_origin = {key: content[key] for key in _DESCRIBED}
    return loaded.eval()


def _is_loaded(model: nn.Module) -> TypeGuard[LoadedModel]:
    """Say whether it is as it was loaded, and not pruned again since."""
    return isinstance(model, LoadedModel) and not hasattr(type(model), "pruned_plan")


def _graph(
    model: nn.Module, tensors: dict[str, Tensor], trainable: dict[str, bool]
) -> dict[str, Any]:
    """Describe the graph, if a model can be built from it; else say why not."""
    graph: fx.Graph | None = getattr(type(model), "pruned_graph", None)
    try:
        if _is_loaded(model):
            nodes = model.torchleap_graph["nodes"]
            described = {"nodes": nodes, "layers": graphs.describe_layers(model, nodes)}
        elif graph is not None:
            described = graphs.to_json(model, graph)
        else:
            return {"graph": None, "needs_code": "a forward() that could not be traced"}
        from_json(described, tensors, trainable, "Trial")
    except _DAMAGES as error:
        return {"graph": None, "needs_code": str(error)}
    return {"graph": described}


def _describe(plan: Plan) -> dict[str, Any]:
    selection = plan.selection.to_json()
    return {
        "method": selection["method"],
        "settings": selection["settings"],
        "fields": [
            {**record, "mean": plan.means[record["name"]]}
            if record["name"] in plan.means
            else record
            for record in selection["fields"]
        ],
        "fill": plan.fill,
        "no_longer_read": [
            {"name": item.name, "columns": item.columns and list(item.columns)}
            for item in plan.unread
        ],
        "cuts": [
            {"layer": c.path, "before": c.before, "after": c.after, "parameters": c.parameters}
            for c in plan.cuts
        ],
        "notes": list(plan.notes),
        "parameters": list(plan.parameters),
        "bytes": list(plan.bytes),
        "multiply_adds": list(plan.multiply_adds),
    }


def _tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All weights once, and what else the graph reads; and the other names of those that several layers share."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    held = dict(model.state_dict(keep_vars=True))
    read = _read_by_graph(model)
    held |= {
        path: tensor
        for path in sorted(read - set(held))
        if (tensor := find(model, path)) is not None
    }
    for name, tensor in held.items():
        if not isinstance(tensor, Tensor):
            raise SurgeryError(
                f"{name} in the model's state is no tensor, but {type(tensor).__name__}; it cannot be saved."
            )
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            tensors[name] = tensor.detach().cpu().clone().contiguous()
    return tensors, aliases


def _read_by_graph(model: nn.Module) -> set[str]:
    """Return the paths of what a model reads beside its layers."""
    if _is_loaded(model):
        return paths_of(model.torchleap_graph, "get_attr")
    graph: fx.Graph | None = getattr(type(model), "pruned_graph", None)
    return (
        set()
        if graph is None
        else {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    )


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    try:
        plain = {str(name): float(value) for name, value in metrics.items()}
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SurgeryError(
            f"Expected metrics as finite numbers by name, but found {dict(metrics)!r}."
        ) from error
    return plain


def _swap(temporary: Path, target: Path) -> None:
    """Put the new folder in the place of the old one."""
    if not target.exists():
        temporary.replace(target)
        return
    if not target.is_dir() or (any(target.iterdir()) and not (target / MANIFEST).exists()):
        raise SurgeryError(
            f"{target} is there and is not a saved model, so it is not replaced. Choose another folder."
        )
    old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
    target.replace(old)
    temporary.replace(target)
    shutil.rmtree(old, ignore_errors=True)


def _read(path: Path, expected: Mapping[str, Any]) -> dict[str, Tensor]:
    if not path.is_file():
        raise SurgeryError(f"{path} is missing. Save the model again.")
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise SurgeryError(
            f"{path} is damaged: expected {expected['bytes']:,} bytes, but found {size:,}. Save the model again."
        )
    if digest_of(path) != expected["sha256"]:
        raise SurgeryError(
            f"{path} is damaged: its content is not what the manifest says. Save the model again."
        )
    try:
        # copied: products of matrices round by where these lie in memory, and the file may be replaced while it is mapped
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise SurgeryError(
            f"{path} is damaged: {first_line(error)}. Save the model again."
        ) from error


def _mismatches(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[str]:
    ours = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    others = [
        name for name in tensors if name not in ours and find(model, name) is None
    ]  # not those that state_dict() omits
    problems = [f"it has {name}, the given model does not" for name in others]
    problems += [f"the given model has {name}, it does not" for name in ours if name not in tensors]
    return problems + [
        f"{name} is {tuple(tensor.shape)} there and {ours[name]} in the given model"
        for name, tensor in tensors.items()
        if name in ours and tuple(tensor.shape) != ours[name]
    ]


def _digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest of a manifest, but for the digest itself, however it is laid out."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
