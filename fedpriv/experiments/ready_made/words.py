"""Next-word prediction by user: the recurrent network of Stack Overflow, privately.

The task of Reddi et al., "Adaptive Federated Optimization" (2021), and of Shejwalkar et al.,
"Recycling Scraps" (2025), on a prepared Stack Exchange corpus. `model` reduced is for two cores,
`-s model=full` for a GPU. Settings were chosen by hand on few runs, of which no ε is counted.
"""

from __future__ import annotations

from dataclasses import replace

from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.tasks import NextWordsTask


def fedavg_words() -> Experiment:
    """FedAvg without privacy."""
    return Experiment(
        name="fedavg-words",
        description="Federated averaging on next-word prediction, updates as they are.",
        task=NextWordsTask(),
        bound="none",
        noise="none",
        local_batch_size=16,
        local_learning_rate=1.0,
        max_examples_per_user=256,
        eval_every=10,
    )


def dp_fedavg_words() -> Experiment:
    """DP-FedAvg from the public start: clipped updates, Gaussian noise."""
    return Experiment(
        name="dp-fedavg-words",
        description="DP-FedAvg on next-word prediction: clipped updates, their sum noised.",
        task=NextWordsTask(),
        start="public",
        local_batch_size=16,
        local_learning_rate=1.0,
        l2_clip_norm=1.0,
        max_examples_per_user=256,
        target_epsilon=8.0,
        eval_every=10,
    )


def adadps_words() -> Experiment:
    """AdaDPS: local steps preconditioned by what public text says of words."""
    return replace(
        dp_fedavg_words(),
        name="adadps-words",
        description="AdaDPS on next-word prediction: local steps preconditioned by public ranks.",
        precondition="local",
        side_information="own",
    )


EXPERIMENTS = (dp_fedavg_words, adadps_words, fedavg_words)
