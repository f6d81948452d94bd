"""Batches of any class are taken apart: their tensors are traced, the rest is checked."""

from collections import UserDict
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import NAMES, ids_by_name
from tests.surgery.helpers import FED, Ranker, assert_same, exact_or_refused, pruned
from torchleap.surgery.runtime import walk


@dataclass
class Columns:
    """A dataclass with methods."""

    user: torch.Tensor
    item: torch.Tensor
    city: torch.Tensor
    shop: torch.Tensor
    hour: torch.Tensor
    mode: str = "plain"

    def __getitem__(self, name):
        return getattr(self, name)

    def __len__(self):
        return self.user.size(0)

    def to(self, device):
        return Columns(*(self[name].to(device) for name in NAMES), mode=self.mode)


class Row(NamedTuple):
    user: torch.Tensor
    item: torch.Tensor
    city: torch.Tensor
    shop: torch.Tensor
    hour: torch.Tensor


class Table:
    """An object that keeps the number of its rows beside its tensors, as the batches of RecBole."""

    def __init__(self, columns):
        self.columns = dict(columns)
        self.length = -1
        for column in self.columns.values():
            self.length = max(self.length, column.unsqueeze(-1).shape[0])

    def __getitem__(self, name):
        return self.columns[name]

    def __contains__(self, name):
        return name in self.columns

    def __len__(self):
        return self.length

    def get(self, name, default=None):
        return self.columns.get(name, default)

    def to(self, device):
        return Table({name: column.to(device) for name, column in self.columns.items()})


class Holder:
    """An object with nested containers, one of which has keys that are not strings."""

    def __init__(self, entries):
        self.by_place = {place: entries[name] for place, name in enumerate(NAMES)}
        self.names = dict(enumerate(NAMES))
        self.nothing = None

    def __getitem__(self, name):
        (place,) = [place for place, other in self.names.items() if other == name]
        return self.by_place[place]


tl.register_batch(Table, lambda table: table.columns, lambda parts, like: Table({**parts}))
KINDS = {
    "a UserDict": UserDict,
    "a dataclass": lambda entries: Columns(**entries),
    "an object": Holder,
    "a registered class": Table,
}


@pytest.mark.parametrize("name", KINDS)
def test_batches_of_any_class_are_followed(name):
    torch.manual_seed(0)

    def make(rows=32, seed=0):
        return KINDS[name](ids_by_name(rows, seed))

    plugin, selection, small = pruned(Ranker(), make)
    plan = tl.plan_of(small)
    assert FED not in str(plan)
    if name != "an object":
        assert [str(each) for each in plan.unread] == ["user", "item"]
    for rows in (7, 1, 50):
        assert_same(plugin, selection, small, make(rows, 9))


def test_a_named_tuple_is_followed_and_has_as_many_values_as_in_the_example():
    torch.manual_seed(0)

    class Attributes(Ranker):
        def forward(self, batch):
            columns = [getattr(batch, name) for name in NAMES]
            return super().forward(dict(zip(NAMES, columns, strict=True))) * len(batch)

    make = lambda rows=32, seed=0: (Row(**ids_by_name(rows, seed)),)  # noqa: E731
    plugin, selection, small = pruned(Attributes(), make)
    assert FED not in str(tl.plan_of(small))
    assert_same(plugin, selection, small, make(7, 9))
    with pytest.raises(tl.FieldError, match=r"batch to be 5 values, .* found 4 values"):
        small(tuple(make(7, 9)[0])[:4])


