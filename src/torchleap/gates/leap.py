"""LeAP, the learnable adaptive permutation module: section 3 of the paper, in its order.

Notation: B rows, D columns, F fields, G gates (one per field, or one for all fields of a group).
Where this file leaves the paper, a comment marked NOTE[PAPER] gives the reason; docs/theory.md has
the long form. `GateModule` has the tensors, `mix` the one hot operation.
"""

import math

import torch
from torch import Tensor

from ..distributed import ranks
from ..mix import join as side_by_side
from ..mix import mix
from .checks import check_batch, check_width, refuse_nonfinite
from .layout import Joint
from .module import GateModule
from .statistics import Block


class LeAP(GateModule):
    """Mix each field with a batch-shuffled copy of itself by a learnable gate, and price the gate.

    **Shape**: (B, D) -> (B, D), or (B, F, E) -> (B, F, E).

    `train()` mixes with permuted rows and updates the statistics; `eval()` is deterministic and
    mixes with the running mean, so that a closed gate in eval is what a pruned model computes.
    With every gate at 1 the output equals the input bit for bit.

    Args:
        fields: The fields, in the order of their columns: name -> width, or `Field` objects. None
            takes them from the first batch, where `attach` finds a dict there.
        settings: Those of `torchleap.gates.settings.GateSettings`, which explains each, by name.

    >>> gates = LeAP({"user_id": 8, "age": 1}, alpha=1e-3)
    >>> gates(torch.randn(32, 9)).shape
    torch.Size([32, 9])
    >>> gates.scores()
    {'user_id': 0.9933071732521057, 'age': 0.9933071732521057}
    """

    # 3.1 Learnable permutation

    def gate(self, theta: Tensor | None = None) -> Tensor:
        """Return the gates g = sigmoid(theta / tau), (G,); 1 where a field is protected.

        Args:
            theta: The theta of all gates, (G,); None is the parameter.
        """
        if theta is None:
            theta = ranks.full(self.theta)
        gate = torch.sigmoid(theta / self.settings.temperature)
        if self._protects:
            gate = torch.where(self.free > 0, gate, torch.ones_like(gate))
        return gate

    def forward(self, x: Tensor, columns: slice | None = None) -> Tensor:
        """Mix a batch.

        Args:
            x: The batch, (B, D) or (B, F, E).
            columns: The block of columns that it fills; None is all of them.
        """
        fields = self.known_fields()
        permutes = self.training and self._mask is None
        place = self.context.place
        check_batch(x, place, device=self.theta.device, permutes=permutes)
        flat = x.flatten(1)  # (B, D)
        check_width(flat.shape[1], columns, fields, place)
        block = self.block_of(columns)
        if permutes:
            output = self._mix_with_permuted_rows(flat, block)
        else:
            output = self._mix_with_mean(flat, block.columns)
        return output if output.shape == x.shape else output.reshape(x.shape)

    def _mix_with_permuted_rows(self, x: Tensor, block: Block) -> Tensor:
        """Return g * x + (1 - g) * stopgrad(x'), with each field's rows permuted in x', (B, D)."""
        again = self.context.passes.steps_of(block, x)
        steps = self.steps if again is None else again  # (G,)
        weight = self._weight_of_clean_rows(steps)  # (G,)
        column_gate = self.column_gate  # (D,)
        if len(column_gate) != x.shape[1]:  # one of several sites
            weight = weight[block.gates]
            column_gate = column_gate[block.columns] - block.gates.start
            steps = steps[block.gates]
        seed = self.statistics.seed(self)
        how = (weight, column_gate, seed, steps, block.gates.start, self.settings.shuffle)
        mixed = mix(x, *how)
        if again is not None:  # measured in the forward pass
            return mixed.output
        self.context.passes.note(block, x, self.steps)
        joint = self.joint_of(block.columns)
        if joint is None:
            is_usable = self.statistics.add(self, mixed, len(x), block)
        else:
            is_usable = self.statistics.check(self, mixed, block)
            self._measure_together(joint, block.columns, x.detach(), seed)
        if not is_usable:  # all ranks will refuse the batch; until then the model must not break
            mixed = mix(x.nan_to_num(0, 0, 0), *how)
        return mixed.output

    @torch.no_grad()
    def _measure_together(self, joint: Joint, columns: slice, x: Tensor, seed: Tensor) -> None:
        """Measure the columns of sites that share gates when the last one has been reached.

        A divergence is the distance over all columns of a gate. The steps of these gates advance
        here, so that all parts of a field have the same permutation.

        Args:
            joint: The sites.
            columns: The columns of the site that is reached.
            x: The batch there, (B, d).
            seed: The seed of the permutations, ().
        """
        parts = self.context.gather(joint, columns, x)
        if parts is None:
            return
        block = self.block_of(joint.columns)
        weight = torch.ones_like(self.distance[block.gates])
        column_gate = self.column_gate[block.columns] - block.gates.start
        how = (weight, column_gate, seed, self.steps[block.gates], block.gates.start)
        mixed = mix(side_by_side(parts), *how, self.settings.shuffle)
        self.statistics.add(self, mixed, len(x), block)

    def _weight_of_clean_rows(self, steps: Tensor) -> Tensor:
        """Return the gates as training mixes by them, (G,): with warm-up, floor and probe.

        Args:
            steps: How many batches each gate has seen, (G,).
        """
        # NOTE[PAPER] g = 0 is absorbing: a backbone that ignores a field sends its gate no
        # gradient. Warm-up, floor and probes are ours.
        weight = self.gate(self.context.theta_of_pass(self.theta))
        floor = self.settings.floor
        if floor:
            weight = 1 - (1 - floor) * (1 - weight)
        if self.settings.warmup:
            is_held = steps < self.settings.warmup
            weight = torch.where(is_held, torch.ones_like(weight), weight)
        probe = self.context.probe
        if probe is not None:
            weight = torch.where(weight < 0.5, 1.0, weight) + probe
        return weight

    def _mix_with_mean(self, x: Tensor, columns: slice) -> Tensor:
        """Return g * x + (1 - g) * mean, (B, D); a field outside the mask is its mean."""
        # NOTE[PAPER] The paper leaves evaluation open; its code shuffles there too, which makes
        # the metric noisy.
        weight = self.gate_in_eval()[self.column_gate[columns]]  # (D,)
        mean = self.means()[columns]  # (D,)
        if self._mask is not None:  # first, as a field outside the mask may have any values
            x = torch.where(self._mask[columns], x, mean.to(x.dtype))
        return torch.lerp(mean, x.to(mean.dtype), weight).to(x.dtype)

    def gate_in_eval(self) -> Tensor:
        """Return the gates as eval() mixes by them, (G,): 1 until the warm-up is over."""
        is_free = self.steps > self.settings.warmup
        return torch.where(is_free, self.gate(), torch.ones_like(self.distance))

    # 3.2 Adaptive regularization via permutation divergence

    def weight_seen(self) -> Tensor:
        """Return 1 - beta^steps, (G,): the sum of the weights in each moving average, never 0."""
        # NOTE[PAPER] The paper starts the average anywhere. Ours starts from 0 and is divided by
        # this, which makes it right from the first step.
        momentum = self.settings.momentum
        if momentum == 0:
            return torch.ones_like(self.distance)
        steps = self.steps.clamp_min(1).to(self.distance.dtype)
        return -torch.expm1(steps * math.log(momentum))

    def divergences(self) -> Tensor:
        """Return the permutation divergence of each gate, averaged over steps, (G,)."""
        self.wait_for_ranks()
        seen = self.weight_seen()
        # NOTE[PAPER] "mean" is the paper's form. The noise of a gate's gradient grows with the
        # root mean square, see docs/theory.md.
        if self.settings.divergence == "mean":
            divergence = self.distance / seen
        else:
            divergence = (self.square / seen).sqrt()
        if not self.settings.normalize:
            return divergence
        # NOTE[PAPER] Ours: in units of the RMS value of the rows that are not at the default,
        # rescaling or shifting a field changes nothing, while width and sparsity count.
        unit = (self.spread / (seen - self.common).clamp_min(1e-12)).sqrt()
        in_units = divergence / unit.clamp_min(1e-30)
        return torch.where(unit > 0, in_units, torch.zeros_like(divergence))

    def sparsity(self) -> Tensor:
        """Return the fraction of rows at each gate's most common value, (G,)."""
        self.wait_for_ranks()
        return self.common / self.weight_seen()

    def means(self) -> Tensor:
        """Return the running mean of each column, (D,)."""
        self.wait_for_ranks()
        return self.mean / self.weight_seen()[self.column_gate]

    def weights(self) -> Tensor:
        """Return the price of each open gate, lambda, (G,).

        It is 0 while the gates warm up and where a field is protected.
        """
        if self.settings.adaptive:
            clipped = self._clip(self.divergences())
            price = self.settings.alpha * torch.where(self.steps > 0, clipped, 0)
        else:
            price = torch.full_like(self.distance, self.settings.alpha)
        if self.settings.warmup:
            price = torch.where(self.steps > self.settings.warmup, price, 0)
        if self._protects:
            price = torch.where(self.free > 0, price, 0)
        return price

    def _clip(self, divergence: Tensor) -> Tensor:
        """Return the divergences, (G,), between limits; a constant field has the median one."""
        # NOTE[PAPER] "appropriate clipping": relative to the median field, as embeddings start
        # anywhere from 1e-4 to 1. A constant field has divergence 0 and would cost nothing; at the
        # median price it closes as fast as other noise.
        low, high = self.settings.clip
        squares = torch.zeros_like(divergence).index_add_(0, self.column_gate, self.mean.square())
        # More than rounding moves it; both averages began at 0, so that they compare.
        varies = self.distance > low * squares.sqrt()
        known = torch.where(varies & (divergence > 0), divergence, torch.nan)
        typical = known.nanmedian().nan_to_num(1.0)
        varies = varies & (divergence > low * typical)
        return torch.where(varies, torch.minimum(divergence, high * typical), typical)

    def penalty(self) -> Tensor:
        """Return the sum of lambda_i * g_i, (): its gradient reaches the gates alone."""
        if self.fields is None:  # no batch has come, so that theta's size is not known yet
            return torch.zeros((), device=self.theta.device)
        self.note_pressure()
        return (self.weights() * self.gate()).sum()

    # 3.3 Scores

    def scores(self) -> dict[str, float]:
        """Return each field's gate as a plain float, in field order."""
        fields = self.known_fields()
        self.wait_for_ranks()
        averages = torch.stack([self.distance, self.square])  # (2, G)
        refuse_nonfinite(averages, slice(0, len(self.distance)), fields)
        gates = self.gate().detach()[self.field_gate].tolist()
        return dict(zip(fields.names, gates, strict=True))
