"""AdaDPS, Figure 6: accuracy by round, and all methods after the last one.

    python -m simulations adadps-figure6
    python -m simulations adadps-figure6-table

The figure is of few users and little noise, as the paper's; so is its reduced size. The table has
settings where user-level privacy is real, too: few users learn nothing there, so that it has no
reduced size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.options import Option
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.tasks.tag_prediction import TagPrediction
from simulations.reproduction.items import Block, Cell, Layout, Row, Settings, Split, Table
from simulations.reproduction.study import paragraphs


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Values tried for one setting and one kind of input.

    A clip norm is worth trying where the noise it brings to a logit is of the order of one: about
    eight times lower with 20 of 400 users, where the noise on the mean is eight times higher, and
    lower for unit-norm inputs, which are about six times longer than TFF's. Pairs are of learning
    rates and clip norms, of DP-FedAdam of clip norms and the server's rates; AdaDPS takes `gain`
    for the largest 1/A, its root where A acts twice. `local` is a wider range of its local form;
    its other forms, which end within a tenth of a point of that, are tried on the narrower one.
    """

    gain: tuple[float, float]
    adadps: tuple[tuple[float, ...], tuple[float, ...]]
    fedavg: tuple[tuple[float, ...], tuple[float, ...]]
    adam: tuple[tuple[float, ...], tuple[float, ...]]
    adam_settings: Settings
    normalise: tuple[float, ...]
    normalise_rates: tuple[float, ...] = (30.0,)
    local: tuple[tuple[float, ...], tuple[float, ...]] | None = None


_RANGES: Mapping[tuple[str, str], Range] = {
    ("private-8", "tff"): Range(
        gain=(200.0, 14.0),
        adadps=((30.0, 100.0), (150.0, 220.0)),
        fedavg=((3.0, 10.0, 30.0, 100.0), (30.0, 100.0)),
        adam=((10.0, 30.0), (0.05, 0.2, 0.6)),
        adam_settings={"local-learning-rate": 100.0, "server-adaptivity": 1e-3},
        normalise=(3.0, 10.0, 30.0, 60.0),
    ),
    ("private-8", "unit-norm"): Range(
        gain=(20.0, 4.5),
        adadps=((30.0,), (20.0, 40.0, 60.0, 80.0)),
        fedavg=((10.0, 30.0), (20.0, 40.0)),
        adam=((20.0, 40.0), (0.05, 0.2, 0.6)),
        adam_settings={"local-learning-rate": 30.0, "server-adaptivity": 1e-3},
        normalise=(10.0, 20.0, 30.0, 40.0),
    ),
    ("paper", "tff"): Range(
        gain=(50.0, 7.1),
        adadps=((10.0,), (20.0, 40.0)),
        local=((3.0, 10.0, 30.0), (10.0, 20.0, 40.0)),
        fedavg=((3.0, 10.0, 30.0), (5.0, 10.0, 20.0)),
        adam=((1.25, 2.5, 5.0, 10.0), (1.0, 3.0, 9.0)),
        adam_settings={"local-learning-rate": 10.0, "server-adaptivity": 1.0},
        normalise=(0.03, 0.1, 0.3, 1.0, 3.0),
        normalise_rates=(3.0, 10.0, 30.0),
    ),
    ("paper", "unit-norm"): Range(
        gain=(10.0, 3.2),
        adadps=((10.0,), (8.0, 16.0)),
        local=((3.0, 10.0, 30.0), (4.0, 8.0, 16.0)),
        fedavg=((10.0 / 3, 10.0, 30.0), (2.0, 4.0, 8.0)),
        adam=((1.0, 2.0, 4.0, 8.0), (1.0 / 3, 1.0, 3.0, 9.0)),
        adam_settings={"local-learning-rate": 10.0, "server-adaptivity": 1.0},
        normalise=(3.5, 8.0 / 1.5, 8.0, 12.0),
        normalise_rates=(3.0, 10.0, 30.0),
    ),
}
# Without privacy there is no clip norm to tune: the rate alone. By setting, inputs and
# preconditioning.
_NONPRIVATE_RATES: Mapping[tuple[str, str, bool], tuple[float, ...]] = {
    ("private-8", "tff", False): (1.0, 3.0, 10.0, 30.0),
    ("private-8", "tff", True): (10.0, 30.0, 100.0),
    ("private-8", "unit-norm", False): (10.0, 30.0),
    ("private-8", "unit-norm", True): (1.0, 3.0, 10.0),
    ("paper", "tff", False): (3.0, 10.0, 30.0, 90.0),
    ("paper", "tff", True): (30.0, 100.0, 300.0, 900.0),
    ("paper", "unit-norm", False): (10.0, 30.0, 100.0, 300.0),
    ("paper", "unit-norm", True): (3.0, 10.0, 30.0, 90.0, 270.0),
}


