"""From training to serving: train with LeAP, plan, prune, fine-tune, save, export, compare.

python examples/prune.py    half a minute on two cores
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as criterion
from torch.utils.benchmark import Timer

import torchleap as tl

STEPS, BATCH = 1500, 256
truth = tl.data.KnownTruth(seed=0)  # 26 fields, 1 to 256 wide, of which 12 matter
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(truth.fields.dims, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
)

# 1. Train as usual, with gates.
plugin = tl.attach(model, truth.fields, seed=0)
trainer = plugin.trainer(STEPS)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(STEPS):
    x, y = truth.draw(BATCH, seed=step)
    criterion(model(x)[:, 0], y).backward()
    optimizer.step()
    optimizer.zero_grad()
    trainer.step()
# 2. Print every cut, then cut.
selection = plugin.select()
print(plugin.plan(selection))
small = plugin.prune(selection)
# 3. Fine-tune on a tenth of the rows, with the optimizer's state of the kept weights.
valid, test = truth.draw(20_000, seed=10**6), truth.draw(20_000, seed=2 * 10**6)


def auc(model: nn.Module, rows: tuple[torch.Tensor, torch.Tensor] = test) -> float:
    with torch.no_grad():
        return tl.auc(rows[1], model.eval()(rows[0])[:, 0])


before, after = auc(model), auc(small)
tl.finetune(
    small,
    (truth.draw(BATCH, seed=3 * 10**6 + step) for step in range(STEPS // 10)),
    loss=lambda model, batch: criterion(model(batch[0])[:, 0], batch[1]),
    optimizer=tl.carry_over(optimizer, model, small),
    validate=lambda model: auc(model, valid),
    every=25,
)
print(f"Test AUC: with all fields {before:.4f}, pruned {after:.4f}, fine-tuned {auc(small):.4f}.")
# 4. Serve: plain weights and a manifest, or a program for another runtime.
with tempfile.TemporaryDirectory() as folder:
    tl.export.save(
        small, Path(folder) / "model", metrics={"auc_before": before, "auc_after": auc(small)}
    )
    served = tl.export.load(Path(folder) / "model")  # needs none of the code above
    tl.export.to_program(small, Path(folder) / "model.pt2", test[0][:8])
plugin.detach()
for name, serving in (("full", model.eval()), ("pruned", served)):
    timer = Timer(
        "serving(rows)",
        globals={"serving": serving, "rows": test[0][:512]},
        num_threads=torch.get_num_threads(),
    )
    print(f"{name}: {1e3 * timer.blocked_autorange().median:.2f} ms for 512 rows")
