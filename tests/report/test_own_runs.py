"""Folders of trainings of one's own: reported, exported, compared and loaded as others are."""

from contextlib import closing

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedpriv as fp
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.page import render
from fedpriv.report.run_record import epsilon_spent, read_run
from tests.harness.command_line import fedpriv
from tests.harness.shown import words
from tests.harness.toys_of_training import assert_same
from tests.running.loop.test_hardened import EXACT, PARAMS, ROSTER, Ones


@pytest.fixture
def own(tmp_path):
    """The folder of a finished training, and what came out of it."""
    out = tmp_path / "own-app"
    return out, fp.averaging(EXACT, roster=ROSTER, params=PARAMS, out=out)(Ones())


def test_what_verifies_is_reported_with_its_epsilon_and_its_statement(own):
    folder, trained = own
    assert verify_run(folder).ok
    code, out, err = fedpriv("report", folder)
    assert code == 0, err
    page = (folder / "report.html").read_text("utf-8")
    assert out.strip() == str(folder / "report.html")
    assert "<h1>own-app</h1>" in page and f"{trained.rounds_done} of {trained.rounds_done}" in page
    for said in ("add-remove relation", "PLD accountant", "does NOT cover: whatever else your own"):
        assert said in page
    assert "Unfinished" not in page and "Accuracy" not in page and "every option" not in page
    run = read_run(folder)
    assert run.figures == () and run.plan == EXACT.to_json() and not run.synthetic


def test_a_loop_that_records_no_rounds_is_drawn_from_its_ledger(tmp_path):
    plan = fp.Rounds(users=400, cohort=20, rounds=3, delta=1e-4).plan(
        l2_clip_norm=1.0, noise_multiplier=1.0
    )
    with closing(fp.RunFolder.of_plan(tmp_path / "run", plan, mode="simulation")) as folder:
        state = folder.resume(fp.ArrayState(params=PARAMS))
        begun = words(render(read_run(tmp_path / "run")))
        for number in (1, 2, 3):
            folder.ledger.charge(number, 1)
            state = state.after(PARAMS)
            folder.keep(state)
    assert not (tmp_path / "run" / "rounds.jsonl").exists()
    rounds, spent = epsilon_spent(read_run(tmp_path / "run"))
    assert rounds == [1, 2, 3] and spent == [plan.epsilon(n).value for n in rounds]
    page = words(render(read_run(tmp_path / "run")))
    assert "3 of 3" in page and "0 of 3" in begun


def test_its_model_is_exported_with_a_card(own, tmp_path):
    folder, trained = own
    code, _, err = fedpriv("export", folder, "--to", tmp_path / "model")
    assert code == 0, err
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert_same(found, trained.params)
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    assert "# own-app" in card and "| ε |" in card and "does NOT cover" in card
    assert f"δ = {trained.epsilon.delta}" in card or "δ = " in card


@pytest.mark.slow
def test_a_run_of_an_experiment_that_lost_its_document_is_not_taken_for_one(tiny_corpus, tmp_path):
    numbers = {"rounds": 1, "cohort": 6, "noise_multiplier": 1.0, "delta": 1e-3}
    out = tmp_path / "run"
    fp.run("dp-fedavg-tags", out, corpus=tiny_corpus.directory, progress=False, **numbers)
    (out / "experiment.json").unlink()
    for command in (("report", out), ("export", out, "--to", tmp_path / "m"), ("compare", out)):
        code, _, err = fedpriv(*command)
        assert code != 0 and "experiment.json" in err and "restore" in err


def test_a_perturbed_training_is_read_too(tmp_path):
    made = fp.bolt_on(
        lambda walk: {"w": np.zeros(3)},
        fp.loss_constants("logistic", regulariser=0.01),
        1,
        0.2,
        num_rows=100,
        params={"w": np.zeros(3, np.float32)},
        target_epsilon=2.0,
        out=tmp_path / "run",
    )
    assert fedpriv("report", tmp_path / "run")[0] == 0
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "1 of 1" in page and "Unfinished" not in page
    assert fedpriv("export", tmp_path / "run", "--to", tmp_path / "model")[0] == 0
    found = load_file(tmp_path / "model" / "model.safetensors")
    np.testing.assert_array_equal(found["w"], made.params["w"])
