"""Own trainers of many users at once: what would move the sum by more than the bound is refused."""

import importlib
import pkgutil
from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedpriv.backends
import fedpriv.runs
import fedpriv.tasks
import fedpriv.training
from fedpriv.mechanisms import Bound, Clip
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tasks.checks import SyntheticUsers, check_work, fresh_works
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.bounded_sum import RowStack
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.work import Attempt, Trainer, UserTrainer, Work
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import Users, answered

PARAMS, RNG = {"w": np.zeros(5, np.float32)}, np.random.default_rng(0)
BATCH = RNG.normal(size=(6, 5)).astype(np.float32), RNG.normal(size=6).astype(np.float32)
ATTEMPT = Attempt(bound=Clip(l2_clip_norm=1.0), key=Key.simulation(0))


@dataclass(frozen=True)
class Blocks(Trainer):
    """Gradients of squared errors, of all users at once, and what becomes of them."""

    change: object = staticmethod(lambda rows: rows)
    times: int = 1

    def stacks(self, request, attempt, users):
        found = [users.data.examples(user) for user in users.ids]
        rows = np.stack([x.T @ (y - x @ request.params["w"]) / len(y) for x, y in found])
        for _ in range(self.times):
            yield RowStack({"w": self.change(rows.astype(np.float32))})


def tried(work):
    fresh, data = fresh_works(work, lambda: replace(work)), SyntheticUsers(BATCH)
    check_work(fresh, SumRequest(params=PARAMS), ATTEMPT, data, trained=PARAMS)


def test_users_apart_are_let_through():
    tried(Blocks())


@pytest.mark.parametrize(
    ("work", "error", "named"),
    [
        (Blocks(times=2), ValueError, "once"),
        (Blocks(lambda rows: rows - rows.mean(0) + rows), KeepsStateError, "Blocks"),
        (Blocks(lambda rows: np.tile(rows.mean(0), (len(rows), 1))), KeepsStateError, "Blocks"),
        (Blocks(lambda rows: rows / np.abs(rows).max()), KeepsStateError, "Blocks"),
        (Blocks(lambda rows: rows[:, :1]), ValueError, "w"),
    ],
)
def test_what_mixes_users_or_counts_them_twice_is_refused(work, error, named):
    """Unnoticed it moves the sum by 2 to 13 bounds; one number of five was added to the first."""
    with refuses(error, named):
        tried(work)


@dataclass(frozen=True)
class SumsByItself(Work):
    """Users' targets on a line, so many bounds long, summed by the work itself."""

    times: float

    def answer(self, request, attempt, users):
        total = np.zeros_like(request.params["w"])
        for user in users.ids:
            x, y = users.data.examples(user)
            row = x.T @ y
            total += self.times * attempt.bound.l2_bound * row / np.linalg.norm(row)
        return PartialSum(total={"w": total}, num_users=len(users.ids))


def test_work_that_sums_by_itself_keeps_its_bound():
    tried(SumsByItself(0.5))
    with refuses(ValueError, ATTEMPT.bound):
        tried(SumsByItself(1.5))


class Weighted(UserTrainer):
    """Users' updates, bounded, and then weighted by how many examples there are."""

    def train(self, params, context, examples, key):
        x, y = examples
        return {"w": (x.T @ y).astype(np.float32)}

    def answer(self, request, attempt, users):
        found = super().answer(request, attempt, users)
        times = sum(len(users.data.examples(user)[1]) for user in users.ids)
        return replace(found, total={"w": times * found.real()["w"]}, granularity=None)


def test_a_trainer_that_sums_in_its_own_way_keeps_its_bound():
    fresh, data = fresh_works(Weighted(), Weighted), SyntheticUsers(BATCH)
    with refuses(ValueError, 1e-12):
        check_work(fresh, SumRequest(params=PARAMS), ATTEMPT, data, trained=PARAMS)


def test_few_works_of_the_package_sum_by_themselves():
    """All others are trainers, whose contributions `bounded_sum` bounds; a new one is red here."""
    for package in (fedpriv.training, fedpriv.runs, fedpriv.tasks, fedpriv.backends):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(("fedpriv.backends.flower", "fedpriv.backends.ray")):
                importlib.import_module(module.name)

    def below(kind):
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    ours = [kind for kind in below(Work) if kind.__module__.startswith("fedpriv.")]
    results = {"PermutationSgd", "Wrapped", "Mistakes"}  # of OutputSensitivity, and their count
    nothing = {"_ShapesOnly"}
    found = {kind.__name__ for kind in ours if "answer" in vars(kind)}
    assert found == {"Work", "Trainer"} | results | nothing


class TooLong(Bound):
    l2_bound = 0.1

    def factors(self, norms, clip_norm=None):
        return np.ones_like(norms)


def test_a_bound_that_does_not_bound_lets_no_one_through():
    done = answered(Blocks(), params=PARAMS, bound=TooLong(), user_ids=["a"], data=Users(a=BATCH))
    assert done.num_failed == 1 and not done.total["w"].any()
