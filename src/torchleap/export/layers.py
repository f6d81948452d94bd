"""Describe layers of PyTorch as plain JSON, and build them again with checked settings."""

import inspect
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._common.errors import SurgeryError
from .._common.text import words
from ..surgery.rules.registry import LAYERS

LARGEST = 1 << 31  # no layer has a setting above it
# settings that no stored weight bounds: how many layers are built, and by how much results grow
MOST = {"num_layers": 256, "padding": 1024, "output_size": 1024}
_SKIPPED = {"self", "device", "dtype", "_weight", "_freeze"}
_OTHERS = words(
    "AdaptiveAvgPool1d AdaptiveMaxPool1d AlphaDropout AvgPool1d BatchNorm2d CosineSimilarity "
    "Dropout1d Dropout2d GLU GroupNorm GRU GRUCell Hardshrink LogSoftmax LSTM LSTMCell MaxPool1d "
    "MultiheadAttention PReLU RMSNorm RNN Softmax Softmin Softshrink Tanhshrink Threshold "
    "TransformerEncoder TransformerEncoderLayer"
)
KINDS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in LAYERS}
KINDS |= {name: getattr(nn, name) for name in _OTHERS}

_RECURRENT = {
    **{"input_size": int, "hidden_size": int, "num_layers": int, "bias": bool},
    **{"batch_first": bool, "dropout": float, "bidirectional": bool},
}
_CELL = {"input_size": int, "hidden_size": int, "bias": bool}
_ATTENTION = {
    **{"embed_dim": int, "num_heads": int, "dropout": float, "bias": bool},
    **{"add_bias_kv": bool, "add_zero_attn": bool, "kdim": int | None, "vdim": int | None},
    "batch_first": bool,
}
_ENCODER_LAYER = {
    **{"d_model": int, "nhead": int, "dim_feedforward": int, "dropout": float},
    **{"activation": Literal["relu", "gelu"], "layer_norm_eps": float},
    **{"batch_first": bool, "norm_first": bool, "bias": bool},
}
_ENCODER = {
    **{"encoder_layer": nn.Module, "num_layers": int, "norm": nn.Module | None},
    **{"enable_nested_tensor": bool, "mask_check": bool},
}
# the settings of layers whose constructors do not declare their types
_DECLARED: dict[type[nn.Module], dict[str, Any]] = {
    nn.GRU: _RECURRENT,
    nn.LSTM: {**_RECURRENT, "proj_size": int},
    nn.RNN: {**_RECURRENT, "nonlinearity": Literal["tanh", "relu"]},
    nn.GRUCell: _CELL,
    nn.LSTMCell: _CELL,
    nn.MultiheadAttention: _ATTENTION,
    nn.TransformerEncoderLayer: _ENCODER_LAYER,
    nn.TransformerEncoder: _ENCODER,
}


def _of_attention(layer: Any) -> dict[str, Any]:
    settings = {name: getattr(layer, name, None) for name in _ATTENTION}
    settings["bias"] = layer.in_proj_bias is not None
    settings["add_bias_kv"] = layer.bias_k is not None
    return settings


def _of_encoder_layer(layer: Any) -> dict[str, Any]:
    names = {functional.relu: "relu", functional.gelu: "gelu"}
    return {
        "d_model": layer.self_attn.embed_dim,
        "nhead": layer.self_attn.num_heads,
        "dim_feedforward": layer.linear1.out_features,
        "dropout": layer.dropout.p,
        "activation": names.get(layer.activation),
        "layer_norm_eps": layer.norm1.eps,
        "batch_first": layer.self_attn.batch_first,
        "norm_first": layer.norm_first,
        "bias": layer.linear1.bias is not None,
    }


def _of_encoder(layer: Any) -> dict[str, Any]:
    return {
        "encoder_layer": layer.layers[0],
        "num_layers": layer.num_layers,
        "norm": layer.norm,
        "enable_nested_tensor": layer.enable_nested_tensor,
        "mask_check": layer.mask_check,
    }


# how to read the settings of layers that do not keep them as attributes of the same names
_READERS: dict[type[nn.Module], Callable[[Any], dict[str, Any]]] = {
    nn.MultiheadAttention: _of_attention,
    nn.TransformerEncoderLayer: _of_encoder_layer,
    nn.TransformerEncoder: _of_encoder,
}


def describe_layer(layer: nn.Module, path: str, encode: Callable[[Any], Any]) -> list[Any]:
    """Return the kind of a layer and the settings that build it.

    Args:
        layer: The layer.
        path: Its name in the model, for messages.
        encode: Returns a value as JSON has it.

    Raises:
        SurgeryError: The layer is none of `KINDS`, or computes something else than its kind; the
            message names it.
    """
    kind = type(layer)
    label = f"the layer {kind.__name__} at {path!r}"
    if KINDS.get(kind.__name__) is not kind:
        raise SurgeryError(label)
    if any(_has_hooks(part) for part in layer.modules()):
        raise SurgeryError(f"the hooks on {label}")
    settings = {}
    for name, value in _settings_of(layer, label).items():
        is_layer = isinstance(value, nn.Module)
        settings[name] = describe_layer(value, path, encode) if is_layer else encode(value)
    difference = _difference(layer, _build_again(layer, label))
    if difference:
        raise SurgeryError(f"{label}, whose {difference} was changed")
    return [kind.__name__, settings]


