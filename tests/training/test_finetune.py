"""The optimizer is carried over, and fine-tuning keeps the best weights."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import NAMES, attached
from torchleap.training.finetune import fit_pruned
from torchleap.training.fit import Hook, Training, evaluate, fit
from torchleap.training.lazy_adam import LazyAdam

from .test_fit import KINDS, clicks

OPTIMIZERS = {
    "Adam": lambda groups: torch.optim.Adam(groups, lr=1e-2, amsgrad=True),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1e-2),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-2, momentum=0.5),
}


def trained(make_optimizer):
    model, plugin, make = attached("wide_deep")
    optimizer = make_optimizer(plugin.parameter_groups(gate_lr=1e-3))
    for step in range(4):
        optimizer.zero_grad()
        (model.train()(make(seed=step)).square().mean() + plugin.penalty()).backward()
        optimizer.step()
    return model, plugin, optimizer, make


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_the_kept_weights_is_carried_over(name):
    model, plugin, optimizer, make = trained(OPTIMIZERS[name])
    selection = plugin.select(share=0.6)
    before = copy.deepcopy(optimizer.state_dict())
    small = plugin.prune(selection)
    carried = tl.carry_over(optimizer, model, small)
    assert type(carried) is type(optimizer)
    columns = torch.cat([torch.arange(20)[plugin.fields.columns(name)] for name in selection.kept])
    gate = plugin.gates.gate().detach()[plugin.gates.column_gate][columns]
    powers = {
        "exp_avg": 1,
        "momentum_buffer": 1,
        "exp_avg_sq": 2,
        "max_exp_avg_sq": 2,
        "sum": 2,
        "square_avg": 2,
    }
    old, new = optimizer.state[model.deep[0].weight], carried.state[small.deep[0].weight]
    assert set(old) == set(new)
    for key, value in old.items():
        if key in powers:
            torch.testing.assert_close(new[key], value[:, columns] / gate ** powers[key])
        else:
            assert new[key] == value
    old_table = optimizer.state[model.tables["city"].weight]
    new_table = carried.state[small.tables["city"].weight]
    key = next(iter(old_table))
    assert torch.equal(new_table[key], old_table[key])
    held = {id(p) for group in carried.param_groups for p in group["params"]}
    # the bias that surgery made is there, the gates are not
    assert held == {id(p) for p in small.parameters()}
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    small.train()(make(seed=9)).sum().backward()
    carried.step()


def test_tied_weights_keep_their_state_when_the_first_of_their_names_is_removed():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(12, 4), nn.Embedding(12, 4)])
            self.tables[1].weight = self.tables[0].weight
            self.head = nn.Linear(8, 1)

        def forward(self, x):
            return self.head(torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], 1))

    model = Tied()
    plugin = tl.attach(model, {"clicked": 4, "bought": 4}, at="head")
    optimizer = torch.optim.Adam(plugin.parameter_groups(gate_lr=1e-3))
    for _ in range(2):
        (model(torch.randint(12, (16, 2))).sum() + plugin.penalty()).backward()
        optimizer.step()
    small = plugin.prune(tl.Selection(plugin.fields, (0.1, 0.9), (False, True)))
    carried = tl.carry_over(optimizer, model, small)
    assert {id(p) for group in carried.param_groups for p in group["params"]} == {
        id(p) for p in small.parameters()
    }
    old, new = optimizer.state[model.tables[0].weight], carried.state[small.tables[1].weight]
    assert torch.equal(old["exp_avg"], new["exp_avg"])


def test_groups_keep_their_settings():
    model, plugin, _ = attached("wide_deep")
    groups = [
        {"params": list(model.deep.parameters()), "lr": 1.0},
        {"params": list(model.tables.parameters()), "lr": 2.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    small = plugin.prune(plugin.select(share=0.6))
    carried = tl.carry_over(optimizer, model, small)
    assert [group["lr"] for group in carried.param_groups] == [1.0, 2.0]
    assert [len(group["params"]) for group in carried.param_groups] == [6, 3]


def test_a_step_of_the_pruned_model_is_the_step_of_the_masked_one():
    torch.manual_seed(0)
    fields = dict.fromkeys(NAMES, 4)
    model = nn.Linear(20, 1).double()
    plugin = tl.attach(
        model, [tl.Field(name, width, protected=name != "user") for name, width in fields.items()]
    )
    optimizer = torch.optim.Adam([*plugin.model_parameters()], lr=1e-2)
    rows = [torch.randn(64, 20, dtype=torch.float64) for _ in range(4)]
    for x in rows:
        x[:, :4] = 0  # its mean is 0, so that masking changes nothing
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    selection = tl.Selection(plugin.fields, (0.1, 1, 1, 1, 1), (False, True, True, True, True))
    small = plugin.prune(selection)
    carried = tl.carry_over(optimizer, model, small)
    for pair in ((model, optimizer), (small, carried)):
        pair[1].zero_grad()
        pair[0](rows[0]).square().mean().backward()
        pair[1].step()
    torch.testing.assert_close(small.weight, model.weight[:, 4:])
    torch.testing.assert_close(small.bias, model.bias)


def test_an_optimizer_of_another_model_is_refused():
    model, plugin, _ = attached("mlp")
    small = plugin.prune(plugin.select(share=0.6))
    with pytest.raises(tl.SurgeryError, match="it holds none of its parameters"):
        tl.carry_over(torch.optim.SGD(nn.Linear(2, 2).parameters()), model, small)
    with pytest.raises(tl.SurgeryError, match="Expected a model that plugin.prune"):
        tl.carry_over(torch.optim.SGD(model.parameters()), model, model)


class Counter(nn.Module):
    """Its metric is what it has counted to."""

    def __init__(self):
        super().__init__()
        self.count = nn.Parameter(torch.zeros(()))
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x):
        return self.count * self.norm(x).mean() + self.count


def tune(metric, batches=50, **settings):
    model = Counter()
    history = tl.finetune(
        model,
        [torch.randn(4, 1) for _ in range(batches)],
        loss=lambda model, batch: -model(batch),
        optimizer=torch.optim.SGD([model.count], lr=1.0),
        validate=lambda model: metric(round(float(model.count))),
        **settings,
    )
    return model, history


def test_it_stops_early_and_keeps_the_best_weights():
    model, history = tune(lambda count: -abs(count - 20), every=5, patience=2)
    assert history == [-20, -15, -10, -5, 0, -5, -10]
    assert round(float(model.count)) == 20
    assert int(model.norm.num_batches_tracked) == 20
    assert not model.training


def test_it_never_leaves_a_model_worse_than_it_was():
    model, history = tune(lambda count: -count, every=5, patience=1)
    assert history == [0, -5]
    assert float(model.count) == 0


def test_of_equally_good_weights_the_first_are_kept():
    model, history = tune(lambda count: min(count, 10), every=5, patience=2)
    assert history == [0, 5, 10, 10, 10]
    assert round(float(model.count)) == 10


def test_the_last_batches_count_too():
    model, history = tune(lambda count: count, batches=7, every=5)
    assert history == [0, 5, 7]
    assert round(float(model.count)) == 7
    assert tune(lambda count: count, batches=0)[1] == [0]


def test_bad_settings_metrics_and_losses_are_refused():
    with pytest.raises(
        tl.TorchleapError, match="every must be a whole number of batches, at least 1, but is 0"
    ):
        tune(lambda count: count, every=0)
    with pytest.raises(
        tl.TorchleapError, match="patience must be a whole number of at least 1, but is 0.5"
    ):
        tune(lambda count: count, patience=0.5)
    with pytest.raises(tl.SurgeryError, match="validate must return a number, but returned None"):
        tune(lambda count: None)
    model = Counter()
    with pytest.raises(
        tl.SurgeryError, match="The loss is nan at fine-tuning step 2. Lower the learning rate"
    ):
        tl.finetune(
            model,
            [torch.ones(4, 1), torch.full((4, 1), torch.nan)],
            loss=lambda model, batch: -model(batch),
            optimizer=torch.optim.SGD([model.count], lr=1.0),
            validate=lambda model: 0.0,
        )
    assert float(model.count) == 0


# On a task

SHORT = Training(batch=256, epochs=2, lr=1e-2)


@pytest.fixture(scope="module")
def task():
    return tl.data.read(clicks(), label="click", split="order", columns=KINDS)


def pruned_from(task, **settings):
    """A trained model with gates, its run, and the model without the useless field."""
    torch.manual_seed(0)
    model = tl.models.build(tl.models.benchmark("wide_deep"), task, **settings)
    plugin = tl.attach(model, task.fields, at="net", seed=0)
    run = fit(model, task, SHORT)
    keep = tuple(name != "user" for name in task.fields.names)
    selection = tl.Selection(task.fields, (1.0, 1.0, 1.0), keep)
    example = next(iter(task.valid.batches(64))).inputs
    return run, plugin.prune(selection, example=example)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_optimizers_of_a_run_continue_with_the_pruned_model(task, sparse):
    trained, pruned = pruned_from(task, sparse=sparse)
    before = evaluate(pruned, task.valid)["auc"]
    run = fit_pruned(pruned, task, replace(SHORT, lr=3e-3), trained=trained)
    steps = trained.step + run.step
    for optimizer in run.optimizers:
        assert all(group["lr"] == 3e-3 for group in optimizer.param_groups)
        assert {int(state["step"]) for state in optimizer.state.values()} <= {steps, run.step}
    weight = pruned.get_parameter("net.deep.4.weight")
    assert int(run.optimizers[0].state[weight]["step"]) == steps
    held = {id(one) for optimizer in run.optimizers for one in parameters_of(optimizer)}
    assert held == {id(parameter) for parameter in pruned.parameters()}
    assert evaluate(pruned, task.valid)["auc"] == max(before, run.best_metric)


def test_rows_of_a_table_keep_the_state_of_lazy_adam(task):
    trained, pruned = pruned_from(task, sparse=True)
    (lazy,) = [one for one in trained.optimizers if isinstance(one, LazyAdam)]
    carried = tl.carry_over(lazy, trained.model, pruned)
    (old,) = lazy.state.values()
    (new,) = carried.state.values()
    rows = tl.plan_of(pruned).origins["inputs.tables.4.weight"].index[0]
    assert len(rows) < len(old["last"])
    assert torch.equal(new["moments"], old["moments"][rows])
    assert torch.equal(new["last"], old["last"][rows])
    assert torch.equal(new["reach"], old["reach"])
    assert (new["step"], new["base"]) == (old["step"], old["base"])


def test_a_table_without_rows_left_has_no_optimizer(task):
    torch.manual_seed(0)
    model = tl.models.build(tl.models.benchmark("mlp"), task, sparse=True)
    plugin = tl.attach(model, task.fields, at="net", seed=0)
    trained = fit(model, task, SHORT)
    keep = tuple(name == "price" for name in task.fields.names)
    selection = tl.Selection(task.fields, (1.0, 1.0, 1.0), keep)
    example = next(iter(task.valid.batches(64))).inputs
    pruned = plugin.prune(selection, example=example)
    run = fit_pruned(pruned, task, SHORT, trained=trained)
    assert [type(optimizer) for optimizer in run.optimizers] == [torch.optim.Adam]


@pytest.mark.parametrize("metric", ["auc", "log_loss"])
def test_weights_from_before_are_kept_if_they_were_better(task, metric):
    trained, pruned = pruned_from(task)
    before = copy.deepcopy(pruned.state_dict())
    far = Training(batch=256, steps=2, lr=30.0, metric=metric)
    fit_pruned(pruned, task, far, trained=trained)
    assert all(torch.equal(before[name], value) for name, value in pruned.state_dict().items())
    assert not pruned.training


def test_a_run_of_a_pruned_model_can_be_resumed(task, tmp_path):
    class Break(Hook):
        def after_step(self, run):
            if run.step == 7:
                raise KeyboardInterrupt

    settings = replace(SHORT, checkpoint_steps=3)
    trained, pruned = pruned_from(task, sparse=True)
    undisturbed, resumed = copy.deepcopy(pruned), copy.deepcopy(pruned)
    fit_pruned(undisturbed, task, settings, trained=trained)
    with pytest.raises(KeyboardInterrupt):
        fit_pruned(
            pruned,
            task,
            settings,
            trained=trained,
            hooks=[Break()],
            checkpoint=tmp_path / "fine.pt",
        )
    fit_pruned(resumed, task, settings, trained=trained, checkpoint=tmp_path / "fine.pt")
    for name, value in undisturbed.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
