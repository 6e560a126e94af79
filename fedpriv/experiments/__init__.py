"""Experiments: configurations of a run as frozen dataclasses, and components made of them."""

from fedpriv.experiments.experiment import (
    CentralBoltOn,
    CentralDescent,
    CentralExperiment,
    Experiment,
    FederatedBoltOn,
    FederatedDescent,
    FederatedExperiment,
)
from fedpriv.experiments.mechanism import (
    BandedNoise,
    BufferedNoise,
    Clipped,
    CyclicBatches,
    CyclicCohorts,
    GaussianNoise,
    NoBound,
    NoNoise,
    Normalised,
    SeparatedBatches,
    SeparatedCohorts,
    TreeNoise,
)
from fedpriv.experiments.options import Part, option, place
from fedpriv.experiments.users import AdaptableClip, FixedCohorts, LocalSgd, PoissonCohorts

__all__ = [
    "AdaptableClip",
    "BandedNoise",
    "BufferedNoise",
    "CentralBoltOn",
    "CentralDescent",
    "CentralExperiment",
    "Clipped",
    "CyclicBatches",
    "CyclicCohorts",
    "Experiment",
    "FederatedBoltOn",
    "FederatedDescent",
    "FederatedExperiment",
    "FixedCohorts",
    "GaussianNoise",
    "LocalSgd",
    "NoBound",
    "NoNoise",
    "Normalised",
    "Part",
    "PoissonCohorts",
    "SeparatedBatches",
    "SeparatedCohorts",
    "TreeNoise",
    "option",
    "place",
]
