"""Users' examples as a training set, for example-level sampling with user-level privacy (ELS).

Each user on the roster has G slots, filled or empty, so that the size of the set, the probability
of a slot and the denominator are public. A step draws slots independently and bounds each example's
gradient alone; one user's records move the sum by at most k bounds, k binomial of G and the
probability, and a step is accounted as that mixture of Gaussians (Charles et al. 2024,
arXiv:2407.07737; `fedpriv.privacy.sampling.DevicesSampler`). It is for those who hold the users'
examples in one place; federated averaging samples users instead (ULS).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedpriv.datasets.stackexchange.rosters import ordinal_hashes
from fedpriv.privacy.plan import BY_EXAMPLE
from fedpriv.ranges import positive_int
from fedpriv.rng import Key
from fedpriv.tasks.central import CentralTask, OwnedExamples
from fedpriv.tasks.task import EMPTY, Task, TaskDescription
from fedpriv.training.evaluate import WHOLE, ClassScores, Metrics, Part
from fedpriv.training.public_learning import PublicLearner
from fedpriv.training.public_selection import PublicFold
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.tree import Params

_SALT = "fedpriv examples of a user 1"  # fixed for ever: changing it changes which examples train


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
        try:
            number = task.data.num_examples(user_id)
        except Exception as error:  # cannot be had: the user contributes zero
            end_if_interrupted(error)
            number = 0
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
