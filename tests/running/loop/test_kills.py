"""A run is the same, and paid for, after a kill at any moment."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedpriv import json_lines
from fedpriv.checkpoints.store import CheckpointStore, load_state
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.rng import Key
from fedpriv.runs.noise_root import noise_root
from tests.harness.tag_runs import OPTIONS, ROOT, charged, ledger_state, pairs

# Kills. One helper process imports everything once and forks a real process for each run, so that
# a kill costs milliseconds and not an import of torch. The forked process kills itself with
# SIGKILL at the so-many-th of the moments that matter (before, in the middle of and after every
# write, sync, rename and draw), or is killed from outside at a random one: after so many draws and
# a little more, however long they take. It does not end before it is killed, so nobody is too late.

CHILD = """
import builtins, hashlib, importlib, io, json, os, signal, sys, threading, time
from pathlib import Path
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.backends import SerialBackend
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run
from tests.harness.resumed import resume_run
from fedpriv.privacy.sampling import PoissonSampler

noise = importlib.import_module("fedpriv.mechanisms.gaussian")
write, fsync, replace, unlink = os.write, os.fsync, os.replace, os.unlink
opened, gaussian, cohort = io.open, noise.gaussian, PoissonSampler.cohort
count, crash_at = 0, None


def tick():
    global count
    count += 1
    if count == crash_at:
        os.kill(os.getpid(), signal.SIGKILL)


def around(function):
    def call(*arguments, **named):
        tick()
        result = function(*arguments, **named)
        tick()
        return result
    return call


def note(log, kind, key, **more):
    digest = hashlib.sha256(key.to_bytes()).hexdigest()
    write(log, (json.dumps({"kind": kind, "key": digest, **more}) + "\\n").encode())


