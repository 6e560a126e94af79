"""Checks of a task before a run: its members, its roster, a trial on synthetic examples.

A task is checked before anything is charged, so that a mistake in it ends the run. In a round a
user that fails contributes zero, alone, and its error is not logged: it may hold the user's data. A
model of the wrong width fails for everybody, and a whole run would be spent on nothing but noise.
So the same code is run first on examples of no one on the roster, and what it raises there is
raised.

Whether users are apart is tried on synthetic users: each trains alone, by a trainer that has seen
nothing, and then all one after the other, in both orders, by one trainer. A trainer that fits a
scaler on the first data that it sees treats everybody alike after that, but another process makes
another trainer, and there a rostered user comes first. So each synthetic user is once the first of
all.

Noise moves every weight of a released model, so an untrained tensor looks trained there,
and a look at users' raw updates would be an answer that nothing is charged for. So it is looked
for here that each tensor moves and changes the model's answers, and that a saved model is whole.
The second of two steps starts from params that were all moved at random, as noise does: the first
factor of a low-rank adapter has no gradient before the second one has left zero.
"""

from __future__ import annotations

import copy
import math
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np

from fedpriv import tree
from fedpriv.checkpoints.tensor_files import read_tensor_bytes, released_models, tensor_bytes
from fedpriv.datasets.local_data import LocalUsers
from fedpriv.measures import Measure, check_measures
from fedpriv.mechanisms.bounds import EXCESS, Bound, Clip, Normalise, OutputSensitivity, Rounded
from fedpriv.privacy.plan import BY_EXAMPLE
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.task import EQUAL, BaseTask, Task, TaskDescription
from fedpriv.training.algorithm import Algorithm, Context, SumRequest
from fedpriv.training.bounded_sum import NotFiniteError
from fedpriv.training.evaluate import FEW, Metrics
from fedpriv.training.failures import raised_failures
from fedpriv.training.independence import differs, keeps_state, refuse_dependence
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.streams import unlike_streams
from fedpriv.training.work import Attempt, Trainer, Trainers, Users, Work, as_works, find_work
from fedpriv.tree import Params, Tree

FIRST, SECOND, ALL, LARGE = "one half", "the other half", "all examples", "large numbers"
"""Synthetic users, by the share of a batch that each has."""

_FEW_EXAMPLES, _MANY, _TIMES = 8, 32, 100.0
# Of so few params one work is asked for everybody so many times over; of more, twice.
_CHEAP, _PASSES = 1 << 20, 8


Works = Callable[[str], Work]
"""From a name to a work that has seen nothing."""


def fresh_works(trainer: Trainers, again: Callable[[], Trainers], *shared: Any) -> Works:
    """Return a function that makes works which have seen no example, by their names.

    Each is made again, so that what a function fits on its first data shows; where that returns
    the same object, it is copied.

    Args:
        trainer: What a user does, by name or alone, as it was made: never asked.
        again: Makes it again, as another process would.
        shared: What copies have in common: the task and its data.

    Raises:
        ValueError: By the function, if a work is the same object each time and cannot be copied.
    """

    def fresh(name: str) -> Work:
        untouched, made = (find_work(as_works(own), name) for own in (trainer, again()))
        if made is not untouched:
            return made
        try:
            return copy.deepcopy(untouched, {id(one): one for one in shared})
        except Exception as error:
            end_if_interrupted(error)
            raise ValueError(
                f"whether users are apart could not be tried: a {type(made).__name__} cannot be "
                f"copied ({type(error).__name__}: {error}), and trainer() of the task returns the "
                "same one each time; let it make another one"
            ) from error

    return fresh


