"""A ClientApp of your own: its training function, asked for one user at a time, bounded and summed.

app = ClientApp()

@bounded(app, users=my_users)
def train(params, examples, rng):
    ...
    return trained_params
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp

from fedpriv import tree
from fedpriv.backends.flower.client import Host, allowed_promises, serve
from fedpriv.backends.guard import Guard
from fedpriv.rng import Key
from fedpriv.training.work import as_works
from fedpriv.tree import Params, Tree

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
        works = as_works(_OwnTrainer(function=train))

        def host(context: Context) -> Host:
            found = users(context)
            return Host(
                works=works,
                data=_OwnUsers(users=found),
                user_ids=frozenset(found),
                guard=guard,
                promises=allowed_promises(context.node_config),
            )

        serve(app, host)
        return train

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnTrainer:
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
class _OwnUsers:
    """A `fedpriv.training.work.UserData`."""

    users: Mapping[str, Any]

    def examples(self, user_id: str) -> Any:
        return self.users[user_id]

    def num_examples(self, user_id: str) -> int:
        return len(self.users[user_id])
