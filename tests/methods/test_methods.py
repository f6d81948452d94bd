"""Methods on a small set with a known truth: each finds the useful dense fields, each equals its slow, obvious definition."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from tests.data.frames import USEFUL, small_truth
from torchleap import methods, models
from torchleap.methods import Permutation, Search, Shark
from torchleap.methods.attribution import SFS
from torchleap.methods.leap import GateSteps, planned_steps
from torchleap.training.fit import Hook, Training, fit

TRAINING = Training(batch=128, lr=5e-3, epochs=8, patience=8)


@pytest.fixture(scope="module")
def task():
    return small_truth()


@pytest.fixture(scope="module")
def trained(task):
    search = Search(task, models.benchmark("wide_deep"), TRAINING)
    model = search.model()
    search.fit(model)
    return search, model.eval()


CONTROLS = ("random", "none")
ELSEWHERE = ("adafs", "optfs")  # their defaults are for millions of rows, see test_methods_gates.py


@pytest.mark.parametrize(
    "name", [name for name in methods.METHODS if name not in (*CONTROLS, *ELSEWHERE)]
)
def test_every_method_finds_the_useful_fields(name, task):
    result = tl.search(
        task, model=models.benchmark("wide_deep"), method=name, training=TRAINING, seed=0
    )
    assert list(result.scores) == list(task.fields.names)
    assert set(result.select(share=0.43).kept) == set(USEFUL), result.scores
    assert result.seconds > 0


def test_the_controls_do_not(task):
    found = [
        frozenset(tl.search(task, method="random", seed=seed).select(share=0.43).kept)
        for seed in range(5)
    ]
    assert len(set(found)) > 2
    assert set(tl.search(task, method="none").scores.values()) == {1.0}


def test_gates_close_on_noise_and_stay_open_on_what_matters(task):
    result = tl.search(task, model=models.benchmark("wide_deep"), method="leap", training=TRAINING)
    selection = result.select()
    assert set(selection.kept) == set(USEFUL)
    assert selection.method == "leap"
    assert selection.settings["strength"] == 0.4
    assert result.history[-1]["gate_noise"] < 0.5
    train_gates = methods.LeAPMethod(gates_on="train", strength=None, alpha=1e-2, lr=1e-2)
    result = tl.search(
        task, model=models.benchmark("wide_deep"), method=train_gates, training=TRAINING
    )
    assert min(result.scores[name] for name in USEFUL) > max(
        result.scores[name] for name in ("noise", "constant")
    )


def test_one_seed_gives_one_result(task):
    quick = Training(batch=256, epochs=2)
    first, second = (tl.search(task, method="leap", training=quick, seed=3) for _ in range(2))
    assert first.scores == second.scores
    assert tl.search(task, method="leap", training=quick, seed=4).scores != first.scores


def test_retraining_on_the_useful_fields_loses_nothing(task):
    result = tl.search(task, method="permutation", training=TRAINING)
    whole = tl.retrain(task, training=TRAINING)
    kept = tl.retrain(task, result.select(share=0.43), training=TRAINING)
    assert kept.metrics["test_auc"] > whole.metrics["test_auc"] - 0.01 > 0.8
    assert {"valid_auc", "valid_log_loss", "test_auc", "test_log_loss"} == set(kept.metrics)
    assert kept.model.inputs.columns[0].name == "item"


def test_shark_equals_its_definition_row_by_row(trained, task):
    search, model = trained
    batch = task.valid.all().take(slice(0, 40))
    with torch.no_grad():
        x = model.inputs(*task.valid.all().inputs).double()
    mean, model = x.mean(0), model.double()
    expected = torch.zeros(len(task.fields), dtype=torch.float64)
    for row in range(len(task.valid)):
        own = x[row : row + 1].clone().requires_grad_()
        label = task.valid.label[row : row + 1].double()
        (gradient,) = torch.autograd.grad(
            binary_cross_entropy_with_logits(model.net(own), label), own
        )
        for place, name in enumerate(task.fields.names):
            columns = task.fields.columns(name)
            expected[place] += abs(
                float(gradient[0, columns] @ (mean[columns] - own[0, columns].detach()))
            )
    model.float()
    assert len(batch) == 40
    assert torch.allclose(
        Shark().changes(search, model), expected / len(task.valid), rtol=1e-4, atol=1e-7
    )
    assert not torch.allclose(
        Shark(signed=True).changes(search, model), expected / len(task.valid), rtol=1e-4
    )


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


def test_permutation_equals_scoring_shuffled_rows(trained, task):
    search, model = trained
    falls = Permutation(repeats=2).falls(search, model)
    assert falls.shape == (7, 2)
    batch = task.valid.all()
    rng = torch.Generator().manual_seed(0)
    order = torch.randperm(len(task.valid), generator=rng)
    slot = task.slots(ids=False)["price"]
    numbers = batch.numbers.clone()
    numbers[:, slot] = numbers[order][:, slot]
    with torch.no_grad():
        whole, shuffled = (
            tl.auc(batch.label, model(batch.ids, x)) for x in (batch.numbers, numbers)
        )
    assert falls[task.fields.index("price"), 0].item() == pytest.approx(whole - shuffled, abs=1e-6)
    assert falls[task.fields.index("constant")].abs().max() < 1e-6


def test_unknown_names_are_refused(task):
    with pytest.raises(tl.TorchleapError, match="There is no method 'leep'. Did you mean 'leap'"):
        tl.search(task, method="leep")
    with pytest.raises(tl.TorchleapError, match="There is no backbone"):
        tl.search(task, model="deep")


def test_a_search_that_is_resumed_ends_with_the_same_gates(task, tmp_path):
    """A hook's state goes into checkpoints: the optimizer of the gates and their place among the validation rows."""

    class Stop(Hook):
        def after_step(self, run):
            if run.step == 30:
                raise KeyboardInterrupt

    settings = Training(batch=256, epochs=3, checkpoint_steps=10)

    def start(*extra, path):
        search = Search(task, models.benchmark("wide_deep"), settings)
        model = search.model()
        plugin = tl.attach(model, task.fields, at="net", seed=0)
        hook = GateSteps(plugin.trainer(planned_steps(search)), search, on_train=False)
        fit(model, task, settings, hooks=[hook, *extra], checkpoint=path)
        return hook.scores

    whole = start(Hook(), path=None)
    with pytest.raises(KeyboardInterrupt):
        start(Stop(), path=tmp_path / "run.ckpt")
    assert start(Hook(), path=tmp_path / "run.ckpt") == whole


