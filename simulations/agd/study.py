"""DP-AGD beside its comparators at ε 0.1 to 1.6, problem by problem.

fedpriv reproduce agd-mnist-3-8 --seeds 5 --out docs/results/agd.md --plot docs/results/agd.png
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from fedpriv.privacy.epsilon import format_delta, rounded_up, rounded_up_to
from fedpriv.runs.progress import Pace
from simulations.agd.methods import (
    ABLATIONS,
    DELTA,
    EPSILONS,
    GRIDS,
    LABELS,
    LOSS_KINDS,
    perform,
)
from simulations.linear_models.study import (
    LEVELS,
    REDUCED,
    Curve,
    Panel,
    Settings,
    Study,
    accuracies,
    draw,
)
from simulations.reproduction import items
from simulations.reproduction.page import edges_of
from simulations.reproduction.study import (
    Row,
    Store,
    mean_and_spread,
    publish,
    render,
    results_of,
    spread,
    table,
)

#: At which ε one thing at a time is changed.
_ABLATED = (0.4, 1.6)
_RIVALS = ("output", "objective", "fixed", "sgd")
_EPSILON = (
    f"ε at δ = {format_delta(DELTA)} (add-remove, per example, simulated): "
    "DP-AGD and T steps by zCDP, the others by PLD"
)


def study_of(
    key: str,
    store: Store,
    *,
    seeds: int = 5,
    epsilons: Sequence[float] = EPSILONS,
    tiny: bool = False,
) -> Study:
    """Return the study of a problem; tiny with a grid of two."""
    return Study(
        key=key,
        store=store,
        perform=perform,
        grids={name: grid[:2] if tiny else grid for name, grid in GRIDS.items()},
        shared={"delta": DELTA},
        seeds=seeds,
        epsilons=epsilons,
        tiny=tiny,
    )


def cell(study: Study, loss: str, method: str, epsilon: float) -> list[Row]:
    """Return the reported runs of a method; none where it has no run at all at this ε."""
    place: dict[str, Any] = {"loss": loss, "method": method, "epsilon": epsilon}
    settings, found = study.tuned(**place)
    return study.reported(settings, **place) if found else []


def ablation(study: Study, loss: str, epsilon: float) -> dict[str, list[Row]]:
    """Return DP-AGD's runs with one thing changed, by what."""
    place: dict[str, Any] = {"loss": loss, "method": "agd", "epsilon": epsilon}
    settings, _ = study.tuned(**place)
    return {
        label: study.reported({**settings, **changed}, **place)
        for label, changed in ABLATIONS.items()
    }


def plain(study: Study, loss: str, epsilon: float) -> list[Row]:
    """Return DP-AGD's runs in ten iterations, α_max 2, which nothing was chosen for."""
    settings = {"iterations": 10, "largest_step": 2.0}
    return study.reported(settings, loss=loss, method="agd", epsilon=epsilon)


def over_steps(study: Study, loss: str, epsilon: float) -> dict[int, list[Row]]:
    """Return noisy gradient descent's runs for each T, at the best rate for it."""
    place: dict[str, Any] = {"loss": loss, "method": "fixed", "epsilon": epsilon}
    found = {}
    for steps in dict.fromkeys(s["steps"] for s in study.grids["fixed"]):
        rated = [s for s in study.grids["fixed"] if s["steps"] == steps]
        best, _ = study.tuned(rated, **place)
        found[steps] = study.reported(best, **place)
    return found


def complete(study: Study, *, ablated: Sequence[float] = ()) -> None:
    """Do what a study still needs; one thing at a time is changed at the ε of `ablated`."""
    places = list(product(LOSS_KINDS, study.epsilons))
    parts: list[tuple[str, Any]] = [
        (f"tuned {loss} {method} {epsilon}", partial(cell, study, loss, method, epsilon))
        for (loss, epsilon), method in product(places, GRIDS)
    ]
    parts += [("references", study.references)]
    for what in (ablation, over_steps, plain):
        kept = [at for at in places if what is not ablation or at[1] in ablated]
        parts += [(f"{what.__name__} {at}", partial(what, study, *at)) for at in kept]
    pace = Pace(len(parts), of="cells", rows=study.store.rows)
    for name, make in parts:
        pace.work(f"{study.key} {name}", make)


