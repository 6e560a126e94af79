"""The private work: train users, bound each, and return one unweighted sum and nothing else.

Backends bring a `Work` to where the users are, under a name: a node, a worker process and this
process each find what the name means in their own experiment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import Adder, BeyondBound, PartialSum, RunningSum
from fedpriv.training.failures import contributing_zero_on_failure, counted_failures
from fedpriv.training.stopping import stop_if_asked
from fedpriv.training.streams import kept_generators, own_stream
from fedpriv.tree import Params, Tree

TRAIN = "train"
"""The name of an experiment's ordinary work."""


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


@runtime_checkable
class LocalTrainer(Protocol):
    """Trains one user.

    A trainer, or a `Work`, may besides have `thread_safe`, true where threads may share it (it has
    no memory of users), `seeds_itself`, true where it calls `own_stream` for each user, and
    `load()` (`Work.load`). Without them it is not shared, the global generators are seeded for each
    user, and it loads what it needs at its first user.
    """

    def train(self, params: Params, examples: Any, key: Key) -> Tree:
        """Return the user's raw update; `params` are not changed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRequest:
    """One request for a sum over users.

    Attributes:
        params: What the work is done with: the global params, float32, and whatever further
            tensors a query names. Not changed.
        bound: The public bound.
        user_ids: The drawn users that live here.
        key: The key of this round and attempt; each user folds its own id into it.
        data: Where the users' examples are; None only if the work holds them itself.
    """

    params: Params = field(repr=False)
    bound: Bound
    user_ids: Sequence[str] = field(repr=False)
    key: Key
    data: UserData | None = field(default=None, repr=False)

    @property
    def users(self) -> UserData:
        """The users' examples.

        Raises:
            ValueError: If there are none.
        """
        if self.data is None:
            raise ValueError("data None: a trainer of users needs their examples")
        return self.data

    @property
    def index(self) -> np.ndarray:
        """The ids of examples as positions in the training set, int64."""
        return np.fromiter(map(int, self.user_ids), np.int64, len(self.user_ids))


class Work(ABC):
    """Client work: from the drawn users to one sum of bounded contributions.

    A work has `answer`; sums have the params' own shapes unless `template` says others.
    """

    __slots__ = ()

    def template(self, params: Params) -> Params:
        """Return names and shapes of the sum, which need not be the params'."""
        return params

    def load(self) -> None:
        """Load code that the work needs, such as kernels, before any user's time begins.

        It looks at no user. By default nothing is loaded.
        """
        return

    @abstractmethod
    def answer(self, request: SumRequest) -> PartialSum:
        """Return the sum of the users' bounded contributions.

        Guarantees:
            * Each user moves the sum by at most `bound.l2_bound` (l2), however many examples it
              has.
            * A user whose work raises, or whose contribution is not finite or not of the
              template's shapes, contributes zero, alone: no user can stop a round or change
              another's contribution.

        Raises:
            KeyboardInterrupt: If the run was interrupted, however that came to light: it is never
                taken for a user's failure.
        """

    def transformed(self, transform: UserTransform) -> Work:
        """Return the same work of users whose examples or updates a transform changes.

        Raises:
            ValueError: If it does not train user by user, or is transformed already.
        """
        raise ValueError(
            f"{type(transform).__name__} changes what single users send, and a "
            f"{type(self).__name__} has sums alone, or users whose work is changed already; "
            "leave one of the two out"
        )

    def partial_sum(self, **request: Any) -> PartialSum:
        """Return the answer to a `SumRequest` of these arguments, which says how it is bounded."""
        asked = SumRequest(**request)
        return replace(self.answer(asked), l2_bound=asked.bound.l2_bound)


class UserTransform:
    """Base of changes to a user's work, governed by a public tensor sent with the params.

    All of it looks at one user alone. By default nothing is changed.

    Attributes:
        brought: Name of the tensor.
        summed: Whether the sum has a tensor of that name and shape, which `sent` makes.
    """

    __slots__ = ()

    brought: ClassVar[str]
    summed: ClassVar[bool] = False

    def choose(self, tensor: np.ndarray | None, examples: Any, key: Key) -> Any:
        """Return which of a user's examples it trains on.

        Args:
            tensor: What the query brought; None if nothing.
            examples: All its examples.
            key: Its key of this round and attempt.
        """
        return examples

    def sent(
        self, tensor: np.ndarray | None, norm: Callable[[], float]
    ) -> tuple[float, Mapping[str, np.ndarray]]:
        """Return the factor of the update, and further tensors that are sent with it.

        Args:
            tensor: What the query brought; None if nothing.
            norm: Returns the update's l2 norm.
        """
        return 1.0, {}

    def check_sent(
        self, tensor: np.ndarray | None, norm: Callable[[], float]
    ) -> tuple[float, Tree]:
        """Return what `sent` returns, if its tensors are the declared ones.

        Raises:
            ValueError: If the further tensors are not what `brought` and `summed` say.
        """
        factor, besides = self.sent(tensor, norm)
        like = {self.brought: tensor} if self.summed and tensor is not None else {}
        return factor, tree.check_like(like, besides)


