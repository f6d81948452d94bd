"""The closed lists of what a saved model may name: functions, methods, layers, keywords, dtypes.

The names are a part of the file format. They are written out here, independent of where a function
is defined, so that moving a module changes no file. To let saved models use another function, add
its name; to rename one, raise `files.FORMAT`.
"""

import operator
import re
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .._common.text import words
from ..distributed.torchrec import keyed_values
from ..surgery.rules.registry import CALLS, LAYERS
from ..surgery.runtime import expect_entries, expect_inputs, expect_rows, kept_columns


def _of(module: Any, prefix: str, names: str) -> dict[str, Any]:
    """Return functions of a module under the names that files have for them."""
    return {f"{prefix}.{name}": getattr(module, name) for name in names.split()}


FUNCTIONS: dict[str, Any] = {
    "torchleap.expect_entries": expect_entries,
    "torchleap.expect_inputs": expect_inputs,
    "torchleap.expect_rows": expect_rows,
    "torchleap.kept_columns": kept_columns,
    "torchleap.keyed_values": keyed_values,
    **_of(
        operator,
        "operator",
        "add floordiv getitem gt matmul mod mul neg pow sub truediv",
    ),
    **_of(
        torch,
        "torch",
        "abs add bmm cat clamp concat cos div divide einsum eq exp expm1 flatten ge gt "
        "index_select le log log1p logical_not lt matmul maximum mean minimum mm moveaxis movedim "
        "mul multiply narrow ne neg permute pow relu remainder reshape rsqrt select sigmoid sin "
        "softmax sqrt square squeeze stack sub subtract sum swapaxes swapdims tanh transpose "
        "true_divide unflatten unsqueeze where",
    ),
    **_of(
        functional,
        "functional",
        "dropout elu gelu hardswish layer_norm leaky_relu linear mish relu relu6 sigmoid silu "
        "softmax softplus tanh",
    ),
}
NAMES = {function: name for name, function in FUNCTIONS.items()}
METHODS = {name for name in CALLS if isinstance(name, str)}
METHODS |= {"size", "expand", "softmax", "split", "chunk", "unbind", "clamp_min"}
_OTHER_LAYERS = (nn.Softmax, nn.PReLU, nn.AlphaDropout, nn.BatchNorm2d, nn.GroupNorm)
KINDS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (*LAYERS, *_OTHER_LAYERS)}
KEYWORDS = frozenset(
    words(
        "_stacklevel absent alpha approximate axis axis0 axis1 batch beta bias chunks condition "
        "copy destination device dim dim0 dim1 dims dtype end_dim eps equation exponent index "
        "inplace input input1 input2 keepdim keepdims keys known length mat2 max memory_format "
        "min needed negative_slope non_blocking normalized_shape offsets operands ordered other "
        "p per_sample_weights rounding_mode runs shape size sizes source split_size "
        "split_size_or_sections start start_dim tensors threshold training value walked weight "
        "width x"
    )
)
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in words("float64 float32 float16 bfloat16 bool uint8 int64 int32 int16 int8")
}
_PATH = re.compile(r"[^\W.][^.\"'\\{}\[\]()]*(\.[^.\"'\\{}\[\]()]+)*")
# a layer or a tensor of these names would hide what every module has
_TAKEN = frozenset((*dir(nn.Module), *vars(nn.Module())))


def is_path(path: object) -> bool:
    """Return whether it can be the path of a layer or tensor, and of nothing else of a module."""
    if not isinstance(path, str) or not path.isprintable() or _PATH.fullmatch(path) is None:
        return False
    parts = path.split(".")
    return not any(part in _TAKEN or part.startswith(("__", "torchleap_")) for part in parts)
