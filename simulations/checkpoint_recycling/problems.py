"""Recycling checkpoints of photographs, conversions and next words: trains, prints and draws.

    python -m simulations recycling-cifar10 --reduced
    python -m simulations recycling-pcvr
    python -m simulations recycling-words

Photographs are by example and take days of CPU in their full size; conversions are by example, of a
synthetic log; next words are by user.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.checkpoints.aggregates import Rule, answers, mean_probabilities
from fedpriv.checkpoints.tensor_files import write_tensors
from fedpriv.datasets.cache import cache_dir
from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.options import Option
from fedpriv.experiments.ready_made.conversions import dp_sgd_conversions
from fedpriv.experiments.ready_made.images import dp_sgd_cifar
from fedpriv.experiments.ready_made.words import dp_fedavg_words
from fedpriv.hashes import document_sha256
from fedpriv.measures import ACCURACY, Measure
from fedpriv.privacy.epsilon import format_delta
from fedpriv.runs.progress import Pace
from fedpriv.tasks.dataset_tasks import AUC_LOSS, auc_total
from fedpriv.tasks.next_words import WORD_ACCURACY
from simulations.checkpoint_recycling.checkpoints import (
    LAST,
    Aggregates,
    Averages,
    Marks,
    averages,
    checkpoints,
    draw_gains,
    kind_of,
    states,
)
from simulations.checkpoint_recycling.corpora import synthetic_corpus
from simulations.reproduction.items import Study
from simulations.reproduction.study import (
    drawing,
    note_below,
    on_device,
    publish,
    render,
    save,
    synthetic_words,
    t_half,
    table,
    trained_on,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfOutputs:
    """A measure of what several models answer together, block by block of examples.

    Attributes:
        answer: From the models' probabilities of a block and its labels to a value of each example.
        measure: From all values and labels to the measure.
    """

    answer: Callable[[Sequence[np.ndarray], np.ndarray], np.ndarray]
    measure: Callable[[np.ndarray, np.ndarray], float]


#: By the name of an aggregate of outputs.
Outputs = Mapping[str, OfOutputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A task, how it is trained, and what the paper says of it.

    Attributes:
        name: Of its reproduction.
        title: Of its page.
        about: How it differs from the paper's.
        make: Its experiment.
        options: Of the experiment.
        epsilons: That are measured; None is without noise.
        rates: Learning rates, all of which are shown.
        which: Aggregates of params.
        measure: What is compared, as a share.
        chance: Of it, what an answer has that looks at nothing.
        outputs: Aggregates of outputs.
        paper: Its figures: of what, and what it says.
        public: Options of a public run before, without privacy, from whose last model and whose
            average private runs start; None for none.
        seeds: Of every run.
        by_user: Whether it is of a corpus, and measured on rostered users' held-out examples.
    """

    name: str
    title: str
    about: str
    make: Callable[[], Experiment]
    options: Mapping[str, Option]
    epsilons: Sequence[float | None]
    rates: Sequence[float]
    which: Aggregates
    measure: Measure
    chance: float
    outputs: Outputs = field(repr=False)
    paper: Sequence[tuple[str, str]]
    public: Mapping[str, Option] | None = None
    seeds: int = 3
    by_user: bool = False


def _accuracy(rule: Rule) -> OfOutputs:
    return OfOutputs(
        answer=lambda probabilities, labels: answers(rule, probabilities) == labels,
        measure=lambda right, labels: float(right.mean()),
    )


def _auc_loss() -> OfOutputs:
    def measure(scores: np.ndarray, labels: np.ndarray) -> float:
        total = auc_total(scores, labels)
        return total.sum / total.count

    return OfOutputs(
        answer=lambda probabilities, labels: mean_probabilities(probabilities)[:, 1],
        measure=measure,
    )


_LABELS: Outputs = {"OPA": _accuracy("opa"), "OMV": _accuracy("omv")}
_PHOTOGRAPHS: Mapping[str, Option] = {"network": "wide", "multiplicity": 16, "batch-size": 4096.0,
                                      "epochs": 100.0, "aggregate": "none"}  # fmt: skip
