"""The state of the pass that gates take part in, changed through its methods alone."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .._common.errors import FieldError
from .layout import Joint
from .recompute import Passes


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
        has_trained: Whether the model was run in train().
        held_out: Whether only the gates learn, see `Plugin.held_out`.
        train_gradient: The gradient of theta on the train rows before a held-out step, (G,).
        learner: Moves the gates by the gradient of each training pass; None if nothing does so.
        passes: The latest passes that a backward pass may compute again.
        has_example: Whether a batch is known to be kept, although no pass has begun.
        probe: Zeros that collect the gradient of the mixing weights in a probe of `Drift`, (G,).
    """

    def __init__(self, place: str = "LeAP") -> None:
        self.place = place
        self.running = False
        self.has_trained = False
        self.held_out = False
        self.train_gradient: Tensor | None = None
        self.learner: Learner | None = None
        self.probe: Tensor | None = None
        self.has_example = False
        self.passes = Passes()
        self._passed: dict[Hashable, Passed] = {}  # by the place of the site
        self._arrived: dict[int, dict[int, Tensor]] = {}  # of each joint: first column -> values
        self._calls: dict[Hashable, int] = {}  # by the place of the site

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

    def note_example(self) -> None:
        """Note that a batch of the model is kept."""
        self.has_example = True

    # A pass of the complete model

    def begin(self, training: bool = False) -> None:
        """Note that a forward pass of the model has begun.

        Args:
            training: Whether the model is in train().
        """
        self._drop()  # what a pass has left that did not end
        self.running = True
        self.has_trained = self.has_trained or training

    def end(self) -> None:
        """Note that the forward pass is over, and drop its tensors."""
        self._drop()
        if self.running:  # a compiler would have to write back an assignment that changes nothing
            self.running = False

    def _drop(self) -> None:
        """Forget the values and calls of a pass; without any, a compiler has nothing to write."""
        if self._passed:
            self._passed = {}
        if self._arrived:
            self._arrived = {}
        if self._calls:
            self._calls = {}

    # Several sites

    def reached(self, place: Hashable) -> bool:
        """Return whether the site has gated a value in this pass."""
        return place in self._passed

    def restart_at(self, place: Hashable) -> None:
        """Begin a new pass if the site is reached for the second time."""
        if place in self._passed:
            self._passed = {}

    def passed(self) -> dict[Hashable, Passed]:
        """Return value and output of each site that was reached, by its place."""
        return self._passed

    def remember(self, place: Hashable, passed: Passed) -> None:
        """Keep the value that a site has gated until the pass ends."""
        self._passed = {**self._passed, place: passed}

    def count_call(self, place: Hashable) -> int:
        """Return how often the module of a site was called in this pass before, and count one."""
        before = self._calls.get(place, 0)
        self._calls = {**self._calls, place: before + 1}
        return before

    def gather(self, joint: Joint, columns: slice, x: Tensor) -> list[Tensor] | None:
        """Return the values of all sites that share gates, if this one is the last; else None.

        Args:
            joint: The sites.
            columns: The columns of the site that is reached.
            x: Its value, (B, d).
        """
        start = joint.columns.start
        arrived = self._arrived.get(start, {})
        if columns.start in arrived:  # a site is reached again: this is another pass
            arrived = {}
        arrived = {**arrived, columns.start: x}
        rows = sorted({len(value) for value in arrived.values()})
        if len(rows) > 1:
            self._arrived = {}
            raise FieldError(
                f"{self.place}: expected the same number of rows at every place of a field, but "
                f"found {rows[0]} and {rows[1]}. Choose places that all have one row per row of "
                "the batch, or give each place a field of its own."
            )
        if len(arrived) == len(joint.members):
            self._arrived = {**self._arrived, start: {}}
            return [arrived[member.start] for member in joint.members]
        self._arrived = {**self._arrived, start: arrived}
        return None

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