def page(
    studies: Sequence[Study],
    *,
    command: str,
    pictures: Sequence[str] = (),
    ablated: Sequence[str] = (),
) -> str:
    """Return the page.

    Args:
        studies: One problem after the other, complete.
        command: That makes it.
        pictures: Addresses of the plots, in the same order; none leaves them out.
        ablated: Problems of which one thing at a time is changed.
    """
    return render(
        "agd/page.md.jinja",
        studies=studies, command=command, pictures=pictures, ablated=ablated, reduced=REDUCED,
        losses=LOSS_KINDS, delta=format_delta(DELTA), epsilon_terms=_EPSILON, listed=_list,
        ahead=ahead, beaten=_beaten, runs_by_old_bound=_runs_by_old_bound,
        accuracy_table=_accuracy_table, steps_table=_steps_table, lengths_table=_lengths_table,
        ablation_table=_ablation_table, settings_table=_settings_table,
    )  # fmt: skip


def draw_accuracies(study: Study, path: Path) -> None:
    """Draw accuracy against ε, one panel a loss."""
    references = study.references()
    panels = [
        Panel(
            title=loss,
            curves=[
                Curve(
                    label=label,
                    points={e: accuracies(cell(study, loss, method, e)) for e in _epsilons(study)},
                    dashed=method == "sgd-old",
                    place=place,
                )
                for place, (method, label) in enumerate(LABELS.items())
            ],
            levels={name: references[name] for name in LEVELS},
        )
        for loss in LOSS_KINDS
    ]
    data = study.problem.data
    draw(
        panels,
        path,
        title=f"DP-AGD and what its paper compares it with: {study.title}",
        below=f"{_EPSILON}. Dashed: at the ε that the old moments bound says, which is none of "
        f"ours. Data: {data.name}{', SYNTHETIC' * data.synthetic}.",
    )


def _epsilons(study: Study) -> list[float]:
    return sorted(study.epsilons)


def _heads(study: Study) -> list[str]:
    return [f"ε = {e:g}" for e in _epsilons(study)]


def _accuracy_table(study: Study, loss: str) -> str:
    columns, references = _epsilons(study), study.references()

    def shown(method: str, epsilon: float) -> str:
        rows = cell(study, loss, method, epsilon)
        if not rows:
            return "no step"
        true = rounded_up(rows[0]["true_epsilon"], 2)
        more = f" (truly {true:.2f})" if method == "sgd-old" else ""
        return mean_and_spread(accuracies(rows)) + more

    rows = [[name, *[f"{100 * references[name]:.1f}"] * len(columns)] for name in LEVELS]
    rows += [[label, *(shown(method, e) for e in columns)] for method, label in LABELS.items()]
    return table(["", *_heads(study)], rows)


def ahead(study: Study, loss: str, first: str, second: str) -> list[float]:
    """Return the ε at which one method is ahead by more than the interval of the difference."""
    found = []
    for epsilon in _epsilons(study):
        own, other = (accuracies(cell(study, loss, name, epsilon)) for name in (first, second))
        if own and other and mean(own) - mean(other) > math.hypot(spread(own), spread(other)):
            found.append(epsilon)
    return found


def _beaten(study: Study, loss: str) -> dict[str, list[float]]:
    """Return the ε at which DP-AGD is ahead of a level or a method, by its label."""

    def above(level: str) -> list[float]:
        found = {e: accuracies(cell(study, loss, "agd", e)) for e in _epsilons(study)}
        least = study.references()[level]
        return [e for e, own in found.items() if own and mean(own) - spread(own) > least]

    return {
        "the majority class": above("majority class"),
        "public examples alone": above("public examples alone (ε = 0)"),
        **{LABELS[m]: ahead(study, loss, "agd", m) for m in _RIVALS},
    }


def _runs_by_old_bound(study: Study, loss: str) -> list[float]:
    return [e for e in _epsilons(study) if cell(study, loss, "sgd-old", e)]


def _list(epsilons: Sequence[float]) -> str:
    return "ε " + ", ".join(f"{e:g}" for e in epsilons) if epsilons else "no ε"


def _steps_table(study: Study) -> str:
    head = ["loss", "ε", "accepted", "rejections", "objective fell", "the same in ten iterations",
            "step sizes of seed 0", "ρ of its gradients"]  # fmt: skip
    cells = []
    for loss, epsilon in product(LOSS_KINDS, _epsilons(study)):
        rows = cell(study, loss, "agd", epsilon)
        cells.append([
            loss, f"{rounded_up_to(epsilon, 3):g}",
            f"{mean(row['accepted'] for row in rows):.1f}",
            f"{mean(row['rejections'] for row in rows):.1f}",
            _fell(rows), _fell(plain(study, loss, epsilon)),
            _few(rows[0]["step_sizes"]), _few(rows[0]["rho_gradient"]),
        ])  # fmt: skip
    return table(head, cells)


