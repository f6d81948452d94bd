"""Streams under a price that rises and falls: checkpoints, DDP and FSDP2, real processes, gloo."""

from pathlib import Path
from typing import Any

import pytest
import torch

import torchleap as tl
from torchleap.distributed import ranks
from torchleap.training.fit import Training

from .ranks_of import keep, run
from .test_sharded import shard
from .test_stream import Endless, Net, outcome

WINDOW = tl.PriceWindow(worth=0.02, rise=80, hold=20, fall=40)
MIDDLE = 93  # in a hold, between two steps of the gates
END = 150  # in the second rise
FIELDS = {"useful": 1, "other": 1, "useless": 2}
CASES = (("ddp", FIELDS), ("layer", FIELDS), ("whole", {"all": 4}))  # the last: fewer gates


def streamed(steps: int, how: str, fields: dict[str, int], folder: Path | None) -> dict[str, Any]:
    """All that ranks and a resumed stream have to agree on."""
    torch.manual_seed(0)
    model = Net()
    plugin = tl.attach(model, fields, at="deep", seed=0)
    if how in ("layer", "whole"):
        shard(model, how)
    hook = tl.LearnGates(plugin, price=WINDOW)
    training = Training(epochs=1, steps=steps, eval_every=10, lr=1e-2, checkpoint_steps=20, seed=3)
    place = None if folder is None else folder / how
    found = outcome(tl.stream(model, Endless(), training, hooks=[hook], checkpoint=place))
    weights = {name: ranks.full(tensor).clone() for name, tensor in found["weights"].items()}
    return {**found, "weights": weights, "scores": hook.trainer.scores()}


def undisturbed(folder: Path) -> None:
    keep(folder, [streamed(END, *case, None) for case in CASES])


def until_the_middle(folder: Path) -> None:
    keep(folder, [streamed(MIDDLE, *case, folder) for case in CASES])


def until_the_end(folder: Path) -> None:
    keep(folder, [streamed(END, *case, folder) for case in CASES])


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Assert that two streams are equal, bit for bit."""
    assert one["records"] == other["records"]
    assert one["scores"] == other["scores"]
    for name, tensor in one["weights"].items():
        if not name.endswith(("running_mean", "running_var")):
            assert torch.equal(tensor, other["weights"][name]), name


def test_a_resumed_stream_continues_in_its_window(tmp_path: Path) -> None:
    straight = streamed(END, "alone", FIELDS, None)
    assert straight["scores"]["useful"] > 0.5 > straight["scores"]["useless"]
    streamed(MIDDLE, "alone", FIELDS, tmp_path)
    assert_same(streamed(END, "alone", FIELDS, tmp_path), straight)


def test_records_of_a_stream_have_its_price() -> None:
    records = streamed(END, "alone", FIELDS, None)["records"]
    assert [record["price"] for record in records] == pytest.approx(
        [WINDOW.price_at(record["step"]) for record in records]
    )
    assert max(record["price"] for record in records) == pytest.approx(0.04)


def test_all_ranks_agree_on_every_gate_also_after_a_resume(tmp_path: Path) -> None:
    first, second = run(undisturbed, tmp_path)
    run(until_the_middle, tmp_path)
    continued = run(until_the_end, tmp_path)
    for place, (_, fields) in enumerate(CASES):
        straight = first[place]
        gates = [name for name in straight["records"][0] if name.startswith("gate_")]
        assert gates == [f"gate_{name}" for name in fields]
        values = {record[gate] for record in straight["records"] for gate in gates}
        assert len(values) > len(fields)  # they move
        assert_same(second[place], straight)
        for rank in continued:
            assert_same(rank[place], straight)


def test_one_process_continues_the_stream_of_two_sharded_ones(tmp_path: Path) -> None:
    run(until_the_middle, tmp_path)
    case = CASES[1]
    (tmp_path / case[0]).rename(tmp_path / "alone")
    alone = streamed(END, "alone", case[1], tmp_path)
    assert alone["step"] == END
    assert alone["scores"]["useful"] > 0.5 > alone["scores"]["useless"]
