"""Checks of a task before a run: its members, its roster, a trial on synthetic examples.

A task is checked before anything is charged, so that a mistake in it ends the run. In a round a
user that fails contributes zero, alone, and its error is not logged: it may hold the user's data. A
model of the wrong width fails for everybody, and a whole run would be spent on nothing but noise.
So the same code is run first on examples of no one on the roster, and what it raises there is
raised.

Independence of users is tried on synthetic users, in many orders. A trainer that keeps something
between users may look consistent in one order: a scaler that is fitted on the first data that it
sees is the same for everybody after that, but another process makes another trainer, and there a
rostered user comes first. So each order is asked of a work that has seen nothing, and each
synthetic user is once the first of all.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedpriv import tree
from fedpriv.measures import Measure, check_measures
from fedpriv.mechanisms.bounds import Clip
from fedpriv.privacy.plan import BY_EXAMPLE
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.guards import refuse_untrained
from fedpriv.tasks.task import BaseTask, Task, TaskDescription
from fedpriv.training.bounded_sum import NotFiniteError
from fedpriv.training.dp_agd import ExampleLosses
from fedpriv.training.evaluate import FEW, Metrics
from fedpriv.training.failures import raised_failures
from fedpriv.training.independence import differs, keeps_state, refuse_dependence
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.streams import unlike_streams
from fedpriv.training.work import (
    Attempt,
    Context,
    SumRequest,
    Trainer,
    Trainers,
    Users,
    UserTrainer,
    Work,
    as_works,
    find_work,
)
from fedpriv.tree import Params, Tree

#: Two synthetic users of a task's batch.
FIRST, SECOND = "a synthetic user", "another synthetic user"
_WHOLE, _MANY, _LARGE = "one of all examples", "one of many examples", "one of large numbers"

_FEW_EXAMPLES, _NUM_MANY, _TIMES = 8, 32, 100.0
# Of so few params one work is asked for everybody so many times over; of more, twice.
_CHEAP, _PASSES = 1 << 20, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshWorks:
    """Works that have seen no example.

    Attributes:
        untouched: What a user does, by name or alone, as it was made; None where it is made again.
        again: Makes it again, as another process would.
        shared: What copies have in common: the task and its data.
    """

    untouched: Trainers | None = field(repr=False)
    again: Callable[[], Trainers] = field(repr=False)
    shared: tuple[Any, ...] = field(repr=False)

    @classmethod
    def of(cls, trainer: Trainers, again: Callable[[], Trainers], *shared: Any) -> FreshWorks:
        """Return works like a trainer's that has seen nothing yet.

        It is made again, so that what a function fits on its first data shows; where that returns
        the same object each time, it is copied.

        Args:
            trainer: What a user does, by name or alone.
            again: Makes it again.
            shared: What copies have in common.

        Raises:
            ValueError: If it is the same object each time and cannot be copied.
        """
        made = as_works(again())
        same = [one for name, one in as_works(trainer).items() if made.get(name) is one]
        if not same:
            return cls(untouched=None, again=again, shared=shared)
        try:
            untouched = _copied(trainer, shared)
        except Exception as error:
            end_if_interrupted(error)
            raise ValueError(
                f"whether users are apart could not be tried: a {type(same[0]).__name__} cannot be "
                f"copied ({type(error).__name__}: {error}), and trainer() of the task returns the "
                "same one each time; let it make another one"
            ) from error
        return cls(untouched=untouched, again=again, shared=shared)

    def work(self, name: str) -> Work:
        """Return another work of a name."""
        fresh = self.again() if self.untouched is None else _copied(self.untouched, self.shared)
        return find_work(as_works(fresh), name)


def _copied(trainer: Trainers, shared: tuple[Any, ...]) -> Any:
    return copy.deepcopy(trainer, {id(one): one for one in shared})


def refuse_dependent_work(
    fresh: Callable[[], Work], request: SumRequest, attempt: Attempt, batch: Any
) -> None:
    """Refuse work in which one synthetic user changes what another one contributes.

    As of `fedpriv.training.independence`, dozens of times over where the params are few; and two
    users asked for at once must add up. Users are small, large and of many examples.

    Args:
        fresh: Makes a work that has seen nothing.
        request: What is asked.
        attempt: By which bound and key.
        batch: Examples of no rostered user.

    Raises:
        Exception: What the work raises of a user.
        KeepsStateError: Names the work.
    """
    data = SyntheticUsers(batch, extremes=True)

    def total(work: Work, *user_ids: str, raw: bool = False) -> Tree:
        with raised_failures(), unlike_streams():
            given = _raw(work, attempt) if raw else attempt
            return work.answer(request, given, Users(user_ids, data)).total

    def train(user_ids: Sequence[str]) -> list[Tree]:
        work = fresh()
        return [total(work, user_id, raw=True) for user_id in user_ids]

    able = []
    for user_id in data.user_ids:
        try:
            train([user_id])
            able.append(user_id)
        except Exception as error:
            end_if_interrupted(error)
            if user_id != _LARGE:  # which a model need not take
                raise
    work = fresh()
    of = type(work).__name__
    passes = _PASSES if tree.num_elements(request.params) <= _CHEAP else 2
    whole = _raw(work, attempt).bound.granularity is not None
    refuse_dependence(train, able, of=of, whole=whole, passes=passes)
    bounds = [attempt.bound]
    if isinstance(work, Trainer) and not isinstance(work, UserTrainer):
        # Of many users at once: a mean of both adds up unless they are clipped, and clipped a scale
        # that both have in common does not show.
        bounds += [_NO_BOUND, _SHORT]
    for bound in bounds:
        attempt = replace(attempt, bound=bound)
        both, parts = total(work, SECOND, FIRST), (total(fresh(), FIRST), total(fresh(), SECOND))
        if differs(both, *parts, whole=bound.granularity is not None):
            raise keeps_state(of)


def _raw(work: Work, attempt: Attempt) -> Attempt:
    """Return the attempt without a bound, where single users train: bounded they may look alike."""
    return replace(attempt, bound=_NO_BOUND) if isinstance(work, UserTrainer) else attempt


class SyntheticUsers:
    """A `fedpriv.training.work.UserData` of users who share a batch.

    Args:
        batch: Where it can be halved, each of two users has a half; another one has all of it.
        extremes: Whether there is instead one of many examples, and one of large numbers, and no
            user has more than a few of the batch.
    """

    def __init__(self, batch: Any, *, extremes: bool = False) -> None:
        first = second = batch
        size = _size(batch)
        if size:
            number = min(size, _FEW_EXAMPLES) if extremes else size
            order = np.arange(number)
            if number > 1:
                first, second = _taken(batch, order[::2]), _taken(batch, order[1::2])
        self._batches = {FIRST: first, SECOND: second}
        if not extremes:
            self._batches[_WHOLE] = batch
        else:
            if first is not second:
                self._batches[_MANY] = _taken(batch, np.arange(_NUM_MANY) % number)
            larger = _larger(second)
            if larger is not None:
                self._batches[_LARGE] = larger

    @property
    def user_ids(self) -> tuple[str, ...]:
        """The users."""
        return tuple(self._batches)

    def examples(self, user_id: str) -> Any:
        """Return the user's examples."""
        return self._batches[user_id]

    def num_examples(self, user_id: str) -> int:
        """Return how many there are."""
        batch = self._batches[user_id]
        return _size(batch) or (len(batch) if hasattr(batch, "__len__") else 1)


