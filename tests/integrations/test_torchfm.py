import pytest
import torch
from torch import nn

from torchleap._common.errors import AttachError
from torchleap.integrations import torchfm

pytest.importorskip("torchfm", reason="torchfm is not installed")
NAMES = ("user", "item", "city")
SIZES = [10, 12, 5]


def batch(rows=6):
    return torch.stack([torch.randint(size, (rows,)) for size in SIZES], dim=1)


def test_embedding_and_linear_part_of_a_field_share_a_gate():
    from torchfm.model.dfm import DeepFactorizationMachineModel

    model = DeepFactorizationMachineModel(SIZES, 4, (8,), 0.0)
    plugin = torchfm.attach_to(model, NAMES, batch())
    assert plugin.fields.names == NAMES
    assert plugin.fields.widths == (5, 5, 5)


def test_the_tables_of_field_aware_factorization_share_a_gate():
    from torchfm.model.ffm import FieldAwareFactorizationMachineModel

    plugin = torchfm.attach_to(FieldAwareFactorizationMachineModel(SIZES, 2), NAMES, batch())
    assert plugin.fields.widths == (7, 7, 7)


def test_a_table_that_the_model_never_reads_is_left_alone():
    from torchfm.model.pnn import ProductNeuralNetworkModel

    plugin = torchfm.attach_to(ProductNeuralNetworkModel(SIZES, 4, (8,), 0.0), NAMES, batch())
    assert plugin.fields.widths == (4, 4, 4)


def test_another_number_of_names_is_refused():
    from torchfm.model.wd import WideAndDeepModel

    with pytest.raises(AttachError, match="names of 3 fields, but found 2: user, item"):
        torchfm.attach_to(WideAndDeepModel(SIZES, 4, (8,), 0.0), ("user", "item"), batch())


def test_a_model_without_a_shared_table_is_refused():
    with pytest.raises(AttachError, match="found none in Linear"):
        torchfm.attach_to(nn.Linear(2, 1), NAMES, torch.randn(3, 2))
