"""The work of two ranks in tests/torchrec/test_sharded.py; each writes its results into a folder.

torchrun --nproc-per-node=2 tests/torchrec/ranks.py SCENARIO FOLDER
"""

import copy
import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    table_wise,
)
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.streamable import Pipelineable

import torchleap as tl

FEATURES = ["f0", "f1", "f2", "f3"]
CPU = torch.device("cpu")
TABLES = "sparse_arch.embedding_bag_collection"
WAYS = {
    "table_wise": [table_wise(rank=0), table_wise(rank=1)] * 2,
    "column_wise": [column_wise(ranks=[0, 1])] * 4,
    "data_parallel": [data_parallel()] * 4,
    "mixed": [data_parallel(), table_wise(rank=1), column_wise(ranks=[0, 1]), table_wise(rank=0)],
}


def collection(device="cpu"):
    tables = [
        EmbeddingBagConfig(
            name=f"t{i}", embedding_dim=8, num_embeddings=30, feature_names=[f"f{i}"]
        )
        for i in range(4)
    ]
    return EmbeddingBagCollection(tables=tables, device=torch.device(device))


def build(device="cpu"):
    torch.manual_seed(0)
    return DLRM(collection(device), 3, dense_arch_layer_sizes=[8, 8], over_arch_layer_sizes=[8, 1])


