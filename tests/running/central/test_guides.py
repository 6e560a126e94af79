"""Resumed centralised runs: every preconditioner goes on as it was."""

from __future__ import annotations

import pytest

from fedpriv.backends import SerialBackend
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.options import entries
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.prepared import start_run
from tests.harness.kills import Killed, after_round, killed
from tests.harness.resumed import resume_run
from tests.harness.tag_runs import checkpoint, same
from tests.running.central.synthetic import (
    KEPT_EVERY,
    KILLS,
    KINDS,
    NAME,
    STEPS,
    Seen,
    experiment,
)


def test_every_kind_of_preconditioner_is_here():
    [known] = (
        entry.choices for entry in entries(CentralExperiment) if entry.path == "preconditioner"
    )
    assert {experiment(kind).preconditioner.kind for kind in KINDS} == set(known)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_three_times_is_the_run_that_was_not(kind, tmp_path):
    """Nothing is lost: the states of the preconditioner and the optimiser, and the round go on."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    start_run(experiment(kind), NAME, None, whole, keep_last=None).run()
    prepared = start_run(experiment(kind), NAME, None, killed, keep_last=None)
    for round_num in KILLS:
        with pytest.raises(Killed):
            prepared.run(after_round(round_num))
        prepared = resume_run(killed, keep_last=None)
        assert prepared.state.round_num == round_num
    prepared.run()
    for round_num in range(KEPT_EVERY, STEPS + 1, KEPT_EVERY):
        assert same(checkpoint(killed, round_num), checkpoint(whole, round_num)), round_num
    assert not same(checkpoint(whole, STEPS), checkpoint(whole, KEPT_EVERY))
    verified = verify_run(killed)
    assert verified.ok and (verified.num_charges, verified.num_lost) == (STEPS, 0)


def test_another_attempt_at_a_step_looks_at_another_public_batch(tmp_path):
    """It dies in the middle of a step, after its preconditioner has looked."""
    prepared = start_run(experiment("r-pub"), NAME, None, tmp_path / "r")
    with killed(SerialBackend, "sum", 8):
        prepared.run()
    first = Seen.looks[1:]  # before all steps the task is tried on public examples, once
    assert len(first) == 8
    Seen.looks.clear()
    resume_run(tmp_path / "r").run()
    again = Seen.looks[1:3]  # steps 7 and 8, whose first attempts are lost
    assert all(len(look) == 4 for look in first + again)
    assert len(set(first[6:8] + again)) == 4