class SyntheticUsers:
    """A `fedpriv.training.work.UserData` of users who share a batch.

    Args:
        batch: Where it can be picked from, one user has every other of a few examples, one the
            others, one all of them and at least `_MANY`, and one large inputs; else all are alike.
    """

    def __init__(self, batch: Any) -> None:
        self._batches: dict[str, Any] = dict.fromkeys((FIRST, SECOND, ALL), batch)
        if size := _size(batch):
            few = np.arange(min(size, _FEW_EXAMPLES))
            self._batches = {
                FIRST: _taken(batch, few[::2]),
                SECOND: _taken(batch, few[1::2] if size > 1 else few),
                ALL: _taken(batch, np.arange(max(size, _MANY)) % size),
            }
        if (larger := _larger(self._batches[SECOND])) is not None:
            self._batches[LARGE] = larger

    @property
    def user_ids(self) -> tuple[str, ...]:
        """The users."""
        return tuple(self._batches)

    def examples(self, user_id: str) -> Any:
        """Return the user's examples."""
        return self._batches[user_id]

    def num_examples(self, user_id: str) -> int:
        """Return how many there are; 1 where that is not known."""
        return _size(self._batches[user_id]) or 1


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
    x = batch[0] if isinstance(batch, tuple) and batch else batch
    if is_dataclass(batch):
        x = getattr(batch, "x", None)
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
        return None
    large = (_TIMES * x).astype(x.dtype)
    if isinstance(batch, tuple):
        return (large, *batch[1:])
    return large if x is batch else cast(Any, replace)(batch, x=large)


def ask_synthetic(
    work: Work, request: SumRequest, attempt: Attempt, data: SyntheticUsers, *users: str
) -> PartialSum:
    """Return the sum of synthetic users, by a key that no run has.

    Raises:
        Exception: What the work raises of a user.
        ValueError: If an update is not finite, or a user fails and the work keeps to itself why.
    """
    try:
        with raised_failures(), unlike_streams():
            found = work.answer(request, replace(attempt, key=_KEY), Users(users, data))
    except NotFiniteError as error:
        raise ValueError(
            "the update of a user with public or synthetic examples is not finite: every user's "
            "would be left out, and the whole ε be spent on noise; lower the local learning rate "
            "(local-learning-rate), or give the task a synthetic_batch of examples like its users'"
        ) from error
    if found.num_failed:
        raise ValueError(
            f"work {request.work!r} fails on what the task's synthetic_batch() makes, and does not "
            "say why; let it call fedpriv.training.failures.contributes_zero(error)"
        )
    return found


def check_work(
    fresh: Works,
    request: SumRequest,
    attempt: Attempt,
    data: SyntheticUsers,
    *,
    trained: Collection[str],
) -> None:
    """Refuse work in which users are not apart, or that does not move what is to be trained.

    Users train alone and after each other (`fedpriv.training.independence`), and two who are asked
    for at once must add up.

    Args:
        fresh: Makes works that have seen nothing.
        request: What is asked.
        attempt: By which bound; trainers are asked without any, since bounded users may look alike.
        data: Of users on no roster.
        trained: Names of the tensors that are to be trained.

    Raises:
        Exception: What the work raises of a user, but for large inputs, which a model need not
            take.
        ValueError: As of `ask_synthetic`; or if one of the tensors does not move
            (`refuse_untrained`), or the work lets a user exceed the bound.
        KeepsStateError: If a user contributes another update after or next to others: no bound of
            a single contribution would hold then.
    """
    make = partial(fresh, request.work)
    work = make()
    bounds = _tried_bounds(work, attempt.bound)
    whole = bounds[0].granularity is not None

    def ask(own: Work, *users: str, by: Bound = bounds[0], at: Params | None = None) -> PartialSum:
        asked = request if at is None else replace(request, params=at)
        return ask_synthetic(own, asked, replace(attempt, bound=by), data, *users)

    def ask_each(users: Sequence[str], by: Bound = bounds[0]) -> list[PartialSum]:
        own = make()
        return [ask(own, user, by=by) for user in users]

    users = list(data.user_ids)
    if LARGE in users:
        try:
            ask_each([LARGE])
        except Exception as error:
            end_if_interrupted(error)
            users.remove(LARGE)
    passes = _PASSES if tree.num_elements(request.params) <= _CHEAP else 2
    refuse_dependence(
        lambda order: [found.total for found in ask_each(order)],
        users,
        of=type(work).__name__,
        whole=whole,
        passes=passes,
    )
    alone = [(bound, dict(zip(users, ask_each(users, bound), strict=True))) for bound in bounds]
    for bound, found in alone:
        if isinstance(bound, OutputSensitivity):  # says how far apart results are
            continue
        for length in (tree.l2_norm(own.real()) for own in found.values()):
            if not length <= bound.sum_limit(1) * (1.0 + EXCESS):
                raise ValueError(
                    f"a synthetic user's contribution has the norm {length:g}, and {bound!r} "
                    "lets it have less; bound it, or leave that to UserTrainer"
                )
    for bound, found in alone:
        both = ask(make(), SECOND, FIRST, by=bound)
        if differs(both.total, found[FIRST].total, found[SECOND].total, whole=whole):
            raise keeps_state(type(work).__name__)
    # A loss may need more examples than half a batch has: of pairs, or of one kind of them.
    refuse_untrained(lambda at: ask(work, FIRST, SECOND, ALL, at=at).total, request.params, trained)


