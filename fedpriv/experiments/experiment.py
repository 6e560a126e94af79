"""Experiments: one frozen value with everything that decides a run.

An experiment is a Python function that returns an `Experiment`. There is one class for each method
and unit of privacy; `FederatedExperiment` is federated averaging of users, `CentralExperiment`
DP-SGD and its like on examples. Their fields are options and parts (`fedpriv.experiments.options`),
whose dotted names are the same on the command line, in TOML, in a run folder and under Flower.

>>> experiment = FederatedExperiment(
...     name="demo", description="A demonstration.", noise=GaussianNoise(target_epsilon=8.0)
... )
>>> experiment.with_options({"bound": "normalise", "l2-clip-norm": 2}).bound
Normalised(l2_clip_norm=2.0, normalise_regulariser=0.0)
>>> experiment.with_options({"l2-clip-norms": 2})
Traceback (most recent call last):
    ...
ValueError: 'l2-clip-norms' is not an option of an experiment; did you mean 'l2-clip-norm'?
>>> experiment.with_options({"ema-decay": 0.5})
Traceback (most recent call last):
    ...
ValueError: ema-decay belongs to aggregate 'ema'; this experiment has aggregate 'none': set \
aggregate too, or leave ema-decay out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments import examples as central
from fedpriv.experiments import preconditioning as guides
from fedpriv.experiments import server as servers
from fedpriv.experiments import users as federated
from fedpriv.experiments.mechanism import (
    BandedNoise,
    BufferedNoise,
    Clipped,
    CyclicBatches,
    CyclicCohorts,
    GaussianNoise,
    NoBound,
    NoNoise,
    Normalised,
    SeparatedBatches,
    SeparatedCohorts,
    TreeNoise,
)
from fedpriv.experiments.methods import (
    AgdOfExamples,
    AgdOfUsers,
    BoltOnOfExamples,
    BoltOnOfUsers,
    OwnMethod,
)
from fedpriv.experiments.options import (
    Names,
    Option,
    OptionLine,
    assembled,
    check_fields,
    chosen,
    declared,
    entries,
    kebab,
    option,
    place,
    values_of,
)
from fedpriv.experiments.start import Fresh, FromFile, FromPublic
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.mechanisms import Bound, preconditioners
from fedpriv.privacy.event import Relation
from fedpriv.ranges import Range

Unit = Literal["user", "example"]
#: From an experiment and a corpus, or from an experiment alone, to its task.
TaskFactory = Callable[["Experiment", Corpus | None], Any] | Callable[["Experiment"], Any]

#: Options that can be chosen from the data's size (`fedpriv.experiments.settings`).
AUTOMATIC = ("sampling.cohort", "rounds", "bound.l2_clip_norm", "start.factor")


# No slots: a frozen class with slots has no words for an option that somebody assigns to.
@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides a run; base of the classes of each method and unit.

    Attributes:
        name: Its name for `fedpriv run`.
        description: One line for lists and reports.
        task: Makes the task from this experiment and a corpus, or None, or from this experiment
            alone. A frozen dataclass that can be called so declares options: its fields.
        start: The params before the first round.
        delta: δ; None for n^-1.1.
        relation: Neighbouring relation; None for the one that the method or sampling is proved for.
        seed: Of a simulation.
        eval_every: Rounds between evaluations.
        backends: Those that it claims to run on.
        statistics: User-defined moments and preconditioner, for guide "public-own".
        refine: Makes the components that run of those that the options describe, for a user-defined
            privatizer, sampler, bound or preconditioner; None leaves them. It cannot replace the
            task and its trainer: workers and nodes make those for themselves.
        bounds: User-defined bounds that `refine` puts in, by their names: what makes them of their
            fields. A node makes no bound but these and those of the options.
        automatic: Options whose values are chosen from the data's size when components are built,
            by their paths (`AUTOMATIC`); until then they have the values that hold where nothing
            can be chosen.
        presets: Values of options of parts that `with_options` may choose later, where it is given
            no others.

    Raises:
        ValueError: For a value that is not one of its option's or out of its range, or options that
            do not fit.
    """

    unit: ClassVar[Unit] = "user"
    method: ClassVar[str] = "averaging"

    name: str
    description: str
    task: TaskFactory = field(repr=False)
    start: Fresh | FromPublic | FromFile = place(
        Fresh(),
        "What training starts from: public costs no privacy and protects no public user; "
        "`--start FILE` is file.",
    )
    delta: float | None = option(None, "δ; none for n^-1.1.", Range.BETWEEN)
    relation: Literal["add-remove", "replace-one", "zero-out"] | None = option(
        None, "How two neighbouring data sets differ; none for what the method is proved for."
    )
    seed: int = option(0, "Of the simulation.")
    eval_every: int = option(
        10, "Rounds between evaluations; the last is always evaluated.", Range.AT_LEAST_ONE
    )
    backends: tuple[str, ...] = ("serial", "threads", "ray", "flower")
    statistics: preconditioners.Statistics | None = field(default=None, repr=False)
    refine: Callable[[Any], Any] | None = field(default=None, repr=False)
    bounds: Mapping[str, Callable[..., Bound]] = field(default_factory=dict, repr=False, hash=False)
    automatic: tuple[str, ...] = field(default=(), compare=False)
    presets: Mapping[str, Option] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check and convert every option."""
        check_fields(self)
        for path in self.automatic:
            if path not in AUTOMATIC:
                raise ValueError(
                    f"automatic {path!r} cannot be chosen from the data's size; use some of "
                    f"{', '.join(AUTOMATIC)}"
                )

    def own(self) -> OwnMethod | None:
        """Return the method with its plan and algorithm; None for averaging, made of parts."""
        return None

    def neighbours(self) -> Relation:
        """Return the neighbouring relation."""
        return Relation.of("add-remove" if self.relation is None else self.relation)

    def known_bounds(self) -> dict[str, Callable[..., Bound]]:
        """Return constructors of the bounds that requests may name, by name."""
        return dict(self.bounds)

    def options(self) -> dict[str, Option]:
        """Return the value of every option, and the kind of every part, by path."""
        of_task = values_of(self.task, "task.") if _declares(self.task) else {}
        return {"method": self.method, **of_task, **values_of(self)}

    def lines(self) -> tuple[OptionLine, ...]:
        """Return every option as it is listed."""
        values = self.options()
        found = [
            OptionLine(
                name="method",
                value=self.method,
                default="averaging",
                help="What is asked of private data: averaging of noisy updates, gradient descent "
                "whose budget adapts (agd), or training without noise that is perturbed once "
                "(bolt-on).",
                takes=", ".join(methods_of(self.unit)),
                part=f"method {self.method}",
            )
        ]
        for entry in self._names.entries:
            if any(values.get(path) != kind for path, kind in entry.within):
                continue
            outer = entry.path.rpartition(".")[0]
            heading = entry.path if entry.choices else outer
            heading = f"{heading} {values.get(heading, '')}".strip() or "experiment"
            found.append(
                OptionLine(
                    name=entry.path,
                    value="automatic" if entry.path in self.automatic else values[entry.path],
                    default=entry.default,
                    help=entry.help,
                    takes=entry.takes,
                    part=heading,
                )
            )
        return tuple(found)

    def field_names(self) -> dict[str, str]:
        """Return options as they are typed by the fields of parts and plans that they set."""
        found: dict[str, str] = {}
        for path in self.options():
            steps = path.split(".")
            for start in range(len(steps)):
                form = "_".join(steps[start:])
                if "_" in form:
                    found[form] = kebab(form)
        return found | {"l2_bound": "l2-clip-norm"}

    def with_options(self, options: Mapping[str, Option]) -> Experiment:
        """Return the experiment with some options changed; parts may be chosen among them.

        What was set of a part stays where another kind of it has the same option.

        Args:
            options: Values by path, or any unambiguous ending of one; of the place of a part, its
                kind.

        Raises:
            ValueError: For an unknown option (with the nearest known one), one whose part is not
                chosen then (with the part), or an unfit value.
        """
        given = dict(options)
        made = type(self)
        if "method" in given:
            made = CLASSES[self.unit, chosen("method", given.pop("method"), methods_of(self.unit))]
        names = _names(made, type(self.task))
        for name, value in list(given.items()):
            if not names.find(name) and self._is_elsewhere(made, name, value):
                del given[name]
        kept = self._changed()
        if made is not type(self):
            known = {entry.path for entry in names.entries}
            moved = {path: path.rpartition(".")[2] for path in kept if path not in known}
            kept |= {short: kept[path] for path, short in moved.items() if short in known}
        read = names.read(given, kept)
        before, kinds = self.options(), names.kinds({**kept, **read})
        for name, value in self.presets.items():
            found = names.find(name)
            if not found:
                raise names.unknown(name)
            for entry in found:
                there = all(kinds.get(path) == kind for path, kind in entry.within)
                if there and entry.path not in before and entry.path not in read:
                    kept[entry.path] = entry.checked(name, value)
        # A given noise replaces a calibrated one and the other way round.
        for multiplier in ("noise.multiplier", "output_noise.noise_multiplier"):
            target = multiplier.partition(".")[0] + ".target_epsilon"
            for one, other in ((multiplier, target), (target, multiplier)):
                if read.get(one) is not None and other not in read:
                    kept[other] = None
        return self._made(made, {**kept, **read}, read)

    def restored(self, document: Mapping[str, Option]) -> Experiment:
        """Return the experiment with the options of a run folder or a row of results.

        Raises:
            ValueError: For an unknown option or an unfit value.
        """
        given = dict(document)
        made = CLASSES[self.unit, chosen("method", given.pop("method"), methods_of(self.unit))]
        read = _names(made, type(self.task)).read(given, {})
        return replace(self._made(made, read, read), automatic=())

    def _made(
        self, made: type[Experiment], values: Mapping[str, Option], given: Mapping[str, Option]
    ) -> Experiment:
        task: Any = self.task
        if _declares(task):
            task = replace(task, **assembled(type(task), values, task, "task."))
        names = ("name", "description", "statistics", "refine", "bounds", "backends", "presets")
        rest = {name: getattr(self, name) for name in names}
        found = made(**rest, task=task, **assembled(made, values))
        there = found.options()
        left = tuple(name for name in self.automatic if name in there and name not in given)
        return replace(found, automatic=left)

    def _changed(self) -> dict[str, Option]:
        """Return the kinds of parts, and values that are not their defaults, by path."""
        values = values_of(self)
        kinds = {entry.path for entry in entries(type(self)) if entry.choices}
        usual = assembled(type(self), {path: values[path] for path in kinds if path in values})
        plain = replace(self, **usual)
        defaults = values_of(plain)
        return {
            path: value
            for path, value in values.items()
            if path in kinds or value != defaults.get(path)
        }

    def _is_elsewhere(self, made: type[Experiment], name: str, value: Option) -> bool:
        """Return whether a value says that there is none of an option of another method or task.

        Raises:
            ValueError: If it says more.
        """
        others = [
            (label, _names(CLASSES[self.unit, label], type(self.task)))
            for label in methods_of(self.unit)
        ]
        has = [label for label, names in others if names.find(name)]
        tags = Names(entries(TagPredictionTask, prefix="task."))
        if not has and not tags.find(name):
            return False
        if value in (None, "none"):
            return True
        if has:
            raise ValueError(
                f"{name} belongs to method {' or '.join(map(repr, has))}; this experiment has "
                f"method {made.method!r}: set method too, or leave {name} out"
            )
        raise ValueError(
            f"{name} belongs to tag prediction; this experiment has a task of its own: leave "
            f"{name} out, or declare it in the task"
        )

    @property
    def _names(self) -> Names:
        return _names(type(self), type(self.task))


@dataclass(frozen=True, kw_only=True)
class FederatedExperiment(Experiment):
    """Federated averaging of users: local SGD, bounded updates, noise on their sum."""

    task: TaskFactory = field(default=TagPredictionTask(), repr=False)
    rounds: int = option(100, "How many rounds are planned and paid for.", Range.AT_LEAST_ONE)
    sampling: (
        federated.PoissonCohorts | federated.FixedCohorts | SeparatedCohorts | CyclicCohorts
    ) = place(federated.PoissonCohorts(), "How cohorts are drawn.")
    bound: federated.AdaptableClip | Normalised | NoBound = place(
        federated.AdaptableClip(), "How each update is bounded."
    )
    noise: GaussianNoise | NoNoise | TreeNoise | BandedNoise | BufferedNoise = place(
        GaussianNoise(),
        "What is added to the sum; tree, banded and blt are correlated over rounds.",
    )
    local: federated.LocalSgd = place(federated.LocalSgd(), "Local training of a user.")
    precondition: (
        guides.Nowhere | guides.InSteps | guides.OnUpdates | guides.InBoth | guides.AndBack
    ) = place(
        guides.Nowhere(),
        "Where A of side information acts: in local steps, on the update, or both.",
    )
    guide: guides.NotPreconditioned | guides.ByTurns | guides.ByPastReleases = place(
        guides.NotPreconditioned(), "A preconditioner made of past releases."
    )
    server: (
        servers.ServerSgd
        | servers.ServerMomentum
        | servers.ServerEmaMomentum
        | servers.ServerAdam
        | servers.ServerFtrl
        | servers.ServerYogi
        | servers.ServerAdagrad
    ) = place(servers.ServerSgd(), "What the server makes of the released mean.")
    aggregate: (
        servers.Last
        | servers.Average
        | servers.Uniform
        | servers.MeanOutputs
        | servers.MajorityVote
    ) = place(servers.Last(), "What is made of the released models.")

    def __post_init__(self) -> None:
        """Check every option, and that there is no noise without a bound."""
        super().__post_init__()
        _check_bounded(self.noise, self.bound)

    def neighbours(self) -> Relation:
        """Return the neighbouring relation: zero-out where cohorts limit who takes part when."""
        # Who takes part in which round is the same with a user's records and without them.
        apart = isinstance(self.sampling, (SeparatedCohorts, CyclicCohorts))
        usual = "zero-out" if apart else "add-remove"
        return Relation.of(usual if self.relation is None else self.relation)

    def known_bounds(self) -> dict[str, Callable[..., Bound]]:
        """Return constructors of the bounds that requests may name, by name."""
        made = self.bound.make()
        return {str(made.name): type(made), **self.bounds}


@dataclass(frozen=True, kw_only=True)
class CentralExperiment(Experiment):
    """DP-SGD on examples and its like: bounded gradients of a batch, noise on their sum.

    A method is a bound, a preconditioner (`guide`) and an optimiser:

    ==================  ========================================================================
    DP-SGD              bound clip, optimizer sgd
    DP-Adam             bound clip, optimizer adam (likewise rmsprop, adagrad)
    DP-NSGD, DP-NAdam   bound normalise, optimizer sgd or adam
    AdaDPS              guide public-rmsprop, public-adam, public-adagrad, public-own
                        (`statistics`) or side-information
    DP-R-Pub            guide r-pub
    DP-Adam-Pub         guide adam-pub, optimizer ema-momentum
    PDA-DPMD            guide mirror-descent
    DP²                 guide delayed
    scale-then-priv.    guide past-releases, optimizer adam or rmsprop
    warm start          warm-start-epochs above 0; start public chooses epochs and rate itself
    ideal               guide ideal: not private, whatever the noise
    SGD, Adam, AdaS     noise none, bound none, with the guide or optimizer of that name
    ==================  ========================================================================
    """

    unit: ClassVar[Unit] = "example"

    backends: tuple[str, ...] = ("serial",)
    batch_size: float = option(
        64.0, "Expected examples a step; each has its own independent draw.", Range.ABOVE_ZERO
    )
    epochs: float | None = option(
        None, "Passes over the training set, in expectation; sets the steps.", Range.ABOVE_ZERO
    )
    steps: int | None = option(None, "Steps; none takes them from epochs.", Range.AT_LEAST_ONE)
    micro_batch: int = option(
        1, "Examples whose mean is bounded as one; above 1 sensitivity doubles.",
        Range.AT_LEAST_ONE,
    )  # fmt: skip
    sampling: central.PoissonBatches | central.FixedBatches | SeparatedBatches | CyclicBatches = (
        place(central.PoissonBatches(), "How batches are drawn.")
    )
    bound: Clipped | Normalised | NoBound = place(Clipped(), "How each gradient is bounded.")
    noise: GaussianNoise | NoNoise | TreeNoise | BandedNoise | BufferedNoise = place(
        GaussianNoise(),
        "What is added to the sum; tree, banded and blt are correlated over rounds.",
    )
    optimizer: (
        servers.Sgd
        | servers.Momentum
        | servers.EmaMomentum
        | servers.Adam
        | servers.Rmsprop
        | servers.Adagrad
    ) = place(servers.Sgd(), "What is made of the released mean gradient.")
    schedule: Literal["constant", "step", "cyclic", "inverse-root"] = option(
        "constant", "Of the learning rate: a tenth at half, one triangle, or α/√t."
    )
    guide: (
        guides.NotPreconditioned
        | guides.KnownBeforehand
        | guides.AverageOfSquares
        | guides.BothAverages
        | guides.SumOfSquares
        | guides.OwnStatistics
        | guides.CleanStatistics
        | guides.DividedStep
        | guides.DividedMomentum
        | guides.PublicBatches
        | guides.ByTurns
        | guides.ByPastReleases
    ) = place(guides.NotPreconditioned(), "What public data or past releases add.")
    warm_start_epochs: int = option(
        0, "Epochs on the public set before, without noise.", Range.AT_LEAST_ZERO
    )
    warm_start_rate: float = option(0.1, "Their learning rate.", Range.ABOVE_ZERO)
    aggregate: (
        servers.Last
        | servers.Average
        | servers.Uniform
        | servers.MeanOutputs
        | servers.MajorityVote
    ) = place(servers.Last(), "What is made of the released models.")

    def __post_init__(self) -> None:
        """Check every option, and that there is no noise without a bound."""
        super().__post_init__()
        _check_bounded(self.noise, self.bound)

    def neighbours(self) -> Relation:
        """Return the neighbouring relation: zero-out where batches limit who is in them when."""
        apart = isinstance(self.sampling, (SeparatedBatches, CyclicBatches))
        usual = "zero-out" if apart else "add-remove"
        return Relation.of(usual if self.relation is None else self.relation)

    def known_bounds(self) -> dict[str, Callable[..., Bound]]:
        """Return constructors of the bounds that requests may name, by name."""
        made = self.bound.make()
        return {str(made.name): type(made), **self.bounds}

    def num_steps(self, num_examples: int) -> int:
        """Return how many steps are planned.

        Raises:
            ValueError: If neither steps nor epochs are given, or both.
        """
        return central.num_steps(self.steps, self.epochs, self.batch_size, num_examples)


@dataclass(frozen=True, kw_only=True)
class FederatedDescent(AgdOfUsers, Experiment):
    """DP-AGD over users: noisy gradients whose price adapts, a noisy choice of step size."""

    method: ClassVar[str] = "agd"
    task: TaskFactory = field(default=TagPredictionTask(), repr=False)


@dataclass(frozen=True, kw_only=True)
class CentralDescent(AgdOfExamples, Experiment):
    """DP-AGD over the examples of one training set."""

    unit: ClassVar[Unit] = "example"
    method: ClassVar[str] = "agd"
    backends: tuple[str, ...] = ("serial",)


@dataclass(frozen=True, kw_only=True)
class FederatedBoltOn(BoltOnOfUsers, Experiment):
    """Bolt-on over users: training without noise, whose result is perturbed once."""

    method: ClassVar[str] = "bolt-on"
    task: TaskFactory = field(default=TagPredictionTask(), repr=False)


@dataclass(frozen=True, kw_only=True)
class CentralBoltOn(BoltOnOfExamples, Experiment):
    """Bolt-on: permutation SGD on a convex loss without noise, perturbed once."""

    unit: ClassVar[Unit] = "example"
    method: ClassVar[str] = "bolt-on"
    backends: tuple[str, ...] = ("serial",)

    def neighbours(self) -> Relation:
        """Return the neighbouring relation: replace-one, of which the sensitivity is proved."""
        # A set of one less has other batches, and moves further than one whose place stays empty.
        return Relation.of("replace-one" if self.relation is None else self.relation)


CLASSES: Mapping[tuple[str, str], type[Experiment]] = {
    (made.unit, made.method): made
    for made in (
        FederatedExperiment,
        FederatedDescent,
        FederatedBoltOn,
        CentralExperiment,
        CentralDescent,
        CentralBoltOn,
    )
}


def methods_of(unit: str) -> tuple[str, ...]:
    """Return the methods of a unit of privacy."""
    return tuple(method for of, method in CLASSES if of == unit)


def _check_bounded(noise: Any, bound: Any) -> None:
    if noise.kind != "none" and bound.kind == "none":
        raise ValueError(
            f"noise {noise.kind!r} without a bound protects no one; use bound 'clip' or "
            "'normalise', or noise 'none'"
        )


def _declares(task: Any) -> bool:
    return is_dataclass(task) and not isinstance(task, type) and bool(declared(type(task)))


@cache
def _names(made: type[Experiment], task: type) -> Names:
    of_task = entries(task, prefix="task.") if is_dataclass(task) and declared(task) else ()
    return Names((*of_task, *entries(made)))
