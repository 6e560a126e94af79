"""What is recorded: small runs of everything, and how closely each must come out again.

bits       tensors, ε, noise multipliers and every released or measured figure, bit for bit
1e-6       tensors and figures to a relative 1e-6, for float sums that several workers add up
epsilon    ε, noise multiplier and counts only: secure noise is another one every time
1e-4       figures of a calibration to a relative 1e-4
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Compared = Literal["bits", "1e-6", "epsilon", "1e-4"]
Option = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCase:
    """One run into a folder.

    Attributes:
        name: Under which it is found again.
        experiment: A name of `fedpriv list`, or module:function.
        options: By the names that the command line and Flower's run-config share.
        corpus: What it trains on: "tags", the synthetic posts; "owners", a dump of threads whose
            askers are known; "" for data of its own.
        backend: Options of the backend; none is the default. Not of a run on Flower.
        nodes: Nodes of a run on Flower; 0 runs on the command line.
        dies: It is killed right after so many charges; with several numbers, several times.
        goes_on: Options of the backend with which it is resumed.
        secure: Without a seed.
        compared: How closely.
    """

    name: str
    experiment: str
    options: Mapping[str, Option] = field(default_factory=dict)
    corpus: Literal["", "tags", "owners"] = ""
    backend: tuple[str, ...] = ()
    nodes: int = 0
    dies: tuple[int, ...] = ()
    goes_on: tuple[str, ...] = ()
    secure: bool = False
    compared: Compared = "bits"


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureCase:
    """One command that prints figures as JSON."""

    name: str
    argv: tuple[str, ...]
    compared: Compared


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCase:
    """One study of `simulations/`, in the smallest size that it has.

    Attributes:
        name: Under which it is found again.
        argv: A command of fedpriv, or of a module named first; CORPUS, RESULTS and OUT stand for
            files and folders of the recorder.
        minutes: About how long it takes on one core. Those above one are recorded on demand.
        compared: How closely the numbers of its page and of its stored results are held.
    """

    name: str
    argv: tuple[str, ...]
    minutes: float = 1
    compared: Compared = "bits"


SMALL: dict[str, Option] = {"cohort": 6, "rounds": 4, "eval-every": 2, "delta": 0.01}
RAY = ("--backend", "ray", "--workers", "2")
THREADS = ("--backend", "threads", "--workers", "2")


def tags(name: str, experiment: str = "adadps-tags", **more) -> RunCase:
    """Return a run on the corpus; its options go over the small ones."""
    options = {**SMALL, **more.pop("options", {})}
    return RunCase(
        name=f"tags: {name}", experiment=experiment, options=options, corpus="tags", **more
    )


def own(name: str, function: str, **more) -> RunCase:
    """Return a run of an experiment of one's own."""
    return RunCase(name=name, experiment=f"own_experiments:{function}", **more)


# What a run as listed cannot go without: it is for other sizes.
_AS_LISTED: dict[str, dict[str, Option]] = {
    "adadps-ftrl-tags": {"cohort": "none", "rounds": 22},
    "agd-tags": {"iterations": 4},
    "bolt-on-tags": {"users-per-update": 8},
}


def by_name(experiments: list[str]) -> list[RunCase]:
    """Return a run of every federated experiment that has a name, as it is."""
    # Nine rounds: DP² first preconditions in its sixth.
    usual: dict[str, Option] = {"cohort": 6, "rounds": 9, "eval-every": 2}
    return [
        RunCase(
            name=f"tags: {name}, as listed",
            experiment=name,
            options=_AS_LISTED.get(name, usual) | {"users": "none"},
            corpus="tags",
        )
        for name in experiments
    ]


_FLOAT_SUM: dict[str, Option] = {"exact-sum": "false"}
_TOLD_NOISE: dict[str, Option] = {"noise-multiplier": 0.6}

