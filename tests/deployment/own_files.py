"""Nodes with files of their own that insist on a plan and on code, as docs/deployment.md says."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from fedpriv.privacy.statement.verify import verify_run
from tests.backends.flower.real.processes import BIN, copy_app
from tests.deployment.layout import CHECKOUT, NODES, did, read
from tests.deployment.loopback import Layout, ended

VISITS = CHECKOUT / "examples" / "own-data" / "visits.py"
PEOPLE = 10
CONFIG = {
    "experiment": "simulations.visits:experiment", "anchor": "/anchor/own", "out": "/runs/own",
    "node-users": "/node-users.json", "rounds": 2, "register-seconds": 180.0,
    "options": "roster-file = '/corpus/roster.txt'",
}  # fmt: skip


def own_files(whole: Layout) -> None:
    """Run it, in a folder of its own: with a plan and with code that nodes refuse, and without."""
    folder = whole.folder / "own"
    deploy, app = folder / "deploy", _app(folder / "app")
    _people(folder, deploy)
    bundle = _bundle(app, folder)
    layout = _layout(folder, FEDPRIV_BUNDLES=bundle, FEDPRIV_PLANS="0" * 64)
    try:
        for name in ("superlink", *(f"supernode-{n}" for n in NODES), "serverapp"):
            layout.start(name)
            if name != "serverapp":
                layout.listens(name)
        _clients(layout)
        said = ended(layout.run({**CONFIG, "out": "/runs/no", "anchor": "/anchor/no"}, app))
        found = re.search(r"plan ([0-9a-f]{64}) is not among", said)
        whole.holds(
            "nodes that insist on other plans refuse this one, and nothing is charged",
            found is not None and not verify_run(deploy / "runs" / "no").num_charges, said[-900:],
        )  # fmt: skip
        assert found is not None
        layout.compose = _compose(
            folder,
            FEDPRIV_BUNDLES=bundle,
            FEDPRIV_PLANS=found[1],
            FEDPRIV_EXPERIMENTS=CONFIG["experiment"],
        )
        _clients(layout)
        (app / "client" / "app.py").open("a").write("\n# other code\n")
        said = ended(layout.run({**CONFIG, "out": "/runs/no2", "anchor": "/anchor/no2"}, app))
        whole.holds(
            "nodes that insist on other code run none of this, and nothing is charged",
            "is none that this node runs" in said
            and not verify_run(deploy / "runs" / "no2").num_charges, said[-900:],
        )  # fmt: skip
        _app(app)
        said = ended(layout.run(CONFIG, app))
        logs = said + "".join(layout.log(f"client-{number}") for number in NODES)
        verified = (deploy / "runs" / "own" / "report.html").is_file() and verify_run(
            deploy / "runs" / "own"
        )
        whole.holds(
            "under that plan and that code they train on files of their own",
            verified and verified.ok and verified.num_charges == 2, said[-1500:],
        )  # fmt: skip
        whole.holds("no log has a name of theirs", "Mustermann" not in logs, logs[-600:])
    finally:
        for name in list(layout.running):
            layout.kill(name)


def _layout(folder: Path, **choices: str) -> Layout:
    return Layout.of(folder, _compose(folder, **choices))


def _compose(folder: Path, **choices: str) -> dict:
    return read(environment={
        "FEDPRIV_DEPLOY": str(folder / "deploy"), "FEDPRIV_ANCHOR": str(folder / "deploy/anchor"),
        "FEDPRIV_FILES": "visits.sqlite", "FEDPRIV_ROSTER": "roster.txt", **choices,
    })  # fmt: skip


def _clients(layout: Layout) -> None:
    for number in NODES:
        if f"client-{number}" in layout.running:
            layout.kill(f"client-{number}")
        layout.start(f"client-{number}")


def _app(folder: Path) -> Path:
    """Copy what a bundle is made of, with the page's file among the simulations."""
    shutil.rmtree(folder, ignore_errors=True)
    return copy_app(folder, {"simulations/visits.py": VISITS.read_text("utf-8")})


def _bundle(app: Path, folder: Path) -> str:
    """Return the SHA-256 of the bundle that `flwr build` makes."""
    environment = {**os.environ, "FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    subprocess.run(
        [str(BIN / "flwr"), "build"], cwd=app, env=environment, check=True, capture_output=True
    )
    (file,) = app.glob("*.fab")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    file.unlink()
    return digest


def _people(folder: Path, deploy: Path) -> None:
    """Fill each node's files, and make key, ids, roster and keys by the guide's commands."""
    (deploy / "parts" / "server").mkdir(parents=True)
    folder.chmod(0o711)
    fedpriv = [sys.executable, "-m", "fedpriv", "data"]
    did([*fedpriv, "key", str(folder / "people.key")])
    for number in NODES:
        data = deploy / "data" / f"node-{number}" / "visits.sqlite"
        data.parent.mkdir(parents=True)
        with closing(sqlite3.connect(data)) as db, db:
            db.execute("CREATE TABLE visits (patient, age, pressure, returned)")
            rng = np.random.default_rng(int(number))
            for person in range(PEOPLE):
                rows = [
                    (f"Ann Mustermann {number}-{person}", *rng.uniform(20, 100, 2), row % 2)
                    for row in range(4)
                ]
                db.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", rows)
        ids = ["--user", "patient", "--table", "visits", "--out", f"{folder}/node-{number}.ids"]
        did([*fedpriv, "ids", str(data), "--key", str(folder / "people.key"), *ids])
    lists = [str(folder / f"node-{number}.ids") for number in NODES]
    did([*fedpriv, "roster", *lists, "--out", str(deploy / "parts" / "server" / "roster.txt"),
          "--users", str(deploy / "parts" / "users.json")])  # fmt: skip
    did(["sh", "server/keys.sh", str(deploy), str(len(NODES))])
    deploy.chmod(0o711)
    for number in NODES:
        shutil.copy(folder / "people.key", deploy / "keys" / f"client-{number}" / "people.key")
