"""attach -> Plugin: LeAP on somebody else's model, in place and reversibly."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from ._common.errors import AttachError, SelectionError, SurgeryError
from ._common.text import plural, table
from .distributed.fsdp import units, unsharded
from .fields import Field, Fields
from .gates.held_out import held_out, rest
from .gates.leap import LeAP
from .gates.module import BUFFERS
from .gates.optimizer import GateOptimizer
from .gates.settings import SettingsByName, with_settings_in_signature
from .gates.statistics import JOINED
from .gates.trainer import GateTrainer
from .selection import Selection, select
from .sites.site import (
    HIDDEN,
    Call,
    Side,
    Site,
    Whole,
    as_call,
    few_rows,
    fields_of,
    find_module,
    hooks_of,
    same_tensor,
    site_at,
    sites_of,
)
from .surgery import Fill, Plan, prepare


@with_settings_in_signature
def attach(
    model: nn.Module,
    fields: Fields | Mapping[str, int] | Iterable[Field] | None = None,
    *,
    at: str | Sequence[str] = "",
    side: Side = "input",
    gates: LeAP | None = None,
    example: Any = None,
    **settings: Unpack[SettingsByName],
) -> "Plugin":
    """Put learnable gates into a model, in place; `Plugin.detach()` undoes it. Build the optimizer afterwards.

    Args:
        fields: What the columns are. May be left out where the site carries a dict name -> (B, d): names and widths then come
            from `example` or from the first batch.
        at: The name of a submodule, as in `model.named_modules()`; "" is the model itself. A list names several sites: those
            that receive one and the same tensor are gated once, the columns of the others are gated together, in list order.
        side: Gate what enters the submodule, or what leaves it.
        gates: A ready `LeAP` in place of `fields` and settings.
        example: One batch, as the model takes it (a tuple is several arguments), to check everything at once.
        settings: Those of `LeAP`.

    >>> model = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> attach(model, {"user_id": 8, "age": 1}, at="0")
    LeAP on 2 fields, 9 dimensions, at '0' (input): gates not moved yet
    """
    names = list(at) if isinstance(at, Sequence) and not isinstance(at, str) else [at]
    if gates is not None and (fields is not None or settings):
        raise AttachError(
            "Expected gates= or fields and settings, but found both. A ready LeAP brings its own."
        )
    gates = LeAP(fields, **settings) if gates is None else gates
    sites = _plan_sites(model, names, side, gates)
    if example is not None:
        _try_out(model, sites, gates, example)
    elif gates.fields is None and len(sites) > 1:
        raise AttachError(
            "Several sites need fields=, or example= to learn them from: the first batch comes too late for all."
        )
    _follow(model, sites, gates)
    gates.train(find_module(model, sites[0].at).training)
    gates.context.name_place(" and ".join(site.label for site in sites))
    for site in sites:
        site.hold(model, gates)
    whole = Whole(sites[0].siblings, sites[0].path)
    whole.example = None if example is None else few_rows(as_call(example))
    whole.hold(model)
    _hide_buffers(model, whole.path)
    return Plugin(model, gates, tuple(sites))


def attached(model: nn.Module) -> "Plugin":
    """The plugin of a model that has gates: for a copy of an attached model, or one that was unpickled."""
    found = list(sites_of(model))
    if not found:
        raise AttachError("This model has no gates. Call attach() first.")
    module, site = found[0]
    return Plugin(model, site.gates(module), site.siblings)


class Plugin:
    """The handle of an attached model: penalty, scores, selection; and the way back."""

    def __init__(self, model: nn.Module, gates: LeAP, sites: tuple[Site, ...]) -> None:
        self.model = model
        self.gates = gates
        self.sites = sites

    @property
    def fields(self) -> Fields:
        """The fields that are gated."""
        return self.gates.known_fields()

    def penalty(self) -> Tensor:
        """What to add to the loss: the sum of lambda_i * g_i, with gradient on the gates alone."""
        return self.gates.penalty()

    def scores(self) -> dict[str, float]:
        """Each field's gate, in field order; where FSDP2 shards the gates, all ranks have to ask."""
        rest(self.model, self.gates)
        return self.gates.scores()

    def select(
        self,
        threshold: float | None = None,
        *,
        share: float | None = None,
        dims: int | None = None,
        cost: float | None = None,
    ) -> Selection:
        """Decide which fields to keep by one rule, a threshold of 0.5 if none is given; see `torchleap.selection.select`."""
        rest(self.model, self.gates)
        if self.gates.fields is None or (
            bool((self.gates.free > 0).any()) and not self.gates.moved
        ):
            raise SelectionError(self._why_no_gate_moved())
        return select(
            self.fields,
            self.scores(),
            threshold=threshold,
            share=share,
            dims=dims,
            cost=cost,
            method="leap" if self.gates.settings.adaptive else "leap_base",
            settings={**asdict(self.gates.settings), "seed": int(self.gates.seed)},
        )

    def parameter_groups(self, *, gate_lr: float) -> list[dict[str, Any]]:
        """Parameter groups for any optimizer: the model's, with its defaults, and the gates', with a learning rate of their own.

        Gates get no weight decay in any case, see `torchleap.gates.guard`.

            optimizer = torch.optim.AdamW(plugin.parameter_groups(gate_lr=1e-2), lr=1e-3)
        """
        return [
            {"params": self.model_parameters()},
            {"params": [self.gates.theta], "lr": gate_lr, "weight_decay": 0.0},
        ]

    def model_parameters(self) -> list[nn.Parameter]:
        """All parameters of the model but the gates."""
        rest(self.model, self.gates)
        return [p for p in self.model.parameters() if p is not self.gates.theta]

    def optimizer(
        self, strength: float = 0.4, lr: float = 2e-3, optimism: float = 0.0
    ) -> GateOptimizer:
        """An optimizer over the gates alone, whose closing pressure takes the place of `penalty()`.

        Args:
            strength: How strongly gates are pushed shut, without units: one value is meant to serve every data set. A useless
                field's gate closes after about `init / (lr * strength)` steps.
            optimism: How much memorised train rows count against a field, where gates learn from held-out rows; see
                `GateOptimizer`.
        """
        rest(self.model, self.gates)
        return GateOptimizer(self.gates, lr=lr, strength=strength, optimism=optimism)

    def trainer(
        self,
        steps: int | None = None,
        *,
        strength: float | None = 0.4,
        lr: float | None = None,
        optimism: float = 0.25,
    ) -> GateTrainer:
        """Return the recommended way to train the gates: `trainer.step()` after each model step.

        It owns the schedule: the learning rate of the gates, a pressure that rises, and steps on
        the model's own batch or on held-out rows. No other optimizer moves the gates meanwhile.

        Args:
            steps: How many steps are planned; None is a stream without end.
            strength: The full pressure, without units: one value is meant to serve every data set.
                None is the paper's penalty.
            lr: The learning rate of the gates; None derives it from the planned steps.
            optimism: How much memorised train rows count against a field in held-out steps.
        """
        return GateTrainer(
            self.model, self.gates, steps=steps, strength=strength, lr=lr, optimism=optimism
        )

    def held_out(self) -> AbstractContextManager[None]:
        """Within this context only the gates learn: for a step on rows that the model does not train on.

        Dropout is off, batch norm uses and keeps its running statistics, no other parameter receives a gradient, and
        gradients collected before are set aside: whatever optimizer steps in here, of the model only the gates move. With several
        ranks the gates' gradient is averaged over them; call the model itself, not its DDP wrapper. Step within
        the context: what is not stepped in it is dropped. The gates' gradient on the train rows before it moves no gate; a
        `GateOptimizer` with `optimism` compares it with that on the rows in here.

            with plugin.held_out():
                (criterion(model(x), y) + plugin.penalty()).backward()
                gate_optimizer.step()
        """
        return held_out(self.model, self.gates)

    @contextmanager
    def join(self, model: DistributedDataParallel, **settings: Any) -> Iterator[None]:
        """What `model.join()` is without gates: ranks whose rows end earlier do not keep the others waiting.

            with plugin.join(ddp):
                for batch in loader: ...

        Args:
            model: The attached model in its DDP wrapper.
            settings: Those of `DistributedDataParallel.join`.
        """
        asks_joined = model._check_global_requires_backward_grad_sync

        def ask_then_measure(is_joined_rank: bool) -> Any:
            """Called before each forward pass, and in its place where there are no rows left."""
            answer = asks_joined(is_joined_rank)  # type: ignore[no-untyped-call]
            if is_joined_rank:
                for site in self.sites:
                    self.gates.measure_nothing(site.columns)
            return answer

        vars(model).update(
            {"_check_global_requires_backward_grad_sync": ask_then_measure, JOINED: True}
        )
        try:
            with model.join(**settings):
                yield
        finally:
            for name in ("_check_global_requires_backward_grad_sync", JOINED):
                vars(model).pop(name)

    @contextmanager
    def masked(self, selection: Selection) -> Iterator[None]:
        """Within this context the model computes what it would without the dropped fields: each is its running mean.

        Kept fields are mixed with their mean by their gate, as in eval(): the scale that the model has learnt to read.
        """
        self._check(selection)
        with self.gates.masked(selection.kept):
            yield

    def plan(self, selection: Selection, *, fill: Fill = "mean", example: Any = None) -> Plan:
        """What `prune` would do: every cut, what cannot be cut and why, what it saves. Nothing is changed.

        Args:
            fill: What a dropped field is where it cannot be folded away: its "mean", which is exact, or "zero", which is
                smaller where fields are multiplied, but exact only after fine-tuning; the plan then tells the change.
            example: A batch to check with, as the model takes it; a few rows of the first batch if left out.
        """
        return self._prepare(selection, fill, example)[0]

    def prune(self, selection: Selection, *, fill: Fill = "mean", example: Any = None) -> nn.Module:
        """A new model without the dropped fields and without gates; this one is left alone. Arguments as in `plan`.

        It computes what `masked(selection)` does: means and gates are folded into its weights. `torchleap.carry_over` brings
        the optimizer along for fine-tuning. Of a model that FSDP2 has sharded all ranks have to ask, and each gets the whole one.
        """
        return self._prepare(selection, fill, example)[1]()

    def _prepare(
        self, selection: Selection, fill: Fill, example: Any
    ) -> tuple[Plan, Callable[[], nn.Module]]:
        self._check(selection)
        hooks = [hook for _, hook in hooks_of(self.model)]
        if not all(site in hooks for site in self.sites):
            raise SurgeryError(
                "The model is no longer attached to this plugin, so there is nothing to prune. Attach and train it."
            )
        remembered = next(
            (
                hook.example
                for hook in hooks
                if isinstance(hook, Whole) and hook.sites == self.sites
            ),
            None,
        )
        call = remembered if example is None else few_rows(as_call(example), rows=None)
        if call is None:
            raise SurgeryError(
                "No batch has passed the model since it was attached or compiled: give one, example=batch."
            )
        plain = attached(unsharded(self.model)) if units(self.model) else self
        return prepare(
            plain.model, plain.gates, plain.sites, selection, self._on_device(call), fill
        )

    def _on_device(self, call: Call) -> Call:
        """The example where the model is now."""
        moved: Call = tree_map(
            lambda leaf: leaf.to(self.gates.theta.device) if isinstance(leaf, Tensor) else leaf,
            call,
        )
        return moved

    def _check(self, selection: Selection) -> None:
        if (selection.fields.names, selection.fields.widths) != (
            self.fields.names,
            self.fields.widths,
        ):
            raise SelectionError(
                f"The selection is for {selection.fields}, but the model has {self.fields}. Use plugin.select()."
            )

    def detach(self) -> None:
        """Take the gates out: the model is again exactly what it was. Scores and selection remain available here."""
        for module, hook in list(hooks_of(self.model)):
            owners = hook.siblings if isinstance(hook, Site) else hook.sites
            if owners == self.sites:  # another plugin may have come after this one
                hook.release(module)
                if isinstance(hook, Whole):
                    _show_buffers(module, hook.path)

    def __repr__(self) -> str:
        rest(self.model, self.gates)
        place = (
            ", ".join(repr(site.at or "the model") for site in self.sites)
            + f" ({self.sites[0].side})"
        )
        if self.gates.fields is None:
            return f"LeAP at {place}: fields come from the first batch"
        if self.gates.warming_up:
            state = (
                f"warming up, batch {int(self.gates.steps.max())} of {self.gates.settings.warmup}"
            )
        elif not self.gates.moved:
            state = "gates not moved yet"
        else:
            scores = list(self.scores().values())
            state = f"{sum(score >= 0.5 for score in scores):,} open, {sum(score < 0.5 for score in scores):,} closed"
        size = f"{plural(len(self.fields), 'field')}, {plural(self.fields.dims, 'dimension')}"
        return f"LeAP on {size}, at {place}: {state}"

    def __str__(self) -> str:
        rest(self.model, self.gates)
        if self.gates.fields is None or not self.gates.moved:
            return repr(self)
        columns = [self.gates.divergences(), self.gates.sparsity(), self.gates.weights()]
        divergence, sparsity, price = (column[self.gates.field_gate].tolist() for column in columns)
        rows = zip(self.fields, self.scores().values(), divergence, sparsity, price, strict=True)
        cells = [
            [
                f.name,
                f"{score:.4f}",
                str(f.width),
                f"{div:.4g}",
                f"{share:.1%}",
                "protected" if f.protected else f"{cost:.2e}",
            ]
            for f, score, div, share, cost in sorted(rows, key=lambda row: (-row[1], row[0].name))
        ]
        return f"{self!r}\n{table(['field', 'gate', 'width', 'divergence', 'sparsity', 'penalty'], cells)}"

    def _why_no_gate_moved(self) -> str:
        steps = 0 if self.gates.fields is None else int(self.gates.steps.max())
        if not steps:
            return (
                "select() needs trained gates, but no training batch has passed them. Train first, with the model in train(); "
                "a model that was compiled before attach() has to be compiled again."
            )
        if self.gates.warming_up:
            return f"select() needs trained gates, but they are still warming up: batch {steps} of warmup={self.gates.settings.warmup}."
        return (
            f"select() needs trained gates, but after {plural(steps, 'training step')} none has moved. "
            "The optimizer was probably built before attach(), so it does not hold the gates: build it afterwards. "
            "Also add plugin.penalty() to the loss, or use plugin.optimizer()."
        )


