"""Runs done here one by one, or in worker processes of one thread each.

Workers are forked: tasks are closures over data, which are inherited and never sent. A worker is
assigned positions in the list of runs, one at a time, over a pipe of its own, and answers in JSON.
A queue that workers share would have a lock, and a worker killed while it holds it would stop all.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from fedpriv.reproduction.runs import Run, perform
from fedpriv.training.devices import use_one_thread
from fedpriv.training.stopping import end_if_interrupted

#: Seconds that a worker is given to leave when asked to.
_PATIENCE = 5.0


def performed(todo: Sequence[Run], processes: int) -> Generator[dict[str, Any], None, None]:
    """Do runs and yield the row of each as it ends; closing the generator ends every worker.

    Args:
        todo: The runs.
        processes: How many at once; 1 does them in this process.

    Raises:
        ChildProcessError: If a worker died; names its run. Rows that had ended were yielded.
        ValueError: If a run raised one; names the run.
        RuntimeError: If a run raised anything else; names the run, with the worker's traceback.
    """
    if processes == 1:
        for run in todo:
            try:
                row = perform(run)
            except Exception as error:
                end_if_interrupted(error)
                raise _named(error, run) from error
            yield row
        return
    positions = iter(range(len(todo)))
    workers: list[_Worker] = []
    try:
        for _ in range(min(processes, len(todo))):
            workers.append(_start(todo))
            workers[-1].assign(next(positions, None))
        yield from _collected(todo, workers, positions)
    finally:
        _end(workers)


@dataclass(slots=True)
class _Worker:
    """A process, the parent's ends of its pipes, and what it is at."""

    process: ForkProcess
    numbers: Connection
    rows: Connection
    at: int | None = field(default=None)

    def assign(self, position: int | None) -> None:
        """Give it its next run, or nothing more, at which it leaves."""
        self.at = position
        # A worker that is dead already is found by its answer that does not come.
        with contextlib.suppress(BrokenPipeError):
            self.numbers.send_bytes(json.dumps(position).encode())

    def answer(self) -> dict[str, Any]:
        """Return its answer; raise `EOFError` if it died."""
        try:
            return json.loads(self.rows.recv_bytes())
        except OSError as error:
            raise EOFError from error


def _start(todo: Sequence[Run]) -> _Worker:
    forks = multiprocessing.get_context("fork")
    numbers_in, numbers_out = forks.Pipe(duplex=False)
    rows_in, rows_out = forks.Pipe(duplex=False)
    process = forks.Process(target=_work, args=(todo, numbers_in, rows_out), daemon=True)
    process.start()
    # The worker's ends are its own: they close with it, and no later worker inherits them.
    numbers_in.close()
    rows_out.close()
    return _Worker(process=process, numbers=numbers_out, rows=rows_in)


def _collected(
    todo: Sequence[Run], workers: Sequence[_Worker], positions: Iterator[int]
) -> Iterator[dict[str, Any]]:
    """Yield rows and assign what is left, until nothing is."""
    failures: list[Exception] = []
    while busy := {worker.rows: worker for worker in workers if worker.at is not None}:
        # After a failure only what has ended already is waited for.
        ready = [item for item in wait(list(busy), 0 if failures else None) if item in busy]
        if not ready:
            break
        for worker in (busy[item] for item in ready):  # type: ignore[index]
            assert worker.at is not None
            run = todo[worker.at]
            try:
                answer = worker.answer()
            except EOFError:
                worker.at = None
                failures.append(_death(worker, run))
                continue
            if "error" in answer:
                failures.append(_error(answer))
            worker.assign(None if failures else next(positions, None))
            if "row" in answer:
                yield answer["row"]
    if failures:
        raise failures[0]


def _death(worker: _Worker, run: Run) -> ChildProcessError:
    worker.process.join(_PATIENCE)
    code = worker.process.exitcode
    how = f"exit status {code}"
    if code is not None and code < 0:
        how = f"killed by {signal.Signals(-code).name}"
    return ChildProcessError(
        f"the process of {run} died ({how}); runs that had ended are kept. Start again with "
        "fewer processes if memory was short"
    )


def _error(answer: dict[str, Any]) -> Exception:
    error = (ValueError if answer["refused"] else RuntimeError)(answer["error"])
    error.add_note(answer["traceback"])
    return error


def _named(error: Exception, run: Run) -> Exception:
    """Return the error with its run, of the kind that a worker's would be of."""
    if isinstance(error, ValueError):
        return ValueError(f"{error}; in {run}")
    return RuntimeError(f"{type(error).__name__}: {error}; in {run}")


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.numbers.close()
        # One that has nothing left to do leaves by itself.
        if worker.at is not None:
            worker.process.terminate()
    for worker in workers:
        worker.process.join(_PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.rows.close()
        worker.process.close()


def _work(todo: Sequence[Run], numbers: Connection, rows: Connection) -> None:
    """Do the runs whose positions come, until none does or the parent is gone."""
    # A terminal sends Ctrl-C to every process: the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    use_one_thread()
    while (position := _next(numbers)) is not None:
        try:
            answer = json.dumps({"row": perform(todo[position])})
        except Exception as error:
            named = _named(error, todo[position])
            answer = json.dumps(
                {
                    "error": str(named),
                    "refused": isinstance(named, ValueError),
                    "traceback": traceback.format_exc(),
                }
            )
        rows.send_bytes(answer.encode())


def _next(numbers: Connection) -> int | None:
    try:
        return json.loads(numbers.recv_bytes())
    except EOFError:
        return None


def _leave_with_parent() -> None:
    """End this process in the middle of a run if its parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
