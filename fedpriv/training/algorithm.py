"""An algorithm: what it asks of private data, and what it makes of the answers.

An algorithm never sees a user. It holds a *door*, asks queries through it, and gets answers that
may be released; everything it does with them is post-processing. Its state is a value: what a step
returns is all that the next step, or a resumed run, starts from.

    state = algorithm.init(params)
    while (following := algorithm.step(state, door)) is not None:
        state = following
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from fedpriv.mechanisms.bounds import Bound
from fedpriv.mechanisms.preconditioners import RoundContext
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.privacy.ledger.entries import UPDATE
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.privacy.plans.plan import Plan
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.work import TRAIN
from fedpriv.tree import Params

_NO_CONTEXT = RoundContext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One question to private data. All of it is public.

    Attributes:
        params: What the work is done with: the released params, and further public tensors.
        work: Name of the work, which workers and nodes look up in their own experiment.
        mechanism: Who is drawn, how each is bounded, what is added; None takes a fixed plan's.
        context: What is public about the round: a preconditioner inside the bound.
        name: What the ledger calls it; a round may ask each name once.
    """

    params: Params = field(repr=False)
    work: str = TRAIN
    mechanism: Mechanism | None = None
    context: RoundContext = _NO_CONTEXT
    name: str = UPDATE


class Held(Protocol):
    """A raw sum that was answered once and may be answered again, at a price, while it is held."""

    @property
    def answer(self) -> Any:
        """The first answer."""
        ...

    def release(self, privatizer: Privatizer) -> Any:
        """Return another answer of the same sum, charged for itself.

        Raises:
            BudgetSpentError: If the plan does not pay for it.
            ValueError: If the sum is not held any more.
        """
        ...


class RawSums(Protocol):
    """What a program sees that releases once, at its end."""

    @property
    def num_users(self) -> int:
        """How many users the query is asked of."""
        ...

    def sum(
        self,
        params: Params,
        *,
        work: str = TRAIN,
        bound: Bound | None = None,
        among: Sequence[int] | None = None,
    ) -> PartialSum:
        """Return one raw sum over users of the query; it must not leave the program.

        Args:
            params: What the work is done with.
            work: Its name.
            bound: Of each contribution; None for the mechanism's.
            among: Places of those who take part, from 0 to num_users - 1; None for all.
        """
        ...

    def key(self, stream: str) -> Key:
        """Return a secret key for the program's own choices, the same when it is replayed."""
        ...


Program = Callable[[RawSums], PartialSum]
"""Many passes over private data, of which only the last sum is answered."""


class Door(Protocol):
    """The only way to private data: every answer is admitted and charged before it is made."""

    @property
    def round_num(self) -> int:
        """The round under way, from 1."""
        ...

    @property
    def rho_left(self) -> float:
        """What an adaptive plan has not spent yet; infinite for a fixed plan."""
        ...

    def key(self, stream: str) -> Key:
        """Return a key of this round for public choices, such as which public examples to read.

        Raises:
            ValueError: If the stream is one of those that private data hang on.
        """
        ...

    def ask(self, query: Query) -> Any:
        """Return the answer to a query.

        Raises:
            BudgetSpentError: If the plan does not pay for it; nothing was drawn.
        """
        ...

    def hold(self, query: Query) -> AbstractContextManager[Held]:
        """Ask, and keep the raw sum within the `with`, to be answered again."""
        ...

    def run(self, query: Query, program: Program) -> Any:
        """Return the one answer of a program of many passes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A state taken apart into what files hold.

    Attributes:
        released: Goes into the checkpoint, by which others take it up.
        rest: What only the next step needs; goes into the resume state. Computed from releases.
        numbers: Scalars, likewise.
    """

    released: Params = field(repr=False)
    rest: Params = field(default_factory=dict, repr=False)
    numbers: Mapping[str, float] = field(default_factory=dict)


class State(Protocol):
    """What one step passes to the next. All of it is released, or made of what is."""

    @property
    def round_num(self) -> int:
        """Steps done so far."""
        ...

    @property
    def params(self) -> Params:
        """The params that the next step starts from, float32."""
        ...

    def save(self) -> Saved:
        """Return the state taken apart."""
        ...

    def load(self, round_num: int, saved: Saved) -> Self:
        """Return the state that `save` took apart; this one gives its form."""
        ...


@runtime_checkable
class KnowsUpdateNorm(Protocol):
    """A state of an algorithm that releases updates."""

    @property
    def update_norm(self) -> float:
        """l2 norm of the last one, after noise."""
        ...


@runtime_checkable
class ChecksStart(Protocol):
    """An algorithm that is no use from every start."""

    def check_start(self, loss: float) -> None:
        """Refuse a start.

        Args:
            loss: Its mean loss on public examples, in the task's own terms; of a task of single
                examples without any, that on its test set.

        Raises:
            ValueError: If nothing would be learnt from there.
        """
        ...


