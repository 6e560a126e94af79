"""One message's own process: it pulls the message, lets the ClientApp answer, and ends."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from fedpriv.backends.flower.telling.log_lines import LineFormatter
from fedpriv.deployment.flower_private import (
    NODE,
    Connection,
    Task,
    TaskInput,
    error_answer,
    heartbeat,
    identify,
    pull_input,
    pull_message,
    push_answer,
    push_output,
    read_message,
    without_content,
)
from fedpriv.experiments.own_code import line_without_values
from fedpriv.untrusted_text import plain

_LOG = logging.getLogger("fedpriv.deployment")
_TRIES = 1  # where nothing but a farewell is left to say


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What answers messages.

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
        say: Tells the parent whose message this is, once that is known.

    An exception of the app's is the message's answer, as it is of Flower's own process, but for its
    text, which may be a value of somebody's: kind and place are said instead, here and there.
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
        say(without_content(message).hex().encode())
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
        message = read_message(bare)
    if message is None:
        return  # Flower's own heartbeats find out
    context = _Whereabouts(run_id=task.run_id, node_id=message.metadata.dst_node_id)
    identify(context, task)
    answer = error_answer("CLIENT_APP_CRASHED", reason, message)
    push_answer(client, answer, context)
    push_output(client, None, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whereabouts:
    run_id: int
    node_id: int


def failure_line(error: Exception) -> str:
    """Return why a message failed; of code that cannot be imported, as it has seen no user."""
    if _is_loading(error):
        return plain(" ".join(str(error).split()))
    return line_without_values(error)


def _is_loading(error: Exception) -> bool:
    return type(error).__name__ == "LoadClientAppError"


def log_to_stderr(name: str = _LOG.name) -> None:
    """Let a logger's lines be seen, each with its time and level, as an app's own."""
    log = logging.getLogger(name)
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LineFormatter())
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
