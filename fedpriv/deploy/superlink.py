"""Flower's SuperLink as a deployment has it: TLS, nodes known by their keys, state in memory.

Flower's state would keep raw sums on disk if it had a database, so it has none; what it knows of
nodes goes with its process, and their keys are registered again whenever it starts.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

#: How often a SuperLink that has just started is asked whether it listens, seconds.
_PAUSE = 0.2
_START_SECONDS = 120.0


def superlink(keys: Path, port: int, *, tell: Callable[[str], None]) -> int:
    """Run a SuperLink until it ends; register the nodes' keys as soon as it listens.

    Its log has warnings and errors alone, so that it does not say which node answered when.

    Args:
        keys: Holds ca.crt, superlink.pem, superlink.key, superexec.secret, and in nodes/ the
            public key of each node that may join, as `ssh-keygen` wrote it.
        port: What it listens on, at every address of this machine.
        tell: Called with lines of progress.

    Returns:
        The SuperLink's exit code.

    Raises:
        ValueError: If there is no node's key.
        RuntimeError: If it does not listen, or refuses a key.
    """
    public = sorted((keys / "nodes").glob("*.pub"))
    if not public:
        raise ValueError(
            f"{keys / 'nodes'} holds no node's public key (NAME.pub); no node can join"
        )
    process = subprocess.Popen(
        [
            *_program("flower-superlink"),
            *("--host", "0.0.0.0", "--port", str(port)),
            *("--ssl-ca-certfile", str(keys / "ca.crt")),
            *("--ssl-certfile", str(keys / "superlink.pem")),
            *("--ssl-keyfile", str(keys / "superlink.key")),
            *("--superexec-auth-secret-file", str(keys / "superexec.secret")),
            "--enable-supernode-auth",
            *("--isolation", "process"),
            "--disable-runtime-dependency-installation",
        ],
        # Below a warning Flower logs the node of each answer: whose users were drawn.
        env={**os.environ, "FLWR_LOG_LEVEL": "WARNING"},
    )
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _: process.send_signal(number))
    try:
        _wait_for(process, f"https://localhost:{port}/health", keys / "ca.crt")
        register(public, f"localhost:{port}", keys / "ca.crt", tell=tell)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process.wait()


def register(
    public_keys: Sequence[Path], address: str, ca: Path, *, tell: Callable[[str], None]
) -> None:
    """Register nodes' public keys at a SuperLink.

    Args:
        public_keys: Files; each node is called by its file's stem.
        address: HOST:PORT of the control API.
        ca: Who signed the SuperLink's certificate.
        tell: Called with a line for each.

    Raises:
        RuntimeError: If one is refused, with the SuperLink's reason.
    """
    with tempfile.TemporaryDirectory(prefix="fedpriv-register-") as home:
        (Path(home) / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\n'
            f'root-certificates = "{ca.resolve()}"\n',
            "utf-8",
        )
        for key in public_keys:
            done = subprocess.run(
                [*_program("flwr"), "supernode", "register", str(key), "here", "--name", key.stem],
                env={**os.environ, "FLWR_HOME": home},
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                reason = " ".join((done.stdout + done.stderr).split())
                raise RuntimeError(f"{key} was not registered: {reason[-400:]}")
            tell(f"{key.stem} may join")


def _program(name: str) -> list[str]:
    """Return the command of a program that is installed next to this Python."""
    return [str(Path(sys.executable).with_name(name))]


def _wait_for(process: subprocess.Popen[bytes], url: str, ca: Path) -> None:
    context = ssl.create_default_context(cafile=str(ca))
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the SuperLink ended with code {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2, context=context):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(_PAUSE)
    raise RuntimeError(f"the SuperLink does not listen after {_START_SECONDS:.0f} s")
