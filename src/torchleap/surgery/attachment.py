"""How gates sat in a model that was pruned, as plain data: a plan keeps it for `export`.

With it, the pruning can be repeated on a model that is built from code again, without a batch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from ..fields import Fields
from ..gates.leap import LeAP
from ..sites.calls import Call
from ..sites.placement import put_into
from ..sites.site import Site
from .trial.stand_in import stand_in


@dataclass(frozen=True)
class Attachment:
    """Where and how gates were attached.

    Attributes:
        sites: The name and side of each site.
        fields: The fields as they arrive at the sites; JSON has them.
        settings: The settings of the gates.
        gates: The state of the gates when the model was pruned.
        batch: A batch of the form of the example, with none of its rows; None if it cannot be made.
    """

    sites: tuple[tuple[str, str], ...]
    fields: list[dict[str, Any]]
    settings: dict[str, Any]
    gates: dict[str, Tensor]
    batch: Call | None

    @classmethod
    def of(cls, gates: LeAP, sites: tuple[Site, ...], example: Call) -> "Attachment":
        """Return how gates sit in a model.

        Args:
            gates: The gates.
            sites: Where they sit.
            example: A few rows as the model takes them.
        """
        state = {name: tensor.detach().clone() for name, tensor in gates.state_dict().items()}
        return cls(
            sites=tuple((site.at, site.side) for site in sites),
            fields=gates.arriving_fields().to_json(),
            settings=asdict(gates.settings),
            gates={name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)},
            batch=stand_in(example),
        )


def attach_again(
    model: nn.Module, sites: Any, fields: Fields, settings: Mapping[str, Any], batch: Call
) -> tuple[LeAP, tuple[Site, ...]]:
    """Put gates into a model as an `Attachment` describes it.

    Args:
        model: The model, without gates.
        sites: The name and side of each site.
        fields: The fields as they arrive.
        settings: The settings of the gates.
        batch: A batch.
    """
    gates = LeAP(fields, **settings)
    names = [str(at) for at, _ in sites]
    args, named = batch
    return gates, put_into(model, names, sites[0][1], gates, None if named else args)
