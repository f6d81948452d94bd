"""A module with a gate per field: its parameter and buffers, their layout, copies, checkpoints."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from .._common.errors import AttachError, FieldError
from ..distributed import ranks
from ..fields import Field, Fields
from .context import PassContext
from .guard import guard
from .layout import Joint, Layout
from .settings import GateSettings, SettingsByName, with_settings_in_signature
from .statistics import AVERAGES, Block, LocalStatistics, SynchronisedStatistics, wrapped

LAYOUT = ("column_gate", "field_gate", "free")
BUFFERS = ("seed", "steps", *AVERAGES, "mean", *LAYOUT)
SHORT_FLOATS = (torch.bfloat16, torch.float16)


class GateModule(nn.Module):
    """Hold the gates of some fields and the statistics about them; `LeAP` adds the equations.

    Args:
        fields: The fields, in the order of their columns; None waits for `lay_out`.
        settings: Those of `GateSettings`, by name.

    Attributes:
        context: The pass that the gates are in.
        process_group: The ranks that train one and the same model; None is all of them.
        fields: The fields that have gates: single dimensions with `per_dimension`.
        layout: The columns of the fields as they arrive, not split into dimensions.
    """

    theta: nn.Parameter  # (G,)
    steps: Tensor  # (G,) batches seen
    distance: Tensor  # (G,) moving average of the mean distance to the permuted row
    square: Tensor  # (G,) moving average of its mean square
    common: Tensor  # (G,) moving average of the fraction of rows at the most common value
    spread: Tensor  # (G,) moving average of the squared deviation of the other rows
    mean: Tensor  # (D,) moving average of the column means
    seed: Tensor  # ()
    column_gate: Tensor  # (D,) the gate of each column
    field_gate: Tensor  # (F,) the gate of each field
    free: Tensor  # (G,) 1, or 0 where a field is protected; float, so that models can be averaged

    @with_settings_in_signature
    def __init__(
        self,
        fields: Fields | Mapping[str, int] | Iterable[Field] | None,
        **settings: Unpack[SettingsByName],
    ) -> None:
        super().__init__()
        self.settings = GateSettings.named(settings)
        self.context = PassContext()
        self.process_group: Any = None
        self.fields: Fields | None = None
        self.layout: Layout | None = None
        self._split: Layout | None = None  # the same, of single dimensions with `per_dimension`
        self._local = LocalStatistics()
        self._synchronised = SynchronisedStatistics()
        self._protects = False  # whether any field is protected
        self._warm_up_ahead = self.settings.warmup > 0
        self.is_pressed = False  # whether a penalty, a pressure or a price was ever computed
        self._mask: Tensor | None = None  # (D,) bool, set by masked()
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.theta = nn.Parameter(torch.empty(0, dtype=dtype))
        guard(self)
        seed = self.settings.seed
        start = torch.initial_seed() if seed is None else int(seed)
        self.register_buffer("seed", torch.tensor(wrapped(start)))
        for name in ("steps", *AVERAGES, "mean"):
            self.register_buffer(name, None)
        for name in LAYOUT:
            self.register_buffer(name, None, persistent=False)
        if fields is not None:
            self.lay_out(Fields(fields))

    # Fields

    def lay_out(self, fields: Fields | Layout) -> None:
        """Make a gate per field: at once, or at the first batch where a dict names the fields.

        The parameter remains the same object, which an optimizer may hold by then.

        Args:
            fields: The fields in the order of their columns, or the layout of fields that arrive
                at several sites.
        """
        if torch.is_inference_mode_enabled():  # of a validation pass, but gates are to be trained
            with torch.inference_mode(False):
                self.lay_out(fields)
            return
        if self.is_sharded:  # FSDP knows the size that theta had
            raise AttachError(
                f"{self.context.place} has to know its fields before fully_shard(). "
                "Give attach() fields= or example=."
            )
        layout = fields if isinstance(fields, Layout) else Layout(fields)
        self.layout = layout
        self._split = layout.per_dimension() if self.settings.per_dimension else layout
        fields = self._split.fields
        self.fields = fields
        like = self.theta.detach()
        gates = fields.gates
        count = max(gates) + 1
        self.field_gate = torch.tensor(gates, device=like.device)
        self.column_gate = torch.tensor(self._split.column_gates(), device=like.device)
        self.free = like.new_ones(count)
        for field, gate in zip(fields, gates, strict=True):
            if field.protected:
                self.free[gate] = 0.0
        self._protects = any(field.protected for field in fields)
        self.theta.data = like.new_full((count,), self.settings.init)
        self.steps = torch.zeros(count, dtype=torch.int64, device=like.device)
        for name in AVERAGES:
            setattr(self, name, like.new_zeros(count))
        self.mean = like.new_zeros(fields.dims)

    def known_fields(self) -> Fields:
        """Return the fields, or raise an error while they are to come from the first batch."""
        if self.fields is None:
            raise FieldError(
                f"{self.context.place} learns its fields from the first batch, and none has come. "
                "Run one batch first."
            )
        return self.fields

    def known_layout(self) -> Layout:
        """Return the columns of the fields as they arrive, not split into dimensions."""
        self.known_fields()
        assert self.layout is not None
        return self.layout

    def arriving_fields(self) -> Fields:
        """Return the fields as they arrive, not split into dimensions."""
        return self.known_layout().fields

    def columns_of(self, name: str) -> list[slice]:
        """Return the blocks of columns of a field that has a gate: one for each of its sites."""
        self.known_fields()
        assert self._split is not None
        return self._split.columns(name)

    def block_of(self, columns: slice | None) -> Block:
        """Return some of the columns, all if None, with their gates."""
        everything = slice(0, len(self.mean))
        if columns is None or columns == everything:
            return Block(everything, slice(0, len(self.steps)))
        assert self._split is not None
        return Block(columns, self._split.gates_of(columns))

    def joint_of(self, columns: slice) -> Joint | None:
        """Return the sites that share gates with the site of these columns; None if none does."""
        assert self._split is not None
        return self._split.joint_of(columns)

    # Ranks

    @property
    def is_synchronised(self) -> bool:
        """Whether other ranks train the same gates."""
        return self.settings.sync_every > 0 and ranks.count(self.process_group) > 1

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP2 (`fully_shard`) manages theta: a DTensor outside of a forward pass."""
        return bool(vars(self).get("_is_fsdp_managed_module"))

    @property
    def statistics(self) -> LocalStatistics | SynchronisedStatistics:
        """The object that adds batches to the averages: of this process, or of all ranks."""
        if self.is_synchronised:
            return self._synchronised
        return self._local

    def wait_for_ranks(self) -> None:
        """Add the statistics that other ranks have sent in their last step; wait for them."""
        self._synchronised.settle()

    def measure_nothing(self, sites: Iterable[slice | None] = (None,)) -> None:
        """Take part in the other ranks' step without rows of one's own, see `Plugin.join`.

        Args:
            sites: The columns of each site; None is all of them. Sites that share columns or gates
                are measured once.
        """
        if not self.is_synchronised:
            return
        measured = []
        for columns in sites:
            block = self.block_of(columns)
            joint = self.joint_of(block.columns)
            if joint is not None and columns != joint.members[-1]:
                continue  # the others measure it with the last of its sites
            if joint is not None:
                block = self.block_of(joint.columns)
            if block not in measured:
                measured.append(block)
                self._synchronised.add_nothing(self, block)

    # State

    @property
    def moved(self) -> bool:
        """Whether any gate that is not protected has left its start."""
        theta = ranks.full(self.theta.detach())
        init = self.settings.init
        rounded = torch.tensor(init, dtype=torch.float32)  # where a float64 module may have started
        rounded = rounded.to(theta)
        return bool(((theta != rounded) & (theta != init) & (self.free > 0)).any())

    @property
    def ways(self) -> tuple[float, float]:
        """How far theta has moved from its start: the farthest one down, and the farthest up."""
        way = (ranks.full(self.theta.detach()) - self.settings.init) * (self.free > 0)
        return max(0.0, float(-way.min())), max(0.0, float(way.max()))

    @property
    def warming_up(self) -> bool:
        """Whether the gates are still held at 1; the device is queried only while they may be."""
        if self._warm_up_ahead and self.fields is not None:
            reached = self.steps > 0  # of several sites one may never be called
            warm = reached & (self.steps <= self.settings.warmup)
            self._warm_up_ahead = bool(warm.any()) or not bool(reached.any())
        return self._warm_up_ahead

    def unmeasured(self) -> list[str]:
        """Return the fields that no training batch has passed, or not at all of their places."""
        seen = (self.steps > 0)[self.field_gate].tolist()
        names = self.known_fields().names
        return [name for name, has_passed in zip(names, seen, strict=True) if not has_passed]

    def note_pressure(self) -> None:
        """Note that something presses on the gates, so that useless ones can close."""
        if not self.is_pressed:  # a compiler would have to write back an assignment
            self.is_pressed = True

    @contextmanager
    def masked(self, kept: Iterable[str]) -> Iterator[None]:
        """Let every field that is not in `kept` be its running mean; the others are as in eval().

        Nested contexts add up: a field is kept if all of them keep it.
        """
        fields = self.known_fields()
        unmeasured = self.unmeasured()
        if unmeasured:
            names = "the fields" if len(unmeasured) == len(fields) else f"{unmeasured}"
            raise FieldError(
                f"{self.context.place} has no means to put in place of {names}: "
                "no training batch has passed. Train first."
            )
        mask = torch.zeros(fields.dims, dtype=torch.bool)
        for name in kept:
            for columns in self.columns_of(name):
                mask[columns] = True
        mask = mask.to(self.theta.device)
        outer = self._mask
        self._mask = mask if outer is None else mask & outer
        try:
            yield
        finally:
            self._mask = outer

    # Copies and checkpoints

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow `.to()`, but stay in float32: bfloat16 would lose a step of 1e-3 on theta = 1."""

        def convert(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            if converted.dtype in SHORT_FLOATS:
                return tensor.to(converted.device)
            return converted

        self.wait_for_ranks()
        super()._apply(convert, recurse)  # type: ignore[no-untyped-call]
        return self

    def _replicate_for_data_parallel(self) -> Self:
        replica: Self = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica.context = self.context.copy()  # each replica runs in a thread of its own
        replica.context.learn_with(self.context.learner)
        return replica

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what ends with its batch or process: the pass, the mask, the group of ranks."""
        self.wait_for_ranks()
        outside_a_pass = {"context": self.context.copy(), "_mask": None, "process_group": None}
        return {**self.__dict__, **outside_a_pass}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Guard the theta of a copy or of an unpickled module, which is its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        guard(self)

    def get_extra_state(self) -> Tensor:
        """Return the fields as the bytes of a JSON text, so that a checkpoint names its gates."""
        records = None if self.layout is None else self.layout.to_json()
        return torch.frombuffer(bytearray(json.dumps(records).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Do nothing: `_load_from_state_dict` has read it."""

    def _save_to_state_dict(self, *rest: Any) -> None:
        self.wait_for_ranks()
        super()._save_to_state_dict(*rest)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}_extra_state")
        if saved is not None:
            records = json.loads(bytes(saved.tolist()))
            saved_layout = None if records is None else Layout.from_json(records)
            if self.fields is None and saved_layout is not None:
                self.lay_out(saved_layout)
            elif saved_layout is not None and not saved_layout.is_alike(self.known_layout()):
                error_msgs: list[str] = rest[-1]
                error_msgs.append(
                    f"The checkpoint's gates belong to {saved_layout!r}, but {self.context.place} "
                    f"has {self.layout!r}."
                )
                return
        self._warm_up_ahead = self.settings.warmup > 0
        self._synchronised.restart()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """Return the fields and the settings that matter, for print(model)."""
        if self.fields is None:
            return "fields from the first batch"
        kind = "adaptive=False"
        if self.settings.adaptive:
            kind = f"divergence={self.settings.divergence!r}"
        size = f"{len(self.fields)} fields, {self.fields.dims} dimensions"
        return f"{size}, alpha={self.settings.alpha}, {kind}"
