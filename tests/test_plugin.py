"""attach and Plugin: put gates into any model, train, select, prune, and take them out again."""

import copy
import io
import pickle
import shutil
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchleap as tl
from tests.rankers import FIELDS, ByName, WideAndDeep, mlp, train
from torchleap import AttachError, FieldError, LeAP, SelectionError
from torchleap.sites.model import ModelHooks, hooks_of

# Reversible, copyable, compilable


@pytest.mark.parametrize("at", ["", "0", ["0", "4"]])
def test_detach_restores_the_exact_model(at):
    model = mlp()
    keys, text = list(model.state_dict()), repr(model)
    fields = FIELDS if isinstance(at, str) else {**FIELDS, "hidden": 16}
    plugin = tl.attach(model, fields, at=at)
    assert list(model.state_dict()) != keys
    assert "LeAP" in repr(model)
    plugin.detach()
    assert list(model.state_dict()) == keys
    assert repr(model) == text
    for module in model.modules():
        for kind in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_forward_pre_hooks_with_kwargs",
            "_forward_hooks_with_kwargs",
        ):
            assert not getattr(module, kind), kind
    plugin.detach()  # a second time changes nothing
    tl.attach(model, FIELDS, at="0").detach()


def test_two_sites_may_share_the_layer_that_holds_the_gates():
    shared = nn.Identity()

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.Sequential(shared, nn.Linear(8, 1))
            self.deep = nn.Sequential(shared, nn.Linear(8, 1))

        def forward(self, x):
            return self.wide(x) + self.deep(x)

    model = Branches()
    keys = list(model.state_dict())
    plugin = tl.attach(model, FIELDS, at=["wide", "deep"])
    model(torch.randn(8, 8))
    plugin.detach()
    assert list(model.state_dict()) == keys
    model(torch.randn(8, 8))


def test_an_old_handle_leaves_a_newer_plugin_alone():
    model = mlp()
    old = tl.attach(model, FIELDS, at="0")
    old.detach()
    new = tl.attach(model, FIELDS, at="0")
    old.detach()
    assert tl.attached(model).gates is new.gates


def test_a_part_of_a_larger_model_can_be_detached_from_there():
    inner = WideAndDeep()
    tl.attach(inner, FIELDS, at=["wide", "deep"])
    whole = copy.deepcopy(nn.Sequential(inner))
    tl.attached(whole).detach()
    whole(torch.randint(0, 10, (8, 3)))
    assert not any(module._forward_hooks for module in whole.modules())


def test_a_replaced_layer_says_so():
    model = mlp()
    plugin = tl.attach(model, FIELDS)
    model[0] = nn.Linear(8, 16)
    with pytest.raises(AttachError, match="as if a layer was replaced"):
        model(torch.randn(8, 8))
    plugin.detach()
    model(torch.randn(8, 8))


def test_detach_leaves_other_hooks_alone():
    model = mlp()
    calls = []
    model[0].register_forward_pre_hook(lambda m, args: calls.append(1))
    tl.attach(model, FIELDS, at="0").detach()
    model(torch.randn(4, 8))
    assert calls == [1]


def test_a_second_attach_is_refused():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0")
    with pytest.raises(AttachError, match="has gates already, at='0'"):
        tl.attach(model, FIELDS, at="")
    plugin.detach()
    tl.attach(model, FIELDS, at="")


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize(("build", "at"), [(mlp, "0"), (mlp, ""), (WideAndDeep, ["wide", "deep"])])
def test_copies_have_gates_of_their_own(clone, build, at):
    model = build()
    plugin = tl.attach(model, FIELDS, at=at, init=0.0, seed=0)
    make = (
        (lambda: torch.randint(0, 10, (16, 3)))
        if build is WideAndDeep
        else (lambda: torch.randn(16, 8))
    )
    model(make())
    twin = clone(model)
    twin_plugin = tl.attached(twin)
    assert twin_plugin.gates is not plugin.gates
    x = make()
    torch.manual_seed(0)
    expected = model(x)
    torch.manual_seed(0)
    assert torch.equal(twin(x), expected)
    twin(x)
    assert plugin.gates.steps.tolist() == [2, 2, 2]
    assert twin_plugin.gates.steps.tolist() == [3, 3, 3]
    twin_plugin.detach()
    with pytest.raises(AttachError, match="no gates"):
        tl.attached(twin)
    model(x)
    assert plugin.gates.steps.tolist() == [3, 3, 3]


