"""Nodes: they host users, name them by opaque ids, and answer with one sum over those asked for."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedpriv import tree
from fedpriv.backends.backend import answered
from fedpriv.backends.flower.messages import answer, named_plan, read_request
from fedpriv.backends.flower.registry import note_waiting, registration
from fedpriv.backends.guard import (
    Guard,
    can_fork_apart,
    decode_sum,
    encode_sum,
    in_child,
)
from fedpriv.experiments.user_code import line_without_values
from fedpriv.kernels import load_compiled
from fedpriv.mechanisms.bounds import Unbounded
from fedpriv.rng import Key
from fedpriv.tasks.task import Task
from fedpriv.training.algorithm import Context as RoundContext
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.devices import load_optimizers
from fedpriv.training.failures import OwnTextError, only_places_of_errors
from fedpriv.training.independence import refuse_dependence
from fedpriv.training.streams import unlike_streams
from fedpriv.training.work import Attempt, Trainers, UserData, UserTrainer, Work, as_works
from fedpriv.tree import Params, Tree
from fedpriv.untrusted_text import check_ids, is_device_name

_LOG = logging.getLogger(__name__)
_RAISED = 2  # Flower's code of an error that a ClientApp raised
PLANS_VARIABLE, PLANS_KEY = "FEDPRIV_PLANS", "plans"
EXPERIMENTS_VARIABLE, EXPERIMENTS_KEY = "FEDPRIV_EXPERIMENTS", "experiments"
DEVICE_KEY = "device"
USERS_ACTION, WAITING_ACTION = "users", "waiting"
USER_ID = "user-id"
_ARRAYS, _TOLD = "arrays", "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node and the users that live on it.

    A phone hosts one user, a hospital thousands, a shard of a simulation any number.

    Attributes:
        works: What can be done here, by name: of the node's local experiment.
        data: The users' examples.
        user_ids: The hosted users.
        guard: What a user may take; None computes users in this process, however long they take.
        plans: Digests of the only plans that users are trained under here; None trains under any.
            A server may name a plan and follow another: this stops mistakes.
        works_of: Makes the works of a request's train config; None for works that read none.
        apart: Whether each user is trained in a child that has trained no one else.
        check: Called with the first request, attempt and works, before any hosted user is trained.
    """

    works: Mapping[str, Work] = field(repr=False)
    data: UserData = field(repr=False)
    user_ids: frozenset[str] = field(repr=False)
    guard: Guard | None = None
    plans: frozenset[str] | None = None
    works_of: Callable[[Mapping[str, Any]], Mapping[str, Work]] | None = field(
        default=None, repr=False
    )
    apart: bool = False
    check: Callable[[SumRequest, Attempt, Mapping[str, Work]], None] | None = field(
        default=None, repr=False
    )

    @classmethod
    def of(
        cls,
        task: Task,
        trainer: Trainers,
        *,
        partition: int = 0,
        num_partitions: int = 1,
    ) -> Host:
        """Return the host of every `num_partitions`-th user of the task's roster.

        Args:
            task: Roster and examples.
            trainer: What a user does, or works by name.
            partition: Which of the partitions.
            num_partitions: Of the roster.

        Raises:
            ValueError: If there is no such partition.
        """
        return cls(
            works=as_works(trainer),
            data=task.data,
            user_ids=frozenset(shard(task.roster, partition, num_partitions)),
        )

    def query(self, message: Message) -> Message:
        """Answer which users live here: opaque ids and nothing else.

        Raises:
            ValueError: If the server names the plan it will ask under, and it is not allowed here.
        """
        if plan := named_plan(message.content):
            check_plan(plan, self.plans)
        return Message(registration(sorted(self.user_ids)), reply_to=message)

    def train(self, message: Message) -> Message:
        """Answer with the sum of the asked users' bounded contributions.

        A user that does not live here, or is named twice, contributes nothing (more).

        Raises:
            MalformedRecordError: If the message is not a request; Flower reports it as an error.
            ValueError: If the work is not known here, or the plan is not allowed.
        """
        request = read_request(message.content)
        check_plan(request.plan, self.plans)
        hosted = [item for item in dict.fromkeys(request.user_ids) if item in self.user_ids]
        works = self.works if self.works_of is None else self.works_of(request.config)
        asked = works, self.data, request.request, request.attempt, hosted
        if self.check is not None:
            self.check(request.request, request.attempt, works)
        with only_places_of_errors():
            seconds = _left(message, request.seconds)
            if self.guard is None:
                done = answered(*asked)
            else:
                done = self.guard.summed(*asked, seconds, apart=self.apart)
        absent = len(request.user_ids) - len(hosted)
        done = replace(done, num_failed=done.num_failed + absent)
        return Message(answer(request, done), reply_to=message)


