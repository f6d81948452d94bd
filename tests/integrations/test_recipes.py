"""What the recipes refuse, without their zoos; tests/zoos runs them on the models of the zoos."""

import pytest
from torch import nn

from torchleap._common.errors import AttachError
from torchleap.integrations import deeptab, frame, recbole, tabular, widedeep


@pytest.fixture(autouse=True)
def every_version_is_supported(monkeypatch):
    for recipe in (deeptab, frame, recbole, tabular, widedeep):
        monkeypatch.setattr(recipe, "require", lambda package: None)


class WideDeep(nn.Module):
    def __init__(self, has_wide):
        super().__init__()
        self.wide = nn.Linear(1, 1) if has_wide else None
        self.deeptabular = nn.Sequential(nn.Linear(2, 1))
        self.deeptabular[0].column_idx = {}
        self.deeptabular[0].continuous_cols = []


@pytest.mark.parametrize(
    ("recipe", "found"),
    [
        (deeptab, "found none in a Linear"),
        (frame, "found NoneType in a Linear"),
        (recbole, "found a Linear"),
        (tabular, "found NoneType in a Linear"),
        (widedeep, "found NoneType in a Linear"),
    ],
)
def test_a_model_of_another_form_is_refused(recipe, found):
    with pytest.raises(AttachError, match=f"{found}. Name the place"):
        recipe.attach_to(nn.Linear(2, 1), None)


def test_deeptab_refuses_a_class_token():
    class EmbeddingLayer(nn.Module):
        use_cls = True

    model = nn.Module()
    model.embedding_layer = EmbeddingLayer()
    with pytest.raises(AttachError, match="found one with a class token"):
        deeptab.attach_to(model)


def test_recbole_refuses_sequences():
    model = nn.Module()
    model.first_order_linear = nn.Identity()
    model.token_seq_field_names = ["clicked"]
    model.float_seq_field_names = []
    with pytest.raises(AttachError, match=r"found the sequences \['clicked'\]"):
        recbole.attach_to(model, None)


@pytest.mark.parametrize(
    ("has_wide", "names", "found"),
    [(True, (), r"found a wide part and wide=\(\)"), (False, ("item",), "found no wide part")],
)
def test_widedeep_asks_for_the_names_of_the_wide_part(has_wide, names, found):
    with pytest.raises(AttachError, match=found):
        widedeep.attach_to(WideDeep(has_wide), wide=names)