def _tried_bounds(work: Work, own: Bound) -> list[Bound]:
    """Return the bounds that work is tried by, the loosest first.

    A mean of many users adds up unless they are clipped, and clipped a scale that they have in
    common does not show: a trainer of many users at once is tried both ways. Other work bounds by
    itself, and is tried by its own bound, and by one of a norm that everybody exceeds.
    """
    tiny = Clip(l2_clip_norm=1e-12)
    if isinstance(work, Trainer):
        return [Clip(l2_clip_norm=1e100), tiny]
    if not isinstance(getattr(own, "bound", own), (Clip, Normalise)):
        return [own]
    return [own, tiny if own.granularity is None else Rounded(bound=tiny)]


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
    roster, data = getattr(task, "roster", None), getattr(task, "data", None)
    ids = isinstance(roster, tuple) and all(isinstance(user_id, str) for user_id in roster)
    if not roster or not ids or len(set(roster)) < len(roster):
        raise ValueError(
            f"{_the_task(task, of)} has the roster {reprlib.repr(roster)}; give a tuple of user "
            "ids, sorted, each a text and listed once"
        )
    for name in ("examples", "num_examples"):
        if not callable(getattr(data, name, None)):
            raise ValueError(
                f"data of {_the_task(task, of)} are a {type(data).__name__} without a method "
                f"{name}(user_id); add it, or see fedpriv.tasks.module_task.ArrayUsers"
            )
    check_described(task, of, len(roster))


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


def _the_task(task: Any, of: str) -> str:
    return f"the task of {of} ({type(task).__name__})"


_KEY = Key.simulation(0).fold("trial of a task")
# Public examples that are looked at, and those that are measured.
_SEVERAL, _SOME = 64, 1024


_EQUAL_TO_ROSTERED: dict[str, str] = dict(zip(EQUAL, (
    "public examples are equal to examples of rostered users: what is measured on them is "
    "not released but private, and covered by no ε; take public examples of users outside the "
    "roster",
    "examples of public_train are equal to examples of rostered users: what is learnt from "
    "them is not public but private, and a start from it is covered by no ε; take examples of "
    "users outside the roster",
), strict=True))  # fmt: skip


def describe_untried(task: BaseTask) -> str:
    """Return the warning about a task that makes no examples, in one line."""
    return (
        f"what a user does in the task ({type(task).__name__}) could not be tried beforehand: a "
        "mistake in its train would spend the whole ε on noise; give the task a method "
        "synthetic_batch() that returns synthetic examples like one user's"
    )


