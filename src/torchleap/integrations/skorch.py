"""Attach to the modules that skorch makes. Importing this needs skorch."""

from collections.abc import Mapping
from typing import Any

from skorch.callbacks import Callback

from ..plugin import Plugin, attach, attached
from ..sites.model import sites_of
from ..sites.notation import Side
from .versions import require


class AttachGates(Callback):  # type: ignore[misc]
    """Attach to the module of a skorch net, and let the gates train themselves.

        gates = AttachGates({"user_id": 16, "age": 1}, at="layers.0", steps=1_000)
        net = NeuralNetBinaryClassifier(Module, callbacks=[gates])
        net.fit(X, y)
        plugin = torchleap.attached(net.module_)
        small = plugin.prune(plugin.select())
        NeuralNetBinaryClassifier(small).fit(X, y)  # fine-tuning

    `fit` makes a new module from a class, with new gates; `partial_fit` continues with both.

    Args:
        fields: As in `torchleap.attach`.
        at: As in `torchleap.attach`.
        side: As in `torchleap.attach`.
        steps: How many backward passes are planned; None is a stream without end.
        strength: The pressure on the gates, as in `Plugin.learn`.
        seed: The seed of the permutations.
    """

    def __init__(
        self,
        fields: Mapping[str, int] | None = None,
        *,
        at: Any = "",
        side: Side = "input",
        steps: int | None = None,
        strength: float = 0.4,
        seed: int | None = None,
    ) -> None:
        require("skorch")
        self.fields = fields
        self.at = at
        self.side = side
        self.steps = steps
        self.strength = strength
        self.seed = seed

    def on_train_begin(self, net: Any, **rest: Any) -> None:
        """Put gates into a new module; one that has gates keeps them."""
        module = net.module_
        if next(sites_of(module), None) is None:
            self._attach(module).learn(self.steps, strength=self.strength)
        elif not attached(module).gates.context.learner:
            attached(module).learn(self.steps, strength=self.strength)

    def _attach(self, module: Any) -> Plugin:
        return attach(module, self.fields, at=self.at, side=self.side, seed=self.seed)
