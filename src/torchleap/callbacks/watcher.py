"""Watcher: the base class of callbacks."""

from collections.abc import Mapping

from ..training.fit import Hook

Record = Mapping[str, float]
PURPOSE = "This callback"  # the subject of the message about a missing package


class Watcher(Hook):
    """A hook that only reports; of several ranks, the first one does."""

    first_rank_only = True
