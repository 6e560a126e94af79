"""A round that asks twice: after a kill its line states the price of both answers."""

from dataclasses import replace

import pytest

import fedpriv as fp
from fedpriv import json_lines
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import PoissonSampler
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.folder import RunFolder
from fedpriv.training.algorithm import Algorithm, SumRequest
from tests.harness.other_components import with_components
from tests.harness.toys_of_training import labelled
from tests.tasks.people import task

USERS = {f"u{number:02d}": labelled(3, seed=number) for number in range(20)}


class Killed(BaseException):
    pass


class Twice(Algorithm):
    def step(self, state, door):
        first = door.ask(SumRequest(params=state.params))
        second = door.ask(SumRequest(params=state.params, name="second"))
        return state.after({n: a + first[n] + second[n] for n, a in state.params.items()})


def asks_twice(made):
    mechanism = Mechanism(
        sampler=PoissonSampler(num_users=20, expected_cohort_size=5),
        bound=Rounded(bound=Clip(l2_clip_norm=0.5)),
        privatizer=Gaussian(noise_multiplier=1.0),
    )
    plan = Plan(mechanism=mechanism, num_rounds=4, delta=1e-4)
    return replace(made, plan=plan, algorithm=Twice())


@pytest.mark.parametrize("round_num", [1, 2])
def test_a_line_that_a_kill_left_out_states_all_charges(round_num, tmp_path, monkeypatch):
    experiment = FederatedExperiment(
        name="twice", description="", task=lambda _: task(users=USERS), rounds=2, delta=1e-4
    ).with_options({"noise-multiplier": 1.0})
    experiment = with_components(experiment, asks_twice)
    record = RunFolder.record

    def killed(self, released, diagnostics):
        if released["round_num"] == round_num:
            raise Killed
        return record(self, released, diagnostics)

    monkeypatch.setattr(RunFolder, "record", killed)
    with pytest.raises(Killed):
        fp.run(experiment, tmp_path / "run", progress=False)
    monkeypatch.setattr(RunFolder, "record", record)
    fp.resume(tmp_path / "run", experiment=experiment, progress=False)
    lines = json_lines.read(tmp_path / "run" / "rounds.jsonl")
    state = read_ledger(tmp_path / "run" / "ledger.jsonl")[1]
    assert list(state.charged_before) == [2, 4]
    for line, charges in zip(lines, state.charged_before, strict=True):
        assert line["epsilon_charges"] >= charges
        assert line["epsilon"] >= state.plan.epsilon(charges).value - 1e-9
    assert verify_run(tmp_path / "run").ok
