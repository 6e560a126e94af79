"""The same training in this process, told which users and attempts a deployed run lost."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from fedpriv import json_lines
from fedpriv.backends.backend import SerialBackend
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.document import read_document
from fedpriv.runs.prepared import start_run
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.work import Attempt
from tests.deployment.layout import attempts
from tests.harness.resumed import resume_run


class _Crashed(Exception):
    """The server was killed here."""


class _Told(SerialBackend):
    """Trains everybody but who was lost, and is killed where the server was."""

    trains_again = False  # as of nodes
    failed: Mapping[int, int]
    nodes: Mapping[str, frozenset[str]]
    down: str
    killed: Sequence[tuple[int, int]]

    def sum(self, request: SumRequest, attempt: Attempt, cohort: Sequence[str]) -> PartialSum:
        if (attempt.round_num, attempt.number) in self.killed:
            raise _Crashed
        gone = self._gone(cohort, self.failed.get(attempt.round_num, 0))
        came = [user for user in cohort if user not in gone]
        return super().sum(request, attempt, came)

    def _gone(self, cohort: Sequence[str], number: int) -> frozenset[str]:
        """Return the users of the fewest nodes, of the killed one first, that are so many here."""
        others = [name for name in self.nodes if name != self.down]
        names = [self.down, *others]
        for size in range(len(names) + 1):
            for chosen in itertools.combinations(names, size):
                gone = frozenset().union(*(self.nodes[name] for name in chosen))
                if len(gone.intersection(cohort)) == number:
                    return gone
        raise AssertionError(f"{number} users failed, which are not those of whole nodes")


def differences(
    run: Path,
    *,
    server: Path,
    whole: Path,
    users: Mapping[str, Sequence[str]],
    down: str,
    out: Path,
    **options: str | int,
) -> list[str]:
    """Return in what a deployed run differs from the one in this process; nothing is expected.

    Args:
        run: The deployed run's folder.
        server: The server's part of the corpus, whose noise it is.
        whole: The corpus that was cut.
        users: Of each node, by its name.
        down: The node that was killed. The run says how many users failed, and not who; they are
            of whole nodes, of this one first.
        out: Where the other run's folder will be.
        options: Which of the whole corpus's users were dealt out.
    """
    document, rounds = read_document(run), json_lines.read(run / "rounds.jsonl")
    failed = _failed(run)
    released = [line["round_num"] for line in rounds]
    killed = sorted(set(attempts(run, "charge")) - set(attempts(run, "release")))
    chosen = load_experiment(document["name"]).with_options(document["experiment"])
    everybody = build(chosen.with_options(options), Corpus.open(whole))
    told = {
        "failed": failed,
        "nodes": {name: frozenset(ids) for name, ids in users.items()},
        "down": down,
        "killed": killed,
    }
    backend = type("Told", (_Told,), told)

    def made(experiment, components):
        task = everybody.task
        return backend(trainer=everybody.trainer, data=task.data, measure=components.task.evaluate)

    prepared = start_run(chosen, document["name"], Corpus.open(server), out, make_backend=made)
    for _ in range(len(killed) + 1):
        try:
            prepared.run()
            break
        except _Crashed:
            prepared = resume_run(out, make_backend=made)
    found: list[str] = []
    last = f"checkpoints/round-{max(released):06d}.safetensors"
    ours, theirs = load_file(run / last), load_file(out / last)
    if set(ours) != set(theirs) or not all(np.array_equal(ours[n], theirs[n]) for n in ours):
        found.append("params")
    if not any(np.any(array) for array in ours.values()):
        found.append("params are all zero")
    here, there = (read_ledger(each / "ledger.jsonl")[1] for each in (run, out))
    if here.plan != there.plan or verify_run(run).epsilon != verify_run(out).epsilon:
        found.append("ε")
    charged = [attempts(each, "charge") for each in (run, out)]
    if charged[0] != charged[1]:
        found.append(f"charges: {charged[0]} here, {charged[1]} in process")
    if any(_failed(out).values()):
        found.append("the run in process lost users of its own")
    if not verify_run(run).ok:
        found.append("the deployed run does not verify")
    return found


def _failed(run: Path) -> dict[int, int]:
    """Return how many users failed, by round."""
    rows = json_lines.read(run / "diagnostics.jsonl")
    return {row["round_num"]: row["num_failed"] for row in rows}