def test_hooks_added_to_an_unpickled_model_do_not_displace_the_gates():
    model = mlp()
    tl.attach(model, FIELDS, at="0", seed=0)
    twin = pickle.loads(pickle.dumps(model))
    for _ in range(50):
        twin[0].register_forward_pre_hook(lambda m, args: None)
    twin(torch.randn(8, 8))
    assert tl.attached(twin).gates.steps.tolist() == [1, 1, 1]


def replicate(network):
    """Copy as nn.DataParallel does, on one device: with plain tensors in place of parameters."""
    replicas = {module: module._replicate_for_data_parallel() for module in network.modules()}
    for module, replica in replicas.items():
        for name, child in module._modules.items():
            replica._modules[name] = None if child is None else replicas[child]
        for name, parameter in module._parameters.items():
            setattr(replica, name, None if parameter is None else parameter * 1)
        for name, buffer in module._buffers.items():
            replica._buffers[name] = None if buffer is None else buffer.clone()
    return replicas[network]


@pytest.mark.parametrize(("build", "at"), [(mlp, "0"), (WideAndDeep, ["wide", "deep"])])
def test_data_parallel_replicas_use_their_own_gates_and_gradients_arrive(build, at):
    model = build()
    plugin = tl.attach(model, FIELDS, at=at, init=0.0, seed=0)
    x = torch.randint(0, 10, (16, 3)) if build is WideAndDeep else torch.randn(16, 8)
    replica = replicate(model)
    replica(x).sum().backward()
    assert plugin.gates.theta.grad is not None
    assert plugin.gates.steps.tolist() == [0, 0, 0]
    assert tl.attached(replica).gates.steps.tolist() == [1, 1, 1]


