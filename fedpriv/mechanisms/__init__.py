"""DP mechanisms: bounds on contributions, preconditioners, independent and correlated noise.

All kinds of bound and noise are imported here, so that a file that names one finds it.
"""

from fedpriv.mechanisms.bounds import (
    AdaptiveClip,
    Bound,
    Capped,
    Clip,
    Normalise,
    Rounded,
    Unbounded,
)
from fedpriv.mechanisms.correlated.binary_tree import BinaryTree
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.toeplitz import Banded, Buffered
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.perturbation import OutputGaussian, Sphere
from fedpriv.mechanisms.selection import NoisyMin, PrivateChoice
from fedpriv.mechanisms.side_information import SideInformation

__all__ = [
    "AdaptiveClip",
    "Banded",
    "BinaryTree",
    "Bound",
    "Buffered",
    "Capped",
    "Clip",
    "Correlated",
    "Gaussian",
    "NoisyMin",
    "Normalise",
    "OutputGaussian",
    "PrivateChoice",
    "Rounded",
    "SideInformation",
    "Sphere",
    "Unbounded",
    "Unprotected",
]
