"""The output of a TorchRec collection of embedding tables, as a site."""

from functools import partial
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from .._common.errors import AttachError
from ..distributed.torchrec import bags_of, is_collection
from ..fields import Fields
from ..gates.leap import LeAP
from .notation import Place
from .places import CHILD, find_module, home_beside, names_in, walk
from .site import Site


class CollectionSite(Site):
    """Gate the output of a collection of embedding tables.

    DistributedModelParallel replaces the collection, and loses everything that is registered on
    it. So the gates live beside it, in the module around it, and the hook is on the model. While
    the model runs, that hook puts another one on the collection.

    Args:
        place: The place of the collection in the model.
        model: The model.
        is_named: As in `Site`.
    """

    def __init__(self, place: Place, model: nn.Module, *, is_named: bool = False) -> None:
        super().__init__(place, find_module(model, place.at), is_named=is_named)
        self.held = (*home_beside(place.at, model), CHILD)
        self.armed: list[RemovableHandle] = []

    @property
    def path(self) -> tuple[str, ...]:
        """The names that lead from the model to the gates."""
        return self.held

    def hold(self, model: nn.Module, gates: LeAP) -> None:
        """Register the gates and the hooks."""
        if gates.fields is None:  # DDP has to know the number of gates before the first batch
            gates.lay_out(fields_of_collection(find_module(model, self.at), self.label))
        walk(model, self.held[:-1]).add_module(CHILD, gates)
        self.handles = [
            model.register_forward_pre_hook(self.arm),
            model.register_forward_hook(self.disarm, always_call=True),
        ]

    def arm(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        """Put a hook on the collection, sharded or not."""
        gates = self.gates(model)

        def gate_output(collection: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if not self.is_due(gates.context):
                return output
            return self.with_part(output, partial(self.gate_when_ready, gates))

        collection = walk(model, names_in(self.at))
        self.armed.append(collection.register_forward_hook(gate_output))

    def disarm(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Remove the hook from the collection."""
        if self.armed:
            self.armed.pop().remove()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "armed": []}


def fields_of_collection(module: Any, label: str) -> Fields:
    """Return names and widths of the blocks that a collection of embedding tables returns."""
    if not is_collection(module):
        raise AttachError(
            f"{label} is sharded, and does not name its fields. "
            "Give fields=, name -> width, to attach()."
        )
    return Fields({bag.name: bag.width for bag in bags_of(module.embedding_bag_configs())})
