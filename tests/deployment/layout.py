"""Guarantees of `docker-compose.yml`, read out of it, and what both ways to run it share."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fedpriv.datasets.importers.synthetic import Shape, synthesize
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.verify import verify_run

CHECKOUT = Path(__file__).resolve().parents[2]
COMPOSE = CHECKOUT / "docker-compose.yml"
NODES = ("1", "2", "3")
SHAPE = Shape(
    num_users=30, num_sentences=1800, public_users=30, num_words=400, num_tags=12, num_topics=4
)
#: The run that both ways to try the layout start, in the paths of its containers.
CONFIG = {
    "corpus": "/corpus", "out": "/runs/first", "anchor": "/anchor/first",
    "node-users": "/node-users.json", "rounds": 6, "cohort": 10, "noise-multiplier": 1.0,
    "options": "eval-every = 6", "round-deadline": 90.0,
}  # fmt: skip


_VARIABLE = re.compile(r"\$\$|\$\{(\w+):-([^}]*)\}")


def read(path: Path = COMPOSE, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a compose file with its variables filled in: given ones, else their defaults.

    As compose has it, an empty one is not given, and a value is no part of the file's YAML.
    """
    known = environment or {}

    def value(found: re.Match[str]) -> str:
        return (known.get(found[1]) or found[2]) if found[1] else "$"

    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: filled(each) for key, each in part.items()}
        if isinstance(part, list):
            return [filled(each) for each in part]
        return _VARIABLE.sub(value, part) if isinstance(part, str) else part

    return filled(yaml.safe_load(path.read_text("utf-8")))


def broken(compose: Mapping[str, Any]) -> list[str]:
    """Return what a layout does not keep of what docs/deployment.md says of it, a line each."""
    return [*_rights(compose), *_networks(compose), *_mounts(compose), *_commands(compose)]


def _rights(compose: Mapping[str, Any]) -> Iterator[str]:
    for name, service in compose["services"].items():
        user = str(service.get("user", "root"))
        if user.split(":")[0] in ("root", "0", ""):
            yield f"{name} runs as root"
        if service.get("read_only") is not True:
            yield f"{name} may write to its own file system"
        if service.get("cap_drop") != ["ALL"] or service.get("cap_add"):
            yield f"{name} has capabilities"
        if "no-new-privileges:true" not in service.get("security_opt", []):
            yield f"{name} may gain privileges"
        if service.get("privileged"):
            yield f"{name} is privileged"
        if not service.get("mem_limit") or not service.get("pids_limit"):
            yield f"{name} has no limits"
        if name not in ("operator", "gate") and "healthcheck" not in service:
            yield f"{name} has no health check"


def nodes_of(compose: Mapping[str, Any]) -> list[str]:
    """Return the numbers of a compose file's nodes."""
    return [name.partition("-")[2] for name in compose["services"] if name.startswith("supernode-")]


def _networks(compose: Mapping[str, Any]) -> Iterator[str]:
    services, networks = compose["services"], compose["networks"]
    for name, service in services.items():
        inside = set(service["networks"])
        if service.get("ports") and name != "gate":
            yield f"{name} is published"
        kind, _, number = name.partition("-")
        expected = {
            "gate": {"server", "nodes"},
            "supernode": {"nodes", f"node-{number}"},
            "client": {f"node-{number}"},
        }.get(kind, {"server"})
        if inside != expected:
            yield f"{name} is on networks {sorted(inside)}, not {sorted(expected)}"
    for network in ("server", *(f"node-{number}" for number in nodes_of(compose))):
        if not (networks[network] or {}).get("internal"):
            yield f"network {network} leads out"


def _mounts(compose: Mapping[str, Any]) -> Iterator[str]:
    whose = {
        "superlink": {"keys/superlink": "/keys"},
        "gate": {"keys/gate": "/keys"},
        "serverapp": {
            "keys/serverapp": "/keys", "parts/server": "/corpus",
            "node-users.json": "/node-users.json",
        },
        "operator": {},
    }  # fmt: skip
    for number in nodes_of(compose):
        whose[f"supernode-{number}"] = {f"keys/node-{number}": "/keys"}
        whose[f"client-{number}"] = {
            f"keys/client-{number}": "/keys", f"parts/node-{number}": "/corpus",
            f"data/node-{number}": "/data",
        }  # fmt: skip
    written = {"serverapp": {"/runs", "/anchor"}, "operator": {"/flwr"}}
    for name, service in compose["services"].items():
        read_only: dict[str, str] = {}
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            inside = source.removeprefix("./deploy").strip("/")
            if mode != ["ro"]:
                if target not in written.get(name, set()):
                    yield f"{name} may write to {target}"
            elif not (name == "operator" and target.startswith("/project/")):
                read_only[inside] = target
        if read_only != whose.get(name):
            yield f"{name} mounts {sorted(read_only)}, not {sorted(whose.get(name, {}))}"


