"""Works and users of the toys that come through the door; workers import it by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.training.bounded_sum import RowStack
from fedpriv.training.work import UserTrainer

ROSTER = tuple(f"user-{number:02d}" for number in range(12))
STEP_SIZES = (0.0, 0.25, 0.5, 1.0)


class Users:
    """Every user has a point near (1, 2, 3)."""

    def examples(self, user_id):
        number = ROSTER.index(user_id)
        return np.array([1, 2, 3], np.float32) + np.float32(0.1) * (number - 5)

    def num_examples(self, user_id):
        return 1


class Gradient(UserTrainer):
    """Towards the user's point: minus the gradient of half the squared distance."""

    def train(self, params, context, examples, key):
        return {"w": examples - params["w"]}


class Losses(UserTrainer):
    """The distance at every step size along a direction that was released."""

    def template(self, request):
        return {"losses": np.zeros(len(STEP_SIZES), np.float32)}

    def train(self, params, context, examples, key):
        tried = [params["w"] + size * context.line.direction["w"] for size in context.line.sizes]
        return {"losses": np.array([np.linalg.norm(examples - w) for w in tried], np.float32)}


@dataclass(frozen=True, slots=True)
class NoisyStack(RowStack):
    """Every user adds a share of noise to its own contribution: whole steps of the grid."""

    key: Key
    step: float

    def add_to(self, total, factors, besides):
        longer = super(NoisyStack, self).add_to(total, factors, besides)
        draws = self.key.fold("share").generator()
        share = {n: draws.integers(-SHARE, SHARE + 1, a.shape[1:]) for n, a in self.rows.items()}
        total.add({n: a.astype(np.float64) for n, a in share.items()}, self.step)
        return longer


class NoisyShares(Gradient):
    """The same, with a share of noise beside each user's."""

    def stacks(self, request, attempt, users):
        for user in users.ids:
            for stack in super().stacks(request, attempt, replace(users, ids=(user,))):
                step = attempt.bound.granularity
                yield NoisyStack(stack.rows, attempt.key.fold(user), step)


SHARE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(Clip):
    """A clip whose sums also hold shares of noise, which a server must let through."""

    name = "shared"

    def sum_limit(self, num_users):
        return num_users * self.l2_bound * 1.5


LIKE = {"w": np.zeros(3, np.float32)}
WORKS = {
    "train": Gradient(),
    "losses": Losses(),
    "shares": NoisyShares(),
}
TASK = SimpleNamespace(
    measures=(),
    roster=ROSTER,
    data=Users(),
    init_params=lambda key: {"w": np.zeros(3, np.float32)},
)


def nothing(params, public, part=None):
    return None


def context(device):
    """What a worker works with."""
    return SerialBackend(trainer=WORKS, data=TASK.data, measure=nothing)
