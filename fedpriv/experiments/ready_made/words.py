"""Next-word prediction by user: the recurrent network of Stack Overflow, privately.

The task of Reddi et al., "Adaptive Federated Optimization" (2021), and of Shejwalkar et al.,
"Recycling Scraps" (2025), on a prepared Stack Exchange corpus. `model` reduced is for two cores,
`-s model=full` for a GPU. Settings were chosen by hand on few runs, of which no ε is counted.
"""

from __future__ import annotations

from dataclasses import replace

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.noise import NoNoise
from fedpriv.experiments.preconditioning import InSteps, OwnMultipliers
from fedpriv.experiments.start import FromPublic
from fedpriv.experiments.tasks import NextWordsTask
from fedpriv.mechanisms import Clip, Unbounded
from fedpriv.training.local.schedule import LocalSgd

_LOCAL = LocalSgd(learning_rate=1.0, batch_size=16, max_examples_per_user=256)


def fedavg_words() -> FederatedExperiment:
    """FedAvg without privacy."""
    return FederatedExperiment(
        name="fedavg-words",
        description="Federated averaging on next-word prediction, updates as they are.",
        task=NextWordsTask(),
        bound=Unbounded(),
        noise=NoNoise(),
        local=_LOCAL,
    )


def dp_fedavg_words() -> FederatedExperiment:
    """DP-FedAvg from the public start: clipped updates, Gaussian noise."""
    return FederatedExperiment(
        name="dp-fedavg-words",
        description="DP-FedAvg on next-word prediction: clipped updates, their sum noised.",
        task=NextWordsTask(),
        start=FromPublic(),
        local=_LOCAL,
        bound=Clip(l2_clip_norm=1.0),
        target_epsilon=8.0,
    )


def adadps_words() -> FederatedExperiment:
    """AdaDPS: local steps preconditioned by what public text says of words."""
    return replace(
        dp_fedavg_words(),
        name="adadps-words",
        description="AdaDPS on next-word prediction: local steps preconditioned by public ranks.",
        precondition=InSteps(side_information=OwnMultipliers()),
    )


EXPERIMENTS = (dp_fedavg_words, adadps_words, fedavg_words)
