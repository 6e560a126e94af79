"""The Markdown of an evaluation, and what it says where data are few, synthetic or by sentence."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from fedpriv.report.bootstrap import Interval
from simulations.evaluation.evaluate import Estimate, evaluate
from simulations.evaluation.table import Layout, Row, markdown, percent, wider
from tests.harness.refusals import refuses
from tests.simulations.evaluation.made import DATA, random_fold

GUARANTEE = "ε at δ = 0.001, per user, add or remove one, PLD, simulated."
LAYOUT = Layout(
    columns={"8": "ε = 8", "2": "ε = 2"},
    rows=[
        Row(label="majority class", models="majority"),
        Row(label="public-only", models="public"),
        Row(label="private", models={"8": "private-8"}),
        Row(label="central, not private", models="central"),
    ],
    guarantee=GUARANTEE,
)
MODELS = {
    "majority": (1, 0.1), "public": (2, 0.3), "private-8": (5, 0.5), "central": (1, 0.9),
}  # fmt: skip


def evaluated(one):
    return evaluate(
        [one],
        public_only="public",
        best_nonprivate="central",
        generator=np.random.default_rng(0),
        replicates=200,
    )


@pytest.fixture(scope="module")
def text():
    return markdown(evaluated(random_fold(threads=60, **MODELS)), LAYOUT)


def section(text, title):
    """The rows of the table under a title, as lists of cells."""
    rest = text.split(f"### {title}")[1].split("###")[0]
    lines = [line for line in rest.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_row_and_column_is_there(text):
    rows = section(text, "Held-out accuracy, %")
    assert rows[0] == ["", "ε = 8", "ε = 2"] and rows[1] == ["---", "---:", "---:"]
    assert [row[0] for row in rows[2:]] == [row.label for row in LAYOUT.rows]
    assert rows[3][1] == rows[3][2] and rows[4][2] == "–"
    assert all(len(row) == 3 for row in rows)


def test_gains_and_shares_leave_out_what_they_are_over(text):
    gains = section(text, "Gain in accuracy over public")
    assert [row[0] for row in gains[2:]] == ["majority class", "private", "central, not private"]
    assert gains[3][1].startswith("+") and gains[2][1].startswith("-")
    shares = section(text, "Share closed of the gap in accuracy from public to central")
    assert [row[0] for row in shares[2:]] == ["majority class", "private"]


def test_what_a_reader_has_to_know(text):
    assert text.startswith("**Synthetic data")
    assert GUARANTEE in text and "not covered by ε" in text and "95 % intervals" in text
    assert "60 threads" in text and "whole threads held out" in text
    assert "too few to tell" not in text
    real = random_fold(threads=60, **MODELS)
    real = replace(real, data={**DATA, "synthetic": False}, split=BY_SENTENCE)
    told = markdown(evaluated(real), LAYOUT)
    assert "ynthetic data" not in told and "by sentence, as AdaDPS's code did" in told


def test_the_wider_interval_is_shown():
    narrow, wide = Interval(low=0.1, high=0.2), Interval(low=0.05, high=0.25)
    assert wider(Estimate(value=0.15, by_thread=narrow, by_user=wide)) == wide
    assert wider(Estimate(value=0.15, by_thread=wide, by_user=narrow)) == wide
    assert wider(Estimate(value=0.15, by_thread=None, by_user=narrow)) is None
    assert percent(Estimate(value=0.15, by_thread=narrow, by_user=wide)) == "15.0 (5.0 to 25.0)"
    only = Estimate(value=0.15, by_user=wide)
    assert percent(only) == "15.0 (no interval)"
    assert percent(only, of_users=True, signed=True) == "+15.0 (+5.0 to +25.0)"
    assert percent(None) == percent(Estimate(value=None)) == "–"


def test_what_is_refused():
    with refuses(ValueError, "x", "y"):
        row = Row(label="x", models="y")
        markdown(
            evaluated(random_fold(**MODELS)),
            Layout(columns={"8": "ε = 8"}, rows=[row], guarantee=GUARANTEE),
        )
