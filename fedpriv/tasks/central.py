"""Centralised tasks: a private training set, an optional public one, and a test set.

The training set may be users' examples, for example-level sampling with user-level privacy (ELS,
`by_example`). Each user on the roster has G slots, filled or empty, so that the size of the set,
the probability of a slot and the denominator are public. A step draws slots independently and
bounds each example's gradient alone; one user's records move the sum by at most k bounds, k
binomial of G and the probability, and a step is accounted as that mixture of Gaussians (Charles et
al. 2024, arXiv:2407.07737; `fedpriv.privacy.sampling.DevicesSampler`). It is for those who hold the
users' examples in one place; federated averaging samples users instead (ULS).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedpriv.datasets.stackexchange.rosters import ordinal_hashes, training_set_sha256
from fedpriv.measures import ACCURACY, LOSS, Measure
from fedpriv.mechanisms import SideInformation
from fedpriv.privacy.plan import BY_EXAMPLE, Unit
from fedpriv.privacy.sampling import DevicesSampler, Sampler
from fedpriv.ranges import positive_int
from fedpriv.rng import Key
from fedpriv.tasks.task import DRAWS, EMPTY, BaseTask, Task, TaskDescription
from fedpriv.training.evaluate import WHOLE, ClassScores, Metrics, Part
from fedpriv.training.per_example.example_sum import ExampleGradients, example_ids
from fedpriv.training.public_learning import PublicLearner, learner_of
from fedpriv.training.public_selection import PublicFold
from fedpriv.training.work import size_of
from fedpriv.tree import Params, brought_in

_SALT = "fedpriv examples of a user 1"  # fixed for ever: changing it changes which examples train


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnedExamples:
    """Bound on each owner's examples in a training set, which were chosen to respect it.

    Which they are is decided by ids and by who owns them. One whose words or label are missing
    keeps its place and is blank: the size of the set is no one's secret.

    Attributes:
        blank: bool (n,), which examples contribute nothing, though they are drawn like any other.
        most: How many examples an owner has at most.
        unit: "owner", or "user-by-example" of users who own as many slots each, and no example
            together.

    Raises:
        ValueError: If no owner may have an example.
    """

    blank: np.ndarray = field(repr=False)
    most: int
    unit: Unit = "owner"

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"an owner has at most {self.most} examples; give at least 1")

    def sampler(self, draws: Sampler) -> Sampler:
        """Return who draws, accounted for one owner's examples together.

        They are drawn and bounded each alone, as a person's devices are.

        Raises:
            ValueError: If examples are not drawn independently, without a cap.
        """
        return DevicesSampler(draws=draws, devices=self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralTask(BaseTask):
    """A model, its training set, and its public and test examples.

    Attributes:
        name: What the data are called in reports.
        train: The model on the private training set.
        num_train: Examples in it.
        init: From a key to the params before the first round.
        measure: From params to metrics on the test set, which holds no training example.
        measures: What it measures, the headline first.
        scores: From params to blocks of probabilities `(n, classes)` and labels of the test set;
            None where the model answers with no class.
        public: The model on public examples, which are not in the training set; None for none.
        num_public: How many there are.
        public_measure: From params and positions among the public examples to metrics on those;
            with it the model can learn from public examples before private training, and a run
            says what they alone reach. None where that is not wanted.
        cold: What `init` was before it was made to learn from public examples; None where it was
            not.
        side: Side information by kind, made when it is asked for.
        provenance: Where everything came from, for the run folder.
        data_sha256: From nothing to digests in hex of what must not change in a run: "private"
            of the training set, "public" of the public examples (`fingerprint`, or
            `Dataset.sha256`). With None it is not checked that a run is resumed on the data it was
            started with, and each simulation draws other noise, whatever its seed.
        synthetic: Whether a generator made the data.
        owned: Where the unit is an owner of several examples, how they were chosen; None where
            each example is a unit.
        files: From nothing to files that go with the model into the run folder and every export,
            by name.
        majority: Accuracy of always answering the test set's commonest class; None where it is not
            known, or no class is answered.
        untrained: From nothing to names of tensors besides the params that the model's code brings,
            as of `brought`.
        roster: The ids of the training examples: their positions.
        data: None: `train` holds its examples itself.
    """

    name: str
    train: ExampleGradients = field(repr=False)
    num_train: int
    init: Callable[[Key], Params] = field(repr=False)
    measure: Callable[[Params], Metrics | None] = field(repr=False)
    measures: tuple[Measure, ...] = (ACCURACY, LOSS)
    scores: Callable[[Params], ClassScores] | None = field(default=None, repr=False)
    public: ExampleGradients | None = field(default=None, repr=False)
    num_public: int = 0
    public_measure: Callable[[Params, np.ndarray], Metrics | None] | None = field(
        default=None, repr=False
    )
    cold: Callable[[Key], Params] | None = field(default=None, repr=False)
    side: Mapping[str, Callable[[], SideInformation]] = field(default_factory=dict, repr=False)
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)
    data_sha256: Callable[[], Mapping[str, str]] | None = field(default=None, repr=False)
    synthetic: bool = False
    owned: OwnedExamples | None = None
    files: Callable[[], Mapping[str, bytes]] = field(default=dict, repr=False)
    majority: float | None = None
    untrained: Callable[[], Collection[str]] = field(default=tuple, repr=False)
    roster: tuple[str, ...] = field(init=False, repr=False)
    data = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "roster", example_ids(self.num_train))
        if self.num_train < 2:
            raise ValueError(f"{self.num_train} training examples are too few; give at least 2")
        if self.owned is not None and len(self.owned.blank) != self.num_train:
            raise ValueError(
                f"{len(self.owned.blank)} examples are owned and the training set has "
                f"{self.num_train}; say of each whether it is blank"
            )
        if (self.public is None) != (self.num_public == 0):
            raise ValueError(f"{self.num_public} public examples do not fit public={self.public!r}")

    @property
    def roster_sha256(self) -> str:
        """Digest of the roster: of how many examples there are, and nothing else of them."""
        return training_set_sha256(self.roster)

    def init_params(self, key: Key) -> Params:
        """Return the params before the first round, float32."""
        return self.init(key)

    def brought(self) -> Collection[str]:
        """Return as `BaseTask.brought`, of the params before they learnt from public examples."""
        made = [(self.cold or self.init)(DRAWS.fold(number)) for number in range(2)]
        return sorted({*brought_in(*made), *self.untrained()})

    def side_information(self, kind: str) -> SideInformation:
        """Return 1/A of a kind.

        Raises:
            ValueError: If the task has not got it.
        """
        if kind not in self.side:
            known = ", ".join(sorted(self.side)) or "none"
            raise ValueError(f"side information {kind!r} is not known for {self.name}; has {known}")
        return self.side[kind]()

    def public_examples(self) -> ExampleGradients:
        """Return the model on public examples.

        Raises:
            ValueError: If there are none.
        """
        if self.public is None:
            raise ValueError(
                f"{self.name} has no public examples; choose a preconditioner that needs none, or "
                "give some"
            )
        return self.public

    def public_learner(self, key: Key, *, choosing: bool) -> PublicLearner | None:
        """Return what learns from the public examples; None where there are none, or one.

        Args:
            key: Draws the params before and the order of the examples.
            choosing: Whether to keep a fifth of them back, by the key, and measure on those.

        Guarantees:
            * No private example, and not even their number, goes into it; nor does the test set.
        """
        if self.public is None or self.public_measure is None:
            return None
        return learner_of(
            self.num_public,
            choosing=choosing,
            key=key,
            begun=(self.cold or self.init)(key),
            gradient=self.public.gradient,
            measure=self.public_measure,
        )

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return metrics on the test set, which no one's privacy depends on (`public`).

        It is not divided: the first part is all of it.
        """
        return self.measure(params) if public and part[0] == 0 else None

    def class_scores(
        self, params: Params, *, public: bool, part: Part = WHOLE
    ) -> ClassScores | None:
        """Return probabilities and labels of the test set (`public`); None without `scores`."""
        if self.scores is None:
            return None
        return self.scores(params) if public and part[0] == 0 else iter(())

    def describe(self) -> TaskDescription:
        """Return what the run folder records."""
        return TaskDescription(
            name=self.name,
            synthetic=self.synthetic,
            roster="training set",
            num_users=self.num_train,
            num_public_users=self.num_public,
            provenance=self.provenance,
            majority_class_accuracy_public=self.majority,
        )


