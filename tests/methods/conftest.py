"""Fixtures of the tests of methods: tasks, a search, and a trained model."""

import pytest

from tests.data.frames import small_truth
from tests.methods.tasks import TRAINING, mixed_kinds
from torchleap import models
from torchleap.methods import Search


@pytest.fixture(scope="package")
def task():
    """A small task with known ground truth."""
    return small_truth()


@pytest.fixture(scope="package")
def mixed():
    """A task with every kind of column."""
    return mixed_kinds()


@pytest.fixture
def search(task):
    return Search(task, models.benchmark("wide_deep"), TRAINING)


@pytest.fixture(scope="module")
def trained(task):
    """A search and its trained model."""
    search = Search(task, models.benchmark("wide_deep"), TRAINING)
    model = search.model()
    search.fit(model)
    return search, model.eval()
