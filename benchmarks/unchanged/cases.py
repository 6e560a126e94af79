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
        corpus: Whether it trains on the made-up corpus of posts.
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
    corpus: bool = False
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


SMALL: dict[str, Option] = {"cohort": 6, "rounds": 4, "eval-every": 2}
RAY = ("--backend", "ray", "--workers", "2")
THREADS = ("--backend", "threads", "--workers", "2")


def tags(name: str, experiment: str = "adadps-tags", **more) -> RunCase:
    """Return a run on the corpus; its options go over the small ones."""
    options = {**SMALL, **more.pop("options", {})}
    return RunCase(
        name=f"tags: {name}", experiment=experiment, options=options, corpus=True, **more
    )


def own(name: str, function: str, **more) -> RunCase:
    """Return a run of an experiment of one's own."""
    return RunCase(name=name, experiment=f"own_experiments:{function}", **more)


def by_name(experiments: list[str]) -> list[RunCase]:
    """Return a run of every experiment that has a name, as it is."""
    # Nine rounds: DP² first preconditions in its sixth.
    return [
        tags(f"{name}, as listed", name, options={"rounds": 9, "users": "none"})
        for name in experiments
    ]


_FLOAT_SUM: dict[str, Option] = {"exact-sum": "false"}
_TOLD_NOISE: dict[str, Option] = {"noise-multiplier": 0.6}

TAGS = [
    tags(
        "both, frequency, mean inputs, momentum, EMA",
        options={
            **_TOLD_NOISE,
            "precondition": "both",
            "side-information": "frequency",
            "inputs": "tff",
            "server-optimizer": "ema-momentum",
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
            "server-optimizer": "yogi",
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
            "server-optimizer": "adagrad",
            "max-examples-per-user": 4,
        },
    ),
    tags("everybody every round", "dp-fedavg-tags", options={**_TOLD_NOISE, "cohort": 40}),
    tags(
        "stops early for its target",
        options={"noise-multiplier": 0.6, "target-epsilon": 2.5, "rounds": 6},
    ),
    tags("another seed, plain momentum", options={"seed": 3, "server-optimizer": "momentum"}),
    tags("a float sum, in this process", options=_FLOAT_SUM),
    tags("threads", backend=THREADS),
    tags("Ray", backend=RAY),
    tags("Ray, a float sum", backend=RAY, options=_FLOAT_SUM, compared="1e-6"),
    tags("Flower, three nodes", nodes=3),
    tags("Flower, one user a node", nodes=40),
    tags("Flower, two shards of four nodes", nodes=4, options={"shards": 2}),
    tags("Flower, a float sum", nodes=3, options=_FLOAT_SUM, compared="1e-6"),
    tags("killed after charge 2", dies=(2,)),
    tags("killed after charge 3", dies=(3,), options={"server-optimizer": "adam"}),
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
    own("dense model, past releases", "dense", options={"guide": "past-releases"}),
    own("dense model, Ray", "dense", backend=RAY),
    own("dense model, Ray, a float sum", "dense", backend=RAY, options=_FLOAT_SUM, compared="1e-6"),
    own("dense model, Flower, three nodes", "dense", nodes=3),
    own("dense model, killed after charge 2", "dense", dies=(2,)),
    own("dense model, killed after charge 3", "dense", dies=(3,)),
]


def examples(name: str, function: str = "logistic", **more) -> RunCase:
    """Return a centralised run."""
    return own(f"examples: {name}", function, **more)


def guided(guide: str, **options: Option) -> RunCase:
    """Return a centralised run with a guide."""
    more = {name.replace("_", "-"): value for name, value in options.items()}
    return examples(f"{guide}{', per epoch' if options else ''}", options={"guide": guide, **more})


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
        options={"micro-batch": 4, "guide": "public-rmsprop"},
    ),
    guided("public-rmsprop"),
    guided("public-rmsprop", refresh="epoch"),
    examples("public-adam, dense model", "perceptron", options={"guide": "public-adam"}),
    guided("public-adagrad"),
    guided("public-own"),
    guided("side-information"),
    guided("ideal"),
    guided("r-pub"),
    examples("adam-pub", options={"guide": "adam-pub", "optimizer": "ema-momentum"}),
    guided("mirror-descent"),
    examples("delayed", options={"guide": "delayed", "delay-plain": 3, "delay-preconditioned": 2}),
    examples("past-releases", options={"guide": "past-releases", "optimizer": "adam"}),
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
    examples("killed after charge 2", dies=(2,), options={"guide": "public-rmsprop"}),
    examples("killed after charge 3", "perceptron", dies=(3,)),
    examples(
        "killed after charges 5 and 9",
        dies=(5, 9),
        options={"guide": "delayed", "delay-plain": 3, "delay-preconditioned": 2},
    ),
    examples("secure", secure=True, compared="epsilon"),
]

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


def all_cases(experiments: list[str]) -> list[RunCase | FigureCase]:
    """Return every case, with a run of every experiment that has a name."""
    return [*by_name(experiments), *TAGS, *DENSE, *EXAMPLES, *FIGURES]
