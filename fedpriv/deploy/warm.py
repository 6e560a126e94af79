"""A run's own process on a node: it imports the bundle and opens the users' data once.

It is forked off the launcher, which has imported what is installed, and forgets fedpriv, so that
what it runs is the bundle's code and nothing else. Each message is answered by a child of its own.
What a message brings is in that child alone, which ends with it: this process never sees one.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import hashlib
import io
import json
import logging
import os
import select
import shutil
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from fedpriv.backends.flower.log import show_log
from fedpriv.deploy.flower_private import (
    NODE,
    Connection,
    Task,
    TaskInput,
    error_answer,
    heartbeat,
    identify,
    load_client_app,
    pull_input,
    pull_message,
    push_answer,
    push_output,
    read_sender,
    sender_line,
    unpack,
)
from fedpriv.deploy.processes import Forked, adopt_orphans, end_orphans, fork
from fedpriv.deploy.processes import children as process_ids
from fedpriv.experiments.user_code import line_without_values
from fedpriv.untrusted_text import plain

_LOG = logging.getLogger("fedpriv.deployment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A launcher's node: how it is reached, and its local settings.

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
        say: Reports to the launcher that a task is over.
    """
    show_log("fedpriv.backends")
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
            with contextlib.suppress(Exception):
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
            lines = one.child.lines()
            for line in [None] if lines is None else lines:
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
    return Prepared(app=lambda: app, refresh=partial(_warm, app, found.context))


def _warm(app: Any, context: Any) -> None:
    """Let the bundle's own fedpriv open what its messages will need."""
    from flwr.app import RecordDict

    prepare = getattr(sys.modules.get("fedpriv.backends.flower.client"), "prepare", None)
    if prepare is not None:
        bare = copy.copy(context)
        bare.state = RecordDict()
        prepare(app, bare)


def _raise(error: Exception) -> Any:
    raise error


def _nothing() -> Any:
    raise AssertionError("a refused bundle is not loaded")


_TRIES = 1  # where nothing but a farewell is left to say


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A loaded app, or why there is none.

    Attributes:
        app: From Flower's context to the ClientApp; raises what loading raised.
        refusal: Why this machine runs no app of this bundle; "" where it does.
        refresh: Opens what messages may need, as far as it is not open.
    """

    app: Callable[[], Any] = field(repr=False)
    refusal: str = ""
    refresh: Callable[[], None] = field(default=lambda: None, repr=False)


def serve(
    task: Task,
    connection: Connection,
    node_config: Mapping[str, Any],
    prepared: Prepared,
    found: TaskInput | None,
    say: Callable[[bytes], None],
) -> None:
    """Answer a task's message, as Flower's own process would.

    Args:
        task: Which.
        connection: To the SuperNode.
        node_config: This machine's own, over the SuperNode's.
        prepared: What answers.
        found: The task's input, if it has begun.
        say: Reports to the parent whose message this is, once that is known.

    An exception of the app's is the message's answer, as it is of Flower's own process, but for its
    text, which may be a value of somebody's: kind and place are logged and answered instead.
    """
    client = connection.client(token=task.token, name=NODE)
    beating = heartbeat(client)
    message, answer, context, failure = None, None, None, ""
    try:
        if found is None:
            found = pull_input(client, node_config)
        else:
            identify(found.context, task)
        context = found.context
        message = pull_message(client, context.run_id, context.node_id)
        if message is None:
            raise RuntimeError("the SuperNode has no message for its task")
        say(sender_line(message).hex().encode())
        if prepared.refusal:
            failure = prepared.refusal
            _LOG.error("%s", failure)
            answer = error_answer("INVALID_FAB", failure, message)
        else:
            answer = prepared.app()(message=message, context=context)
    except Exception as error:
        failure = failure_line(error)
        _LOG.error("%s", failure)
        if message is not None:
            kind = "LOAD_CLIENT_APP" if _is_loading(error) else "CLIENT_APP_RAISED"
            answer = error_answer(f"{kind}_EXCEPTION", failure, message)
    if answer is not None and context is not None:
        push_answer(client, answer, context)
    push_output(client, context, failure)
    beating.stop()


def keep_alive(task: Task, connection: Connection) -> NoReturn:
    """Say that a task's process lives, until this one is ended."""
    client = connection.client(token=task.token, name=NODE)
    heartbeat(client)
    while True:
        time.sleep(60.0)


def bury(task: Task, connection: Connection, bare: bytes | None) -> None:
    """Answer for a message whose process is gone: its SuperNode would wait for a minute.

    Args:
        task: The message's.
        connection: To the SuperNode.
        bare: The message without its content; None if its process never had it.
    """
    client = connection.client(token=task.token, name=NODE, tries=_TRIES)
    reason = "the process that answered was killed, or died"
    if bare is None:
        with contextlib.suppress(Exception):  # it may have got as far as that
            pull_input(client, {})
        message = pull_message(client, task.run_id, 0)
    else:
        message = read_sender(bare)
    if message is None:
        return  # Flower's own heartbeats find out
    context = SimpleNamespace(run_id=task.run_id, node_id=message.metadata.dst_node_id)
    identify(context, task)
    answer = error_answer("CLIENT_APP_CRASHED", reason, message)
    push_answer(client, answer, context)
    push_output(client, None, reason)


def failure_line(error: Exception) -> str:
    """Return why a message failed; of code that cannot be imported, as it has seen no user."""
    if _is_loading(error):
        return plain(" ".join(str(error).split()))
    return line_without_values(error)


def _is_loading(error: Exception) -> bool:
    return type(error).__name__ == "LoadClientAppError"


def unpacked(bundle: bytes, apps: Path) -> Path:
    """Return where a bundle lies unpacked, below a folder of bundles.

    A bundle always has the same folder, named by its SHA-256, so what was compiled of it is found
    again. Nodes that share the folder wait for each other.

    Guarantees:
        * The folder's files, but for `__pycache__`, are the bundle's, to the byte, and no others:
          one that was changed meanwhile is unpacked again.
    """
    folder = apps / hashlib.sha256(bundle).hexdigest()
    apps.mkdir(parents=True, exist_ok=True)
    lock = os.open(f"{folder}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place = unpack(bundle, folder)
        if _files(place) != _expected(bundle):
            shutil.rmtree(folder)
            place = unpack(bundle, folder)
        return place
    finally:
        os.close(lock)


def forget_other_code(place: Path) -> None:
    """Forget what was imported of a bundle's packages, unless it has the same, byte for byte.

    What is kept need not be imported or compiled again; of anything else the bundle's own copy is
    imported next.
    """
    packages = {name.partition("/")[0] for name in _files(place) if name.endswith(".py")}
    for package in sorted(packages):
        installed = getattr(sys.modules.get(package), "__file__", None)
        bundled = _files(place / package)
        if installed is None or any(
            not (found := Path(installed).parent / name).is_file() or found.read_bytes() != content
            for name, content in bundled.items()
        ):
            for module in list(sys.modules):
                if module.partition(".")[0] == package:
                    del sys.modules[module]


def _expected(bundle: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.endswith("/") and not name.startswith(".info/")
        }


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
