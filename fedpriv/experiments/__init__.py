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
from fedpriv.experiments.averaging import (
    CentralExperiment,
    ExampleSampling,
    FederatedExperiment,
)
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
    CyclicBatches,
    CyclicCohorts,
    FixedCohorts,
    PoissonCohorts,
    SeparatedBatches,
    SeparatedCohorts,
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
    "CyclicBatches",
    "CyclicCohorts",
    "ExampleSampling",
    "Experiment",
    "FederatedBoltOn",
    "FederatedDescent",
    "FederatedExperiment",
    "FixedCohorts",
    "GaussianNoise",
    "Last",
    "LocalSgd",
    "MajorityVote",
    "MeanOutputs",
    "NoNoise",
    "ParamsAggregate",
    "PoissonCohorts",
    "SeparatedBatches",
    "SeparatedCohorts",
    "TreeNoise",
    "Uniform",
]
