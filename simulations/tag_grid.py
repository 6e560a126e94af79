"""What the tables of tag prediction compare: settings, methods, and the grid they were tuned on.

The grid is committed so that anybody can count it: each form of AdaDPS gets four configurations
where privacy is real (after a coarse search by hand, of about a dozen runs in all) and two in the
paper's setting, each baseline at least as many, and one figure (accuracy on held-out examples of
rostered users) decides. Momentum variants take over the choice of their plain form, and ε = 2 that
of ε = 8 with the clip norm halved, as the noise doubles. None of this is covered by any ε.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpriv.experiments.options import Option

TUNING_SEED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table."""

    setting: str
    inputs: str
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Whose data, how many of them a round, how much noise.

    Attributes:
        title: Heading of its table.
        options: Applied to every method.
        tuned_as: Take the best options of another setting instead of tuning anew.
        clip_scale: Times this on the clip norm taken over (less noise asks for a longer one).
    """

    title: str
    options: Mapping[str, Option]
    tuned_as: str | None = None
    clip_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row of a table.

    Attributes:
        title: Its name there.
        options: What makes it this method.
        tuned_as: Share the grid and the choice of another method.
    """

    title: str
    options: Mapping[str, Option]
    tuned_as: str | None = None


_PRIVATE: Mapping[str, Option] = {"roster": "onstartups-all", "cohort": 350, "rounds": 100}
SETTINGS: Mapping[str, Setting] = {
    "private-8": Setting(
        title="6,716 users, expected cohort 350, 100 rounds, ε = 8",
        options={**_PRIVATE, "target-epsilon": 8.0},
    ),
    "private-2": Setting(
        title="6,716 users, expected cohort 350, 100 rounds, ε = 2",
        options={**_PRIVATE, "target-epsilon": 2.0},
        tuned_as="private-8",
        clip_scale=0.5,
    ),
    "paper": Setting(
        title="The paper's setting: 20 of 400 users, σ = 0.3, δ = 1/400: no meaningful protection",
        options={
            "roster": "onstartups-400",
            "cohort": 20,
            "rounds": 100,
            "noise-multiplier": 0.3,
            "delta": 1 / 400,
            "max-examples-per-user": 10_000,
        },
    ),
}

