"""The optimizers and loops that a model carries are carried over to the pruned model."""

import copy
import warnings
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR

import torchleap as tl

FIELDS = {"item": 4, "user": 4, "city": 4, "price": 1}
KEPT = tl.Selection(tl.Fields(FIELDS), (0.9, 0.1, 0.1, 0.9), (True, False, False, True))
OPTIMIZERS = {
    "Adam": partial(torch.optim.Adam, lr=1e-2),
    "AdamW": partial(torch.optim.AdamW, lr=1e-2, amsgrad=True),
    "fused": partial(torch.optim.Adam, lr=1e-2, fused=True),
    "Adagrad": partial(torch.optim.Adagrad, lr=1e-2),
    "SGD": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-3, momentum=0.5),
    "Adamax": torch.optim.Adamax,
    "Adadelta": torch.optim.Adadelta,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adafactor": torch.optim.Adafactor,
    "LBFGS": partial(torch.optim.LBFGS, max_iter=1, lr=1e-2),
}


def batch(count=64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, (count, 3), generator=rng)
    price = torch.randn(count, 1, generator=rng)
    return {"ids": ids, "price": price}, (ids[:, 0] + price[:, 0] > 5).float()


class WithLoop(nn.Module):
    """A model that keeps its loop, as some libraries do."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(10, 4) for name in list(FIELDS)[:3]})
        self.deep = nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
        self.penalised = [(list(self.tables.parameters()), 1e-3)]
        self.penalised.append((list(self.deep.named_parameters()), 1e-3))
        self.optim = None

    def forward(self, batch):
        ids = batch["ids"]
        blocks = [table(ids[:, i]) for i, table in enumerate(self.tables.values())]
        return self.deep(torch.cat([*blocks, batch["price"]], dim=1))[:, 0]

    def compile_with(self, make):
        self.optim = make(self.parameters())
        self.scheduler = StepLR(self.optim, 2, gamma=0.5)

    def l2(self):
        total = 0.0
        for weights, factor in self.penalised:
            for one in weights:
                weight = one[1] if isinstance(one, tuple) else one
                total = total + factor * weight.square().sum()
        return total

    def fit(self, steps=4, seed=0):
        for step in range(steps):
            x, y = batch(seed=seed + step)

            def closure(x=x, y=y):
                self.optim.zero_grad()
                loss = binary_cross_entropy_with_logits(self.train()(x), y) + self.l2()
                loss.backward()
                return loss

            loss = self.optim.step(closure)
            self.scheduler.step()
        return float(loss.detach())


def fitted(make=OPTIMIZERS["Adam"], build=WithLoop):
    torch.manual_seed(0)
    model = build()
    plugin = tl.attach(model, FIELDS, at="deep", seed=0)
    plugin.learn(steps=100)
    model.compile_with(make)
    model.fit()
    return model, plugin


def held(optimizer):
    return {id(one) for group in optimizer.param_groups for one in group["params"]}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_models_own_loop_fine_tunes_the_pruned_model(name):
    model, plugin = fitted(OPTIMIZERS[name])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = copy.deepcopy(model.optim.state_dict())
    small = plugin.prune(KEPT)
    assert type(small.optim) is type(model.optim)
    assert held(small.optim) == {id(one) for one in small.parameters()}
    assert small.scheduler.optimizer is small.optim
    weights = [weight.detach().clone() for weight in small.parameters()]
    small.fit(seed=9)
    for weight, then in zip(small.parameters(), weights, strict=True):
        assert not torch.equal(weight, then)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), f"{key} of the old model has moved"
    assert str(model.optim.state_dict()) == str(state)


def test_state_schedule_and_regularised_weights_are_those_that_were_kept():
    model, plugin = fitted()
    small = plugin.prune(KEPT)
    old = model.optim.state[model.deep[0].weight]
    new = small.optim.state[small.deep[0].weight]
    columns = [0, 1, 2, 3, 12]
    gate = plugin.gates.gate().detach()[plugin.gates.column_gate][columns]
    torch.testing.assert_close(new["exp_avg"], old["exp_avg"][:, columns] / gate)
    assert new["step"] == 4
    assert small.scheduler.last_epoch == 4
    assert small.optim.param_groups[0]["lr"] == 2.5e-3
    [(tables, _), (deep, _)] = small.penalised
    assert [id(one) for one in tables] == [id(small.tables["item"].weight)]
    assert [name for name, _ in deep] == ["0.weight", "0.bias", "2.weight"]
    assert {id(one) for _, one in deep} <= {id(one) for one in small.parameters()}
    assert len(model.penalised[0][0]) == 3


def test_groups_keep_their_places_so_that_schedules_fit():
    def make(_):
        groups = [
            {"params": list(model.tables["user"].parameters()), "lr": 1.0},
            {"params": [plugin.gates.theta], "lr": 2.0},
            {"params": [model.deep[0].weight, model.deep[0].bias, model.deep[2].weight], "lr": 3.0},
        ]
        return torch.optim.Adam(groups)

    model = WithLoop()
    plugin = tl.attach(model, FIELDS, at="deep", seed=0)
    plugin.learn(steps=100)
    model.compile_with(make)
    model.scheduler = LambdaLR(model.optim, [lambda step: 1.0, lambda step: 1.0, lambda step: 0.5])
    model.fit()
    small = plugin.prune(KEPT)
    small.fit()
    assert [len(group["params"]) for group in small.optim.param_groups] == [0, 0, 3]
    assert [group["lr"] for group in small.optim.param_groups] == [1.0, 2.0, 1.5]


def test_a_plan_makes_models_with_optimizers_of_their_own():
    model, plugin = fitted()
    plan = plugin.plan(KEPT)
    assert not plan.notes
    first, second = plan.apply(), plan.apply()
    first.fit()
    assert not held(first.optim) & held(second.optim)
    assert second.optim.state[second.deep[0].weight]["step"] == 4
    assert held(model.optim) == {id(one) for one in model.parameters()}


def test_containers_objects_and_scalers_are_searched():
    class Parts(NamedTuple):
        optimizer: torch.optim.Optimizer
        name: str

    class Loop:
        def __init__(self, model, optimizer):
            self.model = model
            self.optimizers = {"deep": (optimizer,)}
            self.parts = Parts(optimizer, "deep")
            self.own = self
            self.weights = {
                "user": model.tables["user"].weight,
                "item": model.tables["item"].weight,
            }
            self.user = model.tables["user"].weight

    model, plugin = fitted()
    model.loop = Loop(model, model.optim)
    model.plateau = ReduceLROnPlateau(model.optim)
    model.scaler = torch.amp.GradScaler("cpu")
    model.plugin = plugin
    small = plugin.prune(KEPT)
    loop = small.loop
    assert loop.model is small
    assert loop.own is loop
    assert loop.optimizers["deep"][0] is loop.parts.optimizer is small.optim
    assert isinstance(loop.parts, Parts)
    assert small.plateau.optimizer is small.optim
    assert list(loop.weights) == ["item"]
    assert loop.user is None
    small.scaler.scale(small(batch()[0]).sum()).backward()
    small.scaler.step(small.optim)
    small.scaler.update()


def test_where_the_model_cannot_be_cut_its_loop_is_carried_over_too():
    class Opaque(WithLoop):
        def forward(self, batch):
            with warnings.catch_warnings():  # nothing of this can be traced
                ids = batch["ids"].numpy().tolist()
            return super().forward({**batch, "ids": torch.tensor(ids)})

    _, plugin = fitted(build=Opaque)
    small = plugin.prune(KEPT)
    assert "constants are fed instead (exact)" in str(tl.plan_of(small))
    assert held(small.optim) == {id(one) for one in small.parameters()}
    small.fit()


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one, as Accelerate's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad()

    def step(self, closure=None):
        return self.optimizer.step(closure)


def test_of_a_wrapped_optimizer_the_one_inside_is_carried_over():
    model, plugin = fitted()
    model.optim = Wrapper(model.optim)
    plan = plugin.plan(KEPT)
    assert "optim is a plain Adam in the pruned model, without the Wrapper" in str(plan)
    small = plan.apply()
    assert type(small.optim) is torch.optim.Adam
    assert type(tl.carry_over(model.optim, model, small)) is torch.optim.Adam


class Shared:
    """An object that is not copied."""

    def __init__(self, model):
        self.weights = [model.deep[0].weight]

    def __deepcopy__(self, memo):
        return self


def test_what_cannot_be_carried_over_is_named():
    class Strict(torch.optim.SGD):
        def __init__(self, params, *, secret, lr=1e-2):
            super().__init__(params, lr=lr)

    model, plugin = fitted()
    weight, optimizer = model.deep[0].weight, model.optim
    table = model.tables["user"].weight
    model.optim = Strict(model.parameters(), secret=1)
    model.elsewhere = torch.optim.SGD([nn.Parameter(torch.zeros(2))])
    model.l2_of_first = lambda: weight.square().sum()
    model.l2_of_table = lambda: table.square().sum()
    model.step = optimizer.step
    model.later = [partial(print, optimizer)]
    model.shared = Shared(model)
    model.harmless = lambda: 1
    model.method = model.fit
    notes = plugin.plan(KEPT).notes
    assert len(notes) == 6
    assert "optim (Strict) cannot be carried over, and is None" in notes[0]
    assert "secret" in notes[0]
    assert "elsewhere (SGD) cannot be carried over" in notes[1]
    for name, note in zip(("l2_of_table", "step", "later", "shared"), notes[2:], strict=True):
        assert note.startswith(f"{name} refers to weights or an optimizer of the model that was")
    small = plugin.prune(KEPT)
    assert small.optim is None
    assert small.method.__self__ is small
    assert small.l2_of_first() == small.deep[0].weight.square().sum()


def test_state_that_cannot_be_cut_starts_again():
    model, plugin = fitted(OPTIMIZERS["Adafactor"])
    small = plugin.prune(KEPT)
    first, last = small.deep[0].weight, small.deep[2].weight
    assert first not in small.optim.state
    old = model.optim.state[model.deep[2].weight]
    assert torch.equal(small.optim.state[last]["row_var"], old["row_var"])
    model, plugin = fitted(OPTIMIZERS["LBFGS"])
    assert not plugin.prune(KEPT).optim.state
