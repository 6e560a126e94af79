"""The guide's block for nodes with own files, on loopback, where nodes insist on plan and code."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path

from flwr.common.config import parse_config_args

from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.status import run_status
from tests.backends.flower.real.processes import BIN
from tests.deployment.layout import CHECKOUT, NODES, followed, read
from tests.deployment.loopback import Layout, ended
from tests.docs.shell_blocks import Command, commands

PAGE = CHECKOUT / "docs" / "deployment.md"
EXAMPLE = "examples/own-data"
EXPERIMENT = "visits:experiment"


def block() -> list[Command]:
    """Return the guide's commands in the example's folder."""
    blocks = re.findall(r"^```bash\n.*?^```\n", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (found,) = (one for one in blocks if f"cd {EXAMPLE}\n" in one)
    return commands(found)


def own_files(whole: Layout) -> None:
    """Run it, in a folder of its own: with a plan and with code that nodes refuse, and without."""
    folder = whole.folder / "own"
    shutil.copytree(CHECKOUT / EXAMPLE, folder / "example")
    folder.chmod(0o711)
    variables, config = _typed(folder / "example")
    # A run folder may not lie in an app's, and in containers it is in neither.
    deploy, app = (folder / "example" / "deploy").rename(folder / "deploy"), _app(folder)
    deploy.chmod(0o711)
    bundle = _bundle(app, folder)
    layout = Layout.of(
        folder,
        _compose(folder, **variables, FEDPRIV_BUNDLES=bundle, FEDPRIV_PLANS="0" * 64),
    )
    try:
        for name in ("superlink", *(f"supernode-{n}" for n in NODES), "serverapp"):
            layout.start(name)
            if name != "serverapp":
                layout.listens(name)
        _clients(layout)
        said = ended(layout.run({**config, "out": "/runs/no", "anchor": "/anchor/no"}, app))
        found = re.search(r"plan ([0-9a-f]{64}) is not among", said)
        whole.holds(
            "nodes that insist on other plans refuse this one, and nothing is charged",
            found is not None and not verify_run(deploy / "runs" / "no").num_charges, said[-900:],
        )  # fmt: skip
        assert found is not None
        layout.compose = _compose(
            folder,
            **variables,
            FEDPRIV_BUNDLES=bundle,
            FEDPRIV_PLANS=found[1],
            FEDPRIV_EXPERIMENTS=EXPERIMENT,
        )
        _clients(layout)
        (app / "client_app.py").open("a").write("\n# other code\n")
        said = ended(layout.run({**config, "out": "/runs/no2", "anchor": "/anchor/no2"}, app))
        whole.holds(
            "nodes that insist on other code run none of this, and nothing is charged",
            "is none that this node runs" in said
            and not verify_run(deploy / "runs" / "no2").num_charges, said[-900:],
        )  # fmt: skip
        _app(folder)
        said = ended(layout.run(config, app))
        logs = said + "".join(layout.log(f"client-{number}") for number in NODES)
        verified = (deploy / "runs" / "own" / "report.html").is_file() and verify_run(
            deploy / "runs" / "own"
        )
        whole.holds(
            "under that plan and that code they train on files of their own",
            verified and verified.ok and verified.num_charges == 3, said[-1500:],
        )  # fmt: skip
        whole.holds("no log has a name of theirs", "Ann Example" not in logs, logs[-600:])
        layout.compose = _compose(folder, **variables)
        _clients(layout)
        _comes_back(whole, layout, {**config, "secure": False, "rounds": 400}, app)
    finally:
        layout.stopped.set()
        for name in list(layout.running):
            layout.kill(name)


def _comes_back(whole: Layout, layout: Layout, config: dict[str, object], app: Path) -> None:
    """Kill a node in a run, and start it again; then stop the run."""
    folder = layout.folder / "deploy" / "runs" / "back"
    run = layout.run({**config, "out": "/runs/back", "anchor": "/anchor/back"}, app)
    followed(run, "round 1:")
    layout.kill("client-2")
    layout.kill("supernode-2")
    followed(run, "2 of 3 registered nodes are online")
    whole.holds("a node that was killed is missed", True)
    for name in ("supernode-2", "client-2"):
        layout.start(name)
    supervisor = threading.Thread(target=layout.supervise, daemon=True)
    supervisor.start()
    followed(run, "3 of 3 registered nodes are online")
    for _ in range(3):
        followed(run, "round ")
    *_, last = (folder / "diagnostics.jsonl").read_text("utf-8").splitlines()
    whole.holds(
        "it takes part again with its key, in the same run",
        json.loads(last)["num_failed"] == 0 and run_status(folder).nodes_online == 3, last,
    )  # fmt: skip
    layout.stopped.set()
    supervisor.join()
    found = json.loads(layout.flwr("ls", "here", "--format", "json"))
    (number,) = [one["run-id"] for one in found["runs"] if "running" in one["status"]]
    layout.flwr("stop", str(number), "here")
    ended(run)
    end = time.monotonic() + 120
    while (status := run_status(folder)).held and time.monotonic() < end:
        time.sleep(0.5)
    whole.holds(
        "a run that is stopped lets go of its folder, for an attempt at most",
        not status.held and status.lost_attempts <= 1, status,
    )  # fmt: skip


def _typed(folder: Path) -> tuple[dict[str, str], dict[str, object]]:
    """Type the block up to its containers; return their variables and the run-config."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT),
        "FEDPRIV_USER": f"{os.geteuid()}:{os.getegid()}",
    }  # fmt: skip
    variables: dict[str, str] = {}
    config: dict[str, object] = {}
    for command in block():
        words = [word.replace("../../server", f"{CHECKOUT}/server") for word in command.words]
        if words[0] == "docker-compose":
            variables |= command.variables
            given = [text for option, text in pairwise(words) if option == "--run-config"]
            config |= parse_config_args(given)
        elif words[0] != "cd":
            subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)
    return variables, config


def _compose(folder: Path, **choices: str) -> dict:
    return read(folder / "example" / "compose.yml", environment={
        "FEDPRIV_DEPLOY": str(folder / "deploy"), "FEDPRIV_ANCHOR": str(folder / "deploy/anchor"),
        **choices,
    })  # fmt: skip


def _clients(layout: Layout) -> None:
    for number in NODES:
        if f"client-{number}" in layout.running:
            layout.kill(f"client-{number}")
        layout.start(f"client-{number}")


def _app(folder: Path) -> Path:
    """Copy what the operator has in /project."""
    compose = _compose(folder)
    app = folder / "project"
    shutil.rmtree(app, ignore_errors=True)
    app.mkdir()
    for volume in compose["services"]["operator"]["volumes"]:
        source, target, *_ = volume.split(":")
        if target.startswith("/project/"):
            shutil.copy(folder / "example" / source, app / Path(target).name)
    return app


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
