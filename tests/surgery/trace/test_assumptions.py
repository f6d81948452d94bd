"""Assumptions are listed in the plan and checked at each call: batches are exact, or refused."""

import enum
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torchleap as tl
from tests.architectures import NAMES, ids_by_name
from tests.surgery.helpers import (
    FED,
    SEQUENCE_FIELDS,
    Ranker,
    Sequence,
    assert_same,
    exact_or_refused,
    mean_of,
    pruned,
    sequences,
)


class Masked(Ranker):
    def forward(self, batch, mask=None, scale=2.0):
        y = self.deep(self.embed(batch)) * scale
        return y if mask is None else y * mask[:, None]


def test_an_argument_that_the_example_leaves_out_may_not_be_given_later(tmp_path):
    plugin, selection, small = pruned(Masked())
    assert tl.plan_of(small).assumptions == ("`mask` is left out", "`scale` is left out")
    assert "Assumes: `mask` is left out; `scale` is left out." in str(tl.plan_of(small))
    tl.export.save(small, tmp_path / "model")
    batch = ids_by_name(7, 9)
    for model in (small, tl.export.load(tmp_path / "model")):
        assert_same(plugin, selection, model, batch)
        assert torch.equal(model(batch, None), model(batch))
        assert torch.equal(model(batch, mask=None, scale=2.0), model(batch))
        with pytest.raises(
            tl.FieldError, match="Expected mask to be None, .* found a tensor of shape .* example="
        ):
            model(batch, torch.ones(7))
        with pytest.raises(tl.FieldError, match=r"Expected scale to be 2.0"):
            model(batch, scale=1.0)


def test_an_argument_that_the_example_gives_may_not_be_left_out(tmp_path):
    plugin, selection, small = pruned(
        Masked(), lambda rows=32, seed=0: (ids_by_name(rows, seed), torch.rand(rows))
    )
    assert tl.plan_of(small).assumptions == ("`mask` is given", "`scale` is left out")
    tl.export.save(small, tmp_path / "model")
    batch = ids_by_name(7, 9)
    for model in (small, tl.export.load(tmp_path / "model")):
        assert_same(plugin, selection, model, (batch, torch.rand(7)))
        for call in ((batch,), (batch, None)):
            with pytest.raises(
                tl.FieldError, match="Expected mask to be a tensor of shape .any., .* found None"
            ):
                model(*call)


@pytest.mark.parametrize("given", [True, False])
def test_entries_and_attributes_that_are_none_stay_none(given):
    class Boxed(Ranker):
        def forward(self, batch):
            y = self.deep(self.embed(batch.ids))
            return y if batch.mask is None else y * batch.mask[:, None]

    @dataclass
    class Box:
        ids: Any
        mask: Any = None

    def make(rows=32, seed=0, given=given):
        return Box(ids_by_name(rows, seed), torch.rand(rows) if given else None)

    plugin, selection, small = pruned(Boxed(), make)
    assert not exact_or_refused(plugin, selection, small, make(7, 9))
    exact_or_refused(plugin, selection, small, make(7, 9, not given))


Tuple = namedtuple("Tuple", [*NAMES, "mask"])


def attribute_or_item(batch, name):
    return batch[name] if isinstance(batch, dict) else getattr(batch, name)


class Anything(Ranker):
    """Reads batches of any kind."""

    def embed(self, batch):
        return super().embed({name: self.read(batch, name) for name in NAMES})

    def forward(self, batch):
        y = self.deep(self.embed(batch))
        mask = self.read(batch, "mask")
        return y if mask is None else y * mask[:, None]


class ByAttribute(Anything):
    def read(self, batch, name):
        return getattr(batch, name)


class ByPlace(Anything):
    def read(self, batch, name):
        return batch[(*NAMES, "mask").index(name)]


class Nested(Anything):
    def read(self, batch, name):
        return batch["more"]["mask"] if name == "mask" else batch["ids"][name]


class NestedGet(Anything):
    def read(self, batch, name):
        return batch["more"].get("mask") if name == "mask" else batch["ids"][name]


class Custom:
    def __init__(self, **entries):
        self.entries = entries

    def __getattr__(self, name):
        if name.startswith("__") or name == "entries":
            raise AttributeError(name)
        return self.entries[name]