def test_a_saved_state_dict_resumes_bit_for_bit():
    def build():
        torch.manual_seed(1)
        model = mlp()
        plugin = tl.attach(model, FIELDS, at="0", alpha=0.05, seed=3)
        return model, plugin, torch.optim.AdamW(plugin.parameter_groups(gate_lr=0.05), lr=1e-3)

    def steps(model, plugin, optimizer, first, count):
        for step in range(first, first + count):
            torch.manual_seed(step)  # for dropout and data
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            (model(x).square().mean() + plugin.penalty()).backward()
            optimizer.step()

    model, plugin, optimizer = build()
    steps(model, plugin, optimizer, 0, 4)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    steps(model, plugin, optimizer, 4, 4)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, resumed_plugin, resumed_optimizer = build()
    resumed.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    steps(resumed, resumed_plugin, resumed_optimizer, 4, 4)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    ("build", "at"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), "0"),
        (WideAndDeep, ["wide", "deep"]),
    ],
)
def test_a_compiled_model_trains_as_the_eager_one(backend, build, at):
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("torch.compile needs a C++ compiler")
    eager = build()
    twin = copy.deepcopy(eager)
    plugins = [tl.attach(model, FIELDS, at=at, alpha=0.05, seed=0) for model in (eager, twin)]
    compiled = torch.compile(twin, backend=backend, fullgraph=True)
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-2) for model in (eager, twin)]
    make = (
        (lambda: torch.randint(0, 10, (16, 3)))
        if build is WideAndDeep
        else (lambda: torch.randn(16, 8))
    )
    for _ in range(4):
        x = make()
        for run, plugin, optimizer in zip((eager, compiled), plugins, optimizers, strict=True):
            optimizer.zero_grad()
            (run(x).square().mean() + plugin.penalty()).backward()
            optimizer.step()
    assert plugins[1].gates.steps.tolist() == [4, 4, 4]
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(tensor, twin.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(compiled.eval()(x), eager.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_compiled_warm_up_is_the_eager_one():
    eager = nn.Sequential(nn.Linear(8, 1))
    twin = copy.deepcopy(eager)
    plugins = [
        tl.attach(model, FIELDS, at="0", alpha=0.05, warmup=20, seed=0) for model in (eager, twin)
    ]
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    optimizers = [
        torch.optim.Adam(plugin.parameter_groups(gate_lr=0.1), lr=1e-2) for plugin in plugins
    ]
    for _ in range(24):
        x = torch.randn(16, 8)
        for run, plugin, optimizer in zip((eager, compiled), plugins, optimizers, strict=True):
            optimizer.zero_grad()
            (run(x).square().mean() + plugin.penalty()).backward()
            optimizer.step()
    assert plugins[0].gates.moved
    torch.testing.assert_close(plugins[0].gates.theta, plugins[1].gates.theta)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_gates_follow_the_model_s_precision_but_not_below_float32(dtype):
    model = mlp().to(dtype)
    plugin = tl.attach(model, FIELDS, at="0")
    assert plugin.gates.theta.dtype == torch.promote_types(dtype, torch.float32)
    assert model(torch.randn(8, 8, dtype=dtype)).dtype == dtype


def test_autocast_trains():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    plugin = tl.attach(model, {"a": 4, "b": 4}, at="1", alpha=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(16, 8)).float().square().mean()
    (loss + plugin.penalty()).backward()
    assert plugin.gates.theta.grad.abs().sum() > 0


# Training the gates


def test_gates_learn_which_field_the_label_reads():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.05, seed=0)
    train(model, plugin, steps=150)
    scores = plugin.scores()
    assert scores["age"] > 0.9
    assert scores["user_id"] < 0.1
    assert scores["clicks"] < 0.1
    assert plugin.select().kept == ("age",)


def test_parameter_groups_give_the_gates_a_learning_rate_of_their_own_and_miss_nothing():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0")
    optimizer = torch.optim.AdamW(plugin.parameter_groups(gate_lr=0.5), lr=1e-3, weight_decay=0.1)
    first, second = optimizer.param_groups
    assert (first["lr"], first["weight_decay"]) == (1e-3, 0.1)
    assert (second["lr"], second["weight_decay"]) == (0.5, 0.0)
    assert [id(p) for p in second["params"]] == [id(plugin.gates.theta)]
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {
        id(p) for p in model.parameters()
    }


def snapshot(model, plugin):
    return {n: t.clone() for n, t in model.state_dict().items() if "torchleap" not in n}


@pytest.mark.parametrize("which", ["the gates' own optimizer", "one optimizer for all"])
def test_a_held_out_step_moves_the_gates_and_nothing_else(which):
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.1, seed=0)
    everything = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    train(model, plugin, steps=3)
    model(torch.randn(16, 8)).sum().backward()  # gradients that wait for a step
    waiting = {
        n: p.grad.clone() for n, p in model.named_parameters() if p is not plugin.gates.theta
    }
    model[0].bias.requires_grad_(False)
    model[1].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    before, theta = snapshot(model, plugin), plugin.gates.theta.detach().clone()
    optimizer = plugin.optimizer() if which.startswith("the") else everything
    with plugin.held_out():
        assert not model[3].training  # dropout
        assert plugin.gates.training
        (model(torch.randn(64, 8)).square().mean() + plugin.penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(plugin.gates.theta, theta)
    after = snapshot(model, plugin)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(
        torch.equal(p.grad, waiting[n])
        for n, p in model.named_parameters()
        if p is not plugin.gates.theta
    )
    assert not model[0].bias.requires_grad
    assert model[0].weight.requires_grad


def test_an_error_in_a_held_out_step_restores_everything():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0")
    with pytest.raises(FieldError, match="2 rows"), plugin.held_out():
        model(torch.randn(1, 8))
    assert model.training
    assert all(p.requires_grad for p in model.parameters())


def test_a_held_out_step_ignores_the_gates_gradient_from_training_rows():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", seed=0)
    optimizer = torch.optim.SGD([plugin.gates.theta], lr=1.0)
    plugin.gates.theta.grad = torch.full((3,), 1e6)
    with plugin.held_out():
        model(torch.randn(64, 8)).square().mean().backward()
        optimizer.step()
    assert (plugin.gates.theta - 1).abs().max() < 1
    assert plugin.gates.theta.grad is None


def test_a_fused_step_in_the_held_out_context_is_not_warned_of():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.1, seed=0)
    optimizer = torch.optim.Adam(
        [plugin.gates.theta], lr=0.1, fused=True
    )  # which does not count up the version of theta
    with warnings.catch_warnings(), plugin.held_out():
        warnings.simplefilter("error")
        (model(torch.randn(64, 8)).square().mean() + plugin.penalty()).backward()
        optimizer.step()


