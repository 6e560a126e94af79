"""Users that take too long, too much memory, or their process with them, contribute zero, alone.

Within a process a user's exception is its own zero, but nothing ends a user that does not end. So a
child computes, some users at a time, and hands their sum over. Users of a child that hangs or dies
are tried again one by one, and one that does not finish in a process of its own is left out.

Whether a user contributes must not depend on the others: one that slowed them would move the sum by
their contributions too. So every user has the same time, and none can use up another's.

The child is forked, so it has everything that its parent has; it sends back bytes without pickle: a
JSON line that describes the tensors, and their values.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import islice
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.backends.backend import answered, sum_of_nobody
from fedpriv.ranges import finite_float
from fedpriv.sums import PartialSum, RunningSum, merged
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.bounded_sum import template_with
from fedpriv.training.devices import use_one_thread
from fedpriv.training.failures import log_of_users, users_not_logged
from fedpriv.training.stopping import stop_if_asked
from fedpriv.training.work import Attempt, UserData, Work, find_work
from fedpriv.tree import RowSparse, Tensor

_LOG = logging.getLogger(__name__)
_BLOCK = 64  # most users whose sum a child hands over at once
_QUICK = 0.5  # seconds: after a sum that took less, the next one is of twice as many users
_KEPT = 0.1  # share of the time that is kept for the answer's way
_SHARED = 1.0 / 8.0  # of a user's time: of a sum in a child that has computed others before


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Limits on time and memory of a node's users.

    Attributes:
        user_seconds: Of time, each, in a process of its own; 0 for what `times` gives.
        user_memory_mb: Of memory, each, beyond what the node holds already; 0 for any amount.

    Guarantees:
        * A user contributes if it finishes within its time and memory in a process of its own,
          whatever the others do. Else it contributes zero, alone.
        * That holds where a process loads, at its first user, what takes less than seven eighths of
          a user's time; `Work.load` has loaded what it knows of before.

    Not covered: where no child can be forked (see `can_fork`) users are computed in this process,
    each behind its own `except` alone: one that hangs makes the node silent. Nor is a machine that
    hangs, nor users of less than a tenth of a second each, of which beginning and ending processes
    takes a part: a node answers in time, with those that were computed by then.
    """

    user_seconds: float = 0.0
    user_memory_mb: int = 0

    def __post_init__(self) -> None:
        for name in ("user_seconds", "user_memory_mb"):
            if finite_float(name.replace("_", "-"), getattr(self, name)) < 0:
                raise ValueError(
                    f"{name.replace('_', '-')} {getattr(self, name)!r} must be at least 0"
                )

    def times(self, num_users: int, seconds: float | None) -> tuple[float, float]:
        """Return a user's time in a process of its own, and a sum's in a process with others.

        Both follow from public numbers. All users may use up all of theirs within 90 % of
        `seconds`: each in a process of its own, and all but the first before in a process with
        others, in a sum with one of them and in a sum of its own.

        >>> [round(Guard().times(users, 100.0)[0], 2) for users in (1, 2, 30)]
        [90.0, 41.14, 2.54]
        """
        alone = self.user_seconds or math.inf
        if seconds is not None:
            shares = num_users + 1.5 * _SHARED * (num_users - 1)
            alone = min(alone, (1.0 - _KEPT) * seconds / shares)
        return alone, _SHARED * alone

    def summed(
        self,
        works: Mapping[str, Work],
        data: UserData | None,
        request: SumRequest,
        attempt: Attempt,
        user_ids: Sequence[str],
        seconds: float | None = None,
        *,
        apart: bool = False,
    ) -> PartialSum:
        """Return the sum over users, as `answered`, whatever single users do.

        Args:
            works: Works by name.
            data: Where the users' examples are.
            request: What is asked.
            attempt: By which bound and key.
            user_ids: The drawn users that live here.
            seconds: Until an answer is due; None for no such time.
            apart: Whether each user has a child that has trained no one else. Who asks for it has
                made sure that one can be forked (`can_fork_apart`).

        Guarantees:
            * It returns within `seconds`, with what was computed by then.
            * On a grid the sum is that of one process, to the bit; else to rounding.
            * A user that hangs, or takes its process with it, contributes zero, alone.
            * Apart, whatever users keep in memory (globals, attributes, generators) is gone with
              the child: a contribution follows from its user alone.
        """
        if not user_ids or not (apart or can_fork()):
            return answered(works, data, request, attempt, user_ids)
        began = time.monotonic()
        work, bound = find_work(works, request.work), attempt.bound
        work.load()
        _load(bound.granularity)
        template = template_with(work.template(request), bound, request.context.clip_norm)
        done = sum_of_nobody(template, bound.granularity)
        if seconds is not None:
            seconds = max(0.0, seconds - (time.monotonic() - began))

        def compute(users: Sequence[str]) -> bytes:
            if apart:
                logging.getLogger("fedpriv").setLevel(logging.CRITICAL)  # each would say the same
            return encode_sum(answered(works, data, request, attempt, users))

        lost = 0
        with users_not_logged(attempt.key):
            for part in self._parts(compute, user_ids, seconds, apart):
                if part is None:
                    lost += 1
                    continue
                if apart and part.first_error is not None:
                    _log_once(part.first_error.partition("\n")[0])
                done = merged(template, [done, part], reuse=True)
        return replace(done, num_users=len(user_ids), num_failed=done.num_failed + lost)

    def _parts(
        self,
        compute: Callable[[Sequence[str]], bytes],
        user_ids: Sequence[str],
        seconds: float | None,
        apart: bool,
    ) -> Iterator[PartialSum | None]:
        """Yield the sums of users as they are computed, and None for each that is left out."""
        alone, shared = self.times(len(user_ids), seconds)
        memory = self.user_memory_mb << 20 or None
        end = math.inf
        if seconds is not None:
            end = time.monotonic() + (1.0 - _KEPT / 2.0) * seconds
        child: Child | None = None
        at, most, one_by_one = 0, 1, 0
        try:
            while at < len(user_ids) and (begun := time.monotonic()) < end:
                fresh = child is None
                if child is None:
                    child, most = Child(_following(compute, user_ids[at:]), memory), 1
                number = 1 if one_by_one else min(most, len(user_ids) - at)
                found = child.ask(number, min(begun + (alone if fresh else shared), end))
                took = time.monotonic() - begun
                part = None if found is None else decode_sum(found)
                # Of a child that has computed others a failure may be theirs, who hold memory, or
                # descriptors.
                again = not fresh and (part is None or part.num_failed > 0)
                if part is None or again or apart or (fresh and took > shared):
                    child.close()
                    child = None
                if again:
                    one_by_one = max(one_by_one, number)
                    continue
                if part is None:
                    slow = "a user contributes zero: it took over %.3g s, or its process with it"
                    log_of_users(_LOG, logging.WARNING, slow, alone)
                yield part
                at, one_by_one = at + number, max(0, one_by_one - number)
                most = (
                    min(2 * most, _BLOCK) if took < min(_QUICK, shared / 2.0) else max(1, most // 2)
                )
        finally:
            if child is not None:
                child.close()
        if at < len(user_ids):
            over = "%d users contribute zero: the time to answer was over"
            log_of_users(_LOG, logging.WARNING, over, len(user_ids) - at)
            yield from (None for _ in user_ids[at:])


def _following(
    compute: Callable[[Sequence[str]], bytes], user_ids: Sequence[str]
) -> Callable[[int], bytes]:
    """Return what computes, given a number, so many users more."""
    left = iter(user_ids)
    return lambda number: compute([*islice(left, number)])


def _load(granularity: float | None) -> None:
    """Have what adds updates loaded here: a child would count it as its first user's time."""
    for kind in (np.float32, np.float64):
        values = np.zeros((1, 1), kind)
        running = RunningSum({"w": values}, granularity)
        running.add({"w": values}, 1.0)
        running.add({"w": RowSparse(rows=np.zeros(1, np.int64), values=values, num_rows=1)}, 1.0)


_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def can_fork() -> bool:
    """Return whether a child can be forked here and compute, and not within a worker of Ray's."""
    ray = sys.modules.get("ray")
    if ray is not None and getattr(ray, "is_initialized", lambda: False)():
        return False
    return can_fork_apart()


def can_fork_apart() -> bool:
    """Return whether a child can be forked here and compute, within a worker of Ray's too.

    Not where there is no `fork` or it is not safe (Windows, macOS), nor once this process has
    opened a GPU, which a child cannot use.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return False
    return sys.platform.startswith("linux") and hasattr(os, "fork")


class Child:
    """A forked process that answers numbers with bytes.

    It dies with its parent, is the first that a machine short of memory kills, and computes on one
    thread: those of its parent are not there.

    Args:
        work: From a number to what is answered.
        memory: Bytes that it may take beyond what it begins with; None for any number.
    """

    def __init__(self, work: Callable[[int], bytes], memory: int | None = None) -> None:
        self._pipe, inner = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                self._pipe.close()
                _prepare(memory)
                while True:
                    inner.send_bytes(work(int(inner.recv_bytes())))
            except EOFError:
                code = 0
            finally:
                os._exit(code)  # nothing of the parent's is to be ended here
        inner.close()

    def ask(self, number: int, until: float) -> bytes | None:
        """Return its answer; None if it has died, or does not answer until then.

        Args:
            number: What it is asked.
            until: As of `time.monotonic`.
        """
        with contextlib.suppress(OSError, EOFError):
            self._pipe.send_bytes(b"%d" % number)
            while (left := until - time.monotonic()) > 0:
                stop_if_asked()
                if self._pipe.poll(min(left, 1.0)):
                    return self._pipe.recv_bytes()
        return None

    def close(self) -> None:
        """End it, and whatever it has started."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._pipe.close()


def _prepare(memory: int | None) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    use_one_thread()
    if memory is not None:
        import resource

        limit = _data_bytes() + memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def in_child(
    compute: Callable[[], bytes], *, seconds: float | None = None, memory: int | None = None
) -> bytes | None:
    """Return what a child of this process computes; None if it dies, or takes longer.

    Args:
        compute: What it does; nothing that it keeps comes back.
        seconds: That it may take; None for any number.
        memory: As of `Child`.
    """
    until = math.inf if seconds is None else time.monotonic() + seconds
    with contextlib.closing(Child(lambda number: compute(), memory)) as child:
        return child.ask(1, until)


@lru_cache(maxsize=64)
def _log_once(error: str) -> None:
    """Warn of an error that may be that of many users, once in this process."""
    log_of_users(_LOG, logging.WARNING, "users contribute zero: %s", error)


def encode_sum(done: PartialSum) -> bytes:
    """Return a partial sum as bytes: a JSON line that describes it, and its arrays."""
    tensors, arrays = [], []
    for name, tensor in done.compact().total.items():
        parts = [tensor.rows, tensor.values] if isinstance(tensor, RowSparse) else [tensor]
        rows = tensor.num_rows if isinstance(tensor, RowSparse) else None
        tensors.append((name, rows, [(part.dtype.str, part.shape) for part in parts]))
        arrays += [np.ascontiguousarray(part).tobytes() for part in parts]
    described = {item.name: getattr(done, item.name) for item in fields(done)} | {"total": tensors}
    return b"\n".join([json.dumps(described).encode(), b"".join(arrays)])


def decode_sum(data: bytes) -> PartialSum:
    """Return the partial sum that a child encoded; its arrays are writable copies."""
    line, _, rest = data.partition(b"\n")
    described: dict[str, Any] = json.loads(line)
    total: dict[str, Tensor] = {}
    at = 0
    for name, num_rows, parts in described["total"]:
        arrays = []
        for dtype, shape in parts:
            view = np.frombuffer(rest, dtype, math.prod(shape), at).reshape(shape)
            at += view.nbytes
            arrays.append(view.copy())
        if num_rows is None:
            total[name] = arrays[0]
        else:
            total[name] = RowSparse(rows=arrays[0], values=arrays[1], num_rows=num_rows)
    return PartialSum(**{**described, "total": total})
