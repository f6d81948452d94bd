"""Rules for normalisation: nn.BatchNorm1d and nn.LayerNorm."""

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from ..runtime import part_of_layer_norm
from .base import LayerRule, double, kept_index, spread
from .elementwise import Elementwise
from .facts import Facts, View, form_of
from .sums import Moments, Sums
from .writer import Writer
from .written import Written


class BatchNorm(LayerRule):
    """BatchNorm1d shrinks with its columns; a pending scale and shift go into its statistics."""

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        is_norm = isinstance(module, nn.BatchNorm1d) and module.running_mean is not None
        return is_norm and super().applies(node, view)

    def facts(self, node: fx.Node, view: View) -> Facts:
        (source,) = view.row_sources(node)
        facts = view.facts[source]
        module = _batch_norm(node, view)
        mean, variance = _statistics(module)
        weight = torch.ones_like(mean) if module.weight is None else double(module.weight)
        bias = torch.zeros_like(mean) if module.bias is None else double(module.bias)
        shape = [-1, *[1] * (facts.value.dim() - 1)]
        deviation = (variance + module.eps).reshape(shape).sqrt()
        normalized = (facts.value - mean.reshape(shape)) / deviation
        return Facts(facts.const, normalized * weight.reshape(shape) + bias.reshape(shape))

    def request(self, node: fx.Node, view: View) -> None:
        (source,) = view.row_sources(node)
        view.request(source, view.live(node))

    def write(self, node: fx.Node, writer: Writer) -> Written:
        (source,) = writer.view.row_sources(node)
        if self.stays(node, writer.view):
            return Written(writer.copy(node, writer.complete))
        module = _batch_norm(node, writer.view)
        form = form_of(writer.view.live(node))
        if form is not None and form.axis != 1:
            form = None
        held = writer.as_form(source, form)
        kept = kept_index(held.form, module.num_features)
        if held.scale is not None and (held.scale.dim() > 1 or bool((held.scale[kept] <= 0).any())):
            held = writer.plain_part(source, held.form)
        self._cut(str(node.target), module, writer, held, kept)
        return Written(writer.copy(node, lambda _: held.node), held.form)

    def _cut(
        self, path: str, module: nn.BatchNorm1d, writer: Writer, held: Written, kept: Tensor
    ) -> None:
        """Cut weights and statistics, and fold a pending scale and shift into the statistics."""
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        for name, tensor in tensors:
            if tensor.dim():
                writer.cut(f"{path}.{name}", tensor, {0: kept})
        if held.scale is not None and held.shift is not None:
            scale = held.scale[kept]
            shift = held.shift[kept]
            mean, variance = (statistic[kept] for statistic in _statistics(module))
            new_mean = (mean - shift) / scale
            new_variance = (variance + module.eps) / scale.square() - module.eps
            for name, array in (("running_mean", new_mean), ("running_var", new_variance)):
                writer.parameters[f"{path}.{name}"] = array.to(getattr(module, name))
        writer.attributes[path] = {"num_features": len(kept)}


def _batch_norm(node: fx.Node, view: View) -> nn.BatchNorm1d:
    module = view.trace.module(node)
    assert isinstance(module, nn.BatchNorm1d)
    return module


def _statistics(module: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance as float64."""
    assert module.running_mean is not None
    assert module.running_var is not None
    return double(module.running_mean), double(module.running_var)


class Tokenwise(Elementwise):
    """A layer that treats each token on its own, as LayerNorm over the width of an embedding.

    Complete tokens may be absent.
    """

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        tokens = isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1
        return tokens and len(view.trace.shape(node)) > 1 and super().applies(node, view)

    def facts(self, node: fx.Node, view: View) -> Facts:
        (source,) = view.row_sources(node)
        facts = view.facts[source]
        module = view.trace.module(node)
        assert isinstance(module, nn.LayerNorm)
        weight = None if module.weight is None else double(module.weight)
        bias = None if module.bias is None else double(module.bias)
        shape = list(module.normalized_shape)
        value = functional.layer_norm(facts.value, shape, weight, bias, module.eps)
        return Facts(facts.const.all(-1, keepdim=True).expand(value.shape), value)

    def request(self, node: fx.Node, view: View) -> None:
        (source,) = view.row_sources(node)
        view.request(source, spread(view.live(node), -1, view.trace.shape(source)))

    def write(self, node: fx.Node, writer: Writer) -> Written:
        (source,) = writer.view.row_sources(node)
        held = writer.plain(source)
        if held.form is not None and held.form.axis == len(writer.view.trace.shape(source)):
            held = writer.plain_part(source, None)
        return Written(writer.copy(node, lambda _: held.node), held.form)


class ColumnNorm(LayerRule):
    """LayerNorm over all columns of a row: constants become sums of its mean and deviation."""

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        rank = len(view.trace.shape(node))
        return isinstance(module, nn.LayerNorm) and rank == 1 and super().applies(node, view)

    def facts(self, node: fx.Node, view: View) -> Facts:
        (source,) = view.row_sources(node)
        facts = view.facts[source]
        module = _layer_norm(node, view)
        weight = torch.ones_like(facts.value) if module.weight is None else double(module.weight)
        bias = torch.zeros_like(facts.value) if module.bias is None else double(module.bias)
        value = functional.layer_norm(
            facts.value, list(facts.value.shape), weight, bias, module.eps
        )
        const = facts.const.all().expand(value.shape)
        fits = view.keeps_precision(node) and not self.stays(node, view)
        mask = facts.const & ~const
        if view.reach is None or not fits or not bool(mask.any()):
            return Facts(const, value)
        _, _, mean, _ = arguments = self._arguments(node, view)
        key = (node, "moments")
        features = view.features.of(key, Moments(source, arguments), torch.arange(2))
        matrix = torch.stack([weight * (facts.value - mean), -weight], 1)
        return Facts(const, torch.where(mask, bias, value), Sums(mask, features, matrix))

    def _arguments(self, node: fx.Node, view: View) -> tuple[float, int, float, float]:
        """Return eps, and the number, the mean and the squares of the constants."""
        facts = view.facts[view.row_sources(node)[0]]
        constants = facts.value[facts.const]
        mean = constants.mean()
        squares = (constants - mean).square().sum()
        return _layer_norm(node, view).eps, len(constants), float(mean), float(squares)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        view = writer.view
        (source,) = view.row_sources(node)
        if view.facts[node].sums is None:
            return Written(writer.copy(node, writer.complete))
        module = _layer_norm(node, view)
        path = str(node.target)
        part = writer.varying_part(source)
        assert part.form is not None
        own = {}
        for name, tensor in module.named_parameters(recurse=False):
            writer.cut(f"{path}.{name}", tensor, {0: torch.tensor(part.form.index)})
            own[name] = writer.graph.get_attr(f"{path}.{name}")
        if own:  # else nothing of the layer is left
            writer.attributes[path] = {"normalized_shape": (len(part.form.index),)}
        arguments = (own.get("weight"), own.get("bias"), *self._arguments(node, view))
        new = writer.graph.call_function(part_of_layer_norm, (part.node, *arguments))
        return Written(new, part.form)


def _layer_norm(node: fx.Node, view: View) -> nn.LayerNorm:
    module = view.trace.module(node)
    assert isinstance(module, nn.LayerNorm)
    return module
