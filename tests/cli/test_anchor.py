"""`--anchor` of `fedpriv run` and `verify`, and `anchor=` in Python."""

import json
import shutil

import pytest

import fedpriv as fp
from tests.cli.typed import SMALL, main, run
from tests.harness.refusals import refuses


@pytest.fixture(autouse=True)
def small_corpus(tiny_corpus, monkeypatch):
    """What a command finds that is given no corpus."""
    monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))


@pytest.mark.slow
def test_a_run_is_started_resumed_and_verified_with_its_anchor(tmp_path, monkeypatch, capsys):
    folder, anchor = tmp_path / "run", tmp_path / "elsewhere.anchor"
    run("run", "dp-fedavg-tags", *SMALL, "--secure", "--out", folder, "--anchor", anchor)
    backup = shutil.copytree(folder, tmp_path / "backup")
    run("run", "--resume", folder, "--anchor", anchor)
    found = json.loads(run("verify", folder, "--anchor", anchor, "--json").stdout)
    assert found["ok"] and any(check["name"] == "anchor" for check in found["checks"])
    assert "--anchor" in run("verify", folder).stdout
    assert main(monkeypatch, "verify", backup, "--anchor", anchor) == 1
    assert main(monkeypatch, "run", "--resume", backup, "--anchor", anchor) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert main(monkeypatch, "run", "--resume", folder) == 2


@pytest.mark.slow
def test_python_takes_one_too(tmp_path):
    options = {"rounds": 2, "noise_multiplier": 1.0, "delta": 1e-3, "cohort": 6}
    folder, anchor = tmp_path / "run", tmp_path / "elsewhere.anchor"
    fp.run("dp-fedavg-tags", folder, anchor=anchor, progress=False, **options)
    with refuses(ValueError, folder):
        fp.resume(folder, progress=False)
    fp.resume(folder, anchor=anchor, progress=False)
    with refuses(ValueError, "out="):
        fp.run("dp-fedavg-tags", anchor=anchor, progress=False, **options)
