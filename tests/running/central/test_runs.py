"""Centralised experiments in run folders: charged every step, kept at evaluations, resumed."""

import json

import numpy as np
import pytest

from fedpriv import json_lines
from fedpriv.backends import SerialBackend
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.options import entries, kind_of
from fedpriv.experiments.preconditioning import PreconditionerRecipe
from fedpriv.mechanisms.preconditioners import Preconditioner
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.runs.backends import on_ray
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.loop import rounds
from fedpriv.runs.noise_root import noise_root
from fedpriv.runs.prepared import start_run
from tests.cli.typed import run
from tests.harness.kills import Killed, after_round, killed
from tests.harness.refusals import refuses
from tests.harness.resumed import resume_run
from tests.harness.tag_runs import checkpoint, same
from tests.running.central.synthetic import KEPT_EVERY, KILLS, KINDS, NAME, STEPS, Seen, experiment

OPTIONS = {"steps": 20, "eval_every": 6, "optimizer": "adam"}
"""Twenty steps, of which every sixth and the last are kept."""


def twenty(**options):
    return experiment("public-rmsprop, step").with_options({**OPTIONS, **options})


def started(folder, **options):
    return start_run(twenty(), NAME, None, folder, **options)


def kept(folder, name="rounds"):
    return [line["round_num"] for line in json_lines.read(folder / f"{name}.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize("last", [20, 15])
def test_every_step_is_charged_and_every_sixth_and_the_last_are_kept(tmp_path, last):
    """The last falls due or not: step 15 is that after which no more can be paid for."""
    options, folder = {}, tmp_path / "r"
    if last == 15:
        target = build(twenty()).plan.epsilon(15).value * (1 + 1e-6)
        options = {"noise-multiplier": 1.0, "target-epsilon": target}
    made = twenty(**options)
    summary = start_run(made, NAME, None, folder).run()
    components, root = build(made), Key.simulation(0)
    backend = SerialBackend(trainer=components.trainer, measure=components.task.evaluate)
    noise = noise_root(root, read_ledger(folder / "ledger.jsonl")[1].extra)
    *_, (record, state) = rounds(components, backend, root, noise=noise, eval_every=6)
    assert state.round_num == last
    assert kept(folder) == kept(folder, "diagnostics") == [*range(6, last, 6), last]
    assert same(checkpoint(folder, last), state.params)
    found = verify_run(folder)
    assert found.ok and found.epsilon == components.plan.epsilon(last)
    assert (found.num_charges, found.num_releases, found.num_lost) == (last, len(kept(folder)), 0)
    assert (summary["rounds"], summary["charges"], summary["unit"]) == (last, last, "example")
    assert summary["epsilon"] == found.epsilon.value
    line = json_lines.read(folder / "rounds.jsonl")[-1]
    measured = record.released.measured["accuracy"]
    assert line["accuracy_public"] == summary["accuracy_public"] == measured > 0.5
    prepared = resume_run(folder)
    assert prepared.state.round_num == last
    np.testing.assert_array_equal(prepared.state.params["weight"], state.params["weight"])
    prepared.folder.close()


def check_ended(folder, summary, reaches, lost):
    assert (summary["rounds"], summary["charges"]) == (reaches, 20)
    found, spent = verify_run(folder), build(twenty()).plan.epsilon(20)
    assert found.ok and found.epsilon == spent and summary["epsilon"] == spent.value
    assert (found.num_charges, found.num_lost) == (20, lost)
    assert kept(folder)[-1] == reaches and len(set(kept(folder))) == len(kept(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "goes_on_from", "reaches", "lost"),
    [
        ([3], 0, 17, 3),
        ([9], 6, 17, 3),
        ([13], 12, 19, 1),
        ([20], 18, 18, 2),
        # 1 to 9, then 7 to 9 twice more: 12 and 15 charges; five are left for 7 to 14... of 20.
        ([9, 3], 6, 14, 6),
    ],
)
def test_a_killed_run_goes_on_from_the_last_step_kept(tmp_path, kills, goes_on_from, reaches, lost):
    """Steps since are lost attempts: spent, so that the run ends that much earlier."""
    folder = tmp_path / "r"
    prepared = started(folder)
    for steps in kills:
        with killed(SerialBackend, "sum", steps):
            prepared.run()
        assert verify_run(folder).ok
        prepared = resume_run(folder)
        assert prepared.state.round_num == goes_on_from
    assert prepared.ledger.charges == sum(kills)
    check_ended(folder, prepared.run(), reaches, lost)


@pytest.mark.parametrize(
    ("owner", "name", "call"), [(Ledger, "release", 1), (RunFolder, "record", 6)]
)
def test_killed_between_two_writes_of_a_kept_step(tmp_path, owner, name, call):
    folder = tmp_path / "r"
    prepared = started(folder)
    with killed(owner, name, call):
        prepared.run()
    prepared = resume_run(folder)
    assert prepared.state.round_num == 6 and kept(folder) == [6]
    assert prepared.run()["rounds"] == 20
    assert verify_run(folder).ok and verify_run(folder).num_lost == 0
    assert kept(folder) == [6, 12, 18, 20]


def test_a_run_that_has_ended_spends_nothing_and_a_tampered_line_of_it_is_found(tmp_path):
    started(tmp_path / "r").run()
    summary = resume_run(tmp_path / "r").run()
    assert (summary["rounds"], summary["charges"]) == (20, 20)
    assert summary["accuracy_public"] is not None
    assert verify_run(tmp_path / "r").ok
    file = tmp_path / "r" / "rounds.jsonl"
    rows = json_lines.read(file)
    rows[1]["round_num"] = 13  # charged, on the way to step 18, and released to nobody
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "rounds" in {check.name for check in verify_run(tmp_path / "r").checks if not check.ok}


class TestRefusals:
    def test_other_backends_before_a_folder_is_made(self, tmp_path):
        with refuses(ValueError, "ray"):
            started(tmp_path / "r", make_backend=on_ray(Unused(), NAME, None))
        assert not (tmp_path / "r").exists()

    def test_a_corpus(self, tmp_path, tiny_corpus):
        with refuses(ValueError, "synthetic-experiment"):
            start_run(twenty(), NAME, tiny_corpus, tmp_path / "r")
        assert not (tmp_path / "r").exists()


class Unused:
    """A cluster that must not be started."""

    share = None


@pytest.mark.slow
def test_a_command_by_module_and_function(tmp_path):
    done = run("run", NAME, "--out", tmp_path / "r", "-s", "steps=8", "--seed", "3")
    assert "SYNTHETIC data sixty" in done.output and "example-level" in done.output
    assert "user" not in done.output
    assert (tmp_path / "r" / "report.html").is_file()
    document = json.loads((tmp_path / "r" / "experiment.json").read_text())
    assert document["experiment"]["seed"] == 3 and document["plan"]["unit"] == "example"
    run("verify", tmp_path / "r")


def test_every_kind_of_preconditioner_is_here():
    [known] = (
        entry.choices for entry in entries(CentralExperiment) if entry.path == "preconditioner"
    )
    parts = {**Preconditioner.kinds, **PreconditionerRecipe.kinds}.values()
    ours = {kind_of(part) for part in parts if part.__module__.startswith("fedpriv.")}
    own = {"largest-of-sixty"}  # of this folder
    assert {experiment(kind).preconditioner.kind for kind in KINDS} == ours & set(known) | own


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
