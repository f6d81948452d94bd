"""Poolings of histories and heads over fields as ranking models have them, one class each."""

import math

import torch
from torch import nn
from torch.nn import functional

E = 8
FAR = -1e9


class Pool(nn.Module):
    """Pool a history (B, L, E) with its mask (B, L) beside a candidate (B, E)."""

    width = E


class MaskedMean(Pool):
    def forward(self, x, mask, item):
        weights = mask.unsqueeze(-1).float()
        return (x * weights).sum(1) / weights.sum(1).clamp(min=1)


class SumOverRoot(Pool):
    def forward(self, x, mask, item):
        counts = mask.sum(dim=1, keepdim=True).float()
        return (x * mask[..., None]).sum(dim=1) / torch.sqrt(counts + 1)


class ExpandedMask(Pool):
    def forward(self, x, mask, item):
        return torch.sum(x * mask.unsqueeze(-1).expand_as(x), dim=1)


class MaxWithFill(Pool):
    def forward(self, x, mask, item):
        return x.masked_fill(~mask.unsqueeze(-1), FAR).max(dim=1)[0]


class MaxValues(Pool):
    def forward(self, x, mask, item):
        return torch.max(x.masked_fill(torch.logical_not(mask)[:, :, None], -9.0), 1).values


class Amax(Pool):
    def forward(self, x, mask, item):
        filled = torch.where(mask.unsqueeze(2), x, torch.full_like(x, FAR))
        return torch.amax(filled, dim=1)


class AmaxAmin(Pool):
    width = 2 * E

    def forward(self, x, mask, item):
        return torch.cat([x.amax(1), x.amin(dim=1)], 1)


class MinMethod(Pool):
    def forward(self, x, mask, item):
        return x.min(dim=1).values


class MeanStd(Pool):
    width = 2 * E

    def forward(self, x, mask, item):
        return torch.cat([x.mean(1), x.std(dim=1, unbiased=False)], dim=-1)


class VarFunction(Pool):
    def forward(self, x, mask, item):
        return torch.var(x, dim=1, correction=0)


class TopK(Pool):
    def forward(self, x, mask, item):
        return x.topk(2, dim=1).values.mean(1)


class TopKFunction(Pool):
    def forward(self, x, mask, item):
        values, _ = torch.topk(x, k=2, dim=1, largest=True, sorted=True)
        return values.sum(dim=1)


class Normalised(Pool):
    def forward(self, x, mask, item):
        return functional.normalize((x * mask.unsqueeze(-1)).sum(1), dim=-1)


class CosineAttention(Pool):
    def forward(self, x, mask, item):
        close = functional.cosine_similarity(x, item.unsqueeze(1), dim=-1)  # (B, L)
        weights = torch.softmax(close.masked_fill(~mask, FAR), dim=1)
        return torch.einsum("bl,ble->be", weights, x)


class DotAttention(Pool):
    def forward(self, x, mask, item):
        scores = torch.matmul(x, item.unsqueeze(2)).squeeze(2) / math.sqrt(E)
        scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = functional.softmax(scores, dim=-1).nan_to_num(0.0)
        return torch.bmm(weights.unsqueeze(1), x).squeeze(1)


class LogSoftmaxWeights(Pool):
    def forward(self, x, mask, item):
        weights = torch.log_softmax((x * item[:, None]).sum(-1), dim=1).exp()
        return (weights.unsqueeze(-1) * x).sum(1)


class LogSumExp(Pool):
    def forward(self, x, mask, item):
        return torch.logsumexp(x, dim=1)


class DIN(Pool):
    """The activation unit of DIN."""

    def __init__(self):
        super().__init__()
        self.unit = nn.Sequential(nn.Linear(4 * E, 8), nn.PReLU(), nn.Linear(8, 1))

    def forward(self, x, mask, item):
        query = item.unsqueeze(1).repeat(1, x.size(1), 1)
        scores = self.unit(torch.cat([query, x, query - x, query * x], dim=-1)).squeeze(-1)
        return (scores * mask).unsqueeze(1).bmm(x).squeeze(1)


