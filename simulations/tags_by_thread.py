"""Tag prediction with whole threads held out: what private training adds to public data alone.

    fedpriv reproduce tags --corpus Posts.xml.xz

Every row is measured on the same held-out sentences: the majority class, a model of public threads
alone (ε = 0), private training from zero and from the public start, and training without privacy,
federated and central. What counts is the gain over public-only, and the share that it closes of the
gap to the best model without privacy. Settings are committed here; they were chosen on validation
threads of Answers on Startups, never on test threads.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.checkpoints.tensor_file import read_tensors, write_tensors
from fedpriv.data.corpus.corpus import Corpus
from fedpriv.data.corpus.splits import NUM_FOLDS, Split
from fedpriv.data.corpus.view import TagView
from fedpriv.data.locate import resolve_corpus
from fedpriv.evaluation.baselines import local_only
from fedpriv.evaluation.central import central
from fedpriv.evaluation.evaluate import evaluate
from fedpriv.evaluation.examples import Outcomes, outcomes
from fedpriv.evaluation.fold import Fold, measure_fold
from fedpriv.evaluation.result import Evaluation
from fedpriv.evaluation.table import Layout, Row, markdown, wider
from fedpriv.experiments.build import build
from fedpriv.experiments.catalogue import load_experiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.parts.options import Option
from fedpriv.experiments.parts.start import public_only
from fedpriv.hashes import document_sha256
from fedpriv.privacy.epsilon import shown_delta
from fedpriv.report.plots.drawing import Reference
from fedpriv.report.plots.tradeoff import Point, tradeoff_plot
from fedpriv.reproduction import Script
from fedpriv.rng import Key
from fedpriv.running.engines.factories import serial
from fedpriv.running.loop import first_state, rounds

EPSILONS = (2.0, 8.0)
PUBLIC, CENTRAL, LOCAL = "public-only", "central", "local-only"

_NORM = "unit-norm"
_COHORT = 0.3  # of the roster: near the knee of the noise on the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A row that is trained by rounds.

    Attributes:
        label: In tables.
        experiment: Its name.
        options: By ε; under None those of a method without privacy.
        cohort: Of the roster.
    """

    label: str
    experiment: str
    options: Mapping[float | None, Mapping[str, Option]]
    cohort: float = _COHORT

    @property
    def is_private(self) -> bool:
        """Whether it has an ε."""
        return None not in self.options


#: Rounds, clip norm and local rate by ε: the less noise there is, the more and shorter steps.
_TUNED: Mapping[float, tuple[int, float, float]] = {
    1.0: (25, 40.0, 30.0),
    2.0: (50, 40.0, 30.0),
    4.0: (100, 40.0, 10.0),
    8.0: (200, 30.0, 10.0),
}