def _plan_sites(model: nn.Module, names: list[str], side: Side, gates: LeAP) -> list[Site]:
    """All checks that need no batch; nothing is changed."""
    if units(model):
        raise AttachError(
            "This model is sharded already, so its ranks would not share the gates. attach() before fully_shard()."
        )
    if side not in get_args(Side):
        raise AttachError(f"side must be 'input' or 'output', but is {side!r}.")
    if not names or len(set(names)) < len(names):
        raise AttachError(f"at= must name one or more submodules, each once, but is {names}.")
    for _, site in sites_of(model):
        raise AttachError(
            f"This model has gates already, {site.label}. Call detach() on its plugin first."
        )
    if any(module is gates for module in model.modules()):
        raise AttachError(
            "These gates are a part of the model already; attach() needs gates of their own."
        )
    if len({id(find_module(model, name)) for name in names}) < len(names):
        raise AttachError(f"at={names} names one submodule twice, under two names. Name it once.")
    sites = [site_at(model, name, side) for name in names]
    for site in sites:
        site.siblings = tuple(sites)
    return sites


def _try_out(model: nn.Module, sites: list[Site], gates: LeAP, example: Any) -> None:
    """Run the example once, without gates, and let every site see what will arrive there."""
    seen: dict[str, Any] = {}
    for site, value in _watch(model, sites, example):
        seen.setdefault(site.at, value)
    unseen = [site.at for site in sites if site.at not in seen]
    if unseen:
        raise AttachError(
            f"The model never calls {' and '.join(map(repr, unseen))} on the example. Choose another at=."
        )
    owners = {
        site: next(other for other in sites if same_tensor(seen[other.at], seen[site.at]))
        for site in sites
    }
    if gates.fields is None:
        found = [fields_of(seen[site.at], site.label) for site in sites if owners[site] is site]
        gates.lay_out(Fields([field for fields in found for field in fields]))
    trial = LeAP(gates.arriving).eval()
    _follow(model, sites, trial)
    place = " and ".join(site.label for site in sites)
    trial.context.name_place(place)
    gates.context.name_place(place)
    for site in sites:
        if len(sites) == 1:
            site.gate_value(trial, seen[site.at])
        else:
            own = owners[site] is site
            site.columns = (
                site.find_columns(trial.known_fields(), seen[site.at])
                if own
                else owners[site].columns
            )