def work(order):
    global crash_at
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    folder = Path(order["folder"])

    class Slow(SerialBackend):
        def partial_sum(self, **arguments):
            note(log, "users", arguments["key"], cohort=arguments["cohort"],
                 pair=[arguments["round_num"], arguments["attempt"]])
            tick()
            return super().partial_sum(**arguments)

    def backend(experiment, components):
        return Slow(trainer=components.trainer, data=components.task.data,
                    measure=components.task.evaluate)

    def noisy(key, template, stddev):
        note(log, "noise", key)
        tick()
        return gaussian(key, template, stddev)

    def drawn(self, key, roster):
        note(log, "cohort", key)
        tick()
        return cohort(self, key, roster)

    def torn(descriptor, data):
        tick()
        if count + 1 == crash_at:
            write(descriptor, bytes(data)[: len(data) // 2])
        tick()
        done = write(descriptor, data)
        tick()
        return done

    def opening(file, mode="r", *arguments, **named):
        if "r" not in mode:
            tick()
        return opened(file, mode, *arguments, **named)

    noise.gaussian, PoissonSampler.cohort = noisy, drawn
    os.fsync, os.replace, os.unlink = map(around, (fsync, replace, unlink))
    os.write, io.open = torn, opening
    crash_at = order["crash_at"]
    if (folder / "experiment.json").exists():
        prepared = resume_run(folder, make_backend=backend)
    else:
        experiment = load_experiment("dp-fedavg-tags").with_options(order["options"])
        prepared = start_run(experiment, "dp-fedavg-tags", Corpus.open(order["corpus"]), folder,
                             make_backend=backend)
    prepared.run()
    crash_at = None
    opened(order["log"] + ".ticks", "w").write(str(count))
    while order["killed"]:
        time.sleep(1)


for line in sys.stdin:
    order = json.loads(line)
    if "warm" in order:  # what is loaded, compiled or computed once, such as the privacy loss
        experiment = load_experiment("dp-fedavg-tags").with_options(order["options"])
        prepared = start_run(experiment, "dp-fedavg-tags", Corpus.open(order["corpus"]),
                             Path(order["warm"]))
        prepared.run()
        for charges in range(min(experiment.rounds, 3) + 1):
            prepared.components.plan.epsilon(charges)
        assert threading.active_count() == 1  # a fork has no other thread
        print(json.dumps({"warm": True}), flush=True)
        continue
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(order)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(json.dumps({"pid": child}), flush=True)
    if order["killed"]:
        sys.stdin.readline()
    print(json.dumps({"status": os.waitpid(child, 0)[1]}), flush=True)
"""


class Runner:
    """Runs one plan in forked processes and checks everything after each of their deaths."""

    def __init__(self, process, corpus, tmp_path, options):
        self.process, self.corpus, self.tmp = process, corpus, tmp_path
        self.options = {**OPTIONS, **options}
        experiment = load_experiment("dp-fedavg-tags").with_options(self.options)
        self.plan = build(experiment, corpus).plan
        self.root = Key.simulation(experiment.seed)
        self.order(warm=str(tmp_path / "warm"))
        assert self.answer() == {"warm": True}

    def order(self, **order):
        document = {"corpus": str(self.corpus.directory), "options": self.options, **order}
        self.send(json.dumps(document))

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the helper process died"
        return json.loads(line)

    def run(self, folder, *, crash_at=None, kill_after=None, jitter=0.0):
        """Run or resume; return whether the run came to its end (else it was killed).

        A kill from outside comes after so many more draws than before, and a jitter in seconds.
        """
        log, killed = Path(f"{folder}.log"), kill_after is not None
        before = self.draws(log)
        self.order(folder=str(folder), log=str(log), crash_at=crash_at, killed=killed)
        pid = self.answer()["pid"]
        try:
            if killed:
                self.wait_for_draws(pid, log, before + kill_after)
                time.sleep(jitter)
        finally:
            if killed:
                os.kill(pid, signal.SIGKILL)
                self.send("")  # it is not reaped before this, and so the id is its own
            status = self.answer()["status"]
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, "it failed instead"
        assert not Path(f"/proc/{pid}").exists()
        return status == 0

    def wait_for_draws(self, pid, log, draws):
        until = time.monotonic() + 900  # a hang, and not a slow machine
        while self.draws(log) < draws and not Path(f"{log}.ticks").exists():
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state != "Z" and time.monotonic() < until
            time.sleep(0.001)

    @staticmethod
    def draws(log):
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def digests(self, kind, charges, folder):
        root = noise_root(self.root, ledger_state(folder).extra) if charges else self.root
        return {
            hashlib.sha256(root.fold(kind).fold(r).fold(a).to_bytes()).hexdigest()
            for r, a in charges
        }

    def check(self, folder):
        """After any death: every draw and every release was charged before it happened."""
        file = folder / "ledger.jsonl"
        log = Path(f"{folder}.log")
        drawn = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        charges = []
        if file.exists() and b"\n" in file.read_bytes():
            charges = charged(folder)
        for kind in ("cohort", "users", "noise"):
            keys = [entry["key"] for entry in drawn if entry["kind"] == kind]
            assert len(keys) == len(set(keys))  # nothing is ever drawn twice
            assert set(keys) <= self.digests(kind, charges, folder)
        assert len(charges) == len(set(charges)) <= self.plan.num_rounds
        released = (
            [(r.round_num, r.attempt) for r in ledger_state(folder).releases] if charges else []
        )
        assert set(released) <= set(charges)
        lines = json_lines.read(folder / "rounds.jsonl")
        assert [line["round_num"] for line in lines] == list(range(1, len(lines) + 1))
        for line in lines:
            position = charges.index((line["round_num"], line["attempt"])) + 1
            assert line["epsilon"] == self.plan.epsilon(line["epsilon_charges"]).value
            assert line["epsilon_charges"] >= position
        on_disk = CheckpointStore(folder / "checkpoints").rounds()
        assert set(on_disk) <= {round_num for round_num, _ in charges}
        saved = folder / "state.safetensors"
        if saved.exists():
            metadata = load_state(saved)[1]
            assert (int(metadata["round_num"]), int(metadata["attempt"])) in charges

    def check_end(self, folder, kills):
        """After the end: at least T - k rounds are released, for no more than the plan."""
        self.check(folder)
        plan, charges = self.plan, charged(folder)
        past = ledger_state(folder)
        assert len(charges) == plan.num_rounds and len(past.lost) <= kills
        assert len(past.releases) == len(charges) - len(past.lost) >= plan.num_rounds - kills
        lines = json_lines.read(folder / "rounds.jsonl")
        assert pairs(lines) == [(r.round_num, r.attempt) for r in past.releases]
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["rounds"] == len(past.releases)
        assert summary["epsilon"] == plan.epsilon(plan.num_rounds).value
        assert past.epsilon().value <= plan.epsilon(plan.num_rounds).value * (1 + 1e-12)
        # Two attempts at a round, two cohorts.
        log = [json.loads(line) for line in Path(f"{folder}.log").read_text().splitlines()]
        sent = [
            (entry["pair"][0], tuple(entry["cohort"])) for entry in log if entry["kind"] == "users"
        ]
        assert len(sent) == len(set(sent))


def _cmdline(path):
    try:
        return path.read_bytes()
    except OSError:  # gone in the meantime
        return b""


@pytest.fixture(scope="module")
def helper(tmp_path_factory):
    """The process that forks; when it ends, nothing of it may be left."""
    mark = f"forks for {tmp_path_factory.mktemp('helper')}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    yield process
    process.stdin.close()
    assert process.wait(timeout=900) == 0
    process.stdout.close()
    assert [p for p in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in _cmdline(p)] == []


@pytest.fixture
def runner(helper, tiny_corpus, tmp_path, request):
    return Runner(helper, tiny_corpus, tmp_path, request.param)


TWO_ROUNDS = {"rounds": 2, "eval-every": 3}
THREE_ROUNDS = {"rounds": 3, "eval-every": 3}


@pytest.mark.slow
@pytest.mark.parametrize("runner", [TWO_ROUNDS], indirect=True)
def test_a_kill_at_every_moment_of_a_run(runner):
    whole = runner.tmp / "whole"
    assert runner.run(whole)
    runner.check_end(whole, 0)
    moments = int(Path(f"{whole}.log.ticks").read_text())
    assert moments > 50
    lost = set()
    for moment in range(1, moments + 1):
        folder = runner.tmp / f"at-{moment}"
        assert not runner.run(folder, crash_at=moment)
        runner.check(folder)
        assert runner.run(folder)
        runner.check_end(folder, 1)
        lost.add(len(ledger_state(folder).lost))
    assert lost == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("runner", [THREE_ROUNDS], indirect=True)
def test_a_kill_at_every_moment_and_another_while_resuming(runner):
    assert runner.run(runner.tmp / "whole")
    moments = int((runner.tmp / "whole.log.ticks").read_text())
    choice = random.Random(0)
    for moment in range(1, moments + 1):
        folder = runner.tmp / f"at-{moment}"
        assert not runner.run(folder, crash_at=moment)
        runner.check(folder)
        kills = 1
        for _ in range(3):
            if runner.run(folder, crash_at=choice.randint(1, 40)):
                break
            kills += 1
            runner.check(folder)
        assert runner.run(folder)
        runner.check_end(folder, kills)


def kill_at_random(runner, kills):
    """SIGKILL from outside at random moments of a run that is resumed after each."""
    folder, choice = runner.tmp / "run", random.Random(kills)
    for _ in range(kills):
        # Up to 13 rounds of three draws each: `kills` times as many are fewer than the plan's.
        draws, jitter = choice.randint(1, 39), choice.uniform(0.0, 0.02)
        assert not runner.run(folder, kill_after=draws, jitter=jitter)
        runner.check(folder)
    assert runner.run(folder)
    runner.check_end(folder, kills)
    resumes = (folder / "ledger.jsonl").read_bytes().count(b'"kind":"resume"')
    assert 1 <= resumes <= kills


@pytest.mark.slow
@pytest.mark.parametrize("runner", [{"rounds": 60, "eval-every": 50}], indirect=True)
def test_killed_at_random_moments_and_resumed(runner):
    kill_at_random(runner, 3)


@pytest.mark.slow
@pytest.mark.parametrize("runner", [{"rounds": 300, "eval-every": 200}], indirect=True)
def test_killed_at_twenty_random_moments_and_resumed(runner):
    kill_at_random(runner, 20)
