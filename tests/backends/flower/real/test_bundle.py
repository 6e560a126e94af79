"""The Flower bundle: what is in it, and that it runs where nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[4]
ALLOWED = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
ONE_ROUND = {
    "experiment": "adadps-tags", "noise_multiplier": 0.5, "rounds": 1, "cohort": 4,
}  # fmt: skip


@pytest.fixture(scope="session")
def bundle(processes, tmp_path_factory) -> Path:
    """The bundle that `flwr build` makes of a checkout with tests, caches and all."""
    app = processes.copy_app(tmp_path_factory.mktemp("bundle") / "fedpriv")
    (app / "tests").mkdir()
    (app / "tests" / "helper.py").write_text("", encoding="utf-8")
    (app / "fedpriv" / "test_left_behind.py").write_text("", encoding="utf-8")
    (app / "runs").mkdir()
    (app / "runs" / "experiment.json").write_text("{}", encoding="utf-8")
    home = tmp_path_factory.mktemp("flower-home")
    done = subprocess.run(
        [processes.BIN / "flwr", "build"],
        cwd=app,
        env={**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0",
             "FLWR_DISABLE_UPDATE_CHECK": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (fab,) = app.glob("*.fab")
    return fab


def test_the_bundle_holds_the_apps_and_the_library_and_nothing_else(bundle):
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
        text = archive.read("pyproject.toml").decode()
    tops = {name.split("/")[0] for name in names}
    assert {"server", "client", "fedpriv", "simulations", "pyproject.toml", "LICENSE"} <= tops
    assert not tops & {"tests", "benchmarks", "docs", "runs", ".venv", "shared"}
    assert not [name for name in names if "test_" in name or "__pycache__" in name]
    missing = {
        path.relative_to(CHECKOUT).as_posix()
        for room in ("fedpriv", "server", "client", "simulations")
        for path in (CHECKOUT / room).rglob("*.py")
    } - names
    assert missing == set()
    strange = {name for name in names if Path(name).suffix not in ALLOWED}
    assert {name for name in strange if not name.startswith(".info/")} == {"LICENSE"}
    assert 'serverapp = "server.app:app"' in text and 'clientapp = "client.app:app"' in text
    assert bundle.stat().st_size < 3_000_000


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.ray
def test_one_round_from_the_bundle_in_an_empty_directory(
    processes, flower, bundle, tiny_corpus, tmp_path
):
    empty = tmp_path / "installed"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(empty)
    flower.start_superlink(simulation=True)
    run = tmp_path / "run"
    log = flower.run(
        empty,
        processes.run_config(**ONE_ROUND, corpus=str(tiny_corpus), out=str(run)),
        "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=1",
    )
    assert (run / "summary.json").is_file(), log[-4000:]
    assert json.loads((run / "summary.json").read_text("utf-8"))["rounds"] == 1