def _size(batch: Any) -> int:
    """Return how many examples can be picked from; 0 where none can."""
    if isinstance(batch, tuple) and batch and all(isinstance(one, np.ndarray) for one in batch):
        sizes = {len(one) if one.ndim else 0 for one in batch}
        return sizes.pop() if len(sizes) == 1 else 0
    return len(batch) if hasattr(batch, "take") and not isinstance(batch, np.ndarray) else 0


def _taken(batch: Any, index: np.ndarray) -> Any:
    return tuple(one[index] for one in batch) if isinstance(batch, tuple) else batch.take(index)


def _larger(batch: Any) -> Any | None:
    """Return examples of larger inputs; None where it is not known which numbers are inputs."""
    from fedpriv.training.local.module import ArrayExamples  # slow: it imports torch

    if isinstance(batch, ArrayExamples):
        x = _larger(np.asarray(batch.x))
        return None if x is None else ArrayExamples(x, batch.y)
    if isinstance(batch, tuple) and batch:
        x = _larger(batch[0])
        return None if x is None else (x, *batch[1:])
    if isinstance(batch, np.ndarray) and batch.dtype.kind == "f":
        return (_TIMES * batch).astype(batch.dtype)
    return None


# Of a large roster so many users are looked for, from all over it.
_MOST_USERS = 10_000


