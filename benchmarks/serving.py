"""What pruning saves in serving: throughput, latency and bytes of the full against the pruned model, interleaved in one run.

    python benchmarks/serving.py            # about five minutes on two cores
    python benchmarks/serving.py --quick    # few repeats, batch 512, no ONNX

512 fields with about 12,000 dimensions in front of an MLP 1024-512-256: ids with an embedding table each, or rows of numbers.
30 % or 50 % of the dimensions are dropped at random. The pruned model reads the old batches; `50% sent` is the same model when
the dropped columns are no longer sent. Speeds are the medians of the ratios to the full model in the same round; p50 and p99
are milliseconds of one call. Bytes are those of the weights; "first layer" and "tables" say which share is gone.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import torchleap as tl

IDS = 1_000


def some_fields() -> tl.Fields:
    """512 fields from 1 to 256 wide, most of them narrow, as in overhead.py."""
    rng = random.Random(0)
    widths = [rng.choice([1, 1, 1, 1, 4, 8, 8, 16, 16, 32, 64, 128]) for _ in range(511)] + [256]
    return tl.Fields({f"f{i}": width for i, width in enumerate(widths)})


class Ranker(nn.Module):
    """Ids or numbers in, one score out."""

    def __init__(self, fields: tl.Fields, *, ids: bool) -> None:
        super().__init__()
        self.tables = (
            nn.ModuleList([nn.Embedding(IDS, width) for width in fields.widths]) if ids else None
        )
        sizes = [fields.dims, 1024, 512, 256]
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.deep = nn.Sequential(*hidden, nn.Linear(256, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Shape: (B, F) ids or (B, D) numbers -> (B, 1)."""
        if self.tables is not None:
            x = torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], dim=1)
        return self.deep(x)


def batch(fields: tl.Fields, rows: int, *, ids: bool) -> Tensor:
    return torch.randint(IDS, (rows, len(fields))) if ids else torch.randn(rows, fields.dims)


def prune(model: nn.Module, fields: tl.Fields, share: float, example: Tensor) -> nn.Module:
    """Drop random fields until this share of the dimensions is gone."""
    plugin = tl.attach(model, fields, at="deep")
    model.train()(example)
    with torch.no_grad():
        plugin.gates.theta.copy_(
            torch.randn(len(fields), generator=torch.Generator().manual_seed(0))
        )
    small = plugin.prune(plugin.select(dims=round(fields.dims * (1 - share))))
    plugin.detach()
    return small.eval()


def still_sent(model: nn.Module, dims: int) -> list[int]:
    """The columns that a pruned model still reads."""
    unread = {column for item in tl.plan_of(model).unread for column in item.columns or ()}
    return [column for column in range(dims) if column not in unread]


def onnx(model: nn.Module, example: Tensor) -> Callable[[Tensor], object]:
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
    """Milliseconds of each call, one after the other in every round."""
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
    return (
        0
        if module is None
        else sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
    )


def gone(full: nn.Module | None, small: nn.Module | None) -> str:
    return f"{1 - size(small) / size(full):.1%}" if size(full) else "-"


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
        small = {share: prune(full, fields, share, example) for share in (0.3, 0.5)}
        print(f"\n{'ids with tables' if ids else 'rows of numbers'}: {size(full):,} bytes")
        for share, model in small.items():
            first, tables = gone(full.deep[0], model.deep[0]), gone(full.tables, model.tables)
            print(
                f"  {share:.0%} dropped: {size(model):,} bytes; gone: first layer {first}, tables {tables}"
            )
        narrow = None if ids else still_sent(small[0.5], fields.dims)
        engines: dict[str, dict[str, Callable[[Tensor], object]]] = {
            "PyTorch": {
                "full": full.eval(),
                **{f"{share:.0%}": model for share, model in small.items()},
            }
        }
        if not quick:
            engines["ONNX Runtime"] = {
                name: onnx(model, example) for name, model in engines["PyTorch"].items()
            }  # type: ignore[arg-type]
            if narrow is not None:  # a program of its own: its input has no other columns
                engines["ONNX Runtime"]["50% sent"] = onnx(
                    small[0.5], example[:, narrow].contiguous()
                )
        print(
            f"  {'engine':<13}{'batch':>6}  {'model':<9}{'rows/s':>11}{'speed':>7}{'p50 ms':>9}{'p99 ms':>9}"
        )
        for engine, models in engines.items():
            for rows in (512,) if quick else (1, 64, 512):
                x = batch(fields, rows, ids=ids)
                old_batches = {name: model for name, model in models.items() if name != "50% sent"}
                calls: dict[str, Callable[[], object]] = {
                    n: (lambda m=m, x=x: m(x)) for n, m in old_batches.items()
                }
                if narrow is not None:
                    sent, reader = x[:, narrow].contiguous(), models.get("50% sent", models["50%"])
                    calls["50% sent"] = lambda m=reader, x=sent: m(x)
                times = measure(calls, 7 if quick else 200 if rows < 512 else 60)
                for name, own in times.items():
                    speed = statistics.median(
                        a / b for a, b in zip(times["full"], own, strict=True)
                    )
                    p50, p99 = (
                        statistics.median(own),
                        statistics.quantiles(own, n=100, method="inclusive")[98],
                    )
                    print(
                        f"  {engine:<13}{rows:>6}  {name:<9}{1e3 * rows / p50:>11,.0f}{speed:>7.2f}{p50:>9.2f}{p99:>9.2f}"
                    )


if __name__ == "__main__":
    main()
