"""Callbacks: hooks that report on training to a terminal, a file, TensorBoard or MLflow.

None of them changes the training. They come after the hooks that add to a record (a method's
gates), so that they see all of it. A new callback is a subclass of `Watcher` in a file beside
these, and a line here.
"""

from .display import Display, LiveGates, Progress
from .history import HistoryFile
from .trackers import MLflow, TensorBoard
from .watcher import Record, Watcher

__all__ = [
    "Display",
    "HistoryFile",
    "LiveGates",
    "MLflow",
    "Progress",
    "Record",
    "TensorBoard",
    "Watcher",
]
