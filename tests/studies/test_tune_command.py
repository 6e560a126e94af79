"""`fedpriv tune` as a user types it."""

import json
import os

import pytest

import fedpriv as fp
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.document import read_document
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses

BASE = (
    *("tune", "dp-fedavg-tags", "--rounds", "2", "--cohort", "6", "--noise-multiplier", "1"),
    *("--delta", "0.001", "-s", "eval-every=2", "--mean", "2"),
)


def call(corpus, out, *options, grid="l2-clip-norm=0.1,0.5"):
    return fedpriv(*BASE, "--corpus", corpus.directory, "--grid", grid, "--out", out, *options)


@pytest.mark.slow
def test_a_study_prints_its_epsilon_and_nothing_of_its_trials(tiny_corpus, tmp_path, caplog):
    out = tmp_path / "tuned"
    result = call(tiny_corpus, out)
    assert result.exit_code == 0, result.output
    assert "by RDP" in result.stdout and str(out / "run") in result.stdout
    assert "round" not in result.output and "secret" not in result.output
    assert sorted(os.listdir(out)) == ["run", "study.json"]
    found = verify_run(out / "run")
    assert found.ok and found.epsilon is not None and found.epsilon.accountant == "RDP"
    again = call(tiny_corpus, out, "--json")
    told = json.loads(again.stdout)
    assert told["privacy"]["epsilon"] == found.epsilon.value
    assert told["trials"] == {"mean": 2.0, "shape": 1.0} and told["run_dir"] == str(out / "run")
    assert "trial" not in caplog.text


@pytest.mark.parametrize(
    ("options", "grid", "named"),
    [
        (["--score", "accuracy"], "l2-clip-norm=0.1,0.5", "'accuracy'"),
        ([], "l2-clip-norm", "l2-clip-norm"),
        ([], "rounds=1,2", "rounds 2"),
        (["--shape", "0"], "l2-clip-norm=0.1", "shape 0"),
        (["--secure", "--seed", "3"], "l2-clip-norm=0.1", "(got 3)"),
        (["--grid", "l2-clip-norm=1"], "l2-clip-norm=0.1", "--grid l2-clip-norm"),
    ],
)
def test_bad_input_is_named_and_draws_nothing(tiny_corpus, tmp_path, options, grid, named):
    result = call(tiny_corpus, tmp_path / "tuned", *options, grid=grid)
    assert result.exit_code != 0 and named in result.stderr
    assert not (tmp_path / "tuned").exists()


@pytest.mark.slow
def test_python_runs_the_same_study(tiny_corpus, tmp_path):
    """The released run of `fedpriv.tune` is that of the command, whose options it takes."""
    assert call(tiny_corpus, tmp_path / "typed").exit_code == 0
    options = {"rounds": 2, "cohort": 6, "noise_multiplier": 1.0, "delta": 1e-3, "eval_every": 2}
    arguments = {"corpus": tiny_corpus.directory, "mean": 2, "progress": False}
    grid = {"l2_clip_norm": [0.1, 0.5]}
    run = fp.tune("dp-fedavg-tags", tmp_path / "own", grid=grid, **arguments, **options)
    typed, own = (
        [
            json.loads((tmp_path / name / "study.json").read_text("utf-8")),
            read_document(tmp_path / name / "run")["experiment"],
        ]
        for name in ("typed", "own")
    )
    assert own == typed and own[0]["trials"] == {"mean": 2.0, "shape": 1.0}
    assert run.epsilon.accountant == "RDP"
    with refuses(ValueError, 1):
        fp.tune("dp-fedavg-tags", tmp_path / "x", grid=grid, secure=True, seed=1, **arguments)
    with refuses(ValueError, tmp_path / "own"):
        fp.tune("dp-fedavg-tags", tmp_path / "own", grid=grid, **arguments, **options, seed=3)
