"""The default command on synthetic corpora of many sizes and shapes: never worse than public data?

    python -m simulations defaults

It runs `adadps-tags` as it is, at ε 8 and 2, on corpora whose shapes and seeds the settings were
not fitted on (`shapes.EVALUATION`), a corpus a seed. Studies of the same page are those of an
encoder's rows, of `cross_fitted` and of `sweep`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from fedpriv.checkpoints.tensor_files import PUBLIC_MODELS
from fedpriv.datasets.encoders import Encoder, find_encoder
from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.embeddings import make_embeddings
from fedpriv.datasets.stackexchange.splits import NUM_FOLDS
from fedpriv.experiments.experiment import FEWEST_PUBLIC_EXAMPLES, LONGEST_NOISE, SHORT_NOISE
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run
from fedpriv.runs.progress import Pace
from simulations.defaults import cross_fitted, resampled, shapes, sweep
from simulations.reproduction.items import Study
from simulations.reproduction.study import publish, render, table

Run = Mapping[str, Any]

EPSILONS = (8.0, 2.0)
SEEDS = 5
POINT = 0.01
#: The corpus whose first users on its roster are run on rows of an encoder, and whose public users
#: are resampled.
REAL, REAL_SIZES = "onstartups", (100, 300, 1_000, 3_000)
#: Share of runs that may end below public-only by more than a point.
NOT_WORSE = 1 / 50


def cells(
    sizes: Sequence[int],
    seeds: int,
    kinds: Sequence[shapes.Kind],
    epsilons: Sequence[float] = EPSILONS,
) -> Iterator[dict[str, Any]]:
    """Yield what is run: seed by seed, so that what is there at any time is balanced."""
    for seed in range(seeds):
        for size in sizes:
            for kind in kinds:
                for epsilon in epsilons:
                    yield {"kind": kind.name, "users": size, "epsilon": epsilon, "seed": seed}


def run(corpora: Path, cell: Mapping[str, Any]) -> dict[str, Any]:
    """Run the default command on a corpus, and return what it returned."""
    options = {"target-epsilon": cell["epsilon"], "seed": cell["seed"], "eval-every": 1000}
    kind, name = cell["kind"], "adadps-tags"
    if kind in (REAL, resampled.KIND):  # a seed is a fold
        corpus, name = resolve_corpus(REAL, allow_synthetic=False), "encoder-tags"
        options |= {"fold": cell["seed"]}
        if kind == REAL:
            options |= {"roster": f"{REAL}-all", "users": cell["users"]}
        else:
            corpus = resampled.corpus(corpora, corpus, cell["users"], seed=cell["seed"])
    else:
        corpus = shapes.corpus(corpora, shapes.KINDS[kind], cell["users"], number=cell["seed"])
    experiment = load_experiment(name).with_options(options)
    if kind == resampled.KIND:
        encoder = Encoder(find_encoder(str(experiment.options()["task.encoder"])))
        make_embeddings(corpus, encoder, ("title",), processes=1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            prepared = start_run(experiment, name, corpus, Path(folder) / "run", keep_last=1)
        except ValueError as error:  # no public thread to learn from; nothing was charged
            return {"refused": str(error), "seconds": time.perf_counter() - began}
        unselected: list[float | None] = [None]

        def keep(record: Any) -> None:
            if record.diagnostics is not None:
                unselected[0] = record.diagnostics.measured.get("accuracy") or unselected[0]

        summary = prepared.run(keep)
        settings = prepared.components.settings
    assert settings is not None
    return {
        "returned": summary["accuracy"],
        "public_only": summary["accuracy_public_only"],
        "majority": summary["majority_class_accuracy"],
        "gain": summary["gain"],
        "unselected": unselected[0],
        "selected": summary["selection"]["selected"],
        "expected": summary["selection"].get("expected"),
        "judged": summary["selection"].get("judged"),
        "groups": summary["selection"].get("groups"),
        "settings": settings.to_json(),
        "seconds": time.perf_counter() - began,
    }


def page(
    runs: Sequence[Run],
    crossed: Sequence[Run] = (),
    compared: Sequence[Run] = (),
    encoded: Sequence[Run] = (),
    copies: Sequence[Run] = (),
) -> str:
    """Return the page as Markdown.

    Args:
        runs: Of the default command.
        crossed: Of `cross_fitted`.
        compared: Of `sweep`, on its grid.
        encoded: Of `encoder-tags`, on real text.
        copies: Of it, on corpora resampled from public users.
    """
    difficult = {one.name for one in shapes.HARD}
    done = [one for one in runs if "refused" not in one]
    gaps = [one["taken_out"] - one["trained_again"] for one in crossed]
    return render(
        "defaults/page.md.jinja",
        usual=[one for one in done if one["spec"]["kind"] not in difficult],
        hard=[one for one in done if one["spec"]["kind"] in difficult],
        refused=[one for one in runs if "refused" in one], encoded=encoded,
        copies=copies, expected=_expected,
        below=_below, gains_table=_gains_table, power_table=_power_table,
        forecast_table=_forecast_table, compared=compared, grid_table=_grid_table,
        crossed=crossed, crossed_table=cross_fitted.table,
        gap_mean=np.mean(gaps) if gaps else 0.0,
        gap_median=np.median(np.abs(gaps)) if gaps else 0.0,
    )  # fmt: skip


def _below(runs: Sequence[Run]) -> str:
    below = sum(one["gain"] < -POINT for one in runs)
    unselected = sum(unselected_gain(one) < -POINT for one in runs)
    gains, kept = (
        f"{100 * mean(values):+.1f}" if values else "–"
        for values in ([one["gain"] for one in runs], list(map(unselected_gain, runs)))
    )
    return (
        f"{below} of {len(runs)} returned models were below public examples alone by more than a "
        f"point ({NOT_WORSE:.0%} were allowed), and {unselected} would have been without selection "
        f"(`select=last`). Their mean gain was {gains} points, without selection {kept}."
    )


def _expected(runs: Sequence[Run]) -> str:
    """Return how often a gain was expected, and what came of it."""
    found = [one for one in runs if one.get("expected")]
    returned = [one for one in found if one["selected"] == one["expected"]]
    worse = sum(one["gain"] < -POINT for one in returned)
    least = f"{100 * min(map(unselected_gain, found)):+.1f}" if found else "–"
    return (
        f"In {len(found)} of {len(runs)} runs a gain was expected; {len(returned)} returned "
        f"the released model, of which {worse} were below public examples alone by more than a "
        f"point. Without selection the least gain of those expected was {least} points."
    )


def _gains_table(runs: Sequence[Run]) -> str:
    rows = []
    for size in sorted({one["spec"]["users"] for one in runs}):
        for target in EPSILONS:
            place = size, target
            found = [one for one in runs if (one["spec"]["users"], one["spec"]["epsilon"]) == place]
            if found:
                rows.append(_row(size, target, found))
    head = ["users", "ε", "runs", "commonest tag", "public-only", "without selection", "returned",
            "mean gain", "worst", "returned a public model", "below by a point"]  # fmt: skip
    return table(head, rows, words=0)


def unselected_gain(one: Run) -> float:
    """Return the gain over public-only of what `select=last` returns: the average."""
    return (one["unselected"] or 0.0) - one["public_only"]


def _row(size: int, target: float, found: Sequence[Run]) -> list[object]:
    means = [
        100 * mean(one[name] or 0.0 for one in found)
        for name in ("majority", "public_only", "unselected", "returned")
    ]
    gains = [one["gain"] for one in found]
    return [
        f"{size:,}",
        f"{target:g}",
        len(found),
        *(f"{value:.1f}" for value in means),
        f"{100 * mean(gains):+.1f}",
        f"{100 * min(gains):+.1f}",
        sum(one["selected"] in PUBLIC_MODELS for one in found),
        sum(gain < -POINT for gain in gains),
    ]


def _power_table(runs: Sequence[Run]) -> str:
    """Return how often a gain of private training was shown, by its size and by public threads."""
    rows = []
    for fewest, most in _THREADS:
        cells = [f"{fewest:,} to {most - 1:,}"]
        for low, high in _GAINS:
            found = [
                one["selected"] not in PUBLIC_MODELS
                for one in runs
                if fewest <= (one["groups"] or 0) < most
                and low <= 100 * unselected_gain(one) < high
            ]
            cells.append(f"{sum(found) / len(found):.0%} ({len(found)})" if found else "–")
        rows.append(cells)
    return table(["public threads", *(f"{low} to {high}" for low, high in _GAINS)], rows)


_GAINS = (1, 5), (5, 10), (10, 20), (20, 60)
_THREADS = (10, 50), (50, 100), (100, 300), (300, 1_000), (1_000, 10_000)


def _grid_table(compared: Sequence[Run]) -> str:
    """Return the rule's settings against the best of others on the same SYNTHETIC corpora."""
    rows = []
    for (kind, users, _), found in sweep.cells(compared).items():
        rule = max(sweep.gain(one) for one in found if sweep.is_rule(one["spec"]))
        best = max(sweep.gain(one) for one in found if not sweep.is_rule(one["spec"]))
        rows.append([kind, f"{users:,}", f"{rule:+.1f}", f"{best:+.1f}", f"{rule / best:.0%}"])
    return table(["shape", "users", "by the rule", "best of six", "share"], rows)


