"""The state of the pass that gates take part in, changed through its methods alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Passed(NamedTuple):
    """A value that one site has gated in the current pass."""

    value: Any
    state: tuple[Any, ...]  # mode and version of the value, see `PassContext.find`
    output: Any


class Learner(Protocol):
    """An object that moves gates by the gradient of each training pass."""

    def theta_of_pass(self, theta: Tensor) -> Tensor:
        """Return the theta that a pass computes with, (G,)."""


class PassContext:
    """Remember, for one pass of the model, the facts that several of its hooks need.

    Every `LeAP` has one. A copy of the gates starts with an empty one: a pass ends where it began.

    Attributes:
        place: How messages call the gates; `attach` names their sites here.
        running: Whether the complete model is within a forward pass. Statistics of other ranks may
            arrive until the next one begins, so that no rank has to wait.
        held_out: Whether only the gates learn, see `Plugin.held_out`.
        train_gradient: The gradient of theta on the train rows before a held-out step, (G,).
        learner: Moves the gates by the gradient of each training pass; None if nothing does so.
        probe: Zeros that collect the gradient of the mixing weights in a probe of `Drift`, (G,).
    """

    def __init__(self, place: str = "LeAP") -> None:
        self.place = place
        self.running = False
        self.held_out = False
        self.train_gradient: Tensor | None = None
        self.learner: Learner | None = None
        self.probe: Tensor | None = None
        self._passed: dict[str, Passed] = {}  # by the name of the site

    def copy(self) -> "PassContext":
        """Return the context of a copy of the gates, which is in no pass."""
        return PassContext(self.place)

    def name_place(self, place: str) -> None:
        """Set how messages call the gates."""
        self.place = place

    def learn_with(self, learner: Learner | None) -> None:
        """Let an object move the gates by the gradient of each training pass; None ends this."""
        self.learner = learner

    def theta_of_pass(self, theta: Tensor) -> Tensor | None:
        """Return the theta that a training pass computes with, (G,); None is the parameter.

        Args:
            theta: The parameter.
        """
        learns = torch.is_grad_enabled() and not self.held_out
        if self.learner is None or not learns:
            return None
        return self.learner.theta_of_pass(theta)

    # A pass of the complete model

    def begin(self) -> None:
        """Note that a forward pass of the model has begun."""
        self.running = True

    def end(self) -> None:
        """Note that the forward pass is over, and drop its tensors."""
        if self._passed:
            self._passed = {}
        if self.running:  # a compiler would have to write back an assignment that changes nothing
            self.running = False

    # Several sites

    def reached(self, at: str) -> bool:
        """Return whether the site has gated a value in this pass."""
        return at in self._passed

    def restart_at(self, at: str) -> None:
        """Begin a new pass if the site is reached for the second time."""
        if at in self._passed:
            self._passed = {}

    def passed(self) -> tuple[tuple[str, Passed], ...]:
        """Return the name of each site that was reached in this pass, with its value and output."""
        return tuple(self._passed.items())

    def remember(self, at: str, passed: Passed) -> None:
        """Keep the value that a site has gated until the pass ends."""
        self._passed = {**self._passed, at: passed}

    # Held-out steps and probes

    @contextmanager
    def held_out_step(self, train_gradient: Tensor | None) -> Iterator[None]:
        """Mark a step in which only the gates learn.

        Args:
            train_gradient: The gates' gradient on the train rows before, for `GateOptimizer`;
                None if there is none.
        """
        self.held_out = True
        self.train_gradient = train_gradient
        try:
            yield
        finally:
            self.held_out = False
            self.train_gradient = None

    def start_probe(self, like: Tensor) -> None:
        """Let the next batch see closed fields, and collect the gradient of every gate, (G,)."""
        self.probe = torch.zeros_like(like, requires_grad=True)

    def stop_probe(self) -> None:
        """Let closed gates be closed again."""
        self.probe = None