# Everything that decides a run of adadps-tags, whatever its defaults become.
SPELLED_OUT: dict[str, Option] = {
    "roster": "synthetic-40",
    "users": "none",
    "inputs": "unit-norm",
    "pairs": 0,
    "split": "by-thread",
    "fold": 0,
    "measured-on": "test",
    "public-users": "none",
    "public-text": "public-threads",
    "owners": "account",
    "start": "public",
    "method": "averaging",
    "rounds": 100,
    "sampling": "poisson",
    "cohort": 2.0,
    "cohort-cap": "none",
    "bound": "clip",
    "l2-clip-norm": 60.0,
    "clip-norm": "fixed",
    "noise": "gaussian",
    "noise-multiplier": "none",
    "target-epsilon": 8.0,
    "exact-sum": "true",
    "delta": 0.0172,
    "relation": "add-remove",
    "local-learning-rate": 30.0,
    "local-batch-size": 100,
    "local-epochs": 1,
    "max-examples-per-user": 256,
    "precondition": "local",
    "side-information": "rank",
    "preconditioner-gain": 20.0,
    "preconditioner-top": 100,
    "release-preconditioner": "none",
    "server": "sgd",
    "server-learning-rate": 1.0,
    "aggregate": "none",
    "seed": 0,
    "eval-every": 10,
}
_START_GIVEN: dict[str, Option] = {
    "start-learning-rate": 100.0,
    "start-passes": 4,
    "start-factor": 0.5,
}
SPELLED = [
    tags("spelled out, ε 8", options=SPELLED_OUT),
    tags("spelled out, ε 2", options={**SPELLED_OUT, "target-epsilon": 2.0}),
    tags("spelled out, ε 8, start given", options={**SPELLED_OUT, **_START_GIVEN}),
    tags(
        "spelled out, ε 2, another seed and fold",
        options={**SPELLED_OUT, **_START_GIVEN, "target-epsilon": 2.0, "seed": 1, "fold": 1},
    ),
    tags(
        "spelled out, ε 8, adaptive clip norm",
        options={**SPELLED_OUT, "clip-norm": "adaptive", "rounds": 12},
    ),
    tags("spelled out, ε 8, Flower", nodes=3, options={**SPELLED_OUT, "rounds": 12}),
]

# Correlated noise, released models made one, budgets that adapt, a result that is perturbed.
_SEPARATED: dict[str, Option] = {
    "rounds": 12, "sampling": "separated", "min-separation": 4, "noise-multiplier": 2.0,
}  # fmt: skip
_STREAMS: dict[str, dict[str, Option]] = {
    "tree": {"noise": "tree"},
    "tree, restarted and completed": {"noise": "tree", "restart": 5, "completion": "true"},
    "banded": {"noise": "banded"},
    "three bands of a series": {"noise": "banded", "bands": 3, "coefficients": "square-root"},
    "BLT": {"noise": "blt", "buffers": 2},
}
_AGGREGATES: dict[str, dict[str, Option]] = {
    "EMA": {"aggregate": "ema", "ema-decay": 0.7, "ema-warmup": "true"},
    "EMA, trained on": {"aggregate": "ema", "aggregate-training": "replace"},
    "UPA": {"aggregate": "upa", "aggregate-k": 3},
    "UPA, gradients at it": {
        "aggregate": "upa", "aggregate-training": "gradient-only", "aggregate-start": 2,
    },
    "OPA": {"aggregate": "opa", "aggregate-k": 2},
    "OMV": {"aggregate": "omv", "aggregate-k": 2},
}  # fmt: skip
_AGD: dict[str, Option] = {
    "method": "agd", "iterations": 5, "num-steps": 6, "target-epsilon": 8.0, "delta": 0.01,
    "eval-every": 2,
}  # fmt: skip
_BOLT_ON: dict[str, Option] = {"method": "bolt-on", "target-epsilon": 4.0, "step-rate": 0.5}
_OF_USERS: dict[str, Option] = {**_BOLT_ON, "users-per-update": 8}
_OF_EXAMPLES: dict[str, Option] = {**_BOLT_ON, "batch-size": 12, "delta": "none"}


def method(name: str, experiment: str, options: dict[str, Option], **more) -> RunCase:
    """Return a run on the corpus by another method than averaging."""
    return RunCase(
        name=f"tags: {name}", experiment=experiment, options=options, corpus="tags", **more
    )


