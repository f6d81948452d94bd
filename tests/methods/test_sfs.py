"""SFS equals differences of the loss."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from torchleap.methods import SFS


def test_sfs_equals_differences_of_the_loss(trained, task):
    search, model = trained
    found = SFS(batches=1).gradients(search, model)
    batch = next(iter(task.valid.batches(search.training.batch, shuffle=True, seed=0)))
    with torch.no_grad():
        x = model.inputs(*batch.inputs)
    model.double()
    for place, name in enumerate(task.fields.names):
        losses = []
        for change in (1e-8, -1e-8):  # so small that no unit of the network switches
            moved = x.double().clone()
            moved[:, task.fields.columns(name)] *= 1 + change
            with torch.no_grad():
                losses.append(
                    float(binary_cross_entropy_with_logits(model.net(moved), batch.label.double()))
                )
        assert found[place].item() == pytest.approx(
            abs(losses[0] - losses[1]) / 2e-8, rel=1e-3, abs=1e-6
        )
    model.float()
