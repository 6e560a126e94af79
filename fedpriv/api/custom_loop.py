"""For a custom training loop: a plan by its numbers, and the bounded sum that it is of."""

from __future__ import annotations

from collections.abc import Iterable

from fedpriv import tree
from fedpriv.experiments.options import naming_options
from fedpriv.mechanisms import Bound, Clip, Rounded
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.event import Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import sampler_of
from fedpriv.sums import BeyondBound, PartialSum, RunningSum
from fedpriv.tree import Params, Tree

#: From what samplers and plans call numbers to the arguments that give them.
_ARGUMENTS = {
    "num_users": "users",
    "expected_cohort_size": "cohort",
    "num_rounds": "rounds",
    "cohort_cap": "cap",
}


def plan(
    *,
    users: int,
    cohort: float,
    rounds: int,
    l2_clip_norm: float,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
    sampling: str = "poisson",
    relation: str | Relation | None = None,
    cap: int | None = None,
) -> Plan:
    """Return the plan of rounds that clip, sum, and add Gaussian noise.

    Args:
        users: Users on the roster.
        cohort: Expected cohort (poisson) or its size (fixed); what sums are divided by.
        rounds: Rounds that are paid for, each charged once.
        l2_clip_norm: C, the l2 norm that no user's update exceeds, over all tensors concatenated.
        noise_multiplier: Stddev of the noise on the sum over C.
        target_epsilon: Instead of it: the least noise that keeps ε within this target.
        delta: δ; None for users^-1.1.
        sampling: "poisson" (independent draws) or "fixed" (exact size).
        relation: "add-remove" or "replace-one"; None for add-remove with poisson, replace-one
            with fixed.
        cap: Largest poisson cohort, at least twice the mean; a uniform subset takes part above.

    Returns:
        A plan whose `live_mechanism` draws cohorts (`sampler`), bounds updates (`bound`, which
        also rounds them to a grid, so that sums are exact in any order), draws the noise (`draw`)
        and divides (`release`).

    Raises:
        ValueError: If the numbers do not fit, or not exactly one of noise multiplier and target is
            given.
    """
    if (noise_multiplier is None) == (target_epsilon is None):
        raise ValueError(
            f"noise_multiplier {noise_multiplier!r} and target_epsilon {target_epsilon!r}: give "
            "exactly one of the two"
        )
    default = "replace-one" if sampling == "fixed" else "add-remove"
    with naming_options(_ARGUMENTS):
        draft = Plan(
            mechanism=Mechanism(
                sampler=sampler_of(sampling, users, cohort, cap),
                bound=Rounded(bound=Clip(l2_clip_norm=l2_clip_norm)),
                privatizer=Gaussian(
                    noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier
                ),
            ),
            num_rounds=rounds,
            relation=Relation.of(default if relation is None else relation),
            delta=delta,
        )
        return draft if target_epsilon is None else draft.calibrated(target_epsilon)


def bounded_sum(updates: Iterable[Tree], bound: Bound, *, like: Params) -> PartialSum:
    """Return the unweighted sum of updates, each bounded: what `Mechanism.release` takes.

    Args:
        updates: One a user: float arrays by name. Each is looked at once and not kept.
        bound: The plan's, `plan.live_mechanism.bound`.
        like: Names and shapes that every update must have, such as the params.

    Guarantees:
        * Each update moves the sum by at most `bound.l2_bound` (l2); one that is not finite
          contributes zero and is counted in `num_failed`.
        * The sum is private: give it to `release` at once, and let go of it.

    Raises:
        ValueError: If an update has other names, shapes or dtypes: the loop that makes them is
            wrong for everybody.
    """
    running = RunningSum(like, bound.granularity)
    count = failed = 0
    for update in updates:
        count += 1
        checked = tree.check_like(like, update)
        try:
            bounded, factor = bound.scaled(checked)
        except ValueError:  # not finite
            failed += 1
            continue
        try:
            running.add(bounded, factor)
        except BeyondBound:
            failed += 1
    return PartialSum(
        total=running.result(), num_users=count, num_failed=failed, granularity=bound.granularity
    )
