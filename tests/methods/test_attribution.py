"""Full permutation and SHARK: the fast ways equal the plain ones, for every backbone and every kind of column."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.inspection import permutation_importance
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from tests.data.frames import USEFUL, log, small_truth
from torchleap import models
from torchleap.methods import Permutation, Search, Shark, permutation
from torchleap.methods.attribution import Means, mean_input
from torchleap.methods.base import put_before_net
from torchleap.methods.permutation import Shuffling, reader_of
from torchleap.training.fit import Training

TRAINING = Training(batch=128, lr=5e-3, epochs=8, patience=8)
KINDS = ("user", "city", "price", "age", "tags", "vector")


@pytest.fixture(scope="module")
def task():
    return small_truth()


@pytest.fixture(scope="module")
def trained(task):
    search = Search(task, models.benchmark("wide_deep"), TRAINING)
    model = search.model()
    search.fit(model)
    return search, model.eval()


def every_kind(width=4):
    """Ids that share a table or not, numbers that may be missing, a list and a vector; and groups."""
    ids = {"kind": "categorical", "width": width}
    columns = {
        "user": ids,
        "city": ids,
        "tags": {"kind": "list", "width": 8},
        "vector": {"kind": "vector"},
    }
    return tl.data.read(
        log(), label="click", time="time", group="user", columns=columns, only=KINDS
    )


WIDTHS = {width: every_kind(width) for width in (3, 8)}


def unlike_fresh(model, seed):
    """Weights and running statistics of a size that lets every field matter."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=rng))
    return model.eval()


def plainly_shuffled(model, task, rows, name, order):
    """The log odds of rows of which one column has the values of other rows: a full forward pass."""
    inputs = [tensor.clone() for tensor in rows.inputs]
    for tensor, ids in zip(inputs, (True, False), strict=True):
        if name in task.slots(ids=ids):
            tensor[:, task.slots(ids=ids)[name]] = tensor[order][:, task.slots(ids=ids)[name]]
    with torch.no_grad():
        return model(*inputs)


BACKBONES = st.builds(
    lambda name, hidden, norm: models.named(name, {"hidden": hidden, "batch_norm": norm}),
    st.sampled_from(list(models.BACKBONES)),
    st.sampled_from([(), (5,), (16, 8)]),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    BACKBONES,
    st.sampled_from(list(WIDTHS)),
    st.sets(st.sampled_from(KINDS), min_size=2),
    st.integers(1, 3),
    st.sampled_from([1.0, 0.4]),
    st.sampled_from([1, 7, 4096]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
)
def test_a_shuffled_field_gives_the_log_odds_of_a_full_pass(
    backbone, width, names, repeats, share, rows_at_once, held, memory, seed
):
    task = WIDTHS[width].only(names)
    model = unlike_fresh(models.build(backbone, task), seed)
    sample, orders = Permutation(repeats=repeats, share=share)._drawn(len(task.valid), seed)
    rows = task.valid.all().take(sample)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "ROWS", rows_at_once)
        patch.setattr(permutation, "HELD", permutation.HELD if held else 0)
        patch.setattr(permutation, "IN_MEMORY", permutation.IN_MEMORY if memory else 0)
        shuffling = Shuffling(model, task, sample, orders)
        assert (shuffling.held is not None) == held
        for place, name in enumerate(task.fields.names):
            expected = torch.stack(
                [plainly_shuffled(model, task, rows, name, order) for order in orders]
            )
            size = expected.abs().max().clamp_min(1)
            assert ((shuffling.of(place) - expected).abs().max() / size).item() < 1e-5
        with torch.no_grad():
            assert torch.allclose(shuffling.log_odds, model(*rows.inputs), atol=1e-5 * size.item())


@pytest.mark.parametrize("at", ["net", "net.deep.0", "before"])
def test_what_stands_before_or_in_the_network_is_not_passed_by(at):
    task = WIDTHS[3]
    model = unlike_fresh(models.build("wide_deep", task), 0)
    if at == "before":
        put_before_net(model, torch.nn.Softsign())
    else:
        model.get_submodule(at).register_forward_pre_hook(lambda module, inputs: (inputs[0].sin(),))
    sample, orders = Permutation(repeats=2)._drawn(len(task.valid), 0)
    shuffling = Shuffling(model, task, sample, orders)
    expected = plainly_shuffled(model, task, task.valid.all(), "vector", orders[1])
    assert torch.allclose(shuffling.of(task.fields.index("vector"))[1], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "wide_deep", "dcn"])
def test_only_a_part_without_a_first_linear_layer_sees_the_input_again(name, monkeypatch):
    """Or the speed is gone, while the numbers are the same."""
    task = WIDTHS[3]
    model = unlike_fresh(models.build(name, task), 0)
    sample, orders = Permutation()._drawn(len(task.valid), 0)
    shuffling = Shuffling(model, task, sample, orders)
    seen = []
    for part in model.net.children():
        monkeypatch.setattr(
            part, "forward", lambda x, whole=part.forward: (seen.append(x.shape[1]), whole(x))[1]
        )
    shuffling.of(0)
    assert seen == ([task.fields.dims] if name == "dcn" else [])
    assert shuffling.held[1].shape[1] == (task.fields.dims if name == "dcn" else 0)