KINDS = {
    "a named tuple": (ByAttribute, lambda ids, mask: Tuple(**ids, mask=mask)),
    "a tuple": (ByPlace, lambda ids, mask: [(*ids.values(), mask)][0]),
    "a list": (ByPlace, lambda ids, mask: [*ids.values(), mask]),
    "a namespace": (ByAttribute, lambda ids, mask: SimpleNamespace(**ids, mask=mask)),
    "a class": (ByAttribute, lambda ids, mask: Custom(**ids, mask=mask)),
    "nested dicts": (Nested, lambda ids, mask: {"ids": ids, "more": {"mask": mask}}),
    "nested dicts, asked": (
        NestedGet,
        lambda ids, mask: {"ids": ids, "more": {} if mask is None else {"mask": mask}},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [True, False])
def test_batches_of_any_kind_are_computed_or_refused(kind, given):
    torch.manual_seed(0)
    model, box = KINDS[kind]

    def make(rows=32, seed=0, given=given):
        return (box(ids_by_name(rows, seed), torch.rand(rows) if given else None),)

    plugin, selection, small = pruned(model(), make)
    assert not exact_or_refused(plugin, selection, small, make(7, 9))
    exact_or_refused(plugin, selection, small, make(7, 9, not given))


class Mode(enum.Enum):
    PLAIN = 1
    NEGATED = 2


STEERED = {
    "an int": (lambda y, by: y * by if by > 1 else -y, 1, 2),
    "a string": (lambda y, by: y if by == "plain" else -y, "plain", "negated"),
    "a bool": (lambda y, by: y if by else -y, True, False),
    "an enum": (lambda y, by: y if by is Mode.PLAIN else -y, Mode.PLAIN, Mode.NEGATED),
    "a number or a tensor": (
        lambda y, by: y * by if isinstance(by, torch.Tensor) else y,
        3.0,
        torch.tensor(3.0),
    ),
    "a tensor or a number": (
        lambda y, by: y * by if isinstance(by, torch.Tensor) else y,
        torch.tensor(3.0),
        3.0,
    ),
    "a dtype": (
        lambda y, by: y * 2 if by.dtype == torch.float64 else y,
        torch.ones(1),
        torch.ones(1).double(),
    ),
    "a kind of number": (
        lambda y, by: y * 2 if by.is_floating_point() else y,
        torch.ones(1),
        torch.ones(1).long(),
    ),
    "gradients": (
        lambda y, by: y * 2 if by.requires_grad else y,
        torch.ones(1),
        torch.ones(1, requires_grad=True),
    ),
    "dimensions": (lambda y, by: y * 2 if by.dim() == 2 else y, torch.ones(1), torch.ones(1, 1)),
    "a layout": (
        lambda y, by: y * 2 if by.is_sparse else y,
        torch.ones(1),
        torch.ones(1).to_sparse(),
    ),
    "a device": (
        lambda y, by: y * 2 if by.device.type == "meta" else y,
        torch.ones(1),
        torch.ones(1, device="meta"),
    ),
    "the dtype of a product": (
        lambda y, by: y * (1 + ((by * 2).dtype == torch.float64)),
        torch.ones(1),
        torch.ones(1).double(),
    ),
    "a length": (lambda y, by: y * by.shape[0], torch.ones(3), torch.ones(4)),
    "a square": (
        lambda y, by: y * by.view(int(by.numel() ** 0.5), -1).shape[0],
        torch.ones(9),
        torch.ones(16),
    ),
}


@pytest.mark.parametrize("name", STEERED)
def test_what_another_argument_steers_is_computed_or_refused(name):
    torch.manual_seed(0)
    steer, usual, other = STEERED[name]

    class Steered(Ranker):
        def forward(self, batch, by):
            return steer(self.deep(self.embed(batch)), by)

    plugin, selection, small = pruned(
        Steered(), lambda rows=32, seed=0: (ids_by_name(rows, seed), usual)
    )
    assert not exact_or_refused(plugin, selection, small, (ids_by_name(7, 9), usual))
    exact_or_refused(plugin, selection, small, (ids_by_name(7, 9), other))


def test_a_forward_that_counts_its_arguments_refuses_more_than_in_the_example():
    class Open(Ranker):
        def forward(self, batch, *more, **named):
            return self.deep(self.embed(batch)) * (len(more) + 1) + len(named)

    plugin, selection, small = pruned(Open(), lambda rows=32, seed=0: (ids_by_name(rows, seed),))
    assert FED not in str(tl.plan_of(small))
    assert not exact_or_refused(plugin, selection, small, (ids_by_name(7, 9),))
    assert exact_or_refused(plugin, selection, small, (ids_by_name(7, 9), 1))


WALKS = {
    "reversed": lambda b: [name for name in reversed(b) if name.startswith("extra")],
    "sorted": lambda b: [name for name in sorted(b) if name.startswith("extra")],
    "list": lambda b: list(b)[5:],
    "len": lambda b: ["extra"] * (len(b) > 5),
    "next": lambda b: [] if next(iter(b)) in NAMES else ["extra"],
    "or": lambda b: [name for name in (b | {"none": 1}) if name.startswith("extra")],
    "or, reflected": lambda b: [name for name in ({"none": 1} | b) if name.startswith("extra")],
    "unpacked": lambda b: [
        name for name in (lambda **named: named)(**b) if name.startswith("extra")
    ],
    "a display": lambda b: [name for name in {**b} if name.startswith("extra")],
    "equal": lambda b: [] if b == dict(b) and set(b) <= set(NAMES) else ["extra"],
    "not equal": lambda b: ["extra"] if b.keys() != set(NAMES) else [],
    "in": lambda b: ["extra"] if "extra" in b else [],
    "get": lambda b: [] if b.get("extra") is None else ["extra"],
    "try": lambda b: _tried(b),
    "copied": lambda b: ["extra"] if "extra" in b.copy() else [],
}


def _tried(batch):
    try:
        return ["extra"] if batch["extra"] is not None else []
    except KeyError:
        return []


@pytest.mark.parametrize("walk", WALKS)
def test_however_forward_asks_for_the_entries_of_a_batch_others_are_refused(walk):
    torch.manual_seed(0)

    class Walking(Ranker):
        def forward(self, batch):
            y = self.deep(self.embed(batch))
            for name in WALKS[walk](batch):
                y = y + batch[name][:, None]
            return y

    plugin, selection, small = pruned(Walking())
    batch = ids_by_name(7, 9)
    assert not exact_or_refused(plugin, selection, small, batch)
    assert exact_or_refused(
        plugin, selection, small, {"extra": torch.ones(7), **batch}
    ) or FED in str(tl.plan_of(small))
    kept = {name: column for name, column in batch.items() if name in selection.kept}
    if FED not in str(tl.plan_of(small)):
        assert torch.equal(small(kept), small(batch))


def test_guards_let_any_number_of_rows_pass_and_batches_without_what_is_not_read():
    selection = tl.Selection(SEQUENCE_FIELDS, (0.5,) * 3, (True, False, True))
    plugin, selection, small = pruned(
        Sequence(lambda m, h, b: mean_of(h)), sequences, fields=SEQUENCE_FIELDS, selection=selection
    )
    for rows in (0, 1, 3):
        assert not exact_or_refused(plugin, selection, small, sequences(rows, 9))
    kept = {name: column for name, column in sequences(3, 9).items() if name in ("item", "x")}
    assert torch.equal(small(kept), small(sequences(3, 9)))
    with pytest.raises(
        tl.FieldError,
        match=r"Expected batch\['item'\] to be a tensor of shape \(any\), .* found nothing",
    ):
        small({"x": kept["x"]})


def test_guards_are_compiled_and_exported(tmp_path):
    _, selection, small = pruned(
        Masked(), lambda rows=32, seed=0: (ids_by_name(rows, seed), torch.rand(rows))
    )
    call = (ids_by_name(7, 9), torch.rand(7))
    torch.testing.assert_close(
        torch.compile(small, fullgraph=True, backend="eager")(*call), small(*call)
    )
    tl.export.to_program(small, tmp_path / "model.pt2", call)
    kept = {name: column for name, column in call[0].items() if name in selection.kept}
    torch.testing.assert_close(
        torch.export.load(tmp_path / "model.pt2").module()(kept, call[1]), small(*call)
    )


def test_the_plan_says_which_lengths_may_differ():
    selection = tl.Selection(SEQUENCE_FIELDS, (0.5,) * 3, (False, True, True))
    *_, small = pruned(
        Sequence(lambda m, h, b: mean_of(h)), sequences, fields=SEQUENCE_FIELDS, selection=selection
    )
    assert tl.plan_of(small).assumptions == (
        "lengths of `batch['history']` may differ",
        "`batch['x']` has 4 columns (others are refused)",
    )
