"""What turns scores and models into a decision that a team can ship by."""

from .certificate import Certificate, Verdict
from .certify import certify
from .change import Change, change_of
from .rehearsal import Rehearsal, rehearse

__all__ = [
    "Certificate",
    "Change",
    "Rehearsal",
    "Verdict",
    "certify",
    "change_of",
    "rehearse",
]