_FEW: Mapping[str, Option] = {"multiplicity": 1, "batch-size": 250.0, "epochs": 2.0,
                              "aggregate": "none"}  # fmt: skip
_LOSSY = "the reduced, lossy CIFAR-10 (10,000 images) and a network of 78,186 parameters"


def cifar10(*, reduced: bool) -> Problem:
    """Return classification of CIFAR-10 from nothing."""
    own = (
        f"Ours is {_LOSSY}, at ε = 8 where the paper's figure is at 1."
        if reduced
        else "Ours is WRN-16-4 with 16 views."
    )
    return Problem(
        name="recycling-cifar10",
        title="Recycling checkpoints on CIFAR-10",
        about="The paper compares with DP-SGD as per De et al.; that its network is WRN-16-4 is "
        f"remembered. {own}",
        make=dp_sgd_cifar,
        options=_FEW if reduced else _PHOTOGRAPHS,
        epsilons=(8.0, None) if reduced else (8.0, 1.0, None),
        rates=(2.0,) if reduced else (4.0, 2.0),
        which=Aggregates(decays=(0.9, 0.95) if reduced else (0.99, 0.999, 0.9999), ks=(5, 10, 20)),
        measure=ACCURACY,
        chance=0.1,
        outputs=_LABELS,
        paper=(
            (
                "ε = 1",
                "57.51 % trained over aggregates, +2.7 % of DP-SGD as per De et al. (56.0, "
                "implied; theirs is a moving average of its checkpoints)",
            ),
        ),
    )


def cifar100(*, reduced: bool) -> Problem:
    """Return classification of one half of the classes, after public training on the other."""
    own = (
        f"Ours is {_LOSSY}: five classes after public training on the other five, since CIFAR-100 "
        "cannot be had everywhere. It replaces the question and for no figure."
        if reduced
        else "Ours is fine-tuning on the last 50 classes after public training on the first 50."
    )
    halves: Mapping[str, Option] = {} if reduced else {"photographs": "cifar100"}
    options = {**(_FEW if reduced else _PHOTOGRAPHS), **halves}
    return Problem(
        name="recycling-cifar100",
        title="Recycling checkpoints of public training as a start, as on CIFAR-100",
        about="The paper fine-tunes on CIFAR-100 after pre-training on ImageNet, and starts from "
        f"the moving average of pre-training. {own}",
        make=dp_sgd_cifar,
        options={**options, "classes": "last-half"},
        epsilons=(8.0, 1.0),
        rates=(1.0,) if reduced else (2.0, 1.0),
        which=Aggregates(decays=(0.9,) if reduced else (0.99, 0.999), ks=(5, 10)),
        measure=ACCURACY,
        chance=0.2 if reduced else 0.02,
        outputs=_LABELS,
        paper=(
            ("ε = 1", "start from the average of pre-training: +5 % over De et al.; then "
             "training over aggregates +.89 % of that, 76.18 % (75.51, implied)"),
            ("ε = 8", "start from the average of pre-training: +3.2 % over De et al."),
        ),
        public={**options, "classes": "first-half", "noise": "none", "bound": "none",
                "aggregate": "ema", "ema-decay": 0.95 if reduced else 0.999,
                "learning-rate": 0.2, **({"epochs": 4.0} if reduced else {})},
    )  # fmt: skip


def conversions(*, reduced: bool) -> Problem:
    """Return prediction of conversions, of a synthetic log."""
    return Problem(
        name="recycling-pcvr",
        title="Recycling checkpoints of predicted conversions",
        about="The paper's log of ads is proprietary, and its model another. Ours is a logistic "
        "model of a SYNTHETIC log in Criteo's form; `-s log=FILE` of `fedpriv run "
        "dp-sgd-conversions` reads a real one.",
        make=dp_sgd_conversions,
        options={"log-rows": 2_000, "epochs": 2.0} if reduced else {"log-rows": 20_000},
        epsilons=(6.0, None) if reduced else (6.0, 1.0, None),
        rates=(64.0,) if reduced else (16.0, 64.0, 256.0),
        which=Aggregates(decays=(0.9, 0.95), ks=(5, 10, 20)),
        measure=AUC_LOSS,
        chance=0.5,
        outputs={"OPA": _auc_loss()},
        paper=(
            (
                "ε = 6",
                "trained over aggregates: AUC loss -.54 % of DP-SGD's; variance -62.6 % (over "
                "what, the text does not say)",
            ),
        ),
        seeds=3 if reduced else 20,
    )


