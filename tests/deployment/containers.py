"""Containers of the compose file: built, started, asked, followed."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.deployment.layout import CHECKOUT, Failed, Lines

PROJECT = "fedpriv-test"


@dataclass
class Deployment(Lines):
    """One set of containers, and what was said of them."""

    folder: Path
    environment: dict[str, str]

    def docker(self, *arguments: str, seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
        return self._run(["docker", *arguments], seconds)

    def compose(self, *arguments: str, seconds: float = 900.0) -> subprocess.CompletedProcess[str]:
        return self._run(["docker-compose", "--project-name", PROJECT, *arguments], seconds)

    def must(self, done: subprocess.CompletedProcess[str]) -> str:
        if done.returncode != 0:
            raise Failed(f"{' '.join(done.args[:6])}: {(done.stdout + done.stderr)[-1500:]}")
        return done.stdout

    def container(self, service: str) -> str:
        return self.must(self.compose("ps", "--quiet", service)).strip()

    def inside(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        return self.docker("exec", self.container(service), *command)

    def python(self, service: str, script: str, *arguments: str) -> str:
        """Return the last line that a script prints in a service's container."""
        done = self.inside(service, "python", "-c", script, *arguments)
        return (done.stdout.strip().splitlines() or [done.stderr[-300:]])[-1]

    def healthy(self, services: Sequence[str], seconds: float = 300.0) -> None:
        """Wait until services are healthy."""
        end = time.monotonic() + seconds
        states: dict[str, str] = {}
        while time.monotonic() < end:
            states = {name: self.health(name) for name in services}
            if set(states.values()) <= {"healthy"}:
                return
            time.sleep(2)
        raise Failed(f"not healthy after {seconds:.0f} s: {states}")

    def health(self, service: str) -> str:
        form = "{{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}"
        return self.docker("inspect", "--format", form, self.container(service)).stdout.strip()

    def start_run(self, config: Mapping[str, object] | Path) -> subprocess.Popen[str]:
        """Start a run by the operator's container, with a run-config or a file of one.

        Its log comes out of the process.
        """
        if isinstance(config, Path):
            mounted, words = ["--volume", f"{config}:/resume.toml:ro"], "/resume.toml"
        else:
            mounted, words = (
                [],
                " ".join(
                    f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
                    for name, value in config.items()
                ),
            )
        return subprocess.Popen(
            ["docker-compose", "--project-name", PROJECT, "run", "--rm", "-T", *mounted, "operator",
             "run", "/app", "here", "--stream", "--run-config", words],
            cwd=CHECKOUT, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _run(self, command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=CHECKOUT,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )


@contextlib.contextmanager
def daemon(here: Deployment) -> Iterator[None]:
    """Start a Docker daemon where none answers, and stop that one again."""
    if here.docker("info").returncode == 0:
        yield
        return
    if shutil.which("dockerd") is None:
        raise SystemExit("no Docker daemon answers, and there is no dockerd to start")
    with (here.folder / "dockerd.log").open("wb") as log:
        started = subprocess.Popen(
            ["dockerd", "--data-root", str(here.folder / "docker")], stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + 60
        while here.docker("info").returncode != 0:
            if time.monotonic() > end or started.poll() is not None:
                raise SystemExit(f"dockerd did not start: see {here.folder / 'dockerd.log'}")
            time.sleep(1)
        yield
    finally:
        started.terminate()
        started.wait(60)