def _fell(rows: Sequence[Row]) -> str:
    accepted, fell = sum(row["accepted"] for row in rows), sum(row["fell"] for row in rows)
    return f"{fell} of {accepted} ({100 * fell / max(1, accepted):.0f} %)"


def _few(values: Sequence[float]) -> str:
    shown = [f"{value:.3g}" for value in values]
    if len(shown) > 6:
        shown = [*shown[:3], "…", *shown[-2:]]
    return ", ".join(shown)


def _lengths_table(study: Study) -> str:
    steps = list(dict.fromkeys(s["steps"] for s in study.grids["fixed"]))
    rows = []
    for loss, epsilon in product(LOSS_KINDS, study.epsilons):
        runs = over_steps(study, loss, epsilon)
        own = [*(runs[t] for t in steps), cell(study, loss, "agd", epsilon)]
        shown = [mean_and_spread(accuracies(rows)) for rows in own]
        rows.append([loss, f"{rounded_up_to(epsilon, 3):g}", *shown])
    return table(["loss", "ε", *(f"T = {t}" for t in steps), "DP-AGD"], rows)


def _ablation_table(study: Study) -> str:
    places = [at for at in product(LOSS_KINDS, study.epsilons) if at[1] in _ABLATED]
    found = [ablation(study, *at) for at in places]
    rows = [
        [label, *(mean_and_spread(accuracies(one[label])) for one in found)] for label in ABLATIONS
    ]
    return table(["", *(f"{loss}, ε = {e:g}" for loss, e in places)], rows)


def _settings_table(study: Study) -> str:
    columns, rows = _epsilons(study), []
    for loss, (method, label) in product(LOSS_KINDS, LABELS.items()):
        tuned = [study.tuned(loss=loss, method=method, epsilon=e) for e in columns]
        grid = tuned[-1][1]
        span = f"{100 * min(grid):.1f} to {100 * max(grid):.1f}" if grid else "–"
        rows.append([loss, label, *(_in_words(chosen, method) for chosen, _ in tuned), span])
    span = "worst to best of the grid at the largest ε"
    return table(["loss", "method", *_heads(study), span], rows, align="---")


def _in_words(settings: Settings, method: str) -> str:
    """Return settings in words, with a star where one is the least or the most of its grid."""
    edges = {name.split(" ")[0] for name in edges_of(settings, GRIDS[method])}
    words = (f"{n.replace('_', ' ')} {v:g}{'*' * (n in edges)}" for n, v in settings.items())
    return ", ".join(words) or "–"


def reproduce(
    *,
    seeds: int = 5,
    results: Path | None = None,
    out: Path | None = None,
    plot: Path | None = None,
    problems: tuple[str, ...] = ("mnist-3-8",),
    ablate: tuple[str, ...] = (),
    epsilons: tuple[float, ...] = EPSILONS,
    tiny: bool = False,
) -> None:
    """Run the studies of problems, of some with one thing changed at a time; publish their page."""
    store, pictures = Store.at(results_of("agd", results)), []
    studies = [study_of(p, store, seeds=seeds, epsilons=epsilons, tiny=tiny) for p in problems]
    for study in studies:
        complete(study, ablated=_ABLATED if study.key in ablate else ())
        if plot is not None:
            pictures.append(plot.with_stem(f"{plot.stem}-{study.key}"))
            draw_accuracies(study, pictures[-1])
    own = f"-{problems[0]}" if len(problems) == 1 else ""
    command = f"fedpriv reproduce agd{own} {'--reduced' if tiny else f'--seeds {seeds}'}"
    names = [picture.name for picture in pictures]
    publish(page(studies, command=command, pictures=names, ablated=ablate), out)


def _studies() -> Iterator[items.Study]:
    small = {"tiny": True, "seeds": 2, "epsilons": (0.4, 1.6)}
    for key, title, minutes in (
        ("mnist-3-8", "MNIST 3 or 8", 25),
        ("covertype", "Covertype", 20),
        ("imdb", "IMDB", 20),
    ):
        yield items.Study(
            name=f"agd-{key}",
            title=f"DP-AGD at ε 0.1 to 1.6 and its comparators, {title}",
            run=reproduce,
            options={"problems": (key,), "ablate": ("mnist-3-8",) if key == "mnist-3-8" else ()},
            reduced={
                **small,
                "problems": ("mnist-3-8",) if key == "imdb" else (key,),
                "ablate": (),
            },
            minutes=(minutes, 0.5),
        )


REPRODUCTIONS = tuple(_studies())
