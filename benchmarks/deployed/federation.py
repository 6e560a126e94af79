"""A SuperLink and SuperNodes on loopback, as Flower starts them or with this project's launcher.

With TLS everything speaks it, by certificates that `server/keys.sh` makes: nodes and `flwr` to the
SuperLink, and client apps to their SuperNodes.

Every process writes to a pipe whose lines are stamped with the time they came; Flower's own logs
carry none. Processes are stopped by their ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
APP = ("pyproject.toml", "LICENSE", "README.md", "fedpriv", "server", "client", "simulations")
STOCK, LAUNCHER = "stock", "launcher"
_LIMIT = 900.0


def copy_app(target: Path) -> Path:
    """Copy what the bundle is made of to a folder of its own."""
    target.mkdir(parents=True)
    for name in APP:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)
    return target


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def literal(config: Mapping[str, object]) -> str:
    """Return a config as Flower's command line takes it."""
    said = []
    for key, value in config.items():
        text = str(value).lower() if isinstance(value, bool) else value
        said.append(f'{key}="{text}"' if isinstance(text, str) and text not in ("true", "false")
                    else f"{key}={text}")  # fmt: skip
    return " ".join(said)


@dataclass
class Federation:
    """One SuperLink, its nodes, and what they said.

    Attributes:
        home: Flower's own folder, made here.
        kind: `STOCK` or `LAUNCHER`.
        tls: Whether connections are encrypted.
        lines: What each process said, with the time, by the process's name.
    """

    home: Path
    kind: str
    tls: bool = False
    lines: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        self.superlink = free_port()
        self.keys = self.home / "deploy" / "keys"

    def start(self, nodes: Sequence[Mapping[str, object]]) -> None:
        """Start the server's processes and one SuperNode for each node-config."""
        link, stock = self.superlink, self.kind == STOCK
        isolation = ["--isolation", "subprocess" if stock else "process"]
        if self.tls:
            self._make_keys(len(nodes))
        self._run(
            "superlink",
            ["flower-superlink", *self._server("superlink", "superlink"), "--host", "127.0.0.1",
             "--port", str(link), *isolation, "--disable-runtime-dependency-installation"],
        )  # fmt: skip
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{link}"\n'
            + (f'root-certificates = "{self._ca}"\n' if self.tls else "insecure = true\n"),
            "utf-8",
        )
        self._wait(link, "superlink")
        if not stock:
            self._run("serverapp", self._superexec(link))
        for number, config in enumerate(nodes):
            port = free_port()
            own = self._server(f"node-{number + 1}", "runtime")
            to_link = ["--root-certificates", str(self._ca)] if self.tls else []
            options = [*own, *to_link, "--superlink", f"127.0.0.1:{link}",
                       "--host", "127.0.0.1", "--port", str(port),
                       "--node-config", literal(config), *isolation]  # fmt: skip
            command = ["flower-supernode"] if stock else ["fedpriv", "supernode"]
            self._run(f"supernode-{number}", [*command, *options])
            if not stock:
                self._wait(port, f"supernode-{number}")
                self._run(f"clientapp-{number}", self._superexec(port))

    def train(self, app: Path, config: Mapping[str, object]) -> str:
        """Run the bundle to its end; return its log."""
        command = [*self._python("flwr"), "run", ".", "--stream", "--run-config", literal(config)]
        done = subprocess.run(
            command, cwd=app, env=self._env(), stdin=subprocess.DEVNULL, text=True,
            capture_output=True, timeout=_LIMIT, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    def roots(self) -> list[int]:
        """Return the ids of the processes that were started here."""
        return [process.pid for process in self.processes.values()]

    def stop(self) -> None:
        """End every process that was started, and what it started, by its id."""
        families = {name: _family(process.pid) for name, process in self.processes.items()}
        for process in reversed(self.processes.values()):
            process.terminate()
        for name, process in self.processes.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            for pid in [*families[name], process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        self.processes.clear()

    @property
    def _ca(self) -> Path:
        return self.keys / "ca.crt"

    def _superexec(self, port: int) -> list[str]:
        to = ["--root-certificates", str(self._ca)] if self.tls else ["--insecure"]
        return ["fedpriv", "superexec", *to, "--runtime-api-address", f"127.0.0.1:{port}"]

    def _server(self, folder: str, name: str) -> list[str]:
        """Return the options of what listens, by its certificate."""
        if not self.tls:
            return ["--insecure"]
        own = self.keys / folder / name
        return ["--ssl-ca-certfile", str(self._ca), "--ssl-certfile", f"{own}.pem",
                "--ssl-keyfile", f"{own}.key"]  # fmt: skip

    def _make_keys(self, nodes: int) -> None:
        parts = self.keys.parent / "parts"
        parts.mkdir(parents=True)
        names = {f"node-{number + 1}": [str(number)] for number in range(nodes)}
        (parts / "users.json").write_text(json.dumps(names), "utf-8")
        own = {**os.environ, "FEDPRIV_USER": f"{os.geteuid()}:{os.getegid()}"}
        command = ["sh", str(ROOT / "server" / "keys.sh"), str(self.keys.parent), str(nodes)]
        subprocess.run(command, check=True, capture_output=True, env=own)

    def _python(self, command: str) -> list[str]:
        if command == "fedpriv":  # this checkout's, whatever is installed
            return [sys.executable, "-m", "fedpriv"]
        return [str(BIN / command)]

    def _env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "RAY_"))}
        return kept | {
            "FLWR_HOME": str(self.home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def _run(self, name: str, command: Sequence[str]) -> None:
        process = subprocess.Popen(
            [*self._python(command[0]), *command[1:]], cwd=self.home, env=self._env(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        self.processes[name] = process
        said = self.lines[name] = []

        def listen() -> None:
            for line in process.stdout or ():
                said.append((time.time(), line.rstrip()))

        threading.Thread(target=listen, daemon=True).start()

    def _wait(self, port: int, name: str) -> None:
        end = time.monotonic() + _LIMIT
        while True:
            url = f"http{'s' * self.tls}://127.0.0.1:{port}/health"
            trust = ssl.create_default_context(cafile=str(self._ca)) if self.tls else None
            asked = partial(urllib.request.urlopen, url, timeout=1, context=trust)
            with contextlib.suppress(OSError), asked() as answer:
                if answer.status == 200:
                    return
            if self.processes[name].poll() is not None or time.monotonic() > end:
                said = "\n".join(line for _, line in self.lines[name][-20:])
                raise RuntimeError(f"{name} does not listen on port {port}:\n{said}")
            time.sleep(0.1)


def _family(pid: int) -> list[int]:
    """Return what a process has started, children before their own."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in task.read_text().split()]
    return found[1:]
