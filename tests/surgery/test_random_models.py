"""Random models: a pruned one computes what the masked one does, on any batch, or raises."""

import pytest
import torch

import torchleap as tl
from tests.surgery import trials
from tests.surgery.constructs import CONSTRUCTS, FRONTS
from tests.surgery.random_models import RandomModel, constructs_of, make_batch
from tests.surgery.trials import trial

GROUPS = 7


@pytest.mark.parametrize("group", range(GROUPS))
def test_no_random_model_is_silently_inexact(group):
    seeds = range(group, len(CONSTRUCTS), GROUPS)
    outcomes = [trial(seed) for seed in seeds]
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    assert not bad, "\n".join(
        f"trial({o.seed}, {o.constructs}) is {o.kind}: {o.detail}" for o in bad
    )


def test_every_construct_has_its_turn():
    chosen = {name for seed in range(len(CONSTRUCTS)) for name in constructs_of(seed)}
    assert chosen == set(CONSTRUCTS)


def test_a_trial_notices_a_pruned_model_that_is_wrong(monkeypatch):
    prune = tl.Plugin.prune

    def wrong(self, selection, **options):
        small = prune(self, selection, **options)
        small.head[2].bias.data += 1e-3
        return small

    monkeypatch.setattr(tl.Plugin, "prune", wrong)
    assert trial(0, ["table", "logit"]).kind == "inexact"


def test_a_trial_notices_what_is_no_longer_trained(monkeypatch):
    prune = tl.Plugin.prune

    def frozen(self, selection, **options):
        small = prune(self, selection, **options)
        small.head[2].weight.requires_grad_(False)
        return small

    monkeypatch.setattr(tl.Plugin, "prune", frozen)
    outcome = trial(0, ["table", "logit"])
    assert (outcome.kind, "the gradient of head.2.weight differs" in outcome.detail) == (
        "inexact",
        True,
    )


def test_a_trial_notices_errors_and_hangs(monkeypatch):
    prune = tl.Plugin.prune

    def fail(self, *args, **options):
        raise RuntimeError("of another kind")

    monkeypatch.setattr(tl.Plugin, "prune", fail)
    assert trial(0, ["table"]).detail == "prune() raised RuntimeError: of another kind"

    def broken(self, *args, **options):
        small = prune(self, *args, **options)
        small.register_forward_pre_hook(fail)
        return small

    monkeypatch.setattr(tl.Plugin, "prune", broken)
    outcome = trial(0, ["table"])
    assert outcome.kind == "crash"
    assert outcome.detail.endswith("the pruned model raised RuntimeError: of another kind")

    def hang(self, *args, **options):
        while True:
            try:
                torch.ones(3).sum().item()
            except Exception:  # as surgery does
                continue

    monkeypatch.setattr(tl.Plugin, "prune", hang)
    monkeypatch.setattr(trials, "SECONDS", 0.2)
    assert trial(0, ["table"]).kind == "hang"


def test_a_trial_is_the_same_again():
    assert trial(5, ["table", "product"]) == trial(5, ["table", "product"])
    assert {field: part.function for field, part in RandomModel(None, ["bag"]).fronts.items()}[
        "user"
    ] is FRONTS["bag"]
    assert make_batch(3, mask=True)[1].equal(make_batch(3, mask=True)[1])
