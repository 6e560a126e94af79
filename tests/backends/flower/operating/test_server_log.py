"""Log lines of the server: each round with its ε."""

import logging

import pytest

from fedpriv.measures import ACCURACY
from fedpriv.runs.records import Released, RoundRecord
from server import app as server_app


@pytest.mark.parametrize(
    ("epsilon", "accuracy", "said"),
    [
        (0.93051, None, "round 3: epsilon <= 0.931 at delta 0.001, accuracy on public users -"),
        (0.93051, 0.5, "round 3: epsilon <= 0.931 at delta 0.001, accuracy on public users 50.00%"),
        (None, None, "round 3: no privacy, epsilon is infinite, accuracy on public users -"),
    ],
)
def test_every_round_is_logged_with_its_epsilon_evaluated_or_not(caplog, epsilon, accuracy, said):
    released = Released(
        round_num=3,
        attempt=1,
        epsilon=epsilon,
        epsilon_charges=None if epsilon is None else 5,
        delta=None if epsilon is None else 0.001,
        measured={"accuracy": accuracy},
        update_norm=None,
    )
    with caplog.at_level(logging.INFO, "fedpriv.server"):
        server_app._report(
            ACCURACY,
            RoundRecord(released=released, diagnostics=None),
        )
    assert [record.getMessage() for record in caplog.records] == [said]
