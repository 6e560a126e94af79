"""The visible loop: charge, draw, send, sum, noise, step, keep; one record a round.

There are no callbacks that change what happens. Progress bars, plots and reports read the records.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from fedpriv.backends import Backend
from fedpriv.mechanisms import Bound
from fedpriv.privacy.accounting import Epsilon
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.plan import Plan
from fedpriv.rng import Key
from fedpriv.run.folder import RunFolder
from fedpriv.training.allocator import free_memory
from fedpriv.training.evaluate import Metrics
from fedpriv.training.failures import mostly_failed
from fedpriv.training.round import Round, ServerState
from fedpriv.training.stopping import interruptible, stop_if_asked
from fedpriv.tree import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What a round releases. All of it is after the noise, or measured on public users.

    Attributes:
        round_num: From 1.
        attempt: The attempt that succeeded, from 1.
        epsilon: Spent so far, lost attempts included; None without privacy, and in rounds that
            are not accounted (`accounted_rounds`): accounting one can take longer than the round.
        delta: That goes with every ε of the run; None without privacy.
        accuracy_public: On users outside the roster; None when not evaluated.
        recall_at_5_public: Likewise.
        update_norm: l2 norm of the released mean update.
    """

    round_num: int
    attempt: int
    epsilon: float | None
    delta: float | None
    accuracy_public: float | None
    recall_at_5_public: float | None
    update_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """What only a simulation may see of a round. Not covered by any ε; absent in deployment.

    Attributes:
        round_num: From 1.
        attempt: From 1.
        cohort_size: Users drawn.
        num_failed: Drawn users that contributed zero because they failed.
        accuracy: On held-out examples of rostered users; None when not evaluated.
        recall_at_5: Likewise.
        loss: Likewise, in nats.
        seconds: Wall time of the round without evaluation.
    """

    round_num: int
    attempt: int
    cohort_size: int
    num_failed: int
    accuracy: float | None
    recall_at_5: float | None
    loss: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round, its two sides kept apart by type; in secure mode the second is absent."""

    released: Released
    diagnostics: Diagnostics | None


_LOG = logging.getLogger(__name__)
# Rounds of a run that state an ε, besides its last: enough to draw its curve.
_MOST_ACCOUNTED = 20


class Runnable(Protocol):
    """What a run is made of, federated or centralised."""

    @property
    def task(self) -> Learnable:
        """Who is drawn from, and where the params start."""
        ...

    @property
    def plan(self) -> Plan:
        """The promise."""
        ...

    @property
    def bound(self) -> Bound:
        """What bounds each contribution, before a round's preconditioner is put into it."""
        ...

    @property
    def round(self) -> Round:
        """The server's half of a round."""
        ...


class Learnable(Protocol):
    """What the loop asks of a task."""

    @property
    def roster(self) -> tuple[str, ...]:
        """The frozen ids."""
        ...

    def init_params(self, key: Key) -> Params:
        """Return the params before the first round."""
        ...


class _Unrecorded:
    """Counts charges where no run folder is kept, as in studies that only want the figures."""

    def __init__(self, components: Runnable) -> None:
        self._plan, self.charges = components.plan, 0

    def attempts(self, round_num: int) -> int:
        return 0

    def charge(self, round_num: int, attempt: int) -> None:
        self.charges += 1


def rounds(
    components: Runnable,
    backend: Backend,
    root: Key,
    *,
    folder: RunFolder | None = None,
    state: ServerState | None = None,
    eval_every: int = 10,
) -> Generator[tuple[RoundRecord, ServerState], None, None]:
    """Run a plan to its end and yield every released round.

    Args:
        components: Of the experiment.
        backend: Brings the private work to the users.
        root: The root key; cohort, noise, users and initial params fold their own from it.
        folder: Where the run is kept; None keeps nothing (and survives nothing).
        state: The last released state of a resumed run; None starts at the beginning.
        eval_every: Rounds between evaluations; the last is always evaluated.

    Guarantees:
        * A round is charged, and the charge synced when there is a folder, before its cohort and
          its noise are drawn.
        * A lost attempt has used up one of the plan's `num_rounds` charges; the next attempt has
          a new cohort and new noise. ε never exceeds the plan's.

    Raises:
        KeyboardInterrupt: After Ctrl-C at any moment, even one that compiled code dropped; what was
            released is kept, and no user's contribution is left out because of it.
    """
    ledger = folder.ledger if folder is not None else _Unrecorded(components)
    if state is None:
        state = first_state(components, root)
    with interruptible(), ThreadPoolExecutor(1, thread_name_prefix="noise") as beside:
        yield from _rounds(components, backend, root, ledger, folder, state, eval_every, beside)


