import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchleap.pacing import Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def lost_at_each_step(pace: Pace, takes: int, steps: int = 200) -> tuple[list[int], int, int]:
    """Steps that a kill during each step would lose, how many checkpoints were begun, and for how many training waited."""
    whole, begun, done_at, losses, count, waits = 0, 0, None, [], 0, 0
    for step in range(1, steps + 1):
        losses.append(step - 1 - whole)
        written = done_at is not None and step >= done_at
        if pace.is_due(step):
            whole, begun, done_at, count = begun, step, step + takes, count + 1
            pace.finish(step)
            pace.begin(step)
        elif done_at is not None and (written or pace.must_wait(step)):
            waits += not written
            whole, done_at = begun, None
            pace.finish(step)
    return losses, count, waits


@given(interval=st.integers(1, 40), takes=st.integers(0, 60))
def test_a_kill_never_loses_more_than_the_interval(interval: int, takes: int) -> None:
    losses, _, _ = lost_at_each_step(Pace(interval, None, background=True), takes)
    assert max(losses) <= interval


@pytest.mark.parametrize("takes", [0, 1, 3, 8])
def test_a_short_writing_neither_keeps_training_waiting_nor_happens_much_more_often(takes: int) -> None:
    losses, count, waits = lost_at_each_step(Pace(40, None, background=True), takes, 4000)
    assert max(losses) <= 40
    assert waits == 0
    assert count <= 4000 / (40 - 2 * max(1, takes) - 1) + 2  # that it is written is seen a step later


def test_in_the_foreground_one_interval_lies_between_two() -> None:
    pace = Pace(7, None, step=3)
    due = []
    for step in range(4, 40):
        if pace.is_due(step):
            pace.begin(step)
            due.append(step)
        assert not pace.must_wait(step)
    assert due == [10, 17, 24, 31, 38]


def test_minutes_count_as_steps_do(clock: Callable[[float], None]) -> None:
    pace = Pace(None, 1.0, background=True)
    clock(29)
    assert not pace.is_due(5)
    clock(1)
    assert pace.is_due(6)  # half the interval, as nobody knows how long it takes
    pace.begin(6)
    clock(5)
    pace.finish(7)
    clock(44)
    assert not pace.is_due(8)
    clock(1)
    assert pace.is_due(9)  # 50 seconds after the one before: 5 to write, as much again to be sure
    pace.begin(9)
    clock(9)
    assert not pace.must_wait(10)
    clock(1)
    assert pace.must_wait(11)


def test_without_an_interval_nothing_is_due(clock: Callable[[float], None]) -> None:
    pace = Pace(None, None, background=True)
    clock(1e6)
    assert not pace.is_due(10**6)
    assert not pace.must_wait(10**6)
