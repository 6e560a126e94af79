"""Bounds on what one user contributes: clipping, normalising, preconditioning, rounding."""

from fedpriv.mechanisms.bound import Bound, Clip, Mixture, Normalise, Preconditioned, Unbounded
from fedpriv.mechanisms.capped import Capped
from fedpriv.mechanisms.rounding import Rounded, RoundedSum
from fedpriv.mechanisms.side_information import SideInformation

__all__ = [
    "Bound",
    "Capped",
    "Clip",
    "Mixture",
    "Normalise",
    "Preconditioned",
    "Rounded",
    "RoundedSum",
    "SideInformation",
    "Unbounded",
]
