"""The compose file's commands as processes on loopback: `make deploy-test`.

Commands, environment, ports and volumes are read out of `docker-compose.yml`; a path in a container
becomes that of its volume here, and a name and port of a container a port of this machine. There is
no gate, whose place the SuperLink takes, and no wall between processes: `make deploy-test-docker`
tries those.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.data.importers.synthetic import Shape, synthesize
from tests.deployment.layout import CHECKOUT, NODES, broken, command_of, read
from tests.deployment.oracle import attempts, differences

SHAPE = Shape(
    num_users=30, num_sentences=1800, public_users=30, num_words=400, num_tags=12, num_topics=4
)
ROUNDS, DEADLINE = 6, 90.0
CONFIG = {
    "corpus": "/corpus", "out": "/runs/first", "anchor": "/anchor/first",
    "node-users": "/node-users.json", "rounds": ROUNDS, "cohort": 10, "noise-multiplier": 1.0,
    "eval-every": ROUNDS, "round-deadline": DEADLINE,
}  # fmt: skip
BIN = Path(sys.executable).parent
#: Where the test is root's, its processes take themselves for another user: none may be root's.
AS_USER = ("unshare", "--user", "--map-user=10001", "--map-group=10001")


class Failed(Exception):
    """A line of the test does not hold."""


@dataclass
class Layout:
    """The services of the compose file, as processes."""

    folder: Path
    compose: Mapping[str, Any]
    ports: dict[str, int]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    held: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    def holds(self, what: str, is_so: bool, found: object = "") -> None:
        if not is_so:
            raise Failed(f"{what}: {found}")
        self.held += 1
        print(f"ok   {what}", flush=True)

    def here(self, name: str, text: str) -> str:
        """Return a command of a service in this machine's paths, names and ports."""
        for host, port in self.ports.items():
            text = text.replace(f"{host}:8000", f"127.0.0.1:{port}")
            text = text.replace(f"{host}:8443", f"127.0.0.1:{port}")
            text = text.replace(f"{host}:9094", f"127.0.0.1:{port}")
        if name in self.ports:
            text = re.sub(r"--port (8000|9094)\b", f"--port {self.ports[name]}", text)
        for volume in self.compose["services"][name].get("volumes", []):
            source, target, *_ = volume.split(":")
            text = re.sub(rf"(?<![\w/.]){re.escape(target)}(?=[/\s\"']|$)", source, text)
        text = text.replace('cp -R /opt/numba "$NUMBA_CACHE_DIR" && ', "")  # of an image
        return text.replace("0.0.0.0", "127.0.0.1")

    def environment(self, name: str) -> dict[str, str]:
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        own = self.compose["services"][name].get("environment", {})
        return {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(home),
            "FLWR_HOME": str(home / "flwr"), "NUMBA_CACHE_DIR": str(home / "numba"),
            "MPLCONFIGDIR": str(home / "matplotlib"), "PYTHONPATH": str(CHECKOUT),
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
            **{key: self.here(name, value) for key, value in own.items()},
        }  # fmt: skip

    def start(self, name: str, **changes: str) -> subprocess.Popen[bytes]:
        """Start a service; its output goes to a file."""
        command = self.here(name, command_of(self.compose["services"][name]))
        if command.startswith("sh -c "):
            command = command.removeprefix("sh -c ")
        for old, new in changes.items():
            command = command.replace(old, new)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*_as_user(), "sh", "-c", command],
                cwd=self.folder / "homes" / name if self.environment(name) else None,
                env=self.environment(name), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        return self.running[name]

    def supervise(self) -> None:
        """Start again whoever ends by itself, as the compose file has it, until `stopped`."""
        while not self.stopped.wait(1.0):
            for name, process in list(self.running.items()):
                policy = self.compose["services"][name]["restart"]
                if process.poll() is not None and policy == "unless-stopped":
                    self.start(name)

    def kill(self, name: str) -> None:
        """SIGKILL a service and all that it started."""
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def listens(self, name: str, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.running[name].poll() is not None:
                raise Failed(f"{name} ended: {self.log(name)[-1500:]}")
            try:
                if self.status(name, "/health") < 500:
                    return
            except OSError:
                time.sleep(0.3)
        raise Failed(f"{name} does not listen: {self.log(name)[-1500:]}")

    def status(self, name: str, path: str) -> int:
        context = ssl.create_default_context(cafile=str(self.folder / "deploy/keys/ca.crt"))
        line = http.client.HTTPSConnection(
            "127.0.0.1", self.ports[name], timeout=5, context=context
        )
        line.request("GET", path)
        return line.getresponse().status

    def run(self, **changes: object) -> subprocess.Popen[str]:
        """Start a run as the operator does."""
        words = " ".join(
            f"{key}={self.here('serverapp', json.dumps(value))}"
            for key, value in {**CONFIG, **changes}.items()
        )
        environment = self.environment("operator")
        home = Path(environment["FLWR_HOME"] or environment["HOME"])
        environment["FLWR_HOME"] = str(home := self.folder / "deploy" / "operator")
        text = (home / "config.toml").read_text("utf-8")
        text = text.replace("superlink:8000", f"127.0.0.1:{self.ports['superlink']}")
        (home / "config.toml").write_text(text.replace("/flwr/", f"{home}/"), "utf-8")
        return subprocess.Popen(
            [str(BIN / "flwr"), "run", str(CHECKOUT), "here", "--stream", "--run-config", words],
            cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def followed(run: subprocess.Popen[str], until: str) -> None:
    seen = []
    assert run.stdout is not None
    for line in run.stdout:
        seen.append(line)
        if until in line:
            return
    raise Failed(f"no line {until!r} in:\n{''.join(seen)[-3000:]}")


def main() -> int:
    """Run the test; return 0 if every line holds."""
    with tempfile.TemporaryDirectory(prefix="fedpriv-loopback-") as place:
        folder = Path(place).resolve()
        folder.chmod(0o711)
        compose = read(environment={
            "FEDPRIV_DEPLOY": str(folder / "deploy"),
            "FEDPRIV_ANCHOR": str(folder / "deploy" / "anchor"),
        })  # fmt: skip
        superlink, *others = _free_ports(1 + len(NODES))
        ports = {"superlink": superlink, "gate": superlink}
        ports |= {f"supernode-{n}": port for n, port in zip(NODES, others, strict=True)}
        layout = Layout(folder=folder, compose=compose, ports=ports)
        try:
            _whole(layout)
        except Failed as failed:
            print(f"FAILED {failed}")
            for name in layout.running:
                print(f"--- {name}\n{layout.log(name)[-1500:]}")
            return 1
        finally:
            layout.stopped.set()
            for name in list(layout.running):
                layout.kill(name)
    print(f"deploy-test: all {layout.held} lines hold")
    return 0


def _whole(layout: Layout) -> None:
    layout.holds("the compose file keeps its promises", broken(read()) == [], broken(read()))
    users = _prepared(layout)
    layout.start("superlink")
    layout.listens("superlink")
    _until(lambda: "node-3 may join" in layout.log("superlink"), "keys registered")
    layout.holds("TLS is on, and the nodes' keys are registered", _refuses_plain(layout))
    for number in NODES:
        layout.start(f"supernode-{number}")
        layout.start(f"client-{number}")
    layout.start("serverapp")
    _stranger(layout)
    run = layout.run()
    try:
        followed(run, "round 1:")
        layout.kill("client-2")
        layout.kill("supernode-2")
        followed(run, "round 2:")
        layout.holds("a round ends without a node that was killed in it", True)
        layout.kill("serverapp")
    finally:
        _end(run)
    layout.kill("superlink")
    for name in ("superlink", "supernode-2", "client-2", "serverapp"):
        layout.start(name)
    layout.listens("superlink")
    threading.Thread(target=layout.supervise, daemon=True).start()
    run = layout.run(resume="/runs/first", out="")
    try:
        followed(run, "report:")
    finally:
        _end(run)
    layout.holds("server and SuperLink were killed, and the run went on to its end", True)
    deploy = layout.folder / "deploy"
    found = differences(
        deploy / "runs" / "first", server=deploy / "parts" / "server",
        whole=layout.folder / "whole", users=users, down="node-2", out=layout.folder / "in-process",
    )  # fmt: skip
    layout.holds("ε, ledger and params are those of the run in process", found == [], found)
    folder = deploy / "runs" / "first"
    lost = len(attempts(folder, "charge")) - len(attempts(folder, "release"))
    layout.holds("an attempt was lost with the server", lost == 1, lost)
    layout.holds("the run went on after it", len(attempts(folder, "release")) > 2)


def _prepared(layout: Layout) -> dict[str, list[str]]:
    synthesize(layout.folder / "whole", shape=SHAPE, max_words=300, max_tags=10)
    deploy = layout.folder / "deploy"
    for command in (
        [sys.executable, "-m", "fedpriv", "data", "part", str(layout.folder / "whole"),
         "--nodes", "3", "--out", str(deploy / "parts")],
        ["sh", "server/keys.sh", str(deploy), "3"],
    ):  # fmt: skip
        owner = {**os.environ, "FEDPRIV_USER": f"{os.geteuid()}:{os.getegid()}"}
        subprocess.run(command, cwd=CHECKOUT, env=owner, check=True, capture_output=True)
    deploy.chmod(0o711)
    shutil.copy(deploy / "keys/ca.crt", layout.folder / "ca.crt")
    return json.loads((deploy / "parts" / "users.json").read_text("utf-8"))


def _stranger(layout: Layout) -> None:
    """A node with a key that nobody registered."""
    keys = layout.folder / "stranger"
    shutil.copytree(layout.folder / "deploy/keys/node-1", keys)
    (keys / "node.key").unlink()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(keys / "node.key")],
        check=True,
    )
    (port,) = _free_ports(1)
    command = layout.here("supernode-1", command_of(layout.compose["services"]["supernode-1"]))
    command = command.removeprefix("sh -c ").replace(
        str(layout.folder / "deploy/keys/node-1"), str(keys)
    )
    command = command.replace(f"--port {layout.ports['supernode-1']}", f"--port {port}")
    done = subprocess.run(
        [*_as_user(), "timeout", "60", "sh", "-c", command],
        cwd=layout.folder / "homes" / "supernode-1",
        env=layout.environment("supernode-1"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    layout.holds(
        "an unregistered node is refused",
        done.returncode not in (0, 124) and "SuperNode ID" not in said,
        said[-600:],
    )


def _refuses_plain(layout: Layout) -> bool:
    line = http.client.HTTPConnection("127.0.0.1", layout.ports["superlink"], timeout=5)
    try:
        line.request("GET", "/health")
        return line.getresponse().status >= 400
    except (OSError, http.client.HTTPException):
        return True


def _until(is_so: Any, what: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise Failed(f"not {what} after {seconds:.0f} s")
        time.sleep(0.3)


def _end(run: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def _as_user() -> tuple[str, ...]:
    return AS_USER if os.geteuid() == 0 else ()


def _free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


if __name__ == "__main__":
    sys.exit(main())
