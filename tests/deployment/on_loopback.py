"""The compose file's commands as processes on loopback: `make deploy-test`.

There is no gate, whose place the SuperLink takes, and no wall between processes: `make
deploy-test-docker` tries those.
"""

import http.client
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.deployment.layout import (
    CONFIG,
    NODES,
    Failed,
    broken,
    check_end,
    end,
    ends_round_without,
    followed,
    prepare,
    read,
    resumed,
)
from tests.deployment.loopback import Layout
from tests.deployment.oracle import differences
from tests.deployment.own_files import own_files


def main() -> int:
    """Run the test; return 0 if every line holds."""
    with tempfile.TemporaryDirectory(prefix="fedpriv-loopback-") as place:
        folder = Path(place).resolve()
        folder.chmod(0o711)
        compose = read(environment={
            "FEDPRIV_DEPLOY": str(folder / "deploy"),
            "FEDPRIV_ANCHOR": str(folder / "deploy" / "anchor"),
        })  # fmt: skip
        layout = Layout.of(folder, compose)
        try:
            _whole(layout)
            own_files(layout)
        except Failed as failed:
            print(f"FAILED {failed}")
            for name in layout.running:
                print(f"--- {name}\n{layout.log(name)[-1500:]}")
            return 1
        finally:
            layout.stopped.set()
            layout.kill(*layout.running)
    print(f"deploy-test: all {layout.held} lines hold")
    return 0


def _whole(layout: Layout) -> None:
    layout.holds("the compose file keeps what the guide says", broken(read()) == [], broken(read()))
    users = prepare(layout.folder)
    shutil.copy(layout.folder / "deploy/keys/ca.crt", layout.folder / "ca.crt")
    layout.start("superlink")
    layout.listens("superlink")
    _until(lambda: "node-3 may join" in layout.log("superlink"), "keys registered")
    layout.holds("TLS is on, and the nodes' keys are registered", _refuses_plain(layout))
    for number in NODES:
        layout.start(f"supernode-{number}")
        layout.start(f"client-{number}")
    layout.start("serverapp")
    health(layout)
    ends_round_without(
        layout,
        layout.run(CONFIG),
        lambda: layout.kill("client-2", "supernode-2"),
        lambda: layout.kill("serverapp", "superlink"),
    )
    for name in ("superlink", "supernode-2", "client-2", "serverapp"):
        layout.start(name)
    layout.listens("superlink")
    supervisor = threading.Thread(target=layout.supervise, daemon=True)
    supervisor.start()
    resumed(layout.run(layout.folder / "deploy" / "runs" / "first" / "resume.toml"))
    layout.holds("server and SuperLink were killed, and the run went on to its end", True)
    deploy = layout.folder / "deploy"
    found = differences(
        deploy / "runs" / "first", server=deploy / "parts" / "server",
        whole=layout.folder / "whole", users=users, down="node-2", out=layout.folder / "in-process",
    )  # fmt: skip
    layout.holds("ε, ledger and params are those of the run in process", found == [], found)
    check_end(layout, deploy / "runs" / "first")
    client_gone(layout)
    layout.stopped.set()
    supervisor.join()
    layout.kill(*layout.running)


def client_gone(layout: Layout) -> None:
    """A client app is killed in a run, while its SuperNode goes on, and comes back."""
    run = layout.run({**CONFIG, "out": "/runs/gone", "anchor": "/anchor/gone", "rounds": 500})
    try:
        followed(run, "round 1:")
        layout.kill("client-1")
        began = time.monotonic()
        followed(run, "2 of 3 registered nodes are online; not node-1")
        took = time.monotonic() - began
        layout.holds("a node is named within a minute of its client app's end", took < 60, took)
        _until(lambda: layout.check("supernode-1").returncode != 0, "its SuperNode unhealthy")
        layout.holds("its SuperNode is unhealthy after that", True)
        layout.start("client-1")
        followed(run, "3 of 3 registered nodes are online")
        layout.holds("it takes part again when its client app is back", True)
    finally:
        end(run)


def health(layout: Layout) -> None:
    """Ask every health check, and again where a program has stopped or its users are gone."""
    names = [name for name in layout.running if "healthcheck" in layout.compose["services"][name]]
    deadline = time.monotonic() + 120
    while sick := [name for name in names if layout.check(name).returncode]:
        if time.monotonic() > deadline:
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


if __name__ == "__main__":
    sys.exit(main())
