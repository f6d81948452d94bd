"""Random ranking models, made of constructs as in real models by a seed, and batches for them."""

import random
from typing import Any

import torch
from torch import Tensor, nn

from tests.surgery.constructs import (
    BEHINDS,
    COLUMNS,
    CONSTRUCTS,
    ENDS,
    FIELDS,
    FRONTS,
    IDS,
    SITES,
    WIDTH,
    Part,
)

Batch = dict[str, Any]


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


def double(module: nn.Module, args: Any, output: Tensor) -> Tensor:
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
            layers |= {
                "bag": nn.EmbeddingBag(IDS, WIDTH, mode="mean"),
                "linear": nn.Linear(WIDTH, WIDTH),
            }
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
        site.register_forward_hook(double)
    return site


def _behind(name: str) -> Part:
    group = nn.Sequential(nn.Linear(COLUMNS, COLUMNS), nn.Tanh())
    group.register_forward_hook(double)
    hooked = nn.Linear(COLUMNS, COLUMNS)
    hooked.register_forward_hook(double)
    others = {
        "setter": Setter(),
        "noter": Noter(),
        "clamper": Clamper(),
        "norm": nn.LayerNorm(COLUMNS),
    }
    return Part(
        BEHINDS[name], linear=nn.Linear(COLUMNS, COLUMNS), group=group, hooked=hooked, **others
    )


def constructs_of(seed: int) -> tuple[str, ...]:
    """Choose the constructs of a model: one in turn, and a few at random."""
    rng = random.Random(seed)
    chosen = [CONSTRUCTS[seed % len(CONSTRUCTS)]]
    for group, count in (
        (FRONTS, rng.randint(1, 3)),
        (BEHINDS, rng.randint(0, 3)),
        (SITES, 1),
        (ENDS, 1),
    ):
        if rng.random() < 0.7:
            chosen += rng.sample(list(group), count)
    return tuple(dict.fromkeys(chosen))


def make_batch(
    seed: int, rows: int = 16, *, length: int = 5, mask: bool = False, **options: Any
) -> tuple[Any, ...]:
    """The arguments of one call.

    Args:
        options: `weight` adds an optional entry, `late` draws from late hours as well, `price` is
            the dtype of the numbers, `backwards` reverses the entries.
    """
    rng = torch.Generator().manual_seed(seed)
    batch: Batch = {name: torch.randint(IDS, (rows,), generator=rng) for name in FIELDS}
    batch["clicks"] = torch.randint(IDS, (rows, length), generator=rng)
    batch["length"] = torch.randint(1, length + 1, (rows,), generator=rng)
    batch["price"] = (3 * torch.randn(rows, 3, generator=rng)).to(
        options.get("price", torch.float32)
    )
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
