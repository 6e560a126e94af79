"""`fedpriv account`, `calibrate` and `verify` as a user types them."""

import json

import pytest

from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.plan import cohort_plan
from tests.cli.typed import figures
from tests.harness.command_line import fedpriv, refusal

BASE = ("--users", "400", "--cohort", "20", "--rounds", "100")
PAPER = (*BASE, "--delta", "0.0025")
FIXED = ("--noise-multiplier", "1", "--sampling", "fixed")


@pytest.mark.slow
def test_delta_defaults_and_one_in_n_is_remarked():
    assert figures("account", *BASE, "--noise-multiplier", 1)["delta"] == pytest.approx(400**-1.1)
    for given, multiplier, said in (
        (PAPER, 1, "1/n = 0.0025"),
        (BASE, 0.5, "no meaningful protection"),
        (BASE, 1, "0.00138"),  # 0.55 of 1/n
    ):
        notes = figures("account", *given, "--noise-multiplier", multiplier)["notes"]
        assert any(said in note for note in notes)


def test_people_get_a_table_with_the_terms():
    result = fedpriv("account", *PAPER, "--noise-multiplier", 1)
    shown = " ".join(result.stdout.split())
    for part in ("1.9059", "0.0025", "add-remove", "per user", "PLD", "RDP 2.3891", "100"):
        assert part in shown, part


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "options", "named"),
    [
        ("account", ["--noise-multiplier", "nan"], "noise-multiplier nan"),
        ("account", ["--noise-multiplier", "0"], "noise-multiplier 0"),
        ("account", ["--noise-multiplier", "1", "--delta", "1"], "delta 1"),
        ("account", ["--noise-multiplier", "1", "--cohort", "401"], "401"),
        ("account", ["--noise-multiplier", "1", "--cohort", "nan"], "nan"),
        ("account", ["--noise-multiplier", "1", "--users", "0"], "users 0"),
        ("account", ["--noise-multiplier", "1", "--rounds", "0"], "rounds 0"),
        ("account", ["--noise-multiplier", "1", "--sampling", "shuffle"], "sampling 'shuffle'"),
        ("account", ["--noise-multiplier", "1", "--relation", "zero"], "relation 'zero'"),
        ("account", [*FIXED, "--relation", "add-remove"], "replace-one"),
        ("account", [*FIXED, "--cohort", "20.5"], "20.5"),
        ("account", [*FIXED, "--cap", "30"], "cap"),
        ("account", ["--noise-multiplier", "1", "--cap", "0"], "cap 0"),
        ("account", ["--noise-multiplier", "1", "--cap", "500"], "500"),
        ("account", ["--noise-multiplier", "1", "--cap", "39"], "cap 39"),
        ("calibrate", ["--target-epsilon", "2", "--cap", "39"], "cap 39"),
        ("calibrate", ["--target-epsilon", "nan"], "target-epsilon nan"),
        ("calibrate", ["--target-epsilon", "0"], "target-epsilon 0"),
        ("calibrate", ["--target-epsilon", "1e9"], "target-epsilon 1e+09"),
        ("calibrate", ["--target-epsilon", "1", "--delta", "2"], "delta 2"),
    ],
)
def test_bad_input_is_one_clear_line_and_code_2(command, options, named):
    assert named in refusal(command, *BASE, *options)


def test_what_is_no_number_at_all_is_code_2():
    for options in (["--noise-multiplier", "one"], [*FIXED, "--rounds", "1.5"], []):
        assert fedpriv("account", *BASE, *options).exit_code == 2


def test_a_rho_has_two_epsilons():
    found = figures("account", "--rho", 0.5, "--delta", 1e-6)
    assert found["epsilon"] < found["epsilon_bs16"] == pytest.approx(5.756522)
    assert (found["rho"], found["delta"], found["relation"]) == (0.5, 1e-6, "add-remove")
    _, words, _ = fedpriv("account", "--rho", 0.5, "--delta", 1e-6)
    assert "ε = 5.2216 at δ = 1e-06 (add-remove, of ρ = 0.5" in words and "5.7566" in words


def test_an_epsilon_has_two_rhos():
    found = figures("calibrate", "--zcdp", "--target-epsilon", 1, "--delta", 1e-5)
    assert found["rho_bs16"] == pytest.approx(0.020820, abs=5e-7)
    assert found["rho"] == pytest.approx(0.030557, abs=5e-7) and found["epsilon"] == 1.0
    _, words, _ = fedpriv("calibrate", "--zcdp", "--target-epsilon", 1, "--delta", 1e-5)
    assert "ρ = 0.0305566" in words and "δ = 1e-05" in words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["account", "--rho", 1], "--delta"),
        (["account", "--rho", -1, "--delta", 0.1], "rho -1"),
        (["account", "--rho", 1, "--delta", 0.1, "--users", 4], "--users"),
        (["account", "--users", 4], "--cohort"),
        (["account", "--users", 4, "--cohort", 1, "--rounds", 1], "'--noise-multiplier'"),
        (["calibrate", "--target-epsilon", 1, "--zcdp", "--cohort", 2, "--delta", 1], "--cohort"),
        (["calibrate", "--target-epsilon", 1], "--users"),
    ],
)
def test_what_does_not_go_together(arguments, said):
    code, _, err = fedpriv(*arguments)
    assert code != 0 and said in err


@pytest.fixture
def run(tmp_path):
    plan = cohort_plan(
        num_users=400, expected_cohort_size=20, num_rounds=5, bound="clip", l2_bound=1.0,
        noise="gaussian", noise_multiplier=2.0,
    )  # fmt: skip
    with Ledger.create(tmp_path / "ledger.jsonl", plan, mode="simulation") as ledger:
        ledger.charge(1, 1)
        ledger.release(1, 1, "0" * 64)
    return tmp_path


def test_verify_passes_and_fails_by_exit_code(run):
    told = figures("verify", run)
    assert told["ok"] is True and told["charges"] == 1
    shown = fedpriv("verify", run)
    assert shown.exit_code == 0 and "simulated ε" in shown.stdout
    data = (run / "ledger.jsonl").read_bytes()
    (run / "ledger.jsonl").write_bytes(data.replace(b'"attempt":1', b'"attempt":2', 1))
    result = fedpriv("verify", run, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False
    shown = fedpriv("verify", run)
    assert shown.exit_code == 1 and "WRONG" in shown.stdout


def test_verify_of_no_run_is_code_2(tmp_path):
    result = fedpriv("verify", tmp_path / "missing")
    assert result.exit_code == 2 and str(tmp_path / "missing") in result.output
