"""DP-AGD at small ε: what is tuned, run and found; see `simulations.agd.command`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, TypeVar

from fedpriv.runs.progress import Pace
from simulations.agd.methods import ABLATIONS, EPSILONS, GRIDS, LOSS_KINDS, Settings, perform, spec
from simulations.linear_models.problems import problem
from simulations.linear_models.references import majority, not_private, public_only
from simulations.linear_models.store import Row, Store

Cell = tuple[str, str, float]  # loss, method, ε

_Made = TypeVar("_Made")
_NONE: Settings = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One problem.

    Attributes:
        problem_key: Its name.
        store: Of finished runs.
        seeds: How many are reported.
        epsilons: At which.
        tiny: Made-up data and a grid of two, to see whether everything runs.
    """

    problem_key: str
    store: Store
    seeds: int = 5
    epsilons: Sequence[float] = EPSILONS
    tiny: bool = False

    def grid(self, method: str) -> tuple[Settings, ...]:
        """Return the settings that a method chooses from."""
        return GRIDS[method][:2] if self.tiny else GRIDS[method]

    def chosen(self, loss: str, method: str, epsilon: float) -> tuple[Settings, list[float]]:
        """Return the settings that are best on the validation part, and what all of them reach."""
        found = [
            self._row(loss, method, epsilon, settings, split="validation")["accuracy"]
            for settings in self.grid(method)
        ]
        if any(value is None for value in found):
            return _NONE, []
        return self.grid(method)[found.index(max(found))], found

    def cell(self, loss: str, method: str, epsilon: float) -> list[Row]:
        """Return the reported runs of a method; none where it has no run at all at this ε."""
        settings, found = self.chosen(loss, method, epsilon)
        if not found:
            return []
        return self._reported(loss, method, epsilon, settings)

    def ablation(self, loss: str, epsilon: float) -> dict[str, list[Row]]:
        """Return DP-AGD's runs with one thing changed, by what."""
        settings, _ = self.chosen(loss, "agd", epsilon)
        return {
            label: self._reported(loss, "agd", epsilon, {**settings, **changed})
            for label, changed in ABLATIONS.items()
        }

    def plain(self, loss: str, epsilon: float) -> list[Row]:
        """Return DP-AGD's runs in ten iterations, whatever was best."""
        return self._reported(loss, "agd", epsilon, {"iterations": 10, "largest_step": 2.0})

    def over_steps(self, loss: str, epsilon: float) -> dict[int, list[Row]]:
        """Return noisy gradient descent's runs for each T, at the best rate for it."""
        found = {}
        for steps in dict.fromkeys(s["steps"] for s in self.grid("fixed")):
            rated = [s for s in self.grid("fixed") if s["steps"] == steps]
            tried = [
                self._row(loss, "fixed", epsilon, settings, split="validation")["accuracy"]
                for settings in rated
            ]
            best = rated[tried.index(max(tried))]
            found[steps] = self._reported(loss, "fixed", epsilon, best)
        return found

    def references(self) -> dict[str, float]:
        """Return the rows that every table has."""
        data = problem(self.problem_key, tiny=self.tiny).data
        asked = {"problem": self.problem_key, "references": True, "tiny": self.tiny}

        def found(_: object) -> Row:
            return {
                "majority class": majority(data),
                "public examples alone (ε = 0)": public_only(data, 2),
                "not private": not_private(data, 2),
                "num_train": data.num_train,
                "num_public": data.num_public,
            }

        row = self.store.row(asked, found)
        return {name: value for name, value in row.items() if name != "spec"}

    def _reported(self, loss: str, method: str, epsilon: float, settings: Settings) -> list[Row]:
        return [
            self._row(loss, method, epsilon, settings, split="test", seed=seed)
            for seed in range(self.seeds)
        ]

    def _row(self, loss: str, method: str, epsilon: float, settings: Settings, **rest: Any) -> Row:
        asked = spec(self.problem_key, loss, method, epsilon, settings, tiny=self.tiny, **rest)
        return self.store.row(asked, perform)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a study came to.

    Attributes:
        title: Of the problem.
        data: What its data are called.
        synthetic: Whether they were made up.
        references: Rows of one figure each.
        cells: Reported runs.
        grids: Accuracies of all settings on the validation part.
        settings: That were chosen.
        ablations: By loss and ε.
        over_steps: Of noisy gradient descent, by loss and ε.
        plain: DP-AGD's runs in ten iterations, α_max 2, which nothing was chosen for.
    """

    title: str
    data: str
    synthetic: bool
    references: Mapping[str, float]
    cells: Mapping[Cell, Sequence[Row]] = field(repr=False)
    grids: Mapping[Cell, Sequence[float]] = field(repr=False)
    settings: Mapping[Cell, Settings] = field(repr=False)
    ablations: Mapping[tuple[str, float], Mapping[str, Sequence[Row]]] = field(repr=False)
    over_steps: Mapping[tuple[str, float], Mapping[int, Sequence[Row]]] = field(repr=False)
    plain: Mapping[tuple[str, float], Sequence[Row]] = field(repr=False)


def found(study: Study, *, ablated: Sequence[float] = ()) -> Found:
    """Do what a study still needs, and return what it came to.

    Args:
        study: The problem.
        ablated: At which ε one thing at a time is changed.
    """
    own = problem(study.problem_key, tiny=study.tiny)
    cells: dict[Cell, Sequence[Row]] = {}
    grids: dict[Cell, Sequence[float]] = {}
    settings: dict[Cell, Settings] = {}
    places = list(product(LOSS_KINDS, study.epsilons))
    changed = [(loss, e) for loss, e in places if e in ablated]
    total = len(places) * (len(GRIDS) + 2) + len(changed) + 1
    pace = Pace(total, of="cells", rows=study.store.rows)

    def work(what: str, make: Callable[..., _Made], *at: Any) -> _Made:
        return pace.work(" ".join(map(str, (study.problem_key, what, *at))), partial(make, *at))

    for (loss, epsilon), method in product(places, GRIDS):
        place = (loss, method, epsilon)
        cells[place] = work("tuned", study.cell, *place)
        settings[place], grids[place] = study.chosen(*place)
    return Found(
        title=own.title,
        data=own.data.name,
        synthetic=own.data.synthetic,
        references=work("references", study.references),
        cells=cells,
        grids=grids,
        settings=settings,
        ablations={at: work("ablation", study.ablation, *at) for at in changed},
        over_steps={at: work("over steps", study.over_steps, *at) for at in places},
        plain={at: work("plain", study.plain, *at) for at in places},
    )
