"""Constructs of ranking models: in front of the gates, behind them, and at the end of forward()."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

FIELDS = ("user", "item", "city", "shop", "hour")
IDS = 24
WIDTH = 4
COLUMNS = len(FIELDS) * WIDTH


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


# Behind the gates: (B, COLUMNS) to the same, of part, columns, batch, mask, rows of the first table


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

SITES = (
    "plain site",
    "hook before the gates",
    "hook behind the gates",
    "site is a group",
    "group with a hook",
)


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
