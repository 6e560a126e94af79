"""The visible loop: charge, draw, send, sum, noise, step, keep; one record a round.

There are no callbacks that change what happens. Progress bars, plots and reports read the records.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from fedpriv.backends import Backend
from fedpriv.experiments.experiment import Components
from fedpriv.measures import figures_of
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import BudgetSpentError
from fedpriv.privacy.plan import AnyPlan
from fedpriv.privacy.statement.stated import round_values
from fedpriv.rng import Key
from fedpriv.runs.attendance import Attendance
from fedpriv.runs.door import RunDoor
from fedpriv.runs.folder import RunFolder, UnkeptRun
from fedpriv.runs.noise_root import noise_root, unkept_noise_root
from fedpriv.runs.records import (
    Diagnostics,
    Released,
    RoundRecord,
    figures_as_json,
    measured,
    record_to_json,
)
from fedpriv.runs.secret_state import COHORTS, REPLAY, STREAM, SecretState
from fedpriv.training.algorithm import ArrayState, is_exact
from fedpriv.training.devices import free_memory
from fedpriv.training.stopping import interruptible, stop_if_asked
from fedpriv.training.work import as_works
from fedpriv.tree import Params, read_only_copy

# Counts of charges that are priced, besides the last: enough to draw a curve of ε.
_MOST_ACCOUNTED = 20


def rounds(
    components: Components,
    backend: Backend,
    root: Key,
    *,
    folder: RunFolder | UnkeptRun | None = None,
    state: ArrayState | None = None,
    eval_every: int = 10,
    noise: Key | None = None,
    ends_if_all_fail: bool = True,
) -> Generator[tuple[RoundRecord, Any], None, None]:
    """Run a plan to its end and yield every released round.

    Where only a refused charge, or an algorithm with nothing left to ask, says that a run is over,
    its last round has been yielded by then: it is yielded again, evaluated and with the exact ε.
    The ledger says that the run has ended; resumed, it is charged no further.

    Args:
        components: Of the run.
        backend: Brings the private work to the users.
        root: The root key; initial params and public choices are folded from it.
        folder: Where the run is kept; None for an `UnkeptRun`.
        state: The last released state of a resumed run; None starts at the beginning.
        eval_every: Rounds between evaluations; the last is always evaluated.
        noise: The root key of the noise; None for the one of the folder's ledger or, in memory, of
            these components (`fedpriv.runs.noise_root`).
        ends_if_all_fail: Whether a simulation ends where all who were drawn failed; a sweep goes
            on, in which settings that diverge are a result.

    Yields:
        The record of a round, and the state after it.

    Guarantees:
        * An answer is charged, and the charge synced when there is a folder, before its cohort and
          its noise are drawn.
        * A lost attempt stays spent; the next attempt has a new cohort and new noise. ε never
          exceeds the plan's.

    Raises:
        AllUsersFailedError: In a simulation, if all users that were drawn for an answer failed; in
            a secure run that is neither said nor acted upon, for it is covered by no ε.
        KeyboardInterrupt: After Ctrl-C at any moment, even one that compiled code dropped; what was
            released is kept, and no user's contribution is left out because of it.
        ValueError: If the folder says that the run is hardened, and these components are not; or
            if a simulation's ledger has no digest of what is trained.
    """
    plan = components.plan
    exact = is_exact(plan, components.algorithm)
    if state is None:
        state = first_state(components, root)
    if folder is None:
        folder = UnkeptRun(plan, root.mode)
        noise = unkept_noise_root(root, components, state.params) if noise is None else noise
    if folder.is_hardened and not exact:
        # A plan in a file does not tell a bound on a grid from one that is not.
        raise ValueError(
            f"{folder.path} holds a run whose sums and noise are of whole numbers, and its ε is "
            "stated as that; these would go on in floating point: give the bound (Rounded) and the "
            "privatizer that it was started with"
        )
    if noise is None:
        noise = noise_root(root, folder.ledger.extra)
    ledger, attendance = folder.ledger, None
    if root.mode == "simulation":
        attendance = Attendance(ends=ends_if_all_fail, has_learnt=state.round_num > 0)
    backend = backend.under(components.plan_sha256)
    secret_state = SecretState(folder.path and folder.path / "secret", noise)
    loop = _Loop(
        components=components,
        backend=backend,
        folder=folder,
        attendance=attendance,
        eval_every=eval_every,
    )
    _forget_secrets_if_over(ledger, secret_state)  # what a kill left
    with interruptible(), ThreadPoolExecutor(1, thread_name_prefix="noise") as noise_thread:
        door = RunDoor(
            plan=plan,
            ledger=ledger,
            backend=backend,
            works=as_works(components.trainer),
            roster=components.task.roster,
            root=root,
            noise=noise,
            secret_state=secret_state,
            noise_thread=noise_thread,
            attendance=attendance,
            named=components.algorithm.mechanisms(),
            exact=exact,
            dropout_rate=components.dropout_rate,
        )
        with closing(loop.play(door, state)) as played:
            for found in played:
                _forget_secrets_if_over(ledger, secret_state)
                yield found
        _forget_secrets_if_over(ledger, secret_state)  # of a run that ends without another release


def _forget_secrets_if_over(ledger: Ledger, secret_state: SecretState) -> None:
    """Delete the run's secret state once its last release is on the ledger."""
    if not ledger.pays_for_more and not ledger.state.unreleased:
        for name in (REPLAY, STREAM, COHORTS):
            secret_state.forget(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """The loop of one run; fields as of `rounds`."""

    components: Components
    backend: Backend
    folder: RunFolder | UnkeptRun
    attendance: Attendance | None
    eval_every: int

    def play(
        self, door: RunDoor, state: ArrayState
    ) -> Generator[tuple[RoundRecord, Any], None, None]:
        """Yield the rounds after a state, as `rounds` does."""
        plan, ledger, folder = self.components.plan, self.folder.ledger, self.folder
        for count in accounted_rounds(plan, self.eval_every):
            if count > ledger.charges:  # accounting keeps it; the loop asks again, for nothing
                plan.epsilon(count)
        free_memory()
        # A charged release of a fixed plan that was cut off is made again.
        open_ = plan.replays and bool(ledger.state.unreleased) and ledger.state.ended is None
        record = None
        while ledger.pays_for_more or open_:
            open_ = False
            stop_if_asked()
            started = time.perf_counter()
            round_num = state.round_num + 1
            door.begin(round_num)
            following = self._step(state, door)
            if following is None:
                break
            state = following
            due = round_num % self.eval_every == 0 or not ledger.pays_for_more
            if self.attendance is not None:
                self.attendance.warn_once(round_num, plan.unit)
            folder.keep(state)
            record = self._record(state, due, time.perf_counter() - started)
            seen = record.diagnostics
            folder.record(
                record_to_json(record.released), None if seen is None else record_to_json(seen)
            )
            yield record, state
        if ledger.state.ended is not None and state.round_num:
            record = self._complete_last_round(state, record)
            if record is not None:
                yield record, state

    def _step(self, state: ArrayState, door: RunDoor) -> ArrayState | None:
        """Return the state after one more step; None where the run is over and the ledger says so.

        Raises:
            BudgetSpentError: If a plan refuses a charge that it had counted on.
            ValueError: If the step returned the state of another round.
        """
        try:
            following = self.components.algorithm.step(state, door)
        except BudgetSpentError:
            if self.components.plan.planned_rounds is not None:
                raise
            # What an adaptive plan has left does not pay for the answer.
            self.folder.ledger.end("refused")
            return None
        if following is None:
            self.folder.ledger.end("finished")
            return None
        if following.round_num != door.round_num:
            raise ValueError(
                f"the step of round {door.round_num} returned a state of round "
                f"{following.round_num}; a step advances round_num by one, or returns None at its "
                "end"
            )
        return following

    def _record(self, state: ArrayState, due: bool, seconds: float) -> RoundRecord:
        """Return the record of a round, evaluated where that is due.

        Its ε is the price of the first of the accounted counts that its charges do not exceed.
        """
        plan, ledger = self.components.plan, self.folder.ledger
        algorithm = self.components.algorithm
        params = algorithm.measured(state) if due else None
        counted = accounted_charges(plan, self.eval_every, ledger.charges)
        released = Released(
            round_num=state.round_num,
            attempt=ledger.last_attempt,
            measured=self._measured(params, public=True),
            **round_values(plan, counted),
            update_norm=state.numbers.get("update_norm"),
            decided=algorithm.decided(state.numbers),
        )
        if self.attendance is None:
            return RoundRecord(released=released, diagnostics=None)
        diagnostics = Diagnostics(
            round_num=state.round_num,
            attempt=ledger.last_attempt,
            cohort_size=self.attendance.cohort_size,
            num_failed=self.attendance.num_failed,
            measured=self._measured(params, public=False),
            seconds=seconds,
            first_error=(self.attendance.first_error or "").partition("\n")[0] or None,
        )
        return RoundRecord(released=released, diagnostics=diagnostics)

    def _measured(self, params: Params | None, *, public: bool) -> Mapping[str, float | None]:
        """Return the measures of public or rostered users; None for each without params."""
        measures = self.components.task.measures
        found = None
        if params is not None:  # a diagnostic that writes into them would be released
            found = self.backend.evaluate(read_only_copy(params), public=public)
        return measured(figures_of(measures) if public else measures, found)

    def _complete_last_round(
        self, state: ArrayState, record: RoundRecord | None
    ) -> RoundRecord | None:
        """Evaluate the last round of a run that ended without notice, and write that down.

        Args:
            state: The last one.
            record: The last round's; None of a resumed run that had released it before.

        Returns:
            The completed record; None if it was complete, or there is none here to complete.
        """
        plan, ledger = self.components.plan, self.folder.ledger
        through = ledger.state.charged_before  # what was charged later is not in the last release
        num_charges = through[-1] if through else ledger.charges
        if record is not None:
            stated: Mapping[str, Any] = record_to_json(record.released)
        else:
            stated = self.folder.last_stated(state.round_num)
        figures = figures_of(self.components.task.measures)
        names = [measure.released_name for measure in figures]
        evaluated = not names or any(stated.get(name) is not None for name in names)
        spent = round_values(plan, num_charges)
        if evaluated and stated.get("epsilon") == spent["epsilon"]:
            return None
        params = self.components.algorithm.measured(state)
        public = self._measured(params, public=True)
        seen: Mapping[str, float | None] = {}
        if ledger.mode == "simulation":
            seen = self._measured(params, public=False)
        self.folder.complete(
            state.round_num,
            {**figures_as_json(public, "_public"), **spent},
            figures_as_json(seen),
        )
        if record is None:
            return None
        diagnostics = record.diagnostics
        return RoundRecord(
            released=replace(record.released, measured=public, **spent),
            diagnostics=None if diagnostics is None else replace(diagnostics, measured=seen),
        )


def accounted_rounds(plan: AnyPlan, eval_every: int) -> tuple[int, ...]:
    """Return the counts of charges that are priced, increasing: about twenty evaluated rounds.

    Of a plan of no more than twenty rounds it is every one. The last one that the plan pays for is
    among them. A round states the price of the least such count that is not below its own charges,
    which bounds its ε from above: ε never falls as charges are added. They are priced before the
    first round: each price is a Fourier transform of a length of its own, takes up to half a
    second, and leaves tables in memory, by which a long run that priced every round would grow.

    None of an adaptive plan, whose ε is one and the same from its first charge on.
    """
    affordable = plan.affordable_rounds
    if not plan.is_private or affordable is None:
        return ()
    every = 1 if affordable <= _MOST_ACCOUNTED else eval_every
    evaluated = range(every, affordable + 1, every)
    thinned = evaluated[:: -max(1, math.ceil(len(evaluated) / _MOST_ACCOUNTED))]
    return tuple(sorted({*thinned, affordable} - {0}))


def accounted_charges(plan: AnyPlan, eval_every: int, charges: int) -> int:
    """Return the least count of `accounted_rounds` that is not below the charges, or these."""
    accounted = accounted_rounds(plan, eval_every)
    place = bisect_left(accounted, charges)
    return accounted[place] if charges and place < len(accounted) else charges


def first_state(components: Components, root: Key) -> ArrayState:
    """Return the state before round 1."""
    return components.algorithm.init(components.init_params(root.fold("init")))
