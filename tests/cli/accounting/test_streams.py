"""`fedpriv account --noise` and `fedpriv calibrate --noise` as a user types them."""

import pytest

from fedpriv.mechanisms.correlated.optimise import optimised_bands
from fedpriv.mechanisms.privatizer import Participation
from tests.cli.typed import figures
from tests.harness.command_line import fedpriv

TREE = ("--noise", "tree", "--steps-per-tree", 20, "--trees", 50, "--delta", 0.0025)
BANDS = ("--noise", "banded", "--rounds", 40, "--min-separation", 10, "--delta", 1e-3)


@pytest.mark.slow
def test_a_completed_tree_costs_what_a_run_of_it_does():
    """Sensitivity 17.29 and prefix error 13.97, against 15.81 and 21.2 without."""
    both = [
        figures("account", *TREE, "--noise-multiplier", 4, *more)
        for more in ((), ("--completion",))
    ]
    assert both[1]["epsilon"] == pytest.approx(20.71, abs=0.01)
    assert both[0]["epsilon"] == pytest.approx(18.1573, abs=1e-4)
    assert both[0]["epsilon_rdp"] == pytest.approx(20.0062, abs=1e-4)
    assert both[1]["sensitivity"] == pytest.approx(17.29, abs=0.01)
    assert both[0]["sensitivity"] ** 2 == pytest.approx(250.0)
    assert (both[0]["relation"], both[0]["accountant"]) == ("zero-out", "PLD")
    vanilla = figures("account", *TREE, "--noise-multiplier", 4, "--estimate", "vanilla")
    assert vanilla["epsilon"] == both[0]["epsilon"] and vanilla != both[0]


@pytest.mark.slow
def test_coefficients_are_those_of_a_run_with_its_momentum():
    """Other coefficients have another sensitivity, and so another multiplier at one ε."""
    pattern = ("--noise", "banded", "--rounds", 100, "--min-separation", 20, "--delta", 1e-6)
    found = {
        more: figures("calibrate", "--target-epsilon", 8, *pattern, *more)
        for more in ((), ("--momentum", "0.9"), ("--coefficients", "square-root"))
    }
    sums = [one["noise_multiplier"] / one["sensitivity"] for one in found.values()]
    assert sums == pytest.approx(sums[:1] * 3, rel=1e-6)
    limit = Participation(most=5, min_separation=20, num_rows=100)
    runs = optimised_bands(20, limit, momentum=0.9)
    assert found["--momentum", "0.9"]["sensitivity"] == pytest.approx(runs.sensitivity(limit))
    assert len({one["noise_multiplier"] for one in found.values()}) == 3


@pytest.mark.parametrize(
    "more", [("--bands", 10), ("--bands", 5), ("--max-participations", 2)], ids=str
)
def test_bands_are_calibrated_and_say_what_is_left_of_their_noise(more):
    told = figures("calibrate", *BANDS, *more, "--target-epsilon", 8)
    assert told["epsilon"] == pytest.approx(8.0, rel=1e-4) and told["epsilon"] <= 8.0
    assert told["prefix_rmse"] > told["row_rmse"] > 0
    shown = fedpriv("calibrate", *BANDS, *more, "--target-epsilon", 8).output
    assert "zero-out" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("account", *TREE), "--noise-multiplier"),
        (("account", *TREE[:-2], "--noise-multiplier", 4), "--delta"),
        (("account", *TREE, "--noise-multiplier", 4, "--users", 9), "--users"),
        (("account", *TREE, "--noise-multiplier", 4, "--bands", 9), "bands 9"),
        (("calibrate", *TREE, "--target-epsilon", 4, "--cap", 9), "--cap"),
        (("calibrate", *TREE, "--target-epsilon", 4, "--grid-rounds", 9), "--grid-rounds"),
        (("account", *BANDS, "--noise-multiplier", "nan"), "noise_multiplier"),
        (("calibrate", "--bands", 3, "--target-epsilon", 1), "--bands"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    result = fedpriv(*arguments)
    assert result.exit_code != 0 and message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("noise", "most", "more"),
    [
        ("tree", 100_000, ()),
        ("tree", 100_000, ("--completion",)),
        ("banded", 50_000, ("--bands", 2)),
        ("banded", 50_000, ("--bands", 2, "--coefficients", "square-root")),
        ("blt", 3_000, ()),
    ],
    ids=str,
)
def test_more_rounds_than_are_accounted_are_refused_with_the_limit(noise, most, more):
    """One more than the limit, and a billion, for which they would be counted for hours."""
    limits = ("--max-participations", 1, "--delta", 1e-6, *more)
    for rounds in (most + 1, 10**9):
        apart = ("--min-separation", rounds)
        if noise == "tree":
            apart = (*apart, "--steps-per-tree", rounds // 2)
        pattern = ("--noise", noise, "--rounds", rounds, *apart, *limits)
        for command in (("account", "--noise-multiplier", 5), ("calibrate", "--target-epsilon", 8)):
            result = fedpriv(*command, *pattern)
            assert result.exit_code == 2 and f"{rounds:,}" in result.output
            assert f"{most:,}" in result.output


@pytest.mark.slow
def test_as_many_rounds_as_are_accounted_are_priced():
    pattern = ("--noise", "tree", "--steps-per-tree", 1000, "--min-separation", 10_000)
    told = fedpriv(
        "account", *pattern, "--rounds", 100_000, "--delta", 1e-6, "--noise-multiplier", 50
    )
    assert told.exit_code == 0 and "1,000" in told.output