def check_parts(task: Any, of: str) -> None:
    """Refuse what is no task, before anything is written or charged.

    Args:
        task: Of users.
        of: The experiment's name, for messages.

    Raises:
        ValueError: If it is of another type, or its parts do not fit together.
    """
    if not isinstance(task, Task):
        raise ValueError(
            f"the task of {of} is a {type(task).__name__}; derive its class from "
            "fedpriv.tasks.task.Task"
        )
    for name, meaning in (("roster", "a tuple of user ids"), ("data", "their examples")):
        if not hasattr(task, name):
            raise ValueError(f"{_the_task(task, of)} has no {name}; give it one: {meaning}")
    _check_roster(task.roster, of)
    for name in ("examples", "num_examples"):
        if not callable(getattr(task.data, name, None)):
            raise ValueError(
                f"data of {_the_task(task, of)} are a {type(task.data).__name__} without a method "
                f"{name}(user_id); add it, or see fedpriv.tasks.module_task.ArrayUsers"
            )
    check_described(task, of, len(task.roster))


def check_described(task: BaseTask, of: str, num_users: int) -> None:
    """Refuse a task, of users or of examples, whose measures or description are not of their types.

    Raises:
        ValueError: If that is so, or it is described with another number of users than it has.
    """
    for measure in task.measures:
        if not isinstance(measure, Measure):
            raise ValueError(
                f"measures of {_the_task(task, of)} hold a {type(measure).__name__}; give "
                "fedpriv.measures.Measure(name=..., label=...)"
            )
    check_measures(task.measures)
    described = task.describe()
    if not isinstance(described, TaskDescription):
        raise ValueError(
            f"describe() of {_the_task(task, of)} returned a {type(described).__name__}; return a "
            "fedpriv.tasks.task.TaskDescription(name=..., synthetic=..., roster=..., "
            "num_users=...)"
        )
    if described.num_users != num_users:
        raise ValueError(
            f"describe() of {_the_task(task, of)} says {described.num_users} users, and its roster "
            f"has {num_users}; say num_users=len(self.roster)"
        )


