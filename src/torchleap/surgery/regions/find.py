"""Find the modules that can be cut by themselves, in the order in which the model calls them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..._common.errors import TorchleapError
from ..._common.strict import InexactError, raise_mistake
from ...gates.leap import LeAP
from ...sites.calls import Call
from ...sites.site import Site
from ..rules.facts import Facts
from ..trace.autocast import within_autocast
from ..trace.follow import by_module
from ..trace.hooks import has_hooks
from ..trace.tracer import Affine
from ..trial.compare import alike
from ..trial.deadline import OutOfTimeError, check_time, time_left, time_limit
from ..trial.examples import Examples
from ..write.build import Edits, as_pruned, build, joined
from ..write.feed import feed_at
from .cut import Given, Region, cut_region, is_inside
from .watch import Dyes, Pass, constants, watch

Dyed = tuple[Tensor, Tensor]  # which elements of a row are dyed, and the dyes
SEARCH_TIME = 0.6  # the fraction of the time that is left for the search


class Regions:
    """Finds the modules of one model that can be cut by themselves.

    Args:
        model: The attached model.
        gates: Its gates.
        sites: Where they sit.
        examples: The batches to trace the modules on.
        others: Further batches that the model takes.
        affine: Scale and shift of each column by the gates; the scale is 0 where it is dropped.
        check: Raises an error if a pruned model differs from the masked one.
    """

    def __init__(
        self,
        model: nn.Module,
        gates: LeAP,
        sites: tuple[Site, ...],
        examples: Examples,
        others: Sequence[Call],
        affine: Affine,
        check: Callable[[nn.Module], None],
    ) -> None:
        self.model = model
        self.gates = gates
        self.sites = sites
        self.by_module = by_module(model, sites)
        self.examples = examples
        self.batches = (*examples.calls, *others)
        self.affine = affine
        self.check = check
        self.tried: set[str] = set()
        self.found: list[Region] = []
        self.dyes = Dyes()
        self.dyed_affine = self._dyed_affine()
        self.dyed_outputs: dict[str, Dyed] = {}
        self.dyed_arguments: dict[str, dict[int | str, Dyed]] = {}

    def _dyed_affine(self) -> Affine:
        """Return the affine of the gates with dyes in place of the constants."""
        scale, shift = self.affine
        dyes = self.dyes.stand_for(shift[scale == 0])
        return scale, shift.masked_scatter(scale == 0, dyes.to(shift))

    def find(self, edits: Edits, aside: Sequence[str], given: Given) -> list[Region]:
        """Return the modules that are cut by themselves.

        Args:
            edits: What is changed already in the model.
            aside: The modules that are called as they are, in which to search; "" is the model.
            given: The constants that these receive.
        """
        self._dye_arguments(given)
        with suppress(OutOfTimeError), time_limit(time_left() * SEARCH_TIME):
            while self._extend(edits, aside):
                pass
        return self.found

    def _watch_dyed(self) -> list[Pass]:
        """Observe a model in which dyes stand for the constants."""
        model = made(self.model, self.gates, self.sites, self.dyed_affine, Edits(), True)
        for path, dyed in self.dyed_outputs.items():
            model.get_submodule(path).register_forward_hook(partial(_dye_output, dyed))
        for path, arguments in self.dyed_arguments.items():
            hook = partial(_dye_arguments, arguments)
            model.get_submodule(path).register_forward_pre_hook(hook, with_kwargs=True)
        return [watch(model, batch) for batch in self.examples.calls]

    def _extend(self, edits: Edits, aside: Sequence[str]) -> bool:
        """Cut one more module; return whether there was one."""
        present = self._make(edits, self.found)
        passes = [watch(present, batch) for batch in self.batches]
        in_training = watch(present, self.batches[0], training=True)
        dyed = self._watch_dyed()
        own = {path for path, _ in self.model.named_modules()}
        for path in passes[0].calls:
            check_time()
            inside = any(is_inside(path, each) and path != each for each in aside)
            covered = any(region.covers(path) for region in self.found)
            if path not in own or not inside or covered or path in self.tried:
                continue
            region = self._cut(path, passes, in_training, dyed)
            if region is not None and self._is_exact(region, edits, passes[0]):
                self._accept(region)
                return True
        return False

    def _accept(self, region: Region) -> None:
        """Cut a module; the constants that it passes on are constants for other modules."""
        self.found.append(region)
        if region.output is not None:
            self.dyed_outputs[region.path] = self._dyed(region.output)
        self._dye_arguments(region.given)

    def _dye_arguments(self, given: Given) -> None:
        for path, arguments in given.items():
            dyed = {key: self._dyed(facts) for key, facts in arguments.items()}
            self.dyed_arguments[path] = dyed

    def _dyed(self, facts: Facts) -> Dyed:
        return facts.const, self.dyes.stand_for(facts.value)

    def _make(self, edits: Edits, regions: Sequence[Region]) -> nn.Module:
        """Return the pruned model on the old weights, with these modules cut by themselves."""
        edits = joined(edits, *(region.edits for region in regions))
        sites = self.sites_left(edits, regions)
        model = made(self.model, self.gates, sites, self.affine, edits, True)
        return as_pruned(model, None, edits.graph)

    def sites_left(self, edits: Edits, regions: Sequence[Region]) -> tuple[Site, ...]:
        """Return the sites at which constants are fed: those outside of everything that is cut."""
        if edits.graph is not None:
            return ()
        left = []
        for site in self.sites:
            if not any(region.covers(site.at) for region in regions):
                left.append(site)
        return tuple(left)

    def _cut(
        self, path: str, passes: Sequence[Pass], in_training: Pass, dyed: Sequence[Pass]
    ) -> Region | None:
        """Cut a module by itself; None if it cannot be traced, or nothing of it can be cut."""
        module = self.model.get_submodule(path)
        if has_hooks(module) or not self._is_called_once(path, module, passes):
            return None
        parts = set(module.modules())
        sites = {each: there for each, there in self.by_module.items() if each in parts}
        observed = [*passes, in_training]
        if in_training.only_call(path) is None:
            observed = list(passes)
        known = constants(module, path, observed, dyed, self.dyes)
        if not sites and not known:
            return None
        settings = {each for one in observed for each in one.autocast.get(path, ())}
        if len(settings) > 1:
            return None
        self.tried.add(path)
        calls = [each.calls[path][0] for each in passes[: len(self.examples.calls)]]
        rows = self.examples.rows
        try:
            with within_autocast(*settings):
                region = cut_region(
                    self.model, path, self.gates, sites, calls, rows, self.affine, known
                )
        except Exception as error:  # whatever it is: the module is then called as it is
            check_time()
            raise_mistake(error)
            return None
        return region if region.is_smaller else None

    def _is_called_once(self, path: str, module: nn.Module, passes: Sequence[Pass]) -> bool:
        """Return whether each pass calls a module once, and what is inside only through it."""
        inside = [name for name, _ in module.named_modules(prefix=path) if name != path]
        for each in passes:
            if each.only_call(path) is None:
                return False
            for name in inside:
                if not all(path in around for around in each.around.get(name, [])):
                    return False
        return True

    def _is_exact(self, region: Region, edits: Edits, first: Pass) -> bool:
        """Return whether the model with one more module cut computes what the masked one does."""
        try:
            self.check(self._make(edits, [*self.found, region]))
        except TorchleapError as error:
            check_time()
            as_traced = alike(
                tree_leaves(region.traced.output()), tree_leaves(first.outputs[region.path][0])
            )
            if as_traced or not isinstance(error, InexactError):
                raise_mistake(error)
            return False
        return True


def _dye_output(dyed: Dyed, _: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Put dyes in place of the constants that a module returns."""
    return _with_dyes(dyed, output)


def _dye_arguments(dyed: dict[int | str, Dyed], _: nn.Module, args: Any, kwargs: Any) -> Any:
    """Put dyes in place of the constants that a module receives."""
    by_place = tuple(
        _with_dyes(dyed[place], value) if place in dyed else value
        for place, value in enumerate(args)
    )
    by_name = {
        name: _with_dyes(dyed[name], value) if name in dyed else value
        for name, value in kwargs.items()
    }
    return by_place, by_name


def _with_dyes(dyed: Dyed, value: Tensor) -> Tensor:
    const, dyes = dyed
    return torch.where(const.to(value.device), dyes.to(value), value)


def made(
    model: nn.Module,
    gates: LeAP,
    sites: tuple[Site, ...],
    affine: Affine,
    edits: Edits,
    shared: bool,
) -> nn.Module:
    """Return a copy of a model with edits, which is fed constants at some of its sites.

    Args:
        model: The attached model.
        gates: Its gates.
        sites: The sites at which constants are fed.
        affine: Scale and shift of each column by the gates.
        edits: What to change.
        shared: Whether unchanged weights are those of the model itself.
    """
    small = build(model, edits, shared=shared)
    feed_at(small, model, gates, sites, affine)
    return small
