"""Launcher of Flower's SuperNode and SuperExec, so that a round does not wait for them.

In place of Flower's SuperExec, `superexec` asks a Runtime API for tasks and has them done. Next to
a SuperNode it keeps a warm process for each of the last runs, which answers messages; next to a
SuperLink it forks a process for each ServerApp. Both are forked off this one, which has imported
what they need, but runs nothing of a bundle's. `supernode` is Flower's SuperNode, which looks for
messages as often as they come, and not every three seconds.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import select
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedpriv.backends.flower.log import show_log
from fedpriv.backends.flower.waiting import Every
from fedpriv.deploy.flower_private import (
    Task,
    acquire,
    flower_home,
    run_server_app,
    run_supernode,
)
from fedpriv.deploy.processes import Forked, adopt_orphans, end_orphans, fork
from fedpriv.deploy.warm import Node, as_line, bury, forget_other_code, keep_warm
from fedpriv.ranges import positive_float

# What Flower sleeps where its SuperLink has no message; shorter sleeps are where it waits for an
# answer that is being computed, or for the parts of one.
_IDLE = 3.0

_LOG = logging.getLogger("fedpriv.deployment")
# A launcher asks for work twice a second, whether or not it has some; it takes a while to start.
_PATIENCE, _PATIENCE_AT_START = 30.0, 120.0
_WAITS = "FEDPRIV_WAITS_FOR_CLIENT"


class ClientGoneError(SystemExit):
    """No client app asks this SuperNode for work any more."""


@dataclass(slots=True, kw_only=True)
class Clients:
    """The client apps that ask a SuperNode for work.

    Attributes:
        folder: Where the time of a file is that of the last question.
        clock: Seconds, monotonic.
        sleep: Waits for seconds.
    """

    folder: Path
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _last: float | None = field(default=None, init=False)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def asked(self) -> None:
        """Note that one asks."""
        self._last = self.clock()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / ASKED).touch(0o600)

    def wait(self) -> None:
        """Wait until one asks: a SuperNode without any is no node that could answer."""
        notices = Every()
        while self._last is None:
            if notices.due(waited := self.clock() - self._began):
                _LOG.warning(
                    "no client app has asked this SuperNode for work for %d s: start `fedpriv "
                    "superexec`; until then the SuperLink does not know this node",
                    waited,
                )
            self.sleep(0.1)

    def check(self) -> None:
        """Raise `ClientGoneError` if none has asked for so long that none can be there."""
        least = self._began + _PATIENCE_AT_START
        if self.clock() > (least if self._last is None else self._last + _PATIENCE):
            raise ClientGoneError


def supernode(arguments: Sequence[str], idle_seconds: float) -> None:
    """Run `flower-supernode` until it ends.

    With a key, and isolation `process`, it leaves its SuperLink when no client app asks it for
    work, so that a server sees a node whose client app is gone as one that is gone itself. It comes
    back with its client app, as the same node. Without a key it would be another node, and stays.

    Args:
        arguments: Its own; unless they name an isolation, it is `process`.
        idle_seconds: The longest pause between two looks for a message.

    Raises:
        ValueError: If the pause is not positive.
    """
    show_log("fedpriv.deployment")
    pauses = Pauses(longest=idle_seconds)
    clients = Clients(folder=flower_home() / "supernode")
    idle = True

    def pause(seconds: float) -> float:
        nonlocal idle
        if leaves:
            clients.check()
        if idle != (seconds >= _IDLE):
            idle = not idle
            pauses.worked()
        return min(seconds, pauses.next())

    words = " ".join(arguments).replace("=", " ").split()
    named = "--isolation" in words
    apart = not named or words[words.index("--isolation") + 1 :][:1] == ["process"]
    leaves = apart and "--auth-supernode-private-key" in words
    waits = os.environ.pop(_WAITS, None) is not None
    try:
        run_supernode(
            [*arguments, *([] if named else ["--isolation", "process"])],
            pause,
            asked=clients.asked,
            before=clients.wait if waits else lambda: None,
        )
    except ClientGoneError:
        _LOG.warning(
            "no client app asks this SuperNode for work: it has left its SuperLink, and waits for "
            "one"
        )
        # Anew, because what a client app had begun to answer is no longer asked for.
        os.environ[_WAITS] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


_MOST_RUNS = 2  # kept warm; the one that was asked least recently is ended
# For their own imports alone: what is installed of fedpriv is forgotten again.
_NEEDED = (
    "fedpriv.backends.flower.settings",
    "fedpriv.runs.prepared",
    "fedpriv.report.page",
    "flwr.supernode.runtime.run_clientapp",
    "flwr.superlink.cli.flwr_serverapp",
    "flwr.cli.install",
)


@dataclass(slots=True, kw_only=True)
class _Run:
    """A run's warm process, and the tasks that it has not reported to be over."""

    child: Forked
    tasks: dict[int, Task] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SuperExec:
    """Tasks are claimed here and done in children.

    Attributes:
        node: Whom to ask, and what is known of this machine.
        server_arguments: What a ServerApp's process is started with, besides its token.
        secret: That the API shares with who may ask; None where it asks for none.
        pauses: Between two looks for a task.
        alone: Whether this process has no children but those that are begun here: then what they
            leave behind is ended.
    """

    node: Node
    server_arguments: Sequence[str] = ()
    secret: bytes | None = field(default=None, repr=False)
    pauses: Pauses
    alone: bool = False
    _runs: OrderedDict[int, _Run] = field(default_factory=OrderedDict, init=False)
    _servers: dict[int, Forked] = field(default_factory=dict, init=False)

    def serve(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Have tasks done until there is an end of it."""
        client = self.node.connection.client(secret=self.secret, name="SuperExec")
        asked = self.node.apps / ASKED
        asked.parent.mkdir(parents=True, exist_ok=True)
        try:
            while not ended():
                task = acquire(client)
                asked.touch(0o600)
                if task is not None:
                    self.pauses.worked()
                    self._begin(task)
                self._listen(self.pauses.next())
        finally:
            client.close()
            for child in self._children():
                child.close()

    def _begin(self, task: Task) -> None:
        if task.of_server:
            arguments = [*self.server_arguments, "--token", task.token]
            child = fork(
                lambda _, say: run_server_app(arguments, forget_other_code), self._children
            )
            self._servers[child.pid] = child
            return
        run = self._runs.get(task.run_id)
        if run is None:
            while len(self._runs) >= _MOST_RUNS and (idle := self._idle()) is not None:
                self._runs.pop(idle).child.close()
            child = fork(lambda heard, say: keep_warm(self.node, heard, say), self._children)
            run = self._runs[task.run_id] = _Run(child=child)
        self._runs.move_to_end(task.run_id)
        run.tasks[task.task_id] = task
        run.child.tell(as_line(task))

    def _listen(self, seconds: float) -> None:
        """Read lines of children for so many seconds, or until one writes."""
        asked = {at: server.pid for server in self._servers.values() for at in server.descriptors}
        by_run = {at: run_id for run_id, run in self._runs.items() for at in run.child.descriptors}
        ready, _, _ = select.select([*asked, *by_run], [], [], seconds)
        for pid in {asked[at] for at in ready if at in asked}:
            if self._servers[pid].lines() is None:
                self._servers.pop(pid).close()
        for run_id in {by_run[at] for at in ready if at in by_run}:
            run = self._runs[run_id]
            lines = run.child.lines()
            for line in lines or ():
                run.tasks.pop(int(line), None)
                self.pauses.worked()  # the next message may come soon
            if lines is None:
                del self._runs[run_id]
                run.child.close()
                for task in run.tasks.values():
                    _LOG.error("a run's process died; its message is answered with an error")
                    farewell = fork(
                        lambda _, say, task=task: bury(task, self.node.connection, None),
                        self._children,
                    )
                    self._servers[farewell.pid] = farewell
        if self.alone:
            end_orphans(child.pid for child in self._children())

    def _idle(self) -> int | None:
        """Return the run that was asked least recently and answers nothing now."""
        return next((run_id for run_id, run in self._runs.items() if not run.tasks), None)

    def _children(self) -> list[Forked]:
        return [*(run.child for run in self._runs.values()), *self._servers.values()]


def superexec(
    node: Node, server_arguments: Sequence[str], secret: bytes | None, idle_seconds: float
) -> None:
    """Have a Runtime API's tasks done until SIGTERM or SIGINT.

    Args:
        node: Whom to ask, and what is known of this machine.
        server_arguments: Of a ServerApp's process.
        secret: Flower's SuperExec secret, if the API has one.
        idle_seconds: The longest pause between two looks for a task.

    Raises:
        ValueError: If the pause is not positive, or so long that a SuperNode takes this for gone.
    """
    show_log("fedpriv.deployment")
    if idle_seconds > _PATIENCE / 3.0:
        raise ValueError(
            f"idle-seconds {idle_seconds:g} is over {_PATIENCE / 3.0:g}; give fewer: a SuperNode "
            f"takes a client app for gone that has not asked it for {_PATIENCE:g} s"
        )
    pauses = Pauses(longest=idle_seconds)
    began = time.monotonic()
    for name in _NEEDED:
        importlib.import_module(name)
    adopt_orphans()
    gc.freeze()  # what children share stays shared
    _LOG.info("ready after %.1f s; asks %s", time.monotonic() - began, node.connection.address)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    SuperExec(
        node=node, server_arguments=server_arguments, secret=secret, pauses=pauses, alone=True
    ).serve()


SHORTEST = 0.04
#: In the folder of bundles; its time is that of the last answer to a look for work.
ASKED = "asked"
_SHARE = 0.15


@dataclass(slots=True, kw_only=True)
class Pauses:
    """Pauses that grow with the time without work.

    Work that comes in after t seconds has waited for three twentieths of that at most, and for
    `longest` at most, while an idle waiter looks for it only every `longest` seconds.

    Attributes:
        longest: Seconds between two looks; above 0.
        clock: Seconds, monotonic.
    """

    longest: float
    clock: Callable[[], float] = time.monotonic
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        positive_float("idle-seconds", self.longest)
        self._since = self.clock()

    def worked(self) -> None:
        """Note that there was work."""
        self._since = self.clock()

    def next(self) -> float:
        """Return the seconds until the next look."""
        waited = self.clock() - self._since
        return min(self.longest, max(SHORTEST, _SHARE * waited))