LATER = [
    *(tags(name, "dp-fedavg-tags", options=_SEPARATED | more) for name, more in _STREAMS.items()),
    tags(
        "banded, cyclic, ftrl",
        "adadps-ftrl-tags",
        options={
            "cohort": "none", "rounds": 12, "sampling": "cyclic", "min-separation": 4,
            "noise": "banded", "server": "ftrl", "noise-multiplier": 2.0,
        },
    ),
    tags(
        "banded, killed after its charge",
        "dp-fedavg-tags",
        dies=(1,),
        options=_SEPARATED | _STREAMS["banded"],
    ),
    tags(
        "banded, secure",
        "dp-fedavg-tags",
        secure=True,
        compared="epsilon",
        options=_SEPARATED | _STREAMS["banded"],
    ),
    # Of several models none is selected.
    *(
        tags(name, options=_TOLD_NOISE | more | ({"select": "last"} if name[0] == "O" else {}))
        for name, more in _AGGREGATES.items()
    ),
    method("AGD", "agd-tags", _AGD),
    method("AGD, killed after charge 3", "agd-tags", _AGD, dies=(3,)),
    method(
        "AGD, plain prices, discarded, permute and flip",
        "agd-tags",
        {**_AGD, "conversion": "plain", "prices": "paper", "estimates": "discard",
         "selection": "permute-and-flip", "start": "fresh"},
    ),
    method("bolt-on", "bolt-on-tags", _OF_USERS),
    method(
        "bolt-on, Gaussian",
        "bolt-on-tags",
        {**_OF_USERS, "output-noise": "gaussian", "delta": 0.01, "passes": 2},
    ),
    method("bolt-on, secure", "bolt-on-tags", _OF_USERS, secure=True, compared="epsilon"),
    RunCase(
        name="owners: all",
        experiment="adadps-tags",
        options={**SMALL, **_TOLD_NOISE, "owners": "all"},
        corpus="owners",
    ),
    RunCase(
        name="owners: account",
        experiment="adadps-tags",
        options={**SMALL, **_TOLD_NOISE, "owners": "account"},
        corpus="owners",
    ),
]  # fmt: skip

TAGS = [
    tags(
        "both, frequency, mean inputs, momentum, EMA",
        options={
            **_TOLD_NOISE,
            "precondition": "both",
            "side-information": "frequency",
            "inputs": "tff",
            "server": "ema-momentum",
            "aggregate": "ema",
            "local-epochs": 2,
            "local-batch-size": 3,
        },
    ),
    tags(
        "scale then privatise, tf-idf, fixed cohorts, replace-one, yogi",
        options={
            **_TOLD_NOISE,
            "precondition": "scale-then-privatise",
            "side-information": "tf-idf",
            "sampling": "fixed",
            "relation": "replace-one",
            "server": "yogi",
        },
    ),
    tags(
        "capped cohorts, normalised, adagrad, 30 users",
        options={
            **_TOLD_NOISE,
            "users": 30,
            "cohort-cap": 12,
            "bound": "normalise",
            "normalise-regulariser": 0.5,
            "server": "adagrad",
            "max-examples-per-user": 4,
        },
    ),
    tags("everybody every round", "dp-fedavg-tags", options={**_TOLD_NOISE, "cohort": 40}),
    tags(
        "stops early for its target",
        options={"noise-multiplier": 0.6, "target-epsilon": 2.5, "rounds": 6},
    ),
    tags("another seed, plain momentum", options={"seed": 3, "server": "momentum"}),
    tags("a float sum, in this process", options=_FLOAT_SUM),
    tags("threads", backend=THREADS),
    tags("Ray", backend=RAY),
    tags("Ray, a float sum", backend=RAY, options=_FLOAT_SUM, compared="1e-6"),
    tags("Flower, three nodes", nodes=3),
    tags("Flower, one user a node", nodes=40),
    tags("Flower, two shards of four nodes", nodes=4, options={"shards": 2}),
    tags("Flower, a float sum", nodes=3, options=_FLOAT_SUM, compared="1e-6"),
    tags("killed after charge 2", dies=(2,)),
    tags("killed after charge 3", dies=(3,), options={"server": "adam"}),
    tags("killed after charges 2 and 5", "dp2-tags", dies=(2, 5), options={"rounds": 8}),
    tags("killed after charge 2, goes on on Ray", dies=(2,), goes_on=RAY),
    tags("Ray, killed after charge 3", dies=(3,), backend=RAY, goes_on=RAY),
    tags("Flower, killed after charge 2", dies=(2,), nodes=3),
    tags("Flower, killed after charge 3", dies=(3,), nodes=3),
    tags("secure", secure=True, compared="epsilon"),
]

