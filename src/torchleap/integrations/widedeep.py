"""Attach to the models of pytorch-widedeep."""

from collections.abc import Sequence
from typing import Any, Unpack

from torch import nn

from .._common.errors import AttachError
from ..gates.settings import SettingsByName, with_settings_in_signature
from ..plugin import Plugin, attach
from ..sites.notation import Place
from .versions import require

Places = dict[str | Place, dict[str, int]]


@with_settings_in_signature
def attach_to(
    model: nn.Module,
    example: Any = None,
    *,
    wide: Sequence[str] = (),
    **settings: Unpack[SettingsByName],
) -> Plugin:
    """Gate the columns of the deep part of a `WideDeep`, together with those of its wide part.

        model = WideDeep(wide=Wide(...), deeptabular=TabMlp(...))
        plugin = attach_to(model, wide=wide_preprocessor.wide_crossed_cols)
        plugin.learn(steps=n_epochs * len(rows) // batch_size)
        Trainer(model, objective="binary").fit(...)
        small = plugin.prune(plugin.select())

    Args:
        model: The model; its deep part is one model of a table.
        example: A batch, to check the columns at once; None checks at the first batch.
        wide: The names of the columns of the wide part, in their order, which a `Wide` does not
            know. One that has the name of a column of the deep part shares its gate.
        settings: Those of `torchleap.attach`.
    """
    require("pytorch-widedeep")
    places = _deep_places(model) | _wide_place(model, wide)
    return attach(model, at=places, side="output", example=example, **settings)


def _deep_places(model: nn.Module) -> Places:
    """Return the widths of the columns behind the embedding layers of the deep part."""
    place = "deeptabular"
    deep: Any = getattr(model, place, None)
    if isinstance(deep, nn.Sequential):
        place, deep = "deeptabular.0", deep[0]
    if getattr(deep, "column_idx", None) is None:
        raise AttachError(
            "Expected a WideDeep whose deeptabular is one model of pytorch-widedeep for tables, "
            f"but found {type(deep).__name__} in a {type(model).__name__}. Name the places of the "
            "fields in attach(at=)."
        )
    places: Places = {}
    if getattr(deep, "cat_embed", None) is not None:
        places[f"{place}.cat_embed"] = _widths_of_categories(deep)
    if deep.continuous_cols:
        is_embedded = _embeds_numbers(deep)
        layer = "cont_embed" if is_embedded else "cont_norm"
        width = deep.cont_embed.embed_dim if is_embedded else 1
        places[f"{place}.{layer}"] = dict.fromkeys(deep.continuous_cols, width)
    return places


def _widths_of_categories(deep: Any) -> dict[str, int]:
    """Return the widths of the categorical columns: each its own, or all that of the tokens."""
    if type(deep.cat_embed).__name__ == "DiffSizeCatEmbeddings":
        return {name: width for name, _, width in deep.cat_embed.embed_input}
    return dict.fromkeys((name for name, _ in deep.cat_embed.embed_input), deep.input_dim)


def _embeds_numbers(deep: Any) -> bool:
    """Return whether a model embeds numbers; the classes with attention do so by default."""
    has_layer = getattr(deep, "cont_embed", None) is not None
    return has_layer and getattr(deep, "embed_continuous", True) is not False


def _wide_place(model: nn.Module, names: Sequence[str]) -> Places:
    part: Any = getattr(model, "wide", None)
    if (part is None) != (not names):
        found = "no wide part" if part is None else "a wide part"
        raise AttachError(
            f"Expected the names of the columns of the wide part in wide=, but found {found} and "
            f"wide={tuple(names)}. WidePreprocessor has them as wide_crossed_cols."
        )
    return {} if part is None else {"wide.wide_linear": dict.fromkeys(names, part.pred_dim)}