def split_params(
    params: Params, transform: UserTransform | None
) -> tuple[Params, np.ndarray | None]:
    """Return the params themselves, and the tensor that a transform takes out of them."""
    if transform is None or transform.brought not in params:
        return params, None
    own = dict(params)
    return own, own.pop(transform.brought)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserByUser(Work):
    """Client work that trains users one by one; a user that fails contributes zero alone.

    Attributes:
        trainer: What a user does.
        shapes: Of its contributions; None for those of the params.
        transform: What a tensor that the query brings changes of it; None for nothing.
        adder: Makes the running sum, and decides what is added to bounded updates.
    """

    trainer: LocalTrainer
    shapes: Params | None = None
    transform: UserTransform | None = None
    adder: Adder = RunningSum

    @property
    def thread_safe(self) -> bool:
        """As the trainer's: nothing else is kept between users."""
        return getattr(self.trainer, "thread_safe", False)

    def transformed(self, transform: UserTransform) -> Work:
        """Return the same work under a transform; errors are those of `Work.transformed`."""
        if self.transform is not None:
            return super(UserByUser, self).transformed(transform)
        return replace(self, transform=transform)

    def template(self, params: Params) -> Params:
        """Return the shapes that were given, or the params'."""
        if self.shapes is not None:
            return self.shapes
        return template_of(params, self.transform)

    def load(self) -> None:
        """Load what the trainer's `load` does, where it has one."""
        getattr(self.trainer, "load", lambda: None)()

    def contribution(self, params: Params, examples: Any, key: Key) -> Tree:
        """Return what one user contributes, not bounded yet.

        Args:
            params: As of `SumRequest`.
            examples: All its examples.
            key: Its key of this round and attempt.

        Raises:
            ValueError: If it has not the template's names and shapes.
            Exception: What the trainer raises.
        """
        own, tensor = split_params(params, self.transform)
        if self.transform is not None:
            examples = self.transform.choose(tensor, examples, key)
        shapes = own if self.shapes is None else self.shapes
        update = tree.check_like(shapes, self.trainer.train(own, examples, key))
        if self.transform is None:
            return update
        factor, besides = self.transform.check_sent(tensor, lambda: tree.l2_norm(update))
        return {**(update if factor == 1.0 else tree.scale(update, factor)), **besides}

    def answer(self, request: SumRequest) -> PartialSum:
        """Return the sum of the users' bounded contributions."""
        data, template = request.users, self.template(request.params)
        running = self.adder(template, request.bound.granularity)
        alone = not self.thread_safe  # other threads' users would be seeded too
        seeds = alone and not getattr(self.trainer, "seeds_itself", False)
        with counted_failures() as failures, kept_generators() if alone else nullcontext():
            for user_id in request.user_ids:
                stop_if_asked()
                key = request.key.fold(user_id)
                bounded = None
                with (
                    contributing_zero_on_failure(),
                    own_stream(key, None) if seeds else nullcontext(),
                ):
                    raw = self.contribution(request.params, data.examples(user_id), key)
                    bounded = request.bound.scaled(raw)
                if bounded is not None:
                    with contributing_zero_on_failure(BeyondBound):  # of which nothing was added
                        running.add(*bounded, key)
        return PartialSum(
            total=running.result(),
            num_users=len(request.user_ids),
            num_failed=failures.count,
            granularity=request.bound.granularity,
        )


def template_of(params: Params, transform: UserTransform | None) -> Params:
    """Return names and shapes of a sum: the params', and what a transform adds to it."""
    if transform is not None and transform.summed:
        return params
    return split_params(params, transform)[0]


def transformed(trainer: Trainers, transform: UserTransform) -> Work:
    """Return a trainer as work whose users a transform changes.

    Raises:
        ValueError: If there are several works by name, or as of `Work.transformed`.
    """
    if isinstance(trainer, Mapping):
        raise ValueError(
            f"{type(transform).__name__} changes what users send, and this task has several works: "
            f"{', '.join(sorted(trainer))}; leave it out"
        )
    return as_work(trainer).transformed(transform)


def as_work(trainer: LocalTrainer | Work) -> Work:
    """Return a trainer as client work; one that is client work already is returned as it is.

    Raises:
        TypeError: If it is neither a `Work` nor has a `train`.
    """
    if isinstance(trainer, Work):
        return trainer
    if not callable(getattr(trainer, "train", None)):
        raise TypeError(
            f"{type(trainer).__name__} is no trainer of users: derive it from "
            "fedpriv.training.work.Work, or give it train(params, examples, key)"
        )
    return UserByUser(trainer=trainer)


Trainers = LocalTrainer | Work | Mapping[str, LocalTrainer | Work]
"""Client work: one trainer, or works by name."""


def as_works(trainer: Trainers) -> Mapping[str, Work]:
    """Return works by name; a single trainer is the ordinary one."""
    if isinstance(trainer, Mapping):
        return {name: as_work(one) for name, one in trainer.items()}
    return {TRAIN: as_work(trainer)}


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
