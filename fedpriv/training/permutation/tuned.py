"""Private tuning of bolt-on: candidates on parts of their own, one of them chosen by its mistakes.

Of m examples, l candidates and l + 1 equal parts that are split without looking at them: candidate
i is trained on part i and perturbed, all of them are judged on the last part, and one is released.
What it costs is one ε, since each example has a part in one step of it only. What it costs besides
is that a candidate sees m/(l + 1) examples.

Reference: Wu et al. (2017), Algorithm 3, after Chaudhuri, Monteleoni and Sarwate (2011).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse

from fedpriv.mechanisms.bounds import Bound, Displaced
from fedpriv.mechanisms.selection import Chosen, PrivateChoice, candidates
from fedpriv.privacy.event import Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.privacy.plans.plan import Plan
from fedpriv.privacy.sampling import Everybody
from fedpriv.ranges import positive_int
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import ArrayState, Door, Query, RawSums
from fedpriv.training.permutation.rows import finite_rows
from fedpriv.training.permutation.sgd import LONGEST_START, PermutationSgd, refuse_long_start
from fedpriv.training.work import Work
from fedpriv.tree import Params

MISTAKES = "mistakes"
"""The name of the work that judges a candidate."""
CHOSEN = "chosen"
"""What a state calls the number of the candidate that was released."""


def candidate(number: int) -> str:
    """Return the name of the work that trains a candidate, from 0."""
    return f"candidate-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Trains candidates on disjoint parts, asks once for one of them. An `Algorithm`.

    Attributes:
        choices: The trainings, of the same data set: the same model with other passes, steps or
            regularisers.
        choice: Perturbs and chooses.

    Raises:
        ValueError: If there are fewer than two, or fewer examples than they need.
    """

    choices: tuple[PermutationSgd, ...] = field(repr=False)
    choice: PrivateChoice

    def __post_init__(self) -> None:
        if len(self.choices) < 2:
            raise ValueError(f"{len(self.choices)} candidates are no choice; give two or more")
        first = self.choices[0]
        if any(other.x is not first.x or other.y is not first.y for other in self.choices):
            raise ValueError("candidates are of the same data set; give them the same x and y")
        self.sensitivities()

    @property
    def num_examples(self) -> int:
        """m, of which what does not fill an equal part sits out."""
        return len(self.choices[0].y)

    @property
    def part_size(self) -> int:
        """⌊m / (l + 1)⌋."""
        return self.num_examples // (len(self.choices) + 1)

    def sensitivities(self) -> tuple[float, ...]:
        """Return Δ of each candidate, for one of its part's examples that is there or not.

        Raises:
            ValueError: As `Passes.sensitivity`, of a part's size.
        """
        size = positive_int("examples of a part", self.part_size)
        return tuple(
            one.passes.sensitivity(one.constants, size, start=LONGEST_START) for one in self.choices
        )

    def works(self) -> Mapping[str, Work]:
        """Return what trains and what judges, by name."""
        trained = {candidate(n): TrainedOnPart(sgd=sgd) for n, sgd in enumerate(self.choices)}
        return {**trained, MISTAKES: Mistakes(sgd=self.choices[0])}

    def plan(self, relation: Relation = Relation.REPLACE_ONE) -> Plan:
        """Return the promise of one choice: of a replaced example its ε is twice the choice's."""
        mechanism = Mechanism(
            sampler=Everybody(num_users=self.num_examples),
            bound=Displaced(l2_bound=max(self.sensitivities())),
            privatizer=self.choice,
        )
        return Plan(mechanism=mechanism, num_rounds=1, relation=relation, unit="example")

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse a plan that pays for anything else than one choice.

        Raises:
            ValueError: If that is so.
        """
        fits = isinstance(plan, Plan) and plan.num_rounds == 1
        if not fits or plan.live_mechanism.privatizer != self.choice:
            raise ValueError(
                "private tuning makes one choice, and this plan pays for something else; give the "
                "plan that Tuned makes"
            )

    def check_params(self, params: Params) -> None:
        """Refuse a start that Δ has no room for.

        Raises:
            ValueError: If that is so.
        """
        refuse_long_start(params, LONGEST_START)

    def init(self, params: Params) -> ArrayState:
        """Return the state before training; errors are those of `check_params`."""
        self.check_params(params)
        return ArrayState(params=params, numbers={CHOSEN: -1.0})

    def result(self, state: ArrayState) -> Params:
        """Return the params: of a run that has released, the chosen ones."""
        return state.params

    def step(self, state: ArrayState, door: Door) -> ArrayState | None:
        """Return the state after the release; None after that."""
        if state.round_num:
            return None

        def program(raw: RawSums) -> PartialSum:
            return self._judged(state.params, raw)

        asked = Query(params=state.params, work=candidate(0))
        found: Chosen = door.run(asked, program)
        return state.after(found.params, numbers={CHOSEN: float(found.index)})

    def parts(self, key: Key) -> list[list[int]]:
        """Return the places of the examples of l + 1 equal, disjoint parts, split by a key."""
        order, size = key.generator().permutation(self.num_examples), self.part_size
        return [
            order[number * size : (number + 1) * size].tolist()
            for number in range(len(self.choices) + 1)
        ]

    def _judged(self, params: Params, raw: RawSums) -> PartialSum:
        *parts, judges = self.parts(raw.key("split"))
        perturbed, mistakes = [], []
        for number, (part, moved) in enumerate(zip(parts, self.sensitivities(), strict=True)):
            total = raw.sum(params, work=candidate(number), among=part)
            key = raw.key(candidate(number))
            perturbed.append(self.choice.perturbed(total, sensitivity=moved, key=key))
            counted = raw.sum(perturbed[-1], work=MISTAKES, among=judges)
            mistakes.append(int(np.asarray(counted.total[MISTAKES])[0]))
        return candidates(perturbed, mistakes, raw.num_users)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOnPart:
    """Permutation SGD on some of the examples. A `Work`.

    Attributes:
        sgd: On all of them.
    """

    sgd: PermutationSgd

    def template(self, params: Params) -> Params:
        """Return the params' own shapes."""
        return params

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        data: object = None,
        user_ids: Sequence[str],
        key: Key,
    ) -> PartialSum:
        """Return the params trained on the examples of these ids, float64."""
        return _part(self.sgd, user_ids).partial_sum(
            params=params, bound=bound, user_ids=user_ids, key=key
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistakes:
    """On how many of some examples a linear model is wrong. A `Work`.

    Attributes:
        sgd: Has the examples, and the name of the params.
    """

    sgd: PermutationSgd

    def template(self, params: Params) -> Params:
        """Return one whole number."""
        return {MISTAKES: np.zeros(1, np.float32)}

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        data: object = None,
        user_ids: Sequence[str],
        key: Key,
    ) -> PartialSum:
        """Return the number of mistakes; one example more adds 0 or 1 to it."""
        part = _part(self.sgd, user_ids)
        kernel = params[part.name].astype(np.float64)
        kernel = kernel.reshape(kernel.shape[0], -1)
        x, squares = finite_rows(part.x)
        logits = np.asarray(x @ kernel, np.float64) + params["bias"].reshape(-1)
        if logits.shape[1] == 1:
            predicted = (logits[:, 0] > 0.0).astype(np.int64)
        else:
            predicted = logits.argmax(axis=1)
        wrong = (predicted != part.y) & np.isfinite(squares)
        if part.present is not None:
            wrong &= part.present
        count = np.array([np.count_nonzero(wrong)], np.int64)
        return PartialSum(total={MISTAKES: count}, num_users=len(user_ids), granularity=1.0)


def _part(sgd: PermutationSgd, user_ids: Sequence[str]) -> PermutationSgd:
    """Return a training on the examples of some ids, in their order."""
    index = np.fromiter(map(int, user_ids), np.int64, len(user_ids))
    x = sgd.x if isinstance(sgd.x, np.ndarray) else sparse.csr_matrix(sgd.x)
    present = None if sgd.present is None else sgd.present[index]
    return replace(sgd, x=x[index], y=sgd.y[index], present=present)
