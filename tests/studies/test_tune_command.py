"""`fedpriv tune` as a user types it."""

import json
import os

import pytest

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.privacy.statement.verify import verify_run
from tests.harness.command_line import CliRunner

BASE = (
    *("tune", "dp-fedavg-tags", "--rounds", "2", "--cohort", "6", "--noise-multiplier", "1"),
    *("--delta", "0.001", "-s", "eval-every=2", "--mean", "2"),
)


def call(corpus, out, *options, grid="l2-clip-norm=0.1,0.5"):
    typed = [*BASE, "--corpus", str(corpus.directory), "--grid", grid, "--out", str(out), *options]
    return CliRunner().invoke(app, typed)


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
    ("options", "grid", "said"),
    [
        (["--score", "accuracy"], "l2-clip-norm=0.1,0.5", "not charged"),
        ([], "l2-clip-norm", "NAME=V1,V2"),
        ([], "rounds=1,2", "equal cost"),
        (["--shape", "0"], "l2-clip-norm=0.1", "shape 0"),
        (["--secure", "--seed", "3"], "l2-clip-norm=0.1", "takes no seed"),
        (["--grid", "l2-clip-norm=1"], "l2-clip-norm=0.1", "given twice"),
    ],
)
def test_bad_input_says_what_to_do_and_draws_nothing(tiny_corpus, tmp_path, options, grid, said):
    result = call(tiny_corpus, tmp_path / "tuned", *options, grid=grid)
    assert result.exit_code != 0
    assert said in str(result.exception) + result.output
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
        json.loads((tmp_path / name / "study.json").read_text("utf-8")) for name in ("typed", "own")
    )
    assert own == typed and own["trials"] == {"mean": 2.0, "shape": 1.0}
    assert run.epsilon.accountant == "RDP"
    kept = [
        json.loads((tmp_path / name / "run" / "experiment.json").read_text("utf-8"))["experiment"]
        for name in ("typed", "own")
    ]
    assert kept[0] == kept[1]
    with pytest.raises(ValueError, match="takes no seed"):
        fp.tune("dp-fedavg-tags", tmp_path / "x", grid=grid, secure=True, seed=1, **arguments)
    with pytest.raises(ValueError, match="another"):
        fp.tune(
            "dp-fedavg-tags", tmp_path / "own", grid=grid, **arguments, **options | {"rounds": 3}
        )
