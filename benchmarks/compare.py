"""fedpriv and its peers, in one run of alternating blocks.

    python benchmarks/compare.py same            the dense torch client, unchanged, in every tool
    python benchmarks/compare.py best            what each tool's user would best write
    python benchmarks/compare.py plumbing        a client that returns its params, three sizes
    python benchmarks/compare.py plumbing-dp     the same with clipping and noise
    python benchmarks/compare.py cifar           pfl's own CIFAR-10 job
    python benchmarks/compare.py words           the recurrent network of Stack Overflow
    python benchmarks/compare.py full            all of these, then the benchmarks without peers

Every tool's worker is started once, runs one first round and its warm-up, and then sleeps while
others run. Blocks of steady rounds alternate, their order drawn (fixed seed) for each block;
fedpriv syncs its ledger in every round; no tool evaluates. Memory is measured in a block of its
own, because looking costs time. A peer that dies is left out from then on, and its row says so;
if fedpriv's own worker dies, the comparison ends with the error. Results go to
`benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TypeVar

from harness import alone, contestants, figures
from harness.contestants import Contestant
from harness.figures import Entry
from harness.worker_process import WorkerError, WorkerProcess
from jobs.cifar_job import NUM_USERS

COHORTS = {"cifar": 50, "words": 20}
PARTS = ("same", "best", "plumbing", "plumbing-dp", "cifar", "words")
Answer = TypeVar("Answer")


def tell(text: str) -> None:
    """Say something to the user."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Runner:
    """A contestant whose worker lives."""

    entry: Entry
    worker: WorkerProcess

    def ask(self, when: str, question: Callable[[], Answer]) -> Answer | None:
        """Return what the worker answers; None for a peer that died, with a note of when.

        Raises:
            WorkerError: If it is fedpriv's own that died.
        """
        try:
            return question()
        except WorkerError as error:
            if self.entry.contestant.tool == "fedpriv":
                raise
            self.entry.note = f"{error.what} {when}: {error.last_line[:200] or 'it said nothing'}"
            tell(str(error))
            self.worker.stop()  # nothing of it shall disturb the others
            return None


def measure(
    people: list[Contestant], *, blocks: int, block_seconds: float, warm_up: int, logs: Path
) -> list[Entry]:
    """Start everyone, alternate blocks of steady rounds, weigh everyone, end everyone.

    Raises:
        WorkerError: If a worker of fedpriv's died.
    """
    entries = [Entry(contestant=person) for person in people]
    order = random.Random(0)
    with ExitStack() as stack:
        running: list[tuple[Runner, int]] = []
        for entry in entries:
            runner = _start(entry, stack, logs)
            if runner is None:
                continue
            warm = runner.ask("in its warm-up", partial(runner.worker.rounds, warm_up))
            if warm is not None:
                number = max(2, min(20, round(block_seconds / min(warm.seconds))))
                running.append((runner, number))
        for block in range(1, blocks + 1):
            order.shuffle(running)
            for runner, number in list(running):
                done = runner.ask(f"in block {block}", partial(runner.worker.rounds, number))
                if done is None:
                    running.remove((runner, number))
                else:
                    runner.entry.blocks.append(done)
            tell(f"block {block} of {blocks}: {_standing(entries)}")
        for runner, _ in running:
            try:
                runner.entry.pss_mib = runner.worker.peak_mib(2)
            except WorkerError as error:
                if runner.entry.contestant.tool == "fedpriv":
                    raise
                tell(str(error))  # its times stand
    return entries


def _start(entry: Entry, stack: ExitStack, logs: Path) -> Runner | None:
    """Start a worker up to its first round; None, with a note, if it cannot take part."""
    person = entry.contestant
    file = "".join(c if c.isalnum() else "-" for c in person.name.lower())
    command = [str(person.python()), *person.command]
    began = time.perf_counter()
    worker = WorkerProcess(person.name, command, person.environment, logs / f"{file}.log")
    stack.callback(worker.stop)
    runner = Runner(entry, worker)
    answer = runner.ask("at its start", worker.ready)
    if answer is None:
        return None
    if "skip" in answer:
        entry.note = answer["skip"]
        tell(f"{person.name}: skipped, {entry.note}")
        return None
    entry.ready = answer["ready"]
    entry.setup_seconds = time.perf_counter() - began
    first = runner.ask("in its first round", partial(worker.rounds, 1))
    if first is None:
        return None
    entry.first_seconds = first.seconds[0]
    tell(f"{person.name}: ready in {entry.setup_seconds:.1f} s, first {entry.first_seconds:.2f} s")
    return runner


def _standing(entries: list[Entry]) -> str:
    return "; ".join(f"{e.contestant.name} {e.medians[-1]:.4g} s" for e in entries if e.counts)


