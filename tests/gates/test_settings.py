import math

import pytest

from torchleap import LeAP, TorchleapError


def test_all_bad_settings_are_told_at_once():
    bad = {
        "alpha": -1,
        "temperature": 0,
        "momentum": 1,
        "divergence": "l1",
        "clip": (2, 1),
        "init": math.nan,
        "warmup": -1,
        "floor": 1,
        "shuffle": "random",
    }
    for values in (
        bad,
        {
            "alpha": "1e-3",
            "clip": (1,),
            "warmup": 2.5,
            "seed": 1.5,
            "adaptive": 1,
            "normalize": None,
        },
    ):
        with pytest.raises(TorchleapError) as error:
            LeAP({"a": 1}, **values)
        for name in values:
            assert f"{name} must" in str(error.value)
