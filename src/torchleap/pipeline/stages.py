"""Stages: the parts of a long run, announced when they begin and measured when they end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnStage = Callable[[str], None]


def unannounced(stage: str) -> None:
    """Ignore the beginning of a stage."""


class Stages:
    """Announces each stage, and measures its seconds.

    Args:
        on_stage: Called with the name of each stage when it begins; nothing is announced by
            default.
    """

    def __init__(self, on_stage: OnStage = unannounced) -> None:
        self.on_stage = on_stage
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Announce a stage, and measure how long it takes."""
        self.on_stage(name)
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started
