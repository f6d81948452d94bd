"""Batches: every row once an epoch, in a new order, shared out without overlap, and resumable."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import torchleap as tl

pytestmark = pytest.mark.usefixtures("small_blocks")


def rows(batches, task):
    place = task.slots(ids=False)["age"]
    return [int(value) for batch in batches for value in batch.numbers[:, place].flatten()]


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_has_every_row_once_and_the_last_batch_is_smaller(task, memory, shuffle):
    batches = task.train.batches(96, shuffle=shuffle, memory=memory)
    found = list(batches)
    assert [len(batch) for batch in found] == [96] * 8 + [32]
    assert len(batches) == 9
    seen = rows(found, task)
    assert sorted(seen) == list(range(800))
    assert (seen == list(range(800))) is not shuffle


@pytest.mark.parametrize("memory", [True, False])
def test_each_epoch_shuffles_again_and_a_seed_repeats_it(task, memory):
    first, second = (
        task.train.batches(50, shuffle=True, memory=memory),
        task.train.batches(50, shuffle=True, memory=memory),
    )
    epochs = [rows(first, task) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs == [rows(second, task) for _ in range(3)]
    assert rows(task.train.batches(50, shuffle=True, seed=1, memory=memory), task) != epochs[0]


def test_a_row_keeps_its_values_label_and_group(task):
    whole = task.train.all()
    for memory in (True, False):
        for batch in task.train.batches(64, shuffle=True, memory=memory):
            at = torch.tensor(rows([batch], task))
            assert torch.equal(batch.ids, whole.ids[at])
            assert torch.equal(batch.numbers, whole.numbers[at])
            assert torch.equal(batch.label, whole.label[at])
            assert torch.equal(batch.group, whole.group[at])
    assert torch.equal(whole.label, task.train.label)


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 5), size=st.integers(1, 300), memory=st.booleans(), shuffle=st.booleans()
)
def test_shards_share_the_rows_out(task, count, size, memory, shuffle):
    shards = [
        task.train.batches(size, shuffle=shuffle, shard=(number, count), memory=memory)
        for number in range(count)
    ]
    seen = [rows(shard, task) for shard in shards]
    assert sorted(row for shard in seen for row in shard) == list(range(800))
    assert [len(shard) for shard in shards] == [-(-len(own) // size) for own in seen]


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 300),
    stop=st.integers(0, 40),
    memory=st.booleans(),
    shuffle=st.booleans(),
    epochs=st.integers(0, 2),
)
def test_an_epoch_resumes_in_the_middle(task, size, stop, memory, shuffle, epochs):
    first = task.train.batches(size, shuffle=shuffle, memory=memory)
    for _ in range(epochs):
        list(first)
    iterator = iter(first)
    for _ in range(min(stop, len(first) - 1)):
        next(iterator)
    state = copy.deepcopy(first.state_dict())
    expected = rows(iterator, task)
    second = task.train.batches(size, shuffle=shuffle, memory=memory)
    second.load_state_dict(state)
    assert rows(second, task) == expected
    assert first.state_dict() == second.state_dict()


def test_a_position_in_other_batches_is_refused(task):
    with pytest.raises(
        tl.DataError, match="Expected the position in batches with size=10, but found size=20"
    ):
        task.train.batches(10).load_state_dict(task.train.batches(20).state_dict())
    with pytest.raises(
        tl.DataError,
        match=r"with shuffle=False and shard=\[0, 1\], but found shuffle=True and shard=\[1, 2\]",
    ):
        task.train.batches(10).load_state_dict(
            task.train.batches(10, shuffle=True, shard=(1, 2)).state_dict()
        )
    with pytest.raises(
        tl.DataError,
        match=r"from state_dict\(\), but it lacks epoch, position, size, seed, shuffle, shard",
    ):
        task.train.batches(10).load_state_dict({})


@pytest.mark.parametrize("memory", [True, False])
def test_workers_of_a_data_loader_share_the_rows(task, memory):
    loader = DataLoader(
        task.train.batches(64, shuffle=True, memory=memory), batch_size=None, num_workers=2
    )
    assert sorted(rows(loader, task)) == list(range(800))


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize(
    "settings", [{}, {"persistent_workers": True}, {"multiprocessing_context": "spawn"}]
)
def test_workers_bring_the_batches_that_one_process_brings(task, memory, settings):
    alone, shared = (task.train.batches(96, shuffle=True, seed=4, memory=memory) for _ in range(2))
    loader = DataLoader(shared, batch_size=None, num_workers=2, **settings)
    if settings.get("multiprocessing_context") == "spawn" and not memory:
        pytest.skip("a spawned worker has blocks of another size than these tests")
    assert len(loader) == 9
    for epoch in range(3):
        assert rows(loader, task) == rows(alone, task)
        assert shared.state_dict() == alone.state_dict()
        assert shared.epoch == epoch + 1
    assert rows(shared, task) == rows(alone, task)  # and without workers it goes on from there


def test_a_loop_over_workers_that_was_left_counts_for_nothing(task):
    batches = task.train.batches(96, shuffle=True)
    expected = rows(task.train.batches(96, shuffle=True), task)
    for options in ({}, {"persistent_workers": True}):
        loader = DataLoader(batches, batch_size=None, num_workers=2, **options)
        next(iter(loader))
        assert batches.epoch == 0
    assert rows(DataLoader(batches, batch_size=None, num_workers=2), task) == expected


@pytest.mark.parametrize("memory", [True, False])
def test_workers_resume_in_the_middle_of_an_epoch(task, memory):
    alone, shared = (task.train.batches(96, shuffle=True, memory=memory) for _ in range(2))
    iterator = iter(alone)
    for _ in range(3):
        next(iterator)
    shared.load_state_dict(alone.state_dict())
    loader = DataLoader(shared, batch_size=None, num_workers=2)
    assert rows(loader, task) == rows(iterator, task)
    assert rows(loader, task) == rows(alone, task)


def test_copies_of_batches_count_for_themselves(task):
    batches = task.train.batches(96, shuffle=True)
    list(batches)
    for again in (copy.deepcopy(batches), pickle.loads(pickle.dumps(batches))):
        list(DataLoader(again, batch_size=None, num_workers=2))
        assert (batches.epoch, again.epoch) == (1, 2)


@pytest.mark.parametrize("memory", [True, False])
def test_every_loop_begins_at_the_first_batch(task, memory):
    batches = task.train.batches(96, shuffle=True, memory=memory)
    first = next(iter(batches))
    seen = list(batches)
    assert torch.equal(seen[0].ids, first.ids)
    assert sorted(rows(seen, task)) == list(range(800))
    state = task.train.batches(96, shuffle=True, memory=memory).state_dict()
    batches.load_state_dict({**state, "position": 8})
    assert [len(batch) for batch in batches] == [32]
    assert len(list(batches)) == 9


def test_bad_settings_are_refused(task):
    with pytest.raises(tl.TorchleapError, match="size must be a whole number.*shard must be"):
        task.train.batches(0, shard=(2, 2))
    with pytest.raises(tl.TorchleapError, match="seed must be a whole number"):
        task.train.batches(1, seed=0.5)
    for shard in (3, (0,), (0, "2"), (0.5, 2), (-1, 2)):
        with pytest.raises(tl.TorchleapError, match="shard must be"):
            task.train.batches(1, shard=shard)
    assert sorted(rows(task.train.batches(100, shuffle=True, seed=2**70), task)) == list(range(800))
    with pytest.raises(tl.DataError, match="'age' has no vocabulary: it holds numbers"):
        task.vocabulary("age")
