"""What a node does: host users, say which, and answer with one sum over those it is asked for."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedpriv import tree
from fedpriv.backends.flower.messages import BOUNDS, answer, read_request, said_promise
from fedpriv.backends.flower.registry import asked_promise, note_waiting, registration
from fedpriv.backends.guard import Guard
from fedpriv.experiments.own_code import line_without_values
from fedpriv.kernels import load_compiled
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.tasks.task import Task
from fedpriv.training.failures import places_alone
from fedpriv.training.work import Trainers, UserData, Work, as_works, find_work, summed
from fedpriv.tree import Params, Tree

_LOG = logging.getLogger(__name__)
PROMISES_VARIABLE, PROMISES_KEY = "FEDPRIV_PROMISES", "promises"
EXPERIMENTS_VARIABLE, EXPERIMENTS_KEY = "FEDPRIV_EXPERIMENTS", "experiments"
_PROMISES = (PROMISES_VARIABLE, PROMISES_KEY, "promise")
_EXPERIMENTS = (EXPERIMENTS_VARIABLE, EXPERIMENTS_KEY, "experiment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node and the users that live on it.

    A phone hosts one user, a hospital thousands, a shard of a simulation any number.

    Attributes:
        works: What can be done here, by name: the node's own experiment, whatever a request says.
        data: The users' examples.
        user_ids: The hosted users.
        bounds: What is known here of bounds, by name.
        guard: What a user may take; None computes users in this process, however long they take.
        promises: Digests of the only promises that users are trained under here; None trains under
            any. What a server says of its promise it may have made up: this stops mistakes.
    """

    works: Mapping[str, Work] = field(repr=False)
    data: UserData = field(repr=False)
    user_ids: frozenset[str] = field(repr=False)
    bounds: Mapping[str, Callable[..., Bound]] = field(default_factory=lambda: BOUNDS, repr=False)
    guard: Guard | None = None
    promises: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        task: Task,
        trainer: Trainers,
        *,
        partition: int = 0,
        num_partitions: int = 1,
        bounds: Mapping[str, Callable[..., Bound]] = BOUNDS,
    ) -> Host:
        """Return the host of every `num_partitions`-th user of the task's roster.

        Args:
            task: Roster and examples.
            trainer: What a user does, or works by name.
            partition: Which of the partitions.
            num_partitions: Of the roster.
            bounds: What is known here of bounds, by name.

        Raises:
            ValueError: If there is no such partition.
        """
        return cls(
            works=as_works(trainer),
            data=task.data,
            user_ids=frozenset(shard(task.roster, partition, num_partitions)),
            bounds=bounds,
        )

    def query(self, message: Message) -> Message:
        """Answer which users live here: opaque ids and nothing else.

        Raises:
            ValueError: If the server says what it will ask under, and that is not allowed here.
        """
        if promise := asked_promise(message.content):
            self.check_promise(promise)
        return Message(registration(sorted(self.user_ids)), reply_to=message)

    def train(self, message: Message) -> Message:
        """Answer with the sum of the asked users' bounded contributions.

        A user that does not live here, or is named twice, contributes nothing (more).

        Raises:
            MalformedRecordError: If the message is not a request; Flower reports it as an error.
            ValueError: If the work is not known here, or the promise is not allowed.
        """
        request = read_request(message.content, self.bounds)
        self.check_promise(request.promise)
        hosted = [item for item in dict.fromkeys(request.user_ids) if item in self.user_ids]
        compute = summed
        if self.guard is not None:
            compute = partial(self.guard.summed, seconds=request.seconds)
        with places_alone():
            done = compute(
                find_work(self.works, request.work),
                params=request.params,
                bound=request.bound,
                data=self.data,
                user_ids=hosted,
                key=request.key,
            )
        absent = len(request.user_ids) - len(hosted)
        done = replace(done, num_failed=done.num_failed + absent)
        return Message(answer(request, done), reply_to=message)

    def check_promise(self, promise: str) -> None:
        """Refuse a promise that is not among those allowed here.

        Raises:
            ValueError: With its digest, and how it is allowed.
        """
        check_promise(promise, self.promises)


_HOSTS: WeakKeyDictionary[ClientApp, Callable[[Context], Host]] = WeakKeyDictionary()


