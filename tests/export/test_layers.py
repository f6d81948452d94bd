"""Layers are described only if their settings build exactly them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchleap as tl
from torchleap.export.graphs import _encode
from torchleap.export.layers import KINDS, build_layer, describe_layer
from torchleap.export.loaded import _check, _decode

LAYERS = [
    nn.Linear(3, 2, bias=False),
    nn.GRU(3, 4, num_layers=2, dropout=0.1, bidirectional=True, batch_first=True),
    nn.LSTM(3, 4, proj_size=2, bias=False),
    nn.RNN(3, 4, nonlinearity="relu"),
    nn.GRUCell(3, 4, bias=False),
    nn.LSTMCell(3, 4),
    nn.MultiheadAttention(8, 2, add_bias_kv=True, kdim=3, vdim=5, batch_first=True),
    nn.MultiheadAttention(8, 2, bias=False, add_zero_attn=True),
    nn.RMSNorm((3, 2), eps=1e-3, elementwise_affine=False),
    nn.TransformerEncoderLayer(8, 2, 5, activation="gelu", norm_first=True, bias=False),
    nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 5), 3, norm=nn.LayerNorm(8)),
    nn.Conv1d(2, 4, 3, padding=1, dilation=2, groups=2),
    nn.BatchNorm1d(5, affine=False),
    nn.LayerNorm([2, 3], bias=False),
    nn.PReLU(7),
    nn.AdaptiveAvgPool1d(2),
    nn.MaxPool1d(2, stride=1),
    nn.Softmax(dim=-1),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_a_layer_is_built_again_from_its_description(layer):
    described = describe_layer(layer, "layer", _encode)
    again = build_layer(described, lambda value: _decode(value, set()), _check)
    assert repr(again) == repr(layer)
    ours = {name: tensor.shape for name, tensor in layer.state_dict().items()}
    assert {name: tensor.shape for name, tensor in again.state_dict().items()} == ours
    assert all(tensor.is_meta for tensor in again.state_dict().values())


def changed_encoder():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 5), 2)
    encoder.layers[1].norm1.eps = 0.1
    return encoder


def with_other_forward():
    layer = nn.Linear(2, 2)
    layer.forward = lambda x: x
    return layer


def with_other_part():
    layer = nn.TransformerEncoderLayer(8, 2, 5)
    layer.norm1 = nn.Identity()
    layer.norm1.eps = 1e-5
    return layer


def with_a_hook_inside():
    layer = nn.TransformerEncoderLayer(8, 2, 5)
    layer.linear1.register_forward_hook(lambda *_: None)
    return layer


def with_a_layer_inside():
    layer = nn.Linear(2, 2)
    layer.inner = nn.ReLU()
    return layer


def with_other_settings():
    layer = nn.MultiheadAttention(8, 2)
    layer.num_heads = 3
    return layer


def with_a_number_of_its_own():
    layer = nn.MultiheadAttention(8, 2)
    layer.head_dim = 2
    return layer


REFUSED = {
    "the layer Bilinearity at 'a.b'": type("Bilinearity", (nn.Bilinear,), {})(2, 2, 1),
    "whose layers.1.norm1.eps was changed": changed_encoder(),
    "whose forward was changed": with_other_forward(),
    "whose norm1 was changed": with_other_part(),
    "the hooks on the layer TransformerEncoderLayer at 'a.b'": with_a_hook_inside(),
    "whose structure was changed": with_a_layer_inside(),
    "whose settings do not build it": with_other_settings(),
    "whose head_dim was changed": with_a_number_of_its_own(),
    "whose activation was changed": nn.TransformerEncoderLayer(
        8, 2, 5, activation=functional.leaky_relu
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_layer_that_its_settings_do_not_describe_is_refused(reason):
    with pytest.raises(tl.SurgeryError, match=reason):
        describe_layer(REFUSED[reason], "a.b", _encode)


def test_every_kind_of_layer_can_be_built_without_memory():
    for kind in KINDS.values():
        assert kind.__module__.startswith("torch.nn")
    layer = ["LSTM", {"input_size": 1 << 20, "hidden_size": 1 << 20, "num_layers": 1}]
    built = build_layer(layer, lambda value: _decode(value, set()), _check)
    assert all(weight.is_meta for weight in built._flat_weights)
    assert torch.nn.RNNBase in type(built).__mro__
