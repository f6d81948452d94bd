"""Two outputs are compared up to rounding, whatever they are made of and however large."""

from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchleap as tl
from tests.surgery.helpers import COLUMNS, Deciding, Ranker, prepared, pruned
from tests.surgery.write.test_feed import Batch
from torchleap.surgery.trial.compare import alike, difference
from torchleap.surgery.trial.rounding import with_other_rounding
from torchleap.surgery.write.build import build


def test_rounding_is_forgiven_and_errors_are_not():
    expected = torch.linspace(-3, 3, 50)
    assert alike(expected * (1 + 1e-6), expected)
    assert not alike(expected + 1e-2, expected)
    assert difference(expected + 1, expected) == pytest.approx(1)


@pytest.mark.parametrize("huge", [1e9, float("inf"), float("nan"), -float("inf")])
def test_one_huge_number_excuses_no_other(huge):
    expected = torch.cat([torch.tensor([huge]), torch.linspace(-1, 1, 50)])
    wrong = expected.clone()
    wrong[7] += 0.1
    assert alike(expected.clone(), expected)
    assert not alike(wrong, expected)
    assert not alike([expected[:1], wrong[1:]], [expected[:1], expected[1:]])


def test_bfloat16_is_held_to_its_precision():
    expected = torch.linspace(-1, 1, 50).bfloat16()
    assert alike(expected * 1.01, expected)
    assert not alike(expected + 1, expected)


def test_shapes_dtypes_and_plain_values_count():
    one = torch.ones(3)
    for other in (one[None], one.double(), one.bool(), 1.0, [one, one], None):
        assert not alike(other, one)
        assert difference(other, one) == float("inf")
    assert not alike({"logit": one, "rows": 3}, {"logit": one, "rows": 4})
    assert alike(
        {"logit": one, "rows": 3, "mask": one > 0}, {"logit": one, "rows": 3, "mask": one > 0}
    )
    assert not alike(one > 0, one > 1)
    assert alike(torch.empty(0), torch.empty(0))


def test_an_output_with_attributes_is_looked_into():
    one, two = (Batch(*torch.full((5, 3), value)) for value in (1.0, 2.0))
    assert alike(one, one)
    assert not alike(two, one)


class Plain:
    def __init__(self, logit):
        self.logit = logit


class Slotted:
    __slots__ = ("logit", "unset")

    def __init__(self, logit):
        self.logit = logit


class Both(Slotted):
    def __init__(self, logit):
        super().__init__(logit)
        self.name = "both"


class ModelOutput(OrderedDict):
    def __init__(self, logit):
        super().__init__(logit=logit)
        self.logit = logit


class Cyclic:
    def __init__(self, logit):
        self.itself = self
        self.parts = [self, logit]


@dataclass(frozen=True, slots=True)
class Frozen:
    logit: torch.Tensor


Pair = namedtuple("Pair", ["logit", "name"])

OUTPUTS = {
    "a plain class": Plain,
    "a namespace": lambda x: SimpleNamespace(logit=x, deeper=SimpleNamespace(logit=x)),
    "slots": Slotted,
    "slots and a dict": Both,
    "a dataclass": Frozen,
    "a named tuple": lambda x: Pair(x, "name"),
    "a model output": ModelOutput,
    "lists": lambda x: [[x], ({"a": deque([x])},)],
    "a distribution": lambda x: torch.distributions.Bernoulli(logits=x),
    "an independent distribution": lambda x: torch.distributions.Independent(
        torch.distributions.Normal(x, x.exp()), 1
    ),
    "an array": lambda x: x.detach().numpy(),
    "a number of numpy": lambda x: x.detach().numpy()[1, 1],
    "a float": lambda x: float(x.sum()),
    "a complex number": lambda x: complex(float(x.sum()), 1.0),
    "a complex tensor": lambda x: torch.complex(x, x),
    "a sparse tensor": lambda x: x.to_sparse(),
    "a compressed tensor": lambda x: x.to_sparse_csr(),
    "a nested tensor": lambda x: torch.nested.nested_tensor([x[:1], x]),
    "a parameter": lambda x: nn.Parameter(x),
    "a cycle": Cyclic,
    "a set": lambda x: {"kept", "dropped" if float(x.sum()) > 5 else "open"},
    "a key": lambda x: {round(float(x.sum())): 1},
    "text": lambda x: f"{float(x.sum()):.1f}",
    "whole numbers": lambda x: (x > 0.5).long() + x.long(),
    "an integer": lambda x: round(float(x.sum())),
}


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support"
)
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_of_any_kind_are_looked_into(name):
    make, x = OUTPUTS[name], torch.eye(3)
    assert alike(make(x.clone()), make(x))
    assert not alike(make(x + 1), make(x))
    assert difference(make(x + 1), make(x)) > 0
    assert not alike(make(x), None)
    assert not alike(SimpleNamespace(other=x), make(x))


UNCOMPARABLE = {
    "a generator": lambda x: (part for part in x),
    "a function": lambda x: lambda: x,
    "a module": lambda x: {"head": nn.Linear(2, 2)},
    "a set of tensors": lambda x: {x},
    "an object without attributes": lambda x: [object()],
    "an iterator": lambda x: iter([x]),
}


@pytest.mark.parametrize("name", UNCOMPARABLE)
def test_what_cannot_be_compared_is_refused(name):
    x = torch.ones(3)
    with pytest.raises(
        tl.SurgeryError, match="is of type .*, which cannot be compared. Return its tensors instead"
    ):
        alike(UNCOMPARABLE[name](x), UNCOMPARABLE[name](x))