def test_a_step_after_the_held_out_context_is_warned_of():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0")
    with pytest.warns(UserWarning, match=r"call step\(\) within"), plugin.held_out():
        model(torch.randn(64, 8)).square().mean().backward()


def test_the_gate_optimizer_replaces_the_penalty():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", seed=0)
    main, gates = (
        torch.optim.Adam(plugin.model_parameters(), lr=2e-2),
        plugin.optimizer(strength=0.4, lr=2e-2),
    )
    for _ in range(200):
        x = torch.randn(32, 8)
        main.zero_grad()
        gates.zero_grad()
        functional.mse_loss(model(x)[:, 0], x[:, 4]).backward()
        main.step()
        gates.step()
    assert plugin.select().kept == ("age",)


def test_masking_computes_the_model_on_means_of_the_dropped_fields():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.05, seed=0)
    train(model, plugin, steps=150)
    selection = plugin.select()
    assert selection.dropped
    model.eval()
    x = torch.randn(32, 8)
    kept = torch.cat(
        [torch.full((width,), name in selection.kept) for name, width in FIELDS.items()]
    )
    with torch.no_grad():
        expected = model(torch.where(kept, x, plugin.gates.means()))
        with plugin.masked(selection):
            torch.testing.assert_close(model(x), expected)
        assert not torch.allclose(model(x), expected, atol=1e-6)
    other = tl.Selection(tl.Fields({"user_id": 4, "age": 2, "clicks": 2}), (1.0,) * 3, (True,) * 3)
    with pytest.raises(SelectionError, match="The selection is for"), plugin.masked(other):
        pass


# Printing and selecting


def test_print_shows_in_one_line_that_it_took_hold_and_after_training_a_table():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.05, seed=0)
    assert str(plugin) == "LeAP on 3 fields, 8 dimensions, at '0' (input): gates not moved yet"
    train(model, plugin, steps=150)
    first, header, *rows = str(plugin).splitlines()
    assert first == "LeAP on 3 fields, 8 dimensions, at '0' (input): 1 open, 2 closed"
    assert header.split() == ["field", "gate", "width", "divergence", "sparsity", "penalty"]
    assert rows[0].split()[0] == "age"
    assert rows[0].split()[2] == "1"
    assert len(rows) == 3


def test_print_tells_how_far_the_warm_up_is():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", warmup=5)
    model(torch.randn(8, 8))
    assert str(plugin).endswith("warming up, batch 1 of 5")


def test_a_protected_field_says_so():
    model = mlp()
    plugin = tl.attach(
        model, [tl.Field("a", 4, protected=True), tl.Field("b", 4)], at="0", alpha=0.05
    )
    train(model, plugin, steps=10)
    assert "protected" in str(plugin)
    assert plugin.select(share=0.5).kept == ("a",)


def test_selection_knows_method_and_settings():
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.05, adaptive=False, seed=4)
    train(model, plugin, steps=5)
    selection = plugin.select(share=0.67)
    assert selection.method == "leap_base"
    assert selection.settings["alpha"] == 0.05
    assert selection.settings["share"] == 0.67
    assert selection.settings["seed"] == 4
    assert plugin.select(dims=5).dims <= 5
    assert plugin.select(cost=4).dims <= 4


# Bad input


def test_select_names_a_site_that_training_has_never_called():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(8, 1)
            self.spare = nn.Linear(8, 1)

        def forward(self, x):
            return self.used(x)

    model = Unused()
    plugin = tl.attach(model, FIELDS, at="spare")
    model.eval()(torch.randn(8, 8))
    with pytest.raises(SelectionError, match="no training batch has passed"):
        plugin.select()
    model.train()(torch.randn(8, 8))
    with pytest.raises(SelectionError, match=r"it has never called at='spare' \(input\). Choose"):
        plugin.select()


