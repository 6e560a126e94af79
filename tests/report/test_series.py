"""Reading run folders: redone rounds, refusals."""

import json
import math

import pytest

from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import Unprotected
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody
from fedpriv.report.run_record import guaranteed, last_value, points, read_run, spent
from tests.harness.refusals import refuses


def test_of_a_redone_round_the_last_attempt_counts(make_run) -> None:
    folder = make_run(rounds=3, every=1)
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    redone = json.loads(lines[1]) | {"attempt": 2, "epsilon": 5.0}
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(redone) + "\n")
    run = read_run(folder)
    assert len(run.attempts) == 4
    assert [row["round_num"] for row in run.released] == [1, 2, 3]
    assert run.released[1]["epsilon"] == 5.0


def test_values_that_were_not_measured_are_left_out() -> None:
    rows = (
        {"round_num": 1, "x": None},
        {"round_num": 2, "x": 0.5},
        {"round_num": 3, "x": math.nan},
        {"round_num": 4},
    )
    assert points(rows, "x") == ([2], [0.5])
    assert last_value(rows, "x") == 0.5
    assert last_value(rows, "y") is None


def test_a_mechanism_of_ones_own_without_noise_is_not_private(make_run, tmp_path) -> None:
    mechanism = Mechanism(
        sampler=Everybody(num_users=12), bound=Clip(l2_clip_norm=1.0), privatizer=Unprotected()
    )
    plan = Plan(mechanism=mechanism, num_rounds=3, delta=1e-3)
    assert "noise" not in plan.to_json()
    Ledger.create(tmp_path / "ledger.jsonl", plan, mode="simulation").close()
    assert not read_run(tmp_path).private and read_run(make_run(rounds=3)).private


def test_epsilon_of_a_run(make_run) -> None:
    assert spent(read_run(make_run("a", noise_multiplier=None))).value == math.inf
    run = read_run(make_run("b", rounds=5, planned=20))
    assert 0 < spent(run).value < guaranteed(run).value
    assert (run.rounds_done, run.rounds_planned) == (5, 20)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", ("None",)),
        ('{"format":"fedpriv-run","version":2}', (2,)),
        ("[]", ("list",)),
        ("{", ()),
    ],
)
def test_what_is_not_a_run_is_refused(tmp_path, content: str, message: str) -> None:
    with refuses(ValueError, "experiment.json"):
        read_run(tmp_path)
    (tmp_path / "experiment.json").write_text(content)
    with refuses(ValueError, *message):
        read_run(tmp_path)