def build_layer(
    described: Any, decode: Callable[[Any], Any], check: Callable[[bool, str], None]
) -> nn.Module:
    """Build a layer without weights, if its settings have the types of its constructor.

    Args:
        described: What `describe_layer` returned, from a file.
        decode: Returns a value that JSON holds.
        check: Raises if its first argument is false; the second names what was found.
    """
    kind, settings = described
    check(isinstance(kind, str) and kind in KINDS, f"the layer {kind!r:.40}")
    layer = KINDS[kind]
    expected = _expected(layer)
    arguments: dict[str, Any] = {}
    wrong = []
    for name, value in settings.items():
        hint = expected.get(name)
        if hint in (nn.Module, nn.Module | None) and value is not None:
            arguments[name] = build_layer(value, decode, check)
            continue
        arguments[name] = decode(value)
        if name not in expected or not _fits(arguments[name], hint) or _is_huge(name, value):
            wrong.append(name)
    in_place = arguments.get("inplace") is True
    check(not wrong and not in_place, f"the setting {', '.join(wrong[:3])} of a layer {kind}")
    return _built(layer, arguments)


def _built(layer: type[nn.Module], arguments: dict[str, Any]) -> nn.Module:
    if "device" in inspect.signature(layer).parameters or layer in (nn.GRU, nn.LSTM, nn.RNN):
        arguments = {**arguments, "device": "meta"}  # the weights come from the file
    return layer(**arguments)


def _expected(kind: type[nn.Module]) -> dict[str, Any]:
    """Return the settings of a layer that a manifest contains, with their types."""
    if kind in _DECLARED:
        return _DECLARED[kind]
    hints = get_type_hints(kind.__init__)
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name not in _SKIPPED and parameter.kind not in loose:
            found[name] = hints.get(name)
    return found


def _settings_of(layer: nn.Module, label: str) -> dict[str, Any]:
    """Return the settings that build a layer, as they are now."""
    kind = type(layer)
    if kind in _READERS:
        return _READERS[kind](layer)
    settings = {}
    parameters = inspect.signature(kind).parameters
    for name in _expected(kind):
        if name == "bias" and kind not in _DECLARED:
            settings[name] = getattr(layer, "bias", None) is not None
        elif hasattr(layer, name):
            settings[name] = getattr(layer, name)
        elif parameters[name].default is inspect.Parameter.empty:
            raise SurgeryError(f"{label}, whose {name} it does not keep")
    return settings


def _build_again(layer: nn.Module, label: str) -> nn.Module:
    """Return a layer without weights that is built from the settings of another one."""
    settings = _settings_of(layer, label)
    for name, value in settings.items():
        if isinstance(value, nn.Module):
            settings[name] = _build_again(value, label)
    try:
        return _built(type(layer), settings)
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError) as error:
        raise SurgeryError(f"{label}, whose settings do not build it") from error


def _has_hooks(layer: nn.Module) -> bool:
    return bool(layer._forward_pre_hooks or layer._forward_hooks)


def _difference(layer: nn.Module, again: nn.Module) -> str:
    """Return in what a layer differs from the one that its settings build, "" if in nothing."""
    ours = dict(layer.named_modules(remove_duplicate=False))
    theirs = dict(again.named_modules(remove_duplicate=False))
    if list(ours) != list(theirs):
        return "structure"
    for path, part in ours.items():
        other = theirs[path]
        if type(part) is not type(other):
            return path or "class"
        if "forward" in vars(part):
            return f"{path}.forward".lstrip(".")
        for name, value in vars(other).items():
            found = vars(part).get(name)
            if not name.startswith("_") and name != "training" and not _is_same(found, value):
                return f"{path}.{name}".lstrip(".")
    return ""


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return type(one) is type(other)
    return one is other or bool(one == other) or (one != one and other != other)


def _is_huge(name: str, value: Any) -> bool:
    """Return whether a setting would build too much, or make results too large."""
    numbers = value if isinstance(value, list) else [value]
    if isinstance(value, dict):
        numbers = value.get("tuple", [])
    return name in MOST and any(isinstance(each, int) and each > MOST[name] for each in numbers)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has an annotated type: numbers, text and sequences of numbers."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint in (bool, type(None), str):
        return type(value) is hint
    if hint is float and type(value) is float:
        return True
    if hint in (int, float):
        return type(value) is int and abs(value) < LARGEST
    sequence = hint is torch.Size or get_origin(hint) in (list, tuple)
    return sequence and isinstance(value, list | tuple) and all(_fits(part, int) for part in value)
