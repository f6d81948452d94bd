"""Random ranking models that do what people's models do, and a trial: prune one, and compare it with the masked one.

A model is put together from constructs by a seed. It is pruned with one batch as its example, and then gets batches of other
sizes, values and lengths, with and without optional parts. What it returns is that of the masked model, or there is an error.

    >>> trial(3).kind in ("exact", "fed", "refused")
    True
"""

import random
import signal
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

import torchleap as tl
from torchleap.surgery.compare import leaves_of

FIELDS = ("user", "item", "city", "shop", "hour")
IDS = 24
WIDTH = 4
COLUMNS = len(FIELDS) * WIDTH
SECONDS = 60  # after which a trial counts as one that hangs

Batch = dict[str, Any]


class Part(nn.Module):
    """A construct with its layers."""

    def __init__(self, function: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.flag = 1.0
        self.seen: list[Tensor] = []
        self.weights = nn.Parameter(torch.randn(IDS, WIDTH))
        for name, layer in layers.items():
            if name in function.__code__.co_names:
                setattr(self, name, layer)

    def forward(self, *args: Any) -> Tensor:
        return self.function(self, *args)


# In front of the gates: one field each, (B, WIDTH), of part, batch and the field's name


def table(m, b, name):
    return m.table(b[name])


def scaled_table(m, b, name):
    return m.table(b[name]) * 2 - 0.1


def table_changed_in_place(m, b, name):
    row = m.table(b[name])
    row += 1
    return row


def table_in_layers(m, b, name):
    return functional.relu(m.linear(m.table(b[name])))


def bag(m, b, name):
    return m.bag(b["clicks"])


def numbers(m, b, name):
    return m.dense(b["price"].to(m.weights.dtype))


def mean_of_history(m, b, name):
    return m.table(b["clicks"]).mean(1)


def masked_history(m, b, name):
    inside = torch.arange(b["clicks"].size(1))[None] < b["length"][:, None]
    return (m.table(b["clicks"]) * inside[..., None]).sum(1)


def longest_history(m, b, name):
    return m.table(b["clicks"][:, : b["length"].max()]).sum(1)


def last_of_history(m, b, name):
    return m.table(b["clicks"][:, -1])


def attention_over_history(m, b, name):
    found = m.table(b["clicks"])
    scores = (found * m.weights[0]).sum(-1).softmax(1)
    return (found * scores[..., None]).sum(1)


def history_but_the_last(m, b, name):
    found = m.table(b["clicks"])
    return found[:, : found.size(1) - 1].sum(1) / found.size(1)


def blocks_of_history(m, b, name):
    found = m.table(b["clicks"])
    if found.size(1) % 4 == 0:
        found = found.view(found.size(0), -1, 4, WIDTH).amax(2)
    return found.sum(1)


def one_hot(m, b, name):
    hot = functional.one_hot(b[name]).to(m.weights.dtype)
    return hot @ m.weights[: hot.size(1)]


def number_of_values(m, b, name):
    return m.table(b[name]) * len(torch.unique(b[name]))


def positive_ids(m, b, name):
    return m.table(b[name]) * (b[name].nonzero().size(0) / 10)


FRONTS: dict[str, Callable[..., Tensor]] = {
    "table": table,
    "shared table": table,
    "scaled table": scaled_table,
    "table changed in place": table_changed_in_place,
    "table in layers": table_in_layers,
    "bag": bag,
    "numbers": numbers,
    "mean of history": mean_of_history,
    "masked history": masked_history,
    "longest history": longest_history,
    "last of history": last_of_history,
    "attention over history": attention_over_history,
    "history but the last": history_but_the_last,
    "blocks of history": blocks_of_history,
    "one_hot": one_hot,
    "number of values": number_of_values,
    "positive ids": positive_ids,
}


# Behind the gates: (B, COLUMNS) to the same, of part, columns, batch, mask and the rows of the first table


def product(m, x, b, mask, rows):
    return x * m.linear(x) + x


def pairs(m, x, b, mask, rows):
    x = x.view(-1, len(FIELDS), WIDTH)
    return (x.sum(1).pow(2) - x.pow(2).sum(1)).repeat(1, len(FIELDS)) + x.flatten(1)


def attention_over_fields(m, x, b, mask, rows):
    tokens = x.reshape(x.shape[0], len(FIELDS), WIDTH)
    scores = (tokens @ tokens.transpose(1, 2)).softmax(-1)
    return (scores @ tokens).flatten(1)


def parts_of_split(m, x, b, mask, rows):
    return torch.cat([part * place for place, part in enumerate(x.chunk(len(FIELDS), 1), 1)], 1)


def stacked(m, x, b, mask, rows):
    return torch.stack([x, x.flip(1)], 2).sum(2)


def norm(m, x, b, mask, rows):
    return m.norm(x)


def dropout(m, x, b, mask, rows):
    return functional.dropout(x, 0.3, m.training)


def opaque(m, x, b, mask, rows):
    return m.linear(x) if float(x.detach().abs().max()) < 1e6 else x


def hooked_layer(m, x, b, mask, rows):
    return m.hooked(x)


def hooked_group(m, x, b, mask, rows):
    return m.group(x)


def optional_mask(m, x, b, mask, rows):
    return x if mask is None else x * mask[:, None]


def optional_entry(m, x, b, mask, rows):
    return x * b["weight"][:, None] if "weight" in b else x


def entry_or_default(m, x, b, mask, rows):
    weight = b.get("weight")
    return x if weight is None else x + weight[:, None]


def by_values(m, x, b, mask, rows):
    return m.linear(x) if (b["late"] >= 12).any() else x


def by_fields(m, x, b, mask, rows):
    return x * 2 if x.sum() > 0 else x


def by_rows(m, x, b, mask, rows):
    return m.linear(x) if len(x) > 40 else x


def by_length(m, x, b, mask, rows):
    return m.linear(x) if b["clicks"].shape[1] > 6 else x


def by_dtype(m, x, b, mask, rows):
    return x * 2 if b["price"].dtype == torch.float64 else x


def by_floating_point(m, x, b, mask, rows):
    return x * 2 if b["price"].is_floating_point() else x


def made_in_forward(m, x, b, mask, rows):
    return nn.ReLU()(x)


def own_parameters(m, x, b, mask, rows):
    return functional.linear(x, m.linear._parameters["weight"], m.linear._parameters["bias"])


def named_parameters(m, x, b, mask, rows):
    found = dict(m.linear.named_parameters())
    return x * found["bias"]


def parameters_as_vector(m, x, b, mask, rows):
    return x * parameters_to_vector(m.linear.parameters())[:COLUMNS]


def in_place(m, x, b, mask, rows):
    y = x * 1
    y.add_(1).clamp_(min=-1)
    return y


def in_place_and_read_again(m, x, b, mask, rows):
    y = m.linear(x)
    return functional.relu(y, inplace=True) + y


def flag(m, x, b, mask, rows):
    m.setter(x, m)
    return x * m.flag


def notes(m, x, b, mask, rows):
    m.noter(x, m)
    return x + m.seen.pop()


def clamped_by_another(m, x, b, mask, rows):
    y = x * 1
    m.clamper(y)
    return y


def reversed_entries(m, x, b, mask, rows):
    first = next(iter(reversed(b)))
    return x + len(first)


def past_the_gates(m, x, b, mask, rows):
    return x + rows.sum(1, keepdim=True)


def past_the_gates_in_large_batches(m, x, b, mask, rows):
    return x + rows.sum(1, keepdim=True) if len(x) > 40 else x


def past_the_gates_late(m, x, b, mask, rows):
    return torch.where(rows[:, :1] > 0, x, -x) if bool((b["late"] >= 12).any()) else x


def past_the_gates_in_training(m, x, b, mask, rows):
    return x + rows.sum(1, keepdim=True) if m.training else x


def past_the_gates_with_a_mask(m, x, b, mask, rows):
    return x if mask is None else x + rows[:, :1].argmax(1, keepdim=True) + mask[:, None]


BEHINDS: dict[str, Callable[..., Tensor]] = {
    "product": product,
    "pairs": pairs,
    "attention over fields": attention_over_fields,
    "parts of a split": parts_of_split,
    "stacked": stacked,
    "norm": norm,
    "dropout": dropout,
    "opaque": opaque,
    "hooked layer": hooked_layer,
    "hooked group": hooked_group,
    "optional mask": optional_mask,
    "optional entry": optional_entry,
    "entry or default": entry_or_default,
    "by values": by_values,
    "by fields": by_fields,
    "by rows": by_rows,
    "by length": by_length,
    "by dtype": by_dtype,
    "by floating point": by_floating_point,
    "made in forward": made_in_forward,
    "own parameters": own_parameters,
    "named parameters": named_parameters,
    "parameters as a vector": parameters_as_vector,
    "in place": in_place,
    "in place and read again": in_place_and_read_again,
    "flag": flag,
    "notes": notes,
    "clamped by another": clamped_by_another,
    "reversed entries": reversed_entries,
    "past the gates": past_the_gates,
    "past the gates in large batches": past_the_gates_in_large_batches,
    "past the gates late": past_the_gates_late,
    "past the gates in training": past_the_gates_in_training,
    "past the gates with a mask": past_the_gates_with_a_mask,
}

SITES = ("plain site", "hook before the gates", "hook behind the gates", "site is a group", "group with a hook")


class Answer:
    """A class of the user's."""

    def __init__(self, logit: Tensor) -> None:
        self.logit = logit


ENDS: dict[str, Callable[[Tensor], Any]] = {
    "logit": lambda y: y,
    "small rate": lambda y: torch.sigmoid(y - 11.5),
    "large": lambda y: 1e6 * y,
    "dict": lambda y: {"logit": y, "odds": y.exp()},
    "tuple": lambda y: (y, y > 0),
    "plain class": Answer,
    "namespace": lambda y: SimpleNamespace(logit=y, parts=[y, 2 * y]),
}

CONSTRUCTS = (*FRONTS, *BEHINDS, *SITES, *ENDS)


class Setter(nn.Module):
    """Sets an attribute of another module."""

    def forward(self, x: Tensor, owner: Part) -> Tensor:
        owner.flag = 2.0 if float(x.detach().sum()) > 0 else 1.0
        return x


class Noter(nn.Module):
    """Appends to a list of another module."""

    def forward(self, x: Tensor, owner: Part) -> Tensor:
        scale = 2.0 if float(x.detach().sum()) > 0 else 1.0
        owner.seen.append(x.mean(1, keepdim=True) * scale)
        return x


class Clamper(nn.Module):
    """Changes its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp_(max=0.5 if float(x.detach().sum()) > 0 else 0.4)


def _double(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


class RandomModel(nn.Module):
    """A ranking model of the constructs that a seed chose."""

    def __init__(self, rng: random.Random, constructs: list[str]) -> None:
        super().__init__()
        self.fronts = nn.ModuleDict()
        chosen = [name for name in constructs if name in FRONTS]
        shared = nn.Embedding(IDS, WIDTH)
        for field in FIELDS:
            name = chosen.pop() if chosen else "table"
            layers = {"table": shared if name == "shared table" else nn.Embedding(IDS, WIDTH)}
            layers |= {"bag": nn.EmbeddingBag(IDS, WIDTH, mode="mean"), "linear": nn.Linear(WIDTH, WIDTH)}
            self.fronts[field] = Part(FRONTS[name], **layers, dense=nn.Linear(3, WIDTH))
        site = next((name for name in constructs if name in SITES), "plain site")
        self.join = _site(site)
        names = [name for name in constructs if name in BEHINDS]
        self.behinds = nn.ModuleList([_behind(name) for name in names])
        self.inline = [rng.random() < 0.5 for _ in names]
        self.head = nn.Sequential(nn.Linear(COLUMNS, 8), nn.ReLU(), nn.Linear(8, 1))
        self.end = ENDS[next((name for name in constructs if name in ENDS), "logit")]

    def forward(self, batch: Batch, mask: Tensor | None = None) -> Any:
        rows = [part.function(part, batch, name) for name, part in self.fronts.items()]
        x = self.join(torch.cat(rows, 1))
        for part, inline in zip(self.behinds, self.inline, strict=True):
            arguments = (x, batch, mask, rows[0])
            x = part.function(part, *arguments) if inline else part(*arguments)
        return self.end(self.head(x))


def _site(name: str) -> nn.Module:
    site = nn.Sequential(nn.Identity(), nn.Identity()) if "group" in name else nn.Identity()
    if "hook" in name and "behind" not in name:
        site.register_forward_hook(_double)
    return site


def _behind(name: str) -> Part:
    group = nn.Sequential(nn.Linear(COLUMNS, COLUMNS), nn.Tanh())
    group.register_forward_hook(_double)
    hooked = nn.Linear(COLUMNS, COLUMNS)
    hooked.register_forward_hook(_double)
    others = {"setter": Setter(), "noter": Noter(), "clamper": Clamper(), "norm": nn.LayerNorm(COLUMNS)}
    return Part(BEHINDS[name], linear=nn.Linear(COLUMNS, COLUMNS), group=group, hooked=hooked, **others)


def make_batch(seed: int, rows: int = 16, *, length: int = 5, mask: bool = False, **options: Any) -> tuple[Any, ...]:
    """The arguments of one call.

    Args:
        options: `weight` adds an optional entry, `late` draws from late hours as well, `price` is the dtype of the numbers,
            `backwards` reverses the entries.
    """
    rng = torch.Generator().manual_seed(seed)
    batch: Batch = {name: torch.randint(IDS, (rows,), generator=rng) for name in FIELDS}
    batch["clicks"] = torch.randint(IDS, (rows, length), generator=rng)
    batch["length"] = torch.randint(1, length + 1, (rows,), generator=rng)
    batch["price"] = (3 * torch.randn(rows, 3, generator=rng)).to(options.get("price", torch.float32))
    batch["late"] = torch.randint(24 if options.get("late") else 12, (rows,), generator=rng)
    if options.get("weight"):
        batch["weight"] = torch.rand(rows, generator=rng)
    if options.get("backwards"):
        batch = dict(reversed(batch.items()))
    return (batch, torch.rand(rows, generator=rng)) if mask else (batch,)


OTHERS: tuple[dict[str, Any], ...] = (
    {},
    {"rows": 1},
    {"rows": 50},
    {"rows": 70, "late": True},
    {"late": True},
    {"length": 8},
    {"length": 4, "rows": 7},
    {"length": 1},
    {"mask": True},
    {"weight": True},
    {"price": torch.float64},
    {"price": torch.int64},
    {"backwards": True},
    {"rows": 45, "length": 9, "mask": True, "weight": True, "late": True},
)

Kind = Literal["exact", "fed", "refused", "inexact", "hang", "crash"]


@dataclass(frozen=True)
class Outcome:
    """What became of one model.

    Attributes:
        kind: "exact" and "fed" models return what the masked one does, or raise; "refused" ones are not pruned. The others must
            not be: "inexact" returned something else, "hang" took too long, "crash" raised another error than torchleap's.
        seed: With the constructs it makes the same trial again.
        constructs: What the model is made of.
        detail: What happened.
        raised: How many of the batches ended in an error of the pruned model alone.
    """

    kind: Kind
    seed: int
    constructs: tuple[str, ...]
    detail: str = ""
    raised: int = 0

    @property
    def is_good(self) -> bool:
        """Whether the promise was kept."""
        return self.kind in ("exact", "fed", "refused")


class _HangError(BaseException):
    """The time is over; no handler of the code under test may catch it."""


def constructs_of(seed: int) -> tuple[str, ...]:
    """Choose the constructs of a model: one in turn, so that all have theirs, and a few at random."""
    rng = random.Random(seed)
    chosen = [CONSTRUCTS[seed % len(CONSTRUCTS)]]
    for group, count in ((FRONTS, rng.randint(1, 3)), (BEHINDS, rng.randint(0, 3)), (SITES, 1), (ENDS, 1)):
        if rng.random() < 0.7:
            chosen += rng.sample(list(group), count)
    return tuple(dict.fromkeys(chosen))


def trial(seed: int, constructs: Collection[str] | None = None) -> Outcome:
    """Prune one random model, and compare it with the masked one on other batches.

    Args:
        seed: Makes the model, the gates and the batches.
        constructs: What it is made of; chosen by the seed if left out.
    """
    names = constructs_of(seed) if constructs is None else tuple(constructs)
    try:
        with _alarm(), torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            return _trial(seed, names)
    except _HangError:
        return Outcome("hang", seed, names, f"longer than {SECONDS} s")


def _trial(seed: int, names: tuple[str, ...]) -> Outcome:
    rng = random.Random(seed)
    model = RandomModel(rng, list(names)).to(rng.choice([torch.float32, torch.float32, torch.float64]))
    options = {"mask": rng.random() < 0.3, "weight": rng.random() < 0.3, "rows": rng.choice([1, 4, 16])}
    plugin = tl.attach(model, dict.fromkeys(FIELDS, WIDTH), at="join", side="output", warmup=rng.choice([1, 100]))
    if "hook behind the gates" in names:
        model.join.register_forward_hook(_double)
    for step in range(3):
        model.train()(*make_batch(step, **{**options, "rows": 16}))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.rand(len(FIELDS)) * 1.3 - 0.3)
    selection = plugin.select(share=rng.choice([0.4, 0.6, 0.8]))
    try:
        small = plugin.prune(selection, example=make_batch(seed + 1, **options)).eval()
    except tl.TorchleapError as error:
        return Outcome("refused", seed, names, str(error))
    except Exception as error:
        return Outcome("crash", seed, names, f"prune() raised {type(error).__name__}: {error}")
    kind: Kind = "fed" if "constants are fed instead" in str(tl.plan_of(small)) else "exact"
    raised = 0
    for place, changes in enumerate(OTHERS):
        call = make_batch(seed + 100 + place, **{**options, **changes})
        problem = _compare(plugin, selection, small, call)
        if isinstance(problem, Exception):
            raised += 1
        elif problem:
            return Outcome("inexact", seed, names, f"{kind}, with {options}, then {changes}: {problem}", raised)
    return Outcome(kind, seed, names, str(tl.plan_of(small)), raised)


def _compare(plugin: Any, selection: Any, small: nn.Module, call: tuple[Any, ...]) -> str | Exception:
    """Say what is not equal; return the error, if the pruned model raises one."""
    model = plugin.model.eval()
    model.zero_grad()
    small.zero_grad()
    try:
        with plugin.masked(selection):
            expected = _numbers(model(*call))
            _backward(expected)
    except Exception:  # a batch that the model does not take
        plugin.gates.passed = {}
        return ""
    try:
        found = _numbers(small(*call))
        _backward(found)
    except Exception as error:
        return error
    if len(found) != len(expected):
        return f"{len(found)} tensors instead of {len(expected)}"
    for one, other in zip(found, expected, strict=True):
        if not _is_close(one, other):
            return f"an output is {one.flatten()[:3].tolist()} instead of {other.flatten()[:3].tolist()}"
    return _compare_gradients(model, small)


def _numbers(output: Any) -> list[Tensor]:
    return [leaf for leaf in leaves_of(output) if isinstance(leaf, Tensor)]


def _backward(outputs: list[Tensor]) -> None:
    real = [output for output in outputs if output.is_floating_point()]
    torch.stack([(output * torch.arange(1.0, len(output) + 1).to(output)[:, None]).sum() for output in real]).sum().backward()


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool((one != other).float().mean() < 0.02)  # a sign near 0 may be another one
    size = other.abs().nanmedian() + other.abs()
    same = (one == other) | (one.isnan() & other.isnan())
    return bool((same | ((one - other).abs() <= 2e-4 * size)).all())


def _compare_gradients(model: nn.Module, small: nn.Module) -> str:
    """Fine-tuning must train what training did."""
    before = dict(model.named_parameters())
    for name, parameter in small.named_parameters():
        old = before.get(name)
        if old is None or old.shape != parameter.shape or old.grad is None:
            continue
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        trained = found != 0  # what only weighs dropped fields is folded into a bias, and trained there
        lost = bool(old.grad.any()) and not bool(trained.any())
        if lost or float((found - old.grad)[trained].norm()) > 1e-3 * float(old.grad.norm()):
            return f"the gradient of {name} differs"
    return ""


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise in the main thread when the time is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: Any) -> None:
        raise _HangError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