def test_select_before_any_gate_has_moved_says_why():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)  # too early
    plugin = tl.attach(model, FIELDS, at="0", warmup=2)
    with pytest.raises(SelectionError, match="no training batch has passed"):
        plugin.select()
    for step in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 8)).square().mean() + plugin.penalty()).backward()
        optimizer.step()
        with pytest.raises(
            SelectionError,
            match="warming up: batch" if step < 2 else "probably built before attach",
        ):
            plugin.select()


def test_gates_of_a_float64_model_have_not_moved_either():
    model = mlp().double()
    plugin = tl.attach(model, FIELDS, at="0", init=0.3)
    model(torch.randn(8, 8, dtype=torch.float64))
    with pytest.raises(SelectionError, match="none has moved"):
        plugin.select()


def test_a_saved_selection_equals_the_one_that_was_saved(tmp_path):
    model = mlp()
    plugin = tl.attach(model, FIELDS, at="0", alpha=0.05)
    train(model, plugin, steps=5)
    plugin.select(share=0.5).save(tmp_path / "selection.json")
    assert tl.Selection.load(tmp_path / "selection.json", plugin.fields) == plugin.select(share=0.5)


def test_select_before_a_lazy_site_has_seen_a_batch_says_why():
    with pytest.raises((SelectionError, FieldError), match="batch"):
        tl.attach(ByName(), at="tower").select()


def test_a_wrong_path_gets_the_nearest_names():
    with pytest.raises(AttachError, match=r"no submodule at='deep.O'. Did you mean .*'deep.0'"):
        tl.attach(WideAndDeep(), FIELDS, at="deep.O")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": []}, "at= must name one or more"),
        ({"at": None}, "at= must be the name of a submodule"),
        ({"at": 0}, "at= must be the name of a submodule"),
        ({"at": ["0", "0"]}, "each once"),
        ({"at": "0", "side": "left"}, "side must be 'input' or 'output', but is 'left'"),
        (
            {"at": "0", "gates": LeAP(FIELDS)},
            "Expected gates= or fields and settings, but found both",
        ),
    ],
)
def test_bad_arguments_are_refused_before_anything_changes(arguments, message):
    model = mlp()
    with pytest.raises(AttachError, match=message):
        tl.attach(model, FIELDS, **arguments)
    assert "LeAP" not in repr(model)


def test_a_misspelt_setting_is_an_error():
    with pytest.raises(TypeError, match="alhpa"):
        tl.attach(mlp(), FIELDS, at="0", alhpa=1)


def test_ready_gates_are_taken_and_gates_in_the_model_refused():
    gates = LeAP(FIELDS, alpha=0.5)
    assert tl.attach(mlp(), at="0", gates=gates).gates is gates
    own = nn.Sequential(LeAP(FIELDS), nn.Linear(8, 1))
    with pytest.raises(AttachError, match="part of the model already"):
        tl.attach(own, at="1", gates=own[0])


def test_the_site_is_named_in_what_goes_wrong_there():
    model = mlp()
    tl.attach(model, {"a": 5, "b": 4}, at="0")
    with pytest.raises(
        FieldError, match=r"at='0' \(input\) receives 8 columns, but the fields sum to 9"
    ):
        model(torch.randn(4, 8))


def test_an_example_finds_wrong_widths_before_anything_changes():
    model = mlp()
    with pytest.raises(
        FieldError, match=r"at='0' \(input\) receives 8 columns, but the fields sum to 9"
    ):
        tl.attach(model, {"a": 9}, at="0", example=torch.randn(4, 8))
    assert "LeAP" not in repr(model)
    with pytest.raises(AttachError, match="never calls 'unused'"):
        tl.attach(Unused(), FIELDS, at="unused", example=torch.randn(4, 8))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(8, 1)
        self.used = nn.Linear(8, 1)

    def forward(self, x):
        return self.used(x)


IGNORED = "_ddp_params_and_buffers_to_ignore"  # DDP's name of its list


