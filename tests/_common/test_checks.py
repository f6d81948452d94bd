import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch

from torchleap._common.checks import (
    Range,
    check_arguments,
    check_settings,
    in_range,
    is_number,
    is_seed,
    is_whole,
    number,
    one_of,
    refuse_settings,
    setting,
    whole,
    with_settings,
)
from torchleap._common.errors import TorchleapError


@dataclass(frozen=True)
class Training:
    kind: ClassVar[str] = "not a setting"
    batch: int = setting(4096, at_least=1)
    lr: float = setting(1e-3, above=0)
    steps: int | None = setting(None, at_least=1)
    warmup: int = 0
    decay: float = 0.0
    start: float = setting(1.0)
    schedule: Literal["constant", "cosine"] = "constant"
    compile: bool = False
    name: str = ""
    hidden: tuple[int, ...] = setting((64,), at_least=1)
    betas: tuple[float, float] = setting((0.9, 0.99), at_least=0, below=1)
    costs: Mapping[str, float] = field(default_factory=dict)
    anything: Any = None

    def __post_init__(self):
        check_settings(self, {"warmup must not be 13": self.warmup != 13})


@pytest.mark.parametrize(
    ("value", "is_a_number", "is_a_whole_number"),
    [
        (1, True, True),
        (1.5, True, False),
        (np.int64(3), True, True),
        (np.float32(3), True, False),
        (True, False, False),
        (np.bool_(True), False, False),
        (np.array(3), False, False),
        (torch.tensor(3), False, False),
        ("1", False, False),
    ],
)
def test_numbers_are_distinguished_from_other_values(value, is_a_number, is_a_whole_number):
    assert (is_number(value), is_whole(value)) == (is_a_number, is_a_whole_number)
    assert (number(value) == "") == is_a_number
    assert (whole(value) == "") == is_a_whole_number


@pytest.mark.parametrize(
    ("value", "fits"),
    [(0, True), ((1 << 32) - 1, True), (1 << 32, False), (-1, False), (1.0, False)],
)
def test_a_seed_has_32_bits(value, fits):
    assert is_seed(value) == fits
    assert is_seed(np.int64(7))


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (number(-1, above=0), "must be a number above 0, but is -1"),
        (number(0, above=0), "must be a number above 0, but is 0"),
        (number(-1, at_least=0), "must be a number of at least 0, but is -1"),
        (number(1, at_least=0, below=1), "must be a number of at least 0 and below 1, but is 1"),
        (number(2.0, above=0, at_most=1), "must be a number above 0 and at most 1, but is 2.0"),
        (number(0.6, at_least=0, at_most=0.5), "must be a number from 0 to 0.5, but is 0.6"),
        (number("x", above=0), "must be a number above 0, but is 'x'"),
        (number(math.nan), "must be a finite number, but is nan"),
        (number(math.inf, above=0), "must be a number above 0, but is inf"),
        (whole(0, at_least=1), "must be a whole number of at least 1, but is 0"),
        (whole(1.0), "must be a whole number, but is 1.0"),
        (whole(0, at_least=1, of="rows"), "must be a whole number of rows, at least 1, but is 0"),
        (whole(0.5, of="rows"), "must be a whole number of rows, but is 0.5"),
        (whole(-1, at_least=0, at_most=9_999), "must be a whole number from 0 to 9,999, but is -1"),
        (in_range(-1, above=0), "must be above 0, but is -1"),
        (in_range(math.nan, at_least=0), "must be at least 0, but is nan"),
        (in_range("x", above=0), "must be above 0, but is 'x'"),
        (in_range(torch.ones(2), above=0), "must be above 0, but is tensor([1., 1.])"),
        (in_range(np.ones(2), above=0), "must be above 0, but is array([1., 1.])"),
        (one_of("c", ("a", "b")), "must be one of a, b, but is 'c'"),
    ],
)
def test_a_value_that_does_not_fit_is_described(problem, sentence):
    assert problem == sentence


