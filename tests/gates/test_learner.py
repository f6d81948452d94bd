"""Gates that train themselves, in loops that know nothing of them."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import torchleap as tl
from torchleap.gates import learner as learner_module

FIELDS = {"useful": 2, "noise": 3, "other": 3}
STEPS = 120


def attached_model(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return model, tl.attach(model, FIELDS, at="0", seed=0, **settings)


def batches(steps=STEPS):
    rng = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(256, 8, generator=rng)
        yield x, x[:, :2].sum(1)


def their_loop(model, optimizer, backward=lambda loss: loss.backward(), steps=STEPS):
    """A loop of somebody else."""
    for x, y in batches(steps):
        optimizer.zero_grad()
        backward(mse_loss(model(x)[:, 0], y))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def test_useless_fields_close_and_the_gates_are_those_of_a_trainer():
    model, plugin = attached_model()
    plugin.learn(steps=STEPS)
    their_loop(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    assert plugin.select().kept == ("useful",)
    other, by_hand = attached_model()
    optimizer = torch.optim.AdamW(by_hand.model_parameters(), lr=1e-2)
    trainer = by_hand.trainer(steps=STEPS, optimism=0.0)
    for x, y in batches():
        optimizer.zero_grad()
        mse_loss(other(x)[:, 0], y).backward()
        trainer.step()
        nn.utils.clip_grad_norm_(by_hand.model_parameters(), 1.0)
        optimizer.step()
    assert torch.equal(plugin.gates.theta, by_hand.gates.theta)


def test_an_optimizer_from_before_attach_is_enough():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=5e-2)
    plugin = tl.attach(model, FIELDS, at="0", seed=0)
    plugin.learn(steps=STEPS)
    their_loop(model, optimizer)
    assert plugin.select().kept == ("useful",)


def one_step(change):
    """Return theta after a step whose loss or gradient is changed by a loop."""
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
    [(x, y)] = batches(1)
    change(model, mse_loss(model(x)[:, 0], y))
    optimizer.step()
    return plugin.gates.theta.detach().clone(), learner


def test_regularisation_scaling_and_decay_do_not_reach_the_gates():
    plain, _ = one_step(lambda model, loss: loss.backward())

    def with_l2(model, loss):
        (loss + sum(9 * one.square().sum() for one in model.parameters())).backward()

    def scaled(model, loss):
        (65536.0 * loss).backward()

    for change in (with_l2, scaled):
        found, _ = one_step(change)
        assert torch.allclose(found, plain, atol=1e-6)
    start = torch.ones(3)
    assert not torch.equal(plain, start)

    def l2_alone(model, loss):
        sum(one.square().sum() for one in model.parameters()).backward()

    found, learner = one_step(l2_alone)
    assert torch.equal(found, start)
    assert learner.done == 0


def test_a_gradient_that_is_not_finite_is_skipped():
    def overflow(model, loss):
        (loss * torch.inf).backward()

    found, learner = one_step(overflow)
    assert torch.equal(found, torch.ones(3))
    assert (learner.done, learner.skipped) == (0, 1)


def test_each_backward_pass_is_a_step_whatever_the_loop_accumulates():
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    for x, y in batches(6):
        mse_loss(model(x)[:, 0], y).backward()
    assert learner.done == 6
    losses = [mse_loss(model(x)[:, 0], y) for x, y in batches(3)]
    torch.stack(losses).sum().backward()
    assert learner.done == 7, "three forward passes, one backward pass"


def test_a_graph_that_is_kept_can_be_used_again():
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    [(x, y)] = batches(1)
    loss = mse_loss(model(x)[:, 0], y)
    loss.backward(retain_graph=True)
    loss.backward()
    assert learner.done == 2


def test_passes_without_a_gradient_and_a_stopped_learner_move_nothing():
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    [(x, y)] = batches(1)
    with torch.no_grad():
        model(x)
    mse_loss(model.eval()(x)[:, 0], y).backward()
    model.train()
    learner.stop()
    mse_loss(model(x)[:, 0], y).backward()
    assert learner.done == 0
    assert not plugin.gates.moved


def test_held_out_steps_remain_the_users():
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    [(x, y)] = batches(1)
    optimizer = learner.optimizer
    with plugin.held_out():
        mse_loss(model(x)[:, 0], y).backward()
        optimizer.step()
    assert learner.done == 0
    assert plugin.gates.moved


def test_several_sites_make_one_step():
    torch.manual_seed(0)

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.Linear(5, 1)
            self.right = nn.Linear(3, 1)

        def forward(self, x):
            return self.left(x[:, :5]) + self.right(x[:, 5:])

    model = Towers()
    plugin = tl.attach(model, FIELDS, at=["left", "right"], seed=0)
    learner = plugin.learn(steps=STEPS)
    their_loop(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    assert learner.done == STEPS
    assert plugin.select().kept == ("useful",)


def test_data_parallel_and_its_replicas_reach_the_gates():
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    their_loop(nn.DataParallel(model), torch.optim.Adam(model.parameters()), steps=3)
    assert learner.done == 3
    replica = plugin.gates._replicate_for_data_parallel()
    replica.theta = plugin.gates.theta * 1.0  # as a broadcast leaves it
    replica(torch.randn(8, 8, requires_grad=True)).sum().backward()
    assert learner.done == 4


def test_a_copy_of_the_model_learns_nothing():
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    other = copy.deepcopy(model)
    [(x, y)] = batches(1)
    mse_loss(other(x)[:, 0], y).backward()
    assert learner.done == 0
    assert not plugin.gates.moved


def test_a_resumed_learner_continues_where_it_was():
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    their_loop(model, torch.optim.Adam(model.parameters()), steps=5)
    state = copy.deepcopy(learner.state_dict())
    weights = copy.deepcopy(model.state_dict())
    other, again = attached_model()
    other.load_state_dict(weights)
    resumed = again.learn(steps=STEPS)
    resumed.load_state_dict(state)
    for one in (model, other):
        [(x, y)] = batches(1)
        mse_loss(one(x)[:, 0], y).backward()
    assert resumed.done == learner.done == 6
    assert torch.equal(plugin.gates.theta, again.gates.theta)


def test_gates_that_fsdp_shards_are_refused(monkeypatch):
    _, plugin = attached_model()
    monkeypatch.setattr(learner_module, "units", lambda model: [model])
    with pytest.raises(tl.TorchleapError, match=r"FSDP2 shards this model.*plugin.trainer"):
        plugin.learn()


def warning_of(plugin):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        plugin.select()
    return " ".join(str(one.message) for one in found)


def test_select_warns_if_nothing_has_pressed_on_the_gates():
    model, plugin = attached_model()
    their_loop(model, torch.optim.Adam(model.parameters(), lr=1e-3), steps=5)
    assert "nothing has pressed on the gates" in warning_of(plugin)
    assert "plugin.learn()" in warning_of(plugin)


def test_select_warns_if_the_steps_were_too_few():
    model, plugin = attached_model()
    plugin.learn(steps=10_000)
    their_loop(model, torch.optim.Adam(model.parameters(), lr=1e-3), steps=5)
    assert "after 5 steps of the gates a useless one has not had the time" in warning_of(plugin)


def test_select_warns_if_an_optimizer_has_not_finished_with_the_gates():
    model, plugin = attached_model(alpha=1e-2)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=5e-2)
    for x, y in batches(40):
        optimizer.zero_grad()
        (mse_loss(model(x)[:, 0], y) + plugin.penalty()).backward()
        optimizer.step()
    assert "still on their way" in warning_of(plugin)


def with_penalty(model, plugin, optimizer, steps):
    for x, y in batches(steps):
        optimizer.zero_grad()
        (mse_loss(model(x)[:, 0], y) + plugin.penalty()).backward()
        optimizer.step()


SLOW = {
    "Adagrad": (lambda groups: torch.optim.Adagrad(groups, lr=1e-2), 300, 1e-3),
    "SGD": (lambda groups: torch.optim.SGD(groups, lr=1e-2), 300, 1e-2),
}
FEW = {
    "Adam with a low rate": (lambda groups: torch.optim.Adam(groups, lr=1e-3), 100, 1e-2),
    "Adam": (lambda groups: torch.optim.Adam(groups, lr=1e-2), 30, 1e-2),
}


@pytest.mark.parametrize("name", SLOW)
def test_select_warns_if_the_optimizer_is_slow(name):
    make, steps, alpha = SLOW[name]
    model, plugin = attached_model(alpha=alpha)
    with_penalty(model, plugin, make(model.parameters()), steps)
    assert "the optimizer moves them slowly, as SGD and Adagrad do" in warning_of(plugin)


@pytest.mark.parametrize("name", FEW)
def test_select_warns_if_the_steps_of_an_optimizer_were_too_few(name):
    make, steps, alpha = FEW[name]
    model, plugin = attached_model(alpha=alpha)
    with_penalty(model, plugin, make(model.parameters()), steps)
    assert "the steps were too few. Train longer" in warning_of(plugin)


@pytest.mark.parametrize("how", ["penalty", "trainer", "learn"])
def test_select_does_not_warn_where_all_fields_are_useful(how):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    plugin = tl.attach(model, dict.fromkeys("abcdefgh", 1), seed=0, alpha=1e-3)
    steps = 400
    trainer = plugin.trainer(steps=steps) if how == "trainer" else None
    if how == "learn":
        plugin.learn(steps=steps)
    optimizer = torch.optim.Adam(plugin.model_parameters(), lr=1e-2)
    if how == "penalty":
        optimizer = torch.optim.Adam(plugin.parameter_groups(gate_lr=1e-2), lr=1e-2)
    rng = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = torch.randn(64, 8, generator=rng)
        optimizer.zero_grad()
        (mse_loss(model(x)[:, 0], x.sum(1)) + plugin.penalty() * (how == "penalty")).backward()
        optimizer.step()
        if trainer is not None:
            trainer.step()
    assert warning_of(plugin) == ""
    assert len(plugin.select().kept) == 8


def test_select_does_not_warn_where_a_gate_is_closed_or_none_had_to_close():
    model, plugin = attached_model()
    plugin.learn(steps=STEPS)
    their_loop(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    assert warning_of(plugin) == ""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    plugin = tl.attach(model, {"a": 8}, seed=0)
    plugin.learn(steps=STEPS)
    their_loop(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    assert warning_of(plugin) == ""


def test_a_trainer_that_is_made_later_takes_over():
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    trainer = plugin.trainer(steps=STEPS)
    for x, y in batches(3):
        mse_loss(model(x)[:, 0], y).backward()
        trainer.step()
    assert (learner.done, trainer.done) == (0, 3)
    assert plugin.gates.moved


def test_the_gates_do_not_count_in_the_norm_of_the_gradient():
    model, plugin = attached_model()
    plugin.learn(steps=STEPS)
    [(x, y)] = batches(1)
    l2 = sum(one.square().sum() for one in model.parameters())
    (mse_loss(model(x)[:, 0], y) + l2).backward()
    assert plugin.gates.theta.grad is None


def test_a_scaler_of_gradients_that_skips_steps_does_not_stop_the_gates():
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(x)
        scaler.scale(mse_loss(output[:, 0].float(), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert learner.skipped > 0
    assert learner.done + learner.skipped == STEPS
    assert plugin.select().kept == ("useful",)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_passes_that_are_computed_again_for_their_gradient_count_once(use_reentrant):
    model, plugin = attached_model()
    learner = plugin.learn(steps=STEPS)
    for x, y in batches(3):
        output = checkpoint(model, x.requires_grad_(), use_reentrant=use_reentrant)
        mse_loss(output[:, 0], y).backward()
    assert learner.done == 3


def test_two_losses_of_one_pass_are_two_steps():
    model, plugin = attached_model()
    learner = plugin.learn(steps=2 * STEPS)
    for x, y in batches(3):
        output = model(x)[:, 0]
        mse_loss(output, y).backward(retain_graph=True)
        output.square().mean().backward()
    assert learner.done == 6


def test_a_compiled_model_leaves_the_gates_to_python():
    torch.compiler.reset()
    found = []
    for compiled in (False, True):
        model, plugin = attached_model()
        plugin.learn(steps=STEPS)
        called = torch.compile(model, backend="eager") if compiled else model
        for x, y in batches(3):
            mse_loss(called(x)[:, 0], y).backward()
        found.append(plugin.gates.theta.detach().clone())
    assert torch.equal(*found)
    assert plugin.gates.moved
    torch.compiler.reset()
    called = torch.compile(model, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="theta_of_pass"):
        called(x)


def test_select_says_that_no_gradient_arrived():
    model, plugin = attached_model()
    plugin.learn(steps=STEPS)
    for x, y in batches(3):
        torch.autograd.grad(mse_loss(model(x)[:, 0], y), plugin.model_parameters())
    with pytest.raises(tl.SelectionError, match=r"after 3 training steps.*torch.autograd.grad"):
        plugin.select()


def test_select_says_that_no_gradient_was_finite():
    model, plugin = attached_model()
    plugin.learn(steps=STEPS)
    for x, y in batches(3):
        (torch.inf * mse_loss(model(x)[:, 0], y)).backward()
    with pytest.raises(tl.SelectionError, match="The gradient of 3 steps was not finite"):
        plugin.select()


def test_select_warns_if_the_best_weights_were_restored_with_their_gates():
    model, plugin = attached_model()
    plugin.learn(steps=STEPS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    their_loop(model, optimizer, steps=3)
    best = copy.deepcopy(model.state_dict())
    their_loop(model, optimizer)
    model.load_state_dict(best)
    assert "were set back, as early stopping does" in warning_of(plugin)