def zeros(shapes: Mapping[str, tuple[int, ...]]) -> Callable[[Key], Params]:
    """Return the initialisation of a convex model: zeros."""
    return lambda key: {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersExamples(CentralTask):
    """A training set of users' examples; all that is public or measured is the users' task's.

    Attributes:
        users: The task of the users.
    """

    users: Task = field(repr=False)

    @property
    def published(self) -> Mapping[str, str] | None:
        """Those of the users' task."""
        return self.users.published

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return metrics on public users, or on held-out examples of rostered users."""
        return self.users.evaluate(params, public=public, part=part)

    def class_scores(
        self, params: Params, *, public: bool, part: Part = WHOLE
    ) -> ClassScores | None:
        """Return probabilities and labels of the same examples."""
        return self.users.class_scores(params, public=public, part=part)

    def brought(self) -> Collection[str]:
        """Return what the users' task brings."""
        return self.users.brought()

    def outputs(self, params: Params) -> np.ndarray | None:
        """Return what the users' task answers to a few public or synthetic examples."""
        return self.users.outputs(params)

    def model_memory(self) -> tuple[int, int]:
        """Return bytes of the model besides its params, and of what a step keeps of an example."""
        return self.users.model_memory()

    def public_learner(self, key: Key, *, choosing: bool) -> PublicLearner | None:
        """Return what learns from public users' examples."""
        return self.users.public_learner(key, choosing=choosing)

    def public_folds(self) -> Sequence[PublicFold] | None:
        """Return folds of public users' examples."""
        return self.users.public_folds()

    def describe(self) -> TaskDescription:
        """Return the description of the users' data."""
        found = self.users.describe()
        assert self.owned is not None
        most = {"examples_per_user": self.owned.most}
        return replace(found, provenance={**found.provenance, **most})


def kept_examples(user_id: str, number: int, most: int) -> np.ndarray:
    """Return which of a user's examples are kept, int64, in their order: at most so many.

    A frozen rule, of the arguments alone: those whose hash of user and position is least.
    """
    order = np.argsort(ordinal_hashes(_SALT, user_id, np.arange(number)), kind="stable")
    return np.sort(order[:most])


def by_example(task: Task, examples_per_user: int) -> UsersExamples:
    """Return the training set of a task's users, at most so many examples of each.

    Args:
        task: Whose users' examples can be taken one by one: tag prediction, or a `ModuleTask`.
        examples_per_user: G, the slots of each user.

    Guarantees:
        * One user's records change that user's slots and no other, whatever others hold: which of
          its examples are kept depends on its id and on how many it has.

    Raises:
        ValueError: If G is not a positive whole number, or the task's examples cannot be taken one
            by one.
    """
    most = positive_int("examples_per_user", examples_per_user)
    slots = np.full((len(task.roster), most), EMPTY)
    for place, user_id in enumerate(task.roster):
        number = size_of(task.data, user_id, sys.maxsize)
        kept = kept_examples(user_id, number, most)
        slots[place, : len(kept)] = kept
    return UsersExamples(
        name=task.describe().name,
        train=task.example_gradients(slots),
        num_train=slots.size,
        init=task.init_params,
        measure=lambda params: task.evaluate(params, public=True),
        measures=tuple(task.measures),
        data_sha256=task.data_sha256,
        synthetic=task.describe().synthetic,
        owned=OwnedExamples(blank=slots.reshape(-1) == EMPTY, most=most, unit=BY_EXAMPLE),
        files=task.files,
        users=task,
    )
