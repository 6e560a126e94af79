"""Works and users of the toys that come through the door; workers import it by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Capped, Clip
from fedpriv.mechanisms.bounds import Bound
from fedpriv.sums import RunningSum
from fedpriv.training.work import UserByUser, UserTrainer

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

    def train(self, params, context, examples, key):
        tried = [params["w"] + size * params["direction"] for size in STEP_SIZES]
        return {"losses": np.array([np.linalg.norm(examples - w) for w in tried], np.float32)}


class Below(UserTrainer):
    """The update, and whether it is shorter than a released threshold: ±1/2."""

    def train(self, params, context, examples, key):
        update = examples - params["w"]
        below = np.linalg.norm(update) <= float(params["threshold"])
        return {"w": update, "below": np.array([0.5 if below else -0.5], np.float32)}


class NoisyShares(RunningSum):
    """Every user adds a share of noise to its own contribution: whole steps of the grid."""

    def __init__(self, template, granularity):
        super().__init__(template, granularity)
        self._step = granularity

    def add(self, update, factor, key=None):
        super().add(update, factor)
        draws = key.fold("share").generator()
        share = {n: draws.integers(-SHARE, SHARE + 1, a.shape) for n, a in update.items()}
        super().add({n: a.astype(np.float64) for n, a in share.items()}, self._step)


SHARE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint(Bound):
    """An update clipped to C beside a bit of ±1/2 that is scaled to the length `bit`."""

    l2_clip_norm: float
    bit: float
    name = "joint"

    @property
    def l2_bound(self):
        return math.hypot(self.l2_clip_norm, self.bit)

    def bounded_norm(self, norm, num_elements):
        return min(norm, self.l2_bound)

    def scaled(self, update):
        clipped, factor = Clip(l2_clip_norm=self.l2_clip_norm).scaled({"w": update["w"]})
        below = np.sign(update["below"]).astype(np.float32) * np.float32(self.bit)
        return {"w": clipped["w"] * np.float32(factor), "below": below}, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(Clip):
    """A clip whose sums also hold shares of noise, which a server must let through."""

    name = "shared"

    def sum_limit(self, num_users):
        return num_users * self.l2_bound * 1.5


BOUNDS = {"clip": Clip, "capped": Capped, "joint": Joint, "shared": Shared}
LIKE = {"w": np.zeros(3, np.float32)}
WORKS = {
    "train": UserByUser(trainer=Gradient()),
    "losses": UserByUser(
        trainer=Losses(), shapes={"losses": np.zeros(len(STEP_SIZES), np.float32)}
    ),
    "below": UserByUser(trainer=Below(), shapes={**LIKE, "below": np.zeros(1, np.float32)}),
    "shares": UserByUser(trainer=Gradient(), adder=NoisyShares),
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