def check_start(algorithm: Algorithm, loss: float | None) -> None:
    """Refuse a start that an algorithm can do nothing with, as far as public examples tell.

    Raises:
        ValueError: If the algorithm says so.
    """
    if loss is not None and isinstance(algorithm, ChecksStart):
        algorithm.check_start(loss)


@runtime_checkable
class ChecksParams(Protocol):
    """An algorithm whose guarantee does not hold from every start."""

    def check_params(self, params: Params) -> None:
        """Refuse params to start from.

        Raises:
            ValueError: If the plan's guarantee would not hold from there.
        """
        ...


def check_params(algorithm: Algorithm, params: Params) -> None:
    """Refuse a start from which an algorithm's guarantee would not hold.

    Raises:
        ValueError: If the algorithm says so.
    """
    if isinstance(algorithm, ChecksParams):
        algorithm.check_params(params)


@runtime_checkable
class SaysWhatItDecided(Protocol):
    """An algorithm whose rounds differ in more than their answers."""

    def decided(self, numbers: Mapping[str, float]) -> Mapping[str, float]:
        """Return what the last round decided, by name, of what was released.

        Args:
            numbers: Scalars of the state after it (`Saved.numbers`).
        """
        ...


def decided_by(algorithm: Algorithm, state: State) -> Mapping[str, float]:
    """Return what the last round decided; nothing of algorithms that do not say."""
    if not isinstance(algorithm, SaysWhatItDecided):
        return {}
    return algorithm.decided(state.save().numbers)


@runtime_checkable
class MeasuresSeveral(Protocol):
    """An algorithm of which more than one model may be measured together."""

    def measured(self, state: Any) -> Params:
        """Return the result, or several models as one tree (`fedpriv.checkpoints.aggregates`)."""
        ...


def measured_params(algorithm: Algorithm, state: State) -> Params:
    """Return what a state is measured by: its result, if the algorithm says nothing else."""
    if isinstance(algorithm, MeasuresSeveral):
        return algorithm.measured(state)
    return algorithm.result(state)


class Algorithm(Protocol):
    """What asks queries, and steps by their answers."""

    def init(self, params: Params) -> Any:
        """Return the state before the first step."""
        ...

    def step(self, state: Any, door: Door) -> Any | None:
        """Return the state after one more step, or None if there is nothing left to do.

        Args:
            state: The state before; the caller gives it up. A step that is refused or has nothing
                left to do leaves it as it was: then it is the last.
            door: The way to private data, open for round `state.round_num + 1`.
        """
        ...

    def result(self, state: Any) -> Params:
        """Return the params that the run stands for."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayState:
    """The state of an algorithm that needs no form of its own.

    Attributes:
        round_num: Steps done so far.
        params: float32 tensors.
        memory: Whatever else the next step needs, arrays by name.
        numbers: Scalars by name.
    """

    round_num: int = 0
    params: Params = field(repr=False)
    memory: Params = field(default_factory=dict, repr=False)
    numbers: Mapping[str, float] = field(default_factory=dict)

    def after(self, params: Params, **changes: Any) -> ArrayState:
        """Return the state one step later."""
        return replace(self, round_num=self.round_num + 1, params=params, **changes)

    def save(self) -> Saved:
        """Return the state taken apart."""
        rest = {f"memory/{name}": np.asarray(array) for name, array in self.memory.items()}
        return Saved(released=dict(self.params), rest=rest, numbers=self.numbers)

    def load(self, round_num: int, saved: Saved) -> ArrayState:
        """Return the state that `save` took apart."""
        return ArrayState(
            round_num=round_num,
            params=dict(saved.released),
            memory={n.removeprefix("memory/"): a for n, a in saved.rest.items()},
            numbers=saved.numbers,
        )


@runtime_checkable
class ChoosesPlan(Protocol):
    """An algorithm that not every plan can be paid for with."""

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse a plan.

        Raises:
            ValueError: If under it less would hold than it says.
        """
        ...


def check_plan(algorithm: Algorithm, plan: AnyPlan) -> None:
    """Refuse a plan that an algorithm cannot go with.

    Raises:
        ValueError: If the algorithm says so.
    """
    if isinstance(algorithm, ChoosesPlan):
        algorithm.check_plan(plan)


@runtime_checkable
class BringsMechanisms(Protocol):
    """An algorithm whose queries bring mechanisms of their own."""

    def mechanisms(self) -> Sequence[Mechanism]:
        """Return one of each kind; on the way only how much noise they add changes."""
        ...


def is_exact(plan: AnyPlan, algorithm: Algorithm) -> bool:
    """Return whether with a secure key the ε of every answer is that of real arithmetic.

    It follows from the mechanisms that make them, the plan's own or all that queries bring
    (`Mechanism.is_exact`). An algorithm that brings some and does not say which is not exact.
    """
    if isinstance(plan, Plan):
        return plan.is_exact
    found = algorithm.mechanisms() if isinstance(algorithm, BringsMechanisms) else ()
    return bool(found) and all(one.is_exact for one in found)