def grid(setting: str, inputs: str, method: Settings, *, private: bool) -> tuple[Settings, ...]:
    """Return the settings that a method is tuned over.

    Args:
        setting: One that is tuned again: "private-8" or "paper".
        inputs: "tff" or "unit-norm".
        method: The options that make it this method.
        private: Whether it is bounded and noised.
    """
    span, precondition = _RANGES[setting, inputs], method.get("precondition")
    found: list[dict[str, Option]]
    if not private:
        rates = _NONPRIVATE_RATES[setting, inputs, precondition is not None]
        found = [{"local-learning-rate": rate} for rate in rates]
    elif method.get("bound") == "normalise":
        rates, norms = span.normalise_rates, span.normalise
        found = [{"local-learning-rate": r, "l2-clip-norm": norm} for r in rates for norm in norms]
    elif method.get("server") == "adam":
        # Noise dominates every second moment, so the useful step is about the noise on the mean;
        # an adaptivity above that noise makes it momentum.
        norms, rates = span.adam
        found = [
            {**span.adam_settings, "l2-clip-norm": norm, "server-learning-rate": rate}
            for norm in norms
            for rate in rates
        ]
    else:
        rates, norms = span.fedavg if precondition is None else span.adadps
        if precondition == "local" and span.local is not None:
            rates, norms = span.local
        found = [{"local-learning-rate": r, "l2-clip-norm": norm} for r in rates for norm in norms]
    if precondition is None:
        return tuple(found)
    gain = span.gain[precondition == "both"]
    return tuple({**settings, "preconditioner-gain": gain} for settings in found)


