"""The guide's block for nodes with own files, on loopback, where nodes insist on plan and code."""

import hashlib
import os
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

from flwr.common.config import parse_config_args

from fedpriv.privacy.statement.verify import verify_run
from tests.backends.flower.real.processes import BIN, build
from tests.deployment.layout import CHECKOUT, NODES, read
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
        insisted = {"FEDPRIV_PLANS": found[1], "FEDPRIV_EXPERIMENTS": EXPERIMENT}
        layout.compose = _compose(folder, **variables, FEDPRIV_BUNDLES=bundle, **insisted)
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
    finally:
        layout.stopped.set()
        layout.kill(*layout.running)


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
    for name in [f"client-{number}" for number in NODES]:
        if name in layout.running:
            layout.kill(name)
        layout.start(name)


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
    file = build(app, environment)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    file.unlink()
    return digest
