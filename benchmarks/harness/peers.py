"""The peers' own virtual environments, made once under `benchmarks/.envs/`.

Each peer gets what its pins say and nothing of fedpriv's, because their requirements contradict:
pfl needs dp-accounting below 0.6. Flower is asked for in its newest release first; where that
cannot be resolved (1.42.0 wants a certifi that not every index serves) the next one is taken, and
the tables name the version that ran.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ENVS = Path(__file__).resolve().parents[1] / ".envs"

# The alternatives of each peer, first choice first. torch is fedpriv's own version.
PINS: dict[str, tuple[tuple[str, ...], ...]] = {
    "flower": (
        ("flwr[simulation]==1.42.0", "ray==2.55.1", "torch==2.13.0", "numpy==2.4.6"),
        ("flwr[simulation]==1.41.0", "ray==2.55.1", "torch==2.13.0", "numpy==2.4.6"),
    ),
    "opacus": (("opacus==1.6.0", "torch==2.13.0", "numpy==2.4.6"),),
    "pfl": (("pfl[pytorch]==0.6.0", "torch==2.13.0", "numpy==2.4.6", "dp-accounting==0.5.1"),),
}


def environment(name: str, envs: Path = ENVS) -> Path:
    """Return the Python of a peer's environment, making or remaking it if its pins changed.

    Raises:
        RuntimeError: If none of its alternatives can be installed.
    """
    if name not in PINS:
        raise ValueError(f"peer {name!r} is not known; use one of {', '.join(PINS)}")
    folder = envs / name
    python = folder / "bin" / "python"
    stamp = folder / "pins.txt"
    wanted = hashlib.sha256(repr(PINS[name]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text("utf-8").split()[0] == wanted:
        return python
    print(f"making the environment of {name}: some minutes, about a gigabyte", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for pins in PINS[name]:
        # Without torch first, another package's open range would take a build for GPUs.
        torch = [pin for pin in pins if pin.startswith("torch==")]
        if _install(python, torch) and _install(python, [*pins]):
            stamp.write_text(f"{wanted} {' '.join(pins)}\n", "utf-8")
            return python
        print(f"{pins[0]} cannot be installed here", file=sys.stderr)
    raise RuntimeError(
        f"no alternative of {name} could be installed: {[pins[0] for pins in PINS[name]]}; "
        "see pip's message above"
    )


def _install(python: Path, packages: list[str]) -> bool:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*command, *packages], stdout=sys.stderr).returncode == 0
