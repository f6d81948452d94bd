"""Removed tables: what their stand-ins allow on the way to the gates; the rest is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchleap as tl
from torchleap._common.errors import RemovedTableError
from torchleap.surgery.write.absent import Absent, tables_of


def absent(*shape, table="user"):
    return Absent.of(table, torch.zeros(()), shape)


def joined():
    """Two missing columns and two real ones."""
    real = torch.arange(6.0).reshape(3, 2).requires_grad_()
    return torch.cat([absent(3, 2), real], 1), real


MOVES = {
    "view": lambda x: x.view(3, 2, 2),
    "reshape": lambda x: x.reshape(-1),
    "transpose": lambda x: x.transpose(0, 1),
    "T": lambda x: x.T,
    "stack": lambda x: torch.stack([x, torch.ones(3, 4)], 1),
    "slice": lambda x: x[1:, :3],
    "index": lambda x: x[:, [3, 0]],
    "mask": lambda x: x[torch.tensor([True, False, True])],
    "gather": lambda x: x.gather(1, torch.tensor([[0, 2]] * 3)),
    "expand": lambda x: x[:, None].expand(3, 5, 4),
    "cast": lambda x: x.double(),
    "detach": lambda x: x.detach(),
    "dropout": lambda x: functional.dropout(x, 0.5, training=True),
}


@pytest.mark.parametrize("name", MOVES)
def test_missing_elements_are_followed_where_they_move(name):
    x, _ = joined()
    found = MOVES[name](x)
    missing = torch.tensor([[True, True, False, False]] * 3)
    expected = MOVES[name](missing.float())
    if name == "dropout":
        expected = missing
    assert isinstance(found, Absent)
    assert found.shape == expected.shape
    if name == "stack":
        expected[:, 1] = 0
    assert torch.equal(found.labels != 0, expected != 0)
    assert tables_of(found.labels) == {"user"}


@pytest.mark.parametrize(
    "pick", [lambda x: x[:, 2:], lambda x: x.split(2, 1)[1], lambda x: x.unbind(1)[3]]
)
def test_what_is_there_is_an_ordinary_tensor(pick):
    x, real = joined()
    found = pick(x)
    assert type(found) is torch.Tensor
    found.sum().backward()
    assert real.grad is not None


def test_arithmetic_keeps_missing_elements_missing_and_names_all_tables():
    x, _ = joined()
    for found in (
        x + 1,
        1 - x,
        x * torch.zeros(3, 4),
        x > 0,
        torch.where(x > 0, x, -x),
        functional.relu(x),
    ):
        assert torch.equal(found.labels != 0, torch.tensor([[True, True, False, False]] * 3))
    both = x * absent(3, 4, table="item")
    assert tables_of(both.labels) == {"user", "item"}
    assert bool((both.labels != 0).all())


def test_what_mixes_elements_is_missing_as_a_whole_and_has_no_gradient():
    x, _ = joined()
    layer = nn.Linear(4, 2)
    for found in (
        x.sum(1),
        x.mean(),
        layer(x),
        x @ x.T,
        x.softmax(1),
        x.max(1).values,
        functional.layer_norm(x, (4,)),
    ):
        assert isinstance(found, Absent)
        assert bool((found.labels != 0).all())
        assert not found.requires_grad


def test_changes_in_place_never_bring_missing_elements_back():
    x, _ = joined()
    x += 1
    x.mul_(2)
    x[:, :2] = 7.0
    assert torch.equal(x.labels != 0, torch.tensor([[True, True, False, False]] * 3))


REFUSED = {
    "bool": lambda x: bool((x > 0).any()),
    "any": lambda x: (x > 0).any(),
    "item": lambda x: x[0, 0].item(),
    "float": lambda x: float(x[0, 0]),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.detach().numpy(),
    "equal": lambda x: torch.equal(x, x),
    "print": lambda x: str(x),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "where of one argument": lambda x: torch.where(x > 0),
    "masked_select": lambda x: torch.ones(3, 4).masked_select(x > 0),
    "as an index": lambda x: torch.ones(9)[x.argmax(1)],
    "as a mask": lambda x: torch.ones(3, 4)[x > 0],
    "as ids": lambda x: functional.embedding(x.long(), torch.ones(9, 2)),
    "as other bits": lambda x: x.view(torch.int32),
    "into a plain tensor": lambda x: torch.zeros(3, 4).copy_(x),
    "added to a plain tensor": lambda x: torch.zeros(3, 4).add_(x),
    "into a part": lambda x: torch.zeros(3, 8).__setitem__((slice(None), slice(4)), x),
    "out": lambda x: torch.add(x, 1, out=torch.zeros(3, 4)),
    "missing into what is there": lambda x: x.add_(absent(3, 4)),
    "backward": lambda x: x.sum().backward(),
    "batch norm": lambda x: nn.BatchNorm1d(4)(x),
    "an unknown function": lambda x: torch.special.erfcx(x),
    "an operation of torch.ops": lambda x: torch.ops.aten.sum.dim_IntList(x, [0]),
    "another library": lambda x: x.detach().__dlpack__(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_reading_is_refused_by_an_error_that_names_the_table(name):
    x, _ = joined()
    with pytest.raises(RemovedTableError, match="'user'. Prune with example= such a batch"):
        REFUSED[name](x)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_functions_cannot_read_it_either():
    total = torch.jit.script(scripted_total)
    with pytest.raises(RuntimeError, match="TorchScript"):
        total(joined()[0])


def scripted_total(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def test_shape_dtype_and_other_settings_may_be_read():
    x, _ = joined()
    assert (x.shape, x.dtype, x.ndim, len(x), x.size(1), x.numel(), x.dim()) == (
        (3, 4),
        torch.float32,
        2,
        3,
        4,
        12,
        2,
    )
    assert x.is_floating_point()
    assert x.requires_grad is not None
    assert torch.equal(torch.zeros_like(x), torch.zeros(3, 4))
    assert isinstance(copy.deepcopy(x), Absent)
    assert isinstance(RemovedTableError(["user"], "sum()"), tl.FieldError)
