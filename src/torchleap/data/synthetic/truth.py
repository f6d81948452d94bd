"""Rows of which it is known which fields matter: wide and narrow, dense and 99 % default, useful, useless and redundant."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Generator, Tensor

from ..._common.errors import TorchleapError
from ...fields import Fields

if TYPE_CHECKING:
    from ..task import Task

Role = Literal["main", "pair", "noise", "redundant", "constant"]


@dataclass(frozen=True)
class KnownTruth:
    """A labelled world with a known truth; `draw` takes rows from it, as many and as often as one likes.

    For each width there are a useful and a useless field, both dense and sparse; a redundant field, which is a rotated noisy copy
    of the dense useful one; for the narrow widths a pair of dense fields that matter through their product alone; and constants.
    A sparse field is 0 but in a share `active` of the rows, where it takes one of a few vectors, as an id's embedding would.
    The label is drawn from the logistic of the sum of all effects.

    Args:
        pair_widths: Widths of the pairs; a product of two wide fields takes more rows to learn than tests have.
        dense_effect: Size of a dense field's effect on the log odds, one standard deviation.
        sparse_effect: The same for a sparse field, among the rows in which it is active.

    >>> truth = KnownTruth(widths=(1, 16), seed=0)
    >>> x, y = truth.draw(1000, seed=1)
    >>> x.shape[1] == truth.fields.dims
    True
    >>> truth.role["noise_sparse_16"], "pair_1_a" in truth.useful
    ('noise', True)
    """

    widths: tuple[int, ...] = (1, 8, 64, 256)
    pair_widths: tuple[int, ...] = (1, 4)
    active: float = 0.01
    dense_effect: float = 0.7
    sparse_effect: float = 4.0
    pair_effect: float = 1.0
    copy_noise: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths + self.pair_widths) < 1 or not 0 < self.active < 1:
            raise TorchleapError(
                "Expected widths of at least 1 and an active share between 0 and 1, "
                f"but found widths={self.widths}, pair_widths={self.pair_widths}, active={self.active}."
            )

    @cached_property
    def role(self) -> dict[str, Role]:
        """What each field is for, in field order."""
        roles: dict[str, Role] = {}
        for width in self.widths:
            roles[f"main_dense_{width}"] = "main"
            roles[f"main_sparse_{width}"] = "main"
            roles[f"noise_dense_{width}"] = "noise"
            roles[f"noise_sparse_{width}"] = "noise"
            roles[f"copy_{width}"] = "redundant"
        for width in self.pair_widths:
            roles[f"pair_{width}_a"] = "pair"
            roles[f"pair_{width}_b"] = "pair"
        roles["constant_1"] = "constant"
        roles["constant_8"] = "constant"
        return roles

    @cached_property
    def fields(self) -> Fields:
        """Names and widths."""
        return Fields(
            {
                name: int(name.split("_")[1 if role == "pair" else -1])
                for name, role in self.role.items()
            }
        )

    @property
    def useful(self) -> tuple[str, ...]:
        """The fields that the label depends on."""
        return tuple(name for name, role in self.role.items() if role in ("main", "pair"))

    @property
    def useless(self) -> tuple[str, ...]:
        """The fields that say nothing about the label; redundant ones are neither."""
        return tuple(name for name, role in self.role.items() if role in ("noise", "constant"))

    @property
    def source(self) -> dict[str, str]:
        """The useful field that each redundant one is a copy of."""
        return {
            name: name.replace("copy", "main_dense")
            for name, role in self.role.items()
            if role == "redundant"
        }

    def draw(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        """Draw rows: x (rows, D) and labels y (rows,), both float32; another seed gives other rows of the same world."""
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + seed + 1)
        x = torch.empty(rows, self.fields.dims)
        logit = torch.zeros(rows)
        for name, role in self.role.items():
            block = x[:, self.fields.columns(name)]
            if role == "constant":
                block.fill_(1.0)
            elif role == "redundant":
                source = x[:, self.fields.columns(self.source[name])]
                block.normal_(0, self.copy_noise, generator=rng).addmm_(
                    source, self._rotation[name]
                )
            elif "sparse" in name:
                self._fill_sparse(name, block, rng)
            else:
                block.normal_(generator=rng)
            if role == "main":
                logit += (self.sparse_effect if "sparse" in name else self.dense_effect) * (
                    block @ self._direction[name]
                )
        for width in self.pair_widths:
            a, b = (
                x[:, self.fields.columns(n)] @ self._direction[n]
                for n in (f"pair_{width}_a", f"pair_{width}_b")
            )
            logit += self.pair_effect * a * b
        return x, torch.rand(rows, generator=rng).lt(torch.sigmoid(logit)).float()

    def _fill_sparse(self, name: str, block: Tensor, rng: Generator) -> None:
        vectors = self._vectors[name]
        chosen = torch.randint(len(vectors), (len(block),), generator=rng)
        present = torch.rand(len(block), 1, generator=rng) < self.active
        torch.mul(vectors[chosen], present, out=block)

    @cached_property
    def _world(self) -> Generator:
        return torch.Generator().manual_seed(self.seed)

    @cached_property
    def _vectors(self) -> dict[str, Tensor]:
        """The few values that each sparse field takes, (8, width)."""
        return {
            f.name: torch.randn(8, f.width, generator=self._world)
            for f in self.fields
            if "sparse" in f.name
        }

    @cached_property
    def _direction(self) -> dict[str, Tensor]:
        """For each useful field the direction that matters, (width,), such that the effect has unit size."""
        vectors = self._vectors
        found = {}
        for name in self.useful:
            direction = torch.randn(self.fields[name].width, generator=self._world)
            values = vectors[name] @ direction if name in vectors else direction
            size = values.square().mean().sqrt() if name in vectors else values.norm()
            found[name] = direction / size
        return found

    @cached_property
    def _rotation(self) -> dict[str, Tensor]:
        """A random rotation for each redundant field, (width, width)."""
        _ = self._direction  # drawn first, so that the order of use does not matter
        copies = [f for f in self.fields if self.role[f.name] == "redundant"]
        return {
            f.name: torch.linalg.qr(torch.randn(f.width, f.width, generator=self._world)).Q
            for f in copies
        }


def known_truth(truth: KnownTruth, rows: int = 60_000) -> "Task":
    """Rows of a known truth as a task: a column of numbers or of vectors for each field; the seed of the truth draws them."""
    import polars as pl

    from ..files.read import read

    x, y = truth.draw(rows, seed=0)
    columns = {"label": pl.Series(y.numpy())}
    for field in truth.fields:
        block, vector = (
            x[:, truth.fields.columns(field.name)].numpy(),
            pl.Array(pl.Float32, field.width),
        )
        columns[field.name] = (
            pl.Series(block[:, 0]) if field.width == 1 else pl.Series(block, dtype=vector)
        )
    kinds = {
        field.name: {"kind": "numeric" if field.width == 1 else "vector"} for field in truth.fields
    }
    return read(pl.DataFrame(columns), label="label", columns=kinds, seed=truth.seed)
