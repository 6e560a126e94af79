"""The compose file in real containers: `make deploy-test-docker`.

Needs docker, docker-compose and, where no base image can be pulled, debootstrap; installs nothing.
Starts a `dockerd` only where none runs. Everything it starts it stops again.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedpriv import json_lines
from tests.deployment import probes
from tests.deployment.containers import Deployment, daemon
from tests.deployment.layout import (
    CONFIG,
    NODES,
    Failed,
    check_end,
    ends_round_without,
    prepare,
    read,
    resumed,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the test; return 0 if every line holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default=os.environ.get("BASE", "python:3.11-slim"))
    parser.add_argument("--pip-options", default=os.environ.get("PIP_OPTIONS", ""))
    parser.add_argument("--keep", action="store_true", help="leave the containers running")
    asked = parser.parse_args(arguments)
    missing = [name for name in ("docker", "docker-compose") if shutil.which(name) is None]
    if missing:
        print(f"not run: {' and '.join(missing)} not found; install Docker's engine and compose")
        return 2
    with tempfile.TemporaryDirectory(prefix="fedpriv-deploy-") as place:
        folder = Path(place).resolve()
        environment = {
            **os.environ,
            "DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0",
            "DOCKER_HOST": os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"),
            "FEDPRIV_DEPLOY": str(folder / "deploy"),
            "FEDPRIV_ANCHOR": str(folder / "deploy" / "anchor"),
            # No container is root's, whoever starts them.
            "FEDPRIV_USER": f"{os.getuid() or 10001}:{os.getgid() or 10001}",
            "FEDPRIV_PORT": "18443", "BASE": asked.base, "PIP_OPTIONS": asked.pip_options,
        }  # fmt: skip
        here = Deployment(folder=folder, environment=environment)
        with daemon(here):
            try:
                _whole(here)
            except Failed as failed:
                print(f"FAILED {failed}")
                with contextlib.suppress(Failed):
                    print(here.compose("logs", "--no-color", "--tail", "30").stdout[-6000:])
                return 1
            finally:
                if not asked.keep:
                    here.compose("down", "--timeout", "5", "--remove-orphans")
    print(f"deploy-test-docker: all {here.held} lines hold")
    return 0


def _whole(here: Deployment) -> None:
    here.must(here.compose("config", "--quiet"))  # of compose's schema
    prepare(here.folder, here.environment["FEDPRIV_USER"])
    here.must(here.compose("build", "superlink", "supernode-1", "gate", seconds=3600))
    for image in ("fedpriv-server", "fedpriv-node", "fedpriv-gate"):
        size = int(here.must(here.docker("inspect", "--format", "{{.Size}}", image)))
        print(f"     {image}: {size / 1e6:,.0f} MB")
    layers = [
        json.loads(here.must(here.docker("inspect", "--format", "{{json .RootFS.Layers}}", image)))
        for image in ("fedpriv-server", "fedpriv-node")
    ]
    shared = len([layer for layer in layers[1] if layer in layers[0]])
    here.holds("server and nodes share every layer of the node's image", shared == len(layers[1]))
    _refusals(here)
    here.must(here.compose("up", "--detach"))
    nodes = [f"{kind}-{number}" for number in NODES for kind in ("supernode", "client")]
    here.healthy(["superlink", "serverapp", *nodes])
    here.holds("every container is healthy", True)
    _walls(here)
    _nothing_secret_is_shown(here)
    _killed_and_resumed(here)


def _refusals(here: Deployment) -> None:
    """What a container does not start with."""
    key = here.folder / "deploy" / "keys" / "node-1" / "node.key"
    for what, mode, words, named in (
        ("a key that others may read is refused", 0o644, ["supernode-1"], "0644"),
        ("a container as root is refused", 0o600, ["--user", "0:0", "client-1"], "root"),
    ):
        key.chmod(mode)
        done = here.compose("run", "--rm", "-T", "--no-deps", *words)
        key.chmod(0o600)
        here.holds(what, done.returncode != 0 and named in done.stdout + done.stderr, done.stderr)


def _walls(here: Deployment) -> None:
    """Who can reach and read what."""
    services = list(read()["services"])
    for name in [name for name in services if name != "operator"]:
        uid = here.inside(name, "id", "-u").stdout.strip()
        written = here.inside(name, "sh", "-c", "touch /written 2>&1").stdout
        if uid in ("0", "") or "Read-only" not in written:
            raise Failed(f"{name} is user {uid} and touched a file: {written}")
    here.holds("no container is root's or may write to its file system", True)
    for name, (service, script, arguments, expected) in probes.PROBES.items():
        found = here.python(service, script, *arguments)
        here.holds(name, found == expected, found)
    for number in NODES:
        client, node = f"client-{number}", f"supernode-{number}"
        text = here.inside(client, "sh", "-c", "cat /corpus/rosters/*/*/users.json").stdout
        mine = set(json.loads(text)["roster"])
        users = json.loads((here.folder / "deploy" / "parts" / "users.json").read_text("utf-8"))
        reads = here.inside(client, "sh", "-c", "ls /keys").stdout.split()
        other = here.inside(node, "sh", "-c", "ls /corpus 2>&1").stdout
        if mine != set(users[f"node-{number}"]) or "node.key" in reads or "No such" not in other:
            raise Failed(f"node {number} reads {reads}, {other}, {len(mine)} users")
    here.holds(
        "client apps read their own users and no node's key; SuperNodes keys and no users", True
    )


def _nothing_secret_is_shown(here: Deployment) -> None:
    """Neither what Docker says of a container nor its list of processes has a key or a secret."""
    secrets = [
        line
        for path in (here.folder / "deploy" / "keys").rglob("*")
        if path.suffix in (".key", ".secret")
        for line in path.read_text("ascii").split("\n")
        if len(line) > 20 and "-----" not in line
    ]
    for name in [name for name in read()["services"] if name != "operator"]:
        container = here.container(name)
        shown = here.must(here.docker("inspect", container))
        shown += here.must(here.docker("top", container, "-o", "pid,args"))
        shown += here.docker("logs", container).stdout
        if found := [secret for secret in secrets if secret in shown]:
            raise Failed(f"{name} shows {len(found)} secrets")
    here.holds(f"none of {len(secrets)} lines of keys and secrets is shown", len(secrets) > 10)


def _killed_and_resumed(here: Deployment) -> None:
    """A node is killed in a round, then the server; down and up; and the run goes on."""
    folder = here.folder / "deploy" / "runs" / "first"
    client, node, server = map(here.container, ("client-2", "supernode-2", "serverapp"))
    ends_round_without(
        here,
        here.start_run(CONFIG),
        lambda: here.must(here.docker("kill", client, node)),
        lambda: here.must(here.docker("kill", server)),
    )
    here.must(here.compose("down", "--timeout", "10", "--remove-orphans"))
    here.must(here.compose("up", "--detach"))
    here.healthy([name for name in read()["services"] if name not in ("operator", "gate")])
    resumed(here.start_run(folder / "resume.toml"))
    here.holds("down and up again, it goes on to its end", True)
    check_end(here, folder)
    failed = [line["num_failed"] for line in json_lines.read(folder / "diagnostics.jsonl")]
    here.holds("the killed node's users were lost in a round", any(failed), failed)


if __name__ == "__main__":
    sys.exit(main())
