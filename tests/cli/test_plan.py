"""`fedpriv plan` and the grid of `fedpriv calibrate` as a user types them."""

import json

import pytest

from tests.cli.test_own_experiments import GOOD
from tests.cli.typed import figures, run
from tests.harness.command_line import fedpriv, refusal

BASE = ("calibrate", "--users", "400", "--cohort", "20", "--rounds", "10", "--target-epsilon", "2")
GRID = ("--grid-cohorts", "20,40", "--grid-rounds", "5,10")

#: Ten users of an own file, and noise for a target.
SOURCE = GOOD.replace("noise=GaussianNoise(multiplier=1.0)", "target_epsilon=4.0").replace(
    'public=users["u0"]', 'public=users["u0"], synthetic=True'
)


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(SOURCE, "utf-8")
    monkeypatch.chdir(tmp_path)
    return "tiny.py:experiment"


@pytest.mark.slow
def test_calibrate_says_the_noise_for_other_cohorts_and_rounds(tmp_path):
    shown = run(*BASE, *GRID, "--out", tmp_path / "noise.svg")
    for part in ("10 rounds", "ε ≤ 2 at δ = 0.00138", "by PLD"):
        assert part in shown.stdout, part
    assert "cohort 20, 10 rounds" in (tmp_path / "noise.svg").read_text("utf-8")
    told = figures(*BASE, *GRID)
    (cell,) = (p for p in told["grid"]["points"] if (p["cohort"], p["rounds"]) == (20, 10))
    assert cell["noise_multiplier"] == told["noise_multiplier"]
    assert cell["noise_on_mean"] == told["noise_on_mean"]
    assert told["grid"]["accountant"] == "PLD" and told["grid"]["delta"] == told["delta"]


def test_plan_says_what_a_run_would_be_like(own, tmp_path):
    options = ("--rounds", 5, "-s", "l2-clip-norm=0.5", "--grid-cohorts", "2,4")
    shown = run("plan", own, *options, "--grid-rounds", "5", "--out", "plan.html")
    for part in ("SYNTHETIC own", "cohort 5, 5 rounds", "C = 0.5"):
        assert part in shown.stdout, part
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"plan.html", "tiny.py"}
    as_json = ("--grid-rounds", "5", "--no-time", "--json")
    told = json.loads(fedpriv("plan", own, *options, *as_json).stdout)
    assert told["rounds"] == 5 and told["round"]["seconds"] is None
    assert [p["cohort"] for p in told["grid"]["points"]] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--grid-cohorts", "20;40"), "--grid-cohorts '20;40'"),
        (("--grid-rounds", "5,1.5"), "--grid-rounds '5,1.5'"),
        (("--grid-rounds", ""), "--grid-rounds"),
        (("--grid-cohorts", "500"), "500"),
        (("--no-grid", "--out", "a.svg"), "--no-grid"),
        (("--out", "a.pdf"), "a.pdf"),
    ],
)
def test_bad_grids_are_one_clear_line_and_code_2(options, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert named in refusal(*BASE, *options)
    assert list(tmp_path.iterdir()) == []


def test_a_plot_that_cannot_be_is_code_2_and_says_why(own):
    options = ["-s", "noise=none", "-s", "target-epsilon=none", "--no-time", "--out", "a.svg"]
    result = fedpriv("plan", own, *options)
    assert result.exit_code == 2 and "a.svg" in result.stderr
