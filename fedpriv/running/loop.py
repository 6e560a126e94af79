"""The visible loop: charge, draw, send, sum, noise, step, keep; one record a round.

There are no callbacks that change what happens. Progress bars, plots and reports read the records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fedpriv.backends import Backend
from fedpriv.measures import Measure, figures_of, recorded
from fedpriv.privacy.ledger.ledger import BudgetSpentError, Ledger
from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.rng import Key
from fedpriv.running.door.door import RunDoor
from fedpriv.running.door.turnout import Turnout
from fedpriv.running.door.vault import Vault
from fedpriv.running.folder import RunFolder
from fedpriv.training.algorithm import Algorithm
from fedpriv.training.allocator import free_memory
from fedpriv.training.evaluate import Metrics
from fedpriv.training.stopping import interruptible, stop_if_asked
from fedpriv.training.work import as_works
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
        measured: On users outside the roster, by the names of the task's measures; None where it
            was not evaluated.
        update_norm: l2 norm of the released mean update; None where no update is released.
    """

    round_num: int
    attempt: int
    epsilon: float | None
    delta: float | None
    measured: Mapping[str, float | None]
    update_norm: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """What only a simulation may see of a round. Not covered by any ε; absent in deployment.

    Attributes:
        round_num: From 1.
        attempt: From 1.
        cohort_size: Users drawn.
        num_failed: Drawn users that contributed zero because they failed.
        measured: On held-out examples of rostered users, by the names of the task's measures;
            None where it was not evaluated.
        seconds: Wall time of the round without evaluation.
    """

    round_num: int
    attempt: int
    cohort_size: int
    num_failed: int
    measured: Mapping[str, float | None]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round, its two sides kept apart by type; in secure mode the second is absent."""

    released: Released
    diagnostics: Diagnostics | None

    def figure(self, name: str) -> float | None:
        """Return a figure, of rostered users where it was diagnosed, or else the released one."""
        seen = None if self.diagnostics is None else self.diagnostics.measured.get(name)
        return self.released.measured.get(name) if seen is None else seen


# Rounds of a run that state an ε, besides its last: enough to draw its curve.
_MOST_ACCOUNTED = 20


class Runnable(Protocol):
    """What a run is made of, federated or centralised."""

    @property
    def task(self) -> Learnable:
        """Who is drawn from, and where the params start."""
        ...

    @property
    def plan(self) -> AnyPlan:
        """The promise, with the mechanism that keeps it."""
        ...

    @property
    def algorithm(self) -> Algorithm:
        """What is asked of private data, and what is made of the answers."""
        ...

    @property
    def trainer(self) -> Any:
        """What a user does, or works by name."""
        ...


class Learnable(Protocol):
    """What the loop asks of a task."""

    @property
    def measures(self) -> Sequence[Measure]:
        """What is measured, the headline first."""
        ...

    @property
    def roster(self) -> tuple[str, ...]:
        """The frozen ids."""
        ...

    def init_params(self, key: Key) -> Params:
        """Return the params before the first round."""
        ...


def rounds(
    components: Runnable,
    backend: Backend,
    root: Key,
    *,
    folder: RunFolder | None = None,
    state: Any = None,
    eval_every: int = 10,
) -> Generator[tuple[RoundRecord, Any], None, None]:
    """Run a plan to its end and yield every released round.

    Where only a refused charge, or an algorithm with nothing left to ask, says that a run is over,
    its last round has been yielded by then: it is yielded again, evaluated and with its ε. The
    ledger says that the run has ended; resumed, it is charged no further.

    Args:
        components: Of the experiment.
        backend: Brings the private work to the users.
        root: The root key; cohort, noise, users and initial params fold their own from it.
        folder: Where the run is kept; None keeps the same ledger in memory (and survives nothing).
        state: The last released state of a resumed run; None starts at the beginning.
        eval_every: Rounds between evaluations; the last is always evaluated.

    Yields:
        What is said of a round, and the state after it.

    Guarantees:
        * An answer is charged, and the charge synced when there is a folder, before its cohort and
          its noise are drawn.
        * A lost attempt stays spent; the next attempt has a new cohort and new noise. ε never
          exceeds the plan's.

    Raises:
        KeyboardInterrupt: After Ctrl-C at any moment, even one that compiled code dropped; what was
            released is kept, and no user's contribution is left out because of it.
    """
    plan = components.plan
    ledger = Ledger.in_memory(plan, mode=root.mode) if folder is None else folder.ledger
    if state is None:
        state = first_state(components, root)
    turnout = Turnout() if root.mode == "simulation" else None
    with interruptible(), ThreadPoolExecutor(1, thread_name_prefix="noise") as beside:
        door = RunDoor(
            plan=plan,
            ledger=ledger,
            backend=backend,
            works=as_works(components.trainer),
            roster=components.task.roster,
            root=root,
            vault=Vault(None if folder is None else folder.path / "secret", root),
            beside=beside,
            turnout=turnout,
        )
        yield from _rounds(components, backend, door, ledger, folder, state, eval_every, turnout)


def _rounds(
    components: Runnable,
    backend: Backend,
    door: RunDoor,
    ledger: Ledger,
    folder: RunFolder | None,
    state: Any,
    eval_every: int,
    turnout: Turnout | None,
) -> Iterator[tuple[RoundRecord, Any]]:
    plan, algorithm = components.plan, components.algorithm
    measures = recorded(components.task.measures)
    accounted = accounted_rounds(plan, eval_every)
    for count in sorted(accounted):
        if count > ledger.charges:  # accounting keeps it; the loop asks again, for nothing
            plan.epsilon(count)
    free_memory()
    open_ = door.must_replay and ledger.state.ended is None
    record, reason = None, ""
    while ledger.pays_for_more or open_:
        open_ = False
        stop_if_asked()
        started = time.perf_counter()
        round_num = state.round_num + 1
        door.begin(round_num)
        if turnout is not None:
            turnout.note(0, 0)
        try:
            following = algorithm.step(state, door)
        except BudgetSpentError:
            if plan.planned_rounds is not None:
                raise
            reason = "refused"  # what an adaptive plan has left does not pay for the next answer
            break
        if following is None:
            reason = "finished"
            break
        if following.round_num != round_num:
            raise ValueError(
                f"the step of round {round_num} returned a state of round {following.round_num}; "
                "a step advances round_num by one, or returns None at its end"
            )
        state = following
        last = not ledger.pays_for_more
        due = round_num % eval_every == 0 or last
        if turnout is not None:
            turnout.warn_once(round_num, plan.unit)
        if folder is not None:
            folder.keep(state)
        seconds = time.perf_counter() - started
        public = roster = None
        if due:
            released = algorithm.result(state)
            public = backend.evaluate(released, public=True)
            if turnout is not None:
                roster = backend.evaluate(released, public=False)
        stated = round_num in accounted or last or (due and plan.planned_rounds is None)
        wanted = plan.is_private and stated
        record = RoundRecord(
            released=_released(state, plan, ledger, wanted, measured(figures_of(measures), public)),
            diagnostics=Diagnostics(
                round_num=round_num,
                attempt=ledger.last_attempt,
                cohort_size=turnout.cohort_size,
                num_failed=turnout.num_failed,
                measured=measured(measures, roster),
                seconds=seconds,
            )
            if turnout is not None
            else None,
        )
        if folder is not None:
            seen = record.diagnostics
            folder.record(as_json(record.released), None if seen is None else as_json(seen))
        yield record, state
    if reason:
        ledger.end(reason)
    if ledger.state.ended is not None and state.round_num:
        record = _ending(components, backend, ledger, folder, state, record)
        if record is not None:
            yield record, state


def _ending(
    components: Runnable,
    backend: Backend,
    ledger: Ledger,
    folder: RunFolder | None,
    state: Any,
    record: RoundRecord | None,
) -> RoundRecord | None:
    """Evaluate the last round of a run that ended without notice, and write that down.

    Args:
        components: Of the experiment.
        backend: Evaluates.
        ledger: Of the run, ended.
        folder: Of the run, or None.
        state: The last one.
        record: The last round's; None of a resumed run that had released it before.

    Returns:
        The completed record; None if it was complete, or there is none here to complete.
    """
    plan, measures = components.plan, components.task.measures
    if record is not None:
        epsilon = record.released.epsilon
    else:
        epsilon = None if folder is None else folder.last_stated(state.round_num).get("epsilon")
    if epsilon is not None:  # it is stated where a round is evaluated
        return None
    params, figures = components.algorithm.result(state), figures_of(recorded(measures))
    public = measured(figures, backend.evaluate(params, public=True))
    seen = None
    if ledger.mode == "simulation":
        seen = measured(recorded(measures), backend.evaluate(params, public=False))
    through = ledger.state.charged_before  # what was charged later is not in the last release
    num_charges = through[-1] if through else ledger.charges
    epsilon = plan.epsilon(num_charges).value if plan.is_private else None
    if folder is not None:
        folder.complete(
            state.round_num,
            {**_by_name(public, "_public"), "epsilon": epsilon},
            _by_name(seen or {}, ""),
        )
    if record is None:
        return None
    diagnostics = record.diagnostics
    return RoundRecord(
        released=replace(record.released, measured=public, epsilon=epsilon),
        diagnostics=None if diagnostics is None else replace(diagnostics, measured=seen or {}),
    )


def accounted_rounds(plan: AnyPlan, eval_every: int) -> frozenset[int]:
    """Return the rounds that state an ε: those evaluated, thinned to about twenty, and the last.

    None of an adaptive plan, whose ε is one and the same from its first charge on. The others are
    accounted before the first round. Each price is a Fourier transform of a length of its
    own, whose tables stay in memory; accounted on the way, a long run would grow by them.
    """
    affordable = plan.affordable_rounds
    if not plan.is_private or affordable is None:
        return frozenset()
    evaluated = range(eval_every, affordable + 1, eval_every)
    thinned = evaluated[:: -max(1, math.ceil(len(evaluated) / _MOST_ACCOUNTED))]
    return frozenset({*thinned, affordable} - {0})


def _released(
    state: Any,
    plan: AnyPlan,
    ledger: Ledger,
    wanted: bool,
    public: Mapping[str, float | None],
) -> Released:
    spent = ledger.plan.epsilon(ledger.charges) if wanted else None
    return Released(
        round_num=state.round_num,
        attempt=ledger.last_attempt,
        epsilon=spent and spent.value,
        delta=plan.delta if plan.is_private else None,
        measured=public,
        update_norm=update_norm(state),
    )


def update_norm(state: Any) -> float | None:
    """Return the l2 norm of the last released update, of algorithms that release updates."""
    return getattr(state, "update_norm", None)


def first_state(components: Runnable, root: Key) -> Any:
    """Return the state before round 1."""
    return components.algorithm.init(components.task.init_params(root.fold("init")))


def measured(measures: Sequence[Measure], found: Metrics | None) -> Mapping[str, float | None]:
    """Return the figures of these measures by name; None for what was not measured."""
    return {measure.name: found and found.get(measure.name) for measure in measures}


def as_json(record: Released | Diagnostics) -> dict[str, Any]:
    """Return a record's fields by name, and its figures by theirs.

    JSON has no NaN, so a figure that diverged is None.
    """
    suffix = "_public" if isinstance(record, Released) else ""
    values: dict[str, Any] = {}
    for name in record.__slots__:
        if name == "measured":
            values |= _by_name(record.measured, suffix)
        else:
            values |= _by_name({name: getattr(record, name)}, "")
    return values


def _by_name(values: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    return {
        f"{name}{suffix}": None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
