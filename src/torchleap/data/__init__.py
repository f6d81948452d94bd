"""Data: generators whose truth is known."""

from .truth import KnownTruth

__all__ = ["KnownTruth"]
