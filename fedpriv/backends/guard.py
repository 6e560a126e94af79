"""Users that take too long, too much memory, or their process with them, contribute zero, alone.

Within a process a user's exception is its own zero, but nothing ends a user that does not end. So a
child computes, a block of users at a time, and hands each block's sum over; where it hangs or dies,
the users of that block are computed again one by one, and the one that does it again is left out.

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
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.backends.backend import Order
from fedpriv.ranges import finite_float
from fedpriv.sums import PartialSum, RunningSum, merged
from fedpriv.training.devices import use_one_thread
from fedpriv.training.failures import log_of_users, users_not_logged
from fedpriv.training.stopping import stop_if_asked
from fedpriv.training.work import UserData, Work, find_work
from fedpriv.tree import RowSparse, Tensor

_LOG = logging.getLogger(__name__)
_BLOCK = 64
# Shares of the time that is left: of one user where no limit is given, and for the answer's way.
_ONE_USERS, _KEPT = 0.25, 0.1
_BEGUN, _SUM = b"u", b"s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Limits on time and memory of a node's users.

    Attributes:
        user_seconds: Of time, each; 0 for a quarter of what is left to answer in while others wait,
            or without a deadline as long as it takes. What training loads at its first user counts
            as that user's.
        user_memory_mb: Of memory, beyond what the node holds already; 0 for any amount.

    Not covered: where no child can be forked (see `can_fork`) users are computed in this process,
    each behind its own `except` alone. A user that is slow, but not too slow, takes time from
    those after it: whoever has not been computed at the node's deadline contributes zero.
    """

    user_seconds: float = 0.0
    user_memory_mb: int = 0

    def __post_init__(self) -> None:
        for name in ("user_seconds", "user_memory_mb"):
            if finite_float(name.replace("_", "-"), getattr(self, name)) < 0:
                raise ValueError(
                    f"{name.replace('_', '-')} {getattr(self, name)!r} must be at least 0"
                )

    def summed(
        self,
        order: Order,
        works: Mapping[str, Work],
        data: UserData | None,
        user_ids: Sequence[str],
        seconds: float | None = None,
    ) -> PartialSum:
        """Return the sum of an order over users, as `Order.sum_of`, whatever single users do.

        Args:
            order: What is done.
            works: Works by name.
            data: Where the users' examples are.
            user_ids: The drawn users that live here.
            seconds: Until an answer is due; None for no such time.

        Guarantees:
            * It returns within `seconds`, with what was computed by then.
            * On a grid the sum is that of one process, to the bit; else to rounding.
            * A user that hangs, or takes its process with it, contributes zero. The users of its
              block are computed again without it.
        """
        if not user_ids or not can_fork():
            return order.sum_of(works, data, user_ids)

        def compute(blocks: Sequence[Sequence[str]], send: Send) -> None:
            watched = None if data is None else _Watched(data, send)
            for block in blocks:
                send(_SUM + encode_sum(order.sum_of(works, watched, block)))

        _load(order.bound.granularity)
        with users_not_logged(order.key):
            parts, lost = self._parts(compute, user_ids, seconds)
        template = find_work(works, order.work).template(order.params)
        done = merged(template, parts or [order.nothing(template)], reuse=True)
        return replace(done, num_users=len(user_ids), num_failed=done.num_failed + lost)

    def _parts(
        self,
        compute: Callable[[Sequence[Sequence[str]], Send], None],
        user_ids: Sequence[str],
        seconds: float | None,
    ) -> tuple[list[PartialSum], int]:
        """Return the sums of blocks, and how many users are in none of them."""
        end = math.inf if seconds is None else time.monotonic() + (1.0 - _KEPT) * seconds
        blocks = deque(
            tuple(user_ids[start : start + _BLOCK]) for start in range(0, len(user_ids), _BLOCK)
        )
        memory = self.user_memory_mb << 20 or None
        parts: list[PartialSum] = []
        lost = 0
        while blocks and time.monotonic() < end:
            todo = tuple(blocks)
            child = Child(lambda send, todo=todo: compute(todo, send), memory)
            with contextlib.closing(child), contextlib.suppress(EOFError):  # it died
                self._receive(child, blocks, parts, end)
            if blocks and time.monotonic() < end:
                block = blocks.popleft()
                if len(block) > 1:
                    blocks.extendleft((user_id,) for user_id in reversed(block))
                else:
                    lost += 1
                    lost_one = "a user contributes zero: it took too long, or its process with it"
                    log_of_users(_LOG, logging.WARNING, lost_one)
        left = sum(len(block) for block in blocks)
        if left:
            over = "%d users contribute zero: the time to answer was over"
            log_of_users(_LOG, logging.WARNING, over, left)
        return parts, lost + left

    def _receive(
        self, child: Child, blocks: deque[tuple[str, ...]], parts: list[PartialSum], end: float
    ) -> None:
        """Take a child's sums until all blocks are done, its time is over, or it is dead."""
        begun, num_begun = time.monotonic(), 0
        last = begun
        while blocks:
            stop_if_asked()
            limit = min(end, self._limit(begun, last, num_begun, blocks, end))
            now = time.monotonic()
            if now >= limit:
                return
            message = child.message(min(limit - now, 1.0))
            if message is None:
                continue
            last = time.monotonic()
            if message[:1] == _BEGUN:
                num_begun += 1
            else:
                parts.append(decode_sum(message[1:]))
                blocks.popleft()
                begun, num_begun = last, 0

    def _limit(
        self, begun: float, last: float, num_begun: int, blocks: Sequence[Sequence[str]], end: float
    ) -> float:
        """Return when the first block has taken too long.

        Works may fetch the examples of several users before they train them side by side, so in a
        block those that were fetched have their time together.
        """
        size = len(blocks[0])
        if self.user_seconds:
            return begun + self.user_seconds * min(max(num_begun, 1), size)
        if (size == 1 and len(blocks) == 1) or math.isinf(end):
            return end  # no other user waits, or there is no limit
        return last + _ONE_USERS * (end - last)


