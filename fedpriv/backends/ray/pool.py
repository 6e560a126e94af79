"""Actors that do calls, and what happens when one of them dies.

A call whose actor dies is done again by another, with the same arguments; whatever the dead one may
have answered is never looked at. So every call is counted once, and a fault changes nothing but
how long it takes. A call that has killed an actor a few times is given up: it is up to the caller
what to do about a call that is lost.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from fedpriv.training.failures import log_of_users

_LOG = logging.getLogger(__name__)
_STARTS = 3
# A machine whose cores are all busy takes minutes to start a process: this is against a hang alone.
_OPEN_SECONDS = 900.0
_SAID_AFTER_SECONDS = 60.0
_CLOSE_SECONDS = 5.0

#: The result of a call that killed its actor every time it was tried.
LOST: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Description of an actor that can work.

    Attributes:
        host: The machine it is on.
        process: Its process id there.
        device: What it computes on, in words.
    """

    host: str
    process: int
    device: str


@dataclass(frozen=True, slots=True)
class Call:
    """A method of an actor and its arguments; object references among them are looked up there."""

    method: str
    arguments: tuple[Any, ...]


class _Slot:
    """A place for one actor after another."""

    def __init__(self) -> None:
        self.actor: Any = None
        self.opened: Opened | None = None
        self.waits_for: Any = None
        self.call: int | None = None
        self.failed_starts = 0

    @property
    def idle(self) -> bool:
        return self.actor is not None and self.waits_for is None


class Pool:
    """A fixed number of long-lived actors.

    Args:
        make_actor: Returns a new actor handle.
        opening: The first call of every actor, whose answer is kept; what it raises is raised.
        num_actors: How many.

    Raises:
        ChildProcessError: If actors cannot be had, or die while they start, over and over.
    """

    def __init__(self, make_actor: Callable[[], Any], opening: Call, num_actors: int) -> None:
        self._make_actor, self._opening = make_actor, opening
        self._last_death = ""
        self._slots = [_Slot() for _ in range(num_actors)]
        try:
            self.run([], all_open=True)
        except BaseException:
            self.close()
            raise

    @property
    def opened(self) -> list[Opened]:
        """Answers of the actors when they were opened."""
        return [slot.opened for slot in self._slots if slot.opened is not None]

    def run(
        self,
        calls: Sequence[Call],
        *,
        tries: int = 3,
        all_open: bool = False,
        references: bool = False,
    ) -> list[Any]:
        """Return the results of the calls, in their order; `LOST` for those given up.

        Args:
            calls: Assigned in order to actors as they become free.
            tries: How many actors a call may kill.
            all_open: Also wait for actors that are still starting.
            references: Return references to the results, which stay in the object store.

        Raises:
            Exception: What a call itself raised.
            ChildProcessError: If no actor is left and none can be started.
        """
        results: list[Any] = [LOST] * len(calls)
        deaths = [0] * len(calls)
        queue = deque(range(len(calls)))
        for slot in self._slots:
            slot.failed_starts = 0
            if slot.call is not None:  # left behind by an error: its result is not needed now
                slot.call = slot.waits_for = None
            if slot.actor is None:
                self._start(slot)
        while queue or any(slot.call is not None for slot in self._slots) or all_open:
            for slot in self._slots:
                if queue and slot.idle:
                    self._submit(slot, queue[0], calls[queue.popleft()])
            if (slot := self._next_event()) is None:
                break
            number, reference = slot.call, slot.waits_for
            slot.call = slot.waits_for = None
            try:
                answer: Any = ray.get(reference)
            except RayError as error:
                if isinstance(error, RayTaskError) and not isinstance(error, TaskCancelledError):
                    raise error.cause or error from None
                self._bury(slot, error, starting=number is None)
                if number is not None:
                    deaths[number] += 1
                    if deaths[number] < tries:
                        queue.appendleft(number)
            else:
                if number is None:
                    slot.opened, slot.failed_starts = answer, 0
                else:
                    results[number] = reference if references else answer
        return results

    def close(self) -> None:
        """End every actor; none on this machine outlives this call."""
        here = [seen.process for seen in self.opened if seen.host == platform.node()]
        for slot in self._slots:
            self._end(slot)
        until = time.monotonic() + _CLOSE_SECONDS
        while any(map(_is_running, here)) and time.monotonic() < until:
            time.sleep(0.02)

    def _start(self, slot: _Slot) -> None:
        slot.actor = self._make_actor()
        self._submit(slot, None, self._opening)

    @staticmethod
    def _submit(slot: _Slot, number: int | None, call: Call) -> None:
        slot.call = number
        slot.waits_for = getattr(slot.actor, call.method).remote(*call.arguments)

    def _next_event(self) -> _Slot | None:
        """Return the slot whose actor has answered or died, or None if there is none to wait for.

        Raises:
            ChildProcessError: If all that is waited for is actors that do not start.
        """
        waiting = {slot.waits_for: slot for slot in self._slots if slot.waits_for is not None}
        if not waiting:
            if all(slot.actor is None for slot in self._slots):
                raise ChildProcessError(
                    f"no worker is left: {_STARTS} in a row died while they started; if it is for "
                    f"too little memory, use fewer workers. The last one: {self._last_death}"
                )
            return None
        working = any(slot.call is not None for slot in waiting.values())
        # A working actor may take as long as its users need; a starting one may not.
        ready, _ = ray.wait(list(waiting), timeout=None if working else _SAID_AFTER_SECONDS)
        if not ready:
            _LOG.warning(
                "no worker has started within %g s, and the run waits up to %g s; free resources "
                "of the cluster: %s",
                _SAID_AFTER_SECONDS,
                _OPEN_SECONDS,
                _free(),
            )
            ready, _ = ray.wait(list(waiting), timeout=_OPEN_SECONDS - _SAID_AFTER_SECONDS)
        if not ready:
            raise ChildProcessError(
                f"no worker could be started within {_OPEN_SECONDS:g} s; free resources of the "
                f"cluster: {_free()}"
            )
        return waiting[ready[0]]

    def _bury(self, slot: _Slot, error: RayError, *, starting: bool) -> None:
        """Put a new actor in the place of a dead one, unless too many died there at the start."""
        what = "while it started" if starting else "and its call is done again"
        log_of_users(_LOG, logging.WARNING, "a worker died (%s) %s", type(error).__name__, what)
        log_of_users(_LOG, logging.DEBUG, "how it died: %s", error)
        self._last_death = str(error)
        slot.failed_starts += starting
        self._end(slot)
        if slot.failed_starts < _STARTS:
            self._start(slot)

    @staticmethod
    def _end(slot: _Slot) -> None:
        if slot.actor is not None and ray.is_initialized():
            ray.kill(slot.actor, no_restart=True)
        slot.actor = slot.opened = slot.waits_for = None


def _is_running(process: int) -> bool:
    if os.name != "posix":  # elsewhere there is no looking without touching
        return False
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _free() -> str:
    free = ray.available_resources()
    return f"{free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs"