def prepare(app: ClientApp, context: Context) -> None:
    """Open what an app's messages will need, where the process that answers them is forked off.

    Called again after a message it also has what was compiled for that one.

    Args:
        app: As it was given to `serve`; of another app nothing is known.
        context: As a message would have it.

    Raises:
        ValueError: What the app's host raises.
    """
    if (host := _HOSTS.get(app)) is not None:
        host(context)
    load_compiled()


def serve(
    app: ClientApp, host: Callable[[Context], Host], *, from_run_config: bool = False
) -> None:
    """Let a ClientApp answer what a server's `UserLevelStrategy` asks.

    A node that insists on promises looks at that of a message first, and calls `host` afterwards.

    Args:
        app: The app; it must not have a training function yet.
        host: Who lives on this node, from Flower's context; called for each message.
        from_run_config: Whether the host is made of what a server's run-config names; then it is
            not made for a question that says no promise either.
    """
    _HOSTS[app] = host

    @app.query("users")
    def answer_users(message: Message, context: Context) -> Message:
        def answered() -> Message:
            promise = asked_promise(message.content)
            if promise or from_run_config:
                check_promise(promise, allowed_promises(context.node_config))
            return host(context).query(message)

        return _in_one_line(message, answered)

    @app.query("waiting")
    def hear_waiting(message: Message, context: Context) -> Message:
        return note_waiting(message)

    @app.train()
    def answer_train(message: Message, context: Context) -> Message:
        def answered() -> Message:
            promise = said_promise(message.content)
            check_promise(promise, allowed_promises(context.node_config))
            return host(context).train(message)

        return _in_one_line(message, answered)


def _in_one_line(message: Message, work: Callable[[], Message]) -> Message:
    """Answer a message; where that fails, with why in a line, without text of a user's error."""
    try:
        return work()
    except Exception as error:
        said = line_without_values(error)
        _LOG.error("%s", said)
        kind = type(error).__name__
        return Message(
            Error(
                ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
                said if said.startswith(f"{kind} at ") else f"{kind}: {said}",
            ),
            reply_to=message,
        )


