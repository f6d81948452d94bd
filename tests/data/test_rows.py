"""Rows: a shuffled column reads the rows of its file in another order, within each part."""

import pickle
from dataclasses import fields, replace

import pytest
import torch

from torchleap.data.columns import ShuffledColumn, TaskColumn

pytestmark = pytest.mark.usefixtures("small_blocks")


def shuffled(column, order):
    facts = {fact.name: getattr(column, fact.name) for fact in fields(TaskColumn)}
    facts["column"] = replace(column.column, name=f"{column.name}'")
    return ShuffledColumn(**facts, order=order)


@pytest.fixture(scope="module")
def both(task):
    """The task with a shuffled copy of each column."""
    copies = [shuffled(column, 7) for column in task.columns]
    return replace(task, columns=(*task.columns, *copies))


def values(task, rows, name):
    column = task.columns[task.fields.index(name)]
    return (rows.ids if column.is_ids else rows.numbers)[:, task.slots(ids=column.is_ids)[name]]


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_a_shuffled_column_has_the_same_values_in_another_order(both, task, part):
    rows = getattr(both, part).all()
    for column in task.columns:
        own = values(both, rows, column.name)
        other = values(both, rows, f"{column.name}'")
        assert torch.equal(own.sort(0).values, other.sort(0).values)
        if column.name == "age":
            assert not torch.equal(own, other)
    assert torch.equal(rows.ids[:, : len(rows.ids[0]) // 2], getattr(task, part).all().ids)


def test_columns_with_the_same_order_stay_together(both):
    rows = both.train.all()
    order = values(both, rows, "age'").flatten().long()  # the age is the number of the row
    for name in ("city", "vector", "tags"):
        assert torch.equal(values(both, rows, name)[order], values(both, rows, f"{name}'"))


def test_another_seed_is_another_order(task):
    one, other = (
        replace(task, columns=(shuffled(task.columns[task.fields.index("age")], seed),))
        for seed in (1, 2)
    )
    assert not torch.equal(one.train.all().numbers, other.train.all().numbers)
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize("memory", [True, False])
def test_batches_have_the_shuffled_values_of_each_row(both, memory):
    held = both.train.all()
    place = both.slots(ids=False)["age"]
    for batch in both.train.batches(64, shuffle=True, memory=memory):
        at = batch.numbers[:, place].flatten().long()
        assert torch.equal(batch.numbers, held.numbers[at])
        assert torch.equal(batch.ids, held.ids[at])


def test_a_worker_reads_the_same_order(both):
    again = pickle.loads(pickle.dumps(both.train))
    assert torch.equal(again.all().numbers, both.train.all().numbers)
