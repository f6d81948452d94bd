"""Cut the dropped fields out of a model: plan, check, apply."""

from .cuts import Cut
from .plan import Fill, Plan, Unread, plan_of, prepare

__all__ = ["Cut", "Fill", "Plan", "Unread", "plan_of", "prepare"]
