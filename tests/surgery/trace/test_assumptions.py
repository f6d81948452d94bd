"""Assumptions are listed in the plan and checked at each call: batches are exact, or refused."""

import enum
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchleap as tl
from tests.architectures import NAMES, ids_by_name
from tests.surgery.test_traps import FED, Ranker, assert_same, pruned

FIELDS = tl.Fields({"item": 4, "history": 4, "x": 4})


def exact_or_refused(plugin, selection, small, batch):
    """The promise. Returns whether the batch was refused."""
    batch = batch if isinstance(batch, tuple) else (batch,)
    with torch.no_grad(), plugin.masked(selection):
        expected = plugin.model.eval()(*batch)
    try:
        found = small(*batch)
    except tl.FieldError as error:
        assert "Expected" in str(error)
        assert "found" in str(error) or "in the example" in str(error) or "missing" in str(error)
        return True
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    return False


class Sequence(nn.Module):
    """Tables of an item and of histories; how these are pooled is up to the test."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.item = nn.Embedding(12, 4)
        self.history = nn.Embedding(12, 4)
        self.wide = nn.Linear(12, 4, bias=False)
        self.join = nn.Identity()
        self.head = nn.Linear(12, 1)

    def forward(self, batch):
        pooled = self.pool(self, self.history(batch["history"]), batch)
        return self.head(self.join(torch.cat([self.item(batch["item"]), pooled, batch["x"]], 1)))


def sequences(rows=32, seed=0, length=5, **others):
    rng = torch.Generator().manual_seed(seed)
    batch = {
        "item": torch.randint(12, (rows,), generator=rng),
        "history": torch.randint(12, (rows, length), generator=rng),
        "length": torch.randint(1, length + 1, (rows,), generator=rng),
        "x": torch.randn(rows, 4, generator=rng),
    }
    return batch | {name: make(rows, length, rng) for name, make in others.items()}


def mean_of(vectors):
    return vectors.sum(1) / vectors.size(1)


def blocks(m, h, b):
    return h.reshape(h.size(0), -1, 4, 4).mean(2).sum(1) / (h.size(1) // 4)


BOUND = {
    "one shorter": (
        lambda m, h, b: (h[:, 1:] * b["gaps"].unsqueeze(2)).sum(1) / b["gaps"].size(1),
        {"gaps": lambda rows, length, rng: torch.rand(rows, length - 1, generator=rng)},
        5,
    ),
    "blocks of four": (blocks, {}, 8),
    "a multiple": (
        lambda m, h, b: (
            (h.unsqueeze(2) * b["parts"].view(len(b["parts"]), -1, 3, 1)).sum((1, 2))
            / b["parts"].size(1)
        ),
        {"parts": lambda rows, length, rng: torch.rand(rows, 3 * length, generator=rng)},
        5,
    ),
    "a square": (
        lambda m, h, b: (b["pairs"].view(-1, h.size(1), h.size(1)) @ h).sum(1) / b["pairs"].size(1),
        {"pairs": lambda rows, length, rng: torch.rand(rows, length * length, generator=rng)},
        5,
    ),
    "the first three": (lambda m, h, b: h[:, :3].sum(1) / h[:, :3].size(1), {}, 5),
    "at most six": (lambda m, h, b: mean_of(h[:, -6:]), {}, 5),
    "padded": (
        lambda m, h, b: functional.pad(h, (0, 0, 0, max(0, 8 - h.size(1))))[:, -1] + mean_of(h),
        {},
        5,
    ),
    "the last behind padding": (lambda m, h, b: functional.pad(h, (0, 0, 2, 0))[:, -1], {}, 5),
    "a loop over the positions": (
        lambda m, h, b: sum(h[:, i] * i for i in range(h.size(1))),
        {},
        5,
    ),
}


@pytest.mark.parametrize("name", BOUND)
@pytest.mark.parametrize("dropped", [0, 2])
def test_lengths_bound_to_each_other_are_computed_or_refused(name, dropped):
    torch.manual_seed(0)
    pool, others, length = BOUND[name]
    selection = tl.Selection(FIELDS, (0.5,) * 3, tuple(place != dropped for place in range(3)))
    make = lambda rows=32, seed=0, length=length: sequences(rows, seed, length, **others)  # noqa: E731
    plugin, selection, small = pruned(Sequence(pool), make, fields=FIELDS, selection=selection)
    refused = []
    for rows, other in ((7, length), (7, 2 * length), (1, length + 4), (5, 4), (3, 12), (4, 2)):
        try:
            batch = make(rows, 9, other)
            plugin.model.eval()(batch)
        except RuntimeError:
            continue
        refused.append(exact_or_refused(plugin, selection, small, batch))
    assert not refused[0]
    if name not in ("a square",):
        assert not any(refused)


@pytest.mark.parametrize("saved", [False, True])
def test_a_model_that_is_pruned_again_checks_what_the_first_pruning_assumed(saved, tmp_path):
    torch.manual_seed(0)
    pool, others, length = BOUND["a square"]
    make = lambda rows=32, seed=0, length=length: sequences(rows, seed, length, **others)  # noqa: E731
    first = tl.Selection(FIELDS, (0.5,) * 3, (True, True, False))
    _, _, small = pruned(Sequence(pool), make, fields=FIELDS, selection=first)
    if saved:
        tl.export.save(small, tmp_path / "small")
        small = tl.export.load(tmp_path / "small")
    plugin = tl.attach(small, {"item": 4, "history": 4}, at="head")
    small.train()(make())
    again = plugin.prune(
        tl.Selection(plugin.fields, (0.0, 1.0), (False, True)), example=(make(),)
    ).eval()
    assert "constants are fed instead" not in str(tl.plan_of(again))
    again(make(7, 9))
    with pytest.raises(tl.FieldError, match="as in the example"):
        again(make(7, 9, length + 1))


def padded_to_longest(m, h, b):
    longest = int(b["length"].max())
    return h[:, :longest].sum(1) / longest


VALUES = {
    "up to the longest": lambda m, h, b: mean_of(h[:, : b["length"].max()]),
    "up to the longest as a number": lambda m, h, b: mean_of(h[:, : b["length"].max().item()]),
    "up to the longest as an int": padded_to_longest,
    "narrowed": lambda m, h, b: mean_of(h.narrow(1, 0, b["length"].max().item())),
    "one-hot": lambda m, h, b: (
        m.wide.weight.sum()
        * functional.one_hot(b["item"]).float().sum(1, keepdim=True).expand(-1, 4)
        / functional.one_hot(b["item"]).shape[1]
    ),
    "one-hot of all ids": lambda m, h, b: m.wide(functional.one_hot(b["item"], 12).float()),
    "nonzero": lambda m, h, b: h.mean(1) / (1 + b["item"].nonzero().shape[0]),
    "nonzero at once": lambda m, h, b: (
        h.mean(1) / (1 + torch.nonzero(b["item"] > 3, as_tuple=True)[0].shape[0])
    ),
    "where": lambda m, h, b: h.mean(1) / (1 + torch.where(b["item"] > 3)[0].numel()),
    "unique": lambda m, h, b: h.mean(1) * b["item"].unique().size(0),
    "unique with counts": lambda m, h, b: (
        h.mean(1) * torch.unique(b["item"], return_counts=True)[1].size(0)
    ),
    "each id once": lambda m, h, b: (lambda ids, place: m.history(ids)[place])(
        *torch.unique(b["item"], return_inverse=True)
    ),
    "sorted up to the longest": lambda m, h, b: mean_of(h[:, : b["length"].max()].sort(dim=1)[0]),
    "sorted by name": lambda m, h, b: mean_of(h[:, : b["length"].max()].sort(dim=1).values),
    "masked_select": lambda m, h, b: (
        h.mean(1) / (1 + b["item"].masked_select(b["item"] > 3).numel())
    ),
    "a boolean index": lambda m, h, b: h.mean(1) * (1 + b["item"][b["item"] > 3].shape[0]),
    "the mean of a boolean index": lambda m, h, b: h.mean(1) - h[b["length"] > 1].mean((0, 1)),
    "bincount": lambda m, h, b: h.mean(1) / torch.bincount(b["item"]).shape[0],
    "repeat_interleave": lambda m, h, b: (
        h.mean(1) / torch.repeat_interleave(b["item"], b["length"]).shape[0]
    ),
    "arange": lambda m, h, b: h.mean(1) * torch.arange(b["length"].max().item()).shape[0],
    "item": lambda m, h, b: h.mean(1) * b["length"].max().item(),
    "tolist": lambda m, h, b: h.mean(1) * max(b["length"].tolist()),
    "int": lambda m, h, b: h.mean(1) * int(b["length"].max()),
    "a list of lengths": lambda m, h, b: torch.stack(
        [row[:n].mean(0) for row, n in zip(h, b["length"].tolist(), strict=True)]
    ),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("dropped", [0, 2])
def test_sizes_that_depend_on_values_are_never_constants(name, dropped):
    torch.manual_seed(0)
    selection = tl.Selection(FIELDS, (0.5,) * 3, tuple(place != dropped for place in range(3)))

    def make(rows=32, seed=0, full=True):  # the example's histories are full, and its items many
        batch = sequences(rows, seed)
        if full:
            batch["length"] = torch.full((rows,), 5)
            batch["item"] = torch.arange(rows) % 12
        return batch

    plugin, selection, small = pruned(
        Sequence(VALUES[name]), make, fields=FIELDS, selection=selection
    )
    for rows, seed in ((7, 9), (1, 3), (40, 5)):
        assert not exact_or_refused(plugin, selection, small, make(rows, seed, full=False))


def test_rows_that_are_filtered_before_the_gates_are_computed():
    class Filtering(Ranker):
        def forward(self, batch):
            x = torch.cat([self.tables[name](batch[name]) for name in NAMES], 1)
            return self.deep(self.join(x[batch["valid"]]))

    def make(rows=32, seed=0):
        valid = torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < (
            0.6 if seed else 2
        )
        return ids_by_name(rows, seed) | {"valid": valid}

    for first in (0, 1):
        plugin, selection, small = pruned(
            Filtering(), lambda rows=32, seed=0, first=first: make(rows, seed + first)
        )
        for rows, seed in ((7, 9), (1, 0), (40, 5)):
            assert not exact_or_refused(plugin, selection, small, make(rows, seed))


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


def test_more_arguments_and_keywords_are_given_to_the_models_own_python():
    class Open(Ranker):
        def forward(self, batch, *more, **named):
            return self.deep(self.embed(batch)) * (len(more) + 1) + len(named)

    plugin, selection, small = pruned(Open(), lambda rows=32, seed=0: (ids_by_name(rows, seed),))
    assert FED in str(tl.plan_of(small))
    for call in ((ids_by_name(7, 9),), (ids_by_name(7, 9), 1)):
        assert not exact_or_refused(plugin, selection, small, call)


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
    selection = tl.Selection(FIELDS, (0.5,) * 3, (True, False, True))
    plugin, selection, small = pruned(
        Sequence(lambda m, h, b: mean_of(h)), sequences, fields=FIELDS, selection=selection
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
    selection = tl.Selection(FIELDS, (0.5,) * 3, (False, True, True))
    *_, small = pruned(
        Sequence(lambda m, h, b: mean_of(h)), sequences, fields=FIELDS, selection=selection
    )
    assert tl.plan_of(small).assumptions == (
        "lengths of `batch['history']` may differ",
        "`batch['x']` has 4 columns (others are refused)",
    )
