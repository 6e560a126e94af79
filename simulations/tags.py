"""Tag prediction by user: federated AdaDPS and its baselines.

The task of Li et al., "Private Adaptive Optimization with Side Information" (2022), Figure 6, with
user-level accounting that holds for the run that is done. Inputs have unit l2 norm, which every
private method prefers to TFF's; `adadps-figure6` compares both. The settings were tuned on
the rostered users of Answers on Startups, and that tuning is not covered by any ε.
"""

from __future__ import annotations

from dataclasses import replace

from fedpriv.experiments.experiment import Experiment


def fedavg_tags() -> Experiment:
    """FedAvg without privacy, the plain ceiling."""
    return Experiment(
        name="fedavg-tags",
        description="Federated averaging on tag prediction, without privacy.",
        inputs="unit-norm",
        bound="none",
        noise="none",
        local_learning_rate=10.0,
    )


def adas_tags() -> Experiment:
    """AdaDPS without its privacy: local preconditioning, no bound, no noise."""
    return replace(
        fedavg_tags(),
        name="adas-tags",
        description="Federated averaging with local preconditioning, without privacy.",
        precondition="local",
        preconditioner_gain=20.0,
        local_learning_rate=10.0,
    )


def adadps_tags() -> Experiment:
    """AdaDPS Algorithm 3: local preconditioning, clipped updates, server learning rate 1."""
    return Experiment(
        name="adadps-tags",
        description="Federated AdaDPS: local preconditioning, user-level DP at ε = 8.",
        inputs="unit-norm",
        precondition="local",
        preconditioner_gain=20.0,
        local_learning_rate=30.0,
        l2_clip_norm=60.0,
        target_epsilon=8.0,
    )


def adadps_update_tags() -> Experiment:
    """AdaDPS with the whole update preconditioned instead of every local step."""
    return replace(
        adadps_tags(),
        name="adadps-update-tags",
        description="AdaDPS with the whole update preconditioned, user-level DP at ε = 8.",
        precondition="update",
    )


def dp_fedavg_tags() -> Experiment:
    """DP-FedAvg: clipped updates, Gaussian noise."""
    return Experiment(
        name="dp-fedavg-tags",
        description="DP-FedAvg: clipped updates, user-level DP at ε = 8.",
        inputs="unit-norm",
        local_learning_rate=30.0,
        l2_clip_norm=20.0,
        target_epsilon=8.0,
    )


def dp_fedadam_tags() -> Experiment:
    """DP-FedAdam: Adam on the noisy mean."""
    return replace(
        dp_fedavg_tags(),
        name="dp-fedadam-tags",
        description="DP-FedAdam: server Adam on the noisy mean, user-level DP at ε = 8.",
        server_optimizer="adam",
        server_learning_rate=0.2,
    )


def dp_normfedavg_tags() -> Experiment:
    """DP-NormFedAvg: every update scaled to the same length."""
    return replace(
        dp_fedavg_tags(),
        name="dp-normfedavg-tags",
        description="DP-NormFedAvg: updates of one length, user-level DP at ε = 8.",
        bound="normalise",
    )


def dp2_tags() -> Experiment:
    """DP²: a preconditioner made of past releases, no side information."""
    return replace(
        dp_fedavg_tags(),
        name="dp2-tags",
        description="DP²: preconditioned by past releases in turns, user-level DP at ε = 8.",
        guide="delayed",
        delay_plain=5,
        delay_preconditioned=5,
        regulariser=0.01,
    )


def past_releases_tags() -> Experiment:
    """Scale by past releases, privatise, scale back, and step by Adam."""
    return replace(
        dp_fedadam_tags(),
        name="past-releases-tags",
        description="Scaled by past releases, privatised, scaled back; user-level DP at ε = 8.",
        guide="past-releases",
    )


EXPERIMENTS = (
    adadps_tags,
    adadps_update_tags,
    dp_fedavg_tags,
    dp_fedadam_tags,
    dp_normfedavg_tags,
    dp2_tags,
    past_releases_tags,
    fedavg_tags,
    adas_tags,
)