def test_a_model_whose_output_cannot_be_compared_is_refused_at_once():
    class Odd(Ranker):
        def forward(self, batch):
            return {"logit": super().forward(batch), "parts": (part for part in "ab")}

    with pytest.raises(
        tl.SurgeryError, match=r"^Expected an output .* of type generator, which cannot be compared"
    ):
        pruned(Odd())


@pytest.mark.parametrize("kind", [Ranker, Deciding])
def test_a_pruned_model_may_return_an_object(kind):
    class Returning(kind):
        def forward(self, batch):
            return SimpleNamespace(logit=super().forward(batch))

    plugin, selection, small = pruned(Returning())
    with plugin.masked(selection):
        expected = plugin.model.eval()({name: torch.arange(5) for name in plugin.fields.names})
    assert alike(small({name: torch.arange(5) for name in plugin.fields.names}), expected)


class Head(nn.Module):
    """A ranking head of which the output has any scale and offset."""

    def __init__(self, last, dtype=torch.float32):
        super().__init__()
        self.fields = nn.Identity()
        self.deep = nn.Sequential(nn.Linear(COLUMNS, 32), nn.ReLU(), nn.Linear(32, 2))
        self.last = last
        self.to(dtype)

    def forward(self, x):
        return self.last(self.deep(self.fields(x)))


def outputs(last, dtype, rows=32, seed=0):
    """A model's output, the same by sums in another order, and its own with other roundings."""
    torch.manual_seed(seed)
    model = Head(last, dtype).eval()
    x = torch.randn(rows, COLUMNS, dtype=torch.float64).to(dtype)
    with torch.no_grad():
        expected, rounded = model(x), with_other_rounding(lambda: model(x))
        order = torch.randperm(COLUMNS)
        model.deep[0].weight.copy_(model.deep[0].weight[:, order])
        halves = torch.randperm(32)
        model.deep[0].weight.copy_(model.deep[0].weight[halves])
        model.deep[0].bias.copy_(model.deep[0].bias[halves])
        model.deep[2].weight.copy_(model.deep[2].weight[:, halves])
        return model(x[:, order]), expected, rounded


LASTS = {
    "logits": lambda y, scale: y * scale,
    "rates": lambda y, scale: torch.sigmoid(y - 12) * scale,
    "an offset": lambda y, scale: (y + 100) * scale,
    "an outlier": lambda y, scale: torch.cat([y[:-1], y[-1:] * 1e6]) * scale,
    "a difference": lambda y, scale: ((y + 10) - 10) * scale,
    "columns of unlike size": lambda y, scale: torch.cat([y, 1e5 * y], 1) * scale,
    "mostly zeros": lambda y, scale: torch.relu(y - y.median()) * scale,
}


@settings(max_examples=40, deadline=None)
@given(
    last=st.sampled_from(sorted(LASTS)),
    power=st.integers(-8, 8),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    rows=st.sampled_from([1, 3, 32]),
    seed=st.integers(0, 999),
)
def test_rounding_is_told_from_errors_of_a_hundredth_of_the_spread_at_any_scale(
    last, power, dtype, rows, seed
):
    found, expected, rounded = outputs(lambda y: LASTS[last](y, 10.0**power), dtype, rows, seed)
    assert alike(found, expected, lambda: rounded)
    if rows == 32:
        for column in range(expected.shape[1]):
            wrong = found.clone()
            usual = expected[:-1, column]
            wrong[3, column] += 0.01 * usual.std()
            assert not alike(wrong, expected, lambda: rounded)


@settings(max_examples=20, deadline=None)
@given(
    power=st.integers(-4, 3),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    rows=st.sampled_from([1, 32]),
    seed=st.integers(0, 999),
)
def test_short_formats_are_held_to_what_their_rounding_allows(power, dtype, rows, seed):
    found, expected, rounded = outputs(lambda y: y * 10.0**power, dtype, rows, seed)
    assert alike(found, expected, lambda: rounded)
    if rows == 32 and (dtype is torch.bfloat16 or power > -2):  # below, float16 has no digits left
        assert not alike(found + 0.5 * expected.std(), expected, lambda: rounded)


def test_a_constant_output_is_held_to_its_size():
    expected = torch.full((8, 1), 1e-5)
    assert alike(expected * (1 + 1e-7), expected)
    assert not alike(expected * 1.01, expected)
    assert alike(torch.zeros(8), torch.zeros(8))
    assert not alike(torch.full((8,), 1e-9), torch.zeros(8))


@pytest.mark.parametrize("scale", [1e-8, 1e-5, 1.0, 1e8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_models_are_followed_at_any_scale_of_their_output(scale, dtype):
    torch.manual_seed(0)

    def make(rows=32, seed=0):
        rng = torch.Generator().manual_seed(seed)
        return torch.randn(rows, COLUMNS, generator=rng).to(dtype)

    plugin, _ = prepared(Head(lambda y: y * scale, dtype), at="fields", side="output", make=make)
    assert "constants are fed instead" not in str(plugin.plan(plugin.select(share=0.6)))


def test_a_small_error_in_small_outputs_is_noticed(monkeypatch):
    monkeypatch.delenv("TORCHLEAP_STRICT", raising=False)
    torch.manual_seed(0)
    plugin, _ = prepared(Head(lambda y: torch.sigmoid(y - 12)), at="fields", side="output")
    selection = plugin.select(share=0.6)
    assert "constants are fed instead" not in str(plugin.plan(selection))
    monkeypatch.setattr("torchleap.surgery.regions.find.build", _slightly_wrong(build))
    assert "the pruned model would differ" in str(plugin.plan(selection))


def _slightly_wrong(make):
    def wrong(*args, **settings):
        small = make(*args, **settings)
        small.deep[0].bias = nn.Parameter(small.deep[0].bias + 1e-3)
        return small

    return wrong
