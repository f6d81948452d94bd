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
from ..sites.notation import Place, read_notation
from ..sites.placement import put_into
from ..sites.site import Site
from .trial.stand_in import stand_in


@dataclass(frozen=True)
class Attachment:
    """Where and how gates were attached.

    Attributes:
        sites: The place of each site, and the widths of the fields there if they are named.
        fields: The fields as they arrive at the sites; JSON has them.
        settings: The settings of the gates.
        gates: The state of the gates when the model was pruned.
        batch: A batch of the form of the example, with none of its rows; None if it cannot be made.
    """

    sites: list[dict[str, Any]]
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
            sites=[_described(site, gates) for site in sites],
            fields=gates.arriving_fields().to_json(),
            settings=asdict(gates.settings),
            gates={name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)},
            batch=stand_in(example),
        )


def _described(site: Site, gates: LeAP) -> dict[str, Any]:
    """Return the place of a site, and the fields there if the notation has named them."""
    fields = gates.known_layout().fields_in(site.columns) if site.is_named else None
    widths = None if fields is None else [[field.name, field.width] for field in fields]
    return {**asdict(site.place), "widths": widths}


def attach_again(
    model: nn.Module,
    sites: list[dict[str, Any]],
    fields: Fields,
    settings: Mapping[str, Any],
    batch: Call,
) -> tuple[LeAP, tuple[Site, ...]]:
    """Put gates into a model as an `Attachment` describes it.

    Args:
        model: The model, without gates.
        sites: The place of each site, and the widths of the fields there.
        fields: The fields as they arrive.
        settings: The settings of the gates.
        batch: A batch.
    """
    places: list[Any] = [Place(**_without_widths(site)) for site in sites]
    widths = [site["widths"] for site in sites]
    if widths[0] is None:
        notation = read_notation(fields, places, "input")
    else:
        at = dict(zip(places, map(dict, widths), strict=True))
        notation = read_notation(fields, at, "input")
    gates = LeAP(None if notation.is_by_place else fields, **settings)
    args, named = batch
    return gates, put_into(model, notation, gates, None if named else args)


def _without_widths(site: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in site.items() if key != "widths"}