DENSE = [
    own("dense model", "dense"),
    own("dense model, four users at once", "dense_at_once"),
    own("dense model, without noise", "dense", options={"noise": "none", "bound": "none"}),
    own("dense model, a float sum", "dense", options=_FLOAT_SUM),
    own("dense model, past releases", "dense", options={"release_preconditioner": "past-releases"}),
    own("dense model, Ray", "dense", backend=RAY),
    own("dense model, Ray, a float sum", "dense", backend=RAY, options=_FLOAT_SUM, compared="1e-6"),
    own("dense model, Flower, three nodes", "dense", nodes=3),
    own("dense model, killed after charge 2", "dense", dies=(2,)),
    own("dense model, killed after charge 3", "dense", dies=(3,)),
]


def examples(name: str, function: str = "logistic", **more) -> RunCase:
    """Return a centralised run."""
    return own(f"examples: {name}", function, **more)


def preconditioned(name: str, **options: Option) -> RunCase:
    """Return a centralised run with a preconditioner."""
    more = {option.replace("_", "-"): value for option, value in options.items()}
    return examples(
        f"{name}{', per epoch' if options else ''}", options={"preconditioner": name, **more}
    )


EXAMPLES = [
    examples("DP-SGD"),
    examples("DP-SGD, dense model", "perceptron"),
    examples("DP-Adam, convolution", "convolution", options={"optimizer": "adam"}),
    examples(
        "DP-NSGD",
        "perceptron",
        options={"bound": "normalise", "normalise-regulariser": 0.1},
    ),
    examples("micro-batches of 4", "perceptron", options={"micro-batch": 4}),
    examples(
        "micro-batches of 4, AdaDPS",
        options={"micro-batch": 4, "preconditioner": "public-rmsprop"},
    ),
    preconditioned("public-rmsprop"),
    preconditioned("public-rmsprop", refresh="epoch"),
    examples("public-adam, dense model", "perceptron", options={"preconditioner": "public-adam"}),
    preconditioned("public-adagrad"),
    preconditioned("public-own"),
    preconditioned("side-information"),
    preconditioned("ideal"),
    preconditioned("r-pub"),
    examples("adam-pub", options={"preconditioner": "adam-pub", "optimizer": "ema-momentum"}),
    preconditioned("mirror-descent"),
    examples(
        "delayed",
        options={"preconditioner": "delayed", "delay-plain": 3, "delay-preconditioned": 2},
    ),
    examples("past-releases", options={"preconditioner": "past-releases", "optimizer": "adam"}),
    examples("warm start", "perceptron", options={"warm-start-epochs": 2}),
    examples(
        "calibrated, rmsprop, cyclic, EMA",
        options={
            "target-epsilon": 2.0,
            "optimizer": "rmsprop",
            "schedule": "cyclic",
            "aggregate": "ema",
        },
    ),
    examples("without noise", options={"noise": "none", "bound": "none", "optimizer": "adagrad"}),
    examples("killed after charge 2", dies=(2,), options={"preconditioner": "public-rmsprop"}),
    examples("killed after charge 3", "perceptron", dies=(3,)),
    examples(
        "killed after charges 5 and 9",
        dies=(5, 9),
        options={"preconditioner": "delayed", "delay-plain": 3, "delay-preconditioned": 2},
    ),
    examples("secure", secure=True, compared="epsilon"),
    examples(
        "banded",
        options={"sampling": "cyclic", "min-separation": 4, "noise": "banded"},
    ),
    examples("AGD", options=_AGD),
    examples("bolt-on", options=_OF_EXAMPLES),
    examples("bolt-on, secure", options=_OF_EXAMPLES, secure=True, compared="epsilon"),
    *(
        examples(f"aggregate {name}", "perceptron", options=more)
        for name, more in _AGGREGATES.items()
    ),
]  # fmt: skip

_POPULATION = ("--users", "400", "--cohort", "20", "--rounds", "100")
_FIXED = ("--sampling", "fixed")