_MOMENTUM: Mapping[str, Option] = {"server-optimizer": "ema-momentum"}
_CEILING: Mapping[str, Option] = {"bound": "none", "noise": "none"}
METHODS: Mapping[str, Method] = {
    "adadps-local": Method(title="AdaDPS, local", options={"precondition": "local"}),
    "adadps-local-momentum": Method(
        title="AdaDPS, local, server momentum",
        options={"precondition": "local", **_MOMENTUM},
        tuned_as="adadps-local",
    ),
    "adadps-update": Method(title="AdaDPS, update", options={"precondition": "update"}),
    "adadps-update-momentum": Method(
        title="AdaDPS, update, server momentum",
        options={"precondition": "update", **_MOMENTUM},
        tuned_as="adadps-update",
    ),
    "adadps-both": Method(title="AdaDPS, both", options={"precondition": "both"}),
    "adadps-both-momentum": Method(
        title="AdaDPS, both, server momentum",
        options={"precondition": "both", **_MOMENTUM},
        tuned_as="adadps-both",
    ),
    "dp-fedavg": Method(title="DP-FedAvg", options={}),
    "dp-fedadam": Method(title="DP-FedAdam", options={"server-optimizer": "adam"}),
    "dp-normfedavg": Method(title="DP-NormFedAvg", options={"bound": "normalise"}),
    "fedavg": Method(title="FedAvg, not private", options=_CEILING),
    "adas": Method(
        title="FedAvg with local preconditioning, not private",
        options={"precondition": "local", **_CEILING},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What is tried for one setting and one kind of input.

    A clip norm is worth trying where the noise it brings to a logit is of the order of one: about
    eight times lower in the paper's setting, whose noise on the mean is eight times higher, and
    lower for unit-norm inputs, which are about six times longer than TFF's.
    """

    gain: float
    adadps: tuple[tuple[float, ...], tuple[float, ...]]
    fedavg: tuple[tuple[float, ...], tuple[float, ...]]
    adam_norms: tuple[float, ...]
    adam_rates: tuple[float, ...]
    normalise: tuple[float, ...]


_RANGES: Mapping[tuple[str, str], Range] = {
    ("private-8", "tff"): Range(
        gain=200.0,
        adadps=((30.0, 100.0), (150.0, 220.0)),
        fedavg=((3.0, 10.0, 30.0, 100.0), (30.0, 100.0)),
        adam_norms=(10.0, 30.0),
        adam_rates=(0.05, 0.2, 0.6),
        normalise=(3.0, 10.0, 30.0, 60.0),
    ),
    ("private-8", "unit-norm"): Range(
        gain=20.0,
        adadps=((30.0,), (20.0, 40.0, 60.0, 80.0)),
        fedavg=((10.0, 30.0), (20.0, 40.0)),
        adam_norms=(20.0, 40.0),
        adam_rates=(0.05, 0.2, 0.6),
        normalise=(10.0, 20.0, 30.0, 40.0),
    ),
    ("paper", "tff"): Range(
        gain=50.0,
        adadps=((10.0,), (20.0, 40.0)),
        fedavg=((10.0, 30.0), (5.0, 20.0)),
        adam_norms=(8.0,),
        adam_rates=(0.01, 0.03),
        normalise=(0.3, 1.0, 3.0),
    ),
    ("paper", "unit-norm"): Range(
        gain=10.0,
        adadps=((10.0,), (8.0, 16.0)),
        fedavg=((10.0, 30.0), (4.0, 8.0)),
        adam_norms=(8.0,),
        adam_rates=(0.01, 0.03),
        normalise=(4.0, 8.0, 12.0),
    ),
}
# Without privacy there is no clip norm to tune: the rate alone. By inputs and preconditioning.
_CEILING_RATES: Mapping[tuple[str, bool], tuple[float, ...]] = {
    ("tff", False): (1.0, 3.0, 10.0, 30.0),
    ("tff", True): (10.0, 30.0, 100.0),
    ("unit-norm", False): (10.0, 30.0),
    ("unit-norm", True): (1.0, 3.0, 10.0),
}


def grid(cell: Cell) -> list[dict[str, Option]]:
    """Return the configurations that a cell's method is tuned over; none for a shared choice."""
    method = METHODS[cell.method]
    if method.tuned_as is not None or SETTINGS[cell.setting].tuned_as is not None:
        return []
    span, precondition = _RANGES[cell.setting, cell.inputs], method.options.get("precondition")
    if method.options.get("noise") == "none":
        rates = _CEILING_RATES[cell.inputs, precondition is not None]
        found: list[dict[str, Option]] = [{"local-learning-rate": rate} for rate in rates]
    elif cell.method == "dp-normfedavg":
        found = [{"local-learning-rate": 30.0, "l2-clip-norm": norm} for norm in span.normalise]
    elif cell.method == "dp-fedadam":
        # Noise dominates every second moment, so the useful step is about the noise on the mean.
        found = [
            {
                "local-learning-rate": 100.0 if cell.inputs == "tff" else 30.0,
                "l2-clip-norm": norm,
                "server-learning-rate": rate,
                "server-adaptivity": 1e-3,
            }
            for norm in span.adam_norms
            for rate in span.adam_rates
        ]
    else:
        rates, norms = span.fedavg if precondition is None else span.adadps
        found = [{"local-learning-rate": r, "l2-clip-norm": norm} for r in rates for norm in norms]
    if precondition is not None:
        # "both" multiplies twice, so each time it takes about the root.
        gain = (
            float(round(span.gain**0.5, 0 if span.gain > 100 else 1))
            if precondition == "both"
            else span.gain
        )
        for options in found:
            options["preconditioner-gain"] = gain
    return found
