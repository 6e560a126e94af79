"""Experiments: one frozen value with everything that decides a run.

An experiment is a Python function that returns an `Experiment`. There is one class for each method
and unit of privacy; `FederatedExperiment` is federated averaging of users, `CentralExperiment`
DP-SGD and its like on examples. Their fields are options and parts (`fedpriv.experiments.options`),
whose dotted names are the same on the command line, in TOML, in a run folder and under Flower.

>>> from fedpriv.experiments import FederatedExperiment
>>> experiment = FederatedExperiment(name="demo", description="A demo.", target_epsilon=8.0)
>>> experiment.with_options({"bound": "normalise", "l2-clip-norm": 2}).bound
Normalise(l2_clip_norm=2.0, regulariser=0.0)
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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Literal, Self, TypeVar

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.options import (
    Entry,
    Option,
    OptionIndex,
    build_fields,
    changed_of,
    check_choice,
    check_fields,
    entries,
    normalize,
    parts_of,
    values_of,
)
from fedpriv.experiments.start import Fresh, PublicOnly, Start, StartFrom, name_start_file
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.mechanisms import SideInformation
from fedpriv.mechanisms.event import Relation
from fedpriv.parts import Between, Part, PositiveFloat, PositiveInt
from fedpriv.privacy.plan import AnyPlan, plan_digest
from fedpriv.rng import Key
from fedpriv.training.algorithm import Algorithm
from fedpriv.training.evaluate import check_measurable
from fedpriv.training.work import Trainers
from fedpriv.tree import Params

Unit = Literal["user", "example"]
#: From an experiment and a corpus, or from an experiment alone, to its task.
TaskFactory = Callable[["Experiment", Corpus | None], Any] | Callable[["Experiment"], Any]

#: Options that can be chosen from the data's size (`fedpriv.experiments.settings`).
AUTOMATIC = ("cohort", "rounds", "bound.l2_clip_norm", "start.factor")
#: Fields of every experiment that are no options.
_COMMON = ("name", "description")
#: Options that say the same in two ways: where one of a pair is given, the other ends.
_EITHER = (
    ("noise.multiplier", "target_epsilon"),
    ("output_noise.noise_multiplier", "target_epsilon"),
    ("steps", "epochs"),
)


# No slots: a frozen class with slots raises a TypeError that does not name an assigned option.
@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """Everything that decides a run; base of the classes of each method and unit.

    Attributes:
        name: Its name for `fedpriv run`.
        description: One line for lists and reports.
        task: Makes the task from this experiment and a corpus, or None, or from this experiment
            alone. A frozen dataclass that can be called so declares options: its fields.
        start: What training starts from: public costs no privacy and protects no public user;
            `--start FILE` is file.
        target_epsilon: ε of the whole run. It calibrates noise of which no multiplier is given; a
            run ends before it would be exceeded.
        delta: δ; none for n^-1.1.
        relation: How two neighbouring data sets differ; none for what the method is proved for.
        seed: Of the simulation.
        eval_every: Rounds between evaluations; the last is always evaluated.
        automatic: Options whose values are chosen from the data's size when components are built,
            by their paths (`AUTOMATIC`); until then they have the values that hold where nothing
            can be chosen.

    Raises:
        ValueError: For a value that is not one of its option's or out of its range, or options that
            do not fit.
    """

    unit: ClassVar[Unit] = "user"
    method: ClassVar[str] = "averaging"

    name: str
    description: str
    task: TaskFactory = field(repr=False)
    start: StartFrom = Fresh()
    target_epsilon: PositiveFloat | None = None
    delta: Between | None = None
    relation: Literal["add-remove", "replace-one", "zero-out"] | None = None
    seed: int = 0
    eval_every: PositiveInt = 10
    automatic: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Check and convert every option."""
        check_fields(self)
        for path in self.automatic:
            if path not in AUTOMATIC:
                raise ValueError(
                    f"automatic {path!r} cannot be chosen from the data's size; use some of "
                    f"{', '.join(AUTOMATIC)}"
                )

    @abstractmethod
    def make_components(self, task: Any) -> Components:
        """Return what runs on a task: plan, algorithm and client work.

        A derived class may make others. What users do is of `make_trainer`, which workers and nodes
        call for themselves.

        Raises:
            ValueError: If the options do not fit together, or not the task.
        """

    @abstractmethod
    def make_trainer(
        self, task: Any, side: SideInformation | None = None, device: str | None = None
    ) -> Trainers:
        """Return what users do, or the sums over examples.

        Args:
            task: The experiment's.
            side: What `make_side_information` returned for it; None to make it.
            device: Such as "cpu" or "cuda:0", on which many users, or examples, are trained at
                once; None for what is quickest on a processor: compiled code where there is any,
                user by user.

        Raises:
            ValueError: If the task lacks what the method needs, or does not train on the device.
        """

    def check(self) -> None:
        """Refuse parts that do not fit together, before any data are read.

        Raises:
            ValueError: If that is so.
        """
        return

    def make_side_information(self, task: Any) -> SideInformation | None:
        """Return 1/A and where it came from; None where nothing is preconditioned by it."""
        return None

    @property
    def most_examples(self) -> int:
        """Most examples that a user trains on; 0 by example."""
        return 0

    def neighbours(self) -> Relation:
        """Return the neighbouring relation."""
        return Relation.of("add-remove" if self.relation is None else self.relation)

    def options(self) -> dict[str, Option]:
        """Return the value of every option, and the kind of every part, by path."""
        return {"method": self.method, **values_of(self.task, "task."), **values_of(self)}

    def user_defined(self) -> dict[str, str]:
        """Return the names of classes that are not fedpriv's: its own, and of parts by path."""
        made, found = type(self), {}
        if not made.__module__.startswith("fedpriv."):
            found["experiment"] = made.__qualname__.rpartition("<locals>.")[2]
        return found | {
            path: type(part).__qualname__.rpartition("<locals>.")[2]
            for path, part in parts_of(self)
            if path.partition(".")[0] != "task" and not type(part).__module__.startswith("fedpriv.")
        }

    def entries(self) -> tuple[Entry, ...]:
        """Return the declarations of its options: those that exist with the parts it has."""
        values = self.options()
        return tuple(entry for entry in self._names.entries if entry.exists(values))

    def runs_on(self, backend: str) -> bool:
        """Return whether it runs on a backend of this name; training of examples is serial."""
        return self.unit == "user" or backend == "serial"

    def with_options(self, options: Mapping[str, Option]) -> Self:
        """Return the experiment with some options changed; parts may be chosen among them.

        Where `method` is changed the class is that of the other method.

        What was set of a part stays where another kind of it has the same option.

        Args:
            options: Values by path, or any unambiguous ending of one; of the place of a part, its
                kind; of `start` also the path of a safetensors file.

        Raises:
            ValueError: For an unknown option (with the nearest known one), one whose part is not
                chosen then (with the part), or an unfit value.
        """
        options = name_start_file(options)
        methods = [v for n, v in options.items() if normalize(n.removesuffix(".kind")) == "method"]
        made = self._class_of(methods[-1] if methods else self.method)
        names = _names(made, type(self.task))
        given = {
            name: value
            for name, value in options.items()
            if names.find(name) or not self._is_elsewhere(made, name, value)
        }
        kept = changed_of(self)
        if made is not type(self):
            known = {entry.path for entry in names.entries}
            moved = {path: path.rpartition(".")[2] for path in kept if path not in known}
            kept |= {short: kept[path] for path, short in moved.items() if short in known}
        read = names.read(given, kept)
        kinds = names.kinds({**kept, **read})
        if made is not type(self):  # a batch of 200.0 examples is 200 where it is a whole number
            for entry in names.entries:
                if entry.path in kept and entry.exists(kinds) and not entry.is_choice:
                    kept[entry.path] = entry.coerce(entry.path, kept[entry.path])
        for pair in _EITHER:
            for one, other in (pair, pair[::-1]):
                if read.get(one) is not None and other not in read:
                    kept[other] = None
        if "none" in (read.get("noise"), read.get("output_noise")):
            kept["target_epsilon"] = None
        values, same = {**kept, **read}, made is type(self)
        task: Any = self.task
        if entries(type(task)):
            task = replace(task, **build_fields(type(task), values, task, "task."))
        own = {item.name for item in fields(self)} if same else _COMMON
        rest = {name: getattr(self, name) for name in own}  # fields that are no options stay
        parts = build_fields(made, values, self if same else None)
        found: Any = made(**{**rest, "task": task, **parts})
        there = found.options()
        left = tuple(name for name in self.automatic if name in there and name not in read)
        return replace(found, automatic=left)

    def _class_of(self, method: Option) -> type[Experiment]:
        """Return the class of a method at this unit: of the own method, this one."""
        if method == self.method:
            return type(self)
        return classes()[self.unit, check_choice("method", method, methods_of(self.unit))]

    def _is_elsewhere(self, made: type[Experiment], name: str, value: Option) -> bool:
        """Return whether a value says that there is none of an option of another method or task.

        Raises:
            ValueError: If it says more.
        """
        others = [
            (label, _names(self._class_of(label), type(self.task)))
            for label in methods_of(self.unit)
        ]
        has = [label for label, names in others if names.find(name)]
        tags = OptionIndex(entries(TagPredictionTask, prefix="task."))
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
            f"{name} belongs to tag prediction; this experiment has another task: leave "
            f"{name} out, or declare it in the task"
        )

    @property
    def _names(self) -> OptionIndex:
        return _names(type(self), type(self.task))


