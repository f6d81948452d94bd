"""A step of the gates on rows that the model does not train on."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..distributed import ranks
from ..distributed.fsdp import at_rest
from .leap import LeAP


@contextmanager
def held_out(model: nn.Module, gates: LeAP) -> Iterator[None]:
    """Let only the gates learn within this context, see `Plugin.held_out`.

    Args:
        model: The attached model itself, not its DDP wrapper.
        gates: The gates in the model.
    """
    rest(model, gates)
    with (
        _other_parameters_frozen(model, gates),
        _other_modules_in_eval(model, gates),
        _own_gradient(model, gates),
    ):
        own = ranks.own_part(gates.theta.detach())
        version = own._version
        before = own.clone()
        yield
        # A fused optimizer does not count up the version; other ranks may have all gates.
        unmoved = own._version == version and torch.equal(own, before) and len(own) > 0
        if gates.theta.grad is not None and unmoved:
            warnings.warn(
                "held_out() ends with a gradient on the gates, but no step: call step() within it.",
                stacklevel=3,
            )


def rest(model: nn.Module, gates: LeAP) -> None:
    """Let a model that FSDP2 has sharded hold its sharded parameters, which optimizers know."""
    if gates.is_sharded:
        at_rest(model)


@contextmanager
def _other_parameters_frozen(model: nn.Module, gates: LeAP) -> Iterator[None]:
    """Set the gradients of all other parameters aside, and keep new ones from them."""
    saved = []
    for parameter in model.parameters():
        if parameter is not gates.theta and parameter.is_leaf:  # sharded tables are not leaves
            saved.append((parameter, parameter.requires_grad, parameter.grad))
            parameter.requires_grad_(False)
            parameter.grad = None
    try:
        yield
    finally:
        for parameter, requires_grad, gradient in saved:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient


@contextmanager
def _other_modules_in_eval(model: nn.Module, gates: LeAP) -> Iterator[None]:
    """Put all modules but the gates into eval mode."""
    modes = {module: module.training for module in model.modules()}
    for module in modes:
        vars(module)["training"] = False  # nn.Module's own way takes as long as a small layer
    vars(gates)["training"] = True
    try:
        yield
    finally:
        for module, training in modes.items():
            vars(module)["training"] = training


@contextmanager
def _own_gradient(model: nn.Module, gates: LeAP) -> Iterator[None]:
    """Start from no gradient on the gates; average the new one over the ranks."""
    train_gradient = gates.theta.grad
    gates.theta.grad = None
    averaging = None
    if gates.is_synchronised and not gates.is_sharded:  # FSDP averages by itself

        def average(theta: Tensor) -> None:
            assert theta.grad is not None
            ranks.average(theta.grad, gates.process_group)

        averaging = gates.theta.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]
    try:
        with gates.context.held_out_step(train_gradient):
            yield
    finally:
        if averaging is not None:
            averaging.remove()
        rest(model, gates)
        gates.theta.grad = None
