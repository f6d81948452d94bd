"""Pairs of fields whose product says something that a trained model has not learned yet."""

import math

import torch
from torch import Tensor

from ..data.task import Batch
from ..models import Ranker
from ..objectives import Objective
from .base import Search
from .planting import Product
from .sample import chunks, evenly_spaced, spacing
from .shuffled import rows_at_once

TRAIN_ROWS = 1 << 15  # in which pairs are looked for, at most
VALID_ROWS = 1 << 16  # that confirm them, at most
WIDTH = 8  # columns that a field is projected to, at most
COLUMNS = 2048  # of all fields together, at most
EXTREME = 5.0  # standard deviations beyond which values are cut off
CANDIDATES = 300  # pairs that are confirmed, at most
SUSPICIOUS = 5.0  # standard deviations of the screening statistic from which a pair is confirmed
PLANTED = 0.005  # of the loss that a product must gain to be planted into a network
SURE = 3.5  # standard errors on validation rows from which a pair is real


class Interactions:
    """What a model would gain by learning products of two fields, measured on validation rows.

    A pair of fields that matters through its product alone looks like noise until the model has
    learned the product, so that its gates would close first. The residual r of a trained model,
    the negative slope of a row's loss by its output, shows such a pair at once: with M the mean of
    r x_i x_j' over train rows and z = x_i' M x_j, the t-value of the mean of r z over validation
    rows is a score test, and t^2 / (2 N) is the fall of the loss that a first step along z brings.

    Wide fields are projected to eight random directions, fewer with more than 256 fields, so that a
    pair of two wide fields may be missed.

    Args:
        search: The search.
        model: A trained model of all fields without gates, which is left in eval mode.

    Attributes:
        pairs: The pairs of names, in field order.
        products: The z of each pair in the validation rows, (P, N).
    """

    def __init__(self, search: Search, model: Ranker) -> None:
        self.objective = search.task.objective
        valid = search.task.valid
        self.every = spacing(valid, VALID_ROWS)
        self.label = valid.label[:: self.every]
        self.pairs: list[tuple[str, str]] = []
        self.products = torch.zeros(0, len(self.label))
        self.directions: list[Product] = []
        if self.objective.output_width != 1 or len(search.task.fields) < 2:
            return
        model.eval()
        values = Values(search, model)
        moments = values.x.T @ (values.residual[:, None] * values.x) / len(values.x)  # (C, C)
        candidates = suspicious(moments, values)
        x, outputs = values.of(evenly_spaced(valid, VALID_ROWS))
        names = search.task.fields.names
        products = []
        for one, other in candidates:
            own = moments[values.columns[one], values.columns[other]]
            product = (x[:, values.columns[one]] @ own * x[:, values.columns[other]]).sum(1)
            products.append(product - product.mean())
        if products:
            self.products = torch.stack(products)
            is_sure = self._t_values(outputs) > SURE
            self.products = self.products[is_sure]
            for (one, other), sure in zip(candidates, is_sure.tolist(), strict=True):
                if sure:
                    self.pairs.append((names[one], names[other]))
                    self.directions.append(values.product(moments, one, other))

    def gains(self, outputs: Tensor) -> Tensor:
        """Return the fall of the loss that each pair would still bring, (P,), at least 0.

        Args:
            outputs: The raw outputs of a model for all validation rows, (N_valid,).
        """
        if not self.pairs:
            return torch.zeros(0)
        t = self._t_values(outputs[:: self.every]).clamp_min(0)
        return ((t.square() - 1) / (2 * max(1, len(self.label)))).clamp_min(0)

    def to_plant(self, outputs: Tensor, loss: float) -> list[Product]:
        """Return the products that a model would gain by, the largest gain first.

        Args:
            outputs: The raw outputs of the model for all validation rows, (N_valid,).
            loss: Its loss there.
        """
        gains = self.gains(outputs).tolist()
        order = sorted(range(len(gains)), key=lambda place: -gains[place])
        return [self.directions[place] for place in order if gains[place] > PLANTED * loss]

    def _t_values(self, outputs: Tensor) -> Tensor:
        score = residual(self.objective, outputs, self.label) * self.products  # (P, N)
        spread = score.square().mean(1).sqrt().clamp_min(1e-30)
        return score.mean(1) / spread * math.sqrt(max(1, len(self.label)))