def _forecast_table(runs: Sequence[Run]) -> str:
    """Return the forecasts before each run, with what training gained and what was printed."""
    rows = [
        [
            forecast,
            len(found),
            sum(unselected_gain(one) > POINT for one in found),
            sum(one["selected"] not in PUBLIC_MODELS for one in found),
        ]
        for forecast, found in _by_forecast(runs).items()
    ]
    return table(["forecast", "runs", "gained more than a point", "returned a private model"], rows)


def _by_forecast(
    runs: Sequence[Run],
) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {
        "a gain": [], "a gain that public examples can hardly show": [], "little or none": []
    }  # fmt: skip
    for one in runs:
        length, number = one["settings"]["noise_length"], one["settings"]["num_public_examples"]
        if length > LONGEST_NOISE:
            found["little or none"].append(one)
        elif number < FEWEST_PUBLIC_EXAMPLES and length > SHORT_NOISE:
            found["a gain that public examples can hardly show"].append(one)
        else:
            found["a gain"].append(one)
    return found


def reproduce(
    *,
    seeds: int = SEEDS,
    out: Path | None = None,
    study: str = "default",
    corpora: str = "runs/synthetic",
    sizes: tuple[int, ...] = (),
    kinds: tuple[str, ...] = (),
    epsilons: tuple[float, ...] = EPSILONS,
) -> None:
    """Make the runs of a study, and publish its page.

    Args:
        seeds: Corpora of each size and kind.
        out: Where the page is written.
        study: Of `STUDIES`.
        corpora: Folder of synthetic and resampled corpora.
        sizes: Users; none for the study's own.
        kinds: Shapes of the default study; none for those of evaluation.
        epsilons: Targets.
    """
    folder, perform, found = Path(corpora), STUDIES[study], list[Run]()
    todo = list(_specs(study, seeds, sizes, kinds, epsilons))
    pace = Pace(len(todo))
    for spec in todo:
        said = f"{study} {spec['kind']}, {spec['users']:,} users"
        found.append({"spec": spec, **pace.work(said, partial(perform, folder, spec))})
    publish(page(*(found if study == name else [] for name in STUDIES)), out)


