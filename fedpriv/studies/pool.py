"""Worker processes that do one job after the other; one that dies costs its own job alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from fedpriv.training.devices import use_one_thread

#: Seconds that a worker is given to leave when asked to.
_PATIENCE = 5.0

Work = Callable[[Any], Any]
"""Does a job. Jobs and results are plain values: numbers, texts, lists and dicts of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """End of a job.

    Attributes:
        job: The job.
        kind: "done", "failed" where it raised an error, "died" where its process did.
        value: The result, or the error: a `ValueError` where the job raised one, a `RuntimeError`
            that names any other, a `ChildProcessError` of a dead process.
    """

    job: Any
    kind: Literal["done", "failed", "died"]
    value: Any


class Pool:
    """Processes of one thread each, forked from this one when there is work for them.

    Used as a context manager: leaving it ends every worker, in the middle of a job too. Workers
    also end by themselves when this process is killed.

    Args:
        work: Does a job in a worker, which has inherited it: it need not be importable.
        processes: The most that work side by side.
    """

    def __init__(self, work: Work, processes: int) -> None:
        self._work, self._processes = work, processes
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            if worker.busy:  # one that has nothing left to do leaves by itself
                worker.process.terminate()
            else:
                worker.leave()
        for worker in self._workers:
            worker.end()

    @property
    def num_free(self) -> int:
        """Number of jobs that can be submitted before one has ended."""
        return self._processes - sum(worker.busy for worker in self._workers)

    def submit(self, job: Any) -> None:
        """Give a job to a worker that is free, or to a new one."""
        idle = [worker for worker in self._workers if not worker.busy]
        if not idle:
            idle = [_Worker(self._work)]
            self._workers += idle
        idle[0].assign(job)

    def wait(self, timeout: float | None = None) -> list[Answer]:
        """Return the jobs that end next; none where none is under way, or in so many seconds."""
        busy = {worker.pipe: worker for worker in self._workers if worker.busy}
        ready: Any = wait(list(busy), timeout) if busy else []
        answers = [busy[pipe].answer() for pipe in ready]
        for worker in [worker for worker in self._workers if worker.dead]:
            self._workers.remove(worker)
            worker.end()
        return answers


class _Worker:
    """A process, and the job that it is at."""

    def __init__(self, work: Work) -> None:
        forks = multiprocessing.get_context("fork")
        self.busy = self.dead = False
        self.job: Any = None
        self.pipe, theirs = forks.Pipe()
        self.process = forks.Process(target=_serve, args=(work, theirs), daemon=True)
        self.process.start()
        theirs.close()  # it closes with its process, and no later worker inherits it

    def assign(self, job: Any) -> None:
        """Give it its next job."""
        self.busy, self.job = True, job
        # A worker that is dead already is found by its answer that does not come.
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send((job,))

    def leave(self) -> None:
        """Have it leave."""
        with contextlib.suppress(OSError):
            self.pipe.send(None)

    def answer(self) -> Answer:
        """Return how its job ended."""
        self.busy = False
        try:
            kind, value = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(_PATIENCE)
            code = self.process.exitcode
            how = f"exit status {code}"
            if code is not None and code < 0:
                how = f"killed by {signal.Signals(-code).name}"
            self.dead = True
            return Answer(job=self.job, kind="died", value=ChildProcessError(how))
        if kind == "failed":
            refused, text, trace = value
            value = (ValueError if refused else RuntimeError)(text)
            value.add_note(trace)
        return Answer(job=self.job, kind=kind, value=value)

    def end(self) -> None:
        """Wait until it has left, and kill it if it does not."""
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.process.close()


def failure(error: Exception) -> tuple[bool, str, str]:
    """Return an error as plain values: whether it is a refusal, its text, its traceback."""
    refused = isinstance(error, ValueError)
    text = str(error) if refused else f"{type(error).__name__}: {error}"
    return refused, text, "".join(traceback.format_exception(error))


def _serve(work: Work, pipe: Connection) -> None:
    """Do the jobs that come, until none does or the parent is gone."""
    # A terminal sends Ctrl-C to every process: the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    use_one_thread()
    while (given := _next(pipe)) is not None:
        try:
            answer: Any = "done", work(given[0])
        except Exception as error:
            answer = "failed", failure(error)
        pipe.send(answer)


def _next(pipe: Connection) -> tuple[Any] | None:
    try:
        return pipe.recv()
    except EOFError:
        return None


def _leave_with_parent() -> None:
    """End this process in the middle of a job if its parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