def comparisons(part: str, arguments: argparse.Namespace) -> list[tuple[str, Callable]]:
    """Return the titles of a part's comparisons and what names their contestants."""
    if part == "same":
        return [
            (
                "Same client code: the dense torch client in every tool",
                lambda: contestants.same(arguments.corpus),
            )
        ]
    if part == "best":
        return [("Best client code of each tool", lambda: contestants.best(arguments.corpus))]
    if part == "cifar":
        users, cohort = arguments.cifar_users, arguments.cohort or COHORTS[part]
        title = (
            f"pfl's own benchmark: CIFAR-10, {users:,} users, {cohort} a round, 5 steps of 10 "
            "images each"
        )
        return [(title, lambda: contestants.cifar(arguments.cifar, users, cohort))]
    if part == "words":
        cohort = arguments.cohort or COHORTS[part]
        title = f"Next words: the LSTM of Stack Overflow, {cohort} of 400 users a round"
        return [(title, lambda: contestants.words(arguments.corpus, cohort))]
    private = part == "plumbing-dp"
    manner = "with clipping and noise" if private else "no clipping, no noise"
    return [
        (
            f"Plumbing only, {size:,} parameters, {manner}",
            lambda size=size: contestants.plumbing(size, private=private),
        )
        for size in arguments.size or contestants.PLUMBING_SIZES
    ]


def about_data(part: str, arguments: argparse.Namespace) -> list[str]:
    """Return what the part's data are; generated text is called SYNTHETIC."""
    corpus = arguments.corpus
    if part == "cifar":
        folder = contestants.cifar_folder(arguments.cifar, arguments.cifar_users)
        return ["Data: " + (folder / "about.txt").read_text("utf-8").strip()]
    if part.startswith("plumbing"):
        return ["20 of 400 users a round; the client returns the params it got."]
    if part == "words":
        about = json.loads((contestants.words_folder(corpus) / "about.json").read_text("utf-8"))
        label = "SYNTHETIC corpus" if about["synthetic"] else "Corpus"
        return [
            f"{label} {about['corpus']}, roster {about['roster']}: {arguments.cohort or 20} of "
            f"{about['num_users']} users a round, at most {about['max_examples']} sentences a user "
            "of 20 words at most "
            f"({about['words_a_sentence']:.1f} targets on average), batches of 16, "
            "one local epoch, "
            "4.05 million float32 parameters, clipping and Gaussian noise. Peers train the torch "
            "client of `jobs/words_job`, fedpriv its own trainer (and, where it says so, theirs)."
        ]
    about = json.loads((contestants.tag_folder(corpus) / "about.json").read_text("utf-8"))
    label = "SYNTHETIC corpus" if about["synthetic"] else "Corpus"
    size = (about["num_words"] + 1) * about["num_tags"]
    return [
        f"{label} {about['corpus']}, roster {about['roster']}: 20 of {about['num_users']} users a "
        f"round, {size:,} float32 parameters, batches of 100, one local epoch, at most "
        f"{about['max_examples']} examples a user, clipping and Gaussian noise."
    ]


def run(part: str, arguments: argparse.Namespace) -> None:
    """Run one part and write its files."""
    lines = [f"# {part}", "", *figures.where()]
    sections, texts = [], []
    users = (arguments.cohort or COHORTS[part]) if part in COHORTS else 20
    for title, people in comparisons(part, arguments):
        tell(title)
        chosen = [
            person
            for person in people()
            if not arguments.only
            or any(fnmatch(person.name, pattern) for pattern in arguments.only)
        ]
        entries = measure(
            chosen,
            blocks=arguments.blocks,
            block_seconds=arguments.block_seconds,
            warm_up=arguments.warm_up,
            logs=contestants.DATA / "logs" / part,
        )
        sections.append((title, entries))
        texts.append(figures.markdown(title, entries, users, about_data(part, arguments)))
    every = [entry for _, entries in sections for entry in entries]
    text = "\n".join([*lines, figures.versions(every), "", *texts])
    figures.write(part, text, sections, arguments.results)
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="fedpriv and its peers.")
    parser.add_argument("parts", nargs="+", choices=(*PARTS, "full"))
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--block-seconds", type=float, default=6.0, help="aimed at, for each tool")
    parser.add_argument("--warm-up", type=int, default=6, help="rounds after the first")
    parser.add_argument("--corpus", default=None, help="as for `fedpriv run`")
    parser.add_argument("--cifar", type=Path, default=None, help="records in the canonical layout")
    parser.add_argument("--cifar-users", type=int, default=NUM_USERS, help="of 50 images each")
    parser.add_argument("--cohort", type=int, help="users a round of cifar and words")
    parser.add_argument("--only", action="append", help="pattern of contestants' names")
    parser.add_argument("--size", type=int, action="append", help="of plumbing, instead of all")
    parser.add_argument("--results", type=Path, help="folder; with --smallest a temporary one")
    parser.add_argument("--smallest", action="store_true", help="show that all runs, fast")
    arguments = parser.parse_args()
    arguments.results = figures.results_folder(arguments.results, smallest=arguments.smallest)
    if arguments.smallest:
        arguments.blocks, arguments.block_seconds, arguments.warm_up = 1, 0.0, 1
        arguments.size = [contestants.PLUMBING_SIZES[0]]
        arguments.cifar_users, arguments.cohort = 4, 1
    # A stop from outside ends the workers too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parts = [p for name in arguments.parts for p in (PARTS if name == "full" else (name,))]
    try:
        for part in parts:
            run(part, arguments)
        if "full" in arguments.parts:
            rest = alone.scripts(arguments.results, arguments.corpus)
            if failed := alone.run(rest, arguments.results, tell):
                sys.exit(f"not measured: {', '.join(failed)}")
    except WorkerError as error:
        sys.exit(f"fedpriv's own worker failed, so nothing is compared: {error}")
    except KeyboardInterrupt:
        tell("interrupted: every worker was ended")
        sys.exit(130)


if __name__ == "__main__":
    main()
