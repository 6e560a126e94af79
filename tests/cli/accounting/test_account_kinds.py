"""`fedpriv account` and `calibrate` of several devices, and of a whole study."""

import pytest

from tests.cli.typed import figures
from tests.harness.command_line import fedpriv, refusal

BASE = ("--users", "400", "--cohort", "20", "--rounds", "100", "--delta", "0.0025")
ONE = ("account", *BASE, "--noise-multiplier", "1")
KEYS = {
    "epsilon", "epsilon_rdp", "delta", "relation", "unit", "accountant", "noise_multiplier",
    "noise_on_mean", "users", "cohort", "rounds", "event", "notes",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "epsilon", "accountant", "unit"),
    [
        ([], 1.9059, "PLD", "user"),
        (["--devices", 1], 1.9059, "PLD", "user"),
        (["--devices", 3], 7.6974, "PLD", "person"),
        (["--devices", 5], 15.2374, "PLD", "person"),
        (["--trials", 10], 5.6134, "RDP", "user"),
        (["--trials", 10, "--shape", 0.5], 5.2281, "RDP", "user"),
        (["--trials", 10, "--shape", "inf"], 5.9350, "RDP", "user"),
        (["--trials", 5, "--sampling", "fixed"], 37.6663, "RDP", "user"),
        (["--relation", "replace-one"], 3.0310, "PLD", "user"),
        (["--cap", 40, "--relation", "replace-one"], 3.0319, "PLD", "user"),
        (["--sampling", "fixed"], 28.7421, "RDP", "user"),
        (["--sampling", "fixed", "--relation", "replace-one"], 28.7421, "RDP", "user"),
    ],
)
def test_account_prices_them(options, epsilon, accountant, unit):
    told = figures(*ONE, *options)
    assert told["epsilon"] == pytest.approx(epsilon, abs=2e-4)
    assert (told["accountant"], told["unit"]) == (accountant, unit)
    assert set(told) == KEYS | {"devices", "trials"}
    if "fixed" in options:
        assert told["relation"] == "replace-one" and told["epsilon_rdp"] in (None, told["epsilon"])


@pytest.mark.slow
def test_what_was_priced_is_said():
    told = figures(*ONE, "--devices", 3)
    assert told["devices"] == 3 and told["trials"] is None and told["epsilon_rdp"] is None
    assert told["event"]["kind"] == "poisson-devices-gaussian"
    assert told["notes"]
    told = figures(*ONE, "--trials", 10, "--shape", "inf")
    assert told["trials"] == {"mean": 10.0, "shape": "poisson"}
    assert told["event"]["kind"] == "poisson-gaussian"
    assert told["notes"] and "by RDP" in fedpriv(*ONE, "--trials", "10").stdout
    assert "person" in fedpriv(*ONE, "--devices", "3").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [[], ["--devices", 3], ["--trials", 10], ["--cap", 40]], ids=str
)
def test_calibrate_keeps_the_target(options):
    told = figures("calibrate", *BASE, "--target-epsilon", 2, "--no-grid", *options)
    assert told["noise_on_mean"] == told["noise_multiplier"] / 20 and "grid" not in told
    assert 1.999 <= told["epsilon"] <= 2.0
    again = figures("account", *BASE, "--noise-multiplier", told["noise_multiplier"], *options)
    assert again["epsilon"] == told["epsilon"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--devices", 3], ["--trials", 10]], ids=str)
def test_a_grid_is_of_the_same(options):
    cell = ("--grid-cohorts", 20, "--grid-rounds", 100)
    told = figures("calibrate", *BASE, "--target-epsilon", 2, *cell, *options)
    assert told["grid"]["points"][0]["noise_multiplier"] == told["noise_multiplier"]
    assert told["grid"]["accountant"] == told["accountant"]
    assert told["grid"]["unit"] == told["unit"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--devices", "0"], "0"),
        (["--devices", "401"], "401"),
        (["--devices", "3", "--cap", "40"], "3"),
        (["--devices", "3", "--sampling", "fixed"], "3"),
        (["--devices", "3", "--relation", "replace-one"], "add-remove"),
        (["--devices", "3", "--trials", "10"], "10"),
        (["--trials", "1"], "1"),
        (["--trials", "nan"], "nan"),
        (["--trials", "10", "--shape", "0"], "0"),
        (["--trials", "10", "--shape", "nan"], "nan"),
        (["--shape", "1"], "1"),
        (["--trials", "10", "--cap", "40"], "cap"),
        (["--trials", "10", "--relation", "replace-one"], "poisson-gaussian"),
    ],
)
@pytest.mark.parametrize("command", ["account", "calibrate"])
def test_bad_input_is_one_clear_line_and_code_2(command, options, named):
    rest = (
        ["--noise-multiplier", "1"]
        if command == "account"
        else ["--target-epsilon", "2", "--no-grid"]
    )
    assert named in refusal(command, *BASE, *rest, *options)
