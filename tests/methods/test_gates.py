"""Methods with gates: each finds the useful fields of a set with a known truth, each equals its slow, obvious formula."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from tests.data.frames import USEFUL, small_truth
from torchleap import models
from torchleap.methods import Search
from torchleap.methods.adafs import AdaFS, AdaFSSteps, RowWeights
from torchleap.methods.base import put_before_net
from torchleap.methods.soft_gates import (
    STG,
    AutoField,
    AutoFieldSteps,
    DropGates,
    GateHook,
    GaussianGates,
    KeepOrDrop,
    VariationalDropout,
)
from torchleap.methods.sparse_gates import (
    LPFS,
    DeepLasso,
    GradientLasso,
    OptFS,
    ProximalSteps,
    RowGates,
    SmoothSteps,
    WatchedNet,
    id_counts,
    lasso,
)
from torchleap.training.fit import Hook, Training, evaluate, fit

NOISE = ("user", "noise", "blur")  # and a constant
TRAINING = Training(batch=128, lr=5e-3, epochs=8, patience=8)
QUICK = Training(batch=256, epochs=1)
# The public code's weight is for millions of embeddings and many thousand steps: here are 44 and 304.
FEW_STEPS_OPTFS = OptFS(weight=2e-3, lr=2e-2, steepness=20.0, planned_epochs=8)
METHODS = [
    AutoField(),
    STG(),
    VariationalDropout(),
    LPFS(),
    LPFS(plus=True),
    DeepLasso(),
    FEW_STEPS_OPTFS,
]
EVERY_METHOD = [
    *METHODS,
    AutoField(as_published=True),
    LPFS(as_published=True),
    AdaFS(),
    AdaFS(keep=0.5, pretraining=0, every=2),
]


def name_of(method):
    return type(method).__name__ + "".join(
        f"-{word}" for word in ("plus", "as_published", "keep") if getattr(method, word, None)
    )


@pytest.fixture(scope="module")
def task():
    return small_truth()


@pytest.fixture(scope="module")
def mixed():
    """Ids of two widths, a list, a number and a vector."""
    rng, rows = np.random.default_rng(1), 900
    frame = pl.DataFrame(
        {
            "click": rng.integers(0, 2, rows),
            "shop": rng.integers(0, 5, rows),
            "tags": [
                [f"tag{tag}" for tag in rng.integers(0, 6, count)]
                for count in rng.integers(0, 4, rows)
            ],
            "price": rng.normal(size=rows),
            "brand": rng.integers(0, 7, rows),
            "picture": pl.Series(
                rng.normal(size=(rows, 3)).astype(np.float32), dtype=pl.Array(pl.Float32, 3)
            ),
        }
    )
    columns = {
        "shop": {"kind": "categorical", "width": 4},
        "brand": {"kind": "categorical", "width": 2},
        "tags": {"kind": "list"},
    }
    return tl.data.read(frame, label="click", split="order", columns=columns)


@pytest.fixture
def search(task):
    return Search(task, models.benchmark("wide_deep"), TRAINING)


def found(task, method, training=TRAINING, seed=0):
    return tl.search(
        task, model=models.benchmark("wide_deep"), method=method, training=training, seed=seed
    ).scores


def best_three(scores):
    return set(sorted(scores, key=lambda name: -scores[name])[:3])


# All of them


@pytest.mark.parametrize("method", METHODS, ids=name_of)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_method_finds_the_useful_fields(method, seed, task):
    scores = found(task, method, seed=seed)
    assert list(scores) == list(task.fields.names)
    assert best_three(scores) == set(USEFUL), scores


@pytest.mark.parametrize("method", EVERY_METHOD, ids=name_of)
def test_one_seed_gives_one_result(method, mixed):
    first, second, other = (
        found(mixed, method, Training(batch=128, epochs=2), seed) for seed in (3, 3, 4)
    )
    assert first == second
    if not isinstance(
        method, OptFS
    ):  # all embeddings are kept after so few steps, and their gates differ by a hair
        assert first != other


@pytest.mark.parametrize("backbone", ["deepfm", "dcn", "fibinet", "mlp", "dlrm"])
def test_every_method_works_on_every_backbone_and_every_kind_of_column(backbone, mixed):
    for method in EVERY_METHOD:
        scores = tl.search(
            mixed, model=models.benchmark(backbone), method=method, training=QUICK
        ).scores
        assert list(scores) == ["shop", "tags", "price", "brand", "picture"]
        assert all(math.isfinite(score) for score in scores.values())


@pytest.mark.parametrize("method", EVERY_METHOD, ids=name_of)
def test_numbers_alone_and_ids_alone_will_do(method, mixed):
    for names in (["price", "picture"], ["shop", "brand", "tags"]):
        assert set(found(mixed.only(names), method, QUICK)) == set(names)


LAYERS = [
    (KeepOrDrop, AutoField()),
    (GaussianGates, STG()),
    (DropGates, VariationalDropout()),
    (SmoothSteps, LPFS()),
    (RowGates, OptFS()),
    (RowWeights, AdaFS(pretraining=0)),
]


@pytest.mark.parametrize(("kind", "method"), LAYERS)
def test_eval_is_deterministic(kind, method, search, task):
    layer = kind(search, method)
    x = torch.randn(9, task.fields.dims)
    layer(x)
    layer.eval()
    torch.manual_seed(1)
    first = layer(x)
    torch.manual_seed(2)
    assert torch.equal(layer(x), first)
    layer.train()
    assert first.shape == layer(x).shape == x.shape


@pytest.mark.parametrize(("kind", "method"), LAYERS[:3])
def test_training_has_noise(kind, method, search, task):
    layer = kind(search, method)
    x = torch.ones(9, task.fields.dims)
    assert not torch.equal(layer(x), layer(x))


def test_scores_are_those_of_the_last_step_and_are_recorded_at_every_look(task):
    result = tl.search(task, method=STG(), training=Training(batch=256, epochs=3, lr=5e-3))
    assert {
        f"gate_{name}": score for name, score in result.scores.items()
    }.items() <= result.history[-1].items()
    assert result.history[0]["gate_user"] > result.history[-1]["gate_user"]


class StopAt(Hook):
    """Breaks off like a machine that is switched off."""

    def __init__(self, step):
        self.step = step

    def after_step(self, run):
        if run.step == self.step:
            raise KeyboardInterrupt


def autofield(search):
    model = search.model()
    layer = KeepOrDrop(search, AutoField(every=2))
    put_before_net(model, layer)
    return model, AutoFieldSteps(search, layer, lr=1e-2, every=2)


def deep_lasso(search):
    model = search.model()
    net = WatchedNet(model.net)
    model.net = net
    return model, GradientLasso(search, net, 0.1)


@pytest.mark.parametrize("start", [autofield, deep_lasso])
def test_a_run_that_was_broken_off_goes_on_as_if_it_had_not_been(start, mixed, tmp_path):
    search = Search(
        mixed, models.benchmark("mlp"), Training(batch=64, epochs=3, checkpoint_steps=5)
    )
    model, whole = start(search)
    fit(model, mixed, search.training, hooks=[whole])
    model, broken = start(search)
    with pytest.raises(KeyboardInterrupt):
        fit(
            model,
            mixed,
            search.training,
            hooks=[broken, StopAt(22)],
            checkpoint=tmp_path / "run.pt",
        )
    model, resumed = start(search)
    fit(model, mixed, search.training, hooks=[resumed, Hook()], checkpoint=tmp_path / "run.pt")
    assert resumed.scores == whole.scores


# AutoField


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
            assert torch.allclose(
                result[:, columns], x[:, columns] * keep / (drop + keep), atol=1e-6
            )


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
    moved = [
        not torch.equal(a, b) for a, b in zip([torch.full((7, 2), 0.5), *seen], seen, strict=False)
    ]
    assert moved == [step % 2 == 0 for step in range(1, len(seen) + 1)]


# STG and variational dropout


def test_stg_equals_its_formula(search, task):
    layer = GaussianGates(search, STG())
    with torch.no_grad():
        layer.mean.copy_(torch.linspace(-1.5, 1.5, 7))
    x = torch.randn(5, task.fields.dims)
    torch.manual_seed(5)
    noisy = layer(x)
    torch.manual_seed(5)
    noise = torch.randn(7)
    for result, eps in ((noisy, noise), (layer.eval()(x), 0 * noise)):
        z = [
            min(1.0, max(0.0, float(mu + 0.5 + 0.5 * e)))
            for mu, e in zip(layer.mean.tolist(), eps, strict=True)
        ]
        expected = torch.cat(
            [x[:, task.fields.columns(name)] * z[i] for i, name in enumerate(task.fields.names)],
            dim=1,
        )
        assert torch.allclose(result, expected, atol=1e-6)
    chances = [0.5 * (1 + math.erf((mu + 0.5) / 0.5 / math.sqrt(2))) for mu in layer.mean.tolist()]
    assert layer.penalty().item() == pytest.approx(0.1 * sum(chances) / 7, rel=1e-5)


def test_variational_dropout_equals_its_formula(search, task):
    layer = DropGates(search, VariationalDropout())
    with torch.no_grad():
        layer.drop.copy_(torch.linspace(-2, 2, 7))
    p = torch.sigmoid(layer.drop.detach()).double()
    x = torch.randn(5, task.fields.dims)
    torch.manual_seed(5)
    noisy = layer(x)
    torch.manual_seed(5)
    u = torch.rand(5, 7).double()
    gate = 1 - torch.sigmoid((p.log() - (1 - p).log() + u.log() - (1 - u).log()) / 0.1)  # (B, F)
    assert torch.allclose(noisy, x * gate.float()[:, search.column_field()], atol=1e-4)
    assert torch.allclose(layer.eval()(x), x * (1 - p).float()[search.column_field()], atol=1e-6)
    assert layer.penalty().item() == pytest.approx(0.01 / 128 * float((1 - p).sum()), rel=1e-5)
    many = layer.train()(torch.ones(20_000, task.fields.dims))
    assert torch.allclose(many.mean(0), (1 - p).float()[search.column_field()], atol=0.02)


def test_gates_have_a_learning_rate_of_their_own(search):
    layer = GaussianGates(search, STG())
    assert GateHook(search, layer, [layer.mean]).optimizer.param_groups[0]["lr"] == 5e-3
    assert GateHook(search, layer, [layer.mean], lr=0.3).optimizer.param_groups[0]["lr"] == 0.3


# LPFS


@pytest.mark.parametrize("plus", [False, True])
def test_lpfs_equals_its_formula(plus, search, task):
    layer = SmoothSteps(search, LPFS(plus=plus))
    with torch.no_grad():
        layer.x.copy_(torch.tensor([-2.0, -0.3, -0.01, 0.0, 0.01, 0.3, 2.0]))
    layer.get_buffer("epsilon").fill_(0.01)
    for x, gate in zip(layer.x.tolist(), layer.gates(torch.empty(0)).tolist(), strict=True):
        slow = x * x / (x * x + 0.01)
        if plus:
            slow = (slow if x > 0 else -slow) + 10 * math.sqrt(0.01) * math.atan(x)
        assert gate == pytest.approx(slow, abs=1e-6)
    (slope,) = torch.autograd.grad(layer.gates(torch.empty(0)).sum(), layer.x)
    assert slope[3].item() == pytest.approx(1.0 if plus else 0.0)  # LPFS++ can come back from 0


@pytest.mark.parametrize("plus", [False, True])
def test_lpfs_reaches_zero_for_useless_fields_and_for_no_others(plus, task):
    scores = found(task, LPFS(plus=plus))
    assert {name for name, score in scores.items() if score == 0.0} == {*NOISE, "constant"}


def test_lpfs_follows_its_plan(search, task):
    method = LPFS(planned_epochs=5)
    assert method.epsilon_at(0, 1000) == pytest.approx(0.1)
    assert method.epsilon_at(500, 1000) == pytest.approx(1e-3)
    assert method.epsilon_at(1000, 1000) == method.epsilon_at(9999, 1000) == pytest.approx(1e-5)
    hook = ProximalSteps(search, SmoothSteps(search, method), method)
    assert hook.planned == 5 * 38
    assert hook.threshold == pytest.approx(2 / hook.planned)
    short = Search(task, search.backbone, Training(batch=128, epochs=2))
    assert ProximalSteps(short, SmoothSteps(short, method), method).planned == 2 * 38
    by_hand = LPFS(threshold=0.03, lr=0.7)
    hook = ProximalSteps(search, SmoothSteps(search, by_hand), by_hand)
    assert (hook.threshold, hook.lr) == (0.03, 0.7)


def test_the_threshold_of_lpfs_is_soft_and_no_wider_than_half_a_gate(search):
    method = LPFS(threshold=0.1)
    hook = ProximalSteps(search, SmoothSteps(search, method), method)
    run = tl.train.Run(search.model(), search.task, TRAINING)
    with torch.no_grad():
        hook.layer.x.copy_(torch.tensor([-1.0, -0.1, -0.05, 0.0, 0.05, 0.11, 1.0]))
    hook.after_step(run)  # without gradients, the threshold alone
    assert hook.layer.x.tolist() == pytest.approx([-0.9, 0, 0, 0, 0, 0.01, 0.9])
    hook.layer.get_buffer("epsilon").fill_(1e-4)
    hook.after_step(run)
    assert hook.layer.x[6].item() == pytest.approx(0.9 - 0.005)


def test_the_public_lpfs_reaches_no_zero(search, task):
    method = LPFS(as_published=True)
    assert method.epsilon_at(99, 1) == 0.1
    assert method.epsilon_at(250, 1) == pytest.approx(0.1 * 0.9978**2)
    hook = ProximalSteps(search, SmoothSteps(search, method), method)
    assert hook.threshold == 1e-5
    assert hook.optimizer.param_groups[0]["lr"] == TRAINING.lr
    assert min(found(task, method).values()) > 0.1


# Deep Lasso


def test_the_lasso_is_the_sum_of_norms_by_field(search, task):
    gradient = torch.randn(8, task.fields.dims)
    norms = [
        math.sqrt(float((gradient[:, task.fields.columns(name)] ** 2).sum()) + 1e-8)
        for name in task.fields.names
    ]
    assert lasso(gradient, search.column_field()).item() == pytest.approx(sum(norms), rel=1e-5)


def test_deep_lasso_adds_what_makes_the_loss_a_mixture(search, task):
    model, hook = deep_lasso(search)
    model.net.net.wide.bias.data.fill_(0.5)
    torch.manual_seed(0)
    batch = next(iter(task.train.batches(128, shuffle=True, seed=0)))
    log_odds = model(*batch.inputs)
    loss = binary_cross_entropy_with_logits(log_odds, batch.label)
    x = model.net.seen
    # each row's gradient by hand, times the number of rows that share the mean: (sigmoid - y) / B * d log_odds / dx
    (slope,) = torch.autograd.grad(
        log_odds, x, (log_odds.sigmoid() - batch.label).detach() / 128, retain_graph=True
    )
    penalty = hook.penalty(loss)
    assert penalty.item() == pytest.approx(
        0.1 * (float(lasso(slope, search.column_field())) - loss.item()), rel=1e-5
    )
    total = loss + penalty
    assert total.item() == pytest.approx(
        0.9 * loss.item() + 0.1 * float(lasso(slope, search.column_field())), rel=1e-5
    )
    total.backward()
    assert model.inputs.tables["4"].weight.grad.abs().sum() > 0
    assert model.net.seen is None


def test_deep_lasso_closes_noise_where_its_weight_is_large(task):
    light, heavy = (found(task, DeepLasso(weight=weight)) for weight in (1e-6, 0.5))
    assert all(heavy[name] < light[name] / 3 for name in NOISE)


def test_deep_lasso_refuses_to_compile(task):
    with pytest.raises(tl.TorchleapError, match="gradients of gradients.*Set compile=False"):
        tl.search(task, method=DeepLasso(), training=Training(batch=128, compile=True))


# OptFS


def gated(search, method=FEW_STEPS_OPTFS):
    model = search.model()
    layer = RowGates(search, method)
    put_before_net(model, layer)
    layer.put_into_tables(model)
    return model.eval(), layer


def test_optfs_has_a_gate_for_each_id_and_one_for_each_number_and_vector(mixed):
    search = Search(mixed, models.benchmark("mlp"), QUICK)
    model, layer = gated(search)
    plain = search.model().eval()
    batch = mixed.valid.all()
    assert torch.allclose(
        model(*batch.inputs), plain(*batch.inputs), atol=1e-6
    )  # all gates are 1 in the beginning
    for gates in layer.everywhere():
        torch.nn.init.normal_(gates.m)
        gates.get_buffer("steepness").fill_(3.0)
    x = model.net[0](model.inputs(*batch.inputs))
    slots = mixed.slots(ids=True)
    for place, column in enumerate(mixed.columns):
        found = x[:, mixed.fields.columns(column.name)]
        if not column.is_ids:
            slot = mixed.slots(ids=False)[column.name]
            scale = torch.sigmoid(3 * layer.open.m[place]) / torch.sigmoid(torch.tensor(0.5))
            assert torch.allclose(found, batch.numbers[:, slot] * scale, atol=1e-6)
            continue
        table = next(table for table in layer.tables if place in table.fields)
        assert table.fields == [place]  # here all have widths of their own
        weight = (
            table.table.weight * torch.sigmoid(3 * table.open.m) / torch.sigmoid(torch.tensor(0.5))
        )
        for row in range(30):
            ids = batch.ids[row, slots[column.name]]
            ids = ids[ids > 0] if column.column.kind == "list" else ids
            expected = weight[ids].mean(0) if len(ids) else torch.zeros(column.width)
            assert torch.allclose(found[row], expected, atol=1e-6)


def test_the_price_of_optfs_is_the_sum_of_all_gates(mixed):
    _, layer = gated(Search(mixed, models.benchmark("mlp"), QUICK))
    count = sum(column.categories for column in mixed.columns) + 2
    assert layer.penalty().item() == pytest.approx(2e-3 * count / (1 + math.exp(-0.5)), rel=1e-5)


def test_optfs_scores_the_share_of_train_rows_whose_embedding_is_kept(task):
    _, layer = gated(Search(task, models.benchmark("mlp"), QUICK))
    (table,) = layer.tables  # two columns of one width share it
    item, user = (task.columns[place].categories for place in (0, 1))
    with torch.no_grad():
        table.open.m.fill_(-1.0)
        table.open.m[[3, 7, item + 4]] = 1.0
        layer.open.m[task.fields.index("noise")] = -0.2
    ids = task.train.all().ids
    share_item = ((ids[:, 0] == 3) | (ids[:, 0] == 7)).double().mean().item()
    share_user = (ids[:, 1] == 4).double().mean().item()
    assert layer.worth().tolist() == pytest.approx(
        [share_item, share_user, 1, 0, 1, 1, 1], abs=1e-5
    )
    assert [len(count) for count in table.counts] == [item, user]
    assert layer.worth()[2] > 1  # a hair above, to rank what is kept as a whole


def test_empty_places_of_lists_do_not_count(mixed):
    counts = id_counts(mixed)
    place = mixed.fields.index("tags")
    ids = mixed.train.all().ids[:, mixed.slots(ids=True)["tags"]]
    assert counts[place][0] == 0
    assert counts[place].sum().item() == int((ids > 0).sum())


def test_optfs_grows_steeper_with_each_epoch(task):
    method = OptFS(steepness=81.0, planned_epochs=5)
    assert [method.steepness_at(epoch, 5) for epoch in range(7)] == pytest.approx(
        [1, 3, 9, 27, 81, 81, 81]
    )
    assert method.steepness_at(0, 1) == 1.0


# AdaFS


def test_adafs_weighs_the_fields_of_each_row_with_mean_one(search, task):
    layer = RowWeights(search, AdaFS(pretraining=0)).eval()
    x = torch.randn(6, task.fields.dims)
    linear, norm, _, _ = layer.controller
    normal = x / math.sqrt(1 + 1e-5)  # the statistics of a fresh batch norm
    logits = ((normal @ linear.weight.T + linear.bias) / math.sqrt(1 + norm.eps)).clamp_min(0)
    weights = logits.exp() / logits.exp().sum(1, keepdim=True) * 7
    assert torch.allclose(layer(x), normal * weights[:, search.column_field()], atol=1e-5)
    assert torch.allclose(layer.gates(normal).mean(1), torch.ones(6), atol=1e-6)


def test_hard_adafs_keeps_the_largest_weights_of_each_row(search, task):
    soft, hard = (
        RowWeights(search, AdaFS(pretraining=0)),
        RowWeights(search, AdaFS(pretraining=0, keep=0.43)),
    )
    hard.load_state_dict(soft.state_dict())
    x = torch.randn(20, task.fields.dims)
    weights, kept = soft.eval().weights(x), hard.eval().weights(x)
    assert ((kept > 0).sum(1) == 3).all()
    assert torch.allclose(kept.mean(1), torch.ones(20), atol=1e-6)
    for row in range(20):
        assert set(kept[row].nonzero().flatten().tolist()) == set(
            weights[row].topk(3).indices.tolist()
        )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_adafs_gives_useful_fields_more_weight_than_noise(seed, task):
    # Not its three best: the network makes up for weights, and that of a constant means nothing. By default, the controller
    # would take 23 steps of 1e-3 here.
    scores = found(task, AdaFS(lr=3e-2, every=1, dropout=0.0), seed=seed)
    assert max(scores, key=scores.get) in USEFUL
    assert sum(scores[name] for name in USEFUL) > 1.2 * sum(scores[name] for name in NOISE)


def test_adafs_has_no_weights_in_pre_training(task):
    search = Search(task, models.benchmark("mlp"), Training(batch=256, epochs=3))
    method = AdaFS(pretraining=2, every=1)
    model = search.model()
    layer = RowWeights(search, method)
    put_before_net(model, layer)
    hook = AdaFSSteps(search, layer, method)
    first = layer.controller[0].weight.detach().clone()
    seen = []

    class Watch(Hook):
        def after_step(self, run):
            seen.append(
                (bool(layer.get_buffer("weighs")), torch.equal(layer.controller[0].weight, first))
            )

    search.fit(model, hook, Watch())
    epoch = -(-len(task.train) // 256)
    assert seen[: 2 * epoch - 1] == [(False, True)] * (2 * epoch - 1)
    assert seen[2 * epoch :] == [(True, False)] * epoch
    assert sum(hook.scores.values()) == pytest.approx(7, abs=1e-4)