#: By study, what makes one of its runs.
STUDIES: Mapping[str, Callable[[Path, Mapping[str, Any]], dict[str, Any]]] = {
    "default": run,
    "cross-fitted": cross_fitted.perform,
    "grid": sweep.perform,
    "encoder": run,
    "resampled": run,
}
#: Kind and sizes of studies of an encoder's rows.
_ENCODED = {"encoder": (REAL, REAL_SIZES), "resampled": (resampled.KIND, resampled.SIZES)}


def _specs(
    study: str,
    seeds: int,
    sizes: Sequence[int],
    kinds: Sequence[str],
    epsilons: Sequence[float],
) -> Iterator[dict[str, Any]]:
    """Yield everything that decides each run of a study."""
    if study == "grid":
        found: Iterable[dict[str, Any]] = sweep.runs_of(sweep.grid())
    elif study == "cross-fitted":
        found = (
            {"kind": kind.name, "users": size, "epsilon": epsilon}
            for size in sizes or cross_fitted.SIZES
            for kind in shapes.FITTING
            for epsilon in epsilons
        )
    elif study in _ENCODED:
        kind, usual = _ENCODED[study]
        found = (
            {"kind": kind, "users": size, "epsilon": epsilon, "seed": seed}
            for size in sizes or usual
            for seed in range(min(seeds, NUM_FOLDS))
            for epsilon in epsilons
        )
    else:
        chosen = [shapes.KINDS[name] for name in kinds] or shapes.EVALUATION
        found = cells(sizes or shapes.SIZES, seeds, chosen, epsilons)
    yield from found


REPRODUCTIONS = tuple(
    Study(
        name=name,
        title=f"The default command on corpora of many sizes: {title}",
        run=reproduce,
        options={"study": study},
        reduced=reduced,
        minutes=minutes,
    )
    for name, study, title, reduced, minutes in (
        (
            "defaults",
            "default",
            "never worse than public data?",
            {"sizes": (100,), "seeds": 1, "kinds": ("few classes", "nothing to learn")},
            (600, 1),
        ),
        ("defaults-cross-fitted", "cross-fitted", "released models judged by folds", None, (60, 0)),
        (
            "defaults-encoder",
            "encoder",
            "an encoder's rows of real text",
            {"sizes": (100,), "seeds": 1},
            (60, 1),
        ),
        (
            "defaults-resampled",
            "resampled",
            "an encoder's rows of resampled real text",
            {"sizes": (100,), "seeds": 1},
            (60, 1),
        ),
        ("defaults-grid", "grid", "the rule's settings next to a grid", None, (120, 0)),
    )
)