def _by_epsilon(**more: Option) -> dict[float | None, Mapping[str, Option]]:
    """Return the tuned options by ε, and more."""
    return {
        epsilon: {
            "target-epsilon": epsilon,
            "rounds": length,
            "l2-clip-norm": norm,
            "local-learning-rate": rate,
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        for epsilon, (length, norm, rate) in _TUNED.items()
    }


METHODS: Mapping[str, Method] = {
    "public start": Method(
        label="AdaDPS, from the public start",
        experiment="adadps-tags",
        options=_by_epsilon(start="public", start_factor=0.5),
    ),
    "from zero": Method(
        label="AdaDPS, from zero",
        experiment="adadps-tags",
        options=_by_epsilon(start="fresh"),
    ),
    "federated": Method(
        label="federated, not private",
        experiment="adas-tags",
        options={None: {"rounds": 100}},
        cohort=0.1,
    ),
}

REPRODUCTIONS = (
    Script(
        name="tags",
        title="Tags with whole threads held out: public-only, private, not private",
        module="simulations.tags_by_thread",
        calls=((),),
        reduced=(("--folds", "1", "--seeds", "1"),),
        minutes=(120, 8),
        passes=("corpus", "seeds", "results", "out", "plot"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is evaluated.

    Attributes:
        corpus: The data.
        roster: Of it; None for its own.
        folds: How many of the five.
        seeds: Of every method.
        epsilons: Of private ones.
        methods: Of `METHODS`.
        kept: Folder of what is done; a killed command goes on from there.
        inputs: How words are weighted: "unit-norm", or "tf-idf" by their rarity in public text.
    """

    corpus: Corpus
    roster: str | None
    folds: int
    seeds: int
    epsilons: Sequence[float]
    methods: Sequence[str]
    kept: Path
    inputs: str


def evaluated(wanted: Wanted) -> Evaluation:
    """Return the figures of all rows, pooled over folds."""
    folds = [_fold(wanted, number) for number in range(wanted.folds)]
    return evaluate(
        folds,
        public_only=PUBLIC,
        best_nonprivate=_best(folds, [CENTRAL, *(_names(wanted, private=False))]),
        generator=Key.simulation(0).fold("bootstrap").generator(),
    )


def _best(folds: Sequence[Fold], names: Sequence[str]) -> str:
    """Return the best of the models without privacy.

    It is chosen by what is measured, so the gap is rather too wide and shares rather too low.
    """

    def right(name: str) -> float:
        return float(np.mean([one.right.mean() for fold in folds for one in fold.outcomes[name]]))

    return max(names, key=right)


def _names(wanted: Wanted, *, private: bool) -> Iterator[str]:
    for name in wanted.methods:
        if METHODS[name].is_private == private:
            for epsilon in wanted.epsilons if private else (None,):
                yield _model(name, epsilon)


def _model(name: str, target_epsilon: float | None) -> str:
    return name if target_epsilon is None else f"{name}, ε = {target_epsilon:g}"


def _fold(wanted: Wanted, number: int) -> Fold:
    split = Split(fold=number)
    view = wanted.corpus.view(roster=wanted.roster, split=split)
    found: dict[str, list[Outcomes]] = {
        name: []
        for name in (
            *_untrained(wanted),
            *_names(wanted, private=True),
            *_names(wanted, private=False),
        )
    }
    for seed in range(wanted.seeds):
        for name, one in _beside(wanted, view, seed):
            found[name].append(one)
        for name in wanted.methods:
            method = METHODS[name]
            for epsilon in wanted.epsilons if method.is_private else (None,):
                found[_model(name, epsilon)].append(_trained(wanted, view, method, epsilon, seed))
    return measure_fold(view, {}, inputs=_NORM, beside=found)


def _beside(wanted: Wanted, view: TagView, seed: int) -> Iterator[tuple[str, Outcomes]]:
    """Yield what takes no rounds: public-only, local-only, central."""
    key = Key.simulation(seed)
    facts: dict[str, object] = {"roster": view.roster_sha256, "split": view.split.name}
    facts |= {"seed": seed, "version": 1}
    if wanted.inputs != _NORM:
        facts["inputs"] = wanted.inputs
    names = _untrained(wanted)
    files = {name: _file(wanted, name, facts) for name in names}
    if not all(file.exists() for file in files.values()):
        experiment = _experiment(wanted, METHODS["public start"], wanted.epsilons[0], view, seed)
        task = build(experiment, wanted.corpus).task
        alone = public_only(task, key.fold("init"))
        if alone is None:
            raise ValueError(
                f"{view.name}: no public user asked a thread to learn from, so there is nothing "
                "to compare private training with; the site is too small"
            )
        choosing = wanted.corpus.view(roster=wanted.roster, split=view.split.choosing())
        whole = central(
            view, choosing, _NORM, keys=[key.fold("central")], features=task.features_of
        )
        made = task.features_of(view)
        _keep(files[PUBLIC], outcomes(alone.model.params, view, _NORM, made))
        if LOCAL in names:
            _keep(files[LOCAL], local_only(view, alone.start.params, _NORM, key=key))
        _keep(files[CENTRAL], outcomes(whole.params[0], view, _NORM, made))
    for name in names:
        yield name, _read(files[name])


def _untrained(wanted: Wanted) -> tuple[str, ...]:
    """Return the rows that take no rounds; users alone are measured on plain words."""
    return (PUBLIC, CENTRAL, LOCAL) if wanted.inputs == _NORM else (PUBLIC, CENTRAL)


def _trained(
    wanted: Wanted, view: TagView, method: Method, epsilon: float | None, seed: int
) -> Outcomes:
    """Return what a method's model does, trained now or kept from before."""
    experiment = _experiment(wanted, method, epsilon, view, seed)
    facts = {"roster": view.roster_sha256, "options": experiment.options(), "version": 1}
    file = _file(wanted, f"{method.experiment}-{epsilon}", facts)
    if not file.exists():
        components = build(experiment, wanted.corpus)
        state: Any = first_state(components, Key.simulation(seed))
        played = rounds(
            components,
            serial(experiment, components),
            Key.simulation(seed),
            state=state,
            eval_every=experiment.rounds,
        )
        for _, state in played:  # noqa: B007 - the last is measured
            pass
        params = components.algorithm.result(state)
        made = components.task.features_of(view)
        _keep(file, outcomes(params, view, _NORM, made))
    return _read(file)


def _experiment(
    wanted: Wanted, method: Method, epsilon: float | None, view: TagView, seed: int
) -> Experiment:
    options = {
        "roster": wanted.roster,
        "fold": view.split.fold,
        "seed": seed,
        "cohort": max(1.0, round(method.cohort * len(view.roster))),
        **method.options[epsilon],
        "inputs": wanted.inputs,
    }
    return load_experiment(method.experiment).with_options(options)


def _file(wanted: Wanted, name: str, facts: Mapping[str, object]) -> Path:
    return wanted.kept / f"{name}-{document_sha256(dict(facts))[:16]}.safetensors"


def _keep(file: Path, found: Outcomes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(file, {"right": found.right, "found": found.found, "ndcg": found.ndcg})


def _read(file: Path) -> Outcomes:
    tensors, _ = read_tensors(file)
    return Outcomes(right=tensors["right"], found=tensors["found"], ndcg=tensors["ndcg"])


def layout(wanted: Wanted) -> Layout:
    """Return the rows and columns of the page."""
    some = wanted.corpus.view(roster=wanted.roster)
    rows = [Row(label="majority class", models="majority"), Row(label=PUBLIC, models=PUBLIC)]
    rows += [
        Row(
            label=METHODS[name].label,
            models={f"{e:g}": _model(name, e) for e in wanted.epsilons}
            if METHODS[name].is_private
            else name,
        )
        for name in wanted.methods
    ]
    rows += [
        Row(label="central, not private", models=CENTRAL),
        Row(label="each user's own majority", models="own majority"),
    ]
    if LOCAL in _untrained(wanted):
        rows.append(Row(label="each user alone, from public-only", models=LOCAL))
    n = len(some.roster)
    return Layout(
        columns={f"{e:g}": f"ε = {e:g}" for e in wanted.epsilons},
        rows=rows,
        promise=(
            f"ε by PLD at δ = n^-1.1 = {shown_delta(n**-1.1)}, user-level, add-remove, Poisson "
            "cohorts, simulated (seeded noise); tuning on validation threads is not covered."
        ),
    )


def chart(evaluation: Evaluation, wanted: Wanted) -> str:
    """Return accuracy against ε as a drawing: private methods between public-only and the best."""
    best = evaluation.best_nonprivate
    assert best is not None
    lines = {"majority class": "majority", "public-only, ε = 0": PUBLIC, "not private": best}
    values = {name: model.values["accuracy"] for name, model in evaluation.models.items()}
    references = [
        Reference(value=values[name].value or 0.0, label=label, colour=colour)
        for (label, name), colour in zip(lines.items(), ("muted", "s2", "s3"), strict=True)
    ]
    points = []
    private = [name for name in wanted.methods if METHODS[name].is_private]
    for number, name in enumerate(private):
        for epsilon in wanted.epsilons:
            found = values[_model(name, epsilon)]
            ends = wider(found)
            points.append(
                Point(
                    label=METHODS[name].label,
                    epsilon=epsilon,
                    value=found.value or 0.0,
                    half_width=None if ends is None else (ends.high - ends.low) / 2,
                    colour="s1" if number == 0 else "s4",
                    series=number,
                )
            )
    made = "SYNTHETIC " if evaluation.data.get("synthetic") else ""
    return tradeoff_plot(
        points,
        name="tags",
        alternative="Accuracy on threads held out against ε.",
        width=760,
        height=380,
        references=references,
        share=True,
        title=f"Accuracy on threads held out, {made}{evaluation.data.get('name')}",
        alone=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluate a corpus and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, prog="simulations.tags_by_thread")
    parser.add_argument("--corpus", default=None, help="a prepared corpus, a dump or a name")
    parser.add_argument("--roster", default=None, help="of the corpus; by default its own")
    parser.add_argument("--folds", type=int, default=NUM_FOLDS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--inputs", default=_NORM, choices=(_NORM, "tf-idf"))
    parser.add_argument("--results", type=Path, default=Path("results/tags"))
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    parser.add_argument("--plot", type=Path, default=None, help="draw accuracy against ε, an SVG")
    given = parser.parse_args(arguments)
    if not 1 <= given.folds <= NUM_FOLDS or given.seeds < 1:
        raise ValueError(f"--folds {given.folds} must be 1 to {NUM_FOLDS}, --seeds at least 1")
    if given.plot is not None and given.plot.suffix.lower() != ".svg":
        raise ValueError(f"--plot {given.plot} of tags must end in .svg")
    wanted = Wanted(
        corpus=resolve_corpus(given.corpus, allow_synthetic=False),
        roster=given.roster,
        folds=given.folds,
        seeds=given.seeds,
        epsilons=tuple(given.epsilon),
        methods=tuple(given.methods),
        kept=given.results.with_suffix("") / "outcomes",
        inputs=given.inputs,
    )
    found = evaluated(wanted)
    page = markdown(found, layout(wanted))
    print(page)
    if given.plot is not None:
        given.plot.parent.mkdir(parents=True, exist_ok=True)
        given.plot.write_text(chart(found, wanted), "utf-8")
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(page, "utf-8")
        given.out.with_suffix(".json").write_text(
            json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()