def find_cautions(task: BaseTask, found: Metrics | None, *, simulated: bool) -> tuple[str, ...]:
    """Return warnings about a task's public examples and its own files, in a line each.

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
        for name, (equal, number) in task.public_of_rostered().items():
            if equal:
                cautions.append(
                    f"{equal:,} of {number:,} {_EQUAL_TO_ROSTERED[name]}; or, where they are "
                    "values that many people share and no copies, declare it: equal_by_chance=True"
                )
    users = getattr(getattr(task, "data", None), "users", None)
    if simulated and isinstance(users, LocalUsers) and (problems := [*users.problems()]):
        cautions.append(
            f"{len(problems):,} rows or people of {len(users):,} cannot be taken and contribute "
            f"nothing (`fedpriv data ids` names them): {problems[0]}"
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
    names = EQUAL if learnt_from else EQUAL[:1]
    found = {n: equal for n, (equal, _) in task.public_of_rostered().items() if n in names}
    if task.equal_by_chance:
        found = {"equal_by_chance": sum(found.values())}
    return {name: equal for name, equal in found.items() if equal}


def check_task(task: Task, *, learning_rate: float = 0.1) -> None:
    """Try what users do in a task as a run does before its first charge; for user-defined tests.

    Synthetic (or public) users train alone and one after the other, with equal keys: each must
    contribute the very same. What shows later is looked for while a simulation runs.

    Args:
        task: Of users. Its rostered users are not looked at.
        learning_rate: Of the local steps.

    Raises:
        ValueError: If its parts do not fit together, it makes no examples to try, an update is not
            finite or of other tensors than the params, or a tensor to be trained does not move.
        KeepsStateError: A ValueError; if one user changes what another contributes.
    """
    check_parts(task, type(task).__name__)
    make = partial(task.trainer, LocalSgd(learning_rate=learning_rate), {})
    trainer, params, batch = make(), task.init_params(_KEY), task.synthetic_batch()
    if batch is None:
        raise ValueError(describe_untried(task))
    fresh, data = fresh_works(trainer, make, task, task.data), SyntheticUsers(batch)
    extra = {} if task.round_tensors is None else task.round_tensors(1)
    for name in as_works(trainer):
        request = SumRequest(params=params, context=Context(extra=extra), work=name)
        attempt = Attempt(bound=Clip(l2_clip_norm=1.0), key=_KEY)
        check_work(fresh, request, attempt, data, trained=params)


def measure_few(task: BaseTask, params: Params) -> Metrics | None:
    """Return metrics on a small part of the public examples; None where nothing is measured."""
    found = task.evaluate(params, public=True, part=FEW)
    if found is None and task.measures and task.describe().num_public_users > 0:
        found = task.evaluate(params, public=True)  # the first may have no example
    return found


def try_central_task(task: CentralTask, params: Params) -> Metrics | None:
    """Make gradients of a few public examples, and measure some; without any, measure the test set.

    A module without public examples has its gradients at synthetic ones, if it takes such.

    Args:
        task: Its private training set is not looked at.
        params: Before the first step; not changed.

    Raises:
        Exception: What the model or its loss raises.
        ValueError: If a tensor of the params does not move (`refuse_untrained`).
    """
    examples, number = task.public, task.num_public
    if task.public_measure is None or not number:
        found = task.measure(params)
    else:
        found = task.public_measure(params, np.arange(min(number, _SOME)))
    if examples is None:
        on_synthetic, number = getattr(task.train, "on_synthetic", None), 2
        if on_synthetic is None:
            return found
        examples = on_synthetic(number)
    index = np.linspace(0, number - 1, min(number, _SEVERAL)).astype(np.int64)

    def gradient(at: Params) -> Params:
        return examples.gradient(at, index, _KEY)

    if task.public is None:
        try:
            gradient(params)
        except Exception as error:
            end_if_interrupted(error)
            return found  # drawn inputs may be none that the model takes
    refuse_untrained(gradient, params, params)
    return found


_MOVES = Key.simulation(0).fold("guards")
# How far tensors are moved, in their own lengths, until one step shows what is looked for: at the
# first a deep model is still itself, at the second a unit that was off may be on.
_FAR = (0.1, 1.0, 0.01)
# A start must not become too long for an algorithm that bounds it.
_NEAR = 0.01
_SAME = 1e-4


def moved(params: Params, far: float, stream: str, only: Collection[str] | None = None) -> Params:
    """Return float32 params of which tensors are moved at random, the same each time.

    Args:
        params: Not changed.
        far: l2 norm of a tensor's move, about, over that of the tensor, or over 1 where that is 0.
        stream: Other moves for another one.
        only: Which tensors; None for all.
    """
    found = dict(params)
    for name in params if only is None else only:
        array = params[name]
        size = far * (tree.l2_norm({name: array}) or 1.0) / math.sqrt(max(array.size, 1))
        draws = _MOVES.fold(stream).fold(name).generator()
        found[name] = array + np.float32(size) * draws.standard_normal(array.shape, np.float32)
    return found


def refuse_untrained(
    update: Callable[[Params], Tree], params: Params, names: Collection[str]
) -> None:
    """Refuse training that leaves a tensor exactly where it is, in each of several steps.

    A tensor counts as moved by any number other than zero, so by the rows of the words that occur,
    say. Further steps are taken only where the first moved too little.

    Args:
        update: From params to an update, a gradient or a sum of these.
        params: Where training starts; not changed.
        names: Of the tensors to be trained; what updates are not of is no matter of this.

    Raises:
        Exception: What the first step raises.
        ValueError: Names the first tensor that does not move.
    """
    trained = [name for name in names if name in params]
    still = trained
    for far in (0.0, *_FAR):
        try:
            found = update(moved(params, far, "second step", trained) if far else params)
        except Exception as error:
            end_if_interrupted(error)
            if not far:
                raise
            continue  # of numbers that it need not take
        still = [name for name in still if name in found and _is_zero(found[name])]
        if not still:
            return
    raise ValueError(
        f"no update moves tensor {_listed(still)}, which is to be trained: two steps on public "
        "or synthetic examples leave it exactly where it is, so that a run would give it noise "
        "alone; let the loss depend on it (no detach(), no no_grad(), no copy of it made "
        "beforehand, on another device say), try it on examples that use it (inputs that are "
        "all zero do not), or freeze it (requires_grad_(False)), as the bias of an attention's "
        "keys or before a normalisation, which moves no output"
    )


def _is_zero(tensor: tree.Tensor) -> bool:
    return not np.any(tree.to_dense_tensor(tensor))


def _listed(names: Collection[str]) -> str:
    first, *others = names
    return f"{first!r}" + (f" (and {len(others)} more)" if others else "")


def refuse_unused(task: BaseTask, params: Params) -> None:
    """Refuse a model that answers the same whatever one of its tensors is.

    Args:
        task: Says what it answers.
        params: Where training starts; not changed.

    Raises:
        ValueError: Names the first such tensor.
    """
    unused = list(params)
    for far in _FAR:
        at = moved(params, far, "second step")
        before = task.outputs(at)
        if before is None:
            return
        unused = [
            name
            for name in unused
            if (after := task.outputs(moved(at, far, "one alone", [name]))) is not None
            and np.array_equal(before, after, equal_nan=True)
        ]
        if not unused:
            return
    raise ValueError(
        f"the model answers the same whatever tensor {_listed(unused)} is, which is trained: its "
        "noise would be for nothing; let the model that is evaluated (in evaluation mode) use it, "
        "or freeze it (requires_grad_(False)), so that it is not among the params"
    )


def refuse_unsaved(
    algorithm: Algorithm, params: Params, outputs: Callable[[Params], np.ndarray | None]
) -> None:
    """Refuse a model that is another one after it was saved and loaded, or exported.

    Args:
        algorithm: Whose state is saved.
        params: Where training starts; not changed.
        outputs: From params to what the model answers to the same few examples; None for nothing.

    Raises:
        ValueError: Names the first tensor that is lost or changed; or says that what the model
            computes with is not all in its tensors.
        Exception: What the loaded model raises.
    """
    start = {name: array.copy() for name, array in params.items()}
    state = algorithm.init(moved(params, _NEAR, "saved"))
    result = algorithm.result(state)
    released, rest = (read_tensor_bytes(tensor_bytes(held)) for held in state.save())
    loaded = algorithm.init(start).load(state.round_num, released, rest, state.numbers)
    exported, resumed = next(iter(released_models(released).values())), algorithm.result(loaded)
    for (name, array), other in product(result.items(), (exported, resumed)):
        if name not in other or not np.array_equal(array, other[name], equal_nan=True):
            raise ValueError(
                f"tensor {name!r} of the result is missing or another one in the model exported "
                "or in that of a run that is resumed, which are of the released tensors without "
                "'/' in their names; have the state's save() return them all, its load() take "
                "them, and result() return the params"
            )
    before, after = outputs(result), outputs(exported)
    if before is None:
        return
    size = _SAME * float(np.max(np.abs(before), initial=0.0))
    if (
        after is None
        or before.shape != after.shape
        or not np.allclose(before, after, rtol=_SAME, atol=size, equal_nan=True)
    ):
        raise ValueError(
            "the model answers otherwise after it was saved and loaded: some of what it computes "
            "with is in no tensor that is saved, or it takes tensors by their order and not by "
            "their names; register its layers and constants (nn.ModuleList instead of a list, "
            "register_buffer instead of an attribute), and look params up by name"
        )
