"""ε against dp-accounting's own accountants (committed as JSON) and the figures in print."""

import json
import math
from pathlib import Path

import pytest

from fedpriv.mechanisms.event import Event
from fedpriv.privacy.accounting import epsilon
from tests.privacy.costing import cohort_event

DOCUMENT = json.loads(Path(__file__).with_name("privacy.json").read_text("utf-8"))
ROWS = {row["id"]: row for row in DOCUMENT["rows"]}
# The rows of sample-level runs are extra; a few large grids are enough for every day.
#: Of most plans one relation is enough by default.
SLOW = {name for name in ROWS if name.startswith("S")} | {"P3 add-remove", "P6 add-remove"}
SLOW |= {f"{plan} add-remove" for plan in ("P1", "P4", "P9", "P12", "P15", "P18", "C3")}
SLOW |= {f"{plan} replace-one" for plan in ("P7", "P10", "P13", "P16", "C1", "C5")}
SLOW |= {f"{plan} replace-one" for plan in ("W2", "W5", "W7", "W10")}


def told(row):
    return epsilon(
        Event.from_json(row["event"]), row["rounds"], delta=row["delta"], relation=row["relation"]
    )


def as_printed(value, printed):
    """Whether a value agrees to half a unit of the last printed digit, or to 0.1 %."""
    half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    return abs(value - float(printed)) <= max(half, 1e-3 * float(printed)) * (1.0 + 1e-9)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ROWS]
)
def test_epsilon_is_golden(name):
    row = ROWS[name]
    got = told(row)
    assert got.accountant == row["accountant"]
    assert (got.relation.value, got.delta, got.unit) == (row["relation"], row["delta"], "user")
    if row["printed"] is not None:
        assert as_printed(got.value, row["printed"]), (got.value, row["printed"])
    if row["pld"] is not None:
        # Same library, another grid: the grid is chosen so that it costs at most 0.01 %.
        assert got.value == pytest.approx(row["pld"], rel=1e-4)
    if row["rdp"] is None:
        assert got.rdp is None
    else:
        assert got.rdp == pytest.approx(row["rdp"], rel=1e-6)
        assert got.rdp >= got.value * (1.0 - 1e-6)
    if row.get("printed_rdp"):
        # Another library's figure, found on another grid of orders.
        assert got.rdp == pytest.approx(float(row["printed_rdp"]), rel=1e-4)
    if row.get("at_least"):
        assert got.value >= float(row["at_least"])


def test_every_row_in_print_is_there():
    # 12 Poisson rows under two relations, 3 caps under two, 8 fixed-size, 8 sample-level, G1
    # under two, and one figure of another library's test suite.
    assert len(ROWS) == 24 + 6 + 8 + 8 + 2 + 1
    assert {"dp-accounting", "numpy", "scipy"} <= set(DOCUMENT["versions"])


def test_fixed_size_rows_would_be_wrong_with_the_raw_noise_multiplier():
    """The broken twin: σ passed without halving is provably below the lower bound."""
    for name in ("W7 replace-one", "W8 replace-one", "W10 replace-one", "W11 replace-one"):
        row = ROWS[name]
        event = {**row["event"], "noise_multiplier": 2.0 * row["event"]["noise_multiplier"]}
        assert told({**row, "event": event}).value < float(row["at_least"])


@pytest.mark.parametrize(
    ("delta", "printed"),
    [(1 / 400, "4.800"), (1e-3, "5.312"), (1e-4, "6.478"), (1e-5, "7.524"), (1e-6, "8.489")],
)
def test_epsilon_by_delta(delta, printed):
    event = cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=1)
    assert as_printed(epsilon(event, 500, delta=delta, relation="add-remove").value, printed)


def test_plain_gaussian_is_exact():
    """PLD without sampling against the closed form δ(ε) of Balle and Wang 2018, eq. 6."""
    sigma, rounds, delta = 20.0, 100, 1 / 400
    got = epsilon(
        Event(kind="gaussian", noise_multiplier=sigma), rounds, delta=delta, relation="add-remove"
    ).value
    mu = math.sqrt(rounds) / sigma

    def phi(x):
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    closed = phi(mu / 2 - got / mu) - math.exp(got) * phi(-mu / 2 - got / mu)
    assert closed == pytest.approx(delta, rel=1e-4)
    assert closed <= delta * (1.0 + 1e-9)
