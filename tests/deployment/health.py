"""The compose file's health checks, asked on loopback, and what an image installs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.deployment.layout import CHECKOUT
from tests.deployment.loopback import Layout

#: What images run, imported in an environment that has nothing but what they install.
_USED = (
    "import fedpriv.cli, fedpriv.runs.prepared, fedpriv.report.page, "
    "fedpriv.backends.flower.settings, flwr.superlink.cli.flwr_serverapp, "
    "flwr.supernode.runtime.run_clientapp"
)


def health(layout: Layout) -> None:
    """Ask every health check, and again where a program has stopped or its users are gone."""
    names = [name for name in layout.running if "healthcheck" in layout.compose["services"][name]]
    end = time.monotonic() + 120
    while sick := [name for name in names if layout.check(name).returncode]:
        if time.monotonic() > end:
            layout.holds("every program is healthy", False, layout.check(sick[0]).stderr[-600:])
        time.sleep(1)
    layout.holds(f"{len(names)} programs are healthy, by their health checks", len(names) == 8)
    stopped = layout.running["supernode-3"]
    os.killpg(stopped.pid, signal.SIGSTOP)
    done = layout.check("supernode-3")
    os.killpg(stopped.pid, signal.SIGCONT)
    layout.holds(
        "a program that has stopped is unhealthy, though its port is open",
        done.returncode != 0 and "nothing answers on port" in done.stderr, done.stderr[-600:],
    )  # fmt: skip
    (words,) = (layout.folder / "deploy" / "parts" / "node-3").rglob("words.npy")
    words.rename(words.with_name("away"))
    done = layout.check("client-3")
    words.with_name("away").rename(words)
    layout.holds(
        "a node that cannot read its users is unhealthy",
        done.returncode != 0 and "words.npy" in done.stderr, done.stderr[-600:],
    )  # fmt: skip


def clean_environment(folder: Path) -> str:
    """Return what fails where a new environment installs what images do; "" if all is well."""
    place = folder / "clean"
    shutil.copytree(CHECKOUT / "fedpriv", place / "own" / "fedpriv", ignore=_CACHES)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(CHECKOUT / name, place / "own" / name)
    python = str(place / "venv" / "bin" / "python")
    wheels = ["--find-links", str(CHECKOUT / "server" / "wheels")]
    for command in (
        [sys.executable, "-m", "venv", str(place / "venv")],
        [python, "-m", "pip", "install", "--quiet", *wheels,
         "--constraint", str(CHECKOUT / "constraints.txt"),
         "--requirement", str(CHECKOUT / "server" / "requirements.txt"), "setuptools", "wheel"],
        [python, "-m", "pip", "check"],  # before our own, whose Ray images do without
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", str(place / "own")],
        [python, "-c", _USED],
        [str(place / "venv" / "bin" / "fedpriv"), "superexec", "--help"],
    ):  # fmt: skip
        environment = {key: os.environ[key] for key in os.environ if key != "PYTHONPATH"}
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return f"{' '.join(command[:5])}: {(done.stdout + done.stderr)[-1500:]}"
    shutil.rmtree(place)
    return ""


_CACHES = shutil.ignore_patterns("__pycache__")
