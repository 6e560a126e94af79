"""The door to private data: the one object through which every method asks of users.

Each answer is made in the same steps: the plan admits it, the ledger is charged and synced, the
cohort and the noise are drawn, the backend returns one raw sum, the privatizer makes the answer of
the two. The raw sum lives in one local variable, or within a `with`, and dies there. Raw sums that
outlive one answer (held within a `with`, or seen by a program) print as nothing, and neither copy
nor travel; what may be done with one goes back to the door.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from threading import Lock
from typing import Any

import numpy as np

from fedpriv.backends.backend import Backend
from fedpriv.mechanisms.bounds import Bound
from fedpriv.mechanisms.privatizer import Draw, Privatizer
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import AnyPlan
from fedpriv.rng import Key
from fedpriv.runs.attendance import Attendance
from fedpriv.runs.crash_rules import RULES, Charged, Retry
from fedpriv.runs.secret_state import COHORTS, SecretState
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import Held, Program, RawSums, SumRequest
from fedpriv.training.bounded_sum import template_with
from fedpriv.training.independence import differs, keeps_state
from fedpriv.training.work import Attempt, Work, find_work
from fedpriv.tree import Params

_KNOWN = "ledger"  # in a sampler's memory: the last row or charge that it knows of
_PRIVATE_STREAMS = frozenset({"cohort", "noise", "users", "vault", "program"})


class RunDoor:
    """The door of one run. A `fedpriv.training.algorithm.Door`.

    Guarantees:
        * Nothing is drawn, and no raw sum is made, before its charge is on the ledger.
        * A row of noise with memory meets one sum: one that a crash left open is never drawn
          again, and its users stay counted as having taken part.
        * A release that is done again after a crash ("replay") is the identical one.
        * The answer is all that leaves; sizes of cohorts and failures leave in `attendance`
          alone.

    Args:
        plan: What is paid for.
        ledger: Where it is charged.
        backend: Brings work to the users.
        works: Works by name, for the shapes of their sums.
        roster: The frozen ids.
        root: The run's root key, of public choices.
        noise: The root key of all private draws (`fedpriv.runs.noise_root`).
        named: Mechanisms that requests bring, one of each kind (`Algorithm.mechanisms`).
        exact: Whether the run's ε is stated as that of real arithmetic
            (`fedpriv.training.algorithm.is_exact`); with a secure key answers that have noise or
            sums in floating point are then refused.
        secret_state: The run's secret state.
        noise_thread: Draws noise while users train.
        attendance: Counts who was drawn and who failed; in secure mode there is none.
        dropout_rate: Share of drawn users who simulate not answering (`_present`).
    """

    def __init__(
        self,
        *,
        plan: AnyPlan,
        ledger: Ledger,
        backend: Backend,
        works: Mapping[str, Work],
        roster: Sequence[str],
        root: Key,
        secret_state: SecretState,
        noise_thread: Executor,
        noise: Key,
        attendance: Attendance | None = None,
        named: Sequence[Mechanism] = (),
        exact: bool = False,
        dropout_rate: float = 0.0,
    ) -> None:
        self._dropout_rate = dropout_rate
        self._plan, self._ledger, self._backend = plan, ledger, backend
        self._works, self._roster, self._root = works, roster, root
        self._named = named
        self._exact = exact and root.mode == "secure"
        self._secret_state, self._noise_thread = secret_state, noise_thread
        self._attendance = attendance
        self._rules = {n: rule(ledger, secret_state, noise) for n, rule in RULES.items()}
        self._round_num = 0
        self._asked: set[str] = set()
        self._inside = False  # whether a program runs, which sees raw sums
        self._one_at_a_time = Lock()

    @property
    def round_num(self) -> int:
        """The round under way, from 1."""
        return self._round_num

    def begin(self, round_num: int) -> None:
        """Open a round: what is asked from now on belongs to it."""
        self._round_num, self._asked = round_num, set()
        self._open_answer()

    @property
    def rho_left(self) -> float:
        """ρ that an adaptive plan has not spent yet; infinite for a fixed plan."""
        return self._plan.left(self._ledger.state.spent)

    def key(self, stream: str) -> Key:
        """Return a key of this round's coming attempt for public choices."""
        if stream in _PRIVATE_STREAMS:
            raise ValueError(f"stream {stream!r} is secret; private data are drawn by it")
        attempt = self._ledger.attempts(self._round_num) + 1
        return self._root.fold(stream).fold(self._round_num).fold(attempt)

    def ask(self, request: SumRequest) -> Any:
        """Return the answer to a request; see `fedpriv.training.algorithm.Door`."""
        mechanism = self._plan.mechanism_for(request.name, request.mechanism)
        charged = self._charge(request.name, mechanism)
        drawing = self._drawing(request, mechanism, charged)
        total = self._sum(request, mechanism, charged)
        self._check_not_all_failed()
        self._rule(mechanism).check_sum(request.name, charged, total)
        return mechanism.release(total, drawing.result())

    @contextmanager
    def hold(self, request: SumRequest) -> Generator[Held]:
        """Ask for a sum, and hold it within the `with` for further answers.

        Raises:
            ValueError: If the answer is a row of noise with memory: no two rows meet one sum. If
                the cohort is drawn: amplification is earned once a cohort, and each answer is
                charged as if its cohort were new.
        """
        mechanism = self._plan.mechanism_for(request.name, request.mechanism)
        if mechanism.event.is_sampled:
            raise ValueError(
                "a sum over a drawn cohort cannot be answered twice: amplification is earned once "
                "a cohort; let everybody take part (Everybody)"
            )
        _refuse_twice(mechanism.privatizer)
        charged = self._charge(request.name, mechanism)
        drawing = self._drawing(request, mechanism, charged)
        total = self._sum(request, mechanism, charged)
        self._check_not_all_failed()
        answer = mechanism.release(_copy_sum(total), drawing.result())

        numbers = count(2)

        def again(privatizer: Privatizer) -> Any:
            _refuse_twice(privatizer)
            more = replace(request, name=f"{request.name} again {next(numbers)}")
            other = replace(mechanism, privatizer=privatizer)
            drawing = self._drawing(more, other, self._charge(more.name, other))
            return other.release(_copy_sum(total), drawing.result())

        held = Held(answer, again)
        try:
            yield held
        finally:
            held.close()

    def run(self, request: SumRequest, program: Program) -> Any:
        """Return the one answer of a program of many passes, each over the request's users."""
        mechanism = self._plan.mechanism_for(request.name, request.mechanism)
        charged = self._charge(request.name, mechanism)
        drawing = self._drawing(request, mechanism, charged)
        cohort = self._cohort(request, mechanism, charged)  # one a charge, however many passes

        def one(asked: SumRequest, bound: Bound | None, among: Sequence[int] | None) -> PartialSum:
            asked = replace(asked, name=request.name, mechanism=request.mechanism)
            users = cohort if among is None else tuple(cohort[place] for place in among)
            return self._sum(asked, mechanism, charged, bound=bound, cohort=users)

        self._open_answer()
        raw = RawSums(one, charged.key("program", request.name).fold, len(cohort))
        self._inside = True
        try:
            total = program(raw)
        finally:
            self._inside = False
            raw.close()
        self._check_not_all_failed()
        self._rule(mechanism).check_sum(request.name, charged, total)
        if math.isinf(total.l2_bound):  # a result, and none of the program's raw sums
            total = replace(total, l2_bound=mechanism.l2_bound)
        return mechanism.release(total, drawing.result())

    def _rule(self, mechanism: Mechanism) -> Retry:
        return self._rules[mechanism.privatizer.after_crash]

    def _charge(self, name: str, mechanism: Mechanism) -> Charged:
        """Spend what an answer costs, and return the numbers under which it is drawn."""
        with self._one_at_a_time:
            self._admit(name, mechanism)
            self._prepare(name, mechanism)
            return self._rule(mechanism).charge(self._round_num, name, mechanism)

    def _admit(self, name: str, mechanism: Mechanism) -> None:
        """Refuse a question for which another one has paid.

        Raises:
            ValueError: If the round has asked this name already: a release that is replayed draws
                the noise of its name again, and of two sums under one noise the difference is
                bare. If noise is drawn again after a crash, or one charge pays for a whole run, and
                this is not the plan's mechanism: its event tells neither bound nor sampler. If it
                has user-defined parts of which statements would not tell.
        """
        if self._inside:
            raise ValueError(
                f"{name!r} is asked from within a program: what it sees is raw, and what is asked "
                "is public; end the program, and ask then"
            )
        if name in self._asked:
            raise ValueError(
                f"round {self._round_num} has asked {name!r} already; give another question a "
                "name of its own, and have the next round ask this one again"
            )
        self._asked.add(name)
        if self._exact and not mechanism.is_exact:
            raise ValueError(
                f"query {name!r}: the run's ε is that of real arithmetic, and this answer has "
                "noise in floating point; bound it on a grid (Rounded) and add Gaussian noise"
            )
        plan, kept = self._plan, mechanism.privatizer.after_crash != "retry"
        if mechanism is plan.mechanism:
            return
        if plan.charged_once or kept:
            raise ValueError(
                f"query {name!r}: {mechanism.privatizer.name} noise of another mechanism than the "
                "plan's: what is drawn again after a crash, or row after row, serves that one's "
                "bound and sampler alone; leave the query's mechanism out"
            )
        if mechanism.user_defined and _kinds(mechanism) not in map(_kinds, self._named):
            raise ValueError(
                f"query {name!r} brings {', '.join(mechanism.user_defined)}, which the algorithm's "
                "mechanisms() do not name, and statements would not; return one such mechanism "
                "there"
            )

    def _prepare(self, name: str, mechanism: Mechanism) -> None:
        """Have secret state on the disk before the first charge that needs it; miss it later.

        Raises:
            ValueError: If it is gone: noise would go on with another key, or a limit of
                participation be counted from zero.
        """
        fresh = not self._ledger.state.knows_query(name)
        renew = self._ledger.charges == 0
        self._rule(mechanism).prepare(name, fresh=fresh, renew=renew)
        first = mechanism.sampler.init()
        if not first:
            return
        if fresh:
            self._secret_state.remember(f"{COHORTS}-{name}", {**first, _KNOWN: np.array([0])})
        memory, released = self._secret_state.recall(f"{COHORTS}-{name}"), self._last_released(name)
        known = -1 if memory is None else int(memory[_KNOWN][0])
        if known < released:
            raise ValueError(
                f"the secret record of who took part in {name!r} "
                f"{'is gone' if memory is None else f'knows of {known} of {released} releases'}: "
                "restore the folder's newest secret/, or start a new run (participation is "
                "limited, and the limit is what the plan's ε rests on)"
            )

    def _last_released(self, name: str) -> int:
        """Return the last row, or else charge of a query, of which a result was released; or 0."""
        state = self._ledger.state
        if not state.releases or state.rows:
            return state.releases[-1].attempt if state.releases else 0
        numbers = range(state.charged_before[-1], 0, -1)
        return next((n for n in numbers if state.charges[n - 1].query == name), 0)

    def _drawing(self, request: SumRequest, mechanism: Mechanism, charged: Charged) -> Future[Draw]:
        """Start to draw what is added to the coming sum; nothing of it depends on the sum."""
        template = self._template(request, mechanism.bound)
        draw = self._rule(mechanism).draw
        return self._noise_thread.submit(draw, mechanism, template, charged, request.name)

    def _template(self, request: SumRequest, bound: Bound) -> Params:
        """Return names and shapes of a sum."""
        own = find_work(self._works, request.work).template(request)
        return template_with(own, bound, request.context.clip_norm)

    def _sum(
        self,
        request: SumRequest,
        mechanism: Mechanism,
        charged: Charged,
        *,
        bound: Bound | None = None,
        cohort: tuple[str, ...] | None = None,
    ) -> PartialSum:
        """Return the raw sum over a cohort, drawn here or before. It must not leave this module."""
        if cohort is None:
            self._open_answer()
            cohort = self._cohort(request, mechanism, charged)
        key = charged.key("users", request.name)
        bound = mechanism.bound if bound is None else bound
        attempt = Attempt(
            bound=bound,
            key=key,
            round_num=charged.round_num,
            number=charged.number,
            template=self._template(request, bound),
        )
        present = self._present(cohort, key)
        user = self._trained_again(present, key)
        before = None if user is None else self._backend.sum(request, attempt, (user,))
        total = self._backend.sum(request, attempt, present)
        if before is not None and user is not None:
            after = self._backend.sum(request, attempt, (user,))
            whole = bound.granularity is not None
            failed = before.num_failed or after.num_failed  # for a reason that may be of the moment
            if not failed and differs(before.total, after.total, whole=whole):
                raise keeps_state(f"work {request.work!r}")
        if self._attendance is not None:
            self._attendance.note(len(cohort), total)
        return replace(total, l2_bound=bound.l2_bound)

    def _trained_again(self, present: Sequence[str], key: Key) -> str | None:
        """Return the user that is trained alone before a sum and after it; None for no one.

        In a simulation, in rounds 1, 2, 4, 8, … and the last planned: what users keep where no copy
        of module and loss reaches shows late, when a counter or a cache has filled. Of a secure run
        none is: whether it ends would depend on who was drawn.
        """
        number, plan = self._round_num, self._plan
        due = number & (number - 1) == 0 or number == plan.planned_rounds
        if not due or self._inside or key.mode != "simulation" or plan.unit != "user":
            return None
        if not present or not self._backend.trains_again:
            return None
        return present[int(key.fold("trained again").generator().integers(len(present)))]

    def _present(self, cohort: tuple[str, ...], key: Key) -> tuple[str, ...]:
        """Return the users who do not drop out; by independent Bernoulli draws.

        Who drops out contributes zero and has taken part: charge, cohort and denominator stay.
        """
        rate = self._dropout_rate
        if rate == 0.0:
            return cohort
        draws = key.fold("dropout")
        return tuple(u for u in cohort if draws.fold(u).generator().random() >= rate)

    def _open_answer(self) -> None:
        if self._attendance is not None:
            self._attendance.begin()

    def _check_not_all_failed(self) -> None:
        """End a simulation in which all who were drawn for an answer failed."""
        if self._attendance is not None:
            self._attendance.end_if_all_failed(self._round_num, self._plan.unit)

    def _cohort(
        self, request: SumRequest, mechanism: Mechanism, charged: Charged
    ) -> tuple[str, ...]:
        sampler, name = mechanism.sampler, f"{COHORTS}-{request.name}"
        memory = dict(self._secret_state.recall(name) or sampler.init())
        memory.pop(_KNOWN, None)
        cohort, memory = sampler.next(memory, charged.key("cohort", request.name), self._roster)
        # A user who was drawn has taken part, whatever becomes of the attempt.
        if memory:
            number = self._ledger.rows or self._ledger.charges
            memory = {**memory, _KNOWN: np.array([number])}
        self._secret_state.remember(name, memory)
        return cohort


def _kinds(mechanism: Mechanism) -> tuple[type, ...]:
    """Return the classes of a mechanism's parts."""
    return type(mechanism.sampler), type(mechanism.bound), type(mechanism.privatizer)


def _refuse_twice(privatizer: Privatizer) -> None:
    """Refuse noise with memory, or that is replayed, for a sum that is held.

    Raises:
        ValueError: If it is such.
    """
    if privatizer.after_crash != "retry":
        raise ValueError(f"{privatizer.name} noise cannot answer one sum twice; ask for it")


def _copy_sum(total: PartialSum) -> PartialSum:
    """Return a sum that a privatizer may use up while the raw one is still held."""
    return replace(
        total,
        total={
            name: tensor.copy() if isinstance(tensor, np.ndarray) else tensor
            for name, tensor in total.total.items()
        },
    )
