"""The settings of the gates: one dataclass, its checks, and the signatures that show it."""

import inspect
import math
from dataclasses import fields
from typing import get_type_hints

import pytest

from torchleap import LeAP, TorchleapError, attach
from torchleap.gates.settings import GateSettings, SettingsByName

OUT_OF_RANGE = {
    "alpha": -1,
    "temperature": 0,
    "momentum": 1,
    "divergence": "l1",
    "clip": (2, 1),
    "init": math.nan,
    "warmup": -1,
    "floor": 1,
    "shuffle": "random",
    "sync_every": -1,
}
OF_ANOTHER_TYPE = {
    "alpha": "1e-3",
    "clip": (1,),
    "warmup": 2.5,
    "seed": 1.5,
    "adaptive": 1,
    "normalize": None,
    "per_dimension": "yes",
}


@pytest.mark.parametrize("values", [OUT_OF_RANGE, OF_ANOTHER_TYPE])
def test_all_bad_settings_are_refused_in_one_error(values):
    with pytest.raises(TorchleapError) as error:
        LeAP({"a": 1}, **values)
    for name in values:
        assert f"{name} must" in str(error.value)


def test_type_checkers_know_every_setting_with_its_type():
    assert get_type_hints(SettingsByName) == get_type_hints(GateSettings)


@pytest.mark.parametrize("function", [LeAP, attach])
def test_signatures_show_every_setting_with_its_default(function):
    shown = inspect.signature(function).parameters
    for one in fields(GateSettings):
        assert shown[one.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[one.name].default == one.default
    assert next(iter(shown)) == {LeAP: "fields", attach: "model"}[function]


@pytest.mark.parametrize("name", ["alhpa", "temprature"])
def test_a_misspelt_setting_is_refused_with_the_nearest_name(name):
    nearest = {"alhpa": "alpha", "temprature": "temperature"}[name]
    with pytest.raises(TypeError, match=f"no setting '{name}'. Did you mean '{nearest}'"):
        LeAP({"a": 1}, **{name: 1e-3})


def test_limits_of_the_price_may_be_a_list_as_in_json():
    assert LeAP({"a": 1}, clip=[1e-3, 10.0]).settings == GateSettings(clip=(1e-3, 10.0))