def _left(message: Message, seconds: float | None) -> float | None:
    """Return the time that is left of what a message gave for its answer.

    A process that was started for it has taken some. Clocks may differ: half at most is taken off.
    """
    if seconds is None:
        return None
    since = max(0.0, time.time() - message.metadata.created_at)
    return max(0.5 * seconds, seconds - since)


_HOSTS: WeakKeyDictionary[ClientApp, Callable[[Context], Host]] = WeakKeyDictionary()


def prepare(app: ClientApp, context: Context) -> None:
    """Open what an app's messages will need, where the process that answers them is forked off.

    Called again after a message it also has what was compiled for that one. A GPU that a process
    has opened is of no use to those forked off it: a node that trains on one opens its users and
    the GPU for each message, and only has PyTorch loaded here.

    Args:
        app: As it was given to `serve`; of another app nothing is known.
        context: As a message would have it.

    Raises:
        ValueError: What the app's host raises, or that the device is no word.
    """
    if is_gpu(device_of(context.node_config, context.run_config)):
        importlib.import_module("torch")
    elif (host := _HOSTS.get(app)) is not None:
        host(context)
    load_compiled()


def serve(
    app: ClientApp, host: Callable[[Context], Host], *, from_run_config: bool = False
) -> None:
    """Let a ClientApp answer what a server asks.

    A node that insists on plans looks at that of a message first, and calls `host` afterwards.

    Args:
        app: The app; it must not have a training function yet.
        host: Who lives on this node, from Flower's context; called for each message.
        from_run_config: Whether the host is made of what a server's run-config names; then it is
            not made for a question that names no plan either.
    """
    _HOSTS[app] = host
    _answer_queries(app, host, from_run_config)

    @app.train()
    def answer_train(message: Message, context: Context) -> Message:
        return _answered(host, message, context, True, lambda here: here.train(message))


def _answer_queries(
    app: ClientApp, host: Callable[[Context], Host], needs_plan: bool = False
) -> None:
    """Register what a server asks besides training."""

    @app.query(USERS_ACTION)
    def answer_users(message: Message, context: Context) -> Message:
        return _answered(host, message, context, needs_plan, lambda here: here.query(message))

    @app.query(WAITING_ACTION)
    def hear_waiting(message: Message, context: Context) -> Message:
        return note_waiting(message)


def _answered(
    host: Callable[[Context], Host],
    message: Message,
    context: Context,
    needs_plan: bool,
    answer: Callable[[Host], Message],
) -> Message:
    """Answer a message; where that fails, in a line, without text of a user's error."""
    try:
        plan = named_plan(message.content)
        if plan or needs_plan:
            check_plan(plan, allowed_plans(context.node_config))
        return answer(host(context))
    except Exception as error:
        line, kind = line_without_values(error), type(error).__name__
        _LOG.error("%s", line)
        reason = line if line.startswith(f"{kind} at ") else f"{kind}: {line}"
        failed = Error(_RAISED, reason)
        return Message(failed, reply_to=message)


