"""Models of the light zoos: attach, their loop, select, prune, fine-tune, save and load.

`make test-zoos` runs all models of all zoos; here are two or three of each light zoo.
"""

import pytest

from tests.zoos.registry import ZOOS
from tests.zoos.run import Loader, run

ROWS = 4_000
LIGHT = [
    ("torch-rechub", "DeepFM-embedding"),
    ("torch-rechub", "AutoInt"),
    ("torch-rechub", "MMOE"),
    ("torchfm", "WD"),
    ("torchfm", "PNN"),
    ("rtdl/tabm", "rtdl.FTTransformer"),
    ("rtdl/tabm", "PLE+ResNet"),
]
ZOOS_HERE = [zoo for zoo in ZOOS if any(zoo.name == name for name, _ in LIGHT)]
MODELS = {(zoo.name, one.name): (zoo, one) for zoo in ZOOS_HERE for one in zoo.combinations()}


@pytest.fixture(scope="module")
def loader():
    started = Loader()
    yield started
    started.close()


@pytest.mark.parametrize("key", LIGHT, ids=" ".join)
def test_a_model_of_a_light_zoo_goes_all_the_way(key, loader):
    zoo, combination = MODELS[key]
    if not zoo.installed:
        pytest.skip(f"{zoo.name} is not installed")
    record = run(combination, loader, ROWS)
    assert record.errors == {}
    assert record.native
    assert record.exact
    assert record.tuned
    assert record.loads