LONGEST_NOISE = 2.0
"""Of `Settings.noise_length`; above, no gain over public examples is expected."""
SHORT_NOISE = 0.4
"""Of `Settings.noise_length`; up to it a gain is expected even where public examples are too few to
show it. Chosen on the runs of `docs/results/tags.md`."""
FEWEST_PUBLIC_EXAMPLES = 50
"""Fewer cannot show a gain; see `Settings.caution`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Cohort, rounds and clip norm chosen from the data's size, and the noise they come to.

    Attributes:
        chosen: OptionIndex of the options that were not given.
        cohort: Expected number of users a round.
        rounds: T.
        l2_clip_norm: C.
        start_factor: What is kept of a public start; None for what the public search chooses, or
            where training does not start from one.
        update_norm: Median l2 norm of public users' updates; None where it was not measured.
        noise_on_mean: s, of one release of everybody over C.
        noise_on_logit: τ that these settings come to.
        noise_length: s √d for d parameters: l2 norm of the noise on the mean of one release of
            everybody, over C.
        num_public_examples: Of the training threads that public users asked.
    """

    chosen: tuple[str, ...]
    cohort: float
    rounds: int
    l2_clip_norm: float
    start_factor: float | None
    update_norm: float | None
    noise_on_mean: float
    noise_on_logit: float
    noise_length: float
    num_public_examples: int

    @property
    def expects_gain(self) -> bool:
        """Whether private training is expected to beat public examples alone."""
        return self.noise_length <= LONGEST_NOISE

    @property
    def expects_clear_gain(self) -> bool:
        """Whether a released model is returned unless public examples speak against it.

        Only with cohort, rounds and clip norm all chosen here: others may come to more noise.
        """
        return self.noise_length <= SHORT_NOISE and {
            "cohort", "rounds", "bound.l2_clip_norm"
        } <= set(self.chosen)  # fmt: skip

    @property
    def can_show_gain(self) -> bool:
        """Whether there are enough public examples to show that it does."""
        return self.num_public_examples >= FEWEST_PUBLIC_EXAMPLES

    def __str__(self) -> str:
        norm = (
            ""
            if self.update_norm is None
            else (f"; the median norm of public users' updates is {self.update_norm:.3g}")
        )
        start = (
            "" if self.start_factor is None else f", {self.start_factor:g} of the public start kept"
        )
        return (
            f"cohort {self.cohort:,.0f}, {self.rounds:,} rounds, l2 clip norm "
            f"{self.l2_clip_norm:.3g}{start} "
            f"(noise on a logit at the end: {self.noise_on_logit:.2g}{norm})"
        )

    def caution(self, *, selects: bool) -> str:
        """Return that no gain is to be expected, or none can be shown, with what would help.

        Args:
            selects: Whether the returned model is selected on public examples.

        Returns:
            A sentence; "" where a gain is expected.
        """
        if not self.expects_gain:
            return (
                "little or no gain over public examples alone is to be expected: the noise of one "
                f"release of everybody is {self.noise_length:.2g} times as long as a clipped "
                "update; more users, a larger ε or a smaller model would help"
            )
        if selects and not self.can_show_gain and not self.expects_clear_gain:
            return (
                f"{self.num_public_examples} public examples are hardly enough to show that "
                "private training helps, and what is returned will likely be the model of public "
                "examples alone; give more of them, or set select last"
            )
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **asdict(self),
            "chosen": list(self.chosen),
            "expects_gain": self.expects_gain,
            "can_show_gain": self.can_show_gain,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Settings:
        """Return what `to_json` was made of."""
        values = {one.name: found[one.name] for one in fields(cls)}
        return cls(**{**values, "chosen": tuple(found["chosen"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Task, plan, algorithm and client work of one run.

    Attributes:
        task: The data, the model and its measures: a `Task`, or a `CentralTask` of examples.
        plan: Fixed, with the mechanism that runs, or adaptive, where each query brings its own.
        algorithm: What is asked of users, and what is made of the answers.
        trainer: Local training, or the sum of bounded updates over a batch of examples.
        side_information: Further knowledge and where it came from; None for none.
        start: Makes the params before the first round; None takes the task's own.
        experiment: Of which they are made, each option with its value; None where of none.
        settings: What was chosen from the data's size, and why; None where nothing was.
        dropout_rate: Share of drawn users who, in a simulation, do not answer.
        user_defined: What runs in the place of what options say, by their paths: names of classes
            and functions.

    Raises:
        ValueError: If the plan was made for another number of users than the task's roster has:
            cohorts would be drawn with another probability than its ε is of. If the clip norm
            adapts and noise is correlated over rounds. If outputs are
            to be aggregated, and the task's model is no classifier.
    """

    task: Any
    plan: AnyPlan
    algorithm: Algorithm
    trainer: Trainers
    side_information: SideInformation | None = None
    start: Callable[[Any, Key, PublicOnly | None], Start] | None = None
    experiment: Experiment | None = None
    settings: Settings | None = None
    dropout_rate: float = 0.0
    user_defined: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.plan.check_roster(self.task.roster)
        self.algorithm.check_plan(self.plan)
        check_measurable(self.task, self.algorithm)

    @property
    def plan_sha256(self) -> str:
        """Digest of the plan, its roster and published files, by which a node may allow it."""
        return plan_digest(self.plan, self.task.roster, self.task.published)

    def begin(self, key: Key, found: PublicOnly | None = None) -> Start:
        """Return the params before the first round, and where they came from.

        Args:
            key: For what is drawn.
            found: What public examples alone were found to make, where that is known.

        Raises:
            ValueError: If the task cannot give such a start.
        """
        if self.start is None:
            return Start(params=self.task.init_params(key), facts={"kind": "fresh"})
        return self.start(self.task, key, found)

    def init_params(self, key: Key) -> Params:
        """Return the params before the first round, float32."""
        return self.begin(key).params


_CLASSES: dict[tuple[str, str], type[Experiment]] = {}
_Class = TypeVar("_Class", bound=type[Experiment])


def register(made: _Class) -> _Class:
    """Make a class known as the experiment of its unit and method."""
    _CLASSES[made.unit, made.method] = made
    return made


def classes() -> Mapping[tuple[str, str], type[Experiment]]:
    """Return the classes of experiments, by unit and method: averaging first."""
    order = sorted(_CLASSES, key=lambda key: (key[0] != "user", key[1] != "averaging", key[1]))
    return {key: _CLASSES[key] for key in order}


def methods_of(unit: str) -> tuple[str, ...]:
    """Return the methods of a unit of privacy."""
    return tuple(method for of, method in classes() if of == unit)


def _names(made: type[Experiment], task: type) -> OptionIndex:
    return _names_among(made, task, Part.registered)


@cache
def _names_among(made: type[Experiment], task: type, registered: int) -> OptionIndex:
    method = Entry(
        path="method",
        hint=Literal[methods_of(made.unit)],  # pyright: ignore
        default="averaging",
        help="What is asked of private data: averaging of noisy updates, gradient descent whose "
        "budget adapts (agd), or training without noise that is perturbed once (bolt-on).",
        is_choice=True,
    )
    return OptionIndex((method, *entries(task, prefix="task."), *entries(made)))
