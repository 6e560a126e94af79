"""What a run guaranteed and has spent, from its ledger.

The ledger is the authority: it also counts attempts that were lost and released nothing, which
`rounds.jsonl` cannot know.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

from fedpriv.privacy.accounting import rho_of
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.ledger.state import LedgerState
from fedpriv.privacy.plan import AnyPlan
from fedpriv.privacy.statement.sealed import read_sealed
from fedpriv.report.series import RunRecord


def state_of(run: RunRecord) -> LedgerState:
    """Return the run's ledger replayed.

    Raises:
        ValueError: If it is missing or damaged, or does not seal `experiment.json`.
    """
    return read_sealed(run.directory).state


def ledger_head(run: RunRecord) -> str:
    """Return the hash of the ledger's last line: who keeps it sees whether lines were cut off.

    Raises:
        ValueError: As `state_of`.
    """
    return read_sealed(run.directory).records[-1].hash


def guaranteed(run: RunRecord) -> Epsilon:
    """Return the ε after all planned rounds with δ, relation, unit and accountant.

    Raises:
        ValueError: As `state_of`.
    """
    plan = state_of(run).plan
    return run.coverage.explained(plan.total())


def spent(run: RunRecord, round_num: int | None = None) -> Epsilon:
    """Return the ε spent so far, lost attempts included.

    Args:
        run: The run.
        round_num: Count charges up to the release of this round only, which is what covers its
            model; None counts all.

    Raises:
        ValueError: As `state_of`, or if the ledger has no release of the round.
    """
    state, covers = state_of(run), run.coverage
    if round_num is None:
        return covers.explained(_epsilon(state.plan, len(state.charges)))
    made = zip(state.releases, state.charged_before, strict=True)
    counts = [count for release, count in made if release.round_num == round_num]
    if not counts:
        raise ValueError(f"the ledger of {run.directory} has no release of round {round_num}")
    return covers.explained(_epsilon(state.plan, counts[-1]))


def rho_spent(run: RunRecord) -> tuple[list[int], list[float]]:
    """Return the released rounds of an adaptive plan, and ρ spent by then, lost attempts included.

    Raises:
        ValueError: As `state_of`.
    """
    state = state_of(run)
    prices = (rho_of(charge.event, state.plan.relation) for charge in state.charges)
    spent = [0.0, *accumulate(prices)]
    by_round = {
        release.round_num: spent[count]
        for release, count in zip(state.releases, state.charged_before, strict=True)
    }
    return list(by_round), list(by_round.values())


# A page asks for the same number several times; it takes a few tenths of a second.
@lru_cache(maxsize=256)
def _epsilon(plan: AnyPlan, num_charges: int) -> Epsilon:
    return plan.epsilon(num_charges)
