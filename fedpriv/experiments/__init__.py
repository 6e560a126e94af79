"""Experiments: configurations of a run as frozen dataclasses, and components made of them."""

from fedpriv.checkpoints.aggregates import (
    Aggregate,
    Average,
    Last,
    MajorityVote,
    MeanOutputs,
    ParamsAggregate,
    Uniform,
)
from fedpriv.experiments.agd import CentralDescent, FederatedDescent
from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.bolt_on import CentralBoltOn, FederatedBoltOn
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.noise import (
    BandedNoise,
    BufferedNoise,
    GaussianNoise,
    NoNoise,
    TreeNoise,
)
from fedpriv.experiments.sampling import (
    CyclicSampling,
    FixedSampling,
    PoissonSampling,
    SeparatedSampling,
)
from fedpriv.training.local.schedule import LocalSgd

__all__ = [
    "Aggregate",
    "Average",
    "BandedNoise",
    "BufferedNoise",
    "CentralBoltOn",
    "CentralDescent",
    "CentralExperiment",
    "CyclicSampling",
    "Experiment",
    "FederatedBoltOn",
    "FederatedDescent",
    "FederatedExperiment",
    "FixedSampling",
    "GaussianNoise",
    "Last",
    "LocalSgd",
    "MajorityVote",
    "MeanOutputs",
    "NoNoise",
    "ParamsAggregate",
    "PoissonSampling",
    "SeparatedSampling",
    "TreeNoise",
    "Uniform",
]