def next_words(*, reduced: bool) -> Problem:
    """Return next-word prediction by user, by DP-FTRL whose noise is a binary tree's."""
    return Problem(
        name="recycling-words",
        title="Recycling checkpoints of next-word prediction, by user",
        about="The paper trains on next words of StackOverflow by DP-FTRL (remembered: an LSTM of "
        "4,050,748 parameters, 342,477 users). Ours is an LSTM of at most 158,532 parameters on a "
        "small site, from a model of public sentences, by DP-FTRL with a binary tree's noise, "
        "without momentum.",
        make=dp_fedavg_words,
        options={
            "sampling": "cyclic",
            "min-separation": 10,
            "noise": "tree",
            "server": "ftrl",
            "server-momentum": 0.0,
            **({"rounds": 3, "measured-sentences": 200} if reduced else {"rounds": 40}),
        },
        epsilons=(8.0, None),
        rates=(1.0,) if reduced else (0.5, 1.0, 2.0),
        which=Aggregates(decays=(0.8,) if reduced else (0.8, 0.9), ks=(3,) if reduced else (5, 10)),
        measure=WORD_ACCURACY,
        chance=0.039,
        outputs=_LABELS,
        paper=(
            ("ε = 8.2", "22.74 % trained over aggregates, +2.09 % of DP-FTRL's (22.27, implied)"),
            ("ε = 18.9", "23.90 % trained over aggregates, +2.09 % of DP-FTRL's (23.41, implied)"),
        ),
        by_user=True,
    )


#: Those by example.
PROBLEMS: Mapping[str, Callable[..., Problem]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "pcvr": conversions,
}


def within(problem: Problem, folder: str) -> Problem:
    """Return the problem with photographs of this folder."""
    public = None if problem.public is None else {**problem.public, "folder": folder}
    return replace(problem, options={**problem.options, "folder": folder}, public=public)


FRESH = "from nothing"
_STARTS = {"from the last public model": "last", "from the average of public models": "ema"}


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One column of a table.

    Attributes:
        start: What training starts from.
        epsilon: Of it, infinite without noise.
        rate: The learning rate.
    """

    start: str
    epsilon: float
    rate: float

    def words(self) -> str:
        """Return what it is called."""
        noise = kind_of(None if math.isinf(self.epsilon) else self.epsilon)
        return f"{noise}, rate {self.rate:g}, {self.start}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Results of the runs.

    Attributes:
        values: By case and by method, the measure, one for each seed.
        data: What is said of the data.
        synthetic: Whether they are.
        guarantee: What every ε is.
        devices: Where they were trained, if not by the processor's path.
    """

    values: Mapping[Case, Mapping[str, np.ndarray]]
    data: str
    synthetic: bool
    guarantee: str
    devices: str = ""


def trained(problem: Problem, corpus: Corpus | None = None, device: str | None = None) -> Found:
    """Train all runs of a problem and return what they gave.

    Args:
        problem: What is asked.
        corpus: Where it is by user.
        device: Where they are trained, as `fedpriv run --device`; the page names it.

    Raises:
        ValueError: If its data cannot be had.
    """
    values: dict[Case, dict[str, np.ndarray]] = {}
    facts: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    starts = 1 + len(_STARTS) * (problem.public is not None)
    pace = Pace(starts * len(problem.epsilons) * len(problem.rates) * problem.seeds)
    for case, options in _cases(problem):
        own: list[Mapping[str, float]] = []
        for seed in range(problem.seeds):
            experiment = problem.make().with_options({**options, "seed": seed})
            train = partial(_row, problem, experiment, corpus, device)
            facts = pace.work(f"{problem.name} {case.words()}, seed {seed}", train)
            rows.append(facts)
            own.append(facts["values"])
        values[case] = {name: np.array([one[name] for one in own]) for name in own[0]}
    return Found(
        values=values,
        data=facts["data"],
        synthetic=facts["synthetic"],
        guarantee=facts["guarantee"],
        devices=trained_on(rows),
    )