METHODS = {
    "len": lambda y, b: y * torch.ones(len(b), 1) * 2,
    "moved": lambda y, b: y * b.to("cpu")["user"][:, None],
    "a question": lambda y, b: y * 2 if "user" in b else y,
    "another question": lambda y, b: y if b.get("more") is None else -y,
    "its class": lambda y, b: y * 2 if isinstance(b, Table) else y,
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_a_batch_are_followed(name):
    torch.manual_seed(0)

    class Asking(Ranker):
        def forward(self, batch):
            return METHODS[name](super().forward(batch), batch)

    make = lambda rows=32, seed=0: Table(ids_by_name(rows, seed))  # noqa: E731
    plugin, selection, small = pruned(Asking(), make)
    assert FED not in str(tl.plan_of(small))
    for rows in (7, 1, 50):
        assert_same(plugin, selection, small, make(rows, 9))
    more = Table({**ids_by_name(7, 9), "more": torch.ones(7)})
    assert exact_or_refused(plugin, selection, small, more)


def test_a_dict_of_its_parts_may_replace_a_registered_batch():
    _, selection, small = pruned(Ranker(), lambda rows=32, seed=0: Table(ids_by_name(rows, seed)))
    entries = ids_by_name(7, 9)
    kept = {name: entries[name] for name in selection.kept}
    assert torch.equal(small(kept), small(Table(entries)))
    with pytest.raises(tl.FieldError, match="register_batch was called with, .* but found list"):
        small([entries])


def test_a_plain_attribute_that_forward_reads_is_as_in_the_example():
    torch.manual_seed(0)

    class Steered(Ranker):
        def forward(self, batch):
            y = super().forward(batch)
            return -y if batch.mode == "negated" else y

    def make(rows=32, seed=0, mode="plain"):
        return Columns(**ids_by_name(rows, seed), mode=mode)

    plugin, selection, small = pruned(Steered(), make)
    assert FED not in str(tl.plan_of(small))
    assert not exact_or_refused(plugin, selection, small, make(7, 9))
    with pytest.raises(tl.FieldError, match=r"batch\.mode to be 'plain', .* found 'negated'"):
        small(make(7, 9, "negated"))
    plain = pruned(Ranker(), make)[2]
    plain(make(7, 9, "negated"))  # it never reads the mode


def test_a_batch_of_another_class_is_refused():
    *_, small = pruned(Ranker(), lambda rows=32, seed=0: Columns(**ids_by_name(rows, seed)))
    with pytest.raises(tl.FieldError, match=r"Expected batch to be .*Columns, .* found a Holder"):
        small(Holder(ids_by_name(7, 9)))


def test_a_pruned_model_that_takes_objects_is_pruned_again():
    torch.manual_seed(0)

    def make(rows=32, seed=0):
        return Columns(**ids_by_name(rows, seed))

    plugin, selection, small = pruned(Ranker(), make)
    plugin, selection, twice = pruned(small, make, fields=dict.fromkeys(selection.kept, 4))
    assert FED not in str(tl.plan_of(twice))
    assert_same(plugin, selection, twice, make(7, 9))


class Changing(Ranker):
    def forward(self, batch):
        y = super().forward(batch)
        batch.mode = "seen"
        return y


class Appending(Ranker):
    def forward(self, batch, more):
        more.append(batch["user"])
        return super().forward(batch) * len(more)


@pytest.mark.parametrize("kind", [Changing, Appending])
def test_a_forward_that_changes_the_batch_keeps_its_python(kind):
    torch.manual_seed(0)

    def make(rows=32, seed=0):
        batch = Columns(**ids_by_name(rows, seed))
        return batch if kind is Changing else (batch, [torch.ones(rows)])

    *_, small = pruned(kind(), make)
    assert "forward() changes the batch" in str(tl.plan_of(small))
    batch = make(7, 9)
    small(*batch) if isinstance(batch, tuple) else small(batch)
    changed = batch[1] if isinstance(batch, tuple) else batch
    assert len(changed) == 2 if kind is Appending else changed.mode == "seen"


class Guarded:
    """An object that refuses to be copied with other attributes."""

    def __init__(self, entries):
        self.entries = entries
        self.schema = object()

    def __getitem__(self, name):
        return self.entries[name]


@dataclass(frozen=True)
class Sealed:
    """A frozen dataclass that holds another object, and one without a `__dict__`."""

    inner: Columns
    numbers: tuple = (1, 2.0)
    cached: dict = field(default_factory=dict)


def test_objects_with_attributes_that_cannot_be_compared_are_read_by_their_attributes_alone():
    class Reading(Ranker):
        def forward(self, batch):
            return super().forward({name: batch.entries[name] for name in NAMES})

    make = lambda rows=32, seed=0: Guarded(ids_by_name(rows, seed))  # noqa: E731
    plugin, selection, small = pruned(Reading(), make)
    assert FED not in str(tl.plan_of(small))
    assert_same(plugin, selection, small, make(7, 9))


def test_objects_within_objects_are_followed():
    class Reading(Ranker):
        def forward(self, batch):
            return super().forward(batch.inner) * batch.numbers[1]

    make = lambda rows=32, seed=0: Sealed(Columns(**ids_by_name(rows, seed)))  # noqa: E731
    plugin, selection, small = pruned(Reading(), make)
    assert FED not in str(tl.plan_of(small))
    assert_same(plugin, selection, small, make(7, 9))


def test_an_object_is_given_as_a_whole_to_a_module_that_cannot_be_followed():
    torch.manual_seed(0)

    class Odd(nn.Module):
        def forward(self, batch):
            return batch.user if batch.item.sum() > -1 else batch.item

    class Asking(Ranker):
        def __init__(self):
            super().__init__()
            self.odd = Odd()

        def forward(self, batch):
            return super().forward(batch) * self.odd(batch)[:, None]

    make = lambda rows=32, seed=0: Columns(**ids_by_name(rows, seed))  # noqa: E731
    plugin, selection, small = pruned(Asking(), make)
    assert FED not in str(tl.plan_of(small))
    assert_same(plugin, selection, small, make(7, 9))


@pytest.mark.parametrize("arguments", [(None, dict, dict), (Table, None, dict), (Table, dict, 3)])
def test_a_registration_is_a_class_and_two_functions(arguments):
    with pytest.raises(tl.AttachError, match="with a class and two functions"):
        tl.register_batch(*arguments)


def test_arguments_without_names_are_followed():
    torch.manual_seed(0)

    class Open(Ranker):
        def forward(self, *columns, **named):
            y = super().forward(dict(zip(NAMES, columns, strict=True)))
            return y * len(columns) + sum(named.values())

    make = lambda rows=32, seed=0: tuple(ids_by_name(rows, seed).values())  # noqa: E731
    plugin, selection, small = pruned(Open(), make)
    assert FED not in str(tl.plan_of(small))
    for rows in (7, 1, 50):
        assert_same(plugin, selection, small, make(rows, 9))
    with pytest.raises(tl.FieldError, match="Expected columns to be 5 values, .* found 6 values"):
        small(*make(7, 9), torch.ones(7))
    with pytest.raises(tl.FieldError, match="entries like those of the example"):
        small(*make(7, 9), more=torch.ones(7, 1))


def test_an_empty_list_of_the_batch_stays_empty():
    torch.manual_seed(0)

    class Lists(Ranker):
        def forward(self, columns, embeddings):
            batch = dict(zip(NAMES, columns, strict=True))
            y = self.deep(self.embed(batch))
            return torch.cat([y, *embeddings]) if embeddings != [] else y

    def make(rows=32, seed=0):
        return list(ids_by_name(rows, seed).values()), []

    plugin, selection, small = pruned(Lists(), make)
    assert FED not in str(tl.plan_of(small))
    assert_same(plugin, selection, small, make(7, 9))
    with pytest.raises(tl.FieldError, match="embeddings"):
        small(make(7, 9)[0], [torch.ones(1, 1)])


def test_a_part_of_a_batch_is_data_and_never_a_method():
    batch = Columns(**ids_by_name(7, 9))
    assert walk(batch, (("attribute", "user"),)) is batch.user
    for name in ("to", "__class__"):
        with pytest.raises(AttributeError, match=name):
            walk(batch, (("attribute", name),))


class Copied:
    """An object that copies its parts into a dict of its own."""

    def __init__(self, columns):
        self.columns = {**columns}
        self.rows = len(columns["user"])

    def __getitem__(self, name):
        return self.columns[name]

    def __contains__(self, name):
        return name in self.columns

    def __len__(self):
        return self.rows


class Counted(Copied):
    def __init__(self, columns):
        super().__init__(columns)
        self.names = list(columns)


class Listed(Copied):
    def __init__(self, columns):
        super().__init__(columns)
        self.every = list(columns.values())


for kind in (Copied, Counted, Listed):
    tl.register_batch(
        kind, lambda batch: batch.columns, lambda parts, like, kind=kind: kind({**parts})
    )


def with_label(batch):
    return type(batch)({**batch.columns, "label": torch.zeros(len(batch))})


def copied(kind):
    return lambda rows=32, seed=0: kind(ids_by_name(rows, seed))


def test_a_registered_batch_may_have_a_label_that_the_example_lacks():
    plugin, selection, small = pruned(Ranker(), copied(Copied))
    assert FED not in str(tl.plan_of(small))
    batch = copied(Copied)(7, 9)
    assert_same(plugin, selection, small, batch)
    torch.testing.assert_close(small(with_label(batch)), small(batch))


@pytest.mark.parametrize("kind", [Counted, Listed])
def test_a_registered_batch_that_knows_how_many_parts_it_has_is_refused_with_another_one(kind):
    _, _, small = pruned(Ranker(), copied(kind))
    assert FED not in str(tl.plan_of(small))
    with pytest.raises(tl.FieldError, match="'label' was not in the example"):
        small(with_label(copied(kind)(7, 9)))


class Asking(Ranker):
    def __init__(self, question):
        super().__init__()
        self.question = question

    def forward(self, batch):
        found = super().forward(batch)
        return -found if self.question(batch) else found


@pytest.mark.parametrize(
    "question",
    [
        lambda batch: "label" in batch,
        lambda batch: len(batch.columns) > len(NAMES),
        lambda batch: "label" in list(batch.columns),
    ],
)
def test_a_label_that_forward_asks_for_is_refused(question):
    _, _, small = pruned(Asking(question), copied(Copied))
    assert FED not in str(tl.plan_of(small))
    with pytest.raises(tl.FieldError, match="'label' was not in the example"):
        small(with_label(copied(Copied)(7, 9)))


class Slots:
    __slots__ = NAMES

    def __init__(self, columns):
        for name in NAMES:
            setattr(self, name, columns[name])

    def __getitem__(self, name):
        return getattr(self, name)


class Delegating:
    """An object whose attributes are the entries of a dict."""

    def __init__(self, columns):
        self._columns = columns

    def __getattr__(self, name):
        if name == "_columns" or name not in self._columns:
            raise AttributeError(name)
        return self._columns[name]

    def __getitem__(self, name):
        return getattr(self, name)


@pytest.mark.parametrize("kind", [Slots, Delegating])
def test_objects_with_slots_and_private_attributes_are_followed_saved_and_loaded(kind, tmp_path):
    plugin, selection, small = pruned(Ranker(), copied(kind))
    assert FED not in str(tl.plan_of(small))
    batch = copied(kind)(7, 9)
    assert_same(plugin, selection, small, batch)
    assert tl.export.save(small, tmp_path / "small").loads_without_code
    torch.testing.assert_close(tl.export.load(tmp_path / "small")(batch), small(batch))
