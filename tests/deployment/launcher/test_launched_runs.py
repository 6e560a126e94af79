"""Whole runs on SuperNodes and ClientApps of the launcher, with a real SuperLink on loopback.

As in launcher.md.
"""

import hashlib
import re
import sys
import time
from pathlib import Path

import pytest

from fedpriv.datasets.importers.synthetic import synthesize
from tests.backends.flower.real import processes as real
from tests.backends.flower.real.test_runs import assert_equals_in_process, config
from tests.deployment.layout import CHECKOUT
from tests.harness.tag_runs import SMALL


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("corpora") / "tiny", **SMALL).directory


def start(flower, link, number, config, *superexec):
    """Start a launched SuperNode beside a stock SuperLink, and the launcher of its ClientApps."""
    (port,) = real.free_ports(1)
    fedpriv = [Path(sys.executable).name, "-m", "fedpriv"]
    node = [
        *("supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--host", "127.0.0.1"),
        *("--port", str(port), "--node-config", config),
    ]
    flower.start(f"supernode-{number}", [*fedpriv, *node], PYTHONPATH=str(CHECKOUT))
    while not real._listens(port):
        time.sleep(0.1)
    launcher = ["superexec", "--insecure", "--runtime-api-address", f"127.0.0.1:{port}", *superexec]
    flower.start(f"clientapp-{number}", [*fedpriv, *launcher], PYTHONPATH=str(CHECKOUT))


@pytest.mark.slow
@pytest.mark.flower
def test_a_launched_run_equals_in_process(flower, corpus, tmp_path):
    """As stock processes do, bit for bit: `test_a_superlink_with_three_supernodes_...`. Users,
    and the only bundle that may run, are the launcher's to say; nodes name another corpus."""
    app = real.copy_app(tmp_path / "app")
    bundle = real.build(app, flower.env)
    digest = hashlib.sha256(bundle.read_bytes()).hexdigest()
    bundle.unlink()
    link = flower.start_superlink(simulation=False)
    for part in range(3):
        place = real.run_config(partition_id=part, num_partitions=3, corpus="/not/there")
        start(flower, link, part, place, "--users", str(corpus), "--bundle", digest)
    run = tmp_path / "run"
    log = flower.run(app, config(corpus, run))
    assert (run / "summary.json").is_file(), log[-4000:] + flower.log("clientapp-0")
    assert_equals_in_process(run, corpus, tmp_path)
    # Each node has had a query and two rounds in children of one process.
    assert flower.log("clientapp-0").count("ready after") == 1
    # Of a bundle that is not pinned nothing is run, and both sides say so in a line.
    (app / "client" / "app.py").write_text("app = None\nraise SystemExit('hostile')\n", "utf-8")
    log = real.plain(flower.run(app, config(corpus, tmp_path / "no", register_seconds=20.0)))
    assert "is none that this node runs; its operator names those that it does by --bundle" in log
    assert "Traceback" not in log
    said = [line for line in flower.log("clientapp-0").splitlines() if "is none that" in line]
    assert len(said) == 1 and re.match(r"\S+Z ERROR fedpriv\.deployment: bundle ", said[0])
    assert "hostile" not in flower.log("clientapp-0")
    # A mistake in the run-config is one line as well.
    log = flower.run(app, config(corpus, tmp_path / "no", experiment="adadps-tag"))
    assert "Traceback" not in log and "Exit Code" not in log, log
    assert "raised an exception" not in log
    (line,) = [line for line in log.splitlines() if " ERROR " in line]
    assert "did you mean 'adadps-tags'" in line and not (tmp_path / "no" / "rounds.jsonl").exists()
