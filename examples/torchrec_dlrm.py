"""LeAP in TorchRec's DLRM, with tables sharded over two processes.

torchrun --nproc-per-node=2 examples/torchrec_dlrm.py

docs/torchrec.md has the recipe to install TorchRec. There are eight id features; four of them carry
the label. The tables are sharded in all three ways. Rank 0 then loads the trained weights into a
model without sharding and prunes that: the tables of the other four features are removed.
"""

import argparse
import logging
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
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
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import in_backward_optimizer_filter

import torchleap as tl

USEFUL = ("user", "item", "shop", "query")
USELESS = ("moon", "noise", "coin", "card")
FEATURES = [name for pair in zip(USEFUL, USELESS, strict=True) for name in pair]
IDS = 100  # per feature
WIDTH = 8
DENSE = 4  # numbers per row
ROWS = 256  # per step and rank
TABLES = "sparse_arch.embedding_bag_collection"
# the effect of each id on the click
EFFECT = torch.randn(len(FEATURES), IDS, generator=torch.Generator().manual_seed(0))


def table_of(name: str) -> EmbeddingBagConfig:
    """Return the table of a feature."""
    return EmbeddingBagConfig(
        name=f"{name}_table", feature_names=[name], num_embeddings=IDS, embedding_dim=WIDTH
    )


def build() -> DLRM:
    """Return a model with a table for each feature."""
    tables = [table_of(name) for name in FEATURES]
    return DLRM(
        EmbeddingBagCollection(tables=tables),
        DENSE,
        dense_arch_layer_sizes=[16, WIDTH],
        over_arch_layer_sizes=[32, 1],
    )


def draw(rng: torch.Generator) -> tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]:
    """Return a batch of clicks: one id per feature and row, and some numbers."""
    ids = torch.randint(IDS, (len(FEATURES), ROWS), generator=rng)
    dense = torch.randn(ROWS, DENSE, generator=rng)
    effects = EFFECT.gather(1, ids)  # (features, B)
    logit = dense[:, 0] + sum(effects[FEATURES.index(name)] for name in USEFUL)
    clicks = (torch.rand(ROWS, generator=rng) < logit.sigmoid()).float()[:, None]
    sparse = KeyedJaggedTensor(
        keys=FEATURES, values=ids.flatten(), lengths=torch.ones(ids.numel(), dtype=torch.int64)
    )
    return dense, sparse, clicks


def shard(model: DLRM) -> DistributedModelParallel:
    """Return the model with each table sharded in one of three ways."""
    ways = [table_wise(rank=0), table_wise(rank=1), column_wise(ranks=[0, 1]), data_parallel()]
    sharder = EmbeddingBagCollectionSharder()
    plan = construct_module_sharding_plan(
        model.get_submodule(TABLES),
        {f"{name}_table": ways[place % len(ways)] for place, name in enumerate(FEATURES)},
        sharder=sharder,
        local_size=2,
        world_size=2,
        device_type="cpu",
    )
    return DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=ShardingPlan({TABLES: plan}),
        sharders=[sharder],
    )


def gathered(model: DistributedModelParallel) -> dict[str, torch.Tensor]:
    """Return all weights, gathered on rank 0; every rank has to call it."""
    found = {}
    for name, tensor in model.state_dict().items():
        if hasattr(tensor, "local_shards"):
            full = torch.empty(tensor.size()) if dist.get_rank() == 0 else None
            tensor.gather(dst=0, out=full)
            found[name] = full
        else:
            found[name] = tensor
    return found


def train(model: DistributedModelParallel, plugin: tl.Plugin, steps: int) -> None:
    """Train the model and its gates on the same batches."""
    parameters = dict(in_backward_optimizer_filter(model.named_parameters())).values()
    rest = [parameter for parameter in parameters if parameter is not plugin.gates.theta]
    optimizer = torch.optim.Adam(rest, lr=3e-3)
    gate_optimizer = plugin.optimizer(lr=1e-2)
    rng = torch.Generator().manual_seed(dist.get_rank())  # each rank has rows of its own
    for _ in range(steps):
        dense, sparse, clicks = draw(rng)
        loss = binary_cross_entropy_with_logits(model(dense, sparse), clicks)
        optimizer.zero_grad()
        gate_optimizer.zero_grad()
        loss.backward()  # tables step in here
        optimizer.step()
        gate_optimizer.step()


def prune(weights: dict[str, torch.Tensor]) -> None:
    """Load the trained weights into a model that is not sharded, and prune it, on one rank."""
    model = build()
    plugin = tl.attach(model, at=TABLES, side="output")
    model.load_state_dict(weights)  # gates included
    for name, score in sorted(plugin.scores().items(), key=lambda pair: -pair[1]):
        print(f"{name:<6} {score:.3f}")
    selection = plugin.select()
    dense, sparse, clicks = draw(torch.Generator().manual_seed(99))
    print(plugin.plan(selection, example=(dense, sparse)))
    small = plugin.prune(selection, example=(dense, sparse))
    model.eval()
    small.eval()
    with torch.no_grad():
        full = model(dense, sparse)
        pruned = small(dense, sparse)
        with plugin.masked(selection):
            masked = model(dense, sparse)
    print("tables before:", *table_names(model))
    print("tables after: ", *table_names(small))
    print(f"pruned and masked model differ by at most {(pruned - masked).abs().max():.1e}")
    before = float(binary_cross_entropy_with_logits(full, clicks))
    after = float(binary_cross_entropy_with_logits(pruned, clicks))
    print(f"log loss with all features {before:.4f}, pruned {after:.4f}")


def table_names(model: torch.nn.Module) -> list[str]:
    """Return the names of the tables of a model."""
    return [config.name for config in model.get_submodule(TABLES).embedding_bag_configs()]


def main() -> None:
    """Train on two ranks, then prune on the first."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--steps", type=int, default=600)
    steps = options.parse_args().steps
    warnings.filterwarnings("ignore")
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    model = build()
    apply_optimizer_in_backward(
        torch.optim.Adagrad, model.get_submodule(TABLES).parameters(), {"lr": 0.1}
    )
    # Attach before sharding: DistributedModelParallel then averages the gates' gradient, too.
    plugin = tl.attach(model, at=TABLES, side="output")
    sharded = shard(model)
    train(sharded, plugin, steps)
    weights = gathered(sharded)
    if dist.get_rank() == 0:
        prune(weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
