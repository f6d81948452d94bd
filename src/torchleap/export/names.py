"""The closed lists of what a saved model may name: functions, methods, layers, keywords, dtypes.

The names are a part of the file format. They are written out here, independent of where a function
is defined, so that moving a module changes no file. To let saved models use another function, add
its name; to rename one, raise `files.FORMAT`. A function that makes a tensor by given sizes needs
an entry in `limits` as well, and nothing in these lists may change its arguments or run code.
"""

import inspect
import math
import operator
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .._common.text import words
from ..distributed.torchrec import keyed_values
from ..surgery.rules.registry import CALLS
from ..surgery.runtime import (
    expect_entries,
    expect_inputs,
    expect_rows,
    kept_columns,
    moments_of_layer_norm,
    own_rows,
    part_of_layer_norm,
    parts_of,
    walk,
    with_item,
)
from ..surgery.trace.autocast import settings
from .attributes import attribute


def _of(module: Any, prefix: str, names: str) -> dict[str, Any]:
    """Return functions of a module under the names that files have for them."""
    return {f"{prefix}.{name}": getattr(module, name) for name in names.split()}


# functions of torch that tensors have as methods too
_BOTH = (
    "abs acos add addcdiv addcmul addmm all amax amin any argmax argmin argsort asin atan atan2 "
    "baddbmm bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_to ceil chunk clamp "
    "clamp_max clamp_min clip clone cos cosh count_nonzero cumprod cumsum detach diagonal diff "
    "div divide dot eq erf exp exp2 expm1 fill flatten flip floor floor_divide fmod frac gather "
    "ge gt index_add index_copy index_fill index_select isfinite isinf isnan le lerp log log10 "
    "log1p log2 log_softmax logaddexp logical_and logical_not logical_or logical_xor logit "
    "logsumexp lt masked_fill matmul max maximum mean min minimum mm moveaxis movedim mul "
    "multiply mv nan_to_num narrow ne neg negative norm numel outer permute pow prod ravel "
    "reciprocal relu remainder repeat_interleave reshape roll round rsqrt scatter scatter_add "
    "select sigmoid sign sin sinh softmax sort split sqrt square squeeze std sub subtract sum "
    "swapaxes swapdims t take_along_dim tan tanh tensor_split tile topk transpose tril triu "
    "true_divide trunc unbind unflatten unsqueeze var where"
)
FUNCTIONS: dict[str, Any] = {
    "torchleap.attribute": attribute,
    "torchleap.autocast": settings,
    "torchleap.expect_entries": expect_entries,
    "torchleap.expect_inputs": expect_inputs,
    "torchleap.expect_rows": expect_rows,
    "torchleap.parts_of": parts_of,
    "torchleap.walk": walk,
    "torchleap.kept_columns": kept_columns,
    "torchleap.moments_of_layer_norm": moments_of_layer_norm,
    "torchleap.own_rows": own_rows,
    "torchleap.part_of_layer_norm": part_of_layer_norm,
    "torchleap.keyed_values": keyed_values,
    "torchleap.with_item": with_item,
    "math.sqrt": math.sqrt,
    **_of(
        operator,
        "operator",
        "abs add and_ eq floordiv ge getitem gt invert le lt matmul mod mul ne neg or_ pos pow sub "
        "truediv xor",
    ),
    **_of(torch, "torch", _BOTH),
    **_of(
        torch,
        "torch",
        "arange bucketize cat cdist column_stack concat concatenate cosine_similarity einsum eye "
        "full full_like hstack isin linspace ones ones_like stack tensor tensordot vstack zeros "
        "zeros_like",
    ),
    **_of(torch.linalg, "linalg", "norm vector_norm"),
    **_of(
        functional,
        "functional",
        "adaptive_avg_pool1d adaptive_max_pool1d celu dropout elu embedding gelu glu "
        "hardsigmoid hardswish hardtanh layer_norm leaky_relu linear log_softmax logsigmoid mish "
        "normalize one_hot pad pairwise_distance relu relu6 rms_norm scaled_dot_product_attention "
        "selu sigmoid silu softmax softmin softplus softsign tanh tanhshrink threshold",
    ),
}
NAMES: dict[Any, str] = {}
for _name, _function in FUNCTIONS.items():
    NAMES.setdefault(_function, _name)  # functional.conv1d is torch.conv1d, and so on
NAMES[getattr] = "torchleap.attribute"
METHODS = {name for name in CALLS if isinstance(name, str)} | {*words(_BOTH)}
METHODS |= {
    *words(
        "bool contiguous cpu dim expand expand_as item new_full new_ones new_tensor new_zeros "
        "repeat reshape_as size split_with_sizes to type_as view view_as"
    )
}
KEYWORDS = frozenset(
    words(
        "_stacklevel absent alpha approximate attn_mask average_attn_weights axis axis0 axis1 "
        "batch batch1 batch2 beta bias boundaries chunks condition copy correction decimals "
        "destination device diagonal dim dim0 dim1 dims dropout_p dtype elements enable_gqa end "
        "end_dim eps equation exponent fill_value groups hx index indices indices_or_sections "
        "input input1 input2 inplace is_causal k keepdim keepdims key key_padding_mask keys known "
        "lambd largest length mask mat1 mat2 max max_norm max_val memory_format min min_val mode n "
        "m nan need_weights needed neginf negative_slope non_blocking norm_type normalized_shape "
        "num_classes offset offsets operands ord ordered other out output_size p pad padding_idx "
        "per_sample_weights posinf prepend append q query repeats return_indices right "
        "rounding_mode runs scale scale_grad_by_freq sections shape shifts size sizes sorted "
        "source sparse split_size split_size_or_sections split_sizes src src_key_padding_mask "
        "stable start start_dim step steps tensor tensor1 tensor2 tensors test_elements threshold "
        "training unbiased value values vec2 walked weight width x x1 x2"
    )
)
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in words("float64 float32 float16 bfloat16 bool uint8 int64 int32 int16 int8")
}
_IN_PLACE = ("inplace", "out", "max_norm")  # by these arguments a function changes a tensor
_PATH = re.compile(r"[^\W.][^.\"'\\{}\[\]()]*(\.[^.\"'\\{}\[\]()]+)*")
# a layer or a tensor of these names would hide what every module has
_TAKEN = frozenset((*dir(nn.Module), *vars(nn.Module())))


def is_path(path: object) -> bool:
    """Return whether it can be the path of a layer or tensor, and of nothing else of a module."""
    if not isinstance(path, str) or not path.isprintable() or _PATH.fullmatch(path) is None:
        return False
    parts = path.split(".")
    return not any(part in _TAKEN or part.startswith(("__", "torchleap_")) for part in parts)


def works_in_place(function: Any, given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a call may change one of its arguments.

    >>> works_in_place(functional.relu, (torch.ones(1), True), {})
    True
    """
    by_name = {**dict(zip(_arguments(function), given, strict=False)), **named}
    return any(by_name.get(name) not in (None, False) for name in _IN_PLACE)


@cache
def _arguments(function: Any) -> tuple[str, ...]:
    """Return the names of a function's arguments in their order."""
    if inspect.isbuiltin(function):  # written in C, where the arguments above have names alone
        return ()
    return tuple(inspect.signature(function).parameters)