class Watched(Hook):
    """What the pressure and the gates were after each step."""

    def __init__(self, hook):
        self.hook, self.strength, self.gates = hook, [], []

    def after_step(self, run):
        self.strength.append(self.hook.trainer.pressure)
        self.gates.append(self.hook.trainer.gates.scores())


def test_the_pressure_rises_and_of_closed_gates_the_last_to_close_ranks_first(task):
    settings = Training(batch=256, epochs=6)
    search = Search(task, models.benchmark("wide_deep"), settings)
    model = search.model()
    plugin = tl.attach(model, task.fields, at="net", seed=0)
    hook = GateSteps(plugin.trainer(planned_steps(search)), search, on_train=False)
    watched = Watched(hook)
    run = fit(model, task, settings, hooks=[hook, watched])
    rise = [0.4 * min(1, step / hook.trainer.rise) for step in range(1, run.step + 1)]
    assert watched.strength == pytest.approx(rise)
    assert 0 < hook.trainer.rise <= run.steps / 2
    for name, score in hook.scores.items():
        mean = sum(gates[name] for gates in watched.gates) / len(watched.gates)
        assert score == pytest.approx(0.99 * watched.gates[-1][name] + 0.01 * mean, abs=1e-5)


def test_a_search_lasts_until_a_useless_gate_could_close(task):
    impatient = Training(batch=256, epochs=40, patience=1)
    found = tl.search(
        task,
        model=models.benchmark("wide_deep"),
        method=methods.LeAPMethod(lr=2e-2),
        training=impatient,
    )
    assert found.history[-1]["step"] >= 1.5 * 1.6 / (2e-2 * 0.4)


def test_gates_learn_from_the_rows_of_a_single_epoch(task):
    once = Training(batch=64, epochs=1)
    found = [
        tl.search(task, method=methods.LeAPMethod(gates_on=where), training=once, seed=1).scores
        for where in ("auto", "train", "valid")
    ]
    assert found[0] == found[1] != found[2]
