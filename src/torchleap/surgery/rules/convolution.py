"""The rule for nn.Conv1d and nn.Conv2d whose channels are columns or fields."""

import torch
from torch import Tensor, fx, nn

from .base import LayerRule, double
from .facts import Facts, View, form_of
from .writer import Writer
from .written import Written


class Convolution(LayerRule):
    """Constant channels leave the weight, and their contribution is added."""

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        plain = isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups == 1
        return plain and super().applies(node, view)

    def facts(self, node: fx.Node, view: View) -> Facts:
        (source,) = view.row_sources(node)
        facts = view.facts[source]
        module = _convolution(node, view)
        value = _convolved(module, facts.value, with_bias=True)
        return Facts(facts.const.all().expand(view.trace.shape(node)), value)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        view = writer.view
        (source,) = view.row_sources(node)
        held = writer.plain(source)
        varying = form_of(~view.facts[source].const)
        if held.form is None and varying is not None and varying.axis == 1:
            held = writer.plain_part(source, varying)
        if held.form is None or held.form.axis != 1 or self.stays(node, view):
            return Written(writer.copy(node, writer.complete))
        module = _convolution(node, view)
        path = str(node.target)
        present = held.form.mask(view.trace.shape(source))
        rest = torch.where(present, 0.0, view.facts[source].value)
        added = _convolved(module, rest, with_bias=False)
        kept = torch.tensor(held.form.index)
        writer.cut(f"{path}.weight", module.weight, {1: kept})
        writer.attributes[path] = {"in_channels": len(kept)}
        places = added.flatten(1)  # (channels, places)
        first = places[:, :1]
        if torch.allclose(places, first.expand_as(places), rtol=1e-12, atol=1e-14):  # no border
            self._write_bias(path, module, writer, first[:, 0])
            return Written(writer.copy(node, lambda _: held.node))
        return Written(writer.add(writer.copy(node, lambda _: held.node), added, node))

    def _write_bias(
        self, path: str, module: nn.Conv1d | nn.Conv2d, writer: Writer, added: Tensor
    ) -> None:
        if module.bias is not None:
            writer.cut(f"{path}.bias", module.bias, {})
            writer.add_to_parameter(f"{path}.bias", module.bias, added)
        else:
            weight = module.weight
            writer.parameters[f"{path}.bias"] = added.to(weight.device, weight.dtype)


def _convolution(node: fx.Node, view: View) -> nn.Conv1d | nn.Conv2d:
    module = view.trace.module(node)
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    return module


def _convolved(module: nn.Conv1d | nn.Conv2d, row: Tensor, *, with_bias: bool) -> Tensor:
    """Return what the layer makes of one row, as float64."""
    bias = double(module.bias) if with_bias and module.bias is not None else None
    convolved: Tensor = module._conv_forward(row[None], double(module.weight), bias)
    return convolved[0]
