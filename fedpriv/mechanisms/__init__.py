"""DP mechanisms: bounds on contributions, preconditioners, independent and correlated noise."""

from fedpriv.mechanisms.bounds import (
    AdaptiveClip,
    Bound,
    Capped,
    Clip,
    Normalise,
    Rounded,
    Unbounded,
)
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.mechanisms.side_information import SideInformation

__all__ = [
    "AdaptiveClip",
    "Bound",
    "Capped",
    "Clip",
    "Mixture",
    "Normalise",
    "Rounded",
    "SideInformation",
    "Unbounded",
]