def _load(granularity: float | None) -> None:
    """Have what adds updates loaded here, once: a child would count it as its first user's time."""
    for kind in (np.float32, np.float64):
        values = np.zeros((1, 1), kind)
        running = RunningSum({"w": values}, granularity)
        running.add({"w": values}, 1.0)
        running.add({"w": RowSparse(rows=np.zeros(1, np.int64), values=values, num_rows=1)}, 1.0)


class _Watched:
    """A `UserData` that reports when a user is begun."""

    def __init__(self, data: UserData, send: Send) -> None:
        self._data, self._send = data, send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def examples(self, user_id: str) -> Any:
        self._send(_BEGUN)
        return self._data.examples(user_id)

    def num_examples(self, user_id: str) -> int:
        return self._data.num_examples(user_id)


Send = Callable[[bytes], None]
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
    """A forked process that runs a function and sends messages.

    It dies with its parent, is the first that a machine short of memory kills, and computes on one
    thread: those of its parent are not there.

    Args:
        target: What it does, given a function that sends bytes.
        memory: Bytes that it may take beyond what it begins with; None for any number.
    """

    def __init__(self, target: Callable[[Send], None], memory: int | None = None) -> None:
        self._reader, writer = Pipe(duplex=False)
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                self._reader.close()
                _prepare(memory)
                target(writer.send_bytes)
                code = 0
            finally:
                os._exit(code)  # nothing of the parent's is to be ended here
        writer.close()

    def message(self, seconds: float) -> bytes | None:
        """Return what it sent next, or None after so many seconds.

        Raises:
            EOFError: If it has died, or is at its end.
        """
        if not self._reader.poll(max(0.0, min(seconds, threading.TIMEOUT_MAX / 2))):
            return None
        try:
            return self._reader.recv_bytes()
        except OSError as error:
            raise EOFError from error

    def close(self) -> None:
        """End it, and whatever it has started."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._reader.close()


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
    child = Child(lambda send: send(compute()), memory)
    until = math.inf if seconds is None else time.monotonic() + seconds
    with contextlib.closing(child), contextlib.suppress(EOFError):
        while (left := until - time.monotonic()) > 0:
            stop_if_asked()
            if (found := child.message(min(left, 1.0))) is not None:
                return found
    return None


def summed_apart(
    guard: Guard,
    order: Order,
    works: Mapping[str, Work],
    data: UserData | None,
    user_ids: Sequence[str],
    seconds: float | None = None,
) -> PartialSum:
    """Return the sum of an order over users, each trained in a child that has trained nobody else.

    Args:
        guard: Limits of each user.
        order: What is done.
        works: Works by name.
        data: Where the users' examples are.
        user_ids: The drawn users that live here.
        seconds: Until an answer is due, of which each user has an equal share; None for no such
            time.

    Guarantees:
        * Whatever users keep in this process's memory (globals, attributes, generators) is gone
          with the child: a user's contribution follows from it alone.
        * A user that hangs, or takes its process with it, contributes zero, alone.
    """
    work = find_work(works, order.work)
    getattr(work, "load", lambda: None)()
    _load(order.bound.granularity)
    template, limit = work.template(order.params), guard.user_seconds or math.inf
    if seconds is not None:
        limit = min(limit, (1.0 - _KEPT) * seconds / max(1, len(user_ids)))
    done = order.nothing(template)
    memory = guard.user_memory_mb << 20 or None

    def alone(user_id: str) -> bytes:
        logging.getLogger("fedpriv").setLevel(logging.CRITICAL)  # each would say the same
        return encode_sum(order.sum_of(works, data, (user_id,)))

    with users_not_logged(order.key):
        for user_id in user_ids:
            found = in_child(partial(alone, user_id), seconds=limit, memory=memory)
            if found is None:
                slow = "a user contributes zero: it took over %.3g s, or its process with it"
                log_of_users(_LOG, logging.WARNING, slow, limit)
                found = encode_sum(replace(order.nothing(template), num_users=1, num_failed=1))
            part = decode_sum(found)
            if part.first_error is not None:
                _log_once(part.first_error.partition("\n")[0])
            done = merged(template, [done, part], reuse=True)
    return done


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
