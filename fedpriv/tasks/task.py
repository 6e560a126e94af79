"""What a task is: a roster, its users' examples, a model, and how it is measured.

`Task` is what every task has. What only some have is a protocol of its own: multipliers 1/A for
preconditioning (`KnowsMultipliers`, of words `KnowsWords`), losses user by user for attacks on
simulations (`KnowsUserLosses`), probabilities of classes
(`fedpriv.training.evaluate.ScoresClasses`), what users are told in each round
(`ShiftsOverRounds`), files that go with the model (`BringsFiles`), synthetic examples to try the
task on (`MakesExamples`), and a look at whether its public examples are private (`ComparesPublic`).
A centralised task is a `fedpriv.tasks.example_task.CentralTask`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedpriv.measures import Measure
from fedpriv.mechanisms.side_information import PublicWords, SideInformation
from fedpriv.rng import Key
from fedpriv.tasks.description import TaskDescription
from fedpriv.training.evaluate import WHOLE, Metrics, Part
from fedpriv.training.local.trainer import Schedule
from fedpriv.training.public_learning import PublicLearner
from fedpriv.training.work import LocalTrainer, UserData
from fedpriv.tree import Params


class Task(Protocol):
    """What is learnt, and from whom."""

    @property
    def roster(self) -> tuple[str, ...]:
        """The frozen user ids."""
        ...

    @property
    def roster_sha256(self) -> str:
        """Digest of the roster, frozen in the plan."""
        ...

    @property
    def data(self) -> UserData:
        """The rostered users' training examples."""
        ...

    @property
    def measures(self) -> Sequence[Measure]:
        """What `evaluate` measures, the headline first; empty where nothing is measured."""
        ...

    def init_params(self, key: Key) -> Params:
        """Return the params before the first round, float32."""
        ...

    def trainer(
        self, schedule: Schedule, multiplier: Mapping[str, np.ndarray], device: str = "cpu"
    ) -> LocalTrainer:
        """Return what a user does; or works by name, where an algorithm asks for several.

        Args:
            schedule: How much work.
            multiplier: 1/A for local steps, by name; empty for none.
            device: Where; given only where it is not the CPU.
        """
        ...

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return metrics on public users, or on held-out examples of rostered users.

        Args:
            params: The model.
            public: Which of the two.
            part: Measure only this share; `combined` puts the shares together again.
        """
        ...

    def describe(self) -> TaskDescription:
        """Return what the run folder records of the data."""
        ...


@runtime_checkable
class KnowsMultipliers(Protocol):
    """A task that something is known of its parameters: how much each is worth."""

    def side_information(self) -> SideInformation:
        """Return 1/A, from public knowledge or marked private; used with side-information own."""
        ...


@runtime_checkable
class KnowsWords(Protocol):
    """A task whose first axis of "kernel" are words that public users wrote."""

    def public_words(self) -> PublicWords:
        """Return how common each word is; the options of side-information make 1/A of it."""
        ...


@runtime_checkable
class BringsFiles(Protocol):
    """A task with files that say what the model's inputs and outputs mean."""

    def files(self) -> Mapping[str, bytes]:
        """Return contents by file name, such as a vocabulary.

        They are written into the run folder and into every export: only what is public.
        """
        ...


@runtime_checkable
class ComparesPublic(Protocol):
    """A task that can say whether its public examples are those of rostered users."""

    def public_of_rostered(self) -> tuple[int, int]:
        """Return how many public examples equal a rostered user's, and of how many.

        Private, since it looks at rostered users' examples: asked by simulations only.
        """
        ...


@runtime_checkable
class LearnsInPublic(Protocol):
    """A task whose model can learn from public examples, before and during private training."""

    def public_learner(self, key: Key, *, choosing: bool) -> PublicLearner | None:
        """Return what learns from public training examples; None where there are none.

        Args:
            key: For what it draws.
            choosing: Whether to keep some of them back and measure on those, so that settings can
                be chosen; else it learns from all.
        """
        ...


@runtime_checkable
class HoldsOutPublicUsers(Protocol):
    """A task with public users, each of whom can be held out of what public examples make."""

    def public_users_held_out(self) -> Iterable[tuple[PublicLearner, Sequence[Any]]]:
        """Return learners, and the examples of each public user that one does not learn from."""
        ...


@runtime_checkable
class ComparesPublicTraining(Protocol):
    """A task that can say the same of public examples that it learns from."""

    def public_train_of_rostered(self) -> tuple[int, int]:
        """Return how many of these equal a rostered user's, and of how many; asked likewise."""
        ...


@runtime_checkable
class ShiftsOverRounds(Protocol):
    """A task whose users are told something in each round, such as which of their data counts."""

    @property
    def round_tensors(self) -> Callable[[int], Params] | None:
        """From a round's number to public tensors; None for none. It may look at nothing else."""
        ...


@runtime_checkable
class KnowsUserLosses(Protocol):
    """A task that says how well a model does on each user's training text.

    Private, and of public users too: asked by attacks on simulations only.
    """

    @property
    def roster(self) -> tuple[str, ...]:
        """The frozen user ids."""
        ...

    @property
    def public_users(self) -> tuple[str, ...]:
        """Users outside the roster."""
        ...

    def user_losses(self, params: Params, user_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return each user's mean loss over its training examples, and how many it has.

        Returns:
            float64 (users,), NaN for a user without any, and int64 (users,).
        """
        ...


@runtime_checkable
class MakesExamples(Protocol):
    """A task that makes up examples, so that it can be tried before anything is charged."""

    def synthetic_batch(self) -> Any | None:
        """Return examples in the form of one user's, of no one on the roster; None for none.

        Made up, or public. A task without any is not tried, and the run says so: a mistake in what
        its users do makes every one of them contribute zero, and leaves nothing but noise.
        """
        ...