@pytest.mark.parametrize(
    "problem",
    [
        number(1e-9, above=0),
        number(np.float32(0.5), above=0, below=1),
        number(10**400, above=0),
        number(-3.5),
        whole(np.int32(1), at_least=1),
        whole(-7),
        in_range(math.inf, above=0),
        in_range(torch.tensor(0.5), above=0, below=1),
        in_range(np.array(0.5), above=0),
        one_of("a", ("a", "b")),
    ],
)
def test_a_value_that_fits_has_no_problem(problem):
    assert problem == ""


def test_a_range_without_limits_holds_every_number():
    assert str(Range()) == ""
    assert math.nan in Range()
    assert math.nan not in Range(at_most=1)


def test_all_problems_of_arguments_are_reported_at_once():
    check_arguments(lr=number(1, above=0))
    with pytest.raises(TorchleapError) as found:
        check_arguments(
            {"betas must be sorted": False, "eps must be there": True},
            lr=number(0, above=0),
            steps=whole(3),
            every=whole(None, at_least=1),
        )
    assert str(found.value) == (
        "These settings cannot be used: lr must be a number above 0, but is 0; "
        "every must be a whole number of at least 1, but is None; betas must be sorted."
    )


def test_settings_that_fit_are_taken():
    Training()
    Training(
        batch=np.int64(8), lr=np.float32(0.1), steps=3, start=-1.0, hidden=(), anything=object()
    )
    assert Training.batch == 4096


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch": 0}, "batch must be a whole number of at least 1, but is 0"),
        ({"batch": True}, "batch must be a whole number of at least 1, but is True"),
        ({"lr": 0.0}, "lr must be a number above 0, but is 0.0"),
        ({"lr": np.array(0.1)}, "lr must be a number above 0, but is array(0.1)"),
        ({"steps": 0}, "steps must be a whole number of at least 1 or None, but is 0"),
        ({"warmup": -1}, "warmup must be a whole number of at least 0, but is -1"),
        ({"decay": -1}, "decay must be a number of at least 0, but is -1"),
        ({"start": math.nan}, "start must be a finite number, but is nan"),
        ({"schedule": "steep"}, "schedule must be one of constant, cosine, but is 'steep'"),
        ({"compile": 1}, "compile must be True or False, but is 1"),
        ({"name": 3}, "name must be a text, but is 3"),
        (
            {"hidden": (8, 0)},
            "hidden must be a tuple (each a whole number of at least 1), but is (8, 0)",
        ),
        ({"hidden": [8]}, "hidden must be a tuple (each a whole number of at least 1), but is [8]"),
        (
            {"betas": (0.9,)},
            "betas must be a tuple of 2 (each a number of at least 0 and below 1), but is (0.9,)",
        ),
        ({"costs": []}, "costs must be a Mapping, but is []"),
        ({"warmup": 13}, "warmup must not be 13"),
    ],
)
def test_a_setting_of_another_type_or_range_is_refused(changes, sentence):
    with pytest.raises(TorchleapError) as found:
        Training(**changes)
    assert str(found.value) == f"These settings cannot be used: {sentence}."


def test_all_bad_settings_are_reported_at_once():
    with pytest.raises(
        TorchleapError, match="used: batch must .*; lr must .*; schedule must .*, but is None.$"
    ):
        Training(batch=0, lr="fast", schedule=None)


def test_settings_are_changed_by_name():
    assert with_settings(Training(), {"batch": 8}) == Training(batch=8)
    with pytest.raises(
        TorchleapError, match="Training has no setting 'bach'. Did you mean 'batch'?"
    ):
        with_settings(Training(), {"bach": 8})
    with pytest.raises(TorchleapError, match="batch must be"):
        with_settings(Training(), {"batch": 0})


def test_only_sentences_that_do_not_hold_are_refused():
    refuse_settings({"fine": True})
    with pytest.raises(TorchleapError, match="cannot be used: one; two"):
        refuse_settings({"one": False, "fine": True, "two": False})
