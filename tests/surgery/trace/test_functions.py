"""Functions of Python, numpy and PyTorch that take no stand-ins: they are followed all the same."""

import numpy as np
import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import ids_by_name
from tests.surgery.helpers import FED, Ranker, assert_same, exact_or_refused, pruned


class Offset(nn.Module):
    """One table of all fields, whose ids are moved by a numpy array."""

    def __init__(self, field, move):
        super().__init__()
        self.tables = nn.Embedding(60, 4)
        self.offsets = np.array([12 * place for place in range(5)])
        self.deep = nn.Linear(20, 1)
        self.field = field
        self.move = move

    def forward(self, batch):
        ids = torch.stack([batch[name] for name in batch], 1)
        return self.deep(self.field(self.tables(self.move(self, ids)).flatten(1)))


MOVES = {
    "new_tensor": lambda m, ids: ids + ids.new_tensor(m.offsets).unsqueeze(0),
    "an array": lambda m, ids: ids + m.offsets,
    "an element": lambda m, ids: ids + m.offsets[1],
    "an element from the left": lambda m, ids: m.offsets[1] + ids,
    "a slice": lambda m, ids: ids[:, : m.offsets[4] // 4],
    "an index": lambda m, ids: ids[:, np.array([4, 0, 1, 2, 3])],
    "a size": lambda m, ids: ids.reshape(-1, np.int64(5)),
    "new_full": lambda m, ids: ids + ids.new_full((np.int32(1), 5), 3),
}


def test_functions_are_as_before_after_a_plan():
    before = len, isinstance, torch.zeros, torch.Tensor.expand, "expand" in vars(torch.Tensor)
    pruned(Ranker())
    after = len, isinstance, torch.zeros, torch.Tensor.expand, "expand" in vars(torch.Tensor)
    assert after == before


@pytest.mark.parametrize("name", MOVES)
def test_numpy_moves_ids(name):
    torch.manual_seed(0)
    plugin, selection, small = pruned(Offset(nn.Identity(), MOVES[name]), at="field")
    assert FED not in str(tl.plan_of(small))
    for rows in (7, 1, 50):
        assert_same(plugin, selection, small, ids_by_name(rows, 9))


USES = {
    "len": lambda y, b: y * torch.arange(len(y))[:, None],
    "zeros": lambda y, b: torch.cat([y, torch.zeros(len(y), 1, dtype=y.dtype)], 1).sum(1),
    "sizes in a tuple": lambda y, b: y + torch.ones((y.shape[0], 1)),
    "full": lambda y, b: y + torch.full((len(b["user"]), 1), 2.0, device=y.device),
    "new_zeros": lambda y, b: y + y.new_zeros(len(y), 1),
    "a fixed tensor expanded": lambda y, b: y + torch.arange(1.0).expand(y.size(0), -1),
    "a fixed tensor repeated": lambda y, b: (
        y * torch.ones(1, 1).repeat((len(y), 1)).view(len(y), 1)
    ),
    "filled": lambda y, b: y + y.new_empty(y.shape).fill_(2.0),
    "added in place": lambda y, b: y.new_zeros(y.shape).add_(y) * 2,
    "read after a change": lambda y, b: _changed(y * 2) * 3,
    "a tensor of numbers": lambda y, b: y / torch.tensor([len(y), 2.0])[0],
    "is_floating_point": lambda y, b: y * 2 if torch.is_floating_point(y) else y,
    "isinstance": lambda y, b: y * 2 if isinstance(y, torch.Tensor) else y,
    "isinstance of one of several": lambda y, b: y * 2 if isinstance(y, (int, torch.Tensor)) else y,
    "not isinstance": lambda y, b: y * 2 if isinstance(y, float) else y,
    "columns one by one": lambda y, b: sum(column * 2 for column in y.T),
    "moved": lambda y, b: y.to(torch.device("cpu")).to(y.device).cpu() + 1,
    "elements set by a mask": lambda y, b: _set(y * 2, y < 0, 0) * 3,
    "elements set by another tensor": lambda y, b: _set(y * 2, slice(1, None, 2), y[1::2]) * 3,
    "a column set": lambda y, b: _set(torch.cat([y, y], 1), (slice(None), 0), 1.5),
    "rows compared": lambda y, b: (
        y if len(y) == len(b["user"]) and len(b["user"]) >= len(b["item"]) else -y
    ),
}


def _set(y, key, value):
    y[key] = value
    return y


def _changed(y):
    y.mul_(2).clamp_(max=1.0)
    return y


@pytest.mark.parametrize("name", USES)
def test_such_functions_are_followed(name):
    torch.manual_seed(0)

    class Using(Ranker):
        def forward(self, batch):
            return USES[name](self.deep(self.embed(batch)), batch)

    plugin, selection, small = pruned(Using())
    assert FED not in str(tl.plan_of(small))
    for rows in (7, 1, 50):
        assert_same(plugin, selection, small, ids_by_name(rows, 9))


def _set_and_seen(y):
    part = y[:, :1]
    y[y < 0] = 0
    return part


def _seen(y):
    part = y[:, :1]
    y.mul_(2)
    return part


REFUSED = {
    "rows one by one": (lambda y, b: torch.stack([row * 2 for row in y]), "goes through the rows"),
    "the class of a number": (
        lambda y, b: y * 2 if isinstance(b["by"], int) else y,
        "asks for the class of",
    ),
    "an array of a tensor": (lambda y, b: y * float(np.asarray(y.detach()).dtype == "f4"), ""),
    "compared in place": (lambda y, b: (y * 2).gt_(0.1) * 2, "in place, by gt_"),
    "cast in place": (
        lambda y, b: y.half().add_(y).float(),
        "in place, by add_",
    ),
    "seen by a view": (lambda y, b: _seen(y * 2), "in place that it reads again"),
    "elements set that a view shows": (lambda y, b: _set_and_seen(y * 2), "it sets elements of"),
    "a number of rows": (lambda y, b: y * 2 if len(y) == 3 else y, "decides by the result of eq"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_from_batch_to_batch_is_left_to_the_models_python(name):
    torch.manual_seed(0)

    class Using(Ranker):
        def forward(self, batch):
            return REFUSED[name][0](self.deep(self.embed(batch)), batch)

    make = lambda rows=32, seed=0: ids_by_name(rows, seed) | {"by": 2}  # noqa: E731
    plugin, selection, small = pruned(Using(), make)
    assert FED in str(tl.plan_of(small))
    assert REFUSED[name][1] in str(tl.plan_of(small))
    for rows in (7, 3, 50):
        assert_same(plugin, selection, small, make(rows, 9))


def test_a_batch_whose_numbers_of_rows_differ_is_refused_where_forward_compares_them():
    torch.manual_seed(0)

    class Comparing(Ranker):
        def forward(self, batch, scale):
            y = self.deep(self.embed(batch))
            return y * scale.sum() if len(scale) == len(batch["user"]) else y

    def make(rows=32, seed=0, scales=None):
        return ids_by_name(rows, seed), torch.ones(rows if scales is None else scales)

    plugin, selection, small = pruned(Comparing(), make)
    assert "have the same number of rows" in str(tl.plan_of(small))
    assert not exact_or_refused(plugin, selection, small, make(7, 9))
    assert exact_or_refused(plugin, selection, small, make(7, 9, 5))
    with pytest.raises(tl.FieldError, match=r"the same number of rows in .*, but found \["):
        small(*make(7, 9, 5))
    again, selection, twice = pruned(small, make, fields=dict.fromkeys(selection.kept, 4))
    assert FED not in str(tl.plan_of(twice))
    assert not exact_or_refused(again, selection, twice, make(7, 9))
    with pytest.raises(tl.FieldError, match="the same number of rows"):
        twice(*make(7, 9, 5))


def test_gates_in_a_module_that_is_not_followed_change_nothing_that_others_read():
    torch.manual_seed(0)

    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.Embedding(12, 4)
            self.fields = 5

        def forward(self, ids):
            assert ids.max() < 12  # decides by the data
            return self.tables(ids).flatten(1)

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = Tables()
            self.deep = nn.Linear(20, 1)
            self.fields = 5

        def forward(self, batch):
            return self.deep(self.embedding(torch.stack(list(batch.values()), 1))) * self.fields

    plugin, selection, small = pruned(Around(), at="embedding")
    assert FED not in str(tl.plan_of(small))
    assert_same(plugin, selection, small, ids_by_name(7, 9))


def test_a_tensor_made_of_weights_is_known_as_it_was_before_a_later_change():
    class Scaled(Ranker):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(20))

        def forward(self, batch):
            x = self.embed(batch)
            factor = self.weight * 2
            once = x * factor
            factor.mul_(3)
            return self.deep(once + x * factor)

    plugin, selection, small = pruned(Scaled())
    assert FED not in str(tl.plan_of(small))
    assert_same(plugin, selection, small, ids_by_name(7, 9))
