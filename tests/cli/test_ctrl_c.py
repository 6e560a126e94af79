"""Ctrl-C at any moment of `fedpriv run`: exit status 130, one line, and a folder that goes on."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from fedpriv import json_lines
from fedpriv.privacy.statement.verify import verify_run

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")


class Command:
    """`fedpriv run` in a process of its own, in a session of its own as in a terminal."""

    def __init__(self, log, *arguments, **environment):
        self.log = log
        with log.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedpriv", *map(str, arguments)],
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=os.environ | environment,
                start_new_session=True,
                # A shell has its background jobs ignore Ctrl-C, and tests may run in one.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def said(self):
        return self.log.read_text("utf-8", "replace")

    def wait_for(self, text):
        """Wait until a line with this text was said; the guard is against a hang alone."""
        until, ended = time.monotonic() + 120, False
        while text not in self.said:
            assert not ended and time.monotonic() < until, self.said
            ended = self.process.poll() is not None
            time.sleep(0.01)

    def interrupt(self):
        """Press Ctrl-C, which every process of a terminal's foreground gets; return the status."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(timeout=120)


def started(corpus, out, *more, **environment):
    plan = ("--cohort", 20, "--rounds", 300, "--noise-multiplier", 1, "--delta", 0.001)
    given = ("--corpus", corpus.directory, "--out", out, "-s", "local-epochs=500")
    log = out.with_suffix(".log")
    return Command(log, "run", "dp-fedavg-tags", *given, *plan, *more, **environment)


def quietly_ended(command, status):
    assert status == 130, command.said
    for word in ("Traceback", "Exception ignored", "Fatal", "KeyboardInterrupt"):
        assert word not in command.said, command.said
    assert command.said.count("interrupted") == 1, command.said


def ended_well(command, out):
    """Press Ctrl-C; return whether a run is left: it verifies, and it is said how to go on."""
    quietly_ended(command, command.interrupt())
    kept = (out / "experiment.json").exists()
    goes_on = f"interrupted; continue with: fedpriv run --resume {out}\n"
    assert (goes_on in command.said) == kept and (not kept or verify_run(out).ok)
    return kept


@pytest.mark.parametrize(("more", "lines"), [((), 1), (("--json",), 0)])
def test_something_is_said_before_anything_is_imported_unless_figures_are_wanted(
    tmp_path, more, lines
):
    (tmp_path / "typer.py").write_text("raise SystemExit(7)", "utf-8")
    found = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    log = tmp_path / "said.log"
    with Command(log, "run", "dp-fedavg-tags", *more, PYTHONPATH=found) as command:
        assert command.process.wait(timeout=120) == 7
    assert len(command.said.splitlines()) == lines


@pytest.mark.parametrize(
    "moment",
    [
        "loading",
        pytest.param("preparing dp-fedavg-tags", marks=pytest.mark.slow),
        pytest.param("round 0 of 300", marks=pytest.mark.slow),
    ],
)
def test_at_a_moment(tiny_corpus, tmp_path, moment):
    out = tmp_path / "run"
    with started(tiny_corpus, out) as command:
        command.wait_for(moment)
        kept = ended_well(command, out)
    assert (
        not out.exists() if moment == "loading" else kept or "nothing was charged" in command.said
    )
    assert kept or not moment.startswith("round")


def test_what_the_interpreter_meets_at_its_end_does_not_change_the_status(tmp_path):
    """Ray's threads have ended in a segmentation fault there, after everything was closed."""
    room = tmp_path / "fedpriv_cli.py"
    room.write_text(
        "import atexit, os, signal, sys\n"
        "class Crash:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGSEGV)\n"
        "crash = Crash()\n"
        "def main():\n"
        "    atexit.register(print, 'registered', file=sys.stderr)\n"
        "    raise SystemExit(int(sys.argv[1]))\n",
        "utf-8",
    )
    code = (
        "import sys; import fedpriv_cli; sys.modules['fedpriv.cli'] = fedpriv_cli\n"
        "from fedpriv.__main__ import main; main()"
    )
    found = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for status in (130, 143):
        done = subprocess.run(
            [sys.executable, "-c", code, str(status)],
            env=os.environ | {"PYTHONPATH": found},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (status, "registered\n")


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "seconds"), [("serial", 6.0), ("ray", 16.0)])
def test_at_random_moments(tiny_corpus, tmp_path, engine, seconds):
    """Six moments each, from the first line to the rounds; every folder goes on or starts anew."""
    moments = random.Random(27)
    more = () if engine == "serial" else ("--backend", "ray", "--workers", 2)
    for number in range(6):
        out = tmp_path / str(number)
        with started(tiny_corpus, out, *more) as command:
            command.wait_for("loading")
            time.sleep(moments.uniform(0.0, seconds))
            kept = ended_well(command, out)
        rounds = len(json_lines.read(out / "rounds.jsonl")) if kept else 0
        resumed = (tmp_path / "resumed.log", "run", "--resume", out)
        with Command(*resumed) if kept else started(tiny_corpus, out) as again:
            again.wait_for("round")
            while len(json_lines.read(out / "rounds.jsonl")) <= rounds:
                assert again.process.poll() is None, again.said
                time.sleep(0.05)
            quietly_ended(again, again.interrupt())
