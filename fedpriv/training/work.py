"""The private work: train users, bound each, and return one unweighted sum and nothing else.

A `SumRequest` is what an algorithm asks, and an `Attempt` what the door adds to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, RunningSum, Sum
from fedpriv.training.algorithm import TRAIN, Context, SumRequest
from fedpriv.training.bounded_sum import RowStack, Stack, sum_bounded, template_with
from fedpriv.training.failures import contributing_zero_on_failure
from fedpriv.training.stopping import end_if_interrupted, stop_if_asked
from fedpriv.training.streams import kept_generators, own_stream
from fedpriv.tree import Params, Tree

# Fewer users a thread are trained sooner than threads begin.
_FEWEST_SHARED = 8


class UserData(Protocol):
    """Examples by user: the interface to user data."""

    def examples(self, user_id: str) -> Any:
        """Return the user's training examples; raise `ValueError` for an unknown user."""
        ...

    def num_examples(self, user_id: str) -> int:
        """Return how many there are, without touching them; raise `ValueError` as above."""
        ...


class Examples(Protocol):
    """One user's examples: they can be counted and picked from."""

    def __len__(self) -> int: ...

    def take(self, index: np.ndarray) -> Any:
        """Return the examples at these positions, in this order."""
        ...


@dataclass(frozen=True, slots=True)
class Users:
    """Drawn users that live here, and where their examples are.

    Attributes:
        ids: Of the users, in any order.
        data: None only if the work holds the examples itself.
        threads: Among how many of this process they may be shared.
    """

    ids: Sequence[str]
    data: UserData | None = field(default=None, repr=False)
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What the door adds to a request, the same for every worker and node.

    Attributes:
        bound: Of each contribution; public.
        key: The users' key of this round and attempt; each user folds its own id into it.
        round_num: The round, from 1.
        number: The attempt at it, from 1.
        template: Names and shapes of the sum; None for those of the params. The server's alone.
    """

    bound: Bound
    key: Key
    round_num: int = 1
    number: int = 1
    template: Params | None = field(default=None, repr=False)


def size_of(data: UserData | None, user_id: str, most: int) -> int:
    """Return how many examples a user trains on, without touching them; 0 if it is not known."""
    try:
        return 0 if data is None else min(data.num_examples(user_id), most)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # where training fails too, and the user contributes zero
        end_if_interrupted(error)
        return 0


class Work(ABC):
    """Client work: from the drawn users to one sum of bounded contributions.

    A work has `answer`; sums have the params' own shapes unless `template` says others.

    Attributes:
        thread_safe: Whether threads may share it and its sum: it has no memory of users.
        takes: What it knows besides plain local steps: "proximal", "optimizer", "rate"
            (`Context.rate`). Options for what is not among them are refused.
        otherwise: What to do about an option that is refused.
    """

    __slots__ = ()

    thread_safe: ClassVar[bool] = False
    takes: ClassVar[tuple[str, ...]] = ()
    otherwise: ClassVar[str] = "leave it out, or have the trainer take it, and name it in takes"

    def template(self, request: SumRequest) -> Params:
        """Return names and shapes of a contribution, which need not be the params'."""
        return request.params

    def load(self) -> None:
        """Load code that the work needs, such as kernels, before any user's time begins.

        It looks at no user. By default nothing is loaded.
        """
        return

    @abstractmethod
    def answer(self, request: SumRequest, attempt: Attempt, users: Users) -> PartialSum:
        """Return the sum of the users' bounded contributions.

        Args:
            request: What is asked.
            attempt: By which bound and key.
            users: Who, and where their examples are.

        Guarantees:
            * Each user moves the sum by at most `attempt.bound.l2_bound` (l2), however many
              examples it has.
            * A user whose work raises, or whose contribution is not finite, contributes zero,
              alone: no user can stop a round or change another's contribution. So does one of other
              shapes than the template's where a user has a contribution of its own
              (`UserTrainer`); a stack of such shapes ends the sum.

        Raises:
            KeyboardInterrupt: If the run was interrupted, however that came to light: it is never
                taken for a user's failure.
        """


Select = Callable[[Context, Any, Key], Any]
"""From a round's context, a user's examples and its key to those that it trains on."""


