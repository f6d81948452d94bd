"""Pace: a kill never loses more than the interval, whatever a writing takes."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchleap.training.pace import STEPS, Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def lost_at_each_step(pace: Pace, takes: int, steps: int = 200) -> tuple[list[int], int, int]:
    """Return the steps that a kill at each step would lose, and the writings and waits."""
    losses = []
    complete = begun = count = waits = 0
    for step in range(1, steps + 1):
        losses.append(step - complete)
        due = pace.is_due(step) or (pace.writing and step >= begun + takes)
        while due:
            if pace.writing:
                waits += step < begun + takes
                complete = begun
                pace.finish(step)
            else:
                begun = step
                count += 1
                pace.begin(step)
            due = pace.is_due(step, by=[STEPS])
    return losses, count, waits


@given(interval=st.integers(1, 40), takes=st.integers(0, 60))
def test_a_kill_never_loses_more_than_the_interval(interval: int, takes: int) -> None:
    losses, _, _ = lost_at_each_step(Pace(interval, None, background=True), takes)
    assert max(losses) <= interval


@pytest.mark.parametrize("takes", [0, 1, 3, 8])
def test_a_short_writing_neither_keeps_training_waiting_nor_happens_much_more_often(
    takes: int,
) -> None:
    losses, count, waits = lost_at_each_step(Pace(40, None, background=True), takes, 4000)
    assert max(losses) <= 40
    assert waits == 0
    # that it is written is noticed a step later
    assert count <= 4000 / (40 - 2 * max(1, takes) - 1) + 2


def test_in_the_foreground_one_interval_lies_between_two() -> None:
    pace = Pace(7, None, step=3)
    due = []
    for step in range(4, 40):
        if pace.is_due(step):
            pace.begin(step)
            due.append(step)
        assert not pace.writing
    assert due == [10, 17, 24, 31, 38]


def test_minutes_count_as_steps_do(clock: Callable[[float], None]) -> None:
    pace = Pace(None, 1.0, background=True)
    clock(29)
    assert not pace.is_due(5)
    clock(1)
    assert pace.is_due(6)  # half the interval: the duration is not known yet
    pace.begin(6)
    clock(5)
    pace.finish(7)
    clock(44)
    assert not pace.is_due(8)
    clock(1)
    assert pace.is_due(9)  # 50 seconds after the one before: 5 to write, as much again to be sure
    pace.begin(9)
    clock(9)
    assert not pace.is_due(10)
    clock(1)
    assert pace.is_due(11)  # it has to be waited for


def test_seconds_of_waiting_cannot_be_lost(clock: Callable[[float], None]) -> None:
    """However long a writing takes, training continues for half an interval between two."""
    pace = Pace(None, 1.0, background=True)
    trained = since = 0
    intervals = []
    while trained < 600:
        clock(1)
        trained += 1
        since += 1
        if pace.is_due(trained):
            if pace.writing:
                clock(300)
                pace.finish(trained, waited=300)
            else:
                pace.begin(trained)
                intervals.append(since)
                since = 0
    assert min(intervals) >= 30


def test_without_an_interval_nothing_is_due(clock: Callable[[float], None]) -> None:
    pace = Pace(None, None, background=True)
    clock(1e6)
    assert not pace.is_due(10**6)