def _commands(compose: Mapping[str, Any]) -> Iterator[str]:
    for name, service in compose["services"].items():
        said = command_of(service)
        for option in ("--insecure", "--database"):
            if option in said:
                yield f"{name} is given {option}"
        kind = name.partition("-")[0]
        needed = {
            "superlink": ("fedpriv deploy superlink",),
            "serverapp": ("--root-certificates", "--superexec-auth-secret-file"),
            "supernode": (
                "fedpriv deploy check --keys", "--root-certificates", "--ssl-keyfile",
                "--auth-supernode-private-key", "--superexec-auth-secret-file",
            ),
            "client": (
                "fedpriv deploy check --keys", "--root-certificates", "set -- --corpus /corpus;",
                "--superexec-auth-secret-file",
            ),
        }.get(kind, ())  # fmt: skip
        for option in needed:
            if option not in said:
                yield f"{name} is not given {option}"


class Failed(Exception):
    """A line of the test does not hold."""


class Lines:
    """Counts and prints what holds."""

    held = 0

    def holds(self, what: str, is_so: bool, found: object = "") -> None:
        """Say that something holds; stop where it does not."""
        if not is_so:
            raise Failed(f"{what}: {found}")
        self.held += 1
        print(f"ok   {what}", flush=True)


def followed(run: subprocess.Popen[str], until: str) -> None:
    """Read the log of a run until a line has a text in it.

    Raises:
        Failed: The log ended before.
    """
    seen = []
    assert run.stdout is not None
    for line in run.stdout:
        seen.append(line)
        if until in line:
            return
    raise Failed(f"no line {until!r} in:\n{''.join(seen)[-3000:]}")


def end(run: subprocess.Popen[str]) -> None:
    """Kill the client of a run, which goes on by itself."""
    run.kill()
    run.wait()


def ends_round_without(
    lines: Lines, run: subprocess.Popen[str], node: Callable[[], None], server: Callable[[], None]
) -> None:
    """Kill a node in a run's first round, and the server in its second; the run's client ends."""
    try:
        followed(run, "round 1:")
        node()
        followed(run, "round 2:")
        lines.holds("a round ends without a node that was killed in it", True)
        server()
    finally:
        end(run)


def resumed(run: subprocess.Popen[str]) -> None:
    """Follow a run that goes on to its end."""
    try:
        followed(run, "report:")
    finally:
        end(run)


def check_end(lines: Lines, folder: Path) -> None:
    """Check a run whose server was killed in a round: one attempt is lost, and it went on."""
    charged, released = attempts(folder, "charge"), attempts(folder, "release")
    lines.holds("it verifies", verify_run(folder).ok)
    lines.holds("an attempt was lost with the server", len(charged) - len(released) == 1, charged)
    lines.holds("the run went on after it", len(released) > 2, released)


def attempts(run: Path, kind: str) -> list[tuple[int, int]]:
    """Return round and attempt of every charge, or release, on a run's ledger."""
    records = read_ledger(run / "ledger.jsonl")[0]
    return [(r.fields["round_num"], r.fields["attempt"]) for r in records if r.kind == kind]


def prepare(folder: Path, owner: str = "") -> dict[str, list[str]]:
    """Make a corpus, its parts and the keys by the guide's commands; return each node's users.

    The files are this process's, or of an owner, uid:gid, as containers started by root are.
    """
    synthesize(folder / "whole", shape=SHAPE, max_words=300, max_tags=10)
    parts = ["--nodes", str(len(NODES)), "--out", str(folder / "deploy" / "parts")]
    did([sys.executable, "-m", "fedpriv", "data", "part", str(folder / "whole"), *parts])
    did(["sh", "server/keys.sh", str(folder / "deploy"), str(len(NODES))], owner)
    (folder / "deploy").chmod(0o711)
    return json.loads((folder / "deploy" / "parts" / "users.json").read_text("utf-8"))


def did(command: list[str], owner: str = "") -> None:
    """Run a command of the guide's, whose files are this process's or of an owner, uid:gid."""
    environment = {**os.environ, "FEDPRIV_USER": owner or f"{os.geteuid()}:{os.getegid()}"}
    subprocess.run(command, cwd=CHECKOUT, env=environment, check=True, capture_output=True)


def command_of(service: Mapping[str, Any]) -> str:
    """Return a service's command as one line."""
    command = service.get("command", [])
    return command if isinstance(command, str) else " ".join(command)
