"""The compose file's services as processes on loopback.

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
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.backends.flower.real.processes import BIN, free_ports, plain
from tests.deployment.layout import CHECKOUT, NODES, Failed, Lines, command_of

#: Where the test is root's, its processes take themselves for another user: none may be root's.
AS_USER = ("unshare", "--user", "--map-user=10001", "--map-group=10001")


@dataclass
class Layout(Lines):
    """The services of the compose file, as processes."""

    folder: Path
    compose: Mapping[str, Any]
    ports: dict[str, int]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, folder: Path, compose: Mapping[str, Any]) -> Layout:
        """Return the services of a compose file, each with a port of its own."""
        superlink, *others = free_ports(1 + len(NODES))
        ports = {"superlink": superlink, "gate": superlink}
        ports |= {f"supernode-{n}": port for n, port in zip(NODES, others, strict=True)}
        return cls(folder=folder, compose=compose, ports=ports)

    def here(self, name: str, text: str) -> str:
        """Return a command of a service in this machine's paths, names and ports."""
        for host, port in self.ports.items():
            text = text.replace(f"{host}:8000", f"127.0.0.1:{port}")
            text = text.replace(f"{host}:8443", f"127.0.0.1:{port}")
            text = text.replace(f"{host}:9094", f"127.0.0.1:{port}")
        if name in self.ports:
            text = re.sub(r"--(port|listens) (8000|9094)\b", rf"--\1 {self.ports[name]}", text)
        for volume in self.compose["services"][name].get("volumes", []):
            source, target, *_ = volume.split(":")
            text = re.sub(rf"(?<![\w/.]){re.escape(target)}(?=[/;\s\"']|$)", source, text)
        text = text.replace("/tmp/flwr", str(self.folder / "homes" / name / "flwr"))
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
                [*as_user(), "sh", "-c", command],
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

    def kill(self, *names: str) -> None:
        """SIGKILL services and all that they started."""
        for name in names:
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

    def check(self, name: str) -> subprocess.CompletedProcess[str]:
        """Ask a service's health check once."""
        first, *words = self.compose["services"][name]["healthcheck"]["test"]
        command = words[2] if words[:2] == ["sh", "-c"] else " ".join(words)
        assert first == "CMD"
        return subprocess.run(
            [*as_user(), "sh", "-c", self.here(name, command)],
            env=self.environment(name), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def run(
        self, config: Mapping[str, object] | Path, app: Path = CHECKOUT
    ) -> subprocess.Popen[str]:
        """Start a run as the operator does, with a run-config or a file of one."""
        program, *first = self.compose["services"]["operator"]["entrypoint"]
        words = str(config)
        if isinstance(config, Mapping):
            words = " ".join(
                f"{key}={self.here('serverapp', _literal(value))}" for key, value in config.items()
            )
        return subprocess.Popen(
            [str(BIN / program), *first, "run", str(app), "here", "--stream", "--run-config",
             words],
            cwd=self.folder, env=self.operators(), stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def operators(self) -> dict[str, str]:
        """Return the operator's environment, with the SuperLink's address on this machine."""
        home = self.folder / "deploy" / "operator"
        text = (home / "config.toml").read_text("utf-8")
        text = text.replace("superlink:8000", f"127.0.0.1:{self.ports['superlink']}")
        (home / "config.toml").write_text(text.replace('"/flwr/', f'"{home}/'), "utf-8")
        return {**self.environment("operator"), "FLWR_HOME": str(home)}

    def flwr(self, *words: str) -> str:
        """Call `flwr` as the operator, and return what it prints."""
        done = subprocess.run(
            [str(BIN / "flwr"), *words], cwd=self.folder, env=self.operators(),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Failed(f"flwr {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout


def _literal(value: object) -> str:
    text = json.dumps(value)
    return f"'{value}'" if isinstance(value, str) and '"' in value else text


def ended(run: subprocess.Popen[str]) -> str:
    """Return all that a run says, as words with single spaces: Flower colours and wraps it."""
    assert run.stdout is not None
    said = run.stdout.read()
    run.wait()
    return plain(said)


def as_user() -> tuple[str, ...]:
    return AS_USER if os.geteuid() == 0 else ()