FIGURES = [
    FigureCase(name="list", argv=("list",), compared="bits"),
    FigureCase(
        name="calibrate: ε = 2",
        argv=("calibrate", *_POPULATION, "--target-epsilon", "2"),
        compared="1e-4",
    ),
    FigureCase(
        name="calibrate: ε = 8, many users",
        argv=("calibrate", "--users", "6716", "--cohort", "350", "--rounds", "100",
              "--target-epsilon", "8"),
        compared="1e-4",
    ),
    FigureCase(
        name="calibrate: ε = 1, few examples",
        argv=("calibrate", "--users", "20000", "--cohort", "64", "--rounds", "3000",
              "--target-epsilon", "1", "--delta", "4e-5"),
        compared="1e-4",
    ),
    FigureCase(
        name="calibrate: fixed cohorts, replace-one",
        argv=("calibrate", *_POPULATION, "--target-epsilon", "4", *_FIXED),
        compared="1e-4",
    ),
    FigureCase(
        name="calibrate: capped cohorts",
        argv=("calibrate", *_POPULATION, "--target-epsilon", "4", "--cap", "60"),
        compared="1e-4",
    ),
    FigureCase(
        name="account: Poisson cohorts",
        argv=("account", *_POPULATION, "--noise-multiplier", "1"),
        compared="bits",
    ),
    FigureCase(
        name="account: replace-one",
        argv=("account", *_POPULATION, "--noise-multiplier", "1", "--relation", "replace-one"),
        compared="bits",
    ),
    FigureCase(
        name="account: fixed cohorts",
        argv=("account", *_POPULATION, "--noise-multiplier", "1", *_FIXED),
        compared="bits",
    ),
    FigureCase(
        name="account: capped cohorts",
        argv=("account", *_POPULATION, "--noise-multiplier", "1", "--cap", "45"),
        compared="bits",
    ),
    FigureCase(
        name="account: everybody",
        argv=("account", "--users", "400", "--cohort", "400", "--rounds", "10",
              "--noise-multiplier", "20"),
        compared="bits",
    ),
]  # fmt: skip


def study(name: str, minutes: float = 1, *more: str) -> StudyCase:
    """Return a case of `fedpriv reproduce NAME --reduced` with one seed."""
    argv = ("reproduce", name, "--reduced", *more)
    if name not in ("adadps-figure2", "dpnsgd-figure3-mnist"):  # which print, and store nothing
        argv += ("--results", "RESULTS", "--out", "OUT")
    return StudyCase(name=f"study: {name}", argv=argv, minutes=minutes)


_CORPUS = ("--corpus", "CORPUS")
_ONE_SEED = ("--seeds", "1")

STUDIES = [
    study("adadps-figure1-imdb", 4, *_ONE_SEED),
    study("adadps-figure2", 0.5),
    study("adadps-figure3", 0.2),
    study("adadps-figure6", 8, *_ONE_SEED),
    study("adadps-table1-autoencoder", 6, *_ONE_SEED),
    study("adadps-table6-lstm", 5, *_ONE_SEED),
    study("adadps-table6-tags", 5, *_ONE_SEED),
    study("adadps-table6-mnist", 5, *_ONE_SEED),
    study("adadps-table7-imdb", 4, *_ONE_SEED),
    study("agd-mnist-3-8", 0.5, *_ONE_SEED),
    study("bolt-on-mnist", 0.3, *_ONE_SEED),
    study("bolt-on-mnist-ova", 0.3, *_ONE_SEED),
    study("bolt-on-pair-svm", 0.3, *_ONE_SEED),
    study("dpnsgd-figure2-mnist", 1, *_ONE_SEED),
    study("dpnsgd-figure3-mnist", 1, *_ONE_SEED),
    study("recycling-cifar10", 10, *_ONE_SEED),
    study("recycling-convex", 0.5),
    study("recycling-pcvr", 0.2, *_ONE_SEED),
    study("recycling-pds", 1, *_ONE_SEED, *_CORPUS),
    study("recycling-stackoverflow", 1, *_ONE_SEED, *_CORPUS),
    study("tags", 6, *_ONE_SEED, *_CORPUS),
    study("ablation-tags", 10, *_ONE_SEED, *_CORPUS),
]


def all_cases(experiments: list[str]) -> list[RunCase | FigureCase | StudyCase]:
    """Return every case, with a run of every experiment that has a name."""
    runs = [*by_name(experiments), *SPELLED, *TAGS, *LATER, *DENSE, *EXAMPLES]
    return [*runs, *FIGURES, *STUDIES]