@pytest.mark.parametrize("own", [[], ["0.weight"]])
def test_detach_leaves_the_list_of_what_ddp_ignores_as_it_was(own):
    model = mlp()
    if own:
        torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, own
        )
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    plugin = tl.attach(model, FIELDS, at="0")
    assert len(getattr(model, IGNORED)) > len(own)
    plugin.detach()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert getattr(model, IGNORED, []) == own


def test_untrained_gates_make_no_selection_although_a_field_is_protected():
    fields = [tl.Field("a", 4, protected=True), tl.Field("b", 4)]
    model = mlp()
    plugin = tl.attach(model, fields, at="0")
    model(torch.randn(8, 8))
    with torch.no_grad():
        plugin.gates.theta[0] = 0.0  # an optimizer with momentum may do that
    with pytest.raises(SelectionError, match="none has moved"):
        plugin.select()
    plugin.detach()
    plugin = tl.attach(
        model, [tl.Field("a", 4, protected=True), tl.Field("b", 4, protected=True)], at="0"
    )
    assert plugin.select().kept == ("a", "b")  # there is nothing to learn


def test_the_optimizer_has_the_defaults_of_the_gate_optimizer():
    plugin = tl.attach(mlp(), FIELDS, at="0")
    assert plugin.optimizer().defaults == tl.GateOptimizer(plugin.gates).defaults


def test_an_example_leaves_every_layer_in_its_mode():
    for training in (True, False):
        model = mlp().train(training)
        model[1].train(not training)
        modes = [module.training for module in model.modules()]
        plugin = tl.attach(model, FIELDS, at="0", example=torch.randn(4, 8))
        plugin.detach()
        assert [module.training for module in model.modules()] == modes


def test_gates_behind_an_8_bit_layer_stay_in_float32():
    model = mlp()
    model[0].weight.data = model[0].weight.data.to(torch.float8_e4m3fn)
    assert tl.attach(model, FIELDS, at="0").gates.theta.dtype == torch.float32


def test_surgery_is_tried_on_the_example_or_else_on_the_first_batch():
    example, first = torch.randn(4, 8), torch.randn(4, 8)
    for given, kept in ((example, example), (None, first)):
        model = nn.Sequential(nn.Linear(8, 1))
        plugin = tl.attach(model, FIELDS, at="0", example=given)
        model(first)
        whole = next(hook for _, hook in hooks_of(model) if isinstance(hook, ModelHooks))
        args, kwargs = whole.example
        assert torch.equal(args[0], kept)
        assert kwargs == {}
        assert (
            len(plugin.plan(tl.Selection(plugin.fields, (0.0,) * 3, (True, False, True))).cuts) == 1
        )


class Partly(nn.Module):
    """Calls two of its three layers."""

    def __init__(self):
        super().__init__()
        self.user, self.item, self.spare = nn.Identity(), nn.Linear(3, 1), nn.Identity()

    def forward(self, x):
        return self.user(x[:, :5]).sum(1, keepdim=True) + self.item(x[:, 5:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"at": {"user": {"a": 5}, "spare": {"a": 1, "b": 2}, "item": {"c": 3}}},
            r"at='user' \(input\) and at='spare' \(input\): no .* of \['a', 'b'\], as the model",
        ),
        (
            {"at": {"user": {"a": 5}, "spare": {"b": 2}, "item": {"c": 3}}},
            r"at='spare' \(input\): no .* gates of \['b'\], as the model has not called all",
        ),
    ],
)
def test_a_place_that_is_never_called_is_named_when_fields_are_selected(arguments, message):
    model = Partly()
    plugin = tl.attach(model, **arguments)
    trainer = plugin.trainer(steps=20)
    for _ in range(20):
        model(torch.randn(16, 8)).square().mean().backward()
        trainer.step()
    with pytest.raises(SelectionError, match=message):
        plugin.select()
    count = len(plugin.fields)
    selection = tl.Selection(plugin.fields, (1.0,) * count, (True,) * count)
    with pytest.raises(FieldError, match=r"no means to put in place of \[.*'b'\]: no training"):
        plugin.plan(selection, example=torch.randn(4, 8))
