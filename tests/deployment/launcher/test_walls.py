"""The launcher and a SuperLink's Runtime API over TLS: who may ask, and who is believed."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.backends.flower.real import processes as real
from tests.deployment.layout import CHECKOUT, did

pytestmark = [
    pytest.mark.slow,
    pytest.mark.flower,
    pytest.mark.skipif(
        shutil.which("openssl") is None or shutil.which("ssh-keygen") is None,
        reason="needs openssl and ssh-keygen",
    ),
]


@dataclass
class Walled:
    """A SuperLink with TLS and a SuperExec secret, and the keys of the script."""

    flower: real.Flower
    port: int
    keys: Path

    def launcher(self, *options: str) -> list[str]:
        return [Path(sys.executable).name, "-m", "fedpriv", "superexec", "--runtime-api-address",
                f"127.0.0.1:{self.port}", *options]  # fmt: skip

    def with_secret(self, secret: Path, ca: Path | None = None) -> list[str]:
        ca = self.keys / "ca.crt" if ca is None else ca
        return ["--root-certificates", str(ca), "--superexec-auth-secret-file", str(secret)]

    @property
    def secret(self) -> Path:
        return self.keys / "serverapp" / "superexec.secret"


def keys(folder: Path) -> Path:
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "users.json").write_text(json.dumps({"node-1": ["a"]}), "utf-8")
    did(["sh", "server/keys.sh", str(folder), "1"])
    return folder / "keys"


@pytest.fixture
def walled(tmp_path: Path) -> Iterator[Walled]:
    flower = real.Flower(tmp_path / "flower-home")
    (port,), made = real.free_ports(1), keys(tmp_path / "deploy")
    flower.start(
        "superlink",
        ["flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--isolation", "process",
         "--ssl-ca-certfile", str(made / "ca.crt"),
         "--ssl-certfile", str(made / "superlink" / "superlink.pem"),
         "--ssl-keyfile", str(made / "superlink" / "superlink.key"),
         "--superexec-auth-secret-file", str(made / "superlink" / "superexec.secret"),
         "--disable-runtime-dependency-installation"],
    )  # fmt: skip
    try:
        yield Walled(flower=flower, port=port, keys=made)
    finally:
        flower.stop()
        assert not flower.left()


def test_who_has_the_secret_may_ask_and_others_end_with_one_line(walled, tmp_path):
    asked = walled.flower.home / "launched" / "asked"
    words = walled.launcher(*walled.with_secret(walled.secret))
    process = walled.flower.start("right", words, PYTHONPATH=str(CHECKOUT))
    end = time.monotonic() + 120
    while not asked.exists():
        assert process.poll() is None and time.monotonic() < end, walled.flower.log("right")
        time.sleep(0.2)
    process.terminate()
    assert process.wait(30) == 0
    # The secret is in a file and in memory: no list of processes shows it.
    assert walled.secret.read_text("ascii") not in " ".join(words)
    asked.unlink()
    wrong, other = tmp_path / "wrong.secret", keys(tmp_path / "other") / "ca.crt"
    wrong.write_text("0" * 64, "ascii")
    for options, said in (
        (walled.with_secret(wrong), "refuses this launcher (status 401)"),
        (["--root-certificates", str(walled.keys / "ca.crt")], "refuses this launcher"),
        (walled.with_secret(walled.secret, other), "is --root-certificates of the authority"),
    ):
        done = subprocess.run(
            [str(real.BIN / words[0]), *walled.launcher(*options)[1:]], timeout=300, check=False,
            env={**walled.flower.env, "PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True,
        )  # fmt: skip
        lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert done.returncode == 2 and len(lines) == 1 and said in lines[0], done.stderr[-2000:]
        assert "Traceback" not in done.stderr and not asked.exists()
