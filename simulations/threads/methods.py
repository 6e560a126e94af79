"""Rows that are trained by rounds, with settings chosen on validation threads.

They were chosen on Answers on Startups, with rostered users' validation threads of one fold and
never with test threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.options import Option

UNIT_NORM = "unit-norm"
PLAIN_WORDS: Mapping[str, Option] = {"inputs": UNIT_NORM}

_COHORT = 0.3  # of the roster: near the saturation point of the noise on the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A row that is trained by rounds.

    Attributes:
        label: In tables.
        experiment: Its name.
        options: By ε; under None those of a method without privacy.
        cohort: Of the roster; None for a method that draws no cohorts.
        returned: Whether what is measured is the model that a run selects on public threads, which
            rostered users then do not train on; else the last one, of training on all threads.
    """

    label: str
    experiment: str
    options: Mapping[float | None, Mapping[str, Option]]
    cohort: float | None = _COHORT
    returned: bool = False

    @property
    def is_private(self) -> bool:
        """Whether it has an ε."""
        return None not in self.options

    def at(self, epsilon: float | None, view: TagView, shared: Mapping[str, Option]) -> Experiment:
        """Return the experiment at an ε, on a view's roster and split.

        Args:
            epsilon: One of `options`.
            view: Whose roster gives the cohort's size.
            shared: Options of every method; the method's own come after them.

        Raises:
            ValueError: If no settings were chosen for this ε.
        """
        if epsilon not in self.options:
            chosen = ", ".join(f"{one:g}" for one in self.options if one is not None)
            raise ValueError(f"{self.label}: no settings for ε = {epsilon}, only for {chosen}")
        options = {
            "split": view.split.kind,
            "fold": view.split.fold,
            "public-users": view.split.public_users,
            "select": "public" if self.returned else "last",
            **self._cohort(len(view.roster)),
            **shared,
            **self.options[epsilon],
        }
        return load_experiment(self.experiment).with_options(options)

    def _cohort(self, number: int) -> dict[str, Option]:
        if self.cohort is None:
            return {}
        return {"cohort": max(1.0, round(self.cohort * number))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings chosen at one ε: the less noise there is, the more and shorter steps.

    Attributes:
        rounds: How many.
        norm: The clip norm.
        rate: Of local steps.
        factor: What is kept of the public model to start from.
    """

    rounds: int
    norm: float
    rate: float
    factor: float


_TUNED: Mapping[float, Settings] = {
    1.0: Settings(rounds=25, norm=40.0, rate=30.0, factor=0.5),
    2.0: Settings(rounds=50, norm=60.0, rate=30.0, factor=0.5),
    4.0: Settings(rounds=100, norm=40.0, rate=10.0, factor=0.5),
    8.0: Settings(rounds=200, norm=30.0, rate=10.0, factor=0.25),
}
#: The same for what the ablation changes so much that other settings are best.
_PLAIN: Mapping[float, Settings] = {
    2.0: Settings(rounds=50, norm=20.0, rate=30.0, factor=0.5),
    8.0: Settings(rounds=200, norm=20.0, rate=30.0, factor=0.25),
}
_DEFAULT_COHORT: Mapping[float, Settings] = {
    2.0: Settings(rounds=100, norm=30.0, rate=30.0, factor=0.5),
    8.0: Settings(rounds=100, norm=30.0, rate=30.0, factor=0.25),
}


def _private(
    tuned: Mapping[float, Settings], *, start: str = "public", **more: Option
) -> dict[float | None, Mapping[str, Option]]:
    """Return options by ε: what was chosen there, and more."""
    return {
        epsilon: {
            "target-epsilon": epsilon,
            "rounds": chosen.rounds,
            "l2-clip-norm": chosen.norm,
            "local-learning-rate": chosen.rate,
            "aggregate": "none",
            "start": start,
            **({"start-factor": chosen.factor} if start == "public" else {}),
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        for epsilon, chosen in tuned.items()
    }


METHODS: Mapping[str, Method] = {
    "public start": Method(
        label="AdaDPS, from the public start",
        experiment="adadps-tags",
        options=_private(_TUNED),
    ),
    "from zero": Method(
        label="AdaDPS, from zero",
        experiment="adadps-tags",
        options=_private(_TUNED, start="fresh"),
    ),
    "federated": Method(
        label="federated, not private",
        experiment="adas-tags",
        options={None: {"rounds": 100}},
        cohort=0.1,
    ),
}


_TARGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
#: Settings from the data's size, as `fedpriv run` chooses them: on words, and on encoders' rows.
BY_SIZE: Mapping[str, Method] = {
    name: Method(
        label=f"{name}, settings from the data's size",
        experiment=name,
        options={epsilon: {"target-epsilon": epsilon} for epsilon in _TARGETS},
        cohort=None,
    )
    for name in ("adadps-tags", "encoder-tags")
}


#: What the method above is with one thing of it changed; each with settings of its own.
ABLATION: Mapping[str, Method] = {
    "whole": METHODS["public start"],
    "from zero": METHODS["from zero"],
    "not adaptive": Method(
        label="no preconditioning",
        experiment="adadps-tags",
        options=_private(_PLAIN, precondition="none"),
    ),
    "default cohort": Method(
        label="default cohort and rounds (a twentieth of the roster, 100)",
        experiment="adadps-tags",
        options=_private(_DEFAULT_COHORT),
        cohort=0.05,
    ),
    "averaged": Method(
        label="exponential average of the released models",
        experiment="adadps-tags",
        options=_private(_TUNED, aggregate="ema"),
    ),
    "tf-idf": Method(
        label="words weighted by rarity (tf-idf)",
        experiment="adadps-tags",
        options=_private(_TUNED, inputs="tf-idf"),
    ),
}


#: Behind the name of a method whose unit is a person's words wherever they stand.
WIDER = ", owners all"


def _with(method: Method, label: str, **more: Option) -> Method:
    """Return the method under another label, with further options at every ε."""
    options = {epsilon: {**chosen, **more} for epsilon, chosen in method.options.items()}
    return replace(method, label=label, options=options)


#: The best private method and the one without privacy, each with either unit.
OWNED: Mapping[str, Method] = {
    name: method
    for plain in ("public start", "federated")
    for name, method in (
        (plain, METHODS[plain]),
        (f"{plain}{WIDER}", _with(METHODS[plain], METHODS[plain].label + WIDER, owners="all")),
    )
}


def _at(epsilons: tuple[float, ...], **options: Option) -> dict[float | None, Mapping[str, Option]]:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return {epsilon: {"target-epsilon": epsilon, **named} for epsilon in epsilons}


def _without_cohorts(label: str, experiment: str, **options: Option) -> Method:
    return Method(
        label=label, experiment=experiment, options=_at((0.5, 2.0, 8.0), **options), cohort=None
    )


#: Users of `onstartups-all`: an update of bolt-on is of everybody.
_PASSES = {"users_per_update": 6716, "passes": 20, "step_rate": 2.0}

BY_METHOD: Mapping[str, Method] = {
    "AdaDPS": replace(METHODS["public start"], label="AdaDPS, from the public start"),
    "DP-FedAvg": _with(
        Method(
            label="",
            experiment="dp-fedavg-tags",
            options=_at((0.5, 2.0, 8.0), rounds=50, l2_clip_norm=20.0, local_learning_rate=30.0),
        ),
        "DP-FedAvg, from the public start",
        **{"start": "public", "start-factor": 0.5},
    ),
    "agd": _without_cohorts("DP-AGD, from the public start", "agd-tags"),
    "agd zero": _without_cohorts("DP-AGD, from zero", "agd-tags", start="fresh", largest_step=6.0),
    "bolt-on": _without_cohorts(
        "bolt-on (ε, δ), from the public start",
        "bolt-on-tags",
        output_noise="gaussian",
        start="public",
        **_PASSES,
    ),
    "bolt-on pure": _without_cohorts(
        "bolt-on, pure ε, from the public start", "bolt-on-tags", start="public", **_PASSES
    ),
    "bolt-on zero": _without_cohorts(
        "bolt-on (ε, δ), from zero",
        "bolt-on-tags",
        output_noise="gaussian",
        start="fresh",
        **_PASSES,
    ),
}

_STREAMS = {"tree": "binary tree", "banded": "optimised bands", "blt": "BLT, three buffers"}


def _stream(noise: str, label: str, *, drawn: float | None = None, **more: Option) -> Method:
    """Return a method of correlated noise, in settings chosen on validation threads at ε 8."""
    options = _at(
        (2.0, 8.0),
        noise=noise,
        min_separation=4,
        l2_clip_norm=60.0,
        rounds=80,
        local_learning_rate=30.0,
        start_factor=0.5,
        **more,
    )
    return Method(label=label, experiment="adadps-ftrl-tags", options=options, cohort=drawn)


BY_STREAM: Mapping[str, Method] = {
    "Poisson": replace(METHODS["public start"], label="independent noise, Poisson cohorts"),
    "Poisson plain": replace(ABLATION["not adaptive"], label="the same without the preconditioner"),
    "one band": _stream("banded", "independent noise, nothing claimed for sampling", bands=1),
    **{name: _stream(name, label) for name, label in _STREAMS.items()},
    # 0.15 of the roster a round: six tenths of a group.
    "amplified": _stream("banded", "optimised bands, draws within groups", drawn=0.15),
    **{
        f"{name} plain": _stream(name, f"{label}, without the preconditioner", precondition="none")
        for name, label in _STREAMS.items()
    },
}


def from_zero(method: Method) -> Method:
    """Return the method with its start taken away."""
    options = {
        epsilon: {name: value for name, value in given.items() if name != "start-factor"}
        | {"start": "fresh"}
        for epsilon, given in method.options.items()
    }
    return replace(method, options=options)
