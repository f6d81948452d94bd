import pytest
from torch import nn

from torchleap._common.errors import AttachError
from torchleap.integrations import tabular


def test_a_model_without_an_embedding_layer_is_refused(monkeypatch):
    monkeypatch.setattr(tabular, "require", lambda package: None)
    with pytest.raises(AttachError, match="found NoneType in a Linear"):
        tabular.attach_to(nn.Linear(2, 1))
