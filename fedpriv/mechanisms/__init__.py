"""DP mechanisms: bounds on contributions, preconditioners, independent and correlated noise."""

from fedpriv.mechanisms.bounds import (
    Bound,
    Capped,
    Clip,
    Mixture,
    Normalise,
    Preconditioned,
    Rounded,
    RoundedSum,
    Unbounded,
)
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
