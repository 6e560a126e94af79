"""DP-AGD against its comparators at ε 0.1 to 1.6 on one problem; one page of it.

python -m simulations agd-covertype --seeds 5 --out PAGE.md --plot PAGE.png
"""

from __future__ import annotations

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
    Study,
    Verdict,
    accuracies,
    draw,
    edge_notes,
    settings_in_words,
    verdict,
)
from simulations.reproduction import items
from simulations.reproduction.study import (
    Row,
    mean_and_spread,
    publish,
    render,
    table,
)

#: At which ε one thing at a time is changed, of which loss, and of how many seeds at most.
_ABLATED, _ABLATED_LOSS, _ABLATION_SEEDS = (1.6,), "logistic", 3
#: Both forms of DP-AGD, and the methods that each is compared with.
_OURS = ("agd-paper", "agd")
_RIVALS = ("output", "objective", "fixed", "sgd", "sgd-old")
#: T of the table of noisy gradient descent, besides the one that was chosen.
_LENGTHS = (4, 10, 25, 60)
_EPSILON = (
    f"ε at δ = {format_delta(DELTA)} (add-remove, per example, simulated): "
    "DP-AGD and T steps by zCDP, the others by PLD"
)


def study_of(key: str, **options: Any) -> Study:
    """Return the study of a problem; `options` are further attributes of it."""
    return Study(key=key, perform=perform, grids=GRIDS, shared={"delta": DELTA}, **options)


def _tuned_as(method: str) -> str:
    """Return whose tuning a method's settings come from: the artefact takes over DP-SGD's."""
    return "sgd" if method == "sgd-old" else method


def cell(study: Study, loss: str, method: str, epsilon: float) -> list[Row]:
    """Return the reported runs of a method; none where it has no run at all at this ε."""
    place: dict[str, Any] = {"loss": loss, "epsilon": epsilon}
    settings = study.tuned(**place, method=_tuned_as(method)).settings
    rows = study.reported(settings, **place, method=method)
    return [row for row in rows if row["accuracy"] is not None]


def ablation(study: Study, loss: str, epsilon: float) -> dict[str, list[Row]]:
    """Return the runs of DP-AGD at published prices with one thing changed, by what."""
    place: dict[str, Any] = {"loss": loss, "method": "agd-paper", "epsilon": epsilon}
    settings, seeds = study.tuned(**place).settings, min(study.seeds, _ABLATION_SEEDS)
    return {
        label: study.reported({**settings, **changed}, seeds=seeds, **place)
        for label, changed in ABLATIONS.items()
    }


def over_steps(study: Study, loss: str, epsilon: float) -> dict[int, list[Row]]:
    """Return noisy gradient descent's runs for each T, at the best rate for it."""
    place: dict[str, Any] = {"loss": loss, "method": "fixed", "epsilon": epsilon}
    found = {}
    for steps in _LENGTHS:
        best = study.tuned(GRIDS["fixed"].holding(steps=steps), **place).settings
        found[steps] = study.reported(best, **place)
    return found


def complete(study: Study, *, ablated: Sequence[float] = ()) -> None:
    """Do what a study still needs; one thing at a time is changed at the ε of `ablated`."""
    places = list(product(LOSS_KINDS, study.epsilons))
    parts: list[tuple[str, Any]] = [
        (f"tuned {loss} {method} {epsilon}", partial(cell, study, loss, method, epsilon))
        for (loss, epsilon), method in product(places, LABELS)
    ]
    parts += [("references", study.references)]
    parts += [(f"over steps {at}", partial(over_steps, study, *at)) for at in places]
    parts += [
        (f"ablation {e}", partial(ablation, study, _ABLATED_LOSS, e))
        for e in _epsilons(study)
        if e in ablated
    ]
    pace = Pace(len(parts), of="cells", rows=study.rows)
    for name, make in parts:
        pace.work(f"{study.key} {name}", make)


