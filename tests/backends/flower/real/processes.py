"""Real Flower processes on loopback, offline, each stopped by its own process id."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fedpriv.experiments.agd import FederatedDescent
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.bolt_on import FederatedBoltOn
from fedpriv.experiments.options import OptionIndex, entries
from fedpriv.experiments.tasks import TagPredictionTask

BIN = Path(sys.executable).parent
CHECKOUT = Path(__file__).resolve().parents[4]
APP = ("pyproject.toml", "LICENSE", "README.md", "fedpriv", "server", "client", "simulations")


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def copy_app(target: Path, extra: Mapping[str, str] | None = None) -> Path:
    """Copy what the Flower bundle is made of, and further modules, to a folder of its own."""
    target.mkdir(parents=True)
    for name in APP:
        source = CHECKOUT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / name, ignore=ignore)
        elif source.exists():
            shutil.copy(source, target / name)
    for name, text in (extra or {}).items():
        (target / name).write_text(text, encoding="utf-8")
    return target


DECLARED = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text("utf-8"))["tool"][
    "flwr"
]["app"]["config"]


def write_app(folder: Path, config: Mapping[str, object], **modules: str) -> Path:
    """Write a bundle of `server_app`, `client_app` and further modules to a folder."""
    folder.mkdir(parents=True)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    project = {"name": "small", "version": "1.0.0", "description": "", "dependencies": ["fedpriv"]}
    apps = {"serverapp": "server_app:app", "clientapp": "client_app:app"}
    tables = {
        "project": project, "tool.flwr.app": {"publisher": "small"},
        "tool.flwr.app.components": apps, "tool.flwr.app.config": config,
    }  # fmt: skip
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(item)}" for key, item in table.items())]
    (folder / "pyproject.toml").write_text("\n".join(lines), "utf-8")
    return folder


def build(app: Path, env: Mapping[str, str]) -> Path:
    """Build an app's bundle by `flwr build`, and return it."""
    subprocess.run(
        [str(BIN / "flwr"), "build"], cwd=app, env=env, stdin=subprocess.DEVNULL, check=True,
        capture_output=True,
    )  # fmt: skip
    (bundle,) = app.glob("*.fab")
    return bundle


def plain(log: str) -> str:
    """Return a log as words with single spaces: Flower colours and wraps it."""
    return " ".join(re.sub(r"\x1b\[\d+m", "", log).split())


def simulated(nodes: int) -> str:
    """Return the federation-config of a simulation."""
    return f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus=1"


def run_config(**options: object) -> str:
    """Return options as one --run-config argument; those without a key are TOML in `options`."""

    def literal(value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return str(value) if isinstance(value, (int, float)) else f'"{value}"'

    typed = {key.replace("_", "-"): literal(item) for key, item in options.items()}
    more = {key: typed.pop(key) for key in list(typed) if key not in DECLARED and is_option(key)}
    if more:
        lines = (f"{key} = {item}".replace('"', "'") for key, item in more.items())
        typed["options"] = '"' + "\\n".join(lines) + '"'
    return " ".join(f"{key}={item}" for key, item in typed.items())


def is_option(name: str) -> bool:
    tags = entries(TagPredictionTask, prefix="task.")
    classes = (FederatedExperiment, FederatedDescent, FederatedBoltOn)
    return (
        any(OptionIndex((*tags, *entries(made))).find(name) for made in classes) or name == "method"
    )


@dataclass
class Flower:
    """A folder for Flower's own files, and the processes started from it."""

    home: Path
    processes: list[subprocess.Popen] = field(default_factory=list)
    managed_port: int = 0

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        (self.managed_port,) = free_ports(1)

    @property
    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "RAY_"))}
        return kept | {
            "FLWR_HOME": str(self.home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self.managed_port),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",
        }

    def start(
        self, name: str, command: Sequence[str], cwd: Path | None = None, **environment: str
    ) -> subprocess.Popen:
        """Start a process whose output goes to a file under `home`."""
        with (self.home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=cwd or self.home,
                env=self.env | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_superlink(self, *, simulation: bool, **environment: str) -> int:
        """Start a SuperLink, wait until it listens, and make it what `flwr run` talks to.

        What runs on the server's side has the environment, SuperNodes have not.
        """
        (port,) = free_ports(1)
        command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--simulation"] if simulation else []
        process = self.start(
            "superlink",
            [*command, "--isolation", "subprocess", "--disable-runtime-dependency-installation"],
            **environment,
        )
        (self.home / "config.toml").write_text(
            "[superlink]\n"
            'default = "here"\n\n'
            "[superlink.here]\n"
            f'address = "127.0.0.1:{port}"\n'
            "insecure = true\n",
            encoding="utf-8",
        )
        deadline = time.monotonic() + 900  # a hang, and not a slow machine
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no SuperLink: {self.log('superlink')[-2000:]}")
            time.sleep(0.1)
        return port

    def start_supernode(
        self, number: int, superlink: int, node_config: str, **environment: str
    ) -> None:
        """Start a SuperNode."""
        (port,) = free_ports(1)
        self.start(
            f"supernode-{number}",
            ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{superlink}",
             "--host", "127.0.0.1", "--port", str(port), "--node-config", node_config,
             "--isolation", "subprocess"],
            **environment,
        )  # fmt: skip

    def start_nodes(
        self, count: int, *, of: int = 0, corpus: Path | None = None, **environment: str
    ) -> int:
        """Start a SuperLink and nodes of one partition each; return the SuperLink's port.

        Each has its own copy of the corpus, if there is one: the run-config names the server's.
        """
        superlink = self.start_superlink(simulation=False, **environment)
        for number in range(count):
            config: dict[str, object] = {"partition_id": number, "num_partitions": of or count}
            if corpus is not None:
                config["corpus"] = shutil.copytree(corpus, self.home / f"node-{number}" / "corpus")
            self.start_supernode(number, superlink, run_config(**config))
        return superlink

    def run(self, app: Path, config: str, federation: str = "", seconds: float = 1500) -> str:
        """`flwr run` an app to its end and return its log.

        Without a SuperLink of our own, `flwr` starts one that outlives it; `stop` ends that too.
        """
        command = ["flwr", "run", ".", "--stream", "--run-config", config]
        command += ["--federation-config", federation] if federation else []
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=app,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.stdout + done.stderr

    def left(self) -> list[int]:
        """Return the processes, of whatever parent, that were born with this folder as Flower's."""
        home = str(self.home)
        return [
            process.pid
            for process in psutil.process_iter(["environ"])
            if (process.info["environ"] or {}).get("FLWR_HOME") == home
        ]

    def log(self, name: str) -> str:
        """Return what a process wrote so far."""
        return (self.home / f"{name}.log").read_text("utf-8", "replace")

    def stop(self) -> None:
        """Stop every started process and what it started, by process id."""
        orphans = set(self.left()) - {process.pid for process in self.processes}
        for process in reversed(self.processes):
            family = [*_descendants(process.pid), process.pid]
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)
            for pid in family:
                _end(pid)
        self.processes.clear()
        # What a killed parent left behind, such as the agents of a simulation's Ray.
        for pid in sorted(orphans.union(self.left())):
            _end(pid)


def is_gone(pid: int) -> bool:
    """Return whether a process is no more, or waits for nothing but its parent."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _listens(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


def _descendants(pid: int) -> list[int]:
    """Return the ids of a process's children and theirs, deepest first."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in reversed(psutil.Process(pid).children(recursive=True))]
    return []


def _end(pid: int) -> None:
    """End one process: ask, wait a little, insist."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.terminate()
        try:
            process.wait(3)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(60)
