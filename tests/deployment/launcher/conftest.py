"""SuperNodes and their ClientApps as the launcher runs them, beside a stock SuperLink."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.backends.flower.real.processes import Flower, _listens, free_ports

CHECKOUT = Path(__file__).resolve().parents[3]


@dataclass
class Launched:
    """Attributes: Flower's folder and processes; each node's options of `fedpriv superexec`."""

    flower: Flower
    ports: list[int] = field(default_factory=list)

    def start(self, node_configs, *superexec: str, **environment: str) -> None:
        """Start a stock SuperLink, and a launched SuperNode with its ClientApps for each config."""
        link = self.flower.start_superlink(simulation=False)
        environment.setdefault("PYTHONPATH", str(CHECKOUT))
        for number, config in enumerate(node_configs):
            (port,) = free_ports(1)
            self.ports.append(port)
            here = Path(sys.executable).name
            self.flower.start(
                f"supernode-{number}",
                [here, "-m", "fedpriv", "supernode", "--insecure",
                 "--superlink", f"127.0.0.1:{link}", "--host", "127.0.0.1", "--port", str(port),
                 "--node-config", config],
                **environment,
            )  # fmt: skip
            while not _listens(port):
                time.sleep(0.1)
            self.flower.start(
                f"clientapp-{number}",
                [here, "-m", "fedpriv", "superexec", "--insecure",
                 "--runtime-api-address", f"127.0.0.1:{port}", *superexec],
                **environment,
            )  # fmt: skip


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    """A SuperLink whose nodes are the launcher's; whatever is started is stopped with the test."""
    started = Launched(Flower(tmp_path / "flower-home"))
    try:
        yield started
    finally:
        started.flower.stop()
        assert not started.flower.left()
