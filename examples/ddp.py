"""LeAP in a DDP training loop of one's own, on two processes.

torchrun --nproc-per-node=2 examples/ddp.py

Each rank draws rows of its own and shuffles them by its own random numbers. The gates' statistics
are all-reduced in one small collective per step, their gradient with the model's: every rank ends
with the same gates. Rank 0 then prunes.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

import torchleap as tl
from torchleap.distributed import ranks

FIELDS = {
    "clicks": 64,
    "price": 1,
    "query": 16,
    "moon": 64,
    "noise": 1,
    "coin": 16,
}  # the first three carry the label
DIMS, USEFUL = sum(FIELDS.values()), 81


def draw(rng: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
    """Return rows and their labels."""
    x = torch.randn(rows, DIMS, generator=rng)
    log_odds = x[:, :64].mean(1) * 16 + 2 * x[:, 64] + x[:, 65:USEFUL].mean(1) * 8
    return x, (torch.rand(rows, generator=rng) < log_odds.sigmoid()).float()


def main(steps: int) -> None:
    rank, count = ranks.rank(), ranks.count()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIMS, 64), nn.ReLU(), nn.Linear(64, 1))
    # Attach before DDP, which then averages the gates' gradient as well.
    plugin = tl.attach(model, FIELDS, at="0", seed=0)
    ddp = DistributedDataParallel(model) if count > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    trainer = plugin.trainer(steps)
    rng = torch.Generator().manual_seed(rank)
    for step in range(steps):
        x, y = draw(rng, rows=512 // count)
        loss = binary_cross_entropy_with_logits(ddp(x)[:, 0], y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        trainer.step()
        if ranks.is_first() and (step + 1) % 100 == 0:
            gates = " ".join(f"{gate:.2f}" for gate in plugin.scores().values())
            print(f"step {step + 1}: loss {loss:.3f}, gates {gates}")
    theta = plugin.gates.theta.detach()
    everywhere = all(torch.equal(theta, other) for other in ranks.gathered(theta))
    if ranks.is_first():
        selection = plugin.select()
        kept = ", ".join(selection.kept)
        print(f"The gates are the same on {count} ranks: {everywhere}. Keep: {kept}.")
        model.eval()  # no rank but this one is needed from here on
        print(plugin.plan(selection))
        x, y = draw(torch.Generator().manual_seed(99), rows=20_000)
        small = plugin.prune(selection).eval()
        with torch.no_grad():
            before = tl.auc(y, model(x)[:, 0])
            after = tl.auc(y, small(x)[:, 0])
            print(f"AUC of all fields {before:.4f}, of those kept {after:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    # torch.distributed.init_process_group with torchrun's settings, and a time-out
    with ranks.joined():
        main(arguments.steps)
