"""Methods with gates: each finds the useful fields, with every backbone and kind of column."""

import math

import pytest
import torch

import torchleap as tl
from tests.data.frames import USEFUL
from tests.methods.tasks import QUICK, scores_of
from tests.methods.test_autofield import autofield
from tests.methods.test_deep_lasso import deep_lasso
from torchleap import models
from torchleap.methods import Search
from torchleap.methods.adafs import AdaFS, RowWeights
from torchleap.methods.autofield import AutoField, KeepOrDrop
from torchleap.methods.deep_lasso import DeepLasso
from torchleap.methods.lpfs import LPFS, SmoothSteps
from torchleap.methods.optfs import EmbeddingGates, OptFS
from torchleap.methods.stg import STG, GaussianGates
from torchleap.methods.variational_dropout import DropGates, VariationalDropout
from torchleap.training.fit import Hook, Training, fit

# The public code's weight is for millions of embeddings and many thousand steps: here are 44
# embeddings and 304 steps.
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
LAYERS = [
    (KeepOrDrop, AutoField()),
    (GaussianGates, STG()),
    (DropGates, VariationalDropout()),
    (SmoothSteps, LPFS()),
    (EmbeddingGates, OptFS()),
    (RowWeights, AdaFS(pretraining=0)),
]


def name_of(method):
    words = [word for word in ("plus", "as_published", "keep") if getattr(method, word, None)]
    return "-".join([type(method).__name__, *words])


def best_three(scores):
    return set(sorted(scores, key=lambda name: -scores[name])[:3])


@pytest.mark.parametrize("method", METHODS, ids=name_of)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_method_finds_the_useful_fields(method, seed, task):
    scores = scores_of(task, method, seed=seed)
    assert list(scores) == list(task.fields.names)
    assert best_three(scores) == set(USEFUL), scores


@pytest.mark.parametrize("method", EVERY_METHOD, ids=name_of)
def test_one_seed_gives_one_result(method, mixed):
    training = Training(batch=128, epochs=2)
    first, second, other = (scores_of(mixed, method, training, seed) for seed in (3, 3, 4))
    assert first == second
    # After so few steps OptFS keeps all embeddings, and their gates differ by rounding only.
    if not isinstance(method, OptFS):
        assert first != other


@pytest.mark.parametrize("backbone", ["deepfm", "dcn", "fibinet", "mlp", "dlrm"])
def test_every_method_works_on_every_backbone_and_every_kind_of_column(backbone, mixed):
    for method in EVERY_METHOD:
        model = models.benchmark(backbone)
        scores = tl.search(mixed, model=model, method=method, training=QUICK).scores
        assert list(scores) == ["shop", "tags", "price", "brand", "picture"]
        assert all(math.isfinite(score) for score in scores.values())


@pytest.mark.parametrize("method", EVERY_METHOD, ids=name_of)
def test_numbers_alone_and_ids_alone_are_enough(method, mixed):
    for names in (["price", "picture"], ["shop", "brand", "tags"]):
        assert set(scores_of(mixed.only(names), method, QUICK)) == set(names)


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


def test_scores_are_those_of_the_last_step_and_are_recorded_at_every_evaluation(task):
    result = tl.search(task, method=STG(), training=Training(batch=256, epochs=3, lr=5e-3))
    last = {f"gate_{name}": score for name, score in result.scores.items()}
    assert last.items() <= result.history[-1].items()
    assert result.history[0]["gate_user"] > result.history[-1]["gate_user"]


class StopAt(Hook):
    """Interrupt a run like a machine that is switched off."""

    def __init__(self, step):
        self.step = step

    def after_step(self, run):
        if run.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("start", [autofield, deep_lasso])
def test_a_run_that_was_interrupted_resumes_as_if_it_had_not_been(start, mixed, tmp_path):
    search = Search(
        mixed, models.benchmark("mlp"), Training(batch=64, epochs=3, checkpoint_steps=5)
    )
    model, uninterrupted = start(search)
    fit(model, mixed, search.training, hooks=[uninterrupted])
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
    assert resumed.scores == uninterrupted.scores
