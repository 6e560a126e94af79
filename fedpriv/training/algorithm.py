"""An algorithm: its requests for sums over private data, and what it makes of the answers.

An algorithm never sees a user. It holds a *door*, asks for sums through it, and gets answers that
may be released; everything it does with them is post-processing. Its state is a value: what a step
returns is all that the next step, or a resumed run, starts from.

    state = algorithm.init(params)
    while (following := algorithm.step(state, door)) is not None:
        state = following

A `SumRequest` goes as it is to where the users live: a node, a worker process and this process each
find what the name of a work means in their own experiment (`fedpriv.training.work`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol, Self

import numpy as np

from fedpriv import tree
from fedpriv.checkpoints.aggregates import Rule
from fedpriv.checkpoints.tensor_files import AGGREGATE
from fedpriv.mechanisms.bounds import Bound
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.privacy.ledger.state import UPDATE
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import AnyPlan, Plan
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tree import Params

TRAIN = "train"
"""The name of an experiment's ordinary work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points on a line from the params, where losses are evaluated.

    Attributes:
        direction: float32, of the params' names and shapes.
        sizes: Step sizes, float32 (candidates,).
    """

    direction: Params = field(repr=False)
    sizes: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "direction", tree.read_only_copy(self.direction))
        object.__setattr__(self, "sizes", tree.read_only_copy({"sizes": self.sizes})["sizes"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Public facts of one round. Nothing else goes with the params.

    Its tensors are copies of what it is made of, and read-only.

    Attributes:
        rate: Factor of the learning rate of local steps.
        clip_norm: C of a bound that adapts; None of others.
        multiplier: 1/A, which a whole update is multiplied by before it is bounded, float32 by
            name; empty for nothing.
        mixture: What an update is mixed with before that; None for nothing.
        line: Where losses are evaluated; None where none are.
        extra: Further public tensors, which a task or a user-defined algorithm names.
    """

    rate: float = 1.0
    clip_norm: float | None = None
    multiplier: Params = field(default_factory=dict, repr=False)
    mixture: Mixture | None = None
    line: Line | None = None
    extra: Params = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("multiplier", "extra"):
            object.__setattr__(self, name, tree.read_only_copy(getattr(self, name)))

    def copied(self) -> Context:
        """Return a context that shares no tensor with this one."""
        line, mixture = self.line and replace(self.line), self.mixture and replace(self.mixture)
        return replace(self, line=line, mixture=mixture)


NO_CONTEXT = Context()
"""The context of a round of which nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRequest:
    """One request for a sum over users, from the algorithm to the trainer. All of it is public.

    Attributes:
        params: What the work is done with, float32: copies of what is given, and read-only. What
            a work wrote into the state's own would be released.
        context: Public facts of the round.
        work: Name of the work, which workers and nodes look up in their own experiment.
        name: What the ledger calls it; a round may ask each name once.
        mechanism: Who is drawn, how each is bounded, what is added; None takes a fixed plan's.
    """

    params: Params = field(repr=False)
    context: Context = NO_CONTEXT
    work: str = TRAIN
    name: str = UPDATE
    mechanism: Mechanism | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", tree.read_only_copy(self.params))


class _Lent:
    """A way to raw sums that ends with its block. It prints as nothing, and does not travel."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make: Callable[..., Any] | None = make

    def _call(self, *asked: Any) -> Any:
        if self._make is None:
            raise ValueError("the block that had this raw sum has ended; ask again, and within it")
        return self._make(*asked)

    def close(self) -> None:
        """Let go of what was lent."""
        self._make = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a raw sum does not leave the process, nor the block that holds it")


class Held(_Lent):
    """A raw sum with one released answer, of which further ones may be charged while it is held.

    Args:
        answer: The first answer.
        make: Charges another answer, of a privatizer, and makes it.
    """

    __slots__ = ("answer",)

    def __init__(self, answer: Any, make: Callable[[Privatizer], Any]) -> None:
        super().__init__(make)
        self.answer = answer

    def release(self, privatizer: Privatizer) -> Any:
        """Return another noised answer of the same sum, charged separately.

        Raises:
            BudgetSpentError: If the plan does not pay for it.
            ValueError: If the sum is not held any more.
        """
        return self._call(privatizer)


class RawSums(_Lent):
    """Raw sums, for a program that releases once, at its end.

    Args:
        make: Makes one of a request, a bound and places of users.
        key: From the name of a stream to a secret key for the program's own choices, the same
            when it is replayed.
        num_users: How many users are asked.
    """

    __slots__ = ("key", "num_users")

    def __init__(
        self, make: Callable[..., PartialSum], key: Callable[[str], Key], num_users: int
    ) -> None:
        super().__init__(make)
        self.key, self.num_users = key, num_users

    def sum(
        self,
        request: SumRequest,
        *,
        bound: Bound | None = None,
        among: Sequence[int] | None = None,
    ) -> PartialSum:
        """Return one raw sum over users; it must not leave the program.

        Args:
            request: What they are asked. Its name and mechanism are those of the program's request.
            bound: Of each contribution; None for the mechanism's.
            among: Places of those who take part, from 0 to num_users - 1; None for all.

        Raises:
            ValueError: If the program has ended, or a place is named twice or out of range.
        """
        places = () if among is None else among
        if len({*places}) < len(places) or not all(0 <= p < self.num_users for p in places):
            raise ValueError(f"places {among!r} must be distinct, and below {self.num_users}")
        return self._call(request, bound, among)


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
        """Unspent ρ of an adaptive plan; infinite for a fixed plan."""
        ...

    def key(self, stream: str) -> Key:
        """Return a key of this round for public choices, such as which public examples to read.

        Raises:
            ValueError: If the stream is one of those that private data hang on.
        """
        ...

    def ask(self, request: SumRequest) -> Any:
        """Return the answer to a request.

        Raises:
            BudgetSpentError: If the plan does not pay for it; nothing was drawn.
        """
        ...

    def hold(self, request: SumRequest) -> AbstractContextManager[Held]:
        """Ask for a sum, and hold it within the `with` for further answers."""
        ...

    def run(self, request: SumRequest, program: Program) -> Any:
        """Return the one answer of a program of many passes."""
        ...