def allowed_promises(
    node_config: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> frozenset[str] | None:
    """Return the digests that a node's operator allows, or None for any promise.

    Where the environment and the node-config both have some, a promise must be in both.

    Raises:
        ValueError: If one is no SHA-256, or a list that is there lists none.
    """
    for name, found in _listed(node_config, environment, _PROMISES):
        for item in sorted(found):
            if not re.fullmatch("[0-9a-f]{64}", item):
                raise ValueError(
                    f"{name} has {item!r:.80}, which is no digest: write the 64 hex digits that "
                    "the server says of a promise, several with spaces between them"
                )
    return _in_all(found for _, found in _listed(node_config, environment, _PROMISES))


def check_promise(promise: str, allowed: frozenset[str] | None) -> None:
    """Refuse a promise that is not among those allowed here; None allows any.

    Raises:
        ValueError: With its digest, and how it is allowed.
    """
    if allowed is not None and promise not in allowed:
        said = f"promise {promise}" if promise else "a request that says no promise"
        raise ValueError(
            f"this node trains under {len(allowed)} promises and {said} is not among them; its "
            f"operator may add it to {PROMISES_VARIABLE} or to {PROMISES_KEY} in its node-config"
        )


def allowed_experiments(
    node_config: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> frozenset[str] | None:
    """Return the names of experiments that a node's operator allows, or None without a list.

    Where the environment and the node-config both have some, a name must be in both.

    Raises:
        ValueError: If a list that is there lists none.
    """
    return _in_all(found for _, found in _listed(node_config, environment, _EXPERIMENTS))


def check_experiment(name: str, node_config: Mapping[str, Any]) -> None:
    """Refuse to build what a run-config names, where the node's operator has not allowed it.

    A list allows what it lists. Without one a node that insists on promises builds the experiments
    that are installed here, and no `module:function` or `file.py:function`: a promise's digest does
    not cover what is learned, and anybody may repeat it.

    Raises:
        ValueError: With the name, and how it is allowed.
    """
    allowed = allowed_experiments(node_config)
    remedy = f"add it to {EXPERIMENTS_VARIABLE} or to {EXPERIMENTS_KEY} in its node-config"
    if allowed is not None:
        if name not in allowed:
            raise ValueError(
                f"this node runs {len(allowed)} experiments and {name!r:.200} is not among them; "
                f"its operator may {remedy}"
            )
    elif ":" in name and allowed_promises(node_config) is not None:
        raise ValueError(
            f"this node insists on promises, and experiment {name!r:.200} is code, which no "
            f"promise covers; its operator may {remedy}"
        )


def _listed(
    node_config: Mapping[str, Any], environment: Mapping[str, str], asked: tuple[str, str, str]
) -> Iterator[tuple[str, frozenset[str]]]:
    """Return what the environment and the node-config list, each where it lists anything.

    Args:
        node_config: Of the node.
        environment: Variables by name.
        asked: The variable, the key, and what is listed.

    Raises:
        ValueError: If a list that is there lists nothing.
    """
    variable, key, what = asked
    for name, text in ((variable, environment.get(variable, "")), (key, node_config.get(key, ""))):
        found = frozenset(str(text).replace(",", " ").split())
        if text != "" and not found:
            raise ValueError(
                f"{name} is {str(text)!r:.80} and lists no {what}; list those that this node "
                "takes, or leave it empty to take any"
            )
        if found:
            yield name, found


def _in_all(lists: Iterable[frozenset[str]]) -> frozenset[str] | None:
    """Return what is in every list; None without any."""
    found = list(lists)
    return frozenset.intersection(*found) if found else None


def shard(roster: Sequence[str], partition: int, num_partitions: int) -> Sequence[str]:
    """Return the users of one partition: `roster[partition::num_partitions]`.

    Raises:
        ValueError: If there is no such partition.
    """
    if num_partitions < 1 or not 0 <= partition < num_partitions:
        raise ValueError(
            f"partition-id {partition} of num-partitions {num_partitions} does not exist; "
            f"number partitions from 0 to num-partitions - 1"
        )
    return roster[partition::num_partitions]


TrainFunction = Callable[[Params, Any, np.random.Generator], Mapping[str, Any]]
"""From the global params, one user's examples and a generator of that user's own to the params that
it ends with: what `np.asarray` takes, by name. The params may be changed in place."""

Users = Callable[[Context], Mapping[str, Any]]
"""From Flower's context to the examples of the users that live on this node, by opaque id."""

DEFAULT_GUARD = Guard()

_Function = TypeVar("_Function", bound=TrainFunction)


def bounded(
    app: ClientApp, *, users: Users, guard: Guard | None = DEFAULT_GUARD
) -> Callable[[_Function], _Function]:
    """Return a decorator that makes a training function the work of a ClientApp.

    It registers with the app what a server's `UserLevelStrategy` asks: `train`, and the query
    which users live here. The function itself stays as it is.

    Args:
        app: The app; it must not have a training function yet.
        users: Who lives on this node, called for each message: cache it where reading is slow. A
            person with several devices is one id, on one node. A user's examples may be anything.
        guard: What a user may take of time and memory before its process is ended; None computes
            users in the app's own process, where nothing ends a user that does not end.

    Guarantees:
        * Each user moves the node's answer by at most the public bound that the server sent,
          whatever the function returns: the whole change of its params is bounded at once.
        * A user for whom the function raises, or whose params are not finite or of other shapes,
          contributes zero, alone.
        * What leaves the node is the opaque ids, one sum over the users that were drawn, and how
          many of them failed. What the function writes down elsewhere is its own affair.
    """

    def decorate(train: _Function) -> _Function:
        works = as_works(_FunctionTrainer(function=train))

        def host(context: Context) -> Host:
            found = users(context)
            return Host(
                works=works,
                data=_GivenUsers(users=found),
                user_ids=frozenset(found),
                guard=guard,
                promises=allowed_promises(context.node_config),
            )

        serve(app, host)
        return train

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class _FunctionTrainer:
    """A `fedpriv.training.work.LocalTrainer`."""

    function: TrainFunction

    def train(self, params: Params, examples: Any, key: Key) -> Tree:
        trained = self.function(
            {name: array.copy() for name, array in params.items()}, examples, key.generator()
        )
        # Before the subtraction, which would broadcast.
        found = {name: np.asarray(value, np.float32) for name, value in trained.items()}
        tree.check_like(params, found)
        return {name: found[name] - array for name, array in params.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _GivenUsers:
    """A `fedpriv.training.work.UserData`."""

    users: Mapping[str, Any]

    def examples(self, user_id: str) -> Any:
        return self.users[user_id]

    def num_examples(self, user_id: str) -> int:
        return len(self.users[user_id])
