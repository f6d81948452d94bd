"""LazyAdam does to every row what Adam does with dense gradients, whatever the batches read."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import torchleap.training.lazy_adam
from torchleap.training.lazy_adam import LazyAdam


@pytest.fixture(params=["native", "torch"])
def way(request, monkeypatch):
    """The native kernel, and plain PyTorch."""
    if request.param == "torch":
        monkeypatch.setattr(torchleap.training.lazy_adam, "_is_native", lambda weight: False)
    elif torchleap.training.lazy_adam._native() is None:
        pytest.skip("the native kernel is not compiled")


def twins(rows, width, dtype=torch.float32, kind=nn.Embedding):
    torch.manual_seed(0)
    dense = kind(rows, width, dtype=dtype)
    sparse = kind(rows, width, dtype=dtype, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    return dense, sparse


def batches(rows, count, size, seed):
    """Ids of which some come often, some twice in a batch, and some never."""
    rng = torch.Generator().manual_seed(seed)
    return [(torch.rand(size, generator=rng) ** 4 * rows).long() for _ in range(count)]


def train(table, optimizer, ids, schedule=None, scale=1.0):
    """With gradients that do not depend on the weights: what differs is the optimizer's doing."""
    for batch in ids:
        rng = torch.Generator().manual_seed(int(batch.sum()))
        optimizer.zero_grad()
        found = table(batch)
        (
            found
            * scale
            * torch.randn(found.shape, generator=rng, dtype=torch.float64).to(found.dtype)
        ).sum().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


def check(rows, width, count, size, seed, dtype, tolerance, lr=1e-2, scale=1.0, **others):
    dense, sparse = twins(rows, width, dtype)
    ids = batches(rows, count, size, seed)
    lazy = LazyAdam([sparse], lr=lr, **others)
    train(dense, torch.optim.Adam(dense.parameters(), lr=lr, **others), ids, scale=scale)
    train(sparse, lazy, ids, scale=scale)
    lazy.settle()
    assert (dense.weight - sparse.weight).abs().max() < tolerance * lr


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 60),
    width=st.integers(1, 20),
    count=st.integers(1, 60),
    size=st.integers(1, 12),
    seed=st.integers(0, 99),
    betas=st.sampled_from([(0.9, 0.999), (0.5, 0.99), (0.9, 0.9)]),
)
def test_it_is_adam_for_any_table_and_batches(rows, width, count, size, seed, betas):
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.float64, 1e-5)):
        check(rows, width, count, size, seed, dtype, tolerance, betas=betas)


def test_it_is_adam_for_longer_than_its_window(way):
    check(300, 4, 1200, 6, 0, torch.float32, 0.01)
    check(300, 4, 1200, 6, 0, torch.float64, 1e-5)


def test_it_is_adam_when_steps_are_counted_from_0_again(way, monkeypatch):
    monkeypatch.setattr(torchleap.training.lazy_adam, "LONGEST", 700)
    check(40, 3, 1600, 6, 0, torch.float64, 1e-6)
    sparse = twins(40, 3)[1]
    lazy = LazyAdam([sparse])
    train(sparse, lazy, batches(40, 1600, 6, 0))
    state = lazy.state[sparse.weight]
    assert (state["step"], state["base"]) == (1600, 1400)
    assert len(state["reach"]) < 700  # as much as the steps since, and no more


def test_it_is_nearly_adam_where_gradients_are_as_small_as_eps(way):
    check(300, 4, 400, 6, 0, torch.float64, 0.3, scale=1e-8)


def test_many_rows_go_to_several_threads(way):
    check(50_000, 8, 12, 9_000, 0, torch.float32, 1e-3)


def test_a_falling_learning_rate_counts_for_the_steps_that_were_missed(way):
    dense, sparse = twins(40, 4)
    ids = batches(40, 150, 5, 1)
    adam, lazy = torch.optim.Adam(dense.parameters(), lr=1e-2), LazyAdam([sparse], lr=1e-2)
    for table, optimizer in ((dense, adam), (sparse, lazy)):
        train(
            table, optimizer, ids, LambdaLR(optimizer, lambda step: 0.0 if step < 3 else 0.98**step)
        )
    lazy.settle()
    assert torch.allclose(dense.weight, sparse.weight, rtol=0, atol=1e-4)


def test_rows_are_up_to_date_when_they_are_read_between_steps(way):
    dense, sparse = twins(40, 4)
    ids = batches(40, 30, 5, 1)
    train(dense, torch.optim.Adam(dense.parameters(), lr=1e-2), ids)
    train(sparse, LazyAdam([sparse], lr=1e-2), ids)
    everything = torch.arange(40).expand(2, 40)  # each row twice
    assert not torch.allclose(dense.weight, sparse.weight, atol=1e-4)  # some are behind
    assert torch.allclose(dense(everything), sparse(everything), atol=1e-4)
    assert torch.allclose(dense.weight, sparse.weight, atol=1e-4)


def test_it_resumes_from_its_state_bit_for_bit(way):
    ids = batches(40, 40, 5, 1)
    _, full = twins(40, 4)
    lazy = LazyAdam([full], lr=1e-2)
    train(full, lazy, ids)
    lazy.settle()
    _, half = twins(40, 4)
    first = LazyAdam([half], lr=1e-2)
    train(half, first, ids[:25])
    saved = copy.deepcopy((half.state_dict(), first.state_dict()))
    _, again = twins(40, 4)
    second = LazyAdam([again], lr=1e-2)
    again.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    train(again, second, ids[25:])
    second.settle()
    assert torch.equal(again.weight, full.weight)


def test_bags_and_shared_weights(way):
    dense, sparse = twins(30, 4, kind=nn.EmbeddingBag)
    other, twin = nn.EmbeddingBag(30, 4), nn.EmbeddingBag(30, 4, sparse=True)
    other.weight, twin.weight = dense.weight, sparse.weight
    adam, lazy = torch.optim.Adam(dense.parameters(), lr=1e-2), LazyAdam([sparse, twin], lr=1e-2)
    for batch in batches(30, 50, 12, 3):
        for (one, two), optimizer in (((dense, other), adam), ((sparse, twin), lazy)):
            optimizer.zero_grad()
            (one(batch.view(3, 4)) * two(batch.view(3, 4).flip(0))).sum().add(
                one(batch.view(4, 3)).square().sum()
            ).backward()
            optimizer.step()
    lazy.settle()
    assert torch.allclose(dense.weight, sparse.weight, rtol=0, atol=1e-4)


def test_released_tables_are_as_they_were():
    _, sparse = twins(30, 4)
    lazy = LazyAdam([sparse])
    train(sparse, lazy, batches(30, 5, 4, 0))
    lazy.release()
    before = sparse.weight.clone()
    sparse(torch.arange(30))
    assert torch.equal(sparse.weight, before)
    assert not sparse._forward_pre_hooks