def _cases(problem: Problem) -> Iterator[tuple[Case, dict[str, Option]]]:
    starts: dict[str, dict[str, Option]] = {FRESH: {}}
    if problem.public is not None:
        for name, which in _STARTS.items():
            starts[name] = {
                "start": "file",
                "start-file": str(_public_file(problem)),
                "start-which": which,
            }
    rate_of = "server-learning-rate" if problem.by_user else "learning-rate"
    for start, more in starts.items():
        for epsilon in problem.epsilons:
            private: dict[str, Option] = {"target-epsilon": epsilon}
            if epsilon is None:
                private["noise"] = "none"
            for rate in problem.rates:
                case = Case(start, np.inf if epsilon is None else epsilon, rate)
                yield case, {**problem.options, **more, **private, rate_of: rate}


def _row(
    problem: Problem, experiment: Experiment, corpus: Corpus | None, device: str | None
) -> dict[str, Any]:
    if problem.public is not None and not (file := _public_file(problem)).exists():
        _train_public(_public_experiment(problem), file, device)
    made = build(experiment, corpus)
    task: Any = made.task
    past = averages(checkpoints(experiment, made, experiment.seed, device), problem.which)
    plan = made.plan
    assert plan.delta is not None
    data = task.describe()
    kinds = "users" if problem.by_user else "training examples"
    drawn = "groups in turn" if problem.by_user else "Poisson batches"
    return {
        **on_device(device),
        "values": measured(problem, task, past),
        "synthetic": bool(data.synthetic),
        "data": f"{data.name}, {data.num_users:,} {kinds}",
        "guarantee": f"δ = {format_delta(plan.delta)}, {plan.unit}-level, {plan.relation.value}, "
        f"PLD, {drawn}",
    }


def measured(problem: Problem, task: Any, past: Averages) -> dict[str, float]:
    """Return the measure of every aggregate of a run's checkpoints, by name.

    Args:
        problem: Says what is measured.
        task: Whose test set it is, or whose rostered users' held-out examples.
        past: All its checkpoints.
    """
    public = not problem.by_user
    values = {
        name: float(task.evaluate(params, public=public).get(problem.measure.name))
        for name, params in past.models().items()
    }
    labels: list[np.ndarray] = []
    found: dict[tuple[str, int], list[np.ndarray]] = defaultdict(list)
    models = [task.class_scores(params, public=public) for params in past.recent]
    for blocks in zip(*models, strict=True):  # of all models at once, so that few are in memory
        labels.append(blocks[0][1])
        scores = [probabilities for probabilities, _ in blocks]
        for kind, of in problem.outputs.items():
            for k in problem.which.ks:
                found[kind, k].append(of.answer(scores[-k:], labels[-1]))
    every = np.concatenate(labels)
    for (kind, k), parts in found.items():
        values[f"{kind} {k}"] = problem.outputs[kind].measure(np.concatenate(parts), every)
    return values


def _public_experiment(problem: Problem) -> Experiment:
    assert problem.public is not None
    return problem.make().with_options({**problem.public, "seed": 0})


def _public_file(problem: Problem) -> Path:
    """Return the cache's file of a public run's last model and of its average."""
    experiment = _public_experiment(problem)
    name = document_sha256({"name": experiment.name, **experiment.options()})[:16]
    return cache_dir() / "recycling" / f"public-{name}.safetensors"


def _train_public(experiment: Experiment, file: Path, device: str | None) -> None:
    made = build(experiment, None)
    (state,) = deque(states(experiment, made, experiment.seed, device), maxlen=1)
    algorithm: Any = made.algorithm
    average = algorithm.result(state)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(file, {**state.params, **{f"ema/{n}": a for n, a in average.items()}})


Values = Mapping[str, np.ndarray]


def page(problem: Problem, found: Found, *, command: str, picture: str = "") -> str:
    """Return the page.

    Args:
        problem: What was asked.
        found: What the runs gave.
        command: That makes it.
        picture: Address of the plot; "" for none.
    """
    return render(
        "checkpoint_recycling/problems.md.jinja",
        problem=problem, found=found, command=command, picture=picture, verdict=verdict,
        synthetic=synthetic_words(found.synthetic), starts_table=_starts_table,
        gains_table=partial(_gains_table, problem), summary=_summary(problem, found),
    )  # fmt: skip


