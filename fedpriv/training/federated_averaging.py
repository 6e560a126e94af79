"""Federated averaging: each round asks for a noised mean of bounded updates and steps by it.

    preconditioner.begin   public context of the round; nothing has been drawn
    door.ask               charge, draw the cohort, bound each update, sum, add noise, divide
    preconditioner.end     takes the released mean; post-processing from here on
    optimizer              server SGD, momentum, Adam, ...: the step added to the params
    aggregate              averages of checkpoints

Centralised training is the same algorithm with examples in the place of users.

An aggregate of params may be trained *over* (Shejwalkar et al., "Recycling Scraps", PoPETs 2025,
Algorithm 1): a round's updates are made at the aggregate of the checkpoints so far.
That is made of released checkpoints alone, so it costs no ε where all iterates are covered, as they
are by adaptive composition here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from fedpriv import tree
from fedpriv.checkpoints.aggregates import Aggregate, Last, Rule, last_checkpoints, packed
from fedpriv.mechanisms.bounds import Bound
from fedpriv.mechanisms.preconditioners import Preconditioner, Preconditioning
from fedpriv.privacy.plan import AnyPlan, Plan
from fedpriv.rng import Key
from fedpriv.training.algorithm import Algorithm, ArrayState, Context, Door, SumRequest
from fedpriv.transform import State, Transform
from fedpriv.tree import Params

_NOTHING = Preconditioning()
_TRIED_ROUNDS = 3
UPDATE_NORM, CLIP_NORM = "update_norm", "clip_norm"
"""Names among the numbers of a state; only a bound that adapts has a clip norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedAveraging(Algorithm):
    """Asks for the mean of bounded updates, and takes one step by it.

    Attributes:
        optimizer: A transform of the released mean update. Its step is added to the iterate.
        aggregate: Made of the params of rounds (`fedpriv.checkpoints.aggregates`), and whether it
            is trained over. It must be made of the params it is given and of public values alone:
            that it costs no ε rests on that.
        preconditioner: What public data and past releases add, see
            `fedpriv.mechanisms.preconditioners`.
        bound: The plan's, where it adapts; None of one that stays the same.
        rate: From a round's number to the factor of the local learning rate; None for 1.
        extra: From a round's number to further public tensors that users are given; None for none.
    """

    optimizer: Transform
    aggregate: Aggregate = Last()
    preconditioner: Preconditioner = field(default_factory=Preconditioner)
    bound: Bound | None = None
    rate: Callable[[int], float] | None = None
    extra: Callable[[int], Params] | None = None

    @property
    def outputs(self) -> Rule | None:
        """How the checkpoints that it keeps are measured together; None for one model."""
        return self.aggregate.outputs

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse a plan that ends before anything is trained at an aggregate, or preconditioned.

        Of a bound that adapts, noise of a whole run is refused as well; so is a plan's bound that
        adapts or has users add something besides, unless it is this algorithm's.

        Raises:
            ValueError: If it does.
        """
        first, planned = self.aggregate.start, plan.planned_rounds
        bound = plan.live_mechanism.bound if isinstance(plan, Plan) else None
        adapts = bound is not None and (bound.start is not None or bound.besides(np.ones(1)))
        if adapts and self.bound is None:
            raise ValueError(
                f"{bound!r} has users add to the sum what nothing takes out of its mean; give the "
                "algorithm the same bound (its field bound)"
            )
        if self.bound is not None and plan.charged_once:
            raise ValueError(
                "bound 'adaptive': noise of a whole run is correlated over rounds, and would have "
                "to restart with every clip norm; use bound 'clip'"
            )
        if planned is not None:
            self.preconditioner.check_rounds(planned)
        if planned is not None and first >= planned:
            raise ValueError(
                f"training over aggregates starts after {first} rounds, of which there are only "
                f"{planned}; give aggregate-start below that, or aggregate-training none"
            )

    def init(self, params: Params) -> ArrayState:
        """Return the state before the first round.

        Raises:
            ValueError: If the aggregate makes a model that its state does not hold.
        """
        aggregate = self.aggregate.init(params)
        if "average" not in aggregate:
            self._check_keeps_all(params)
        memory = {
            "optimizer": self.optimizer.init(params),
            "aggregate": aggregate,
            "preconditioner": self.preconditioner.init(params),
        }
        clip_norm = None if self.bound is None else self.bound.start
        return ArrayState(params=params, memory=memory, numbers=_numbers(0.0, clip_norm))

    def _check_keeps_all(self, params: Params) -> None:
        """Refuse an aggregate with no "average" in its state, unless it changes nothing."""
        out, _ = self.aggregate.next(dict(params), self.aggregate.init(params))
        if any(out.get(name) is not array for name, array in params.items()):
            raise ValueError(
                "the aggregate returns a model that is not in its state, so that no resumed run "
                "could have it: keep it there under 'average', or give a function of checkpoints "
                "to fedpriv.checkpoints.aggregates.OfLast"
            )
        if self.aggregate.training != "none":
            raise ValueError(
                "there is no aggregate to train at; give one, such as "
                "fedpriv.checkpoints.aggregates.Uniform"
            )

    def check_params(self, params: Params) -> None:
        """Try the aggregate on a few rounds of params that move.

        Raises:
            ValueError: If what it makes has other tensors than the params, or is not finite.
        """
        params = {name: array.copy() for name, array in params.items()}
        state = self.aggregate.init(params)
        for number in range(1, _TRIED_ROUNDS + 1):
            params = {n: np.asarray(array + np.float32(1.0)) for n, array in params.items()}
            state = self._aggregated(params, state, number)

    def _aggregated(self, params: Params, state: State, round_num: int) -> State:
        """Return the aggregate's state after one more round; it gets the params read-only.

        Raises:
            ValueError: If the aggregate has other tensors than the params, or is not finite though
                they are.
        """
        _, state = self.aggregate.next(tree.read_only(params), state)
        average = state.get("average")
        if average is None:
            return state
        forms = [{n: (a.shape, a.dtype) for n, a in tree.items()} for tree in (average, params)]
        if forms[0] != forms[1]:
            raise ValueError(
                f"the aggregate of round {round_num} has tensors {_described(average)}, and the "
                f"params are {_described(params)}; let it return float32 arrays of the same names "
                "and shapes"
            )
        odd = [name for name, array in average.items() if not np.isfinite(array).all()]
        if odd and all(np.isfinite(array).all() for array in params.values()):
            raise ValueError(
                f"the aggregate of round {round_num} is not finite in tensor {odd[0]!r}, and the "
                "params are; mend the function that makes it"
            )
        return state

    def step(self, state: ArrayState, door: Door) -> ArrayState:
        """Return the state after one more round."""
        public, state = self.begin(state, door.key("guide"))
        return self.next(state, door.ask(self.request(state, public)), public)

    def request(self, state: ArrayState, public: Preconditioning = _NOTHING) -> SumRequest:
        """Return what users are asked in the coming round.

        Args:
            state: From `begin`.
            public: Likewise.
        """
        number = state.round_num + 1
        context = Context(
            rate=1.0 if self.rate is None else self.rate(number),
            clip_norm=state.numbers.get(CLIP_NORM),
            multiplier=dict(public.multiplier),
            mixture=public.mixture,
            extra={} if self.extra is None else self.extra(number),
        )
        return SumRequest(params=self.asked_at(state), context=context)

    def asked_at(self, state: ArrayState) -> Params:
        """Return the params that the coming round's updates are made at."""
        if self.aggregate.training == "none" or state.round_num < self.aggregate.start:
            return state.params
        return state.memory["aggregate"]["average"]

    def begin(self, state: ArrayState, key: Key) -> tuple[Preconditioning, ArrayState]:
        """Return what is public about the coming round; nothing of it has been drawn.

        Args:
            state: The state before; its preconditioner's arrays are given up.
            key: Folded by round and attempt; picks public examples and nothing else.
        """
        public, preconditioner = self.preconditioner.begin(
            self.asked_at(state), state.memory["preconditioner"], state.round_num + 1, key
        )
        return public, replace(state, memory={**state.memory, "preconditioner": preconditioner})

    def next(
        self, state: ArrayState, mean: Params, public: Preconditioning = _NOTHING
    ) -> ArrayState:
        """Return the state after a release; everything here is post-processing.

        Args:
            state: The state before; its arrays are given up.
            mean: The noised sum over the mechanism's denominator, however many replied. It is given
                up.
            public: From `begin`.
        """
        memory, clip_norm = state.memory, state.numbers.get(CLIP_NORM)
        if self.bound is not None:
            mean, clip_norm = self.bound.released(mean, clip_norm)
        if public.inverse:
            mean = tree.to_dense(tree.multiply(mean, public.inverse))
        update_norm = tree.l2_norm(mean)
        preconditioner = self.preconditioner.end(mean, memory["preconditioner"])
        if public.blend is not None:
            mean = tree.to_dense(public.blend.of(mean))
        step, optimizer = self.optimizer.next(mean, memory["optimizer"])
        if public.scale:
            step = tree.to_dense(tree.multiply(step, public.scale))
        base = self.asked_at(state) if self.aggregate.training == "replace" else state.params
        params = {name: base[name] + step[name] for name in base}
        aggregate = self._aggregated(params, memory["aggregate"], state.round_num + 1)
        return state.after(
            params,
            memory={
                "optimizer": optimizer,
                "aggregate": aggregate,
                "preconditioner": preconditioner,
            },
            numbers=_numbers(update_norm, clip_norm),
        )

    def result(self, state: ArrayState) -> Params:
        """Return the params that a run returns: the checkpoint aggregate where there is one.

        Trained over aggregates this is the last of those, A_T.
        """
        return state.memory["aggregate"].get("average", state.params)

    def measured(self, state: ArrayState) -> Params:
        """Return what is measured: the result, or all models whose outputs are aggregated."""
        if self.outputs is None:
            return self.result(state)
        return packed(self.outputs, last_checkpoints(state.memory["aggregate"]))


def _numbers(update_norm: float, clip_norm: float | None) -> dict[str, float]:
    adapted = {} if clip_norm is None else {CLIP_NORM: clip_norm}
    return {UPDATE_NORM: update_norm, **adapted}


def _described(tensors: Params) -> str:
    return ", ".join(f"{n} {list(a.shape)} {a.dtype}" for n, a in sorted(tensors.items()))
