"""Every model of every zoo that is installed; `make test-zoos` runs this, `make test` does not."""

import os

import pytest

from tests.zoos.registry import ZOOS
from tests.zoos.run import Loader, run

pytestmark = pytest.mark.skipif(
    "TORCHLEAP_ZOO" not in os.environ, reason="these tests are run by make test-zoos"
)
CHOSEN = [zoo for zoo in ZOOS if os.environ.get("TORCHLEAP_ZOO") == zoo.module]
ROWS = 8_000


@pytest.fixture(scope="module")
def loader():
    started = Loader()
    yield started
    started.close()


@pytest.mark.parametrize(
    "combination", [one for zoo in CHOSEN for one in zoo.combinations()], ids=lambda one: one.name
)
def test_a_model_trains_in_its_own_loop_and_is_pruned_exactly(combination, loader):
    record = run(combination, loader, ROWS)
    assert set(record.errors) == set(combination.fails), record.errors
    assert record.exact or record.difference is None
    assert not record.hangs
