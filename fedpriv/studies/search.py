"""Search of settings within a study: what is tried, what it is judged by, and what that costs.

==========================  ========================================================================
on public validation data   any sampler. The score is a released measure on public examples, but the
                            runs that it compares were trained on the users: the ε of a row is that
                            of one run, and does not cover the choice. The page says so.
`compose=True`              the same, and the ε of all runs together is computed and stated.
`private=True`              blind random search with a number of trials that is drawn and never
                            published, of which the best alone is released: its ε covers the choice
                            (`fedpriv.studies.private_selection`).
==========================  ========================================================================
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedpriv.experiments.options import Option, kebab
from fedpriv.libraries import library, need
from fedpriv.measures import Measure
from fedpriv.privacy.trials import Trials
from fedpriv.ranges import positive_int
from fedpriv.studies.grid import MOST_CELLS

_SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "qmc": "QMCSampler",
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
}
_RANGE = ("low", "high", "log", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Search of options for each method, ε and data of a study; its runs use one seed.

    Attributes:
        space: Values by option: a list, or a range as `{"low": 0.1, "high": 10, "log": True}`
            (whole numbers where both ends are; "step" for steps).
        trials: Runs for each method, ε and data; of a grid all by default.
        sampler: "tpe", "random", "qmc", "cmaes", "gp" or the name of a class of
            `optuna.samplers`; "grid" for every combination of the lists, without Optuna.
        score: A released measure, such as "accuracy_public"; None for the task's first.
        compose: Whether the ε of all runs together is computed and stated.
        private: Whether the choice itself is private: blind random search over lists, with an
            untold number of trials.
        mean: Mean of that number, above 1.
        shape: Of its law, as of `fedpriv tune`.
        seed: Of the runs of the search, and of the sampler.
        batch: Runs that are suggested at once and may run side by side. The suggestions depend on
            it, and on no number of workers.

    Raises:
        ValueError: If something does not fit together.
    """

    space: Mapping[str, Any]
    trials: int | None = None
    sampler: str | None = None
    score: str | None = None
    compose: bool = False
    private: bool = False
    mean: float | None = None
    shape: float = 1.0
    seed: int = 0
    batch: int = 1

    def __post_init__(self) -> None:
        """Check every field and bring it to its one form."""
        space = _space(self.space)
        object.__setattr__(self, "space", space)
        positive_int("batch", self.batch)
        if self.private:
            self._check_private()
            return
        if self.mean is not None:
            raise ValueError(
                f"mean {self.mean:g} is of a private search; set private = true, or leave mean out"
            )
        object.__setattr__(self, "sampler", self.sampler or "tpe")
        if self.sampler == "grid":
            number = math.prod(len(_listed(name, values)) for name, values in space.items())
            if number > MOST_CELLS:
                raise ValueError(f"a grid of {number:,} runs is above {MOST_CELLS:,}; list fewer")
            object.__setattr__(self, "trials", min(self.trials or number, number))
        elif self.trials is None:
            raise ValueError("a search needs trials: how many runs for each method, ε and data")
        positive_int("trials", self.trials)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Search:
        """Return the search of a table [search] of a study's file.

        Raises:
            ValueError: If a key is unknown.
        """
        known = [one.name for one in fields(cls)]
        odd = sorted(set(document) - set(known))
        if odd or "space" not in document:
            what = f"{odd[0]!r} is no key of a search" if odd else "a search has no space"
            raise ValueError(
                f"{what}; use {', '.join(known)}, of which space is a table of options"
            )
        return cls(**document)

    def _check_private(self) -> None:
        """Refuse what would tell more of a private search than its best run.

        Raises:
            ValueError: If that is so.
        """
        if self.trials is not None:
            raise ValueError(
                f"trials {self.trials}: the number of trials of a private search is drawn by "
                "chance and not published, which its ε depends on; give mean, and leave trials out"
            )
        if self.sampler not in (None, "random"):
            raise ValueError(
                f"sampler {self.sampler!r} looks at earlier trials, and the accountant of private "
                "selection covers blind random search alone; use sampler random, or leave private "
                "out and set compose"
            )
        if self.compose:
            raise ValueError("private and compose are two ways to account a search; choose one")
        if self.mean is None:
            raise ValueError("a private search needs mean: of how many trials, above 1")
        for name, values in self.space.items():
            _listed(name, values)
        object.__setattr__(self, "sampler", "random")
        Trials(mean=self.mean, shape=self.shape)

    @property
    def middle(self) -> dict[str, Option]:
        """One setting of the space, to look at data and costs with."""
        return {
            name: values["low"] if isinstance(values, Mapping) else values[0]
            for name, values in self.space.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return found | {"space": {name: _plain(values) for name, values in self.space.items()}}

    def suggestions(
        self, measure: Measure
    ) -> Generator[list[dict[str, Option]], Sequence[float | None], dict[str, Option] | None]:
        """Yield batches of options to try, and take the score of each; return the best.

        The same scores lead to the same suggestions, so that a search that was killed is gone
        through again from its start, and finds what it had run.

        Args:
            measure: By which they are compared.

        Returns:
            The options with the best score, the first of equal ones; None where nothing had one.

        Raises:
            ValueError: If Optuna is not installed, or has no such sampler.
        """
        sign = 1.0 if measure.higher_is_better else -1.0
        best: tuple[float, dict[str, Option]] | None = None
        source = _Grid(self) if self.sampler == "grid" else _Optuna(self)
        left = self.trials or 0
        while left > 0:
            asked = [source.ask() for _ in range(min(self.batch, left))]
            scores = yield [dict(options) for options in asked]
            for options, score in zip(asked, scores, strict=True):
                value = None if score is None or not math.isfinite(score) else sign * score
                source.tell(value)
                if value is not None and (best is None or value > best[0]):
                    best = value, dict(options)
            left -= len(asked)
        return None if best is None else best[1]


class _Grid:
    """Every combination of lists, in order."""

    def __init__(self, search: Search) -> None:
        self._cells = itertools.product(*search.space.values())
        self._names = list(search.space)

    def ask(self) -> dict[str, Option]:
        return dict(zip(self._names, next(self._cells), strict=True))

    def tell(self, value: float | None) -> None:
        """A grid looks at no score."""


class _Optuna:
    """Suggestions of a sampler of Optuna; scores are reported in the order of the questions."""

    def __init__(self, search: Search) -> None:
        need("optuna", "studies", f"sampler {search.sampler!r} (sampler 'grid' does not)")
        self._optuna = library("optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        name = _SAMPLERS.get(str(search.sampler), str(search.sampler))
        make = getattr(self._optuna.samplers, name, None)
        if make is None:
            known = ", ".join(_SAMPLERS)
            raise ValueError(
                f"sampler {search.sampler!r} is none of Optuna's; use grid, {known} or the name of "
                "a class of optuna.samplers"
            )
        try:
            with warnings.catch_warnings():  # that some samplers are experimental
                warnings.simplefilter("ignore")
                sampler = make(seed=search.seed)
        except TypeError as error:
            raise ValueError(
                f"sampler {search.sampler!r} takes no seed ({error}); use another one"
            ) from error
        self._study = self._optuna.create_study(direction="maximize", sampler=sampler)
        self._space = {name: self._distribution(one) for name, one in search.space.items()}
        self._asked: list[Any] = []

    def ask(self) -> dict[str, Option]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked = self._study.ask(self._space)
        self._asked.append(asked)
        return dict(asked.params)

    def tell(self, value: float | None) -> None:
        asked = self._asked.pop(0)
        if value is None:
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(asked, value)

    def _distribution(self, values: Any) -> Any:
        kinds = self._optuna.distributions
        if not isinstance(values, Mapping):
            return kinds.CategoricalDistribution(list(values))
        whole = isinstance(values["low"], int) and isinstance(values["high"], int)
        make = kinds.IntDistribution if whole else kinds.FloatDistribution
        return make(**values)


def _space(given: Any) -> dict[str, Any]:
    """Return a space by options as they are typed.

    Raises:
        ValueError: If a range or a list is none.
    """
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"space {given!r} of a search names no option; give values by option")
    found: dict[str, Any] = {}
    for name, values in _flat(given).items():
        option = kebab(name)
        if option == "seed":
            raise ValueError("seed is not for a search: every run of it has the search's seed")
        if isinstance(values, Mapping):
            odd = sorted(set(values) - set(_RANGE))
            if odd or "low" not in values or "high" not in values:
                raise ValueError(
                    f"space {option}: a range has low and high, and may have log and step; "
                    f"got {dict(values)!r}"
                )
            found[option] = dict(values)
        elif isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise ValueError(f"space {option}: {values!r} is no list of values and no range")
        else:
            found[option] = list(values)
    return found


def _flat(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values by dotted path; a table that has "low" is a range, another one nests."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and "low" not in value and "high" not in value:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + str(name)] = value
    return found


def _listed(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, Mapping):
        raise ValueError(f"space {name} is a range, and this search needs lists; list its values")
    return values


def _plain(values: Any) -> Any:
    return dict(values) if isinstance(values, Mapping) else list(values)
