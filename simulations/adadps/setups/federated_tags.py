"""Tag prediction by user: the settings and methods that Figure 6 compares.

One figure (accuracy on held-out examples of rostered users) decides among the settings of
`federated_grid`. Momentum variants take over the choice of their plain form, and ε = 2 that of
ε = 8 with the clip norm halved, as the noise doubles. None of this is covered by any ε.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.locate import resolve_corpus
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.parts.users import TagPredictionTask
from fedpriv.tasks.tag_prediction import TagPrediction
from simulations.adadps.setups.federated_grid import grid
from simulations.reproduction.items import Cell, Row, Settings, Split

INPUTS: Mapping[str, str] = {"tff": "TFF inputs", "unit-norm": "unit-norm inputs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Whose data, how many of them a round, how much noise.

    Attributes:
        short: Its noise, as columns are headed.
        roster: Of OnStartups.
        options: Applied to every method.
        noise: Of every method that is private.
        tuned_as: Takes the best settings of another one instead of tuning anew.
        clip_scale: Times this on the clip norm taken over (less noise asks for a longer one).
    """

    short: str
    roster: str
    options: Settings
    noise: Settings
    tuned_as: str | None = None
    clip_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row.

    Attributes:
        options: What makes it this method.
        tuned_as: Shares the grid and the choice of another method.
        private: Whether it is bounded and noised.
    """

    options: Settings
    tuned_as: str | None = None
    private: bool = True


_PRIVATE: Settings = {"cohort": 350, "rounds": 100}
SETTINGS: Mapping[str, Setting] = {
    "private-8": Setting(
        short="ε = 8",
        roster="onstartups-all",
        options=_PRIVATE,
        noise={"target-epsilon": 8.0},
    ),
    "private-2": Setting(
        short="ε = 2",
        roster="onstartups-all",
        options=_PRIVATE,
        noise={"target-epsilon": 2.0},
        tuned_as="private-8",
        clip_scale=0.5,
    ),
    "paper": Setting(
        short="σ = 0.3",
        roster="onstartups-400",
        options={
            "cohort": 20,
            "rounds": 100,
            "delta": 1 / 400,
            "max-examples-per-user": 10_000,
        },
        noise={"noise-multiplier": 0.3},
    ),
}

_MOMENTUM: Settings = {"server-optimizer": "ema-momentum"}
METHODS: Mapping[str, Method] = {
    "AdaDPS, local": Method(options={"precondition": "local"}),
    "AdaDPS, local, server momentum": Method(
        options={"precondition": "local", **_MOMENTUM}, tuned_as="AdaDPS, local"
    ),
    "AdaDPS, update": Method(options={"precondition": "update"}),
    "AdaDPS, update, server momentum": Method(
        options={"precondition": "update", **_MOMENTUM}, tuned_as="AdaDPS, update"
    ),
    "AdaDPS, both": Method(options={"precondition": "both"}),
    "AdaDPS, both, server momentum": Method(
        options={"precondition": "both", **_MOMENTUM}, tuned_as="AdaDPS, both"
    ),
    "DP-FedAvg": Method(options={}),
    "DP-FedAdam": Method(options={"server-optimizer": "adam"}),
    "DP-NormFedAvg": Method(options={"bound": "normalise"}),
    "FedAvg, not private": Method(options={}, private=False),
    "FedAvg with local preconditioning, not private": Method(
        options={"precondition": "local"}, private=False
    ),
}


def rows() -> tuple[Row, ...]:
    """Return the methods, with a cell for each setting and kind of input.

    Without noise a setting's target ε changes nothing: one setting's figures are enough.
    """
    return tuple(
        Row(
            label=label,
            cells={
                f"{setting} {inputs}": cell(setting, inputs, label)
                for setting, described in SETTINGS.items()
                for inputs in INPUTS
                if method.private or described.tuned_as is None
            },
        )
        for label, method in METHODS.items()
    )


def cell(setting: str, inputs: str, label: str) -> Cell:
    """Return a method's cell in a setting, for a kind of input."""
    make, method = partial(_experiment, setting, inputs, label), METHODS[label]
    source = SETTINGS[setting].tuned_as or setting, inputs, method.tuned_as or label
    if source == (setting, inputs, label):
        tried = grid(setting, inputs, method.options, private=method.private)
        return Cell(make=make, grid=tried)
    scaled = partial(_clip_scaled, SETTINGS[setting].clip_scale)
    return Cell(make=make, tuned_as=cell(*source), adapt=scaled)


@cache
def corpus() -> Corpus:
    """Return the corpus, or a synthetic one where no real one is to be had."""
    return resolve_corpus(None, allow_synthetic=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtTags(TagPredictionTask):
    """Tag prediction on `corpus()`, where no other corpus is given."""

    def __call__(self, experiment: object, corpus: Corpus | None) -> TagPrediction:
        """Return the task.

        Raises:
            ValueError: If the corpus has no such roster or so few users.
        """
        seen = _brought() if corpus is None else corpus
        # `super()` does not know a class remade with slots.
        return TagPredictionTask.__call__(self, experiment, seen)


def _brought() -> Corpus:
    return corpus()


def _experiment(setting: str, inputs: str, label: str, split: Split, reduced: bool) -> Experiment:
    """Return one run, before its settings; both splits are held-out examples of rostered users."""
    described, method, seen = SETTINGS[setting], METHODS[label], corpus()
    # A synthetic corpus has a roster of its own alone.
    roster: Settings = {} if seen.synthetic else {"roster": described.roster}
    small: Settings = {"users": 400, "cohort": 20, "rounds": 5} if reduced else {}
    noise = described.noise if method.private else {"bound": "none", "noise": "none"}
    base = Experiment(name=f"{seen.name}-by-user", description=label, task=BroughtTags())
    options = {**described.options, **small, **roster, **noise, **method.options}
    # As the papers split: what is measured is memory, and the page says so.
    held_out = {"split": "by-sentence", "select": "last"}
    return base.with_options({**options, "inputs": inputs, **held_out})


def _clip_scaled(factor: float, settings: Settings) -> Settings:
    clip_norm = settings["l2-clip-norm"]
    assert isinstance(clip_norm, float)
    return {**settings, "l2-clip-norm": clip_norm * factor}
