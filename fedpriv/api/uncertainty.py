"""Uncertainty of a run's results from noise, by its released checkpoints and public examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.checkpoints.aggregates import RULES
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.checkpoints.uncertainty import (
    Uncertainty,
    spaced_rounds,
    steady_square_sum,
    uncertainty,
    warmed_square_sum,
)
from fedpriv.experiments.build import make_task
from fedpriv.experiments.experiment import Experiment
from fedpriv.measures import Measure
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.run_record import RunRecord, read_run
from fedpriv.runs.backends import open_corpus, recorded_place
from fedpriv.runs.document import restore_experiment
from fedpriv.training.evaluate import measure_models
from fedpriv.tree import Params

KS = (3, 5, 10, 20)
#: What every value of it is shown with.
NOT_COVERED = (
    "variation over draws of the noise and the cohorts, as far as checkpoints of one run show it: "
    "an estimate, too small where they are correlated and too large while training moves. Not "
    "sampling error: which users took part, and which examples it is measured on"
)
_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Spread of a run's results over its last k checkpoints.

    Attributes:
        k: How many.
        rounds: Which; empty where too few are kept.
        figures: Of each measure on public examples, by its name.
        scores: Of the predicted class's probability, example by example; None where the model
            answers with no class, or there are no such examples.
    """

    k: int
    rounds: tuple[int, ...]
    figures: Mapping[str, Uncertainty] = field(default_factory=dict[str, Uncertainty])
    scores: Uncertainty | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUncertainty:
    """Uncertainty of a run's results from noise, by its checkpoints.

    Attributes:
        path: The run folder.
        measures: What is measured, the headline first.
        measured_on: Whose examples, in words.
        synthetic: Whether the data are synthetic.
        spacing: Rounds between checkpoints, t_2.
        burn_in: Rounds left out at the start, t_1.
        kept: How many checkpoints the folder has.
        aggregate: What the run makes of its checkpoints.
        weight_square_sum: Σ w² of that: what the variance of a figure that is linear in the params
            is multiplied by for the released model; 1 of the last; None where a run's figures are
            of what several models answer together, of which single ones do not say it.
        spreads: One for each k.
    """

    path: Path
    measures: tuple[Measure, ...]
    measured_on: str
    synthetic: bool
    spacing: int
    burn_in: int
    kept: int
    aggregate: str
    weight_square_sum: float | None
    spreads: tuple[Spread, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; None for what is not known."""
        return {
            "run_dir": str(self.path),
            "measured_on": self.measured_on,
            "synthetic": self.synthetic,
            "spacing": self.spacing,
            "burn_in": self.burn_in,
            "checkpoints_kept": self.kept,
            "aggregate": self.aggregate,
            "weight_square_sum": self.weight_square_sum,
            "covers": NOT_COVERED,
            "k": [self._row(spread) for spread in self.spreads],
        }

    def _row(self, spread: Spread) -> dict[str, Any]:
        return {
            "k": spread.k,
            "rounds": list(spread.rounds),
            "measures": {n: self._figures(one) for n, one in spread.figures.items()},
            "score": None if spread.scores is None else _scores(spread.scores),
        }

    def _figures(self, found: Uncertainty) -> dict[str, Any]:
        low, high = found.variance_interval
        square_sum = math.nan if self.weight_square_sum is None else self.weight_square_sum
        values = {
            "mean": found.mean,
            "stddev": found.stddev,
            "half_width": found.half_width,
            "draw_half_width": found.draw_half_width,
            "variance_low": low,
            "variance_high": high,
            "autocorrelation": found.autocorrelation,
            "corrected_stddev": np.sqrt(found.corrected_variance),
            "corrected_half_width": found.corrected_half_width,
            "released_stddev": np.sqrt(square_sum * found.variance),
        }
        return {"confidence": found.confidence} | {n: _plain(v) for n, v in values.items()}


def run_uncertainty(
    path: str | Path,
    *,
    ks: Sequence[int] = KS,
    spacing: int | None = None,
    burn_in: int = 0,
    experiment: Experiment | str | None = None,
    corpus: str | Path | None = None,
) -> RunUncertainty:
    """Return how much a run's figures vary with its noise, from the last k checkpoints it kept.

    It reads what was released, and public examples (of single examples, the test set); no rostered
    user's example, in a simulation neither. Nothing is charged.

    Args:
        path: A run folder, finished or under way; one made with `--keep-checkpoints all` has most.
        ks: Numbers of checkpoints, each at least 2.
        spacing: Rounds between them; None for that of the two newest that are kept.
        burn_in: Rounds that are left out at the start.
        experiment: What was run, or its name, where that is user-defined code or there is none.
        corpus: Where the corpus is now, if it has moved.

    Guarantees:
        Free of ε: post-processing. It covers no sampling error.

    Raises:
        ValueError: If the folder does not verify, it names code that was not given, for no k enough
            checkpoints are kept, a k is below 2, or the task measures nothing on public examples.
    """
    path = Path(path)
    for k in ks:
        if k < 2:
            raise ValueError(f"k {k}: one checkpoint has no variance; give 2 or more")
    # The seal on experiment.json first; what it names is imported as `restore_experiment` says.
    if not verify_run(path).ok:
        raise ValueError(f"{path} does not verify, so nothing that it names is run: fedpriv verify")
    run = read_run(path)
    store = CheckpointStore(path / "checkpoints")
    kept = [number for number in store.rounds() if number > 0]
    apart = _spacing(kept) if spacing is None else spacing
    chosen = {k: spaced_rounds(kept, k, spacing=apart, burn_in=burn_in) for k in sorted(set(ks))}
    if not any(chosen.values()):
        turn = run.words.turn
        raise ValueError(
            f"{path} keeps {len(kept)} checkpoints, and for none of k = {sorted(set(ks))} there "
            f"are so many that are {apart} {turn}s apart and later than {turn} {burn_in}; give "
            f"another --spacing or --burn-in, or run with --keep-checkpoints all, which keeps "
            f"those of evaluated {turn}s, and a smaller eval-every"
        )
    task = _task(run, experiment, corpus)
    models = {n: _iterate(store, n) for rounds in chosen.values() for n in rounds}
    measured = {n: _measured(task, run.figures, params) for n, params in models.items()}
    if not any(measured.values()):
        raise ValueError(
            f"{run.name} measures nothing on public examples, and rostered users' are not read: "
            "give the task public examples"
        )
    return RunUncertainty(
        path=path,
        measures=run.figures,
        measured_on="public users" if run.unit == "user" else "the test set",
        synthetic=run.synthetic,
        spacing=apart,
        burn_in=burn_in,
        kept=len(kept),
        aggregate=str(run.options.get("aggregate") or "none"),
        weight_square_sum=_square_sum(run, kept[-1]),
        spreads=tuple(_spread(task, k, chosen[k], models, measured) for k in chosen),
    )


def _spacing(kept: Sequence[int]) -> int:
    if len(kept) < 2:
        raise ValueError(
            f"the run keeps {len(kept)} checkpoints, and a variance needs 2 or more; run with "
            "--keep-checkpoints all and a smaller eval-every"
        )
    return kept[-1] - kept[-2]


def _task(run: RunRecord, experiment: Experiment | str | None, corpus: str | Path | None) -> Any:
    made = restore_experiment(run.description, run.folder, experiment)
    place = recorded_place(run.description) if corpus is None else str(corpus)
    return make_task(made, open_corpus(place))


def _iterate(store: CheckpointStore, round_num: int) -> Params:
    """Return what training went on from: aggregates of neighbours share most of their models."""
    return {n: array for n, array in store.load(round_num)[0].items() if "/" not in n}


def _measured(task: Any, measures: Sequence[Measure], params: Params) -> dict[str, float]:
    found = measure_models(task, params, public=True)
    values = {m.name: None if found is None else found.get(m.name) for m in measures}
    return {name: float(value) for name, value in values.items() if value is not None}


def _spread(
    task: Any,
    k: int,
    rounds: tuple[int, ...],
    models: Mapping[int, Params],
    measured: Mapping[int, Mapping[str, float]],
) -> Spread:
    if not rounds:
        return Spread(k=k, rounds=())
    names = [name for name in measured[rounds[0]] if all(name in measured[n] for n in rounds)]
    return Spread(
        k=k,
        rounds=rounds,
        figures={name: uncertainty([measured[n][name] for n in rounds]) for name in names},
        scores=_score_spread(task, [models[n] for n in rounds]),
    )


def _score_spread(task: Any, models: Sequence[Params]) -> Uncertainty | None:
    """Return the spread of the predicted class's probability: the class of the mean of all."""
    blocks = [task.class_scores(model, public=True) for model in models]
    columns: list[np.ndarray] = []
    for found in zip(*(block for block in blocks if block is not None), strict=True):
        scores = np.stack([probabilities for probabilities, _ in found])
        answer = scores.mean(axis=0).argmax(axis=1)
        columns.append(scores[:, np.arange(len(answer)), answer])
    return uncertainty(np.concatenate(columns, axis=1)) if columns else None


def _square_sum(run: RunRecord, newest: int) -> float | None:
    options = run.options
    if options.get("aggregate") in RULES:
        return None
    if options.get("aggregate") == "ema":
        decay = float(options["aggregate.ema_decay"])
        warmed = bool(options.get("aggregate.ema_warmup"))
        return warmed_square_sum(decay, newest) if warmed else steady_square_sum(decay)
    if options.get("aggregate") == "upa":
        return 1.0 / int(options["aggregate.k"])
    return 1.0


def score_quantiles(found: Uncertainty) -> dict[str, dict[str, float]]:
    """Return quantiles over examples of the widths of their intervals, from end to end."""
    widths = {
        "draw_width": 2 * found.draw_half_width,
        "mean_width": 2 * found.half_width,
        "stddev": found.stddev,
    }
    return {
        name: {f"{q:g}": float(np.quantile(array, q)) for q in _QUANTILES}
        for name, array in widths.items()
    }


def _scores(found: Uncertainty) -> dict[str, Any]:
    return {
        "examples": int(found.mean.size),
        "confidence": found.confidence,
        "autocorrelation": _plain(found.autocorrelation),
        "by_quantile_over_examples": score_quantiles(found),
    }


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
