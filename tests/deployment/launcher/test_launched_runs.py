"""Whole runs on SuperNodes and ClientApps of the launcher, with a real SuperLink on loopback.

As in launcher.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess

import pytest

from fedpriv.datasets.importers.synthetic import Shape, synthesize
from tests.backends.flower.real import processes as real
from tests.backends.flower.real import small_app
from tests.backends.flower.real.test_runs import assert_equals_in_process, config

# Two nodes of twenty users; the first node's process kills itself in the second round.
CLIENT = """
import os
import signal

import small
from flwr.clientapp import ClientApp

from fedpriv.backends.flower.client import Host, serve
from fedpriv.training.work import as_works

app = ClientApp()
seen = []


class Step(small.Step):
    def train(self, params, examples, key):
        if seen:
            raise RuntimeError("something is left of an earlier message")
        return super().train(params, examples, key)


class Once(Host):
    __slots__ = ()

    def train(self, message):
        found = super().train(message)
        seen.append(message)
        if message.content["work"]["round-num"] == 2 and "user-00" in self.user_ids:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def host(context):
    part, of = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    return Once(
        works=as_works(Step()), data=small.Users(), user_ids=frozenset(small.ROSTER[part::of])
    )


serve(app, host)
"""


def plain(log):
    """A log as words with single spaces: Flower colours and wraps it."""
    return " ".join(re.sub(r"\x1b\[\d+m", "", log).split())


def places(count, **more):
    return [
        real.run_config(partition_id=number, num_partitions=count, **more)
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpora") / "tiny"
    shape = Shape(num_users=24, num_sentences=500, public_users=6, num_words=200, num_tags=12,
                  num_topics=4)  # fmt: skip
    synthesize(path, shape=shape, max_words=150, max_tags=10)
    return path


@pytest.mark.slow
@pytest.mark.flower
def test_a_launched_run_equals_in_process(launched, corpus, tmp_path):
    """As stock processes do, bit for bit: `test_a_superlink_with_three_supernodes_...`. Users,
    and the only bundle that may run, are the launcher's to say; nodes name another corpus."""
    app = real.copy_app(tmp_path / "app")
    flower = launched.flower
    subprocess.run(
        [str(real.BIN / "flwr"), "build"], cwd=app, env=flower.env, check=True, capture_output=True
    )
    (bundle,) = app.glob("*.fab")
    digest = hashlib.sha256(bundle.read_bytes()).hexdigest()
    bundle.unlink()
    nodes = places(3, corpus="/not/there")
    launched.start(nodes, "--users", str(corpus), "--bundle", digest)
    run = tmp_path / "run"
    log = flower.run(app, config(real, corpus, run))
    assert (run / "summary.json").is_file(), log[-4000:] + flower.log("clientapp-0")
    assert_equals_in_process(run, corpus, tmp_path)
    # Each node has had a query and two rounds in children of one process.
    assert flower.log("clientapp-0").count("ready after") == 1
    # Of a bundle that is not pinned nothing is run, and both sides say so in a line.
    (app / "client" / "app.py").write_text("app = None\nraise SystemExit('hostile')\n", "utf-8")
    log = plain(flower.run(app, config(real, corpus, tmp_path / "no", register_seconds=20.0)))
    assert "is none that this node runs; its operator names those that it does by --bundle" in log
    assert "Traceback" not in log
    said = [line for line in flower.log("clientapp-0").splitlines() if "is none that" in line]
    assert len(said) == 1 and re.match(r"\S+Z ERROR fedpriv\.deployment: bundle ", said[0])
    assert "hostile" not in flower.log("clientapp-0")
    # A mistake in the run-config is one line as well.
    log = flower.run(app, config(real, corpus, tmp_path / "no", experiment="adadps-tag"))
    assert "Traceback" not in log and "Exit Code" not in log, log
    assert "raised an exception" not in log
    (line,) = [line for line in log.splitlines() if " ERROR " in line]
    assert "did you mean 'adadps-tags'" in line and not (tmp_path / "no" / "rounds.jsonl").exists()


@pytest.mark.slow
@pytest.mark.flower
def test_a_killed_fork_loses_its_message_only(launched, tmp_path, monkeypatch, draws_of):
    """The node's next message is answered, by a process that knows nothing of those before."""
    app = small_app.write_app(tmp_path / "app")
    (app / "client_app.py").write_text(CLIENT, "utf-8")
    launched.start(places(2))
    run = tmp_path / "run"
    options = {"out": str(run), "rounds": 3, "deadline": 120.0, "faults": False}
    log = launched.flower.run(app, real.run_config(**options))
    said = launched.flower.log("clientapp-0")
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 3, log[-4000:] + said
    assert said.count("ended with signal 9") == 1
    seen = [json.loads(line) for line in (run / "diagnostics.jsonl").read_text().splitlines()]
    failed = [line["num_failed"] for line in seen]
    assert failed[0] == failed[2] == 0 < failed[1]
    # Nobody waited for the dead: Flower's own heartbeats find out after a minute.
    assert json.loads((tmp_path / "run.counts").read_text())["error"] == 1

    monkeypatch.syspath_prepend(str(app))
    import small  # pyright: ignore[reportMissingImports]

    out, lost = tmp_path / "in-process", frozenset(small.ROSTER[0::2])
    draws_of(run)
    small_app.in_process(small, out, 3, lambda number, user: number == 2 and user in lost)
    small_app.check_same_end(run, out, 3)

    # A bundle that takes its run's process with it is answered for as well, and the next is run.
    fatal = "import os\nimport signal\n\napp = None\nos.kill(os.getpid(), signal.SIGKILL)\n"
    (app / "client_app.py").write_text(fatal, "utf-8")
    options |= {"out": str(tmp_path / "none"), "register_seconds": 120.0}
    log = plain(launched.flower.run(app, real.run_config(**options)))
    assert "2 nodes failed" in log and "the process that answered was killed, or died" in log
    (app / "client_app.py").write_text(CLIENT, "utf-8")
    options |= {"out": str(tmp_path / "next"), "rounds": 1}
    log = launched.flower.run(app, real.run_config(**options))
    assert len((tmp_path / "next" / "rounds.jsonl").read_text().splitlines()) == 1, log[-4000:]
