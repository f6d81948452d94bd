"""The formulas of docs/scale.md, as in benchmarks/distributed.py, against real collectives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.distributed import (
    count_bytes,
    counted,
    fields_of,
    gates_bytes,
    limit,
    meeting_bytes,
    network,
    turns,
)
from torch.nn.parallel import DistributedDataParallel

import torchleap as tl

from .ranks_of import keep, run

SHAPES = {"wide": [24] * 8, "narrow": [1] * 5, "mixed": [40, 3, 1]}


def count_all(folder: Path) -> None:
    keep(
        folder,
        {name: count_bytes(widths) for name, widths in SHAPES.items()}
        | {"seldom": seldom(), "held out": held_out()},
    )


def seldom() -> dict[str, int]:
    """Return the bytes of six steps, of which every third sends."""
    gates = tl.LeAP(fields_of([1] * 5), sync_every=3, seed=0)
    gates(torch.randn(4, 5))
    with counted() as found:
        for _ in range(6):
            gates(torch.randn(4, 5))
    return dict(found)


def held_out() -> dict[str, int]:
    """Return the bytes of a step of the gates alone, past DDP."""
    model = network([1] * 5, [8])
    plugin = tl.attach(model, fields_of([1] * 5), at="0", seed=0)
    optimizer = plugin.optimizer()
    DistributedDataParallel(model)(torch.randn(4, 5)).sum().backward()
    with counted() as found, plugin.held_out():
        model(torch.randn(4, 5)).sum().backward()
        optimizer.step()
    return dict(found)


def test_ranks_send_the_bytes_of_the_formulas(tmp_path: Path) -> None:
    first, second = run(count_all, tmp_path)
    assert first == second
    for name, widths in SHAPES.items():
        found, fields, dims = first[name], len(widths), sum(widths)
        assert found["gated own all_reduces"] == 1
        assert found["gated own all_reduce bytes"] == pytest.approx(gates_bytes(fields, dims))
        assert found["gated own all_reduce bytes"] <= limit(fields) == 8 * (fields * 4)
        # DDP does not send the gates' buffers, and neither do they
        assert "gated own broadcasts" not in found
        assert found["gated bytes"] - found["bare bytes"] == 4 * fields  # the gates' gradient
        assert found["gated buckets"] == found["bare buckets"]
        once = found["gated first all_reduce bytes"] + found["gated first broadcast bytes"]
        assert once == meeting_bytes(fields, dims) + 4 * (4 * fields + dims + 1)
        assert not any(kind.startswith("bare own") for kind in found)
    assert first["seldom"] == {"all_reduces": 2, "all_reduce bytes": 2 * gates_bytes(5, 5)}
    assert first["held out"] == {"all_reduces": 2, "all_reduce bytes": gates_bytes(5, 5) + 4 * 5}


def test_one_rank_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    found: dict[str, Any] = count_bytes([3, 1])
    assert found == {}


def test_the_means_of_all_columns_go_round() -> None:
    assert turns(512, 12_267) == 6  # 2,047 columns per turn
    assert turns(4_167, 100_000) == 6
    assert turns(512, 512) == 1
