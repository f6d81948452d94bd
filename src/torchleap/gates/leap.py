"""LeAP, the learnable adaptive permutation module: section 3 of the paper, equation by equation, in its order.

Notation: B rows, D columns, F fields, G gates (one a field, or one for all fields of a group). Where this file leaves the
paper, a comment marked NOTE[PAPER] says why; docs/theory.md has the long form.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .._common.errors import AttachError, FieldError
from ..distributed import ranks
from ..fields import Field, Fields
from ..mix import Mixed, mix
from ..mix.shuffle import Shuffle
from .context import PassContext
from .guard import guard
from .settings import Divergence, Settings, check
from .statistics import AVERAGES, Together, wrapped

BUFFERS = ("seed", "steps", *AVERAGES, "mean", "column_gate", "field_gate", "free")


class LeAP(Together):
    """Mix each field with a batch-shuffled copy of itself by a learnable gate, and price each open gate.

    Shape: (B, D) -> (B, D), or (B, F, E) -> (B, F, E).

    `train()` mixes with permuted rows and updates the statistics; `eval()` is deterministic and mixes with the running mean,
    so that a closed gate in eval is what a pruned model computes.

    Args:
        alpha: Weight of the penalty.
        adaptive: Scale each gate's penalty by its divergence; False is LeAP-Base, the same penalty for every gate.
        divergence: "mean" is the paper's; "rms" also closes sparse noise.
        normalize: Measure the divergence in units of the field's own values, so that rescaling a field changes nothing.
        clip: A field whose divergence is below the first number times the median field's, or times the norm of its own mean,
            counts as constant and is priced as the median; above the second times the median the price no longer grows.
        init: Where theta starts; 1 with temperature 0.2 is a gate of 0.993.
        warmup: Batches, held-out ones included, during which the gates stay at 1 while the divergence is already measured.
        shuffle: "uniform" draws a permutation for each gate, as the paper; "cyclic" shifts one random order of the rows by a
            random distance for each gate, which is cheaper where there are many narrow fields or no native kernel.
        floor: Smallest share of the clean path in training, so that a closed field is still seen and can come back.
        per_dimension: A gate for each dimension of a field, which is then called "clicks[3]": surgery narrows embeddings.
        sync_every: Steps between two all-reduces of the statistics where there are several ranks, see `ranks`; between them the
            statistics stand still, so that all ranks agree at every step. 0 is for gates that each rank trains for itself.
        seed: Of the permutations; None follows `torch.manual_seed` without drawing from it. Each rank draws its own.

    >>> gates = LeAP(Fields({"user_id": 8, "age": 1}), alpha=1e-3)
    >>> gates(torch.randn(32, 9)).shape
    torch.Size([32, 9])
    >>> gates.scores()
    {'user_id': 0.9933071732521057, 'age': 0.9933071732521057}
    """

    theta: nn.Parameter  # (G,)
    steps: Tensor  # (G,) batches seen
    distance: Tensor  # (G,) EMA of the mean distance to the permuted row
    square: Tensor  # (G,) EMA of its mean square
    common: Tensor  # (G,) EMA of the share of rows at the most common value
    spread: Tensor  # (G,) EMA of the squared deviation of the other rows, see sparsity.py
    mean: Tensor  # (D,) EMA of the column means
    seed: Tensor  # ()
    column_gate: Tensor  # (D,) the gate of each column
    field_gate: Tensor  # (F,) the gate of each field
    free: Tensor  # (G,) 1, or 0 where a field of the gate is protected; a float, which averages of models can take

    def __init__(
        self,
        fields: Fields | Mapping[str, int] | Iterable[Field] | None,
        *,
        alpha: float = 1e-3,
        temperature: float = 0.2,  # tau
        momentum: float = 0.99,  # beta
        adaptive: bool = True,
        divergence: Divergence = "rms",
        normalize: bool = False,
        clip: tuple[float, float] = (1e-6, 1e4),
        init: float = 1.0,  # theta at step 0
        warmup: int = 0,
        floor: float = 0.0,
        shuffle: Shuffle = "uniform",
        per_dimension: bool = False,
        sync_every: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.alpha = alpha
        self.temperature = temperature
        self.momentum = momentum
        self.adaptive = adaptive
        self.divergence = divergence
        self.normalize = normalize
        self.clip = clip
        self.init = init
        self.warmup = warmup
        self.floor = floor
        self.shuffle: Shuffle = shuffle
        self.per_dimension = per_dimension
        self.sync_every = sync_every
        self.process_group = None
        check({**self.settings, "seed": seed})
        start = torch.initial_seed() if seed is None else int(seed)
        self.register_buffer("seed", torch.tensor(wrapped(start)))
        self._warm_up_ahead = warmup > 0
        self.context = PassContext()
        self.fields: Fields | None = None
        self.arriving: Fields | None = None  # the same, but not split into dimensions
        self._turns, self._unheard, self._to_tell = {}, {}, {}
        self._protects = False  # whether any field is protected
        self._mask: Tensor | None = None  # (D,) bool, set by masked()
        self.theta = nn.Parameter(
            torch.empty(0, dtype=torch.promote_types(torch.get_default_dtype(), torch.float32))
        )
        guard(self)
        for name in ("steps", *AVERAGES, "mean"):
            self.register_buffer(name, None)
        for name in ("column_gate", "field_gate", "free"):
            self.register_buffer(name, None, persistent=False)
        if fields is not None:
            self.lay_out(Fields(fields))

    def lay_out(self, fields: Fields) -> None:
        """Learn which fields there are: at once, or from the first batch where a dict names them.

        The parameter object stays the same, so an optimizer that was built before the first batch holds the right one.
        """
        if (
            torch.is_inference_mode_enabled()
        ):  # a first batch may come from a validation pass, but the gates are to be trained
            with torch.inference_mode(False):
                self.lay_out(fields)
            return
        if self.is_sharded:  # FSDP knows the size that theta had
            raise AttachError(
                f"{self.context.place} has to know its fields before fully_shard(). Give attach() fields= or example=."
            )
        self.arriving = fields
        self.fields = fields = fields.per_dimension() if self.per_dimension else fields
        like = self.theta.detach()
        count = max(fields.gates) + 1
        self.field_gate = torch.tensor(fields.gates, device=like.device)
        widths = torch.tensor(fields.widths, device=like.device)
        self.column_gate = self.field_gate.repeat_interleave(widths, output_size=fields.dims)
        protected = {
            gate for field, gate in zip(fields, fields.gates, strict=True) if field.protected
        }
        self._protects = bool(protected)
        self.free = like.new_tensor([0.0 if gate in protected else 1.0 for gate in range(count)])
        self.theta.data = like.new_full((count,), self.init)
        self.steps = torch.zeros(count, dtype=torch.int64, device=like.device)
        for name in AVERAGES:
            setattr(self, name, like.new_zeros(count))
        self.mean = like.new_zeros(fields.dims)

    # 3.1 Learnable permutation

    def gate(self) -> Tensor:
        """The gates g = sigmoid(theta / tau), (G,); 1 where a field is protected."""
        opened = torch.sigmoid(ranks.full(self.theta) / self.temperature)
        return (
            torch.where(self.free > 0, opened, torch.ones_like(opened))
            if self._protects
            else opened
        )

    def forward(self, x: Tensor, columns: slice | None = None) -> Tensor:
        """Mix the whole input, or the block of it that fills `columns`."""
        flat = self._check_input(x, columns)
        columns = columns or slice(0, flat.shape[1])
        if self.training and self._mask is None:
            output = self._mix_with_permuted_rows(flat, columns)
        else:
            output = self._mix_with_mean(flat, columns)
        return output if output.shape == x.shape else output.reshape(x.shape)

    def _mix_with_permuted_rows(self, x: Tensor, columns: slice) -> Tensor:
        share, column_gate, steps, gates = (
            self._clean_share(),
            self.column_gate,
            self.steps,
            slice(0, len(self.steps)),
        )
        if columns != slice(0, len(column_gate)):  # one of several sites
            gates = self.known_fields().gates_of(columns)
            share, column_gate, steps = (
                share[gates],
                column_gate[columns] - gates.start,
                steps[gates],
            )
        together = self.is_synchronised
        seed = self._own_seed() if together else self.seed
        mixed = mix(x, share, column_gate, seed, steps, gates.start, self.shuffle)
        if together:
            self._measure_together(mixed, len(x), columns, gates)
        asks = (
            x.device.type == "cpu" and not torch.compiler.is_compiling()
        )  # elsewhere it would stall the step: scores() asks
        if asks and not math.isfinite(mixed.statistics.sum().item()):
            if together:  # all ranks refuse the batch when they hear of it; until then the model is to stay whole
                return mix(
                    x.nan_to_num(0, 0, 0),
                    share,
                    column_gate,
                    seed,
                    steps,
                    gates.start,
                    self.shuffle,
                ).output
            self._refuse_nonfinite(mixed.statistics, gates)
        if together:
            return mixed.output
        self._measure(mixed, columns, gates)
        return mixed.output

    def _mix_with_mean(self, x: Tensor, columns: slice) -> Tensor:
        # NOTE[PAPER] The paper does not say what evaluation does; its code shuffles there too, which makes the metric noisy.
        gate = torch.where(self.steps > self.warmup, self.gate(), torch.ones_like(self.distance))
        share, mean = gate[self.column_gate[columns]], self.means()[columns]
        output = (share * x + (1 - share) * mean).to(x.dtype)
        return (
            output
            if self._mask is None
            else torch.where(self._mask[columns], output, mean.to(x.dtype))
        )

    def _clean_share(self) -> Tensor:
        """The gates as training mixes by them: at 1 during the warm-up, above the floor after it."""
        # NOTE[PAPER] g = 0 is absorbing: a backbone that ignores a field sends its gate no gradient. Warm-up and floor are ours.
        share = 1 - (1 - self.floor) * (1 - self.gate()) if self.floor else self.gate()
        share = (
            torch.where(self.steps < self.warmup, torch.ones_like(share), share)
            if self.warmup
            else share
        )
        return (
            share
            if self.context.probe is None
            else torch.where(share < 0.5, 1.0, share) + self.context.probe
        )

    # 3.2 Adaptive regularization via permutation divergence

    def _measure(self, mixed: Mixed, columns: slice, gates: slice) -> None:
        averages, steps = (
            [self.distance, self.square, self.common, self.spread, self.mean],
            self.steps,
        )
        if columns != slice(0, len(self.mean)):  # one of several sites
            averages, steps = (
                [*(average[gates] for average in averages[:4]), self.mean[columns]],
                steps[gates],
            )
        values = [value.to(self.mean.dtype) for value in (*mixed.statistics.unbind(), mixed.mean)]
        torch._foreach_lerp_(averages, values, 1 - self.momentum)
        steps.add_(1)

    def _weight_seen(self) -> Tensor:
        """1 - beta^steps, (G,): what the weights in each moving average, which starts from 0, sum to; not 0 at step 0."""
        # NOTE[PAPER] The paper starts the average anywhere; divided by this, it is right from the first step.
        if self.momentum == 0:
            return torch.ones_like(self.distance)
        return -torch.expm1(
            self.steps.clamp_min(1).to(self.distance.dtype) * math.log(self.momentum)
        )

    def divergences(self) -> Tensor:
        """The permutation divergence of each gate, averaged over steps, (G,)."""
        seen = self._weight_seen()
        # NOTE[PAPER] "mean" is the paper's form. A gate's gradient noise grows with the root mean square, see docs/theory.md.
        self._hear()
        average = self.distance / seen if self.divergence == "mean" else (self.square / seen).sqrt()
        if not self.normalize:
            return average
        # NOTE[PAPER] Ours: in these units, rescaling or shifting a field changes nothing, while width and sparsity count.
        unit = (
            self.spread / (seen - self.common).clamp_min(1e-12)
        ).sqrt()  # RMS value of the rows not at the default
        return torch.where(unit > 0, average / unit.clamp_min(1e-30), torch.zeros_like(average))

    def sparsity(self) -> Tensor:
        """The share of rows at each gate's most common value, (G,)."""
        self._hear()
        return self.common / self._weight_seen()

    def means(self) -> Tensor:
        """The running mean of each column, (D,)."""
        self._hear()
        return self.mean / self._weight_seen()[self.column_gate]

    def weights(self) -> Tensor:
        """The price of each open gate, lambda, (G,); 0 while it warms up and where it is protected."""
        if self.adaptive:
            price = self.alpha * torch.where(self.steps > 0, self._clip(self.divergences()), 0)
        else:
            price = torch.full_like(self.distance, self.alpha)
        if self.warmup:
            price = torch.where(self.steps > self.warmup, price, 0)
        return torch.where(self.free > 0, price, 0) if self._protects else price

    def _clip(self, divergence: Tensor) -> Tensor:
        # NOTE[PAPER] "appropriate clipping": relative to the median field, as embeddings start anywhere from 1e-4 to 1. A
        # constant field has divergence 0 and would cost nothing; it costs the median, so it closes as fast as other noise.
        low, high = self.clip
        own_size = (
            torch.zeros_like(divergence).index_add_(0, self.column_gate, self.mean.square()).sqrt()
        )
        varies = (
            self.distance > low * own_size
        )  # more than rounding moves it; both averages began at 0, so they compare
        typical = (
            torch.where(varies & (divergence > 0), divergence, torch.nan)
            .nanmedian()
            .nan_to_num(1.0)
        )
        varies = varies & (divergence > low * typical)
        return torch.where(varies, torch.minimum(divergence, high * typical), typical)

    def penalty(self) -> Tensor:
        """The sum of lambda_i * g_i: a scalar whose gradient reaches the gates alone."""
        if self.fields is None:
            return torch.zeros(
                (), device=self.theta.device
            )  # no batch has come; theta's size is not known yet
        return (self.weights() * self.gate()).sum()

    def scores(self) -> dict[str, float]:
        """Each field's gate as a plain float, in field order."""
        fields = self.known_fields()
        self._hear()
        self._refuse_nonfinite(
            torch.stack([self.distance, self.square]), slice(0, len(self.distance))
        )
        return dict(zip(fields.names, self.gate().detach()[self.field_gate].tolist(), strict=True))

    # Housekeeping

    @property
    def settings(self) -> Settings:
        """The settings that this module was built with."""
        return Settings(
            alpha=self.alpha,
            temperature=self.temperature,
            momentum=self.momentum,
            adaptive=self.adaptive,
            divergence=self.divergence,
            normalize=self.normalize,
            clip=self.clip,
            init=self.init,
            warmup=self.warmup,
            floor=self.floor,
            shuffle=self.shuffle,
            per_dimension=self.per_dimension,
            sync_every=self.sync_every,
            seed=int(self.seed) if "seed" in self._buffers else None,
        )

    @property
    def moved(self) -> bool:
        """Whether any gate has left the place where it started."""
        theta = ranks.full(self.theta.detach())
        start = torch.tensor(self.init, dtype=torch.float32).to(
            theta.dtype
        )  # a float64 module may have started in float32
        return bool(
            ((theta != start.to(theta.device)) & (theta != self.init) & (self.free > 0)).any()
        )

    @property
    def warming_up(self) -> bool:
        """Whether the gates are still held at 1; asked of the device only while it can be true."""
        if self._warm_up_ahead and self.fields is not None:
            reached = self.steps > 0  # of several sites one may never be called
            self._warm_up_ahead = bool((reached & (self.steps <= self.warmup)).any()) or not bool(
                reached.any()
            )
        return self._warm_up_ahead

    def known_fields(self) -> Fields:
        """The fields, or an error while they are still to come from the first batch."""
        if self.fields is None:
            raise FieldError(
                f"{self.context.place} learns its fields from the first batch, and none has come. Run one batch first."
            )
        return self.fields

    def arriving_fields(self) -> Fields:
        """The fields as they arrive, not split into dimensions."""
        self.known_fields()
        assert self.arriving is not None
        return self.arriving

    @contextmanager
    def masked(self, kept: Iterable[str]) -> Iterator[None]:
        """Within this context every field that is not in `kept` is its running mean; the kept ones are as in eval().

        Nested contexts add up: a field is kept if all of them keep it.
        """
        fields = self.known_fields()
        if not bool((self.steps > 0).all()):
            raise FieldError(
                f"{self.context.place} has no means to put in place of the fields: no training batch has passed. Train first."
            )
        mask = torch.zeros(fields.dims, dtype=torch.bool)
        for name in kept:
            mask[fields.columns(name)] = True
        outer, mask = self._mask, mask.to(self.theta.device)
        self._mask = mask if outer is None else mask & outer
        try:
            yield
        finally:
            self._mask = outer

    def _check_input(self, x: Tensor, columns: slice | None) -> Tensor:
        """The input as (B, D), or an error that says what was expected, what was found and the cure."""
        fields = self.known_fields()
        if not isinstance(x, Tensor):
            raise FieldError(
                f"{self.context.place} expects a tensor (rows, columns), but receives {type(x).__name__}. Convert it first."
            )
        if not x.is_floating_point():
            raise FieldError(
                f"{self.context.place} expects floating-point columns, but receives {x.dtype}. "
                "Ids have to be embedded first: put the gates behind the embedding."
            )
        if x.dim() < 2:
            raise FieldError(
                f"{self.context.place} expects (rows, columns) or (rows, fields, width), but receives the shape {tuple(x.shape)}. "
                "Put the gates where whole rows pass."
            )
        if x.device != self.theta.device:
            raise FieldError(
                f"{self.context.place} is on {self.theta.device}, but receives a batch on {x.device}. Move one of them: "
                f"batch.to({str(self.theta.device)!r})."
            )
        flat = x.flatten(1)
        expected = fields.dims if columns is None else columns.stop - columns.start
        if flat.shape[1] != expected:
            raise FieldError(
                f"{self.context.place} receives {flat.shape[1]} columns, but the fields sum to {expected}. {fields.describe()} "
                "Give the missing field, correct a width, or choose another at=."
            )
        if self.training and self._mask is None and x.shape[0] < 2:
            raise FieldError(
                f"{self.context.place} needs at least 2 rows to permute in training, but the batch has {x.shape[0]}. "
                "Drop the last partial batch (drop_last=True) or call eval()."
            )
        return flat

    def _refuse_nonfinite(self, statistics: Tensor, gates: slice) -> None:
        finite = torch.isfinite(statistics).all(0)
        if finite.all():
            return
        bad = {gate + gates.start for gate in (~finite).nonzero().flatten().tolist()}
        fields = self.known_fields()
        names = [name for name, gate in zip(fields.names, fields.gates, strict=True) if gate in bad]
        raise FieldError(
            f"NaN, infinity or values too large to square in field {', '.join(map(repr, names[:5]))}"
            f"{f' and {len(names) - 5} more' if len(names) > 5 else ''}. Fill or clip the values before the model reads them."
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "LeAP":
        """Follow `.to()`, but stay in float32 or better: in bfloat16 a step of 1e-3 on theta = 1 would be lost."""

        def convert(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            if converted.dtype in (torch.bfloat16, torch.float16):
                return tensor.to(converted.device)
            return converted

        self._hear()
        super()._apply(convert, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Copies take along neither the tensors of an unfinished pass nor a probe or mask, which ends with its batch."""
        self._hear()
        return {
            **self.__dict__,
            "context": self.context.copy(),
            "_mask": None,
            "process_group": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy and an unpickled module have a theta of their own to guard."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        guard(self)

    def get_extra_state(self) -> Tensor:
        """The fields, as the bytes of a JSON text: a checkpoint knows what its gates stand for."""
        records = None if self.arriving is None else self.arriving.to_json()
        return torch.frombuffer(bytearray(json.dumps(records).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Nothing to do: `_load_from_state_dict` has read it."""

    def _save_to_state_dict(self, *rest: Any) -> None:
        self._hear()
        super()._save_to_state_dict(*rest)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}_extra_state")
        if saved is not None:
            records = json.loads(bytes(saved.tolist()))
            fields = None if records is None else Fields.from_json(records)
            if self.fields is None and fields is not None:
                self.lay_out(fields)
            elif fields is not None and (fields.names, fields.widths) != (
                self.arriving_fields().names,
                self.arriving_fields().widths,
            ):
                error_msgs: list[str] = rest[-1]
                error_msgs.append(
                    f"The checkpoint's gates belong to {fields}, but {self.context.place} has {self.arriving}."
                )
                return
        self._warm_up_ahead = self.warmup > 0
        self._hear()
        self._turns, self._to_tell = {}, {}
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """The fields and the settings that matter, for print(model)."""
        if self.fields is None:
            return "fields from the first batch"
        kind = f"divergence={self.divergence!r}" if self.adaptive else "adaptive=False"
        return (
            f"{len(self.fields)} fields, {self.fields.dims} dimensions, alpha={self.alpha}, {kind}"
        )
