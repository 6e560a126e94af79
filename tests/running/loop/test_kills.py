"""A run is the same, and paid for, after a kill at any moment."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedpriv import json_lines
from fedpriv.checkpoints.store import CheckpointStore, load_state
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.rng import Key
from fedpriv.runs.noise_root import noise_root
from tests.harness.kills import ROOT
from tests.harness.tag_runs import OPTIONS, charged, ledger_state, pairs

# Kills. One helper process imports everything once and forks a real process for each run, so that
# a kill costs milliseconds and not an import of torch. The forked process kills itself with
# SIGKILL at the so-many-th of the moments that matter: before, in the middle of and after every
# write, sync, rename and draw. Kills from outside, at any moment, are those of tests/trust/kills.

CHILD = """
import hashlib, importlib, io, json, os, signal, sys, threading
from pathlib import Path
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.backends import SerialBackend
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run
from tests.harness.resumed import resume_run
from fedpriv.privacy.sampling import PoissonSampler

noise = importlib.import_module("fedpriv.mechanisms.gaussian")
write, fsync, replace, unlink = os.write, os.fsync, os.replace, os.unlink
opened, gaussian = io.open, noise.gaussian
cohort, sums = PoissonSampler.cohort, SerialBackend.sum
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

    def summed(self, request, attempt, cohort):
        note(log, "users", attempt.key, cohort=cohort, pair=[attempt.round_num, attempt.number])
        tick()
        return sums(self, request, attempt, cohort)

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

    SerialBackend.trains_again = False  # one sum an attempt
    os.fsync, os.replace, os.unlink = map(around, (fsync, replace, unlink))
    os.write, io.open = torn, opening
    crash_at = order["crash_at"]
    if (folder / "experiment.json").exists():
        prepared = resume_run(folder)
    else:
        experiment = load_experiment("dp-fedavg-tags").with_options(order["options"])
        prepared = start_run(experiment, "dp-fedavg-tags", Corpus.open(order["corpus"]), folder)
    # Not before: a step is rehearsed on synthetic users, under a key of its own.
    noise.gaussian, PoissonSampler.cohort, SerialBackend.sum = noisy, drawn, summed
    prepared.run()
    crash_at = None
    opened(order["log"] + ".ticks", "w").write(str(count))


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
        assert self.order(warm=str(tmp_path / "warm")) == {"warm": True}

    def order(self, **order):
        """Return the helper's answer to an order."""
        document = {"corpus": str(self.corpus.directory), "options": self.options, **order}
        self.process.stdin.write(json.dumps(document) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the helper process died"
        return json.loads(line)

    def run(self, folder, *, crash_at=None):
        """Run or resume; return whether the run came to its end (else it was killed)."""
        status = self.order(folder=str(folder), log=f"{folder}.log", crash_at=crash_at)["status"]
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, "it failed instead"
        return status == 0

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


@pytest.fixture
def runner(tiny_corpus, tmp_path, request):
    """A runner, and the process that forks for it."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    with process:
        yield Runner(process, tiny_corpus, tmp_path, request.param)
        process.stdin.close()
        assert process.wait(timeout=900) == 0


@pytest.mark.slow
@pytest.mark.parametrize("runner", [{"rounds": 60, "eval-every": 50}], indirect=True)
def test_killed_at_random_moments_and_resumed(runner):
    folder, choice, kills = runner.tmp / "run", random.Random(3), 3
    for _ in range(kills):
        assert not runner.run(folder, crash_at=choice.randint(1, 400))
        runner.check(folder)
    assert runner.run(folder)
    runner.check_end(folder, kills)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runner", "more"),
    [({"rounds": 2, "eval-every": 3}, 0), ({"rounds": 3, "eval-every": 3}, 3)],
    indirect=["runner"],
)
def test_a_kill_at_every_moment_of_a_run_and_more_while_resuming(runner, more):
    """At every fourth moment where what is resumed is killed three more times."""
    whole = runner.tmp / "whole"
    assert runner.run(whole)
    runner.check_end(whole, 0)
    moments = int(Path(f"{whole}.log.ticks").read_text())
    assert moments > 50
    choice, lost = random.Random(0), set()
    for moment in range(1, moments + 1, 1 + more):
        folder = runner.tmp / f"at-{moment}"
        assert not runner.run(folder, crash_at=moment)
        runner.check(folder)
        kills = 1
        for _ in range(more):
            if runner.run(folder, crash_at=choice.randint(1, 40)):
                break
            kills += 1
            runner.check(folder)
        assert runner.run(folder)
        runner.check_end(folder, kills)
        lost.add(len(ledger_state(folder).lost))
    assert {0, 1} <= lost
