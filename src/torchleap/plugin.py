"""attach -> Plugin: LeAP on somebody else's model, in place and reversibly."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any, Literal, Unpack, overload

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ._common.checks import check_arguments
from ._common.errors import AttachError, FieldError, SelectionError, SurgeryError
from ._common.text import plural
from .distributed.fsdp import units, unsharded
from .fields import Field, Fields
from .gates.held_out import held_out, rest
from .gates.leap import LeAP
from .gates.learner import GateLearner
from .gates.optimizer import GateOptimizer
from .gates.path_trainer import STEPS, PathTrainer
from .gates.price_window import PriceWindow, WindowTrainer
from .gates.relative_costs import PriceBy
from .gates.settings import SettingsByName, with_settings_in_signature
from .gates.statistics import JOINED
from .gates.summary import progress, table_of, why_none_closed, why_none_moved
from .gates.trainer import GateTrainer
from .selection import Path, Rule, Selection, select
from .sites.calls import Call, as_call, few_rows, on_device
from .sites.model import ModelHooks, hooks_of, sites_of
from .sites.notation import Place, Side, read_notation
from .sites.placement import put_into, take_out_of
from .sites.site import Site
from .surgery import Fill, Plan, make_plan
from .surgery.labels import check_labels
from .surgery.trial.deadline import PLAN_SECONDS, plan_within

Places = str | Place | Sequence[str | Place]


@with_settings_in_signature
def attach(
    model: nn.Module,
    fields: Fields | Mapping[str, int | Places] | Iterable[Field] | None = None,
    *,
    at: Places | Mapping[str | Place, Mapping[str, int]] = "",
    side: Side = "input",
    gates: LeAP | None = None,
    example: Any = None,
    **settings: Unpack[SettingsByName],
) -> "Plugin":
    """Put learnable gates into a model, in place; `Plugin.detach()` undoes it.

    Args:
        model: The model, before it is wrapped (DDP) or sharded (FSDP2).
        fields: The fields of the columns, in their order. They may be left out where the site
            receives a dict name -> (B, d): names and widths then come from `example` or from the
            first batch.
            A field that the model reads at several places has its names here instead of a width:
            {"item": ["deep.item", tl.Place("linear", side="input")]}, with an `example`.
        at: The name of a submodule, as in `model.named_modules()`; "" is the model itself. A list
            names several sites: those that receive one and the same tensor are gated once, the
            columns of the others are gated together, in the order of the list. A dict gives the
            widths of the fields at each place, in the order of the columns:
            {"embedding": {"user": 4, "item": 4}, "linear": {"item": 1}}. A name at several places
            is one field: one gate, and one permutation in each step.
        side: Whether the "input" or the "output" of the submodule is gated; see also `Place`.
        gates: A ready `LeAP`, in place of `fields` and settings.
        example: One batch, as the model takes it (a tuple is several arguments), to check
            everything at once, also whether the columns of each field are moved by the input of
            its name; None checks at the first batch.
        settings: Those of `LeAP`, by name.

    >>> model = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> attach(model, {"user_id": 8, "age": 1}, at="0")
    LeAP on 2 fields, 9 dimensions, at '0' (input): gates not moved yet
    """
    if gates is not None and (fields is not None or settings):
        raise AttachError(
            "Expected gates= or fields and settings, but found both. A ready LeAP brings its own."
        )
    notation = read_notation(fields, at, side)
    if gates is not None and notation.is_by_place:
        raise AttachError(
            "Expected settings by name where places name their fields, but found ready gates=, "
            "whose columns may have another order. Leave out gates=."
        )
    if gates is None:
        gates = LeAP(None if notation.is_by_place else notation.fields, **settings)
    sites = put_into(model, notation, gates, example)
    plugin = Plugin(model, gates, sites)
    if example is not None:
        plugin._refuse_wrong_labels(example)
    return plugin


def attached(model: nn.Module) -> "Plugin":
    """Return the plug-in of a model that has gates: of a copy, or of an unpickled model."""
    found = next(sites_of(model), None)
    if found is None:
        raise AttachError("This model has no gates. Call attach() first.")
    module, site = found
    return Plugin(model, site.gates(module), site.siblings)


class Plugin:
    """Train the gates of an attached model, select fields by them, and cut the model to size.

    Args:
        model: The attached model.
        gates: The gates in it.
        sites: Where they are.
    """

    def __init__(self, model: nn.Module, gates: LeAP, sites: tuple[Site, ...]) -> None:
        self.model = model
        self.gates = gates
        self.sites = sites
        self._path_trainer: PathTrainer | None = None
        self._has_checked_labels = False

    @property
    def fields(self) -> Fields:
        """The fields that have gates."""
        return self.gates.known_fields()

    # Training the gates

    @overload
    def trainer(
        self,
        steps: int | None = None,
        *,
        strength: float | None = 0.4,
        lr: float | None = None,
        optimism: float = 0.25,
    ) -> GateTrainer: ...
    @overload
    def trainer(
        self,
        steps: int | None = None,
        *,
        path: Literal[True],
        optimism: float = 0.25,
        price_by: PriceBy = "field",
        batches: int | None = None,
    ) -> PathTrainer: ...
    @overload
    def trainer(self, *, price: PriceWindow) -> WindowTrainer: ...
    def trainer(
        self,
        steps: int | None = None,
        *,
        path: bool = False,
        strength: float | None = 0.4,
        lr: float | None = None,
        optimism: float = 0.25,
        price_by: PriceBy = "field",
        batches: int | None = None,
        price: PriceWindow | None = None,
    ) -> GateTrainer | PathTrainer | WindowTrainer:
        """Return the recommended way to train the gates: `trainer.step()` after each model step.

        It owns the schedule: how fast gates move, a pressure or a price that rises, and steps on
        the model's own batch or on held-out rows. No other optimizer moves the gates meanwhile.

        Args:
            steps: How many steps are planned; None is a stream without end. With `path=True` the
                steps in which the price rises through all scales, 1,300 by default.
            path: Whether gates close one after the other under a rising price, so that
                `plugin.path()` has the worth of each field; see `PathTrainer`.
            strength: The full pressure, without units: one value is meant to serve every data set.
                None is the paper's penalty. A price uses neither this nor lr.
            lr: The learning rate of the gates; None derives it from the planned steps.
            optimism: How much memorised train rows count against a field in held-out steps.
            price_by: What a gate pays for on a path: "field", "dims" or "cost".
            batches: How many different held-out batches a path has; None is a stream.
            price: For a stream, a price that rises and falls again and again: `WindowTrainer`.
        """
        if price is not None:
            alone = "price is for a stream without end: leave out steps and path"
            check_arguments({alone: steps is None and not path})
            return WindowTrainer(self.model, self.gates, price)
        if not path:
            return GateTrainer(
                self.model, self.gates, steps=steps, strength=strength, lr=lr, optimism=optimism
            )
        self._path_trainer = PathTrainer(
            self.model,
            self.gates,
            steps=STEPS if steps is None else steps,
            optimism=optimism,
            price_by=price_by,
            batches=batches,
        )
        return self._path_trainer

    def learn(
        self, steps: int | None = None, *, strength: float = 0.4, lr: float | None = None
    ) -> GateLearner:
        """Let the gates train themselves: for training loops that cannot be edited.

            plugin = tl.attach(model, fields, at="embedding", side="output")
            plugin.learn(steps=len(loader) * epochs)
            trainer.fit(model, loader)  # of any library
            selection = plugin.select()

        The gates step at the end of each backward pass of the model. Neither its loss nor its
        optimizer is needed, and weight decay, clipping and an L2 penalty do not reach the gates.
        They learn from the batches of the model, so that several epochs on the same rows keep
        fields that help to memorise them; `trainer` can use held-out rows. torch.compile leaves
        the gates to Python, and refuses fullgraph=True; with `trainer` it compiles them too.

        Args:
            steps: How many backward passes are planned; None is a stream without end.
            strength: The full pressure, without units.
            lr: The learning rate of the gates; None derives it from the planned steps.
        """
        return GateLearner(self.model, self.gates, steps=steps, strength=strength, lr=lr)

    def path(self, metric: str = "metric") -> Path:
        """Return the worth of each field and the points of the path, see `PathTrainer`.

        Args:
            metric: The name of the metric that `trainer.add_point` was called with.
        """
        if self._path_trainer is None:
            raise SelectionError(
                "plugin.path() needs a path, but the gates were not trained on one. Train with "
                "trainer = plugin.trainer(path=True)."
            )
        return self._path_trainer.path(metric)

    def penalty(self) -> Tensor:
        """Return the paper's penalty, the sum of lambda_i * g_i; only gates get its gradient."""
        return self.gates.penalty()

    def parameter_groups(self, *, gate_lr: float) -> list[dict[str, Any]]:
        """Return parameter groups for any optimizer: the model's, and the gates' beside them.

        Gates get no weight decay in any case, see `torchleap.gates.guard`.

            optimizer = torch.optim.AdamW(plugin.parameter_groups(gate_lr=1e-2), lr=1e-3)

        Args:
            gate_lr: The learning rate of the gates.
        """
        gates = {"params": [self.gates.theta], "lr": gate_lr, "weight_decay": 0.0}
        return [{"params": self.model_parameters()}, gates]

    def model_parameters(self) -> list[nn.Parameter]:
        """Return all parameters of the model but the gates."""
        rest(self.model, self.gates)
        return [p for p in self.model.parameters() if p is not self.gates.theta]

    def optimizer(
        self, strength: float = 0.4, lr: float = 2e-3, optimism: float = 0.0
    ) -> GateOptimizer:
        """Return an optimizer over the gates alone, whose pressure replaces `penalty()`.

        `trainer()` adds a schedule to it.

        Args:
            strength: The pressure, without units: one value is meant to serve every data set. A
                useless field's gate closes after about `init / (lr * strength)` steps.
            lr: The learning rate of the gates.
            optimism: How much memorised train rows count against a field, where gates learn from
                held-out rows; see `GateOptimizer`.
        """
        rest(self.model, self.gates)
        return GateOptimizer(self.gates, lr=lr, strength=strength, optimism=optimism)

    def held_out(self) -> AbstractContextManager[None]:
        """Let only the gates learn within this context: for rows that the model does not train on.

        Dropout is off, batch norm uses and keeps its running statistics, no other parameter
        receives a gradient, and gradients collected before are set aside: whatever optimizer steps
        in here, of the model only the gates move. With several ranks the gates' gradient is
        averaged over them; call the model itself, not its DDP wrapper. Step within the context: a
        gradient that no step uses is dropped. The gates' gradient on the train rows before it
        moves no gate; a `GateOptimizer` with `optimism` compares it with that on the rows in here.

            with plugin.held_out():
                (criterion(model(x), y) + plugin.penalty()).backward()
                gate_optimizer.step()
        """
        return held_out(self.model, self.gates)

    @contextmanager
    def join(self, model: DistributedDataParallel, **settings: Any) -> Iterator[None]:
        """Let ranks whose rows end earlier not keep the others waiting, as `model.join()` does.

            with plugin.join(ddp):
                for batch in loader: ...

        Args:
            model: The attached model in its DDP wrapper.
            settings: Those of `DistributedDataParallel.join`.
        """
        name = "_check_global_requires_backward_grad_sync"
        check = getattr(model, name)

        def check_then_measure(is_joined_rank: bool) -> Any:
            """Run before each forward pass, and instead of it where there are no rows left."""
            answer = check(is_joined_rank)
            if is_joined_rank:
                self.gates.measure_nothing([site.columns for site in self.sites])
            return answer

        vars(model).update({name: check_then_measure, JOINED: True})
        try:
            with model.join(**settings):
                yield
        finally:
            vars(model).pop(name)
            vars(model).pop(JOINED)

    # Selecting and pruning

    def scores(self) -> dict[str, float]:
        """Return each field's gate, in field order; of sharded gates (FSDP2) on all ranks."""
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
        """Decide which fields to keep by one rule, see `torchleap.selection.select`.

        Args:
            threshold: Keep gates of at least this; 0.5 if no rule is given.
            share: Keep this fraction of the fields.
            dims: Keep at most so many dimensions.
            cost: Keep fields of at most this cost together.
        """
        rest(self.model, self.gates)
        can_move = self.gates.fields is not None and bool((self.gates.free > 0).any())
        if self.gates.fields is None or (can_move and not self.gates.moved):
            raise SelectionError(why_none_moved(self.gates))
        self._refuse_unmeasured()
        doubt = why_none_closed(self.gates)
        if doubt is not None:
            warnings.warn(doubt, stacklevel=2)
        return select(
            self.fields,
            self.scores(),
            Rule.of(threshold=threshold, share=share, dims=dims, cost=cost),
            method="leap" if self.gates.settings.adaptive else "leap_base",
            settings={**asdict(self.gates.settings), "seed": int(self.gates.seed)},
        )

    def _refuse_unmeasured(self) -> None:
        """Refuse to select if no training step has passed the gates of some fields."""
        names = self.gates.unmeasured()
        if not names or len(names) == len(self.fields):
            return
        columns = [one for name in names for one in self.gates.columns_of(name)]
        places = []
        for site in self.sites:
            own = site.columns
            if own is None or any(own.start < one.stop and one.start < own.stop for one in columns):
                places.append(site.label)
        raise SelectionError(
            f"{' and '.join(places)}: no training step has passed the gates of {names}, as the "
            "model has not called all of these places in one forward pass. Choose places that it "
            "calls, or leave out these fields."
        )

    @contextmanager
    def masked(self, selection: Selection) -> Iterator[None]:
        """Let the model compute what it would without the dropped fields: each is its mean.

        Kept fields are mixed with their mean by their gate, as in eval(): the scale that the model
        has learned to read.
        """
        self._check(selection)
        with self.gates.masked(selection.kept):
            yield

    def plan(
        self,
        selection: Selection,
        *,
        fill: Fill = "mean",
        example: Any = None,
        time_limit: float | None = PLAN_SECONDS,
    ) -> Plan:
        """Return every cut, its reasons and savings; `Plan.apply()` makes the cuts.

        Nothing is changed. A plan can be applied as long as the model does not change.

        Args:
            selection: The fields to keep.
            fill: What a dropped field is where it cannot be folded away: its "mean", which is
                exact, or "zero", which is smaller where fields are multiplied, but exact only
                after fine-tuning; the plan then reports the change.
            example: A batch to check with, as the model takes it; None uses a few rows of the
                first batch.
            time_limit: How many seconds it may take; None is no limit. Where following the model
                takes too long, constants are fed instead, and a note reports it.
        """
        self._check(selection)
        # Otherwise the means would change below, by the last step.
        self.gates.wait_for_ranks()
        with plan_within(time_limit):
            call = on_device(self._example(example), self.gates.theta.device)
            plain = attached(unsharded(self.model)) if units(self.model) else self
            if not self._has_checked_labels:
                self._has_checked_labels = True
                labels = check_labels(plain.model, plain.gates, plain.sites, call)
                for problem in (*labels.errors, *labels.doubts):
                    warnings.warn(problem, stacklevel=2)
            return make_plan(
                plain.model, plain.gates, plain.sites, selection, call, fill, source=self.model
            )

    def prune(
        self,
        selection: Selection,
        *,
        fill: Fill = "mean",
        example: Any = None,
        time_limit: float | None = PLAN_SECONDS,
    ) -> nn.Module:
        """Return a new model without the dropped fields and without gates; this one is unchanged.

        It computes what `masked(selection)` does: means and gates are folded into its weights.
        Optimizers, schedulers and lists of weights that are attributes of the model belong to the
        new weights in the new model; for others `torchleap.carry_over` brings the optimizer along.
        For a model that FSDP2 has sharded, all ranks have to call this, and each gets the complete
        one.

        Args:
            selection: The fields to keep.
            fill: As in `plan`.
            example: As in `plan`.
            time_limit: As in `plan`.
        """
        return self.plan(selection, fill=fill, example=example, time_limit=time_limit).apply()

    def _example(self, given: Any) -> Call:
        """Return the batch to check surgery with: the given one, or a few rows of the first."""
        hooks = [hook for _, hook in hooks_of(self.model)]
        if not all(site in hooks for site in self.sites):
            raise SurgeryError(
                "The model is no longer attached to this plugin, so there is nothing to prune. "
                "Attach and train it."
            )
        if given is not None:
            return few_rows(as_call(given), rows=None)
        for hook in hooks:
            if isinstance(hook, ModelHooks) and hook.sites == self.sites and hook.example:
                return hook.example
        raise SurgeryError(
            "No batch has passed the model since it was attached or compiled: "
            "give one, example=batch."
        )

    def _refuse_wrong_labels(self, example: Any) -> None:
        """Refuse fields whose columns are moved by other inputs, and detach."""
        self._has_checked_labels = True
        labels = check_labels(self.model, self.gates, self.sites, as_call(example))
        if labels.errors:
            self.detach()
            raise FieldError(" ".join(labels.errors))
        for doubt in labels.doubts:
            warnings.warn(doubt, stacklevel=3)

    def _check(self, selection: Selection) -> None:
        found = (selection.fields.names, selection.fields.widths)
        if found != (self.fields.names, self.fields.widths):
            raise SelectionError(
                f"The selection is for {selection.fields}, but the model has {self.fields}. "
                "Use plugin.select()."
            )

    def detach(self) -> None:
        """Take the gates out: the model is again exactly what it was.

        Scores and selection remain available here.
        """
        take_out_of(self.model, self.sites)

    # In words

    def __repr__(self) -> str:
        rest(self.model, self.gates)
        place = _shown(self.sites)
        if self.gates.fields is None:
            return f"LeAP at {place}: fields come from the first batch"
        size = f"{plural(len(self.fields), 'field')}, {plural(self.fields.dims, 'dimension')}"
        return f"LeAP on {size}, at {place}: {progress(self.gates)}"

    def __str__(self) -> str:
        rest(self.model, self.gates)
        if self.gates.fields is None or not self.gates.moved:
            return repr(self)
        return f"{self!r}\n{table_of(self.gates)}"


def _shown(sites: tuple[Site, ...]) -> str:
    """Return the names of the sites, those of one side together."""
    by_side: dict[str, list[str]] = {}
    for site in sites:
        name = repr(site.at or "the model")
        by_side.setdefault(site.side, [])
        if name not in by_side[site.side]:
            by_side[site.side].append(name)
    return " and ".join(f"{', '.join(names)} ({side})" for side, names in by_side.items())
