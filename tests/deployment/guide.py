"""Walk through docs/deployment.md: `make deploy-guide` runs its commands, read out of it, in order.

In a fresh clone, with nothing but what the page says and what a machine without network needs
(BASE, PIP_OPTIONS, wheels). A block that begins with "# on node 1's machine" is run for each of
three machines, each with networks of its own; the server's name is what the bridge calls it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.deployment.layout import CHECKOUT, NODES

PAGE = "docs/deployment.md"
NAME, BRIDGE = "fl.example.org", "172.17.0.1"
_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield each block of commands, with the machine that it is for: "", "server" or a number."""
    for found in _BLOCK.finditer(text):
        commands = found[1]
        if commands.startswith("# on node 1's machine"):
            for number in NODES:
                named = re.sub(r"\b(supernode|client)-1\b", rf"\1-{number}", commands)
                yield number, named
        elif commands.startswith("# on the server"):
            yield "server", commands
        else:
            yield "", commands


def main() -> int:
    """Walk; return 0 if every command ended well and the runs verify."""
    with tempfile.TemporaryDirectory(prefix="fedpriv-guide-") as place:
        clone = Path(place).resolve() / "fedpriv"
        subprocess.run(["git", "clone", "--quiet", str(CHECKOUT), str(clone)], check=True)
        for wheel in (CHECKOUT / "server" / "wheels").glob("*.whl"):
            os.link(wheel, clone / "server" / "wheels" / wheel.name)
        projects: set[str] = set()
        try:
            for machine, commands in blocks((clone / PAGE).read_text("utf-8")):
                if machine == "server" and "fedpriv-guide" in projects:
                    _down("fedpriv-guide", clone)
                    projects.discard("fedpriv-guide")
                project = f"fedpriv-guide{machine and '-' + machine}"
                projects.add(project)
                print(f"[{machine or 'one machine'}] {commands.strip()}", flush=True)
                began = time.monotonic()
                done = subprocess.run(
                    ["bash", "-euc", commands.replace(NAME, BRIDGE)],
                    cwd=clone, env=_environment(project), stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                )  # fmt: skip
                print(f"  code {done.returncode} after {time.monotonic() - began:.0f} s")
                if done.returncode != 0:
                    print(done.stdout[-4000:])
                    return 1
            missing = [
                name
                for name in ("first", "second")
                if not (clone / "deploy" / "runs" / name / "report.html").is_file()
            ]
            print(f"deploy-guide: {f'no report of {missing}' if missing else 'every command ran'}")
            return 1 if missing else 0
        finally:
            for project in projects:
                _down(project, clone)


def _environment(project: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COMPOSE_PROJECT_NAME": project,
        "DOCKER_BUILDKIT": "0",
        "COMPOSE_DOCKER_CLI_BUILD": "0",
    }


def _down(project: str, clone: Path) -> None:
    if shutil.which("docker-compose"):
        subprocess.run(
            ["docker-compose", "down", "--timeout", "5", "--remove-orphans"],
            cwd=clone, env=_environment(project), capture_output=True, check=False,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