class DINWithPadding(Pool):
    """Paddings by a large negative number made with ones_like."""

    def __init__(self):
        super().__init__()
        self.unit = nn.Linear(2 * E, 1)

    def forward(self, x, mask, item):
        query = item.unsqueeze(1).expand(-1, x.shape[1], -1)
        scores = self.unit(torch.cat([query, x], -1)).transpose(1, 2)  # (B, 1, L)
        paddings = torch.ones_like(scores) * (-(2**32) + 1)
        scores = torch.where(mask.unsqueeze(1), scores, paddings)
        return torch.matmul(scores.softmax(-1), x)[:, 0]


class AdditiveAttention(Pool):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(E, 6)
        self.query = nn.Parameter(torch.randn(6))

    def forward(self, x, mask, item):
        scores = torch.tanh(self.project(x)) @ self.query
        weights = scores.masked_fill(~mask, FAR).softmax(1)
        return (x * weights.unsqueeze(-1)).sum(1)


class LearnedQueries(Pool):
    """Several learned queries, as in multi-interest models."""

    width = 3 * E

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(3, E))

    def forward(self, x, mask, item):
        scores = torch.tensordot(x, self.queries.t(), dims=1)  # (B, L, 3)
        scores = scores.masked_fill(mask.logical_not().unsqueeze(-1), FAR)
        return torch.matmul(scores.softmax(1).mT, x).flatten(1)


class Outer(Pool):
    def forward(self, x, mask, item):
        places = torch.arange(1, x.size(1) + 1, dtype=x.dtype, device=x.device)
        return (x * torch.reciprocal(places).unsqueeze(-1)).sum(1)


class Decayed(Pool):
    def forward(self, x, mask, item):
        seen = torch.cumsum(mask.long(), dim=1)
        return (x * torch.pow(0.8, seen.float()).unsqueeze(-1)).sum(1)


class LastItem(Pool):
    def forward(self, x, mask, item):
        last = (mask.long().sum(1) - 1).clamp(min=0)
        return x.gather(1, last.view(-1, 1, 1).expand(-1, 1, x.size(2))).squeeze(1)


class GruLast(Pool):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(E, E, batch_first=True)

    def forward(self, x, mask, item):
        _, state = self.rnn(x)
        return state.squeeze(0)


class GruByLength(Pool):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(E, 6, num_layers=2, batch_first=True, bidirectional=True)

    width = 12

    def forward(self, x, mask, item):
        states, _ = self.rnn(x)
        last = (mask.sum(1) - 1).clamp_min(0)
        index = last[:, None, None].expand(-1, 1, states.shape[-1])
        return torch.gather(states, 1, index)[:, 0]


class LstmMean(Pool):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(E, E, batch_first=True, proj_size=5)

    width = 5

    def forward(self, x, mask, item):
        states, (_, _) = self.rnn(x)
        return states.mean(dim=1)


class RnnFromZeros(Pool):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(E, E, nonlinearity="relu")

    def forward(self, x, mask, item):
        start = x.new_zeros(1, x.size(0), E)
        return self.rnn(x.transpose(0, 1), start)[1][-1]


class SelfAttention(Pool):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(E, 2, batch_first=True)

    def forward(self, x, mask, item):
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return (mixed * mask.unsqueeze(-1)).mean(1)


class TargetAttention(Pool):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(E, 2, bias=False, batch_first=True)

    def forward(self, x, mask, item):
        first = torch.zeros_like(mask[:, :1])
        ignored = torch.cat([first, ~mask[:, 1:]], dim=1)
        mixed, _ = self.attention(item.unsqueeze(1), x, x, key_padding_mask=ignored)
        return mixed.squeeze(1)


class ScaledProduct(Pool):
    def forward(self, x, mask, item):
        mixed = functional.scaled_dot_product_attention(item.unsqueeze(1), x, x)
        return mixed.squeeze(1)


class Encoder(Pool):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(E, 2, 16, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, mask, item):
        return self.encoder(x)[:, -1]


class EncoderLayer(Pool):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(E, 4, 12, norm_first=True, batch_first=True)

    def forward(self, x, mask, item):
        return self.layer(x).mean(1)


class RmsNormed(Pool):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(E)

    def forward(self, x, mask, item):
        return self.norm(x).sum(1)


class ByNorm(Pool):
    def forward(self, x, mask, item):
        return (x / (x.norm(dim=-1, keepdim=True) + 1e-6)).mean(1)


