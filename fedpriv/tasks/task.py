"""Base classes of tasks: a roster, its users' examples, a model, and the measures it is judged by.

A `Task` is of users, a `ViewTask` of those of a corpus; a centralised one is a
`fedpriv.tasks.central.CentralTask`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

import numpy as np

from fedpriv.datasets.digests import key_digests
from fedpriv.datasets.stackexchange.roster_view import RosterView, TrainingSplit
from fedpriv.datasets.stackexchange.rosters import roster_sha256
from fedpriv.datasets.stackexchange.vocabulary import PRIVATE
from fedpriv.measures import LOSS, Measure
from fedpriv.mechanisms.side_information import PublicWords, SideInformation
from fedpriv.rng import Key
from fedpriv.training.evaluate import FEW, WHOLE, ClassScores, Metrics, Part
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.per_example.example_sum import ExampleGradients
from fedpriv.training.public_learning import PublicLearner
from fedpriv.training.public_selection import PublicFold
from fedpriv.training.work import Trainers, UserData
from fedpriv.tree import Params, brought_in

DRAWS = Key.simulation(0).fold("two draws of a model")
"""Two of its children are the keys that `BaseTask.brought` compares."""
EMPTY = -1
"""In `Task.example_gradients`, a slot without an example."""
EQUAL = "public_of_rostered", "public_train_of_rostered"
"""Names of counts of public examples: of those that are measured on, and of those learnt from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDescription:
    """Description of a task's data for run folders and reports: nothing private belongs here.

    Attributes:
        name: Of the data.
        synthetic: Whether a generator made them.
        roster: The name of the roster, such as "all".
        num_users: Users on it; of centralised training, training examples.
        num_public_users: Users, or examples, outside it that the task has.
        provenance: Where everything came from, as JSON values; `private_side_information` lists
            what was taken from those whom the plan protects.
        roster_sha256: Digest of the roster, where one was published with the corpus.
        licence: Of the data.
        credit: Their authors.
        published: SHA-256 of published files by name, of which the model's frozen parameters are.
        num_words: Words of the model, where inputs are words.
        num_tags: Tags of the model, where outputs are tags.
        num_public_examples: Examples of no rostered user that the task has to learn from and to
            measure on, where it does not know of how many users.
        num_test_examples: Of a test set that belongs to no rostered user, where figures that ε
            does not cover are measured on one; None where these are of rostered users.
        majority_class_accuracy: Accuracy of always answering the commonest class, counted on
            rostered users: a diagnostic, which a secure run does not record.
        majority_class_accuracy_public: The same, counted on the examples that released figures are
            measured on.
    """

    name: str
    synthetic: bool
    roster: str
    num_users: int
    num_public_users: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict)
    roster_sha256: str | None = None
    licence: str | None = None
    credit: str | None = None
    published: Mapping[str, str] | None = None
    num_words: int | None = None
    num_tags: int | None = None
    num_public_examples: int | None = None
    num_test_examples: int | None = None
    majority_class_accuracy: float | None = None
    majority_class_accuracy_public: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name {self.name!r} of the data is no text; say what they are called")
        if not isinstance(self.synthetic, bool):
            raise ValueError(f"synthetic {self.synthetic!r} must be True or False")

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name; what is not known of this kind of data is left out."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["provenance"] = dict(self.provenance)
        return {name: value for name, value in values.items() if value is not None}


