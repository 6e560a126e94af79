"""`fedpriv verify`, and anchors: `--anchor` of it and of `fedpriv run`, `anchor=` in Python."""

import shutil

import pytest

import fedpriv as fp
from tests.cli.typed import SMALL, figures, run
from tests.harness.command_line import fedpriv, refusal
from tests.harness.refusals import refuses


def test_verify_passes_and_fails_by_exit_code(make_run):
    folder = make_run(rounds=1, planned=5, checkpoints=True)
    told = figures("verify", folder)
    assert told["ok"] is True and told["charges"] == 1
    assert "simulated ε" in run("verify", folder).stdout
    data = (folder / "ledger.jsonl").read_bytes()
    (folder / "ledger.jsonl").write_bytes(data.replace(b'"attempt":1', b'"attempt":2', 1))
    as_json, shown = fedpriv("verify", folder, "--json"), fedpriv("verify", folder)
    assert as_json.exit_code == shown.exit_code == 1
    assert '"ok": false' in as_json.stdout and "WRONG" in shown.stdout
    assert str(folder / "missing") in refusal("verify", folder / "missing")


@pytest.mark.slow
def test_a_run_is_started_resumed_and_verified_with_its_anchor(tmp_path, tiny_corpus, monkeypatch):
    monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
    folder, anchor = tmp_path / "run", tmp_path / "elsewhere.anchor"
    run("run", "dp-fedavg-tags", *SMALL, "--secure", "--out", folder, "--anchor", anchor)
    backup = shutil.copytree(folder, tmp_path / "backup")
    run("run", "--resume", folder, "--anchor", anchor)
    found = figures("verify", folder, "--anchor", anchor)
    assert found["ok"] and any(check["name"] == "anchor" for check in found["checks"])
    assert "--anchor" in run("verify", folder).stdout
    assert fedpriv("verify", backup, "--anchor", anchor).exit_code == 1
    done = fedpriv("run", "--resume", backup, "--anchor", anchor)
    assert done.exit_code == 2 and "Traceback" not in done.stderr
    with refuses(ValueError, folder):
        fp.resume(folder, progress=False)
    fp.resume(folder, anchor=anchor, progress=False)
    with refuses(ValueError, "out="):
        fp.run("dp-fedavg-tags", anchor=anchor, progress=False)