# Where in the memory of a state the average of checkpoints is.
_AVERAGE = "aggregate/average/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayState:
    """State between two steps: all of it is released, or computed from releases.

    Attributes:
        round_num: Steps done so far.
        params: float32 tensors that the next step starts from.
        memory: Further arrays that the next step needs, by name; a name may also hold a mapping.
            The "average" under "aggregate" is released with the params.
        numbers: Scalars by name. "update_norm" is the l2 norm of the last released update, after
            noise.
    """

    round_num: int = 0
    params: Params = field(repr=False)
    memory: Mapping[str, Any] = field(default_factory=dict, repr=False)
    numbers: Mapping[str, float] = field(default_factory=dict)

    def after(self, params: Params, **changes: Any) -> Self:
        """Return the state one step later."""
        return replace(self, round_num=self.round_num + 1, params=params, **changes)

    def save(self) -> tuple[Params, Params]:
        """Return the released arrays, which make the checkpoint, and the rest of the arrays."""
        rest = dict(_flat(self.memory))
        names = [name for name in rest if name.startswith(_AVERAGE)]
        average = {AGGREGATE + name.removeprefix(_AVERAGE): rest.pop(name) for name in names}
        return {**self.params, **average}, rest

    def load(
        self, round_num: int, released: Params, rest: Params, numbers: Mapping[str, float]
    ) -> Self:
        """Return a state from what `save` returned; this one gives its form."""
        average = {
            _AVERAGE + name.removeprefix(AGGREGATE): array
            for name, array in released.items()
            if name.startswith(AGGREGATE)
        }
        return replace(
            self,
            round_num=round_num,
            params={name: released[name] for name in self.params},
            memory=_filled(self.memory, {**rest, **average}),
            numbers=numbers,
        )


def _flat(memory: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a memory with the names on the way to each, joined by slashes."""
    for name, held in memory.items():
        if isinstance(held, Mapping):
            yield from _flat(held, f"{place}{name}/")
        else:
            yield place + name, np.asarray(held)


def _filled(form: Mapping[str, Any], arrays: Params, place: str = "") -> dict[str, Any]:
    """Return a memory of the same form with other arrays, named as by `_flat`."""
    return {
        name: _filled(held, arrays, f"{place}{name}/")
        if isinstance(held, Mapping)
        else arrays[place + name]
        for name, held in form.items()
    }


class Algorithm(ABC):
    """Base of server algorithms: asks for sums, and steps by their answers.

    `step` makes one; the others have defaults for an algorithm whose state is its params, and that
    has nothing to say.
    """

    __slots__ = ()

    #: How several models are measured together (`fedpriv.checkpoints.aggregates`); None for one.
    outputs: Rule | None = None

    def init(self, params: Params) -> Any:
        """Return the state before the first step."""
        return ArrayState(params=params)

    @abstractmethod
    def step(self, state: Any, door: Door) -> Any | None:
        """Return the state after one more step, or None if there is nothing left to do.

        Args:
            state: The state before; the caller gives it up. A step that is refused or has nothing
                left to do leaves it as it was: then it is the last.
            door: The way to private data, open for round `state.round_num + 1`.
        """
        ...

    def result(self, state: Any) -> Params:
        """Return the params that the run releases as its model."""
        return state.params

    def measured(self, state: Any) -> Params:
        """Return the result, or several models as one tree (`fedpriv.checkpoints.aggregates`)."""
        return self.result(state)

    def decided(self, numbers: Mapping[str, float]) -> Mapping[str, float]:
        """Return what the last round decided, by name, of what was released.

        Args:
            numbers: Of the state after it.
        """
        return {}

    def mechanisms(self) -> Sequence[Mechanism]:
        """Return one mechanism of each kind that requests bring; none where the plan's is used.

        On the way only how much noise they add changes.
        """
        return ()

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse a plan.

        Raises:
            ValueError: If under it less would hold than the algorithm says.
        """
        return

    def check_params(self, params: Params) -> None:
        """Refuse params to start from.

        Raises:
            ValueError: If the plan's guarantee would not hold from there.
        """
        return

    def check_start(self, loss: float) -> None:
        """Refuse a start that is of no use.

        Args:
            loss: Its mean loss on public examples, in the task's own terms; of a task of single
                examples without any, that on its test set.

        Raises:
            ValueError: If nothing would be learnt from there.
        """
        return


def is_exact(plan: AnyPlan, algorithm: Algorithm) -> bool:
    """Return whether with a secure key the ε of every answer is that of real arithmetic.

    It follows from the mechanisms that make them, the plan's own or all that requests bring
    (`Mechanism.is_exact`). An algorithm that brings some and does not say which is not exact.
    """
    if isinstance(plan, Plan):
        return plan.is_exact
    found = algorithm.mechanisms()
    return bool(found) and all(one.is_exact for one in found)