INPUTS: Mapping[str, str] = {"tff": "TFF inputs", "unit-norm": "unit-norm inputs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Users, cohort size and noise of one panel.

    Attributes:
        short: Its noise, as columns are headed.
        roster: Which of the two of a Stack Exchange corpus, by the end of its name; of another
            corpus its own.
        options: Applied to every method.
        num_users: Of that roster at most; None for all.
        noise: Of every method that is private.
        tuned_as: Takes the best settings of another one instead of tuning again.
        clip_scale: Times this on the clip norm taken over (less noise asks for a longer one).
    """

    short: str
    roster: str
    num_users: int | None = None
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
        roster="all",
        options=_PRIVATE,
        noise={"target-epsilon": 8.0},
    ),
    "private-2": Setting(
        short="ε = 2",
        roster="all",
        options=_PRIVATE,
        noise={"target-epsilon": 2.0},
        tuned_as="private-8",
        clip_scale=0.5,
    ),
    "paper": Setting(
        short="σ = 0.3",
        roster="400",
        num_users=400,
        options={
            "cohort": 20,
            "rounds": 100,
            "delta": 1 / 400,
            "max-examples-per-user": 10_000,
        },
        noise={"noise-multiplier": 0.3},
    ),
}

_MOMENTUM: Settings = {"server": "ema-momentum"}
#: Of the figure's reduced size; the script of the paper's code has as many.
REDUCED_ROUNDS = 40
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
    "DP-FedAvg, server momentum": Method(options=_MOMENTUM, tuned_as="DP-FedAvg"),
    "DP-FedAdam": Method(options={"server": "adam"}),
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
    roster: dict[str, Option] = {"roster": f"{seen.name}-{described.roster}"}
    if roster["roster"] not in seen.rosters:
        most, there = described.num_users, len(seen.listed())
        roster = {"users": most} if most is not None and most < there else {}
    small: Settings = {"rounds": REDUCED_ROUNDS} if reduced else {}
    noise = described.noise if method.private else {"bound": "none", "noise": "none"}
    base = FederatedExperiment(name=f"{seen.name}-by-user", description=label, task=BroughtTags())
    options = {**described.options, **small, **roster, **noise, **method.options}
    # As the paper's code splits: what is measured is memory, and the page says so.
    held_out = {"split": "by-sentence", "select": "last"}
    return base.with_options({**options, "inputs": inputs, **held_out})


def _clip_scaled(factor: float, settings: Settings) -> Settings:
    clip_norm = settings["l2-clip-norm"]
    assert isinstance(clip_norm, float)
    return {**settings, "l2-clip-norm": clip_norm * factor}


def _columns(settings: Sequence[str]) -> dict[str, str]:
    return {
        f"{setting} {inputs}": f"{name}, {SETTINGS[setting].short}"
        for inputs, name in INPUTS.items()
        for setting in settings
    }


_REAL, _PAPER = _columns(("private-8", "private-2")), _columns(("paper",))
_PANELS = {
    "private-8": "ε = 8",
    "private-2": "ε = 2",
    "paper": "few users and σ = 0.3\n(no meaningful protection)",
}

#: Curves of the figure: the paper's left panel has momentum; its text does not say how the right
#: one differs.
_CURVES = (
    "AdaDPS, local, server momentum",
    "DP-FedAvg, server momentum",
    "DP-FedAdam",
    "AdaDPS, local",
    "DP-FedAvg",
)
_BY_SENTENCE = "federated with user-level privacy, split by sentence as the paper's code does"
_MEASURED_ON = "held-out examples of rostered users"
_AHEAD = (
    ("AdaDPS, local, server momentum", "DP-FedAvg, server momentum"),
    ("AdaDPS, local, server momentum", "DP-FedAdam"),
)
_NOTES, _OF_BOTH = paragraphs("adadps/notes/figure6.md"), 3


def _curves() -> tuple[Row, ...]:
    """Return the rows of the figure, in the settings that the table's grid chooses."""
    return tuple(
        Row(label=row.label, cells={column: row.cells[column] for column in _PAPER})
        for row in rows()
        if row.label in _CURVES
    )


REPRODUCTIONS = (
    Table(
        name="adadps-figure6",
        title=f"AdaDPS, Figure 6, few users and little noise, {_BY_SENTENCE}",
        scale=100.0,
        measured_on=_MEASURED_ON,
        columns=_PAPER,
        rows=_curves(),
        points=20,
        orderings=_AHEAD,
        minutes=(25, 8),
        layout=Layout(digits=1, spread="interval", bold_best=True),
        notes=_NOTES[:_OF_BOTH],
    ),
    Table(
        name="adadps-figure6-table",
        title=f"AdaDPS, the methods of Figure 6 and others, {_BY_SENTENCE}",
        scale=100.0,
        measured_on=f"{_MEASURED_ON} after the last round",
        columns={**_REAL, **_PAPER},
        rows=rows(),
        paper_epsilon="a large value, which its text has lost (Section 6.2)",
        orderings=(*_AHEAD, ("AdaDPS, local, server momentum", "AdaDPS, update, server momentum")),
        minutes=(90,),
        layout=Layout(
            digits=1,
            spread="interval",
            bold_best=True,
            sections=(
                Block(title="Where privacy is real", columns=_REAL),
                Block(title="Few users and σ = 0.3: no meaningful protection", columns=_PAPER),
            ),
            panels=tuple(
                Block(
                    title=title,
                    columns={f"{setting} {inputs}": name for inputs, name in INPUTS.items()},
                )
                for setting, title in _PANELS.items()
            ),
            choices=True,
        ),
        notes=_NOTES,
    ),
)