def test_a_reader_of_one_column_has_no_tables_of_its_own():
    task = WIDTHS[8]
    inputs = models.build("mlp", task).inputs
    x = inputs(*task.valid.all().inputs)
    for place, name in enumerate(task.fields.names):
        reader = reader_of(inputs, place)
        assert {id(weight) for weight in reader.parameters()} <= {
            id(weight) for weight in inputs.parameters()
        }
        assert torch.equal(
            reader(*task.only([name]).valid.all().inputs), x[:, task.fields.columns(name)]
        )


class AsEstimator:
    """A trained model for scikit-learn: each column of X holds the numbers of the rows that a field is taken from."""

    classes_ = np.array([0, 1])
    _estimator_type = "classifier"

    def __init__(self, model, task):
        self.model, self.fields = model, task.fields
        with torch.no_grad():
            self.x = model.inputs(*task.valid.all().inputs)

    def fit(self, *_):
        return self

    def score(self, rows, label):
        taken = torch.from_numpy(rows)
        blocks = [
            self.x[taken[:, place]][:, self.fields.columns(name)]
            for place, name in enumerate(self.fields.names)
        ]
        with torch.no_grad():
            return tl.auc(label, self.model.net(torch.cat(blocks, dim=1)))


def test_permutation_agrees_with_scikit_learn(trained, task):
    search, model = trained
    repeats = 25
    rows = np.repeat(np.arange(len(task.valid))[:, None], len(task.fields), axis=1)
    label = task.valid.label.numpy()
    theirs = permutation_importance(
        AsEstimator(model, task), rows, label, n_repeats=repeats, random_state=0
    )
    ours = Permutation(repeats=repeats).falls(search, model).numpy()
    spread = np.sqrt((ours.var(1) + theirs.importances.var(1)) / repeats)
    assert (np.abs(ours.mean(1) - theirs.importances_mean) <= 4 * spread + 1e-9).all()
    assert ours.mean(1)[task.fields.index("item")] > 0.1
    useful = [task.fields.index(name) for name in USEFUL]
    assert np.allclose(ours.std(1)[useful], theirs.importances_std[useful], rtol=0.6)
    assert (ours[task.fields.index("constant")] == 0).all()


def test_the_rows_of_a_share_are_drawn_by_lot(trained, task):
    search, model = trained
    method = Permutation(repeats=1, share=0.25)
    (sample, orders), other = (
        method._drawn(len(task.valid), 0),
        method._drawn(len(task.valid), 1)[0],
    )
    assert len(sample) == 150 == orders.shape[1]
    assert sample.max() > 500 > 100 > sample.min()
    assert torch.equal(sample, method._drawn(len(task.valid), 0)[0])
    assert not torch.equal(sample, other)
    rows = task.valid.all().take(sample)
    with torch.no_grad():
        whole = tl.auc(rows.label, model(*rows.inputs))
    shuffled = tl.auc(rows.label, plainly_shuffled(model, task, rows, "item", orders[0]))
    assert method.falls(search, model)[task.fields.index("item"), 0].item() == pytest.approx(
        whole - shuffled, abs=1e-6
    )


def test_other_metrics_fall_too():
    task = WIDTHS[3]
    search = Search(task, models.named("mlp"), TRAINING)
    model = unlike_fresh(search.model(), 0)
    rows = task.valid.all()
    _, orders = Permutation(repeats=1)._drawn(len(task.valid), 0)
    with torch.no_grad():
        both = [model(*rows.inputs), plainly_shuffled(model, task, rows, "price", orders[0])]
    loss = [tl.log_loss(rows.label, torch.sigmoid(log_odds.double())) for log_odds in both]
    gauc = [tl.gauc(rows.label, log_odds, rows.group) for log_odds in both]
    place = task.fields.index("price")
    found = {
        name: Permutation(repeats=1, metric=name).falls(search, model)[place, 0].item()
        for name in ("log_loss", "gauc")
    }
    assert found["log_loss"] == pytest.approx(loss[1] - loss[0], abs=1e-6)
    assert abs(found["log_loss"]) > 1e-3
    assert found["gauc"] == pytest.approx(gauc[0] - gauc[1], abs=1e-6)


def test_permutation_tells_how_sure_it_is(task):
    quick = Training(batch=256, epochs=2)
    result = tl.search(task, method=Permutation(repeats=4), training=quick)
    search = Search(task, models.named("wide_deep"), quick)
    model = search.model()
    search.fit(model)
    falls = Permutation(repeats=4).falls(search, model)
    assert result.scores == search.by_field(falls.mean(1))
    assert result.history[-1]["fall_std_price"] == pytest.approx(
        falls[task.fields.index("price")].std().item(), rel=1e-9
    )
    assert result.history[-1]["valid_auc"] > 0.5
    once = tl.search(task, method=Permutation(repeats=1), training=quick)
    assert not any(name.startswith("fall_std") for name in once.history[-1])


