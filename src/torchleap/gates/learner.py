"""GateLearner: gates that step by themselves, in a training loop that cannot be edited."""

from threading import Lock

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from .._common.errors import TorchleapError
from ..distributed import ranks
from ..distributed.fsdp import units
from .guard import trainer_of
from .leap import LeAP
from .trainer import GateTrainer


class GateLearner(GateTrainer):
    """Train the gates whenever a gradient of the model arrives, by the schedule of `GateTrainer`.

    `Plugin.learn` makes one. Every training pass of the gates uses a copy of theta, and only the
    gradient of these copies counts. So weight decay, clipping, an L2 penalty that a library adds
    over all parameters, and optimizers from before `attach` do not reach the gates. The scale of
    the gradient does not count either (AMP, accumulation); one that is not finite is skipped. A
    trainer that is made later takes over.

    Args:
        model: The attached model, not sharded by FSDP2.
        gates: The gates in it.
        steps: How many backward passes are planned; None is a stream without end.
        strength: The full pressure, without units, see `GateOptimizer`.
        lr: The learning rate of the gates; None takes that of `GateTrainer`.

    Attributes:
        skipped: The backward passes whose gradient was not finite.
    """

    def __init__(
        self,
        model: nn.Module,
        gates: LeAP,
        *,
        steps: int | None = None,
        strength: float = 0.4,
        lr: float | None = None,
    ) -> None:
        if units(model):
            raise TorchleapError(
                "Expected gates that are not sharded, but FSDP2 shards this model, so that their "
                "gradient arrives in parts. Use trainer = plugin.trainer() and trainer.step()."
            )
        super().__init__(model, gates, steps=steps, strength=strength, lr=lr, optimism=0.0)
        self.skipped = 0
        self._arrived: Tensor | None = None  # (G,) gradient of the present backward pass
        self._left: Tensor | None = None  # (G,) theta after the latest step
        self._lock = Lock()  # replicas of DataParallel have threads of their own
        gates.context.learn_with(self)

    def stop(self) -> None:
        """Let the gates stay as they are from now on; `trainer` or `learn` may go on with them."""
        self.gates.context.learn_with(None)

    @property
    def was_set_back(self) -> bool:
        """Whether the gates are no longer where the latest step has left them.

        Early stopping does so, when it restores the best weights.
        """
        theta = self.gates.theta.detach()
        return self._left is not None and not torch.equal(self._left.to(theta), theta)

    # a compiler cannot follow what happens in a backward pass
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def theta_of_pass(self, theta: Tensor) -> Tensor:
        """Return a copy of theta for one pass, whose gradient moves the gates.

        Args:
            theta: The parameter of the gates, or that of a replica, (G,).
        """
        if trainer_of(self.gates) is not self:
            return theta
        copy = theta.detach().clone().requires_grad_()
        copy.register_post_accumulate_grad_hook(self._arrive)  # type: ignore[no-untyped-call]
        ddp = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
        if ddp is None:
            return copy
        return copy + 0 * theta  # DDP waits for a gradient of each parameter

    def set_aside(self, gradient: Tensor) -> None:
        """Drop a gradient that did not come through the gates, such as that of an L2 penalty."""

    def _arrive(self, copy: Tensor) -> None:
        """Add the gradient of one pass, and step when the backward pass is complete."""
        assert copy.grad is not None
        gradient = copy.grad.to(self.gates.theta)
        copy.grad = None
        with self._lock:
            if self._arrived is None:
                self._arrived = gradient
                Variable._execution_engine.queue_callback(self._step_after_backward)
            else:
                self._arrived = self._arrived + gradient

    def _step_after_backward(self) -> None:
        with self._lock:
            gradient = self._arrived
            self._arrived = None
        assert gradient is not None
        if ranks.count(self.gates.process_group) > 1:
            ranks.average(gradient, self.gates.process_group)
        theta = self.gates.theta
        theta.grad = None  # what came by other ways
        if not bool(torch.isfinite(gradient).all()):  # as of a loss that AMP has scaled too much
            self.skipped += 1
            return
        theta.grad = gradient
        self.step()
        self._left = theta.detach().clone()