class Over(nn.Module):
    """Reads a keyed tensor, or its awaitable."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 1)

    def forward(self, keyed):
        return self.linear(torch.cat([keyed[name] for name in FEATURES], dim=1))


class TwoPieces(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables, self.over = collection(), Over()

    def forward(self, dense, sparse):
        return self.over(self.tables(sparse))


def draw(rng, rows=16):
    lengths = torch.randint(0, 4, (4 * rows,), generator=rng)
    ids = torch.randint(0, 30, (int(lengths.sum()),), generator=rng)
    dense = torch.randn(rows, 3, generator=rng)
    return dense, KeyedJaggedTensor(keys=FEATURES, values=ids, lengths=lengths)


def shard(model, ways, at=TABLES, **settings):
    tables, sharder = model.get_submodule(at), EmbeddingBagCollectionSharder()
    plan = construct_module_sharding_plan(
        tables,
        {config.name: ways[int(config.name[1:])] for config in tables.embedding_bag_configs()},
        sharder=sharder,
        local_size=2,
        world_size=2,
        device_type="cpu",
    )
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    return DistributedModelParallel(
        model, env=env, device=CPU, plan=ShardingPlan({at: plan}), sharders=[sharder], **settings
    )


def train(sharded, plugin, steps=6):
    rest = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(sharded.named_parameters())),
        lambda group: torch.optim.Adam(group, lr=1e-2),
    )
    optimizer = CombinedOptimizer([sharded.fused_optimizer, rest])
    rng = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        dense, sparse = draw(rng)
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(sharded(dense, sparse), (dense[:, :1] > 0).float())
        (loss + plugin.penalty()).backward()
        optimizer.step()


def gathered(sharded):
    """Return all weights, complete, on both ranks."""
    found = {}
    for name, tensor in sharded.state_dict().items():
        if hasattr(tensor, "local_shards"):
            complete = torch.zeros(tensor.size())
            tensor.gather(dst=0, out=complete if dist.get_rank() == 0 else None)
            dist.broadcast(complete, src=0)
            found[name] = complete
        else:
            found[name] = tensor.detach().clone()
    return found


@torch.no_grad()
def scatter(sharded, weights):
    """The way back: sharding itself draws new tables."""
    for name, tensor in sharded.state_dict().items():
        for part in tensor.local_shards() if hasattr(tensor, "local_shards") else ():
            (top, left), (rows, columns) = part.metadata.shard_offsets, part.metadata.shard_sizes
            part.tensor.copy_(weights[name][top : top + rows, left : left + columns])
        if isinstance(tensor, torch.Tensor) and not hasattr(tensor, "local_shards"):
            tensor.copy_(weights[name])


def moved(before, after):
    return {
        name: float((before[name] - after[name]).abs().max())
        for name in before
        if "embedding_bags" in name
    }


def scenario_sharded(ways, device="cpu"):
    model = build(device)
    apply_optimizer_in_backward(
        torch.optim.SGD, model.get_submodule(TABLES).parameters(), {"lr": 1.0}
    )
    plugin = tl.attach(model, at=TABLES, side="output", alpha=1e-2)
    sharded = shard(model, ways)
    seen = {"kind": type(model.get_submodule(TABLES)).__name__}
    start = gathered(sharded)
    train(sharded, plugin)
    trained = gathered(sharded)
    seen["theta"] = plugin.gates.theta.tolist()
    seen["steps"] = plugin.gates.steps.tolist()
    seen["tables moved"] = min(moved(start, trained).values())
    optimizer, theta = plugin.optimizer(), plugin.gates.theta.detach().clone()
    own = draw(torch.Generator().manual_seed(50 + dist.get_rank()))
    with plugin.held_out():
        model(*own).square().mean().backward()
        optimizer.step()
    seen["tables moved by held-out rows"] = max(moved(trained, gathered(sharded)).values())
    seen["gates moved by held-out rows"] = not torch.equal(theta, plugin.gates.theta)
    with torch.no_grad():
        plugin.gates.theta.copy_(
            torch.tensor([-0.5, 0.6, 0.1, -0.2])
        )  # all gates differ, so that a mix-up shows
    dense, sparse = draw(torch.Generator().manual_seed(99))
    sharded.eval()
    with torch.no_grad():
        output = sharded(dense, sparse)
        seen["keys"] = list(model.get_submodule(TABLES)(sparse).keys())
    plain = build()
    other = tl.attach(plain, at=TABLES, side="output", alpha=1e-2)
    plain.load_state_dict(gathered(sharded))
    plain.eval()
    seen["differs from unsharded"] = float((plain(dense, sparse) - output).abs().max())
    seen["by the gates"] = float((without_gates(plain)(dense, sparse) - output).abs().max())
    selection = other.select()
    small = other.prune(selection, example=(dense, sparse)).eval()
    with other.masked(selection), torch.no_grad():
        seen["pruned differs from masked"] = float(
            (small(dense, sparse) - plain(dense, sparse)).abs().max()
        )
    seen["kept"] = list(selection.kept)
    seen["tables"] = [config.name for config in small.get_submodule(TABLES).embedding_bag_configs()]
    expected = small(dense, sparse)
    again = shard(copy.deepcopy(small), ways).eval()
    scatter(again, small.state_dict())
    seen["pruned and sharded differs by"] = float((again(dense, sparse) - expected).abs().max())
    try:
        plugin.prune(selection)
    except tl.SurgeryError as error:
        seen["pruning a sharded model"] = str(error)
    return seen


def without_gates(model):
    bare = copy.deepcopy(model)
    tl.attached(bare).detach()
    return bare


def scenario_late():
    """Attached after sharding: refused behind DDP, fine before it."""
    seen = {}
    done = shard(build(), WAYS["mixed"])
    for target, at in ((done, "_dmp_wrapped_module.module." + TABLES), (done.module, TABLES)):
        try:
            tl.attach(target, dict.fromkeys(FEATURES, 8), at=at, side="output")
        except tl.AttachError as error:
            seen.setdefault("refused", []).append(str(error))
    sharded = shard(build(), WAYS["mixed"], init_data_parallel=False)
    plugin = tl.attach(sharded.module, dict.fromkeys(FEATURES, 8), at=TABLES, side="output")
    sharded.init_data_parallel()
    train(sharded, plugin)
    seen["theta"], seen["steps"] = plugin.gates.theta.tolist(), plugin.gates.steps.tolist()
    return seen


def scenario_input():
    """Gates before a module that receives the awaitable."""
    torch.manual_seed(0)
    model = TwoPieces()
    plugin = tl.attach(model, dict.fromkeys(FEATURES, 8), at="over")
    sharded = shard(model, WAYS["table_wise"], at="tables")
    train(sharded, plugin)
    seen = {"theta": plugin.gates.theta.tolist(), "steps": plugin.gates.steps.tolist()}
    torch.manual_seed(0)
    model = TwoPieces()
    plugin = tl.attach(model, at="over")
    try:
        train(shard(model, WAYS["table_wise"], at="tables"), plugin)
    except Exception as error:
        seen["without fields"] = f"{type(error).__name__}: {error}"
    return seen


@dataclass
class Batch(Pipelineable):
    dense: torch.Tensor
    sparse: KeyedJaggedTensor

    def to(self, device, non_blocking=False):
        return self

    def record_stream(self, stream):
        pass

    def pin_memory(self):
        return self


class Task(nn.Module):
    """A model that returns its loss, as TorchRec's pipelines want it."""

    def __init__(self):
        super().__init__()
        self.dlrm = build()

    def forward(self, batch):
        logits = self.dlrm(batch.dense, batch.sparse)
        return binary_cross_entropy_with_logits(
            logits, (batch.dense[:, :1] > 0).float()
        ), logits.detach()


def scenario_pipeline():
    """TorchRec's own loop, which sends the ids of the next batch while this one is computed."""
    task, at = Task(), f"dlrm.{TABLES}"
    plugin = tl.attach(task, at=at, side="output")
    sharded = shard(task, WAYS["mixed"], at=at)
    rest = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    optimizer = KeyedOptimizerWrapper(rest, lambda group: torch.optim.Adam(group, lr=1e-2))
    pipeline = TrainPipelineSparseDist(sharded, optimizer, CPU)
    rng = torch.Generator().manual_seed(dist.get_rank())
    batches = iter([Batch(*draw(rng)) for _ in range(6)])
    with suppress(StopIteration):
        while True:
            pipeline.progress(batches)
    return {"theta": plugin.gates.theta.tolist(), "steps": plugin.gates.steps.tolist()}


SCENARIOS = {
    "meta": lambda: scenario_sharded(WAYS["mixed"], "meta"),
    "late": scenario_late,
    "input": scenario_input,
    "pipeline": scenario_pipeline,
    **{name: partial(scenario_sharded, ways) for name, ways in WAYS.items()},
}


def main():
    scenario, folder = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    seen = SCENARIOS[scenario]()
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