@pytest.mark.parametrize(
    ("method", "wrong", "sentence"),
    [
        (Permutation, {"repeats": 0}, "repeats must be at least 1, but is 0"),
        (Permutation, {"share": 0.0}, "share must be above 0 and at most 1"),
        (Permutation, {"share": 1.5}, "share must be above 0 and at most 1"),
        (Permutation, {"metric": "accuracy"}, "metric must be"),
        (Shark, {"rounds": 0}, "rounds must be at least 1"),
        (Shark, {"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_settings_without_sense_are_refused(method, wrong, sentence):
    with pytest.raises(tl.TorchleapError, match=sentence):
        method(**wrong)


def test_gauc_needs_groups(trained):
    with pytest.raises(
        tl.TorchleapError, match="metric='gauc' needs groups. Read the data with group="
    ):
        Permutation(metric="gauc").falls(*trained)


# SHARK


@pytest.mark.parametrize("signed", [False, True])
def test_shark_equals_its_definition_row_by_row_to_a_millionth(trained, task, signed):
    search, model = trained
    rows = task.valid.all()
    with torch.no_grad():
        x = model.inputs(*rows.inputs)
    mean, expected = x.double().mean(0).float(), torch.zeros(len(task.fields), dtype=torch.float64)
    for own, label in zip(x.split(1), rows.label.split(1), strict=True):
        own = own.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(
            binary_cross_entropy_with_logits(model.net(own), label), own
        )
        change = torch.stack(
            [part.sum() for part in ((mean - own.detach()) * gradient)[0].split(task.fields.widths)]
        )
        expected += (change if signed else change.abs()).double() / len(rows)
    found = Shark(signed=signed).changes(search, model)
    assert ((found - expected).abs().max() / expected.abs().max()).item() < 1e-6


@pytest.mark.parametrize("rounds", [2, 3, 20])
@pytest.mark.parametrize("signed", [False, True])
def test_shark_in_rounds_ranks_by_round_and_then_by_score(task, rounds, signed, monkeypatch):
    """More rounds than fields drop one at a time. The scores are raised no more than they have to be."""
    scores = torch.tensor(
        [5.0, 1.0, -1.0 if signed else 0.0, 3.0, 2.0, 6.0, 4.0], dtype=torch.float64
    )
    search = Search(task, models.benchmark("wide_deep"), TRAINING)
    fitted, dropped = [], []
    monkeypatch.setattr(Shark, "changes", lambda self, search, model: scores / 2 ** len(dropped))
    monkeypatch.setattr(
        Search, "fit", lambda self, model, *hooks, training=None: fitted.append(training)
    )
    monkeypatch.setattr(Means, "drop", lambda self, places, mean: dropped.append(places))
    found = torch.tensor(
        list(Shark(signed=signed, rounds=rounds, epochs=2).score(search).values()),
        dtype=torch.float64,
    )
    assert torch.equal(found.argsort(), scores.argsort())
    assert len(found.unique()) == 7
    assert fitted == [None, *[replace(TRAINING, epochs=2)] * len(dropped)]
    assert [place for places in dropped for place in places] == scores.argsort().tolist()[
        : sum(map(len, dropped))
    ]
    if rounds == 2:
        assert len(dropped[0]) == 4
        lowest = found.sort().values
        assert lowest[:4].tolist() == scores.sort().values[:4].tolist()
        assert lowest[4].item() == pytest.approx(
            lowest[3].item(), abs=1e-4
        )  # 2.0 after 3.0: raised to just above it
        assert (lowest[5:] - lowest[4:6]).tolist() == pytest.approx([0.5, 0.5])


def test_shark_in_rounds_ranks_the_useful_fields_no_worse(task):
    """On an easy set; on harder ones it need not."""
    for method in (Shark(), Shark(rounds=3), Shark(rounds=7)):
        result = tl.search(
            task, model=models.benchmark("wide_deep"), method=method, training=TRAINING
        )
        assert tl.auc([name in USEFUL for name in result.scores], list(result.scores.values())) == 1
        if method.rounds == 1:
            search = Search(task, models.benchmark("wide_deep"), TRAINING)
            model = search.model()
            search.fit(model)
            assert result.scores == search.by_field(Shark().changes(search, model))


def test_dropped_fields_are_their_means_from_then_on(trained, task):
    search, model = trained
    rows, places = task.valid.all(), [task.fields.index("item"), task.fields.index("taste")]
    with torch.no_grad():
        x = model.inputs(*rows.inputs)
    layer = Means(search)
    assert torch.equal(layer(x), x)
    for place in places:
        layer.drop([place], mean_input(search, model))
    columns = torch.isin(search.column_field(), torch.tensor(places))
    assert torch.allclose(layer(x)[:, columns], x.mean(0)[columns].expand(len(x), -1), atol=1e-6)
    assert torch.equal(layer(x)[:, ~columns], x[:, ~columns])
