"""The private work of a round: one bounded sum, one draw of noise, one step.

`partial_sum` is the function that backends bring to the data; `Round.next` is what the server does
with its result. Between them the raw sum lives in one local variable and dies there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bound import Bound, scaled
from fedpriv.mechanisms.preconditioner import NoPreconditioner, Preconditioner, RoundContext
from fedpriv.noise.gaussian import gaussian
from fedpriv.privacy.plan import Plan
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, RunningSum
from fedpriv.training.failures import contributes_zero
from fedpriv.training.local.trainer import LocalTrainer
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.local.vectorised_sum import vectorised_partial_sum
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.stopping import stop_if_asked
from fedpriv.transform import State, Transform
from fedpriv.tree import Params


class UserData(Protocol):
    """Examples by user. Whatever holds users, holds them behind this."""

    def examples(self, user_id: str) -> Any:
        """Return the user's training examples; raise `ValueError` for an unknown user."""
        ...

    def num_examples(self, user_id: str) -> int:
        """Return how many there are, without touching them; raise `ValueError` as above."""
        ...


#: What turns a user into an update; or, where users are single examples, a batch into a sum.
Trainer = LocalTrainer | CentralSum


def partial_sum(
    *,
    params: Params,
    bound: Bound,
    trainer: Trainer,
    data: UserData | None,
    user_ids: Sequence[str],
    key: Key,
) -> PartialSum:
    """Train users, bound each update, and return one unweighted sum.

    One by one; or many at once on the trainer's device, where the trainer does that; or by the sum
    over single examples of centralised training.

    Args:
        params: The global params, float32. Not changed.
        bound: The public bound.
        trainer: What a user does.
        data: Where the users' examples are; None only if the trainer holds them itself.
        user_ids: The drawn users that live here.
        key: The key of this round and attempt; each user folds its own id into it.

    Guarantees:
        * Each user moves the sum by at most `bound.l2_bound` (l2), however many examples it has.
        * A user whose training raises or whose update is not finite or not of the params' shapes
          contributes zero, alone: nobody can stop a round or change another's contribution.

    Raises:
        KeyboardInterrupt: If the run was interrupted, however that came to light: it is never taken
            for a user's failure.
    """
    if isinstance(trainer, CentralSum):
        return trainer.partial_sum(params=params, bound=bound, cohort=user_ids, key=key)
    if data is None:
        raise ValueError("data None: a trainer of users needs their examples")
    if isinstance(trainer, VectorisedTrainer):
        return vectorised_partial_sum(
            params=params, bound=bound, trainer=trainer, data=data, user_ids=user_ids, key=key
        )
    running = RunningSum(params, bound.granularity)
    failed = 0
    for user_id in user_ids:
        stop_if_asked()
        try:
            raw = trainer.train(params, data.examples(user_id), key.fold(user_id))
            update, factor = scaled(bound, tree.check_like(params, raw))
        except (
            Exception,
            SystemExit,
        ) as error:  # a user is not trusted: whatever it raises is its own zero
            contributes_zero(error)
            failed += 1
            continue
        running.add(update, factor)
    return PartialSum(
        total=running.result(),
        num_users=len(user_ids),
        num_failed=failed,
        granularity=bound.granularity,
    )


_NO_CONTEXT = RoundContext()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What one round hands to the next; all of it is released.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The server's half of a round: noise on the sum, a public denominator, one step.

    Attributes:
        plan: Supplies `stddev` and `denominator`.
        optimizer: A transform of the released mean update.
        aggregate: A transform from params to the aggregated params (EMA of checkpoints).
        preconditioner: What public data and past releases add, see
            `fedpriv.mechanisms.preconditioner`.
        nonprivate_stddev: Noise of a run that promises nothing, to compare methods with: an ideal
            that looks at clean gradients. None takes the plan's.
    """

    plan: Plan
    optimizer: Transform
    aggregate: Transform
    preconditioner: Preconditioner = field(default_factory=NoPreconditioner)
    nonprivate_stddev: float | None = None

    def __post_init__(self) -> None:
        if self.nonprivate_stddev is not None and self.plan.is_private:
            raise ValueError(
                f"nonprivate_stddev {self.nonprivate_stddev} is for plans without noise; this plan "
                "promises something, and says how much noise there is"
            )

    def init(self, params: Params) -> ServerState:
        """Return the state before the first round."""
        return ServerState(
            round_num=0,
            params=params,
            optimizer=self.optimizer.init(params),
            aggregate=self.aggregate.init(params),
            preconditioner=self.preconditioner.init(params),
        )

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

    def noise(self, params: Params, key: Key) -> Params:
        """Return the noise of one attempt: it may be drawn as soon as the attempt is charged.

        Args:
            params: Names and shapes.
            key: Folded by round *and* attempt, and used here only.
        """
        stddev = self.plan.stddev if self.nonprivate_stddev is None else self.nonprivate_stddev
        return gaussian(key, params, stddev)

    def next(
        self,
        state: ServerState,
        total: PartialSum,
        noise: Params,
        context: RoundContext = _NO_CONTEXT,
    ) -> ServerState:
        """Release one round.

        mean = (Σ bounded updates + N(0, stddev²)) / plan.denominator, and everything after is
        post-processing. The denominator is the plan's: neither dropouts nor an empty cohort change
        it, and an empty round still releases its noise. Where the sum lies on a grid the noise is
        rounded to it too.

        Args:
            state: The state before; its arrays are given up.
            total: The round's sum.
            noise: From `noise`, with a key of this round and attempt; it becomes the mean in place
                and cannot be used again.
            context: From `begin`; its bound is the one that made the sum.
        """
        mean, squared = noise, 0.0
        share = 1.0 / self.plan.denominator
        for name, tensor in total.total.items():
            squared += _release(tree.to_dense_tensor(tensor), mean[name], total.granularity, share)
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


def _release(
    total: np.ndarray, noise: np.ndarray, granularity: float | None, share: float
) -> float:
    """Turn the noise of one tensor into its released mean, and return its sum of squares."""
    from fedpriv.kernels.sums import release_real, release_whole

    flat = np.ascontiguousarray(total).reshape(-1)
    if granularity is None:
        return release_real(flat, noise.reshape(-1), share)
    return release_whole(flat, noise.reshape(-1), granularity, share)
