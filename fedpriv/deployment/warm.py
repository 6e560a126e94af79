"""A run's own process on a node: it imports the bundle and opens the users' data once.

It is forked off the launcher, which has imported what is installed, and forgets fedpriv, so that
what it runs is the bundle's code and nothing else. Each message is answered by a child of its own.
What a message brings is in that child alone, which ends with it: this process never sees one.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.deployment.bundles import forget_other_code, unpacked
from fedpriv.deployment.flower_private import (
    NODE,
    Connection,
    Task,
    TaskInput,
    load_client_app,
    pull_input,
)
from fedpriv.deployment.message import (
    Prepared,
    bury,
    failure_line,
    keep_alive,
    log_to_stderr,
    serve,
)
from fedpriv.deployment.processes import Forked, adopt_orphans, end_orphans, fork
from fedpriv.deployment.processes import children as process_ids

_LOG = logging.getLogger("fedpriv.deployment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a launcher knows of its own node.

    Attributes:
        connection: To the SuperNode.
        config: Over the SuperNode's node-config: where this machine's users are.
        bundles: SHA-256 of the only bundles that are run here; empty runs any.
        apps: Folder that bundles are unpacked to, each in a folder of its own.
    """

    connection: Connection
    config: Mapping[str, Any]
    bundles: frozenset[str] = frozenset()
    apps: Path


@dataclass(slots=True, kw_only=True)
class Outstanding:
    """A message that is being answered.

    Attributes:
        task: Its task.
        bare: The message without its content, once it was pulled.
    """

    task: Task
    child: Forked
    bare: bytes | None = field(default=None, repr=False)


def keep_warm(node: Node, heard: int, say: Callable[[bytes], None]) -> None:
    """Answer a run's messages until the launcher is gone.

    Args:
        node: Where this is.
        heard: A descriptor, from which the launcher's lines come: a task each.
        say: Tells the launcher that a task is over.
    """
    log_to_stderr("fedpriv.backends")
    first: TaskInput | None = None
    prepared: Prepared | None = None
    children: dict[int, Outstanding] = {}
    helpers: frozenset[int] = frozenset()  # of the app's own, which it has for all messages
    rest = b""
    adopt_orphans()

    def begin(task: Task) -> None:
        nonlocal first, prepared, helpers
        if prepared is None:
            client = node.connection.client(token=task.token, name=NODE)
            first = pull_input(client, node.config)
            client.close()
            # Threads do not outlive a fork: another process says meanwhile that this one lives.
            alive = fork(lambda _, tell: keep_alive(task, node.connection), list)
            prepared = _prepared(node, first)
            alive.close()
            helpers = process_ids()
        found, made = first, prepared
        child = fork(
            lambda _, tell: serve(task, node.connection, node.config, made, found, tell),
            lambda: [each.child for each in children.values()],
        )
        first = None  # of that message alone
        children[child.pid] = Outstanding(task=task, child=child)

    def end(one: Outstanding, line: bytes | None) -> None:
        nonlocal helpers
        if line is not None:
            one.bare = bytes.fromhex(line.decode())
            return
        _, status = os.waitpid(one.child.pid, 0)
        if status:
            _LOG.error(
                "the process of a message ended with %s; the message is answered with an error",
                f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "an exception",
            )
            farewell = fork(
                lambda _, tell: bury(one.task, node.connection, one.bare),
                lambda: [each.child for each in children.values()],
            )
            os.waitpid(farewell.pid, 0)
            farewell.close()
        one.child.close()
        del children[one.child.pid]
        if left := end_orphans({*helpers, *children}):
            _LOG.warning("%d processes that a message left behind were ended", left)
        if not status and prepared is not None:
            before = process_ids()
            prepared.refresh()
            helpers |= process_ids() - before
        say(str(one.task.task_id).encode())

    while True:
        asked = {at: pid for pid, one in children.items() for at in one.child.descriptors}
        ready, _, _ = select.select([heard, *asked], [], [])
        if heard in ready:
            data = os.read(heard, 1 << 16)
            if not data:
                return  # the launcher is gone
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                begin(Task(**json.loads(line)))
        for pid in {asked[at] for at in ready if at != heard}:
            one = children[pid]
            said = one.child.lines()
            for line in [None] if said is None else said:
                end(one, line)


def as_line(task: Task) -> bytes:
    """Return a task as the line that `keep_warm` reads."""
    return json.dumps(asdict(task)).encode()


def _prepared(node: Node, found: TaskInput) -> Prepared:
    """Load a bundle's ClientApp, and what it answers with, as far as that goes without a message.

    What loading raises, each message is answered with; what opening the users' data raises, each
    message's own process meets again.
    """
    digest = hashlib.sha256(found.bundle).hexdigest()
    if node.bundles and digest not in node.bundles:
        return Prepared(
            app=_nothing,
            refusal=f"bundle {digest} is none that this node runs; its operator names those that "
            "it does by --bundle",
        )
    try:
        place = unpacked(found.bundle, node.apps)
        forget_other_code(place)
        app = load_client_app(place)
    except Exception as error:
        failed = error
        _LOG.error("bundle %s cannot be loaded: %s", digest, failure_line(error))
        return Prepared(app=lambda: _raise(failed))
    try:
        _warm(app, found.context)
    except Exception as error:  # each message meets it again
        _LOG.error("nothing is ready before a message comes: %s", failure_line(error))
    if (threads := threading.active_count()) > 1:
        _LOG.warning("%d threads of the app's are not there in its messages", threads - 1)
    return Prepared(app=lambda: app, refresh=partial(_warm_again, app, found.context))


def _warm(app: Any, context: Any) -> None:
    """Let the bundle's own fedpriv open what its messages will need."""
    from flwr.app import RecordDict

    module = sys.modules.get("fedpriv.backends.flower.client")
    prepare = getattr(module, "prepare", None)
    if prepare is not None:
        own = copy.copy(context)
        own.state = RecordDict()
        prepare(app, own)


def _warm_again(app: Any, context: Any) -> None:
    with contextlib.suppress(Exception):
        _warm(app, context)


def _raise(error: Exception) -> Any:
    raise error


def _nothing() -> Any:
    raise AssertionError("a refused bundle is not loaded")