class Values:
    """The values of all fields in some train rows, projected and standardised, and residuals.

    Args:
        search: The search.
        model: The trained model.

    Attributes:
        size: Rows that are read at a time.
        columns: The columns of each field after the projection.
        x: The values, (N, C).
        residual: The negative slope of each row's loss by its output, (N,).
    """

    def __init__(self, search: Search, model: Ranker) -> None:
        self.model = model
        task = search.task
        self.size = rows_at_once(task.fields.dims)
        self.widths = list(task.fields.widths)
        most = max(1, min(WIDTH, COLUMNS // len(self.widths)))
        rng = torch.Generator().manual_seed(search.seed)
        self.directions: dict[int, Tensor] = {}
        self.columns: list[slice] = []
        start = 0
        for place, width in enumerate(self.widths):
            if width > most:
                random = torch.randn(width, most, generator=rng)
                self.directions[place] = torch.linalg.qr(random).Q  # (width, most)
            stop = start + min(width, most)
            self.columns.append(slice(start, stop))
            start = stop
        count = min(TRAIN_ROWS, len(task.train))
        batches = task.train.batches(count, shuffle=True, seed=search.seed)
        batch = next(iter(batches))
        x, outputs = self._projected(batch)
        self.mean = x.mean(0)
        deviation = x.std(0)
        is_constant = deviation <= 1e-6 * (self.mean.abs() + 1e-6)
        self.spread = torch.where(is_constant, torch.inf, deviation)
        self.x = self._standardised(x)
        self.residual = residual(task.objective, outputs, batch.label)

    def of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the values of other rows, (N, C), and the model's outputs, (N,).

        Args:
            batch: The rows.
        """
        x, outputs = self._projected(batch)
        return self._standardised(x), outputs

    def product(self, moments: Tensor, one: int, other: int) -> Product:
        """Return the directions of two fields whose product explains the residuals best.

        Args:
            moments: The mean of r x_i x_j' over the rows, (C, C).
            one: The position of the first field.
            other: That of the second one.
        """
        left, _, right = torch.linalg.svd(moments[self.columns[one], self.columns[other]])
        factors = []
        means = []
        for place, direction in ((one, left[:, 0]), (other, right[0])):
            weight = direction / self.spread[self.columns[place]]  # of the projected columns
            means.append(float(weight @ self.mean[self.columns[place]]))
            if place in self.directions:
                weight = self.directions[place] @ weight
            factor = torch.zeros(sum(self.widths))
            start = sum(self.widths[:place])
            factor[start : start + self.widths[place]] = weight
            factors.append(factor)
        return Product(factors[0], factors[1], (means[0], means[1]))

    @torch.no_grad()
    def _projected(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the projected values, (N, C), and the outputs, (N,)."""
        found = []
        outputs = []
        for part in chunks(batch, self.size):
            x = self.model.inputs(*part.inputs)
            outputs.append(self.model.net(x).reshape(-1).float())
            columns = list(torch.split(x.float(), self.widths, dim=1))
            for place, directions in self.directions.items():
                columns[place] = columns[place] @ directions
            found.append(torch.cat(columns, dim=1))
        return torch.cat(found), torch.cat(outputs)

    def _standardised(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / self.spread).clamp(-EXTREME, EXTREME)


def suspicious(moments: Tensor, values: Values) -> list[tuple[int, int]]:
    """Return the pairs of fields whose products are correlated with the residuals of train rows.

    Without an interaction, the sum of the squared moments of a pair is a sum of as many squares of
    standard normal numbers.

    Args:
        moments: The mean of r x_i x_j' over the rows, (C, C).
        values: The values of the train rows.
    """
    count = len(values.columns)
    field_of = torch.zeros(len(moments), dtype=torch.long)
    for place, columns in enumerate(values.columns):
        field_of[columns] = place
    by_row = torch.zeros(count, len(moments)).index_add_(0, field_of, moments.square())
    squares = torch.zeros(count, count).index_add_(1, field_of, by_row)  # (F, F)
    widths = torch.bincount(field_of, minlength=count).float()
    numbers = widths[:, None] * widths  # of moments per pair
    unit = values.residual.square().mean().clamp_min(1e-30) / len(values.x)
    excess = ((squares / unit - numbers) / (2 * numbers).sqrt()).triu(1)
    found = (excess > SUSPICIOUS).nonzero().tolist()
    found.sort(key=lambda pair: -float(excess[pair[0], pair[1]]))
    return [(one, other) for one, other in found[:CANDIDATES]]


def residual(objective: Objective, outputs: Tensor, label: Tensor) -> Tensor:
    """Return the negative slope of each row's loss by its output, (N,).

    Args:
        objective: The objective.
        outputs: The raw outputs, (N,).
        label: The label of each row, (N,).
    """
    with torch.enable_grad():
        free = outputs.detach().reshape(-1).requires_grad_()
        loss = objective.loss(free, label, reduction="sum")
        [slope] = torch.autograd.grad(loss, free)
    return -slope
