"""The rule for nn.Bilinear."""

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from .base import CutRule, double, kept_index
from .facts import View
from .writer import Writer
from .written import Written


class Bilinear(CutRule):
    """A constant on one side makes the product linear in the other side."""

    def applies(self, node: fx.Node, view: View) -> bool:
        module = view.trace.module(node)
        assert isinstance(module, nn.Bilinear)
        sides = [side for side in node.args if isinstance(side, fx.Node)]
        flat = all(view.is_rows(side) and len(view.trace.shape(side)) == 1 for side in sides)
        return flat and len(node.args) == 2 and not view.uncut(*module._parameters.values())

    def write(self, node: fx.Node, writer: Writer) -> Written:
        module = writer.view.trace.module(node)
        left, right = node.args
        assert isinstance(module, nn.Bilinear)
        assert isinstance(left, fx.Node)
        assert isinstance(right, fx.Node)
        if not writer.is_written(left) or not writer.is_written(right):
            return Written(writer.copy(node, writer.complete))
        held_left = writer.plain(left)
        held_right = writer.plain(right)
        kept_left, rest_left = self._split(writer, left, held_left)
        kept_right, rest_right = self._split(writer, right, held_right)
        path = str(node.target)
        weight = double(module.weight)  # (outputs, left, right)
        writer.cut(f"{path}.weight", module.weight, {1: kept_left, 2: kept_right})
        total = torch.einsum("oij,i,j->o", weight, rest_left, rest_right)
        self._write_bias(path, module, writer, total)
        writer.attributes[path] = {"in1_features": len(kept_left), "in2_features": len(kept_right)}
        new = writer.graph.call_module(path, (held_left.node, held_right.node))
        of_left = torch.einsum("oij,j->oi", weight, rest_right)[:, kept_left]
        of_right = torch.einsum("oij,i->oj", weight, rest_left)[:, kept_right]
        for side, matrix in ((held_left, of_left), (held_right, of_right)):
            if bool(matrix.any()):
                constant = writer.buffer(matrix, node)
                linear = writer.graph.call_function(functional.linear, (side.node, constant))
                new = writer.graph.call_function(torch.add, (new, linear))
        return Written(new)

    def _split(self, writer: Writer, side: fx.Node, held: Written) -> tuple[Tensor, Tensor]:
        """Return the columns that vary, and the constants at the places of the others."""
        value = writer.view.facts[side].value
        kept = kept_index(held.form, len(value))
        rest = value.clone()
        rest[kept] = 0.0
        return kept, rest

    def _write_bias(self, path: str, module: nn.Bilinear, writer: Writer, added: Tensor) -> None:
        if module.bias is not None:
            writer.cut(f"{path}.bias", module.bias, {})
            writer.add_to_parameter(f"{path}.bias", module.bias, added)
        else:
            weight = module.weight
            writer.parameters[f"{path}.bias"] = added.to(weight.device, weight.dtype)
