"""Which samplers and micro-batches fit a plan's relation and unit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedpriv.privacy.event import Event, Relation
from fedpriv.privacy.plans.promise import Unit
from fedpriv.privacy.sampling import FixedSizeSampler, PoissonSampler
from fedpriv.privacy.selection.trials import Trials

if TYPE_CHECKING:
    from fedpriv.privacy.mechanism import Mechanism
    from fedpriv.privacy.recorded import RecordedMechanism


def check_micro_batch(size: int, unit: Unit, relation: Relation) -> None:
    """Refuse micro-batches where it is not known how far a neighbour moves their sum.

    Raises:
        ValueError: If they are of users, or a neighbour is another record in one's place; or if the
            unit is an owner, whose examples a neighbour blanks, under another relation.
    """
    if unit == "owner" and relation is not Relation.ADD_REMOVE:
        raise ValueError(
            f"relation {relation.value!r}: neighbours of an owner have its examples blanked, which "
            "is accounted as 'add-remove'; use that"
        )
    if size > 1 and (unit != "example" or relation is not Relation.ADD_REMOVE):
        raise ValueError(f"micro_batch {size} is for examples under relation 'add-remove'; use 1")


def check_sampling(
    mechanism: Mechanism | RecordedMechanism, num_rounds: int, relation: Relation
) -> None:
    """Refuse cohorts that have no price under a relation, or a needlessly high one.

    Args:
        mechanism: Who is drawn, where that was recorded, and what a charge does.
        num_rounds: T.
        relation: Who is a neighbour.

    Raises:
        ValueError: If that is so, or there are more rounds than rows of correlated noise.
    """
    sampler, event = mechanism.sampler, mechanism.event
    _check_rows(mechanism, num_rounds, relation)
    if isinstance(sampler, PoissonSampler) and sampler.cap is not None:
        mean = sampler.expected_cohort_size
        least = min(math.ceil(2.0 * mean), sampler.num_users)
        if sampler.cap < least:
            raise ValueError(
                f"cohort_cap {sampler.cap} is below {least}, twice the expected cohort of "
                f"{mean:g}: a cap near the mean multiplies ε (fourfold at the mean); raise it, "
                "or leave it out"
            )
    fixed = isinstance(sampler, FixedSizeSampler)
    if fixed and event.is_private and relation is not Relation.REPLACE_ONE:
        raise ValueError(
            f"sampling 'fixed' cannot be accounted under relation {relation.value!r}; "
            "use relation 'replace-one', or sampling 'poisson'"
        )


def _check_rows(
    mechanism: Mechanism | RecordedMechanism, num_rounds: int, relation: Relation
) -> None:
    """Refuse more rounds than correlated noise was made for, and a relation it is not priced under.

    Raises:
        ValueError: If that is so.
    """
    limit = mechanism.privatizer.cost.participation
    if limit is None or limit.num_rows is None:
        return
    if num_rounds > limit.num_rows:
        raise ValueError(
            f"{num_rounds:,} rounds are more than the {limit.num_rows:,} rows that "
            f"{mechanism.privatizer.name} noise was made for; make it for as many"
        )
    if relation is Relation.ADD_REMOVE:
        raise ValueError(
            f"{mechanism.privatizer.name} noise is accounted for a user who contributes zero in "
            "all of its rows, or not; use relation 'zero-out'"
        )


_WITHOUT_CURVE = ("truncated-poisson-gaussian", "poisson-devices-gaussian", "objective-gaussian")
_WITHOUT_CURVE_REPLACED = ("poisson-gaussian", "cyclic-poisson-gaussian")


def check_trials(trials: Trials | None, event: Event, relation: Relation) -> None:
    """Refuse several trials of what RDP does not account, for no one else accounts the choice.

    Raises:
        ValueError: If that is so.
    """
    if trials is None or not event.is_private:
        return
    no_curve = event.kind in _WITHOUT_CURVE
    replaced = event.kind in _WITHOUT_CURVE_REPLACED and relation is Relation.REPLACE_ONE
    if no_curve or replaced:
        raise ValueError(
            f"the best of {trials.mean:g} trials on average is accounted by RDP, which cannot "
            f"account {event.kind} under {relation.value}; leave out the cap, group a "
            "person's devices before the bound, put the noise on the gradients, or use relation "
            "'add-remove'"
        )