def allowed_plans(
    node_config: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> frozenset[str] | None:
    """Return the digests of plans that a node's operator allows, or None for any.

    Raises:
        ValueError: If one is no SHA-256, or as `_allowed`.
    """
    both = f"{environment.get(PLANS_VARIABLE, '')} {node_config.get(PLANS_KEY, '')}"
    for item in both.replace(",", " ").split():
        if not re.fullmatch("[0-9a-f]{64}", item):
            raise ValueError(
                f"{PLANS_VARIABLE} or {PLANS_KEY} has {item!r:.80}, which is no digest: write the "
                "64 hex digits that the server logs of a plan, several with spaces between them"
            )
    return _allowed(node_config, environment, PLANS_VARIABLE, PLANS_KEY)


def check_plan(plan: str, allowed: frozenset[str] | None) -> None:
    """Refuse a plan that is not among those allowed here; None allows any.

    Raises:
        ValueError: With its digest, and how it is allowed.
    """
    if allowed is not None and plan not in allowed:
        what = f"plan {plan}" if plan else "a request that names no plan"
        raise ValueError(
            f"this node trains under {len(allowed)} plans and {what} is not among them; its "
            f"operator may add it to {PLANS_VARIABLE} or to {PLANS_KEY} in its node-config"
        )


def allowed_experiments(
    node_config: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> frozenset[str] | None:
    """Return the names of experiments that a node's operator allows, or None without a list.

    Raises:
        ValueError: As `_allowed`.
    """
    return _allowed(node_config, environment, EXPERIMENTS_VARIABLE, EXPERIMENTS_KEY)


def check_experiment(name: str, node_config: Mapping[str, Any]) -> None:
    """Refuse to build what a run-config names, where the node's operator has not allowed it.

    A list allows what it lists. Without one a node that insists on plans builds the experiments
    that are installed here, and no `module:function` or `file.py:function`: a plan's digest does
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
    elif ":" in name and allowed_plans(node_config) is not None:
        raise ValueError(
            f"this node insists on plans, and experiment {name!r:.200} is code, which no plan "
            f"covers; its operator may {remedy}"
        )


def device_of(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> str | None:
    """Return the device that a node trains on, by name; None for what is quickest on a processor.

    The node's own config comes first, since hardware is the node's, then the run's; "none" is None.
    Where neither names one, a client of Flower's simulation that Ray has set a GPU aside for
    (`client-resources-num-gpus`) uses the first that it sees.

    Raises:
        ValueError: As `named_device`.
    """
    if name := named_device(node_config) or named_device(run_config):
        return None if name == "none" else name
    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", lambda: False)():
        return None
    return "cuda:0" if ray.get_gpu_ids() else None


def named_device(config: Mapping[str, Any]) -> str:
    """Return what a config's key says, "" where it says nothing; whether it is there, nodes know.

    Raises:
        ValueError: If no device is called so.
    """
    name = config.get(DEVICE_KEY, "")
    if not isinstance(name, str) or not (name in ("", "none") or is_device_name(name)):
        raise ValueError(
            f"{DEVICE_KEY} {name!r:.80} is not one to train on; use 'cuda:0', 'cpu', or 'none' for "
            "what is quickest on a processor"
        )
    return name


def is_gpu(device: str | None) -> bool:
    """Return whether a device is named, and is not the processor."""
    return device not in (None, "cpu")


def _allowed(
    node_config: Mapping[str, Any], environment: Mapping[str, str], variable: str, key: str
) -> frozenset[str] | None:
    """Return the words that the environment's variable and the node-config's key list.

    Where both list some, a word must be in both; None where neither lists any.

    Raises:
        ValueError: If a list that is there lists nothing, as one filled from an empty file does.
    """
    lists = []
    for name, text in ((variable, environment.get(variable, "")), (key, node_config.get(key, ""))):
        found = frozenset(str(text).replace(",", " ").split())
        if text != "" and not found:
            raise ValueError(
                f"{name} is {str(text)!r:.80} and lists nothing; list those that this node takes, "
                "or leave it empty to take any"
            )
        if found:
            lists.append(found)
    return frozenset.intersection(*lists) if lists else None


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


TrainFunction = Callable[..., Mapping[str, Any]]
"""From the global params, one user's examples and that user's generator to the params that it ends
with: what `np.asarray` takes, by name. The params may be changed in place. A function with a
parameter `context` is given Flower's context, one with a parameter `config` the server's train
config, a mapping."""

Users = Callable[[Context], Mapping[str, Any]]
"""From Flower's context to the examples of the users that live on this node, by opaque id."""

DEFAULT_GUARD = Guard()

_Function = TypeVar("_Function", bound=TrainFunction)


@dataclass(slots=True, kw_only=True)
class _Apart:
    """How users of a training function are kept apart: by children, or by a check beforehand.

    Attributes:
        public: Examples of public or synthetic users by name, whom the check trains; None for none.
        guard: Of the host.
        checked: Whether the check has passed in this process.
    """

    public: Mapping[str, Any] | None
    guard: Guard | None
    checked: bool = False

    def __post_init__(self) -> None:
        if self.public is not None and len(self.public) < _PUBLIC_USERS:
            raise ValueError(
                f"public_users has {len(self.public)} users, and whether users are apart shows on "
                f"{_PUBLIC_USERS}; give as many, of no one on the roster, or leave it out"
            )

    def of_host(self) -> dict[str, Any]:
        """Return the fields `apart` and `check` of a host.

        Raises:
            ValueError: If no one is there to check with, and no child can be forked.
        """
        if self.public is not None:
            return {"check": self.check}
        if self.guard is None or not can_fork_apart():
            why = "guard=None" if self.guard is None else "no child can be forked here"
            raise ValueError(
                f"{why}: users are trained one after the other in this process, and what one "
                "leaves behind would move the next past its bound; give public_users, three or "
                "more of no one on the roster, on whom that is looked for, or train where a child "
                "can be forked"
            )
        return {"apart": True}

    def check(self, request: SumRequest, attempt: Attempt, works: Mapping[str, Work]) -> None:
        """Refuse a training function that keeps something between users, or does not train.

        Raises:
            KeepsStateError: If one public user changes what another contributes.
            ValueError: If the function fails on one of them, or moves no param.
        """
        if self.checked or self.public is None:
            return
        data = _GivenUsers(users=self.public)
        fork = self.guard is not None and can_fork_apart()

        def train(params: Params, users: Sequence[str]) -> list[Tree]:
            # Of updates as they are: shortened to a bound, long ones may look alike.
            asked = replace(request, params=params)
            raw = replace(attempt, key=_PUBLIC_KEY, bound=Unbounded())

            def compute() -> bytes:
                # A child has none of the threads that may draw from Python's generator, too.
                with nullcontext() if fork else unlike_streams():
                    parts = [
                        encode_sum(answered(works, data, asked, raw, (user,))) for user in users
                    ]
                return b"".join(len(part).to_bytes(8, "little") + part for part in parts)

            found = in_child(compute) if fork else compute()
            if found is None:
                raise ValueError("the process that trained public users died")
            sums = [decode_sum(part) for part in _parts(found)]
            for user, part in zip(users, sums, strict=True):
                if part.num_failed:
                    why = (part.first_error or "for no known reason").partition("\n")[0]
                    raise ValueError(f"the training function fails on public user {user!r}: {why}")
            return [part.total for part in sums]

        moved = False
        # At zero, as some models start, state may not show.
        for params in (request.params, _elsewhere(request.params)):
            known = refuse_dependence(
                partial(train, params), sorted(self.public), of="the training function"
            )
            found = (tensor for one in known.values() for tensor in one.values())
            moved |= any(np.any(tree.to_dense_tensor(tensor)) for tensor in found)
        if not moved:
            raise ValueError(
                "the training function moves no param on public users: a run would be of noise "
                "alone; have it return the params that it ends with"
            )
        self.checked = True


def _elsewhere(params: Params) -> Params:
    """Return params a little way off."""
    rng = _PUBLIC_KEY.generator()
    return {
        name: (array + 0.01 * rng.normal(size=array.shape)).astype(array.dtype)
        for name, array in params.items()
    }


def _parts(found: bytes) -> Iterator[bytes]:
    """Yield parts that are each behind their length."""
    at = 0
    while at < len(found):
        start = at + 8
        at = start + int.from_bytes(found[at:start], "little")
        yield found[start:at]


_PUBLIC_USERS = 3
_PUBLIC_KEY = Key.simulation(0).fold("public users")


def bounded(
    app: ClientApp,
    *,
    users: Users,
    public_users: Mapping[str, Any] | None = None,
    guard: Guard | None = DEFAULT_GUARD,
) -> Callable[[_Function], _Function]:
    """Return a decorator that makes a training function the work of a ClientApp.

    It registers with the app what a server's `UserLevelStrategy` asks: `train`, and the query
    which users live here. The function itself stays as it is. For an app that has a training
    function of Flower's kind already there is `UserLevelClientApp`.

    Args:
        app: The app; it must not have a training function yet.
        users: Who lives on this node, called for each message: cache it where reading is slow. A
            person with several devices is one id, on one node. A user's examples may be anything.
        public_users: Examples of three users or more who are public or synthetic, on no roster, by
            name. Before the node's first answer they are trained, to refuse a function in which
            one user changes what another one contributes. None trains each user in a child of its
            own instead.
        guard: What a user may take of time and memory before its process is ended; None computes
            users in the app's own process, where nothing ends a user that does not end. It needs
            `public_users`, as does a process that can fork no child (Windows, macOS, an open GPU).

    Guarantees:
        * Each user moves the node's answer by at most the public bound that the server sent,
          whatever the function returns: the whole change of its params is bounded at once.
        * Without `public_users` that holds whatever the function keeps in memory, since each user
          is trained by a process that has trained no one else. What it writes elsewhere and reads
          again (files, other processes, memory that is shared with them) is not covered.
        * With `public_users` it holds for what a function keeps that shows on these users; see
          `fedpriv.training.independence`.
        * What the function draws from Python's, NumPy's or PyTorch's own generators follows from
          the user's key.
        * A user for whom the function raises, or whose params are not finite or of other shapes,
          contributes zero, alone.
        * What leaves the node is the opaque ids, one sum over the users that were drawn, and how
          many of them failed. The function itself may write elsewhere.
    """
    apart = _Apart(public=public_users, guard=guard)

    def decorate(train: _Function) -> _Function:
        named = inspect.signature(train).parameters

        def host(context: Context) -> Host:
            def works_of(config: Mapping[str, Any]) -> Mapping[str, Work]:
                given = {"context": context, "config": config}
                chosen = {name: value for name, value in given.items() if name in named}
                return as_works(_FunctionTrainer(function=partial(train, **chosen)))

            found = users(context)
            check_ids(found, "this node")
            return Host(
                works=works_of({}),
                data=_GivenUsers(users=found),
                user_ids=frozenset(found),
                guard=guard,
                plans=allowed_plans(context.node_config),
                works_of=works_of,
                **apart.of_host(),
            )

        serve(app, host)
        return train

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class _FunctionTrainer(UserTrainer):
    """A trainer that calls a training function."""

    function: TrainFunction

    def load(self) -> None:
        load_optimizers()

    def train(self, params: Params, context: RoundContext, examples: Any, key: Key) -> Tree:
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


class SeveralUsersBehindOneCallError(OwnTextError):
    """A training function of Flower's kind did not ask whose examples it was called for."""


class UserLevelClientApp(ClientApp):
    """A Flower `ClientApp` whose training function is called for one user at a time.

    It takes the place of `ClientApp()`; `@app.train()` and its function stay as they are. It is
    outermost: every mod, of the app or of a function, is inside, and what they and the function
    return is bounded afterwards.

    A call's message has the params under "arrays" and the server's train config under "config".
    Its context has the node-config with the key "user-id", and an empty state, which is not kept.
    Of the reply the one `ArrayRecord` is taken, with the params' names and shapes.

    Guarantees:
        * Each user moves the node's answer by at most the public bound that the server sent,
          whatever the function returns; the server bounds the node's sum again. What that covers of
          a function that keeps something between users is as of `bounded`.
        * Metrics, weights such as `num-examples`, and all else in a reply stay here.
        * Where a node hosts several users, a call that does not read "user-id" contributes zero.
          Whether a function that reads it trains on that user's examples alone, is not found.
        * A user for whom the function raises contributes zero, alone.
        * Queries and evaluation that the app answers are refused, since no noise covers them;
          `diagnostics` allows evaluation, in a simulation.

    Args:
        users: The ids of the users that live on this node, from Flower's context.
        public_users: As of `bounded`: three ids or more for which the function trains on public or
            synthetic examples.
        one_user_per_node: Declares that all that the function reads is one user's, so that it need
            not read "user-id"; a node with another number of users is refused.
        diagnostics: Whether `evaluate` messages are answered; covered by no ε.
        guard: As of `bounded`.
        mods: Of Flower, all inside.
    """

    def __init__(
        self,
        *,
        users: Callable[[Context], Sequence[str]],
        public_users: Sequence[str] | None = None,
        one_user_per_node: bool = False,
        diagnostics: bool = False,
        guard: Guard | None = DEFAULT_GUARD,
        mods: list[Mod] | None = None,
    ) -> None:
        super().__init__(mods=[self._one_user_at_a_time, *(mods or [])])
        self._users, self._alone, self._guard = users, one_user_per_node, guard
        public = None if public_users is None else {name: name for name in public_users}
        self._apart = _Apart(public=public, guard=guard)
        self._diagnostics, self._evaluates = diagnostics, False
        _answer_queries(self, self._host)

    def evaluate(self, *args: Any, **named: Any) -> Callable[[ClientAppCallable], Any]:
        """Register a function as `ClientApp.evaluate` does; without `diagnostics` it is not called.

        Args:
            *args: Of `ClientApp.evaluate`.
            **named: Likewise.
        """
        self._evaluates = True
        return super().evaluate(*args, **named)

    def _host(self, context: Context) -> Host:
        user_ids = list(self._users(context))
        check_ids(user_ids, "this node")
        if self._alone and len(user_ids) != 1:
            raise ValueError(
                f"this node lists {len(user_ids)} users, and one_user_per_node=True declares one; "
                'list one, or leave it out and let the training function read "user-id"'
            )
        return Host(
            works={},
            data=_GivenUsers(users=dict(zip(user_ids, user_ids, strict=True))),
            user_ids=frozenset(user_ids),
            guard=self._guard,
            plans=allowed_plans(context.node_config),
            **self._apart.of_host(),
        )

    def _one_user_at_a_time(
        self, message: Message, context: Context, answer: ClientAppCallable
    ) -> Message:
        category, _, action = message.metadata.message_type.partition(".")
        if category == MessageType.QUERY and action == USERS_ACTION:  # of no interest to a mod
            if self._evaluates and not self._diagnostics:
                _log_once(
                    "the app's evaluate function is not called: what it returns would leave this "
                    "node without noise; in a simulation give diagnostics=True here and to the "
                    "UserLevelStrategy"
                )
            return _answered(self._host, message, context, False, lambda here: here.query(message))
        if category == MessageType.QUERY and action == WAITING_ACTION:
            return note_waiting(message)
        if category == MessageType.EVALUATE and self._diagnostics:
            return answer(message, context)

        def host(context: Context) -> Host:
            if category != MessageType.TRAIN:
                raise ValueError(
                    f"a {category} message is not answered: what it asks would leave this node "
                    "without noise; diagnostics=True answers evaluation, in a simulation"
                )

            def works_of(config: Mapping[str, Any]) -> Mapping[str, Work]:
                return as_works(
                    _AppTrainer(
                        function=answer,
                        message=message,
                        context=context,
                        config=config,
                        alone=self._alone,
                    )
                )

            return replace(self._host(context), works_of=works_of)

        return _answered(host, message, context, True, lambda here: here.train(message))


@dataclass(frozen=True, slots=True, kw_only=True)
class _AppTrainer(UserTrainer):
    """A trainer that calls a training function of Flower's kind.

    Attributes:
        function: The function.
        message: The server's; calls have copies of it.
        context: The node's.
        config: The server's train config.
        alone: Whether one user is declared to live here.
    """

    function: ClientAppCallable = field(repr=False)
    message: Message = field(repr=False)
    context: Context = field(repr=False)
    config: Mapping[str, Any]
    alone: bool

    def load(self) -> None:
        load_optimizers()

    def train(self, params: Params, context: RoundContext, examples: str, key: Key) -> Tree:
        arrays = ArrayRecord({name: Array(array.copy()) for name, array in params.items()})
        message = copy(self.message)
        message.content = RecordDict({_ARRAYS: arrays, _TOLD: ConfigRecord(dict(self.config))})
        place = _NodeConfig(self.context.node_config, examples)
        own = copy(self.context)
        own.node_config, own.state = place, RecordDict()
        reply = self.function(message, own)
        if not (self.alone or place.was_asked):
            error = SeveralUsersBehindOneCallError(
                f'the training function did not read context.node_config["{USER_ID}"]: were it '
                "called for several users, each would get all their examples; train on that "
                "user's alone, or declare one_user_per_node=True where a node is one user"
            )
            _log_once(f"users contribute zero: {error}")
            raise error
        records = reply.content.array_records if reply.has_content() else {}
        if len(records) != 1:
            raise ValueError(f"a reply has {len(records)} ArrayRecords; return one, the params")
        (record,) = records.values()
        found = {name: np.asarray(array.numpy(), np.float32) for name, array in record.items()}
        tree.check_like(params, found)
        return {name: found[name] - array for name, array in params.items()}


@lru_cache(maxsize=8)
def _log_once(text: str) -> None:
    """Warn of something that holds for every user and node of this process."""
    _LOG.warning("%s", text)


class _NodeConfig(dict[str, Any]):
    """A node's config with the id of the user of a call, which knows whether that was read."""

    was_asked = False

    def __init__(self, config: Mapping[str, Any], user_id: str) -> None:
        super().__init__({**config, USER_ID: user_id})

    def __getitem__(self, key: str) -> Any:
        self.was_asked |= key == USER_ID
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.was_asked |= key == USER_ID
        return super().get(key, default)