def _watch(model: nn.Module, sites: list[Site], example: Any) -> list[tuple[Site, Any]]:
    """What arrives at each site when the model sees the example; the model is left as it was."""
    seen: list[tuple[Site, Any]] = []
    handles = []
    for site in sites:
        module = find_module(model, site.at)
        if site.side == "input":

            def see_input(_: Any, args: Any, kwargs: Any, site: Site = site) -> None:
                seen.append((site, site.first_argument(args, kwargs)[0]))

            handles.append(module.register_forward_pre_hook(see_input, with_kwargs=True))
        else:

            def see_output(_: Any, args: Any, output: Any, site: Site = site) -> None:
                seen.append((site, output))

            handles.append(module.register_forward_hook(see_output))
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            model.eval()(*example) if isinstance(example, tuple) else model.eval()(example)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    return seen


def _follow(model: nn.Module, sites: list[Site], gates: LeAP) -> None:
    """Put the gates on the device of their site, or else of the model, in its precision or better."""
    site = find_module(model, sites[0].at)
    for tensor in (*site.parameters(), *site.buffers(), *model.parameters(), *model.buffers()):
        if (
            tensor.is_floating_point() and not tensor.is_meta
        ):  # tables may be waiting for their place, which the gates are not
            precise = tensor.dtype == torch.float64  # promote_types knows no 8-bit floats
            gates.to(device=tensor.device, dtype=torch.float64 if precise else torch.float32)
            return


def _hide_buffers(model: nn.Module, path: tuple[str, ...]) -> None:
    """DDP would send the first rank's buffers to all in every step, means of all columns included; gates agree by themselves."""
    vars(model)[HIDDEN] = [*vars(model).get(HIDDEN, ()), *_buffer_names(path)]


def _show_buffers(model: nn.Module, path: tuple[str, ...]) -> None:
    """Undo `_hide_buffers`; what a user has told DDP to ignore stays ignored."""
    hidden = set(_buffer_names(path))
    others = [name for name in vars(model).pop(HIDDEN, ()) if name not in hidden]
    if others:
        vars(model)[HIDDEN] = others


def _buffer_names(path: tuple[str, ...]) -> list[str]:
    return [".".join((*path, name)) for name in BUFFERS]
