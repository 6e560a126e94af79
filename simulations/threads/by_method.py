"""Adaptive descent and bolt-on by user, beside averaging at equal ε, threads held out.

    fedpriv data import Posts.xml.xz --max-words 200 --max-tags 20 --out corpus
    python -m simulations.threads.by_method --corpus corpus --folds 1

The task is a reduced one: bolt-on's pure ε perturbs by 2d/(mε) of the furthest that a training can
go, which is pure noise where the model is large. Adaptive descent asks everybody in every
iteration and draws no cohorts; nor does bolt-on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedpriv.experiments.options import Option
from simulations.threads.compared import compare
from simulations.threads.methods import METHODS, Method
from simulations.threads.study import PUBLIC, Study, model_name

_EPSILONS = (0.5, 2.0, 8.0)


def _at_each(**options: Option) -> dict[float | None, Mapping[str, Option]]:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return {epsilon: {"target-epsilon": epsilon, **named} for epsilon in _EPSILONS}


def _own(label: str, experiment: str, **options: Option) -> Method:
    return Method(label=label, experiment=experiment, options=_at_each(**options), cohort=None)


_OTHERWISE = (
    "DP-AGD draws no cohorts, and its ε is its ρ's by RDP; nor does bolt-on, whose pure ε is by "
    "composition and has δ = 0."
)
_ALL = 6716  # users of `onstartups-all`: an update is of everybody
_PASSES = {"users_per_update": _ALL, "passes": 20, "step_rate": 2.0}

BY_METHOD: Mapping[str, Method] = {
    "AdaDPS": replace(METHODS["public start"], label="AdaDPS, from the public start"),
    "DP-FedAvg": Method(
        label="DP-FedAvg, from the public start",
        experiment="dp-fedavg-tags",
        options={
            e: {**o, "start": "public", "start-factor": 0.5}
            for e, o in _at_each(rounds=50, l2_clip_norm=20.0, local_learning_rate=30.0).items()
        },
    ),
    "agd": _own("DP-AGD, from the public start", "agd-tags"),
    "agd zero": _own("DP-AGD, from zero", "agd-tags", start="fresh", largest_step=6.0),
    "bolt-on": _own(
        "bolt-on (ε, δ), from the public start",
        "bolt-on-tags",
        output_noise="gaussian",
        start="public",
        **_PASSES,
    ),
    "bolt-on pure": _own(
        "bolt-on, pure ε, from the public start", "bolt-on-tags", start="public", **_PASSES
    ),
    "bolt-on zero": _own(
        "bolt-on (ε, δ), from zero",
        "bolt-on-tags",
        output_noise="gaussian",
        start="fresh",
        **_PASSES,
    ),
}


def pairs(study: Study) -> list[tuple[str, str]]:
    """Return which models are compared: each of the two methods with three others."""
    found = []
    for name, _, epsilon in study.trained:
        if name.startswith(("agd", "bolt-on")):
            averaged = model_name("AdaDPS", epsilon)
            others = ["majority", PUBLIC]
            others += [averaged] if any(averaged == n for n, *_ in study.trained) else []
            found += [(name, other) for other in others]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and print the page."""
    compare(
        arguments,
        described=__doc__,
        program="simulations.threads.by_method",
        methods={"as listed": BY_METHOD},
        pairs=pairs,
        otherwise=_OTHERWISE,
    )


if __name__ == "__main__":
    main()
