"""`fedpriv account --rho` and `fedpriv calibrate --zcdp`."""

import pytest

from tests.cli.typed import figures
from tests.harness.command_line import fedpriv


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