def _rounds(
    components: Runnable,
    backend: Backend,
    root: Key,
    ledger: Ledger | _Unrecorded,
    folder: RunFolder | None,
    state: ServerState,
    eval_every: int,
    beside: Executor,
) -> Iterator[tuple[RoundRecord, ServerState]]:
    plan, simulated = components.plan, root.mode == "simulation"
    accounted = accounted_rounds(plan, eval_every)
    for count in sorted(accounted):
        if count > ledger.charges:  # accounting keeps it; the loop asks again, for nothing
            plan.epsilon(count)
    free_memory()
    warned = False
    while plan.affords(ledger.charges):
        stop_if_asked()
        started = time.perf_counter()
        round_num = state.round_num + 1
        attempt = ledger.attempts(round_num) + 1
        ledger.charge(round_num, attempt)
        last = not plan.affords(ledger.charges)
        due = round_num % eval_every == 0 or last
        # The attempt is paid for: its noise may be drawn while users train.
        drawing = beside.submit(
            components.round.noise, state.params, _key(root, "noise", round_num, attempt)
        )
        context, state = components.round.begin(state, _key(root, "guide", round_num, attempt))
        cohort = plan.sampler.cohort(
            _key(root, "cohort", round_num, attempt), components.task.roster
        )
        total = backend.partial_sum(
            params=state.params,
            bound=context.bound(components.bound),
            cohort=cohort,
            key=_key(root, "users", round_num, attempt),
            round_num=round_num,
            attempt=attempt,
        )
        num_failed = total.num_failed
        if simulated and not warned and mostly_failed(num_failed, len(cohort)):
            warned = True
            _LOG.warning(
                "round %d: %d of %d drawn %ss failed and contribute zero; what this run learns is "
                "mostly noise",
                round_num,
                num_failed,
                len(cohort),
                plan.unit,
            )
        state = components.round.next(state, total, drawing.result(), context)
        del total, drawing
        if folder is not None:
            folder.keep(state, attempt)
        seconds = time.perf_counter() - started
        public = roster = None
        if due:
            public = backend.evaluate(released_params(state), public=True)
            if simulated:
                roster = backend.evaluate(released_params(state), public=False)
        wanted = plan.is_private and (round_num in accounted or last)
        spent = plan.epsilon(ledger.charges) if wanted else None
        record = RoundRecord(
            released=_released(state, attempt, plan, spent, public),
            diagnostics=Diagnostics(
                round_num=round_num,
                attempt=attempt,
                cohort_size=len(cohort),
                num_failed=num_failed,
                accuracy=roster and roster.accuracy,
                recall_at_5=roster and roster.recall_at_5,
                loss=roster and roster.loss,
                seconds=seconds,
            )
            if simulated
            else None,
        )
        if folder is not None:
            seen = record.diagnostics
            folder.record(as_json(record.released), None if seen is None else as_json(seen))
        yield record, state


def accounted_rounds(plan: Plan, eval_every: int) -> frozenset[int]:
    """Return the rounds that state an ε: those evaluated, thinned to about twenty, and the last.

    They are accounted before the first round. Each price is a Fourier transform of a length of its
    own, whose tables stay in memory; accounted on the way, a long run would grow by them.
    """
    if not plan.is_private:
        return frozenset()
    evaluated = range(eval_every, plan.affordable_rounds + 1, eval_every)
    thinned = evaluated[:: -max(1, math.ceil(len(evaluated) / _MOST_ACCOUNTED))]
    return frozenset({*thinned, plan.affordable_rounds} - {0})


def _released(
    state: ServerState,
    attempt: int,
    plan: Plan,
    spent: Epsilon | None,
    public: Metrics | None,
) -> Released:
    return Released(
        round_num=state.round_num,
        attempt=attempt,
        epsilon=spent and spent.value,
        delta=plan.delta if plan.is_private else None,
        accuracy_public=public and public.accuracy,
        recall_at_5_public=public and public.recall_at_5,
        update_norm=state.update_norm,
    )


def _key(root: Key, stream: str, round_num: int, attempt: int) -> Key:
    return root.fold(stream).fold(round_num).fold(attempt)


def first_state(components: Runnable, root: Key) -> ServerState:
    """Return the state before round 1."""
    return components.round.init(components.task.init_params(root.fold("init")))


def released_params(state: ServerState) -> Params:
    """Return the params that a run stands for: the checkpoint aggregate where there is one."""
    return state.aggregate.get("average", state.params)


def as_json(record: Released | Diagnostics) -> dict[str, Any]:
    """Return a record's fields by name; JSON has no NaN, so a figure that diverged is None."""
    values = {name: getattr(record, name) for name in record.__slots__}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