class BaseTask(ABC):
    """A model, its users or examples, and the measures that it is judged by.

    Every task has what is abstract here and in `Task` or `fedpriv.tasks.central.CentralTask`. The
    other methods are optional: as they are here, they say that the task has not got it.

    Attributes:
        roster: The frozen user ids. Like the other attributes a class attribute, a property, or
            set in `__init__`.
        measures: Those of `evaluate`, the headline first; empty where nothing is measured.
        data_sha256: From nothing to digests in hex by part, by which a resumed run recognises its
            data, and of which a simulation's draws are made; None where they are not known, and
            each run draws other noise.
        equal_by_chance: Whether public examples that equal rostered users' are declared to be no
            copies of them (`public_of_rostered`).
    """

    __slots__ = ()

    roster: tuple[str, ...]
    measures: Sequence[Measure] = ()
    data_sha256: Callable[[], Mapping[str, str]] | None = None
    equal_by_chance: bool = False

    @property
    def roster_sha256(self) -> str:
        """Digest of the roster, frozen in the plan."""
        return roster_sha256(self.roster)

    @property
    def published(self) -> Mapping[str, str] | None:
        """SHA-256 of published files by name, as described, or of those that made the inputs.

        The digest by which nodes allow a plan is of them too. None for none.
        """
        return self.describe().published

    @abstractmethod
    def init_params(self, key: Key) -> Params:
        """Return the params before the first round, float32."""

    def brought(self) -> Collection[str]:
        """Return names of tensors, trained or not, that no key draws and that are no plain pattern.

        They were brought by the task's own code, such as from a file (`fedpriv.tree.brought_in`):
        no ε covers what they were trained on. By default `init_params` of two keys are compared;
        of a task of published files none is named, since those are named themselves.
        """
        if self.published:
            return ()
        return brought_in(*(self.init_params(DRAWS.fold(number)) for number in range(2)))

    @abstractmethod
    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return metrics on public users, or on held-out examples of rostered users.

        Args:
            params: The model.
            public: Which of the two.
            part: Measure only this share; `combined` puts the shares together again.
        """

    @abstractmethod
    def describe(self) -> TaskDescription:
        """Return the description of the data for the run folder."""

    def class_scores(
        self, params: Params, *, public: bool, part: Part = WHOLE
    ) -> ClassScores | None:
        """Return probabilities and labels of the examples that `evaluate` measures on.

        Blocks are the same whatever the params. None where the model answers with no class.
        """
        return None

    def outputs(self, params: Params) -> np.ndarray | None:
        """Return what the model answers to a few public or synthetic examples, always the same.

        As it answers when it is evaluated. Before a run it is asked whether every tensor of the
        params changes it, and that saving and loading them does not. By default the probabilities
        of the first public examples, or their loss; None where the task measures neither.
        """
        scores = self.class_scores(params, public=True, part=FEW)
        first = None if scores is None else next(scores, None)
        if first is not None:
            return first[0]
        found = self.evaluate(params, public=True, part=FEW)
        loss = None if found is None else found.get(LOSS.name)
        return None if loss is None else np.array([loss])

    def files(self) -> Mapping[str, bytes]:
        """Return files that describe the model's inputs and outputs, such as a vocabulary, by name.

        They are written into the run folder and into every export: only what is public.
        """
        return {}

    def public_learner(self, key: Key, *, choosing: bool) -> PublicLearner | None:
        """Return what learns from public training examples; None where there are none.

        Args:
            key: For what it draws.
            choosing: Whether to keep some of them back and measure on those, so that settings can
                be chosen; else it learns from all.
        """
        return None

    def public_folds(self) -> Sequence[PublicFold] | None:
        """Return folds of public examples, each held out once; empty where there are too few.

        None where they could judge nothing, because protected data is among what they are made of
        or models are trained on.
        """
        return None

    def public_of_rostered(self) -> Mapping[str, tuple[int, int]]:
        """Return how many public examples equal a rostered user's, and of how many, by `EQUAL`.

        Private, since it looks at rostered users' examples: asked by simulations only. Empty where
        there are none to look at.
        """
        return {}

    def model_memory(self) -> tuple[int, int]:
        """Return bytes of the model besides its params, and of what a step keeps of an example.

        Of frozen weights and of intermediate values, as far as they follow from public examples or
        shapes; zeros where they are not known.
        """
        return 0, 0

    def synthetic_batch(self) -> Any | None:
        """Return examples in the form of one user's, of no one on the roster; None for none.

        Synthetic, or public. The task is tried on them before anything is charged. One without any
        is not tried, and the run warns: a mistake in what its users do makes every one of them
        contribute zero, and leaves nothing but noise.
        """
        return None


class Task(BaseTask):
    """Model, users and measures of a run.

    Attributes:
        data: The rostered users' training examples.
        public_users: Users outside the roster whose losses `user_losses` gives.
        round_tensors: From a round's number to public tensors that users get in it, such as which
            data to use. It may look at nothing else. None for none.
    """

    __slots__ = ()

    data: UserData
    public_users: tuple[str, ...] = ()
    round_tensors: Callable[[int], Params] | None = None

    @property
    def user_defined(self) -> Mapping[str, str]:
        """What users train by in the place of what options say, by their paths: names of code.

        None for fedpriv's own tasks; of another the class that makes the trainer.
        """
        makes = next(kind for kind in type(self).__mro__ if "trainer" in vars(kind))
        return {} if makes.__module__.startswith("fedpriv.") else {"local": makes.__qualname__}

    @abstractmethod
    def trainer(
        self,
        schedule: LocalSgd,
        multiplier: Mapping[str, np.ndarray],
        device: str | None = None,
    ) -> Trainers:
        """Return the trainer of a user; or client work by name, where an algorithm needs several.

        Args:
            schedule: How much work.
            multiplier: 1/A for local steps, by name; empty for none.
            device: Where many users are trained at once, such as "cpu" or "cuda:0"; None for what
                is quickest on a processor. A task that knows of no devices may leave it out.
        """

    def side_information(self) -> SideInformation | None:
        """Return 1/A, from public knowledge or marked private; used with side-information own."""
        return None

    def public_words(self) -> PublicWords | None:
        """Return how common each word is among public users; None where inputs are no words.

        The first axis of the param "kernel" is these words. The options of side-information make
        1/A of it.
        """
        return None

    def public_users_held_out(self) -> Iterable[tuple[PublicLearner, Sequence[Any]]]:
        """Return learners, and the examples of each public user that one does not learn from."""
        return ()

    def example_gradients(self, slots: np.ndarray) -> ExampleGradients:
        """Return the model on single training examples of rostered users.

        Args:
            slots: int64 (users, G), positions among each user's own examples; `EMPTY` for none,
                where the training set has an example without a value, which is not asked for.

        Returns:
            Of slot g of user u at position u G + g.

        Raises:
            ValueError: If it has none.
        """
        raise ValueError(
            f"a {type(self).__name__} has no gradients of single examples; sample its users, or "
            "use a task that has (tag prediction, ModuleTask)"
        )

    def user_losses(self, params: Params, user_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return each user's mean loss over its training examples, and how many it has.

        Private, and of public users too: asked by attacks on simulations only.

        Returns:
            float64 (users,), NaN for a user without any, and int64 (users,).
        """
        raise NotImplementedError(f"a {type(self).__name__} does not give users' losses")

    def held_out_by_user(self, params: Params) -> tuple[np.ndarray, np.ndarray] | None:
        """Return what the headline measure is of each rostered user's held-out examples.

        Private, a diagnostic that no ε covers: asked by simulations only.

        Args:
            params: The model.

        Returns:
            How many examples (or words) of each user are measured, int64 (users,), and the sum of
            the headline measure over them, float64 (users,), in the roster's order: their sums'
            ratio is what `evaluate` gives. None where the task cannot tell users apart.
        """
        return None


