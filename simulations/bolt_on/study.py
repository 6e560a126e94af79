"""Bolt-on against SCS13, BST14 and DP-SGD, problem by problem, and three sides of it; one page.

python -m simulations bolt-on-mnist --seeds 5 -s studies=mnist,pair-svm -s sides=batches,time,excess
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from fedpriv.datasets.dataset import Dataset
from fedpriv.privacy.epsilon import rounded_up_to
from fedpriv.runs.progress import Pace
from simulations.bolt_on.methods import (
    BATCH,
    EPSILONS,
    LABELS,
    METHODS,
    OF_ONE_LINE,
    PASSES,
    Guarantee,
    Timed,
    grids_of,
    model_of,
    perform,
    timed,
)
from simulations.linear_models.study import (
    LEVELS,
    REDUCED,
    Curve,
    Grid,
    Panel,
    Settings,
    Study,
    Tuned,
    accuracies,
    draw,
    edge_notes,
    settings_in_words,
    verdict,
)
from simulations.linear_models.training import softmax_fit
from simulations.reproduction import items
from simulations.reproduction.study import (
    Row,
    mean_and_spread,
    publish,
    render,
    spread,
    synthetic_words,
    table,
)

#: Comparators with noise in every step keep the settings that were best in one pass.
TUNED_IN_ONE_PASS = ("scs13", "bst14-published", "bst14", "dp-sgd")

#: Problem and loss by name.
STUDIES: Mapping[str, tuple[str, str]] = {
    "mnist": ("mnist", "softmax"),
    "pair-logistic": ("mnist-3-8", "logistic"),
    "pair-svm": ("mnist-3-8", "huber"),
    "covertype": ("covertype", "logistic"),
    "imdb": ("imdb", "logistic"),
    "mnist-ova": ("mnist-projected", "one-vs-all"),
}
#: Reported of methods that are noised in every step, beyond one pass.
_FEW_SEEDS = 3
_ROWS = (500, 1_000, 2_000, 4_000, 8_000, 11_862)
_TINY_ROWS = (50, 100, 200)
#: How many settings a method's one number has, in full and reduced.
_TRIED = {
    False: "five, and whatever lies next to the best so far until none is better",
    True: "two",
}
#: The reference that costs no ε.
_PUBLIC = LEVELS[1]
_TITLES: Mapping[Guarantee, str] = {"pure": "pure ε, δ = 0", "approximate": "(ε, δ = 1/m²)"}

#: Excess risks by method and training rows, and the settings that were chosen.
Excess = Mapping[str, Mapping[int, tuple[Sequence[float], Settings]]]
#: Accuracies by guarantee and b, and the settings that were chosen.
Batches = Mapping[tuple[Guarantee, int], tuple[Sequence[float], Settings]]


def study_of(key: str, loss: str, **options: Any) -> Study:
    """Return the study of a loss on a problem; `options` are further attributes of it."""
    shared = {"loss": loss, "batch": BATCH, "rows": None}
    return Study(key=key, perform=perform, grids=grids_of(loss), shared=shared, **options)


def _loss(study: Study) -> str:
    return study.shared["loss"]


def methods(study: Study, guarantee: Guarantee, passes: int, first: int) -> tuple[str, ...]:
    """Return the methods under a guarantee; objective perturbation has no passes."""
    whole = _loss(study) in OF_ONE_LINE and passes == first
    return tuple(name for name in METHODS[guarantee] if whole or name != "objective")


def tuned(
    study: Study, guarantee: Guarantee, method: str, epsilon: float, passes: int, **rest: Any
) -> Tuned:
    """Return what is best on the validation part."""
    return study.tuned(
        guarantee=guarantee,
        method=method,
        epsilon=epsilon,
        passes=1 if method in TUNED_IN_ONE_PASS else passes,
        **rest,
    )


def cell(
    study: Study, guarantee: Guarantee, method: str, epsilon: float, passes: int, **rest: Any
) -> list[Row]:
    """Return the reported runs of a method.

    Of methods that are noised in every step there are 3 seeds at most beyond one pass.
    """
    slow = method in TUNED_IN_ONE_PASS
    place = {"guarantee": guarantee, "method": method, "epsilon": epsilon, "passes": passes, **rest}
    settings = tuned(study, **place).settings
    few = slow and passes > 1
    seeds = min(study.seeds, _FEW_SEEDS) if few else study.seeds
    return study.reported(settings, seeds=seeds, **place)


def excess(
    study: Study, guarantee: Guarantee, method: str, epsilon: float, passes: int, rows: int
) -> tuple[list[float], Settings]:
    """Return excess risk on so many training rows, of the setting with the least of it, and that.

    The setting is chosen by the same value on a seed of its own: a diagnostic, not private.
    """
    model = model_of(study.key, _loss(study), "test", rows, study.tiny)
    fitted = softmax_fit(np.asarray(model.data.x_train), model.data.y_train, 2, 1e-9)
    best = {
        "weight": fitted["kernel"][:, 1] - fitted["kernel"][:, 0],
        "bias": fitted["bias"][1:] - fitted["bias"][:1],
    }
    least = model.mean_loss({n: a.astype(np.float32) for n, a in best.items()})

    def objective(settings: Settings, **rest: Any) -> float:
        done = study.row(
            settings, guarantee=guarantee, method=method, epsilon=epsilon, passes=passes,
            rows=rows, **rest,
        )  # fmt: skip
        return float(done["objective"])

    def less(settings: Settings) -> float:
        found = objective(settings)
        return -found if math.isfinite(found) else -math.inf

    chosen = study.search(study.grids[method], less).settings
    return [objective(chosen, seed=seed) - least for seed in range(study.seeds)], chosen


class Found:
    """A study that is complete: its reported runs, and what its grids reach.

    Args:
        study: Whose runs are done that it still needs.
        passes: k.

    Attributes:
        study: The study.
        passes: Sorted.
        epsilons: Sorted.
        cells: Reported runs by guarantee, method, ε and passes.
    """

    def __init__(self, study: Study, passes: Sequence[int] = PASSES) -> None:
        self.study = study
        self.passes, self.epsilons = sorted(passes), sorted(study.epsilons)
        places: list[tuple[Guarantee, str, float, int]] = [
            (guarantee, method, epsilon, k)
            for k in passes
            for guarantee in METHODS
            for method in methods(study, guarantee, k, passes[0])
            for epsilon in study.epsilons
        ]
        # Passes, as a cell of ten takes about ten times as long as one of one.
        pace = Pace(sum(k for *_, k in places), of="passes", rows=study.rows)
        self.cells = {
            place: pace.work(
                f"{study.key} {_loss(study)} {place}",
                partial(cell, study, *place),
                counts=place[-1],
            )
            for place in places
        }

    @property
    def title(self) -> str:
        """Of the problem and the loss, with whether the data are synthetic."""
        synthetic = " (SYNTHETIC data)" * self.study.problem.data.synthetic
        return f"{self.study.problem.title}, {_loss(self.study)}{synthetic}"

    def methods(self, guarantee: Guarantee) -> list[str]:
        """Return the methods under a guarantee."""
        known = {(own, method) for own, method, *_ in self.cells}
        return [method for method in METHODS[guarantee] if (guarantee, method) in known]

    def noisy(self, guarantee: Guarantee) -> list[str]:
        """Return those of them that add noise to every step."""
        return [method for method in self.methods(guarantee) if method in TUNED_IN_ONE_PASS]

    def best(
        self, guarantee: Guarantee, method: str, epsilon: float, passes: int | None = None
    ) -> list[float]:
        """Return the accuracies at a number of passes; None for the one with the best mean."""
        found = [
            accuracies(rows)
            for (own, name, e, k), rows in self.cells.items()
            if (own, name, e) == (guarantee, method, epsilon) and passes in (None, k)
        ]
        return max(found, key=mean)


def page(
    items: Sequence[Found], *, seeds: int, command: str, reduced: bool = False, **sides: Any
) -> str:
    """Return the page.

    Args:
        items: One problem and loss after the other.
        seeds: How many a value is of.
        command: That makes it.
        reduced: Whether they are of synthetic data, and of a grid of two.
        sides: `pictures`, addresses of the plots in the same order; `times` of training; `batches`,
            accuracies by guarantee and b; `excess` risk by method and training rows, and
            `excess_picture`, the address of its plot.
    """
    losses = {_loss(item.study) for item in items}
    found: dict[str, Any] = dict.fromkeys(("pictures", "times", "batches"), ())
    return render(
        "bolt_on/page.md.jinja",
        items=items, seeds=seeds, command=command, reduced=reduced, reduced_words=REDUCED,
        batch=BATCH, tuned_in_one_pass=[LABELS[m] for m in TUNED_IN_ONE_PASS], titles=_TITLES,
        tried=_TRIED[reduced],
        losses=losses, of_one_line=losses & set(OF_ONE_LINE), accuracy_table=_accuracy_table,
        below_public=_below_public, projected=_projected(items), against=_against,
        grid_table=_grid_table,
        settings_table=_settings_table, edges=_edges, batch_table=_batch_table,
        batch_edges=_batch_edges, excess_table=_excess_table,
        excess_edges=_excess_edges, time_table=_time_table,
        **found | {"excess": None, "excess_picture": None, "excess_synthetic": ""} | sides,
    )  # fmt: skip


def _projected(items: Sequence[Found]) -> str:
    """Return how rows were projected, problem by problem; the sides alone are of MNIST."""
    widths = {item.study.key: item.study.problem.width for item in items} or {"mnist": 50}
    made = {key: f"to {width} columns" for key, width in widths.items() if key != "covertype"}
    if not made:
        return "are not projected"
    ways = set(made.values())
    how = ways.pop() if len(ways) == 1 else ", ".join(f"{k} {way}" for k, way in made.items())
    kept = ", covertype as it is" if len(made) < len(widths) else ""
    return f"are projected {how} by a fixed Gaussian matrix{kept}"


def draw_accuracies(item: Found, path: Path) -> None:
    """Draw accuracy against ε at the best number of passes, one panel a guarantee."""
    references, place, data = item.study.references(), list(LABELS), item.study.problem.data
    panels = [
        Panel(
            title=_TITLES[guarantee],
            curves=[
                Curve(
                    label=LABELS[method],
                    points={e: item.best(guarantee, method, e) for e in item.epsilons},
                    place=place.index(method),
                )
                for method in item.methods(guarantee)
            ],
            levels={name: references[name] for name in LEVELS},
        )
        for guarantee in METHODS
    ]
    draw(
        panels,
        path,
        title=f"Bolt-on against noise in every step: {item.title}",
        below=f"ε (add-remove, per example, simulated), b = {BATCH}, at the best of "
        f"{', '.join(map(str, item.passes))} passes for each. Mean and 95 % t-interval of "
        f"{item.study.seeds} seeds ({_FEW_SEEDS} of methods noised in every step beyond one pass). "
        f"Data: {data.name}.",
    )


def _accuracy_table(item: Found, guarantee: Guarantee) -> str:
    references, columns = item.study.references(), item.epsilons
    rows = [[name, "–", *[f"{100 * references[name]:.1f}"] * len(columns)] for name in LEVELS]
    for method in item.methods(guarantee):
        for k in item.passes[: 1 if method == "objective" else None]:
            found = [item.cells[guarantee, method, e, k] for e in columns]
            named = "–" if method == "objective" else str(k)
            rows.append([LABELS[method], named, *map(_shown, found)])
    return table(["", "k", *(f"ε = {e:g}" for e in columns)], rows)


def _shown(rows: Sequence[Row]) -> str:
    """Return accuracies, and of the published BST14 the ε that its noise truly has."""
    text = mean_and_spread(accuracies(rows))
    if rows[0]["spec"]["method"] != "bst14-published":
        return text
    true = rounded_up_to(rows[0]["true_epsilon"], 2)
    return f"{text} (truly {true:g})"


def _best(
    item: Found, guarantee: Guarantee, epsilon: float, names: Sequence[str]
) -> tuple[list[float], str]:
    """Return the accuracies of the best of some methods, and which it is."""
    values = {name: item.best(guarantee, name, epsilon) for name in names}
    top = max(values, key=lambda name: mean(values[name]))
    return values[top], top


def _against(item: Found, guarantee: Guarantee, others: Sequence[str]) -> str:
    said = {"ahead": "ahead of", "not told apart": "not told apart from", "behind": "behind"}
    ours, parts = [m for m in METHODS[guarantee] if m.startswith("bolt-on")], []
    for epsilon in item.epsilons:
        own, _ = _best(item, guarantee, epsilon, ours)
        other, theirs = _best(item, guarantee, epsilon, others)
        parts.append(
            f"ε {rounded_up_to(epsilon, 3):g}: {said[verdict(own, other)]} {LABELS[theirs]} "
            f"({100 * mean(own):.1f} to {100 * mean(other):.1f}, "
            f"{mean(own) / mean(other):.2f} times)"
        )
    return "; ".join(parts)


def _below_public(item: Found, guarantee: Guarantee) -> str:
    """Return which methods are behind public examples alone, each at its best k, and at which ε."""
    public = [item.study.references()[_PUBLIC]]
    below = {
        LABELS[method]: [
            f"{rounded_up_to(epsilon, 3):g}"
            for epsilon in item.epsilons
            if verdict(item.best(guarantee, method, epsilon), public) == "behind"
        ]
        for method in item.methods(guarantee)
    }
    said = "; ".join(f"{label} at ε {', '.join(where)}" for label, where in below.items() if where)
    return (
        f"Below public examples alone ({100 * public[0]:.1f}, ε = 0), each method at its best k, "
        f"by the 95 % interval of its mean (one that is not named is above, or not told apart): "
        f"{said or 'none'}."
    )


def _grid_table(item: Found) -> str:
    rows = []
    for guarantee in METHODS:
        for method in item.methods(guarantee):
            cells, first = [], item.study.grids[method].first()
            for epsilon in item.epsilons:
                tried = tuned(item.study, guarantee, method, epsilon, item.passes[0]).values
                found = [100 * value for value in tried[: len(first)]]
                cells.append(f"{min(found):.1f} to {max(found):.1f} (sd {stdev(found):.1f})")
            rows.append([_TITLES[guarantee], LABELS[method], *cells])
    head = ["guarantee", "method", *(f"ε = {e:g}" for e in item.epsilons)]
    return table(head, rows, align="---")


def _chosen(item: Found) -> Iterator[tuple[Guarantee, str, int, list[Settings]]]:
    """Yield what was chosen at every ε: of a guarantee, a method and passes that it is tuned in."""
    for guarantee in METHODS:
        for method in item.methods(guarantee):
            once = method in TUNED_IN_ONE_PASS or method == "objective"
            for k in item.passes[: 1 if once else None]:
                found = (tuned(item.study, guarantee, method, e, k) for e in item.epsilons)
                yield guarantee, method, k, [one.settings for one in found]


def _settings_table(item: Found) -> str:
    rows = []
    for guarantee, method, k, found in _chosen(item):
        words = (settings_in_words(item.study.grids[method], settings) for settings in found)
        passes = "–" if method == "objective" else "1" if method in TUNED_IN_ONE_PASS else k
        rows.append([_TITLES[guarantee], LABELS[method], passes, *words])
    head = ["guarantee", "method", "k", *(f"ε = {e:g}" for e in item.epsilons)]
    return table(head, rows, align="---")


def _edges(item: Found) -> str:
    chosen = (
        (LABELS[method], item.study.grids[method], settings)
        for _, method, _, found in _chosen(item)
        for settings in found
    )
    return edge_notes(chosen, tiny=item.study.tiny)


def _batch_table(batches: Batches) -> str:
    sizes, grid = sorted({size for _, size in batches}), _batch_grid()
    rows = []
    for guarantee in METHODS:
        found = [batches[guarantee, size] for size in sizes]
        shown = (f"{mean_and_spread(v)} ({settings_in_words(grid, s)})" for v, s in found)
        rows.append([_TITLES[guarantee], *shown])
    return table(["", *(f"b = {size:,}" for size in sizes)], rows)


def _batch_grid() -> Grid:
    return grids_of(STUDIES["mnist"][1])["bolt-on"]


def _batch_edges(batches: Batches, tiny: bool) -> str:
    chosen = ((LABELS["bolt-on"], _batch_grid(), settings) for _, settings in batches.values())
    return edge_notes(chosen, tiny=tiny)


def _time_table(times: Sequence[Timed]) -> str:
    return table(["", "with noise", "without", "ratio"], [item.cells() for item in times])


def slope(points: Mapping[int, Sequence[float]]) -> float:
    """Return the exponent of m in mean excess risk, by least squares of logarithms."""
    x = [math.log(m) for m in points]
    y = [math.log(max(1e-12, mean(values))) for values in points.values()]
    return float(np.polyfit(x, y, 1)[0])


def _excess_table(excess: Excess) -> str:
    sizes = sorted({m for points in excess.values() for m in points})
    rows = []
    for method in excess:
        points = _risks(excess, method)
        shown = (f"{mean(points[m]):.4f} ± {spread(points[m]):.4f}" for m in sizes)
        rows.append([LABELS[method], *shown, f"{slope(points):.2f}"])
    return table(["", *(f"m = {m:,}" for m in sizes), "exponent"], rows)


def _risks(excess: Excess, method: str) -> dict[int, Sequence[float]]:
    return {m: values for m, (values, _) in excess[method].items()}


def _excess_edges(excess: Excess, tiny: bool) -> str:
    grids = grids_of(STUDIES["pair-logistic"][1])
    chosen = (
        (LABELS[method], grids[method], settings)
        for method, points in excess.items()
        for _, settings in points.values()
    )
    return edge_notes(chosen, tiny=tiny)


def draw_excess(excess: Excess, path: Path, data: Dataset) -> None:
    """Draw excess risk against m."""
    curves = [
        Curve(label=LABELS[method], place=list(LABELS).index(method),
              points={float(m): values for m, values in _risks(excess, method).items()})
        for method in excess
    ]  # fmt: skip
    draw(
        [Panel(title="logistic regression, MNIST 3 or 8", curves=curves)],
        path,
        title="Excess risk against the number of training examples",
        below=f"(ε = 1, δ = 1/m²) (add-remove, per example, simulated), b = {BATCH}, 10 passes. "
        f"Mean and 95 % t-interval of {len(next(iter(curves[0].points.values())))} seeds. "
        f"Data: {data.name}{', SYNTHETIC' * data.synthetic}.",
        xlabel="training examples m",
        ylabel="mean training loss above its minimum",
        scale=1.0,
        log_y=True,
    )


def over_batches(study: Study, sizes: Sequence[int] = (1, 10, 50, 500), passes: int = 5) -> Batches:
    """Return accuracies of bolt-on at ε = 1 for each b, and for b = m."""
    few = replace(study, seeds=min(3, study.seeds))
    places: list[tuple[Guarantee, int]] = [
        (guarantee, size)
        for size in (*sizes, study.problem.data.num_train)
        for guarantee in METHODS
    ]
    pace = Pace(len(places), of="cells", rows=study.rows)

    def batch(guarantee: Guarantee, size: int) -> tuple[list[float], Settings]:
        rows = cell(few, guarantee, "bolt-on", 1.0, passes, batch=size)
        return accuracies(rows), rows[0]["spec"]["settings"]

    return {
        place: pace.work("{}, b = {}".format(*place), partial(batch, *place)) for place in places
    }


def over_rows(study: Study, sizes: Sequence[int] = _ROWS, passes: int = 10) -> Excess:
    """Return excess risks of a study of two classes, for each number of rows."""
    names = ("bolt-on", "bst14-published", "bst14")
    pace = Pace(len(names) * len(sizes), of="cells", rows=study.rows)

    def risk(method: str, m: int) -> tuple[list[float], Settings]:
        made = partial(excess, study, "approximate", method, 1.0, passes, m)
        return pace.work(f"{method}, m = {m:,}", made)

    return {method: {m: risk(method, m) for m in sizes} for method in names}


def reproduce(
    *,
    seeds: int = 5,
    out: Path | None = None,
    plot: Path | None = None,
    studies: tuple[str, ...] = ("mnist",),
    sides: tuple[str, ...] = (),
    epsilons: tuple[float, ...] = EPSILONS,
    passes: tuple[int, ...] = PASSES,
    tiny: bool = False,
) -> None:
    """Run studies, and any of the three sides, and publish one page of them."""
    found, pictures = list[Found](), list[str]()

    @cache
    def study(name: str) -> Study:
        return study_of(*STUDIES[name], seeds=seeds, epsilons=epsilons, tiny=tiny)

    def picture(name: str) -> Path:
        assert plot is not None
        return plot.with_stem(f"{plot.stem}-{name}")

    for name in studies:
        found.append(Found(study(name), passes))
        if plot is not None:
            draw_accuracies(found[-1], picture(name))
            pictures.append(picture(name).name)
    more: dict[str, Any] = {}
    if "batches" in sides:
        more["batches"] = over_batches(study("mnist"))
    if "time" in sides:
        more["times"] = timed(*STUDIES["mnist"], tiny=tiny)
    if "excess" in sides:
        pair = study("pair-logistic")
        more["excess_synthetic"] = synthetic_words(pair.problem.data.synthetic)
        more["excess"] = over_rows(pair, _TINY_ROWS if tiny else _ROWS)
        if plot is not None:
            draw_excess(more["excess"], picture("excess"), pair.problem.data)
            more["excess_picture"] = picture("excess").name
    size = "--reduced " * tiny
    command = f"python -m simulations bolt-on-{[*studies, *sides][0]} {size}--seeds {seeds}"
    command += f" -s studies={','.join(studies)}" if len(studies) > 1 else ""
    command += f" -s sides={','.join(sides)}" if studies and sides else ""
    text = page(found, seeds=seeds, command=command, pictures=pictures, reduced=tiny, **more)
    publish(text, out)


def _items() -> Iterator[items.Study]:
    small = {"tiny": True, "seeds": 2, "epsilons": (1.0,), "passes": (1,)}
    for name, title, minutes, *more in (
        ("mnist", "MNIST, softmax", 30),
        ("mnist-ova", "MNIST, one against all", 20, {"passes": (1, 10)}),
        ("pair-logistic", "MNIST 3 or 8, logistic", 6),
        ("pair-svm", "MNIST 3 or 8, Huber SVM", 6),
        ("covertype", "Covertype, logistic", 20),
        ("imdb", "IMDB, logistic", 12),
    ):
        yield items.Study(
            name=f"bolt-on-{name}",
            title=f"Bolt-on against noise in every step, {title}",
            run=reproduce,
            options={"studies": (name,), **dict(*more)},
            reduced=small,
            minutes=(minutes, 0.3),
        )
    for side, title, minutes in (
        ("batches", "Bolt-on on MNIST, b from 1 to m", 10),
        ("time", "Bolt-on on MNIST, training time by pairs", 2),
        ("excess", "Excess risk of bolt-on and BST14 against m", 5),
    ):
        yield items.Study(
            name=f"bolt-on-{side}",
            title=title,
            run=reproduce,
            options={"studies": (), "sides": (side,)},
            reduced={"tiny": True, "seeds": 2},
            minutes=(minutes, 0.3),
        )


REPRODUCTIONS = tuple(_items())
