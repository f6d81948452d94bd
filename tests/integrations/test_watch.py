import pytest
import torch
from torch import nn

from torchleap._common.errors import AttachError
from torchleap.integrations.watch import outputs, watch
from torchleap.sites.notation import Place


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(2, 2)
        self.once = nn.Linear(2, 2)
        self.never = nn.Linear(2, 2)

    def forward(self, x, scale=1.0):
        return self.once(self.shared(x) + self.shared(input=x * scale))


def linear(path, module):
    return isinstance(module, nn.Linear)


def test_calls_are_reported_in_order_with_their_arguments():
    model = Twice().train()
    x = torch.randn(3, 2)
    calls = watch(model, (x, 2.0), linear)
    assert [(call.path, call.number) for call in calls] == [
        ("shared", 0),
        ("shared", 1),
        ("once", 0),
    ]
    assert calls[0].argument(0, "input") is x
    assert torch.equal(calls[1].argument(0, "input"), 2 * x)
    assert calls[1].argument(1, "bias", "none") == "none"
    assert model.training
    assert not model.shared._forward_hooks


def test_places_are_numbered_only_where_a_module_is_called_again():
    calls = watch(Twice(), torch.randn(3, 2), linear)
    assert [place for place, _ in outputs(calls)] == [
        Place("shared", "output", call=0),
        Place("shared", "output", call=1),
        Place("once", "output"),
    ]


def test_a_dict_is_kept_as_it_was_returned():
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = Parts()

        def forward(self, x):
            parts = self.parts(x)
            parts["a"] = None
            return x

    class Parts(nn.Module):
        def forward(self, x):
            return {"a": x}

    x = torch.randn(2, 1)
    (call,) = watch(Changing(), x, lambda path, module: path == "parts")
    assert call.output["a"] is x


def test_a_missing_example_is_refused():
    with pytest.raises(AttachError, match="example=batch"):
        watch(Twice(), None, linear)