def _gains_table(problem: Problem, values: Values) -> str:
    base, rows = _stddev(values[LAST]), []
    for name, own in values.items():
        deviation = f" ({_stddev(own):.2f})" if len(own) > 1 else ""
        gain = "" if name == LAST else _gain_words(gains(problem, values, name))
        variance = ""
        if name != LAST and base:
            variance = f"{100 * ((_stddev(own) / base) ** 2 - 1):+.0f} %"
        rows.append([name, f"{100 * own.mean():.2f}{deviation}", gain, variance])
    head = ["", problem.measure.label, "gain", "variance over seeds, of the last iterate's"]
    return table(head, rows)


def gains(problem: Problem, values: Values, name: str) -> np.ndarray:
    """Return by how many points each seed is better than its last iterate, `(seeds,)`."""
    apart = 100 * (values[name] - values[LAST])
    return apart if problem.measure.higher_is_better else -apart


def verdict(problem: Problem, values: Values) -> str:
    """Return which aggregates are clearly better or worse than the last iterate."""
    if len(values[LAST]) < 2:
        return "One seed says nothing of differences."
    above = 100 * (values[LAST] - problem.chance)
    if (above.mean() if problem.measure.higher_is_better else -above.mean()) <= t_half(above):
        return "No signal: the last iterate is not clearly better than chance."
    groups: dict[str, list[str]] = {"better": [], "worse": []}
    for name in values:
        gain = gains(problem, values, name)
        if name != LAST and abs(gain.mean()) > t_half(gain):
            groups["better" if gain.mean() > 0 else "worse"].append(name)
    shown = [f"clearly {kind}: {', '.join(names)}" for kind, names in groups.items() if names]
    return f"Over seeds {'; '.join(shown)}." if shown else "No difference over seeds is clear."


def _summary(problem: Problem, found: Found) -> list[str]:
    """Return for every start and ε the rate that suits the last iterate best, and every verdict.

    Nothing of one rate, which is no choice.
    """
    groups: dict[str, dict[float, Values]] = defaultdict(dict)
    for case, values in found.values.items():
        if len(problem.rates) > 1:
            groups[case.words().replace(f", rate {case.rate:g}", "")][case.rate] = values
    lines = []
    for place, by_rate in groups.items():
        sign = -1 if problem.measure.higher_is_better else 1
        best = min(by_rate, key=lambda rate, own=by_rate: sign * own[rate][LAST].mean())
        edge = ", an edge of what was tried" * (best in (min(by_rate), max(by_rate)))
        said = [f"{place}: the last iterate is best at rate {best:g}{edge}"]
        for rate, values in by_rate.items():
            ratios = [(_stddev(v) / _stddev(values[LAST])) ** 2 for n, v in values.items()
                      if n != LAST and _stddev(values[LAST])]  # fmt: skip
            changed = ""
            if ratios:
                low, high = (100 * (ratio - 1) for ratio in (min(ratios), max(ratios)))
                changed = f" (variance over seeds {low:+.0f} to {high:+.0f} %)"
            words = verdict(problem, values)
            said.append(f"at {rate:g}: {words[0].lower()}{words[1:-1]}{changed}")
        lines.append("; ".join(said))
    return lines


def _starts_table(found: Found) -> str:
    """Return what starting from the average of public models brings the last iterate."""
    _, last, average = dict.fromkeys(case.start for case in found.values)
    rows = []
    for case, values in found.values.items():
        if case.start == average:
            other = found.values[Case(last, case.epsilon, case.rate)]
            rows.append([case.words(), _gain_words(100 * (values[LAST] - other[LAST]))])
    return table(["", "gain of the last iterate over the other start, points"], rows)


def _gain_words(gain: np.ndarray) -> str:
    half = t_half(gain)
    return f"{gain.mean():+.2f}" + (f" ± {half:.2f}" if math.isfinite(half) else " (one seed)")


def _stddev(values: np.ndarray) -> float:
    return 100 * float(values.std(ddof=1)) if len(values) > 1 else 0.0