def page(
    study: Study, *, command: str, picture: str | None = None, ablated: Sequence[float] = ()
) -> str:
    """Return the page.

    Args:
        study: Complete.
        command: That makes it.
        picture: Address of the plot; None leaves it out.
        ablated: ε at which one thing at a time is changed.
    """
    return render(
        "agd/page.md.jinja",
        study=study, command=command, picture=picture, ablated=ablated, reduced=REDUCED,
        losses=LOSS_KINDS, labels=LABELS, delta=format_delta(DELTA),
        ablated_loss=_ABLATED_LOSS, ablation_seeds=min(study.seeds, _ABLATION_SEEDS),
        epsilon_terms=_EPSILON, listed=_list, paper_epsilons=_paper_epsilons,
        accuracy_table=_accuracy_table, standings_table=_standings_table,
        old_bound=_old_bound, best_of_all=_best_of_all, steps_table=_steps_table,
        lengths_table=_lengths_table, ablation_table=_ablation_table,
        settings_table=_settings_table, edges=_edges,
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
        title=f"DP-AGD next to other private training: {study.title}",
        below=f"{_EPSILON}. Dashed: at the ε that the old moments bound says, which is none of "
        f"ours. Mean and 95 % t-interval of {study.seeds} seeds. "
        f"Data: {data.name}{', SYNTHETIC' * data.synthetic}.",
    )


def _epsilons(study: Study) -> list[float]:
    return sorted(study.epsilons)


def _heads(study: Study) -> list[str]:
    return [f"ε = {e:g}" for e in _epsilons(study)]


def _paper_epsilons(study: Study) -> str:
    """Return the ε that the ρ of published prices is over all Rényi orders, at each ε."""
    rows = (cell(study, LOSS_KINDS[0], "agd-paper", e)[0] for e in _epsilons(study))
    return ", ".join(f"{rounded_up(row['true_epsilon'], 3):g}" for row in rows)


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


def compare(study: Study, loss: str, first: str, second: str, epsilon: float) -> Verdict | None:
    """Return how one method compares with another, or a level; None if that has no run."""
    own = accuracies(cell(study, loss, first, epsilon))
    if second in LEVELS:
        other = [study.references()[second]]
    else:
        other = accuracies(cell(study, loss, second, epsilon))
    return verdict(own, other) if own and other else None


def _standings_table(study: Study, loss: str) -> str:
    rows = []
    for first in _OURS:
        against = [*LEVELS[:2], *(name for name in _OURS if name != first), *_RIVALS]
        for second in against:
            found = [compare(study, loss, first, second, e) for e in _epsilons(study)]
            shown = [one or "–" for one in found]
            rows.append([LABELS[first], LABELS.get(second, second), *shown])
    return table(["", "against", *_heads(study)], rows, words=2, align="---")


def _old_bound(study: Study, loss: str) -> dict[str, Any]:
    """Return the ε at which SGD by the old bound has a run, and where both SGD are ahead.

    It "crosses" where the least ε at which it has a run is the least at which it is ahead of DP-AGD
    at published prices, and by true accounting SGD is ahead of that below.
    """
    has = [e for e in _epsilons(study) if cell(study, loss, "sgd-old", e)]
    ahead = {
        method: [
            e for e in _epsilons(study)
            if compare(study, loss, method, "agd-paper", e) == "ahead"
        ]
        for method in ("sgd-old", "sgd")
    }  # fmt: skip
    old, true = ahead["sgd-old"], ahead["sgd"]
    crosses = bool(old and true) and old[0] == has[0] and true[0] < has[0]
    return {"has": has, "ahead": old, "truly ahead": true, "crosses": crosses}


def _best_of_all(study: Study, loss: str, epsilon: float) -> dict[str, str]:
    """Return the best of all rows of DP-AGD, single changes included, and DP-SGD."""
    changed = ablation(study, loss, epsilon)
    found = {f"published prices, {name}": rows for name, rows in changed.items()}
    found[LABELS["agd"]] = cell(study, loss, "agd", epsilon)
    label = max(found, key=lambda name: mean(accuracies(found[name])))
    own, other = accuracies(found[label]), accuracies(cell(study, loss, "sgd", epsilon))
    words = {"ahead": "ahead of", "not told apart": "not told apart from", "behind": "behind"}
    return {
        "label": label,
        "own": mean_and_spread(own),
        "sgd": mean_and_spread(other),
        "stands": words[verdict(own, other)],
    }


def _list(epsilons: Sequence[float]) -> str:
    return "ε " + ", ".join(f"{e:g}" for e in epsilons) if epsilons else "no ε"


def _steps_table(study: Study) -> str:
    head = ["", "loss", "ε", "accepted", "rejections", "objective fell", "step sizes of seed 0",
            "ρ of its gradients"]  # fmt: skip
    cells = []
    for method, loss, epsilon in product(_OURS, LOSS_KINDS, _epsilons(study)):
        rows = cell(study, loss, method, epsilon)
        cells.append([
            LABELS[method], loss, f"{rounded_up_to(epsilon, 3):g}",
            f"{mean(row['accepted'] for row in rows):.1f}",
            f"{mean(row['rejections'] for row in rows):.1f}",
            _fell(rows), _few(rows[0], "step_sizes"), _few(rows[0], "rho_gradient"),
        ])  # fmt: skip
    return table(head, cells)


