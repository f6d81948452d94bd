"""AutoField equals its formula, and its logits learn from validation rows."""

import pytest
import torch

from torchleap.methods.autofield import AutoField, AutoFieldHook, KeepOrDrop
from torchleap.methods.base import put_before_net
from torchleap.training.fit import Hook, Training, evaluate, fit


def autofield(search):
    """Return a model with AutoField's gates, and the hook that trains them."""
    model = search.model()
    layer = KeepOrDrop(search, AutoField(every=2))
    put_before_net(model, layer)
    return model, AutoFieldHook(search, layer, lr=1e-2, every=2)


def test_autofield_multiplies_by_a_softmax_with_gumbel_noise(search, task):
    layer = KeepOrDrop(search, AutoField(decay=0.1))
    with torch.no_grad():
        layer.logits.copy_(torch.randn(7, 2))
    layer.get_buffer("step").fill_(3)
    x = torch.randn(5, task.fields.dims)
    torch.manual_seed(5)
    noisy = layer(x)
    torch.manual_seed(5)
    gumbel = -torch.empty(7, 2).exponential_().log()
    for result, noise in ((noisy, gumbel), (layer.eval()(x), torch.zeros(7, 2))):
        for place, name in enumerate(task.fields.names):
            drop, keep = ((layer.logits[place] + noise[place]) / 0.7).exp()
            columns = task.fields.columns(name)
            expected = x[:, columns] * keep / (drop + keep)
            assert torch.allclose(result[:, columns], expected, atol=1e-6)


def test_autofields_temperature_depends_on_steps_of_training_alone(search, task):
    model, hook = autofield(search)
    fit(model, task, Training(batch=256, epochs=1), hooks=[hook])
    steps = -(-len(task.train) // 256)
    layer = hook.layer
    assert layer.temperature.item() == pytest.approx(1 - 5e-5 * steps)
    before = layer.temperature.item()
    assert len({evaluate(model, task.valid)["auc"] for _ in range(5)}) == 1
    assert layer.temperature.item() == before
    layer.get_buffer("step").fill_(1e6)
    assert layer.temperature.item() == pytest.approx(0.01)


def test_the_public_autofield_draws_and_cools_down_in_evaluation(search, task):
    model = search.model()
    layer = KeepOrDrop(search, AutoField(as_published=True))
    put_before_net(model, layer)
    assert len({evaluate(model, task.valid)["auc"] for _ in range(3)}) == 3
    assert layer.get_buffer("step").item() == 3


def test_autofields_logits_learn_from_validation_rows_every_few_steps(search, task):
    model, hook = autofield(search)
    seen = []

    class Watch(Hook):
        def after_step(self, run):
            seen.append(hook.layer.logits.detach().clone())

    fit(model, task, Training(batch=256, epochs=1), hooks=[hook, Watch()])
    before = [torch.full((7, 2), 0.5), *seen[:-1]]
    moved = [not torch.equal(old, new) for old, new in zip(before, seen, strict=True)]
    assert moved == [step % 2 == 0 for step in range(1, len(seen) + 1)]
