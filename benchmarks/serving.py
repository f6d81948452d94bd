"""The savings of pruning in serving: throughput, latency and bytes against the full model.

    python benchmarks/serving.py            # about five minutes on two cores
    python benchmarks/serving.py --quick    # few repeats, batch 512, no ONNX

512 fields with about 12,000 dimensions in front of an MLP 1024-512-256: ids with an embedding table
each, or rows of numbers. 30 % or 50 % of the dimensions are dropped at random. The pruned model
reads the old batches; `50% sent` is the same model when the dropped columns are no longer sent.
Speeds are the medians of the ratios to the full model in the same round; p50 and p99 are
milliseconds per call. Bytes are those of the weights; "first layer" and "tables" are the fractions
of them that are gone.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import torchleap as tl

IDS = 1_000


def some_fields() -> tl.Fields:
    """Return 512 fields from 1 to 256 wide, most of them narrow, as in overhead.py."""
    rng = random.Random(0)
    widths = [rng.choice([1, 1, 1, 1, 4, 8, 8, 16, 16, 32, 64, 128]) for _ in range(511)] + [256]
    return tl.Fields({f"f{i}": width for i, width in enumerate(widths)})


class Ranker(nn.Module):
    """A model of ids or numbers with one output."""

    def __init__(self, fields: tl.Fields, *, ids: bool) -> None:
        super().__init__()
        self.tables = None
        if ids:
            self.tables = nn.ModuleList([nn.Embedding(IDS, width) for width in fields.widths])
        sizes = [fields.dims, 1024, 512, 256]
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.deep = nn.Sequential(*hidden, nn.Linear(256, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of each row: (B, F) ids or (B, D) numbers -> (B, 1)."""
        if self.tables is not None:
            x = torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], dim=1)
        return self.deep(x)


def batch(fields: tl.Fields, rows: int, *, ids: bool) -> Tensor:
    """Return random rows."""
    if ids:
        return torch.randint(IDS, (rows, len(fields)))
    return torch.randn(rows, fields.dims)


def prune(model: nn.Module, fields: tl.Fields, fraction: float, example: Tensor) -> nn.Module:
    """Drop random fields until this fraction of the dimensions is gone."""
    plugin = tl.attach(model, fields, at="deep")
    model.train()(example)
    with torch.no_grad():
        rng = torch.Generator().manual_seed(0)
        plugin.gates.theta.copy_(torch.randn(len(fields), generator=rng))
    small = plugin.prune(plugin.select(dims=round(fields.dims * (1 - fraction))))
    plugin.detach()
    return small.eval()


def still_sent(model: nn.Module, dims: int) -> list[int]:
    """Return the columns that a pruned model still reads."""
    unread = {column for item in tl.plan_of(model).unread for column in item.columns or ()}
    return [column for column in range(dims) if column not in unread]


def onnx(model: nn.Module, example: Tensor) -> Callable[[Tensor], object]:
    """Return a model as a function that ONNX Runtime computes."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        tl.export.to_onnx(model, Path(folder) / "model.onnx", example)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(
            Path(folder) / "model.onnx", options, providers=["CPUExecutionProvider"]
        )
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x.numpy()})


def measure(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Return the milliseconds of each call, one after the other in every round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def size(module: nn.Module | None) -> int:
    """Return the bytes of the weights and buffers of a module."""
    if module is None:
        return 0
    tensors = (*module.parameters(), *module.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def gone(full: nn.Module | None, small: nn.Module | None) -> str:
    """Return the fraction of the bytes that pruning removed."""
    if not size(full):
        return "-"
    return f"{1 - size(small) / size(full):.1%}"


Engines = dict[str, dict[str, Callable[[Tensor], object]]]  # models by engine and name


def engines_for(
    full: nn.Module,
    small: dict[float, nn.Module],
    example: Tensor,
    narrow: list[int] | None,
    *,
    with_onnx: bool,
) -> Engines:
    """Return the models as PyTorch and ONNX Runtime compute them.

    Args:
        full: The full model.
        small: The pruned models by fraction of dropped dimensions.
        example: Some rows.
        narrow: The columns that are still sent; None sends all.
        with_onnx: Whether ONNX Runtime takes part.
    """
    models = {"full": full, **{f"{fraction:.0%}": model for fraction, model in small.items()}}
    if not with_onnx:
        return {"PyTorch": models}
    exported = {name: onnx(model, example) for name, model in models.items()}
    if narrow is not None:  # a program of its own: its input has no other columns
        exported["50% sent"] = onnx(small[0.5], example[:, narrow].contiguous())
    return {"PyTorch": models, "ONNX Runtime": exported}


def calls_of(
    models: dict[str, Callable[[Tensor], object]], x: Tensor, narrow: list[int] | None
) -> dict[str, Callable[[], object]]:
    """Return a call of each model by name; `50% sent` gets the columns that it reads alone."""
    calls = {name: partial(model, x) for name, model in models.items() if name != "50% sent"}
    if narrow is not None:
        reader = models.get("50% sent", models["50%"])
        calls["50% sent"] = partial(reader, x[:, narrow].contiguous())
    return calls


def show(engine: str, rows: int, times: dict[str, list[float]]) -> None:
    """Print a line for each model."""
    for name, own in times.items():
        pairs = zip(times["full"], own, strict=True)
        speed = statistics.median(full / small for full, small in pairs)
        p50 = statistics.median(own)
        p99 = statistics.quantiles(own, n=100, method="inclusive")[98]
        per_second = 1e3 * rows / p50
        print(
            f"  {engine:<13}{rows:>6}  {name:<9}{per_second:>11,.0f}"
            f"{speed:>7.2f}{p50:>9.2f}{p99:>9.2f}"
        )


@torch.no_grad()
def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true")
    quick = options.parse_args().quick
    torch.manual_seed(0)
    fields = some_fields()
    print(f"{len(fields)} fields, {fields.dims:,} dimensions, {torch.get_num_threads()} threads")
    for ids in (True, False):
        full = Ranker(fields, ids=ids).eval()
        example = batch(fields, 8, ids=ids)
        small = {fraction: prune(full, fields, fraction, example) for fraction in (0.3, 0.5)}
        full.eval()
        print(f"\n{'ids with tables' if ids else 'rows of numbers'}: {size(full):,} bytes")
        for fraction, model in small.items():
            first = gone(full.deep[0], model.deep[0])
            tables = gone(full.tables, model.tables)
            print(
                f"  {fraction:.0%} dropped: {size(model):,} bytes; "
                f"gone: first layer {first}, tables {tables}"
            )
        narrow = None if ids else still_sent(small[0.5], fields.dims)
        engines = engines_for(full, small, example, narrow, with_onnx=not quick)
        columns = f"{'rows/s':>11}{'speed':>7}{'p50 ms':>9}{'p99 ms':>9}"
        print(f"  {'engine':<13}{'batch':>6}  {'model':<9}{columns}")
        repeats = {512: 7} if quick else {1: 200, 64: 200, 512: 60}
        for engine, models in engines.items():
            for rows, count in repeats.items():
                calls = calls_of(models, batch(fields, rows, ids=ids), narrow)
                show(engine, rows, measure(calls, count))


if __name__ == "__main__":
    main()
