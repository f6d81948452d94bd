"""A small synthetic world with known ground truth: useful, useless and redundant fields."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Generator, Tensor

from ..._common.checks import check_settings, setting
from ...fields import Fields

if TYPE_CHECKING:
    from ..task import Task

Role = Literal["main", "pair", "noise", "redundant", "constant"]
VALUES = 8  # that a sparse field takes


@dataclass(frozen=True)
class KnownTruth:
    """A labelled world with known ground truth; `draw` returns as many rows of it as one likes.

    For each width there are a useful and a useless field, both dense and sparse; a redundant
    field, which is a rotated noisy copy of the dense useful one; for the narrow widths a pair of
    dense fields that matter through their product alone; and constants. A sparse field is 0 in
    most rows, and in the others takes one of a few vectors, as an id's embedding would. The label
    is drawn from the logistic of the sum of all effects.

    Args:
        widths: The widths of the fields.
        pair_widths: The widths of the pairs; a product of two wide fields takes more rows to
            learn than tests have.
        active: The fraction of rows in which a sparse field is not 0.
        dense_effect: The standard deviation of a dense field's effect on the log odds.
        sparse_effect: The same for a sparse field, among the rows in which it is active.
        pair_effect: The size of the effect of a pair.
        copy_noise: The standard deviation of the noise of a copy.
        seed: The seed of the world; `draw` has its own for rows.

    >>> truth = KnownTruth(widths=(1, 16), seed=0)
    >>> x, y = truth.draw(1000, seed=1)
    >>> x.shape[1] == truth.fields.dims
    True
    >>> truth.role["noise_sparse_16"], "pair_1_a" in truth.useful
    ('noise', True)
    """

    widths: tuple[int, ...] = setting((1, 8, 64, 256), at_least=1)
    pair_widths: tuple[int, ...] = setting((1, 4), at_least=1)
    active: float = setting(0.01, above=0, below=1)
    dense_effect: float = setting(0.7)
    sparse_effect: float = setting(4.0)
    pair_effect: float = setting(1.0)
    copy_noise: float = 0.1
    seed: int = setting(0)

    def __post_init__(self) -> None:
        check_settings(
            self, {"widths must have at least one width, but has none": bool(self.widths)}
        )

    @cached_property
    def role(self) -> dict[str, Role]:
        """The role of each field, in field order."""
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
        """The names and widths of the fields."""
        widths = {}
        for name, role in self.role.items():
            words = name.split("_")
            widths[name] = int(words[1] if role == "pair" else words[-1])
        return Fields(widths)

    @property
    def useful(self) -> tuple[str, ...]:
        """The fields that the label depends on."""
        return tuple(name for name, role in self.role.items() if role in ("main", "pair"))

    @property
    def useless(self) -> tuple[str, ...]:
        """The fields that the label does not depend on; redundant ones are not among them."""
        return tuple(name for name, role in self.role.items() if role in ("noise", "constant"))

    @property
    def source(self) -> dict[str, str]:
        """The useful field that each redundant one is a copy of."""
        copies = [name for name, role in self.role.items() if role == "redundant"]
        return {name: name.replace("copy", "main_dense") for name in copies}

    def draw(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return rows: x (rows, D) and labels y (rows,), both float32.

        Args:
            rows: The number of rows.
            seed: The seed of the rows; another one gives other rows of the same world.
        """
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + seed + 1)
        x = torch.empty(rows, self.fields.dims)
        logit = torch.zeros(rows)
        for name, role in self.role.items():
            block = x[:, self.fields.columns(name)]
            self._fill(name, x, block, rng)
            if role == "main":
                effect = self.sparse_effect if "sparse" in name else self.dense_effect
                logit += effect * (block @ self._direction[name])
        for width in self.pair_widths:
            first = self._projection(x, f"pair_{width}_a")
            second = self._projection(x, f"pair_{width}_b")
            logit += self.pair_effect * first * second
        label = torch.rand(rows, generator=rng).lt(torch.sigmoid(logit)).float()
        return x, label

    def _fill(self, name: str, x: Tensor, block: Tensor, rng: Generator) -> None:
        """Draw the values of a field in place.

        Args:
            name: The name of the field.
            x: All fields, of which the earlier ones are drawn, (rows, D).
            block: The field's own columns of x, (rows, width).
            rng: The random numbers of the rows.
        """
        role = self.role[name]
        if role == "constant":
            block.fill_(1.0)
        elif role == "redundant":
            source = x[:, self.fields.columns(self.source[name])]
            block.normal_(0, self.copy_noise, generator=rng).addmm_(source, self._rotation[name])
        elif "sparse" in name:
            vectors = self._vectors[name]
            chosen = torch.randint(len(vectors), (len(block),), generator=rng)
            is_active = torch.rand(len(block), 1, generator=rng) < self.active
            torch.mul(vectors[chosen], is_active, out=block)
        else:
            block.normal_(generator=rng)

    def _projection(self, x: Tensor, name: str) -> Tensor:
        """Return a field along the direction that matters, (rows,)."""
        return x[:, self.fields.columns(name)] @ self._direction[name]

    @cached_property
    def _world(self) -> Generator:
        return torch.Generator().manual_seed(self.seed)

    @cached_property
    def _vectors(self) -> dict[str, Tensor]:
        """The few values that each sparse field takes, (8, width)."""
        found = {}
        for field in self.fields:
            if "sparse" in field.name:
                found[field.name] = torch.randn(VALUES, field.width, generator=self._world)
        return found

    @cached_property
    def _direction(self) -> dict[str, Tensor]:
        """For each useful field the direction that matters, (width,), with an effect of size 1."""
        vectors = self._vectors
        found = {}
        for name in self.useful:
            direction = torch.randn(self.fields[name].width, generator=self._world)
            size = direction.norm()
            if name in vectors:
                size = (vectors[name] @ direction).square().mean().sqrt()
            found[name] = direction / size
        return found

    @cached_property
    def _rotation(self) -> dict[str, Tensor]:
        """A random rotation for each redundant field, (width, width)."""
        _ = self._direction  # drawn first, so that the order of use does not matter
        found = {}
        for field in self.fields:
            if self.role[field.name] == "redundant":
                drawn = torch.randn(field.width, field.width, generator=self._world)
                found[field.name] = torch.linalg.qr(drawn).Q
        return found


def known_truth(truth: KnownTruth, rows: int = 60_000) -> "Task":
    """Return rows of a known truth as a task, with a column of numbers or vectors for each field.

    Args:
        truth: The world, whose seed also draws the rows.
        rows: The number of rows.
    """
    import polars as pl

    from ..files.read import read

    x, y = truth.draw(rows, seed=0)
    columns = {"label": pl.Series(y.numpy())}
    kinds = {}
    for field in truth.fields:
        block = x[:, truth.fields.columns(field.name)].numpy()
        if field.width == 1:
            columns[field.name] = pl.Series(block[:, 0])
            kinds[field.name] = {"kind": "numeric"}
        else:
            columns[field.name] = pl.Series(block, dtype=pl.Array(pl.Float32, field.width))
            kinds[field.name] = {"kind": "vector"}
    return read(pl.DataFrame(columns), label="label", columns=kinds, seed=truth.seed)
