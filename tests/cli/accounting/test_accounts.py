"""`fedpriv account` and `calibrate` of cohorts, of several devices, of a whole study and of a ρ."""

import pytest

from tests.cli.typed import figures
from tests.harness.command_line import fedpriv, refusal

ROUNDS = ("--users", "400", "--cohort", "20", "--rounds", "100")
BASE = (*ROUNDS, "--delta", "0.0025")
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
def test_delta_defaults_and_one_in_n_is_remarked():
    assert figures("account", *ROUNDS, "--noise-multiplier", 1)["delta"] == pytest.approx(400**-1.1)
    for given, multiplier, said in (
        (BASE, 1, "1/n = 0.0025"),
        (ROUNDS, 0.5, "no meaningful protection"),
        (ROUNDS, 1, "0.00138"),  # 0.55 of 1/n
    ):
        notes = figures("account", *given, "--noise-multiplier", multiplier)["notes"]
        assert any(said in note for note in notes)


def test_people_get_a_table_with_the_terms():
    shown = " ".join(fedpriv(*ONE).stdout.split())
    for part in ("1.9059", "0.0025", "add-remove", "per user", "PLD", "RDP 2.3891", "100"):
        assert part in shown, part


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


def test_a_rho_has_two_epsilons():
    found = figures("account", "--rho", 0.5, "--delta", 1e-6)
    assert found["epsilon"] < found["epsilon_bs16"] == pytest.approx(5.756522)
    assert (found["rho"], found["delta"], found["relation"]) == (0.5, 1e-6, "add-remove")
    words = fedpriv("account", "--rho", 0.5, "--delta", 1e-6).stdout
    assert "ε = 5.2216 at δ = 1e-06 (add-remove, of ρ = 0.5" in words and "5.7566" in words


def test_an_epsilon_has_two_rhos():
    asked = ("calibrate", "--zcdp", "--target-epsilon", 1, "--delta", 1e-5)
    found = figures(*asked)
    assert found["rho_bs16"] == pytest.approx(0.020820, abs=5e-7)
    assert found["rho"] == pytest.approx(0.030557, abs=5e-7) and found["epsilon"] == 1.0
    words = fedpriv(*asked).stdout
    assert "ρ = 0.0305566" in words and "δ = 1e-05" in words


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["account", *ROUNDS, "--noise-multiplier", "nan"], "noise_multiplier nan"),
        (["account", *ROUNDS, "--noise-multiplier", "0"], "noise_multiplier 0"),
        ([*ONE, "--sampling", "shuffle"], "sampling 'shuffle'"),
        ([*ONE, "--relation", "zero"], "relation 'zero'"),
        ([*ONE, "--cap", "39"], "cap 39"),
        ([*ONE, "--devices", "401"], "401"),
        ([*ONE, "--devices", "3", "--trials", "10"], "10"),
        ([*ONE, "--trials", "nan"], "nan"),
        ([*ONE, "--trials", "10", "--shape", "0"], "0"),
        ([*ONE, "--shape", "1"], "1"),
        (["account", *ROUNDS], "'--noise-multiplier'"),
        (["account", "--users", 4], "--cohort"),
        (["account", "--rho", 1], "--delta"),
        (["account", "--rho", -1, "--delta", 0.1], "rho -1"),
        (["account", "--rho", 1, "--delta", 0.1, "--users", 4], "--users"),
        (["calibrate", *ROUNDS, "--target-epsilon", "nan"], "target_epsilon nan"),
        (["calibrate", *ROUNDS, "--target-epsilon", "0"], "target_epsilon 0"),
        (["calibrate", *ROUNDS, "--target-epsilon", "1e9"], "target_epsilon 1e+09"),
        (["calibrate", *BASE, "--target-epsilon", "2", "--cap", "39"], "cap 39"),
        (["calibrate", *BASE, "--target-epsilon", "2", "--devices", "401"], "401"),
        (["calibrate", *BASE, "--target-epsilon", "2", "--shape", "1"], "1"),
        (["calibrate", "--target-epsilon", 1, "--zcdp", "--cohort", 2, "--delta", 1], "--cohort"),
        (["calibrate", "--target-epsilon", 1], "--users"),
    ],
)
def test_bad_input_is_one_clear_line_and_code_2(arguments, named):
    assert named in refusal(*arguments)


def test_what_is_no_number_at_all_is_code_2():
    for options in (["--noise-multiplier", "one"], ["--noise-multiplier", "1", "--rounds", "1.5"]):
        assert fedpriv("account", *BASE, *options).exit_code == 2
