"""From scores to a selection: the order of the fields, the rules, and the fields that are kept."""

from .decoys import DecoyScores
from .path import Path, PathPoint, Substitute, Worth
from .rank import Group, rank, removal_order
from .rule import RULES, Limits, Rule
from .selection import FORMAT, Selection, select

__all__ = [
    "FORMAT",
    "RULES",
    "DecoyScores",
    "Group",
    "Limits",
    "Path",
    "PathPoint",
    "Rule",
    "Selection",
    "Substitute",
    "Worth",
    "rank",
    "removal_order",
    "select",
]