class Conv(Pool):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(E, 4, 2)
        self.pool = nn.AdaptiveMaxPool1d(1)

    width = 4

    def forward(self, x, mask, item):
        return self.pool(torch.relu(self.conv(x.transpose(1, 2)))).squeeze(-1)


class Triangle(Pool):
    """Causal attention by a triangle of ones."""

    def forward(self, x, mask, item):
        length = x.size(1)
        seen = torch.tril(x.new_ones(length, length)).bool()
        scores = torch.baddbmm(x.new_zeros(1, length, length), x, x.transpose(1, 2))
        weights = scores.masked_fill(~seen, FAR).softmax(-1)
        return (weights @ x).mean(1)


class AnySeen(Pool):
    def forward(self, x, mask, item):
        seen = mask.any(dim=1, keepdim=True) & (mask.sum(1, keepdim=True) > 1)
        return x.mean(1) * seen.float() + item * (~seen).float()


class Addcmul(Pool):
    def forward(self, x, mask, item):
        return torch.addcmul(item, x.mean(1), torch.sign(item), value=0.5)


class SoftOrder(Pool):
    """The vector that the candidate is closest to."""

    def forward(self, x, mask, item):
        closest = (x * item.unsqueeze(1)).sum(-1).argmax(dim=1)
        return x.take_along_dim(closest[:, None, None], 1).squeeze(1).detach()


class Halves(Pool):
    def forward(self, x, mask, item):
        left, right = x.mean(1).chunk(2, dim=-1)
        first, second = torch.split(item, E // 2, dim=1)
        return torch.cat([left * first, right + second], 1)


class Senet(nn.Module):
    """Squeeze and excitation over the fields."""

    def __init__(self, count):
        super().__init__()
        self.down = nn.Linear(count, 2, bias=False)
        self.up = nn.Linear(2, count, bias=False)
        self.last = nn.Linear(count * E, 1)

    def forward(self, tokens):
        weights = torch.relu(self.up(torch.relu(self.down(tokens.mean(-1)))))
        return self.last((tokens * weights.unsqueeze(-1)).flatten(1))


class FieldAttention(nn.Module):
    """Attention over the fields written by hand, as AutoInt does."""

    def __init__(self, count):
        super().__init__()
        self.query = nn.Linear(E, E, bias=False)
        self.key = nn.Linear(E, E, bias=False)
        self.last = nn.Linear(count * E, 1)

    def forward(self, tokens):
        scores = torch.einsum("bik,bjk->bij", self.query(tokens), self.key(tokens))
        return self.last(torch.relu(scores.softmax(-1) @ tokens).flatten(1))


class Ranked(nn.Module):
    """A model with a history, pooled in some way."""

    def __init__(self, pool, head=None):
        super().__init__()
        names = ("user", "item", "city")
        self.tables = nn.ModuleDict({name: nn.Embedding(30, E) for name in names})
        self.history = nn.Embedding(30, E, padding_idx=0)
        self.pool = pool
        self.fields = nn.Identity()
        self.widths = {"user": E, "item": E, "city": E, "hist": pool.width}
        self.head = head or nn.Linear(3 * E + pool.width, 1)
        self.by_token = head is not None

    def forward(self, batch):
        mask = batch["hist"] != 0
        item = self.tables["item"](batch["item"])
        pooled = self.pool(self.history(batch["hist"]), mask, item)
        user = self.tables["user"](batch["user"])
        x = self.fields(torch.cat([user, item, self.tables["city"](batch["city"]), pooled], -1))
        if self.by_token:
            x = x.view(x.size(0), 4, E)
        return torch.sigmoid(self.head(x)).squeeze(-1)


POOLS = list(Pool.__subclasses__())
CASES = {kind.__name__: lambda kind=kind: Ranked(kind()) for kind in POOLS}
CASES |= {
    "Senet": lambda: Ranked(MaskedMean(), Senet(4)),
    "FieldAttention": lambda: Ranked(MaskedMean(), FieldAttention(4)),
}


def batch_of(rows, length, seed):
    rng = torch.Generator().manual_seed(seed)
    batch = {name: torch.randint(30, (rows,), generator=rng) for name in ("user", "item", "city")}
    hist = torch.randint(1, 30, (rows, length), generator=rng)
    lengths = torch.randint(0, length + 1, (rows, 1), generator=rng)
    return {**batch, "hist": hist * (torch.arange(length) < lengths)}
