"""A mechanism: who is drawn, how each is bounded, what is added; and everything that follows.

The three are objects, and nothing about them is written down a second time: sensitivity, standard
deviation, denominator and event are derived from the very sampler, bound and privatizer that run.

>>> from fedpriv.mechanisms import Clip
>>> from fedpriv.mechanisms.gaussian import Gaussian
>>> from fedpriv.privacy.sampling import PoissonSampler
>>> mechanism = Mechanism(
...     sampler=PoissonSampler(num_users=400, expected_cohort_size=20),
...     bound=Clip(l2_clip_norm=0.5),
...     privatizer=Gaussian(noise_multiplier=1.0),
... )
>>> mechanism.sensitivity, mechanism.denominator, mechanism.event.kind
(0.5, 20.0, 'poisson-gaussian')
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fedpriv.mechanisms.bounds import Bound, CappedTogether
from fedpriv.mechanisms.gaussian import check_stddev
from fedpriv.mechanisms.privatizer import DrawsOnGrid, Memory, Privatizer
from fedpriv.privacy.event import Event
from fedpriv.privacy.sampling import Sampler
from fedpriv.ranges import positive_float, positive_int
from fedpriv.rng import Key, check_key
from fedpriv.sums import PartialSum
from fedpriv.tree import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """How one answer is made of private data. Public.

    Attributes:
        sampler: Who takes part.
        bound: What bounds each contribution. A round may put a public preconditioner inside it
            (`RoundContext.bound`), which leaves its l2_bound as it is.
        privatizer: What is added, and what leaves.
        micro_batch: Expected number of examples whose mean is bounded as one vector; 1 bounds
            each alone. Above 1 an example moves its micro-batch's vector from one place within
            the bound to another, so the sensitivity is twice the bound.

    Guarantees:
        * One answer costs `event`, if cohorts are drawn by `sampler`, every contribution went
          through `bound`, their sum is unweighted, `privatizer` made the answer of it with this
          `sensitivity`, and nothing else leaves.

    Raises:
        ValueError: If two parts do not fit: noise without a bound, a sampler under which no
            accountant answers for the privatizer, a standard deviation that no noise can have.
    """

    sampler: Sampler
    bound: Bound
    privatizer: Privatizer
    micro_batch: int = 1
    _event: Event = field(init=False, repr=False, compare=False)
    _charged_once: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        size = positive_int("micro_batch", self.micro_batch)
        object.__setattr__(self, "micro_batch", size)
        if size > 1 and size > self.expected_cohort_size:
            raise ValueError(
                f"micro_batch {size} is above the expected batch of "
                f"{self.expected_cohort_size:g}; lower it"
            )
        cost = self.privatizer.cost
        event = self.sampler.event(cost)  # refuses what no accountant prices
        object.__setattr__(self, "_event", event)
        object.__setattr__(self, "_charged_once", cost.whole_run)
        if event.is_private and math.isinf(self.bound.l2_bound):
            raise ValueError(
                f"noise {self.privatizer.name!r} without a bound protects no one: one user could "
                "move the sum without limit; bound by 'clip' or 'normalise'"
            )
        if cost.kind == "gaussian" and event.is_private:
            positive_float("stddev (noise_multiplier times sensitivity)", self.stddev)
            check_stddev(self.stddev)  # here, and not after the first charge

    @property
    def num_users(self) -> int:
        """Users on the roster (examples of the training set)."""
        return self.sampler.num_users

    @property
    def expected_cohort_size(self) -> float:
        """Mean number of users who take part."""
        return self.sampler.expected_cohort_size

    @property
    def l2_bound(self) -> float:
        """The l2 norm that no contribution exceeds; infinite only without a guarantee."""
        return self.bound.l2_bound

    @property
    def sensitivity(self) -> float:
        """How far one neighbour with or without its records moves the sum, in l2; 0 unbounded."""
        if math.isinf(self.l2_bound):
            return 0.0
        return self.l2_bound * (1.0 if self.micro_batch == 1 else 2.0)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity; 0 for what is no Gaussian."""
        cost = self.privatizer.cost
        return float(cost.value) if cost.kind == "gaussian" else 0.0

    @property
    def stddev(self) -> float:
        """Standard deviation of Gaussian noise on the sum, in the units of an update; else 0."""
        return self.noise_multiplier * self.sensitivity

    @property
    def denominator(self) -> float:
        """What the noised sum is divided by: the expected number of bounded vectors."""
        return self.expected_cohort_size / self.micro_batch

    @property
    def event(self) -> Event:
        """What one charge does; that of a whole run where the privatizer is charged once."""
        return self._event

    @property
    def charged_once(self) -> bool:
        """Whether one charge pays for all rows of a run."""
        return self._charged_once

    @property
    def is_private(self) -> bool:
        """Whether an answer promises anything."""
        return self.event.is_private

    @property
    def is_exact(self) -> bool:
        """Whether with a secure key its ε is that of real arithmetic: whole sums, whole noise.

        False of contributions that are computed many at once and rounded to the grid one by one
        (`fedpriv.mechanisms.bounds.CappedTogether`): one may turn the rounding of another.
        """
        if isinstance(self.bound, CappedTogether):
            return False
        return self.bound.granularity is not None and isinstance(self.privatizer, DrawsOnGrid)

    def within(self, bound: Bound) -> Bound:
        """Return the bound of a round, which may precondition and not let through any more.

        Raises:
            ValueError: If its l2 bound is above the mechanism's, which noise was calibrated for.
        """
        if bound.l2_bound > self.l2_bound * (1.0 + 1e-12):
            raise ValueError(
                f"a round bounds contributions to {bound.l2_bound!r} and its noise is for "
                f"{self.l2_bound!r}; leave the l2 bound as it is"
            )
        return bound

    def draw(self, template: Params, key: Key) -> Any:
        """Return what a memoryless privatizer adds to one sum; draw it once the attempt is charged.

        With a secure key it is drawn on the bound's grid where there is one and the privatizer can.

        Args:
            template: Names and shapes of the sum.
            key: Folded by round *and* attempt, and used here only.

        Raises:
            ValueError: If its noise has a memory: rows of that are drawn by a run.
            TypeError: If the key is a generator or a seed.
        """
        check_key(key)
        memory = self.privatizer.init(template, key)
        if memory:
            raise ValueError(
                f"{self.privatizer.name} noise has a memory, which a run keeps; a single attempt "
                "cannot draw it"
            )
        return self.draw_row(memory, template, key)[0]

    def draw_row(self, memory: Memory, template: Params, key: Key) -> tuple[Any, Memory]:
        """Return the noise of one sum, and the memory after it.

        With a secure key it is drawn on the bound's grid where there is one and the privatizer can.

        Args:
            memory: From the privatizer's `init` or the last of these calls; it is given up.
            template: Names and shapes of the sums.
            key: Of the run, the same for every row.
        """
        privatizer, granularity = self.privatizer, self.bound.granularity
        given: dict[str, Any] = {"template": template, "sensitivity": self.sensitivity, "key": key}
        if key.mode == "secure" and granularity is not None and isinstance(privatizer, DrawsOnGrid):
            return privatizer.draw_on_grid(memory, granularity=granularity, **given)
        return privatizer.draw(memory, **given)

    def release(self, total: PartialSum, drawn: Any) -> Any:
        """Return the answer of a raw sum; the sum and what was drawn are given up.

        A sum is divided by the public denominator: neither dropouts nor an empty cohort change
        it, and the sum over an empty cohort is noised like any other.

        Args:
            total: The raw sum over the cohort.
            drawn: From `draw`, with a key of this round and attempt.
        """
        return self.privatizer.release(total, drawn, 1.0 / self.denominator)