def draw(problem: Problem, found: Found, path: Path) -> None:
    """Draw the gains of all aggregates over the last iterate."""
    names = [name for name in next(iter(found.values.values())) if name != LAST]
    figure = drawing(9.5, 1.6 + 0.42 * len(names))
    axis = figure.subplots()
    draw_gains(axis, names, [
        Marks(label=case.words(), color=f"C{number % 10}", gains={
            name: (float(gain.mean()), t_half(gain))
            for name in names for gain in [gains(problem, values, name)]
        })
        for number, (case, values) in enumerate(found.values.items())
    ])  # fmt: skip
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=7.5)
    data = "SYNTHETIC data" if found.synthetic else "real data"
    figure.suptitle(f"{problem.title}: gain over the last iterate, {data}", weight="bold")
    note_below(
        figure,
        f"points of {problem.measure.label}, above 0 is better; 95 % t-intervals over "
        f"{problem.seeds} paired seeds. ε at {found.guarantee}, simulated:\na diagnostic, not "
        "covered by ε.",
    )
    save(figure, path)


def reproduce(
    *,
    seeds: int | None = None,
    out: Path | None = None,
    plot: Path | None = None,
    device: str | None = None,
    what: str = "cifar10",
    folder: str | None = None,
    reduced: bool = False,
) -> None:
    """Train a problem by example, and publish its page.

    Args:
        seeds: Of every run; None for the problem's own.
        out: Where the page is written.
        plot: Where gains are drawn.
        device: Where is trained, as `fedpriv run --device`.
        what: Of `PROBLEMS`.
        folder: Of CIFAR's files; None to look around.
        reduced: Whether little, on two cores.

    Raises:
        ValueError: If a folder is given and not needed, or data cannot be had.
    """
    problem = PROBLEMS[what](reduced=reduced)
    if folder is not None and what == "pcvr":
        raise ValueError(f"folder {folder} is of photographs; the log is synthetic")
    if folder is not None:
        problem = within(problem, folder)
    _publish(problem, None, seeds, out, plot, device, reduced)


def reproduce_words(
    *,
    corpus: str | None = None,
    seeds: int | None = None,
    out: Path | None = None,
    plot: Path | None = None,
    device: str | None = None,
    reduced: bool = False,
) -> None:
    """Train next words, and publish the page; arguments as of `reproduce`.

    Args:
        corpus: A prepared corpus, a dump or a name; None to look around, and for a synthetic one
            where it is reduced.
        seeds: Of every run.
        out: Where the page is written.
        plot: Where gains are drawn.
        device: Where is trained.
        reduced: Whether little.

    Raises:
        ValueError: If there is no such corpus.
    """
    if corpus is None and reduced:
        of = synthetic_corpus()
    else:
        of = resolve_corpus(corpus, allow_synthetic=False)
    _publish(next_words(reduced=reduced), of, seeds, out, plot, device, reduced)


def _publish(
    problem: Problem,
    corpus: Corpus | None,
    seeds: int | None,
    out: Path | None,
    plot: Path | None,
    device: str | None,
    reduced: bool,
) -> None:
    if seeds is not None:
        problem = replace(problem, seeds=seeds)
    found = trained(problem, corpus, device)
    if plot is not None:
        draw(problem, found, plot)
    size = " --reduced" if reduced else ""
    command = f"python -m simulations {problem.name} --seeds {problem.seeds}{size}"
    picture = plot.name if plot else ""
    publish(page(problem, found, command=command, picture=picture), out)


REPRODUCTIONS = tuple(
    Study(
        name=f"recycling-{what}",
        title=f"Recycling checkpoints: {title}",
        run=reproduce_words if what == "words" else reproduce,
        options={} if what == "words" else {"what": what},
        reduced={"reduced": True},
        minutes=minutes,
    )
    for what, title, minutes in (
        ("cifar10", "DP-SGD on CIFAR-10", (2000, 10)),
        ("cifar100", "averages of public training as a start", (2000, 10)),
        ("pcvr", "predicted conversions, synthetic log", (10, 0.2)),
        ("words", "next words by user, tree noise", (130, 1)),
    )
)
