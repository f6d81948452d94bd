"""What turns scores and models into a decision that a team can ship by."""

from .certificate import Certificate, Verdict
from .certify import certify
from .change import Change, change_of

__all__ = ["Certificate", "Change", "Verdict", "certify", "change_of"]