class Trainer(Work):
    """Base of work that makes users' contributions, which `sum_bounded` bounds and adds.

    Attributes:
        select: Which of a user's examples a round trains on; None for all of them.
    """

    __slots__ = ()

    select: Select | None = None

    @abstractmethod
    def stacks(self, request: SumRequest, attempt: Attempt, users: Users) -> Iterator[Stack]:
        """Yield the users' contributions, not bounded yet, each user once.

        Guarantees:
            * A user's contribution depends on its own examples, the request and its own key, and
              not on who else is asked.
            * A user that raises is counted (`contributing_zero_on_failure`) and in no stack.
            * Nothing stays open between two stacks: the iterator may be given up.
        """

    def empty_sum(self, template: Params, granularity: float | None) -> Sum:
        """Return the running sum that this trainer's stacks are added to."""
        return RunningSum(template, granularity)

    def examples(self, data: UserData | None, user_id: str, context: Context, key: Key) -> Any:
        """Return what a user trains on in a round.

        Args:
            data: The users' examples.
            user_id: Of the user.
            context: Of the round.
            key: The user's.

        Raises:
            ValueError: If there are no data.
        """
        if data is None:
            raise ValueError("data None: a trainer of users needs their examples")
        found = data.examples(user_id)
        return found if self.select is None else self.select(context, found, key)

    def answer(self, request: SumRequest, attempt: Attempt, users: Users) -> PartialSum:
        """Return the sum of the users' bounded contributions.

        Raises:
            ValueError: If there are so many coordinates that rounding alone would fill the bound,
                or more contributions than users.
        """
        bound, context = attempt.bound, request.context
        template = template_with(self.template(request), bound, context.clip_norm)
        total = self.empty_sum(template, bound.granularity)
        # Floats depend on their order in the last bits, so that one thread adds them.
        shared = self.thread_safe and bound.granularity is not None
        number = min(users.threads, len(users.ids) // _FEWEST_SHARED) if shared else 1
        shards = (
            [users.ids[first::number] for first in range(number)] if number > 1 else [users.ids]
        )
        stacks = [self.stacks(request, attempt, replace(users, ids=ids)) for ids in shards]
        # Other threads' users would be seeded too. A generator that is given up would restore them
        # late, so that it is done here and not in `stacks`.
        with nullcontext() if self.thread_safe else kept_generators():
            done = sum_bounded(total, stacks, bound, template, context)
        if done.num_users > len(users.ids):
            raise ValueError(
                f"{type(self).__name__}.stacks() yielded more contributions than there are users, "
                "who would move the sum by more than their bound; yield each user once"
            )
        return replace(done, num_users=len(users.ids))


class UserTrainer(Trainer):
    """The plain loop, one user after another: derive from it, and say what one user does.

    The global generators are seeded from a user's key before its examples are read, unless threads
    share the trainer.
    """

    __slots__ = ()

    @abstractmethod
    def train(self, params: Params, context: Context, examples: Any, key: Key) -> Tree:
        """Return one user's contribution, usually local minus global params; not bounded yet.

        Args:
            params: As of `SumRequest`, copied for this user alone.
            context: Public facts of the round, likewise.
            examples: The user's.
            key: The user's of this round and attempt.
        """

    def stacks(self, request: SumRequest, attempt: Attempt, users: Users) -> Iterator[Stack]:
        """Yield the users' contributions one by one."""
        template, public = self.template(request), request.context
        seeds = not self.thread_safe
        for user_id in users.ids:
            stop_if_asked()
            key, found = attempt.key.fold(user_id), None
            with (
                contributing_zero_on_failure(),
                own_stream(key, None) if seeds else nullcontext(),
            ):
                context = public.copied()
                examples = self.examples(users.data, user_id, context, key)
                params = tree.read_only_copy(request.params)
                update = self.train(params, context, examples, key)
                found = tree.check_like(template, update)
            if found is not None:
                yield RowStack.of(found)


Trainers = Work | Mapping[str, Work]
"""Client work: one, or several by name."""


def as_works(trainer: Trainers) -> Mapping[str, Work]:
    """Return works by name; a single one is the ordinary one.

    Raises:
        TypeError: If one is no `Work`.
    """
    works = dict(trainer) if isinstance(trainer, Mapping) else {TRAIN: trainer}
    for work in works.values():
        if not isinstance(work, Work):
            raise TypeError(
                f"{type(work).__name__} is no work of users: derive it from "
                "fedpriv.training.work.UserTrainer, with train(params, context, examples, key)"
            )
    return works


def find_work(works: Mapping[str, Work], name: str) -> Work:
    """Return the work of a name.

    Raises:
        ValueError: If this experiment has none.
    """
    if name not in works:
        raise ValueError(
            f"work {name!r} is not known here; this experiment has {', '.join(sorted(works))}"
        )
    return works[name]


def as_positions(users: Sequence[str]) -> np.ndarray:
    """Return ids of examples as positions in the training set, int64."""
    return np.fromiter(map(int, users), np.int64, len(users))