def _fell(rows: Sequence[Row]) -> str:
    accepted, fell = sum(row["accepted"] for row in rows), sum(row["fell"] for row in rows)
    return f"{fell} of {accepted} ({100 * fell / max(1, accepted):.0f} %)"


def _few(row: Row, name: str) -> str:
    """Return a run's first three values and its last two, of which a row may hold no others."""
    shown = [f"{value:.3g}" for value in row[name]]
    if row["accepted"] > 6:
        shown = [*shown[:3], "…", *shown[-2:]]
    return ", ".join(shown)


def _lengths_table(study: Study) -> str:
    rows = []
    for loss, epsilon in product(LOSS_KINDS, _epsilons(study)):
        runs = over_steps(study, loss, epsilon)
        place: dict[str, Any] = {"loss": loss, "method": "fixed", "epsilon": epsilon}
        chosen = study.tuned(**place).settings["steps"]
        own = [*runs.values(), *(cell(study, loss, name, epsilon) for name in ("fixed", *_OURS))]
        shown = [mean_and_spread(accuracies(rows)) for rows in own]
        shown[len(runs)] += f" (T = {chosen})"
        rows.append([loss, f"{rounded_up_to(epsilon, 3):g}", *shown])
    heads = [*(f"T = {t}" for t in _LENGTHS), "T chosen", *(LABELS[name] for name in _OURS)]
    return table(["loss", "ε", *heads], rows)


def _ablation_table(study: Study, ablated: Sequence[float]) -> str:
    chosen = [e for e in _epsilons(study) if e in ablated]
    found = [ablation(study, _ABLATED_LOSS, e) for e in chosen]
    rows = [
        [label, *(mean_and_spread(accuracies(one[label])) for one in found)] for label in ABLATIONS
    ]
    return table(["", *(f"{_ABLATED_LOSS}, ε = {e:g}" for e in chosen)], rows)


def _settings_table(study: Study) -> str:
    rows = []
    for loss, method in product(LOSS_KINDS, GRIDS):
        tuned = [study.tuned(loss=loss, method=method, epsilon=e) for e in _epsilons(study)]
        words = [settings_in_words(GRIDS[method], one.settings) for one in tuned]
        tried = tuned[-1].values
        span = f"{len(tried)}: {100 * min(tried):.1f} to {100 * max(tried):.1f}"
        rows.append([loss, LABELS[method], *words, span])
    span = "settings tried at the largest ε: worst to best"
    return table(["loss", "method", *_heads(study), span], rows, align="---")


def _edges(study: Study) -> str:
    return edge_notes(
        ((LABELS[method], GRIDS[method],
          study.tuned(loss=loss, method=method, epsilon=epsilon).settings)
         for method, loss, epsilon in product(GRIDS, LOSS_KINDS, _epsilons(study))),
        tiny=study.tiny,
    )  # fmt: skip


def reproduce(
    *,
    seeds: int = 5,
    out: Path | None = None,
    plot: Path | None = None,
    problem: str = "mnist-3-8",
    ablated: tuple[float, ...] = (),
    epsilons: tuple[float, ...] = EPSILONS,
    tiny: bool = False,
) -> None:
    """Run the study of a problem, at some ε with one thing changed at a time; publish its page."""
    study = study_of(problem, seeds=seeds, epsilons=epsilons, tiny=tiny)
    complete(study, ablated=ablated)
    if plot is not None:
        draw_accuracies(study, plot)
    command = f"python -m simulations agd-{problem} {'--reduced ' * tiny}--seeds {seeds}"
    picture = None if plot is None else plot.name
    publish(page(study, command=command, picture=picture, ablated=ablated), out)


def _studies() -> Iterator[items.Study]:
    small = {"tiny": True, "seeds": 2, "epsilons": (0.4, 1.6), "ablated": ()}
    for key, title, minutes in (
        ("mnist-3-8", "MNIST 3 or 8", 20),
        ("covertype", "Covertype", 60),
        ("imdb", "IMDB", 60),
    ):
        yield items.Study(
            name=f"agd-{key}",
            title=f"DP-AGD at ε 0.1 to 1.6 and its comparators, {title}",
            run=reproduce,
            options={"problem": key, "ablated": _ABLATED if key == "mnist-3-8" else ()},
            reduced=small,
            minutes=(minutes, 0.5),
        )


REPRODUCTIONS = tuple(_studies())