def check_central_task(task: Any, of: str) -> None:
    """Refuse what is no centralised task.

    Raises:
        ValueError: If it is of another type, or does not describe itself.
    """
    if not isinstance(task, CentralTask):
        raise ValueError(
            f"the task of {of} is a {type(task).__name__}; an experiment whose unit is an example "
            "takes a fedpriv.tasks.central.CentralTask"
        )
    slots = task.owned.most if task.owned is not None and task.owned.unit == BY_EXAMPLE else 1
    check_described(task, of, len(task.roster) // slots)


def check_users(task: Task, of: str) -> None:
    """Refuse a task that is to be trained here and has no examples of a rostered user.

    Of a large roster some thousands, from all over it, are looked for. A user with no examples, or
    with some that cannot be had, is somebody who contributes zero, and is not refused.

    Raises:
        ValueError: If its data say that they do not hold one of them, or raise for all.
    """
    users = task.roster[:: -(-len(task.roster) // _MOST_USERS)]
    known = {user_id: _is_known(task.data, user_id) for user_id in users}
    missing = [user_id for user_id, there in known.items() if there is False]
    if not any(known.values()):
        missing = users
    if missing:
        raise ValueError(
            f"data of {_the_task(task, of)} have nothing of rostered user {missing[0]!r}; "
            "give examples, maybe none, for everybody on the roster, or take the user off it"
        )


def _is_known(data: Any, user_id: str) -> bool | None:
    """Return whether data hold a user; None where looking for it raises."""
    try:
        if hasattr(data, "__contains__"):
            return user_id in data
        return data.num_examples(user_id) >= 0
    except KeyError:
        return False
    except Exception as error:
        end_if_interrupted(error)
        return None


def check_metrics(task: BaseTask, found: Any) -> None:
    """Refuse what measuring public examples returned where it is not what the measures name.

    Args:
        task: Of any kind.
        found: What its trial returned; None where nothing was measured.

    Raises:
        ValueError: If it is no `Metrics`, has a figure of another name, or there should be some.
    """
    if found is None:
        number = task.describe().num_public_users
        # Public users that are learnt from need not have examples that are kept back.
        learns = type(task).public_learner is not BaseTask.public_learner
        if task.measures and number > 0 and not learns:
            raise ValueError(
                f"describe() says {number} public users, but evaluate() measures nothing on them; "
                "give their examples, or say num_public_users=0"
            )
        return
    if not isinstance(found, Metrics) or not isinstance(found.totals, Mapping):
        raise ValueError(
            f"evaluate() of the task returned a {type(found).__name__}; return Metrics.of(number, "
            "name=mean), or None where there is nothing to measure on"
        )
    named = [measure.name for measure in task.measures]
    for name in found.totals:
        if name not in named:
            raise ValueError(
                f"evaluate() measured {name!r}, which is not among the task's measures "
                f"({', '.join(named) or 'none'}); add a Measure of that name"
            )


def _check_roster(roster: Any, of: str) -> None:
    if not isinstance(roster, tuple):
        raise ValueError(
            f"the roster of {of} is a {type(roster).__name__}; give a tuple of user ids, sorted"
        )
    if not roster:
        raise ValueError(f"the roster of {of} is empty; there must be users to learn from")
    for user_id in roster:
        if not isinstance(user_id, str):
            raise ValueError(
                f"user {user_id!r} on the roster of {of} is a {type(user_id).__name__}; give text"
            )
    if len(set(roster)) != len(roster):
        twice = next(user_id for user_id in roster if roster.count(user_id) > 1)
        raise ValueError(f"user {twice!r} is on the roster of {of} more than once; list each once")


def _the_task(task: Any, of: str) -> str:
    return f"the task of {of} ({type(task).__name__})"


_KEY = Key.simulation(0).fold("trial of a task")
_FEW = 2
#: Public examples that are looked at where those few leave a tensor where it is.
_SEVERAL = 64
# Longer than any update, and short enough to be squared.
_NO_BOUND, _SHORT = Clip(l2_clip_norm=1e100), Clip(l2_clip_norm=1e-12)
_SOME = 1024


# By whether the model learns from the examples.
_EQUAL_TO_ROSTERED = {
    False: "public examples are equal to examples of rostered users: what is measured on them is "
    "not released but private, and covered by no ε; take public examples of users outside the "
    "roster",
    True: "examples of public_train are equal to examples of rostered users: what is learnt from "
    "them is not public but private, and a start from it is covered by no ε; take examples of "
    "users outside the roster",
}


def describe_untried(task: BaseTask) -> str:
    """Return the warning about a task that makes no examples, in one line."""
    return (
        f"what a user does in the task ({type(task).__name__}) could not be tried beforehand: a "
        "mistake in its train would spend the whole ε on noise; give the task a method "
        "synthetic_batch() that returns synthetic examples like one user's"
    )


def find_cautions(task: BaseTask, found: Metrics | None, *, simulated: bool) -> tuple[str, ...]:
    """Return warnings about a task's public examples, in a line each.

    Args:
        task: Of users.
        found: What was measured of public examples in the trial; None for nothing.
        simulated: Whether rostered users' examples may be looked at to say it.
    """
    cautions = []
    if found is None and task.measures:
        cautions.append(
            f"nothing is measured on public examples, so no {task.measures[0].label} is released; "
            "give the task public examples, of users outside the roster"
        )
    if simulated and not task.equal_by_chance:
        for learnt, text in _EQUAL_TO_ROSTERED.items():
            equal, number = task.public_of_rostered(learnt=learnt)
            if equal:
                cautions.append(
                    f"{equal:,} of {number:,} {text}; or, where they are values that many people "
                    "share and no copies, declare it: equal_by_chance=True"
                )
    return tuple(cautions)


def public_of_rostered(task: BaseTask, *, learnt_from: bool) -> dict[str, int]:
    """Return what a simulation records of public examples that equal rostered users'.

    Args:
        task: Of any kind; its rostered users' examples are looked at.
        learnt_from: Whether the model starts from what public examples taught it.

    Returns:
        How many are equal, by name: of those that are measured on, and of those learnt from; or of
        both together as "equal_by_chance", where the task declares that they are. Nothing where
        there are none.
    """
    found = {"public_of_rostered": task.public_of_rostered()[0]}
    if learnt_from:
        found["public_train_of_rostered"] = task.public_of_rostered(learnt=True)[0]
    if task.equal_by_chance:
        found = {"equal_by_chance": sum(found.values())}
    return {name: equal for name, equal in found.items() if equal}


def check_task(task: Task, *, learning_rate: float = 0.1) -> None:
    """Try what users do in a task as a run does before its first charge; for tests of one's own.

    Synthetic (or public) users train in several orders and with one left out, with equal keys: each
    must contribute the very same. What shows later is looked for while a simulation runs.

    Args:
        task: Of users. Its rostered users are not looked at.
        learning_rate: Of the local steps.

    Raises:
        ValueError: If its parts do not fit together, it makes no examples to try, an update is not
            finite or of other tensors than the params, or a tensor to be trained does not move.
        KeepsStateError: A ValueError; if one user changes what another contributes.
    """
    from fedpriv.training.local.schedule import Schedule

    check_parts(task, type(task).__name__)

    def make() -> Trainers:
        return task.trainer(Schedule(learning_rate=learning_rate), {})

    trainer, params, batch = make(), task.init_params(_KEY), task.synthetic_batch()
    if batch is None:
        raise ValueError(describe_untried(task))
    fresh = FreshWorks.of(trainer, make, task, task.data)
    extra = {} if task.round_tensors is None else task.round_tensors(1)
    for name, work in as_works(trainer).items():
        request = SumRequest(params=params, context=Context(extra=extra), work=name)
        attempt = Attempt(bound=_NO_BOUND, key=_KEY)
        try_work(work, request, attempt, batch=batch, fresh=fresh, trained=params)


def try_work(
    work: Work,
    request: SumRequest,
    attempt: Attempt,
    *,
    batch: Any,
    fresh: FreshWorks | None,
    trained: Collection[str],
) -> PartialSum:
    """Return the sum of one synthetic user, which no other one changes.

    Args:
        work: What users do, one by one or side by side.
        request: What is asked.
        attempt: By which bound; the key is another one.
        batch: Examples of no rostered user; where it can be halved, each user has a half.
        fresh: Works like it that have seen nothing, to look for what users do to each other; None
            asks one user alone.
        trained: Names of the tensors that are to be trained.

    Raises:
        Exception: What the work raises of a user.
        ValueError: If a user fails, and the work keeps to itself why; if an update is not finite;
            or if one of the tensors does not move (`fedpriv.tasks.guards`).
        KeepsStateError: If a user's contribution is another one where another user came before it,
            or is there too: no bound of a single contribution would hold then
            (`fedpriv.tasks.checks`).
    """
    attempt = replace(attempt, key=_KEY)

    def asked(attempt: Attempt, at: Params, *user_ids: str) -> PartialSum:
        try:
            with raised_failures():
                given = replace(request, params=at)
                users = Users(user_ids, SyntheticUsers(batch))
                return work.answer(given, attempt, users)
        except NotFiniteError as error:
            raise ValueError(
                "the update of a user with public or synthetic examples is not finite: every "
                "user's would be left out, and the whole ε be spent on noise; lower the local "
                "learning rate (local-learning-rate), or give the task a synthetic_batch of "
                "examples like its users'"
            ) from error

    found = asked(attempt, request.params, FIRST)
    if found.num_failed:
        raise ValueError(
            f"work {request.work!r} fails on what the task's synthetic_batch() makes, and does not "
            "say why; let it call fedpriv.training.failures.contributes_zero(error)"
        )
    if fresh is not None:
        refuse_dependent_work(lambda: fresh.work(request.work), request, attempt, batch)
        raw = _raw(work, attempt)
        first = asked(raw, request.params, FIRST).total
        # A loss may need more examples than half a batch has: of pairs, or of one kind of them.
        users = FIRST, SECOND, _WHOLE
        refuse_untrained(lambda at: asked(raw, at, *users).total, request.params, first, trained)
    return found


def try_task(
    task: BaseTask, params: Params, batch: Any | None, train: Callable[[Any], None]
) -> Metrics | None:
    """Train on a batch, and measure the params on a small part of the public examples.

    Args:
        task: Of any kind; its rostered users are not looked at.
        params: Before the first round; not changed.
        batch: The task's `synthetic_batch`; None trains nothing.
        train: What is done with the batch.

    Raises:
        Exception: What the training or the measuring raises.
    """
    if batch is not None:
        train(batch)
    found = task.evaluate(params, public=True, part=FEW)
    if found is None and task.measures and task.describe().num_public_users > 0:
        found = task.evaluate(params, public=True)  # the first may have no example
    return found


def try_central_task(task: CentralTask, params: Params) -> Metrics | None:
    """Make gradients of a few public examples; without any, measure the params on the test set.

    A module without public examples has its gradients at synthetic ones, if it takes such.

    Args:
        task: Its private training set is not looked at.
        params: Before the first step; not changed.

    Raises:
        Exception: What the model or its loss raises.
        ValueError: If a tensor of the params does not move (`fedpriv.tasks.guards`).
    """
    examples, found = task.public, None
    if examples is None:
        found = task.measure(params)
        on_synthetic = getattr(task.train, "on_synthetic", None)
        if on_synthetic is None:
            return found
        examples = on_synthetic(_FEW)
    available = task.num_public or _FEW

    def gradients(at: Params, number: int) -> Params:
        # Each alone, by their sizes: of two labels that differ a bias's may cancel exactly.
        index = np.linspace(0, available - 1, min(available, number)).astype(np.int64)
        each = [examples.gradient(at, index[i : i + 1], _KEY) for i in range(len(index))]
        return {name: np.sum([np.abs(one[name]) for one in each], axis=0) for name in params}

    def refuse(number: int) -> None:
        refuse_untrained(
            lambda at: gradients(at, number), params, gradients(params, number), params
        )

    if task.public is None:
        try:
            gradients(params, _FEW)
        except Exception as error:
            end_if_interrupted(error)
            return found  # drawn inputs may be none that the model takes
    try:
        refuse(_FEW)
    except ValueError:  # a few examples may be blank, or use few of the tensors
        refuse(_SEVERAL)
    return found


def public_loss(task: CentralTask, params: Params) -> float | None:
    """Return the mean loss of some public examples; None without any, or where it is not finite.

    Args:
        task: Its private training set and its test set are not looked at.
        params: Before the first step; not changed.
    """
    if not isinstance(task.public, ExampleLosses):
        return None
    nowhere = {name: np.zeros_like(array) for name, array in params.items()}
    index = np.arange(min(task.num_public, _SOME))
    found = float(np.mean(task.public.losses_along(params, nowhere, [0.0], index)))
    return found if math.isfinite(found) else None
