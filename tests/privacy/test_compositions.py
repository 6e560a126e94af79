"""Random compositions of events, against dp-accounting's own accountants."""

import random

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedpriv.mechanisms.event import Event, Relation
from fedpriv.privacy.accounting import epsilon_of

BY_PLD = ("gaussian", "poisson-gaussian", "truncated-poisson-gaussian", "poisson-devices-gaussian",
          "cyclic-poisson-gaussian")  # fmt: skip
BY_RDP = ("gaussian", "poisson-gaussian", "zcdp")


def drawn(kind: str, rng: random.Random) -> Event:
    """Return an event of a kind with numbers as runs have them."""
    numbers = {
        "noise_multiplier": rng.uniform(1.0, 8.0), "sampling_prob": rng.uniform(0.005, 0.1),
        "num_users": 400, "cap": 60, "size": rng.randint(5, 40), "devices": rng.randint(2, 3),
        "rows": rng.randint(2, 8), "rho": rng.uniform(1e-4, 1e-2),
    }  # fmt: skip
    fields = {
        "gaussian": ("noise_multiplier",),
        "poisson-gaussian": ("noise_multiplier", "sampling_prob"),
        "truncated-poisson-gaussian": ("noise_multiplier", "sampling_prob", "num_users", "cap"),
        "fixed-size-gaussian": ("noise_multiplier", "num_users", "size"),
        "poisson-devices-gaussian": ("noise_multiplier", "sampling_prob", "devices"),
        "cyclic-poisson-gaussian": ("noise_multiplier", "sampling_prob", "rows"),
        "zcdp": ("rho",),
    }[kind]
    return Event(kind=kind, **{name: numbers[name] for name in fields})


def composition(number: int):
    """Return charges, δ, relation, and who prices them: a composition by its number."""
    rng = random.Random(number)
    by_rdp = number % 3 == 2
    kinds = rng.sample(BY_RDP if by_rdp else BY_PLD, rng.randint(2, 3))
    if by_rdp and "zcdp" not in kinds:
        kinds.append("zcdp")
    relation = Relation.REPLACE_ONE if rng.random() < 0.3 else Relation.ADD_REMOVE
    if "poisson-devices-gaussian" in kinds or (by_rdp and "poisson-gaussian" in kinds):
        relation = Relation.ADD_REMOVE
    charges = [(drawn(kind, rng), rng.randint(1, 60)) for kind in kinds]
    return charges, 10.0 ** rng.uniform(-7.0, -3.0), relation, "RDP" if by_rdp else "PLD"


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=() if n < 6 else pytest.mark.slow) for n in range(60)]
)
def test_a_composition_costs_what_dp_accounting_says(number):
    charges, delta, relation, by = composition(number)
    ours = epsilon_of(charges, delta=delta, relation=relation)
    assert ours.accountant == by
    accountant = (RdpAccountant if by == "RDP" else PLDAccountant)(
        neighboring_relation=relation.dp_relation
    )
    for event, count in charges:
        theirs = event.to_dp_event(relation, accountant=by)
        accountant.compose(dp_accounting.SelfComposedDpEvent(theirs, count))
    # Of a privacy loss both round up, on grids of their own.
    assert ours.value == pytest.approx(accountant.get_epsilon(delta), rel=1e-3, abs=1e-4)