V = TypeVar("V", bound=RosterView[Any])


class ViewTask(Task, Generic[V]):
    """A task on a corpus, seen through a roster and a split.

    Attributes:
        view: The corpus, seen through these.

    Args:
        view: Of the corpus.
        data_sha256: From nothing to digests in hex of what must not change in a run, the prepared
            corpus; None where it is not known: no resumed run is held to it.
    """

    def __init__(self, view: V, data_sha256: Callable[[], Mapping[str, str]] | None = None) -> None:
        self.view, self.data = view, TrainingSplit(view)
        self.roster, self.public_users = view.roster, view.public_users
        self.data_sha256 = data_sha256

    @property
    def counts_are_published(self) -> bool:
        """Whether words were counted among rostered users too, by those who published the data."""
        return self.view.provenance["word_counts_source"] == PRIVATE

    @property
    def counted_in(self) -> str:
        """The text that words were counted in."""
        if self.counts_are_published:
            return "counts published with the data, rostered users included"
        return "text that users outside the roster wrote"

    @property
    def published(self) -> Mapping[str, str] | None:
        """None: models of words are of no published files."""
        return None

    def _description(self, **more: Any) -> TaskDescription:
        """Return names, counts and provenance of the view, and what more there is to say."""
        view = self.view
        given = {"num_words": len(view.words), "provenance": dict(view.provenance), **more}
        return TaskDescription(
            **view.describe(),
            num_users=len(view.roster),
            num_public_users=len(view.public_users),
            **given,
        )


def has_public_folds(task: BaseTask) -> bool:
    """Return whether a task's public examples can be held out in turns."""
    return type(task).public_folds is not BaseTask.public_folds


PART = "part"
"""Name of the digest of data that lack some users' examples, which are on nodes."""


def data_digests(task: BaseTask, secret: bytes | None = None) -> dict[str, str] | None:
    """Return digests of a task's data by part, keyed where there is a secret.

    Returns:
        None where the task has no digests: its data cannot be checked.
    """
    if task.data_sha256 is None:
        return None
    digests = dict(task.data_sha256())
    return digests if secret is None else key_digests(digests, secret)


def check_data_digests(
    task: BaseTask, sealed: Mapping[str, str] | None, secret: bytes | None, where: str
) -> None:
    """Compare a task's data with those that a run was started with.

    Args:
        task: Of the run that is resumed.
        sealed: What `data_digests` gave at the start; None, where it was not known, checks nothing.
        secret: The one of the start.
        where: The run's name in messages.

    Raises:
        ValueError: If the data differ, or the task says nothing of them any more.
    """
    if sealed is None:
        return
    name, found = task.describe().name, data_digests(task, secret) or {}
    changed = [part for part in sorted({*sealed, *found}) if sealed.get(part) != found.get(part)]
    if changed:
        short = ", ".join(
            f"{part} {found.get(part, 'none')[:12]} instead of {sealed.get(part, 'none')[:12]}"
            for part in changed
        )
        raise ValueError(
            f"the {' and '.join(changed)} examples of {name} are not those that {where} was "
            f"started with (data_sha256: {short}); restore them, or start a new run in another "
            "folder"
        )
