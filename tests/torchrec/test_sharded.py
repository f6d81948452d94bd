"""DistributedModelParallel on two gloo processes: what each of them saw, see ranks.py."""

import json

import pytest

from tests.torchrec.launch import torchrun

pytest.importorskip("torchrec", reason="make test-torchrec installs TorchRec")


def seen_by_ranks(scenario, folder):
    torchrun("tests/torchrec/ranks.py", scenario, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


KEYS = {
    "table_wise": ["f0", "f2", "f1", "f3"],  # those of rank 0 first
    "column_wise": ["f0", "f1", "f2", "f3"],
    "data_parallel": ["f0", "f1", "f2", "f3"],
    "mixed": ["f0", "f3", "f1", "f2"],
    "meta": ["f0", "f3", "f1", "f2"],
}


@pytest.mark.parametrize("scenario", KEYS)
def test_gates_that_were_attached_before_sharding_learn_alike_and_stay_with_their_names(
    scenario, tmp_path
):
    first, second = seen_by_ranks(scenario, tmp_path)
    assert first["kind"] == "ShardedEmbeddingBagCollection"
    assert first["steps"] == [6] * 4
    assert first["theta"] == second["theta"]  # though each had rows of its own
    assert len(set(first["theta"])) == 4
    assert all(theta != 1 for theta in first["theta"])
    assert first["tables moved"] > 0
    assert first["tables moved by held-out rows"] == 0
    assert first["gates moved by held-out rows"]
    for seen in (first, second):
        assert seen["keys"] == KEYS[scenario]
        assert seen["differs from unsharded"] < 1e-6 < 1e-3 < seen["by the gates"]
        assert seen["pruned differs from masked"] < 1e-6
        assert seen["pruned and sharded differs by"] < 1e-6
        assert (seen["kept"], seen["tables"]) == (["f1", "f2"], ["t1", "t2"])
        assert "is sharded over several ranks" in seen["pruning a sharded model"]


def test_attaching_after_ddp_is_refused_and_between_sharding_and_ddp_works(tmp_path):
    first, second = seen_by_ranks("late", tmp_path)
    assert len(first["refused"]) == 2
    assert all("Attach before DistributedModelParallel" in message for message in first["refused"])
    assert first["theta"] == second["theta"] != [1.0] * 4
    assert first["steps"] == [6] * 4


def test_a_module_that_receives_the_awaitable_is_gated_at_its_input(tmp_path):
    first, second = seen_by_ranks("input", tmp_path)
    assert first["theta"] == second["theta"] != [1.0] * 4
    assert first["steps"] == [6] * 4
    assert "Give fields=, or example=, to attach()" in first["without fields"]


def test_gates_learn_in_a_train_pipeline(tmp_path):
    first, second = seen_by_ranks("pipeline", tmp_path)
    assert first["theta"] == second["theta"] != [1.0] * 4
    assert first["steps"] == [6] * 4
