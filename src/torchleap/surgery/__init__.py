"""Cut the dropped fields out of a model: plan, check, apply."""

from .plan import Cut, Fill, Plan, Unread, prepare

__all__ = ["Cut", "Fill", "Plan", "Unread", "prepare"]
