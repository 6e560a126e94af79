"""Centralised experiments in run folders: charged every step, kept at evaluations, resumed."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import numpy as np
import pytest

from fedpriv import cli, json_lines
from fedpriv.backends import SerialBackend
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.build import build
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.runs.backends import on_ray, on_threads
from fedpriv.runs.loop import rounds
from fedpriv.runs.noise_root import noise_root
from fedpriv.runs.prepared import start_run
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.command_line import CliRunner
from tests.harness.resumed import resume_run
from tests.tasks.sixty import features_and_labels, sixty

NAME = "synthetic_central:synthetic_experiment"


def task(experiment, corpus):
    x, y = features_and_labels()
    return sixty(public=LogisticGradients(x[:10], y[:10]), num_public=10)


def synthetic_experiment():
    return CentralExperiment(
        name="synthetic-experiment",
        description="A test.",
        task=task,
        batch_size=6,
        steps=20,
        eval_every=6,
        delta=1e-3,
    ).with_options(
        {
            "noise_multiplier": 1.0,
            "learning_rate": 0.5,
            "optimizer": "adam",
            "preconditioner": "public-rmsprop",
        }
    )


@pytest.fixture(autouse=True)
def known(monkeypatch):
    module = ModuleType("synthetic_central")
    module.synthetic_experiment = synthetic_experiment
    monkeypatch.setitem(sys.modules, "synthetic_central", module)


class Dying(SerialBackend):
    """Dies in the middle of a step, after its charge."""

    def __init__(self, components, at):
        super().__init__(trainer=components.trainer, measure=components.task.evaluate)
        self._at = at

    def partial_sum(self, **given):
        if (given["round_num"], given["attempt"]) == self._at:
            raise KeyboardInterrupt
        return super().partial_sum(**given)


def dies(at):
    return lambda experiment, components: Dying(components, at)


def kept(folder):
    return [line["round_num"] for line in json_lines.read(folder / "rounds.jsonl")]


def keys(folder):
    """Return the keys of which a run in a folder was drawn."""
    root = Key.simulation(0)
    facts = read_ledger(folder / "ledger.jsonl")[1].extra
    return {"root": root, "noise": noise_root(root, facts)}


def model(folder, round_num):
    from fedpriv.checkpoints.store import CheckpointStore

    return CheckpointStore(folder / "checkpoints").load(round_num)[0]


@pytest.mark.slow
def test_a_whole_run_is_the_loop_without_a_folder(tmp_path):
    summary = start_run(synthetic_experiment(), NAME, None, tmp_path / "r").run()
    components = build(synthetic_experiment())
    backend = SerialBackend(trainer=components.trainer, measure=components.task.evaluate)
    *_, (record, state) = rounds(components, backend, **keys(tmp_path / "r"), eval_every=6)
    found = model(tmp_path / "r", 20)
    assert all(np.array_equal(found[name], state.params[name]) for name in state.params)
    assert summary["accuracy_public"] == record.released.measured["accuracy"] > 0.5
    assert (summary["rounds"], summary["charges"], summary["unit"]) == (20, 20, "example")
    assert summary["epsilon"] == components.plan.epsilon(20).value


@pytest.mark.slow
def test_every_step_is_charged_and_every_sixth_and_the_last_are_kept(tmp_path):
    start_run(synthetic_experiment(), NAME, None, tmp_path / "r", keep_last=None).run()
    assert kept(tmp_path / "r") == [6, 12, 18, 20]
    assert [
        line["round_num"] for line in json_lines.read(tmp_path / "r" / "diagnostics.jsonl")
    ] == [
        6,
        12,
        18,
        20,
    ]
    found = verify_run(tmp_path / "r")
    assert found.ok, found.checks
    assert (found.num_charges, found.num_releases, found.num_lost) == (20, 4, 0)
    assert found.epsilon == synthetic_plan().epsilon(20)


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["with its steps", "by its budget"])
def test_the_last_step_is_kept_and_measured_wherever_it_falls(tmp_path, ends):
    """Step 20, or step 15 where no more can be paid for, is none of every sixth."""
    options, last = {}, 20
    if ends == "by its budget":
        options, last = {"noise-multiplier": 1.0}, 15
        options["target-epsilon"] = synthetic_plan().epsilon(15).value * (1 + 1e-6)
    experiment, folder = synthetic_experiment().with_options(options), tmp_path / "r"
    start_run(experiment, NAME, None, folder).run()
    components = build(experiment)
    backend = SerialBackend(trainer=components.trainer, measure=components.task.evaluate)
    *_, (record, state) = rounds(components, backend, **keys(folder), eval_every=6)
    assert state.round_num == last and kept(folder) == [*range(6, last, 6), last]
    for name, array in model(folder, last).items():
        np.testing.assert_array_equal(array, state.params[name])
    with Ledger.open(folder / "ledger.jsonl") as ledger:
        assert ledger.has_release(last, 1) and ledger.state.rounds_done == last
    line = json_lines.read(folder / "rounds.jsonl")[-1]
    assert line["accuracy_public"] == record.released.measured["accuracy"] is not None
    prepared = resume_run(folder)
    assert prepared.state.round_num == last
    np.testing.assert_array_equal(prepared.state.params["weight"], state.params["weight"])
    prepared.folder.close()


def synthetic_plan():
    return build(synthetic_experiment()).plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "goes_on_from", "reaches", "lost"),
    [((3, 1), 0, 17, 3), ((9, 1), 6, 17, 3), ((13, 1), 12, 19, 1), ((20, 1), 18, 18, 2)],
)
def test_a_killed_run_goes_on_from_the_last_step_kept(tmp_path, at, goes_on_from, reaches, lost):
    """Steps since are lost attempts: spent, so that the run ends that much earlier."""
    folder = tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        start_run(synthetic_experiment(), NAME, None, folder, make_backend=dies(at)).run()
    assert verify_run(folder).ok
    prepared = resume_run(folder)
    assert prepared.state.round_num == goes_on_from
    assert prepared.ledger.charges == at[0]
    summary = prepared.run()
    assert (summary["rounds"], summary["charges"]) == (reaches, 20)
    assert summary["epsilon"] == synthetic_plan().epsilon(20).value
    found = verify_run(folder)
    assert found.ok, found.checks
    assert (found.num_charges, found.num_lost) == (20, lost)
    assert found.epsilon == synthetic_plan().epsilon(20)
    assert kept(folder)[-1] == reaches and len(set(kept(folder))) == len(kept(folder))


@pytest.mark.slow
def test_killed_twice_at_the_same_step(tmp_path):
    folder = tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        start_run(synthetic_experiment(), NAME, None, folder, make_backend=dies((9, 1))).run()
    with pytest.raises(KeyboardInterrupt):
        resume_run(folder, make_backend=dies((9, 2))).run()
    summary = resume_run(folder).run()
    # 1 to 9, then 7 to 9 twice more: 12 and 15 charges; five are left for 7 to 14... of 20.
    assert (summary["rounds"], summary["charges"]) == (14, 20)
    found = verify_run(folder)
    assert found.ok and found.num_lost == 6


@pytest.mark.parametrize("place", ["release", "record"])
def test_killed_between_two_writes_of_a_kept_step(tmp_path, monkeypatch, place):
    from fedpriv.runs.folder import RunFolder

    def dead(self, *given):
        raise KeyboardInterrupt

    folder = tmp_path / "r"
    prepared = start_run(synthetic_experiment(), NAME, None, folder)
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        if place == "release":
            broken.setattr(Ledger, "release", dead)
        else:
            broken.setattr(RunFolder, "record", dead_when_due(RunFolder.record))
        prepared.run()
    prepared = resume_run(folder)
    assert prepared.state.round_num == 6 and kept(folder) == [6]
    assert prepared.run()["rounds"] == 20
    assert verify_run(folder).ok and verify_run(folder).num_lost == 0
    assert kept(folder) == [6, 12, 18, 20]


def dead_when_due(record):
    def write(self, released, diagnostics):
        if released["round_num"] == 6:
            raise KeyboardInterrupt
        record(self, released, diagnostics)

    return write


def test_a_resumed_run_that_has_ended_spends_nothing(tmp_path):
    start_run(synthetic_experiment(), NAME, None, tmp_path / "r").run()
    summary = resume_run(tmp_path / "r").run()
    assert (summary["rounds"], summary["charges"]) == (20, 20)
    assert summary["accuracy_public"] is not None
    assert verify_run(tmp_path / "r").ok


def test_a_tampered_line_is_found(tmp_path):
    start_run(synthetic_experiment(), NAME, None, tmp_path / "r").run()
    file = tmp_path / "r" / "rounds.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1]["round_num"] = 13  # charged, on the way to step 18, and released to nobody
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = verify_run(tmp_path / "r")
    assert not found.ok and "not released" in str(found.checks)


class TestRefusals:
    def test_other_backends_before_a_folder_is_made(self, tmp_path):
        for make_backend in (on_threads(2), on_ray(Unused(), NAME, None)):
            with pytest.raises(ValueError, match=r"one process; leave .* out"):
                start_run(
                    synthetic_experiment(), NAME, None, tmp_path / "r", make_backend=make_backend
                )
        assert not (tmp_path / "r").exists()

    def test_a_corpus(self, tmp_path, tiny_corpus):
        with pytest.raises(ValueError, match="brings its own data"):
            start_run(synthetic_experiment(), NAME, tiny_corpus, tmp_path / "r")
        assert not (tmp_path / "r").exists()


class Unused:
    """A cluster that must not be started."""

    share = None


class TestCommand:
    def run(self, *arguments):
        return CliRunner().invoke(cli.app, [str(a) for a in arguments])

    @pytest.mark.slow
    def test_by_module_and_function(self, tmp_path):
        said = self.run("run", NAME, "--out", tmp_path / "r", "-s", "steps=8", "--seed", "3")
        assert said.exit_code == 0, said.output
        assert "SYNTHETIC data sixty, 60 training examples" in said.output
        assert "on the test set" in said.output and "example-level" in said.output
        assert "user" not in said.output
        assert (tmp_path / "r" / "report.html").is_file()
        document = json.loads((tmp_path / "r" / "experiment.json").read_text())
        assert document["experiment"]["seed"] == 3 and document["plan"]["unit"] == "example"
        verified = self.run("verify", tmp_path / "r")
        assert verified.exit_code == 0, verified.output


@pytest.mark.slow
def test_a_redone_step_has_another_batch_and_other_noise(tmp_path, one_root):
    """Of the attempts at step 7 the second goes into the model; with the first's it differs."""
    with pytest.raises(KeyboardInterrupt):
        start_run(
            synthetic_experiment(), NAME, None, tmp_path / "a", make_backend=dies((9, 1))
        ).run()
    resume_run(tmp_path / "a", keep_last=None).run()
    start_run(synthetic_experiment(), NAME, None, tmp_path / "b", keep_last=None).run()
    assert np.array_equal(model(tmp_path / "a", 6)["weight"], model(tmp_path / "b", 6)["weight"])
    assert not np.array_equal(
        model(tmp_path / "a", 12)["weight"], model(tmp_path / "b", 12)["weight"]
    )
