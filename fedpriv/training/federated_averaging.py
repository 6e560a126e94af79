"""Federated averaging and its family: one question a round, one step by the answer.

The question is for the mean of bounded updates; what the step makes of it (server momentum, Adam,
averages of checkpoints, preconditioners learnt from releases) is post-processing. Centralised
training is the same algorithm with examples in the place of users.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.preconditioner import NoPreconditioner, Preconditioner, RoundContext
from fedpriv.noise.gaussian import NoisedMean
from fedpriv.rng import Key
from fedpriv.training.algorithm import Door, Query, Saved
from fedpriv.transform import State, Transform
from fedpriv.tree import Params

_NO_CONTEXT = RoundContext()
_EMA = "ema/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What one round passes to the next; all of it is released.

    Attributes:
        round_num: Rounds released so far.
        params: float32 tensors.
        optimizer: The server optimiser's state.
        aggregate: The checkpoint aggregate's state.
        preconditioner: The preconditioner's state.
        update_norm: l2 norm of the last released mean update, after noise.
    """

    round_num: int
    params: Params = field(repr=False)
    optimizer: State = field(repr=False)
    aggregate: State = field(repr=False)
    preconditioner: State = field(default_factory=dict, repr=False)
    update_norm: float = 0.0

    def save(self) -> Saved:
        """Return the state taken apart: moments and counters apart from what is released."""
        average = self.aggregate.get("average", {})
        return Saved(
            released={**self.params, **{_EMA + name: array for name, array in average.items()}},
            rest={
                f"{kind}/{group}/{name}": array
                for kind, groups in self._groups().items()
                for group, tensors in groups.items()
                for name, array in tensors.items()
            },
            numbers={"update_norm": self.update_norm},
        )

    def _groups(self) -> dict[str, State]:
        """Return what only the next round needs, under the names that files have for it."""
        aggregate = {name: tree for name, tree in self.aggregate.items() if name != "average"}
        return {
            "optimizer": self.optimizer,
            "aggregate": aggregate,
            "guide": self.preconditioner,
        }

    def load(self, round_num: int, saved: Saved) -> ServerState:
        """Return the state that `save` took apart; this one gives its form."""

        def filled(kind: str, groups: State) -> State:
            return {
                group: {name: saved.rest[f"{kind}/{group}/{name}"] for name in tensors}
                for group, tensors in groups.items()
            }

        groups = {kind: filled(kind, tensors) for kind, tensors in self._groups().items()}
        if "average" in self.aggregate:
            average = {name: saved.released[_EMA + name] for name in self.aggregate["average"]}
            groups["aggregate"]["average"] = average
        return replace(
            self,
            round_num=round_num,
            params={name: saved.released[name] for name in self.params},
            optimizer=groups["optimizer"],
            aggregate=groups["aggregate"],
            preconditioner=groups["guide"],
            update_norm=float(saved.numbers["update_norm"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedAveraging:
    """Asks for the mean of bounded updates, and takes one step by it.

    Attributes:
        optimizer: A transform of the released mean update.
        aggregate: A transform from params to the aggregated params (EMA of checkpoints).
        preconditioner: What public data and past releases add, see
            `fedpriv.mechanisms.preconditioner`.
        tensors: From a round's number to what users are given next to the params: public, and a
            function of the number alone. None for nothing.
    """

    optimizer: Transform
    aggregate: Transform
    preconditioner: Preconditioner = field(default_factory=NoPreconditioner)
    tensors: Callable[[int], Params] | None = None

    def init(self, params: Params) -> ServerState:
        """Return the state before the first round."""
        return ServerState(
            round_num=0,
            params=params,
            optimizer=self.optimizer.init(params),
            aggregate=self.aggregate.init(params),
            preconditioner=self.preconditioner.init(params),
        )

    def step(self, state: ServerState, door: Door) -> ServerState:
        """Return the state after one more round."""
        context, state = self.begin(state, door.key("guide"))
        given = {} if self.tensors is None else self.tensors(state.round_num + 1)
        params = {**state.params, **given} if given else state.params
        mean = door.ask(Query(params=params, context=context))
        return self.next(state, mean, context)

    def begin(self, state: ServerState, key: Key) -> tuple[RoundContext, ServerState]:
        """Return what is public about the coming round; nothing of it has been drawn.

        Args:
            state: The state before; its preconditioner's arrays are given up.
            key: Folded by round and attempt; picks public examples and nothing else.
        """
        context, preconditioner = self.preconditioner.begin(
            state.params, state.preconditioner, state.round_num + 1, key
        )
        return context, replace(state, preconditioner=preconditioner)

    def next(
        self, state: ServerState, answer: NoisedMean, context: RoundContext = _NO_CONTEXT
    ) -> ServerState:
        """Return the state after a release; everything here is post-processing.

        Args:
            state: The state before; its arrays are given up.
            answer: The noised mean: the noised sum over the mechanism's denominator, whoever
                replied. It is given up.
            context: From `begin`; its bound is the one that made the sum.
        """
        mean, squared = answer.update, answer.squared_norm
        if context.inverse:
            mean = tree.to_dense(tree.multiply(mean, context.inverse))
            squared = tree.l2_norm(mean) ** 2
        preconditioner = self.preconditioner.end(mean, state.preconditioner)
        if context.blend < 1.0:
            private, public = np.float32(context.blend), np.float32(1.0 - context.blend)
            mean = {n: private * a + public * context.public[n] for n, a in mean.items()}
        step, optimizer = self.optimizer.next(mean, state.optimizer)
        if context.scale:
            step = tree.to_dense(tree.multiply(step, context.scale))
        params = {name: state.params[name] + step[name] for name in state.params}
        _, aggregate = self.aggregate.next(params, state.aggregate)
        return ServerState(
            round_num=state.round_num + 1,
            params=params,
            optimizer=optimizer,
            aggregate=aggregate,
            preconditioner=preconditioner,
            update_norm=math.sqrt(squared),
        )

    def result(self, state: ServerState) -> Params:
        """Return the params that a run stands for: the checkpoint aggregate where there is one."""
        return state.aggregate.get("average", state.params)
