"""Every private name of Flower that the launcher speaks to.

Flower has no public way to serve a message in a process that is not its own, nor to look for work
more often. What is used here may change with any release: one that lacks a name is refused with it.
What is tried with which release is listed in docs/launcher.md.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pkgutil
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.backends.flower.waiting import Every
from fedpriv.untrusted_text import plain

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

_LOG = logging.getLogger("fedpriv.deployment")
SERVER, NODE = "flwr-serverapp", "flwr-clientapp"
_FIRST_BACKOFF, _LAST_BACKOFF = 0.03, 0.5
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

#: What `fedpriv superexec` uses, by module.
OF_SUPEREXEC: Mapping[str, tuple[str, ...]] = {
    "flwr.cli.install": ("install_from_fab",),
    "flwr.common.config": ("parse_config_args",),
    "flwr.common.constant": ("ErrorCode", "SubStatus"),
    "flwr.common.serde": ("context_from_proto",),
    "flwr.proto.node_pb2": ("Node",),
    "flwr.proto.runtime_pb2": (
        "AcquireTaskRequest",
        "PullAppMessagesRequest",
        "PullTaskInputRequest",
    ),
    "flwr.supercore.constant": ("TaskType",),
    "flwr.supercore.heartbeat": ("HeartbeatSender", "make_task_heartbeat_fn_http"),
    "flwr.supercore.inflatable.inflatable_protobuf_utils": (
        "make_confirm_message_received_fn_protobuf",
        "make_pull_object_fn_protobuf",
    ),
    "flwr.supercore.inflatable.inflatable_utils": ("pull_and_inflate_object_from_tree",),
    "flwr.supercore.interceptors": (
        "RuntimeTokenHttpInterceptor",
        "RuntimeVersionHttpInterceptor",
        "SuperExecAuthHttpInterceptor",
    ),
    "flwr.supercore.retry": ("make_simple_http_retry_invoker",),
    "flwr.supercore.runtime": ("RuntimeHttpClient.from_server_address",),
    "flwr.supercore.task_identity": ("TaskIdentity",),
    "flwr.superlink.cli.flwr_serverapp": ("flwr_serverapp",),
    "flwr.superlink.grid.http_grid": ("make_simple_http_retry_invoker", "pull_objects"),
    "flwr.superlink.runtime.run_serverapp": ("install_from_fab",),
    "flwr.supernode.runtime.run_clientapp": ("push_message", "push_task_output"),
}
#: What `fedpriv supernode` uses, by module.
OF_SUPERNODE: Mapping[str, tuple[str, ...]] = {
    "flwr.supernode": ("start_client_internal",),
    "flwr.supernode.cli.flower_supernode": ("flower_supernode", "start_client_internal"),
    "flwr.supernode.servicer.runtime": ("runtime_handlers.acquire_task",),
    "flwr.supernode.fleet_http_connection": ("make_simple_http_retry_invoker",),
    "flwr.supernode.start_client_internal": ("pull_objects", "time"),
}
#: What `fedpriv deploy operator` uses, by module.
OF_OPERATOR: Mapping[str, tuple[str, ...]] = {
    "flwr.cli.app": ("app",),
    "flwr.cli.log": ("start_stream",),
    "flwr.cli.run.run": ("start_stream",),
    "flwr.proto.control_pb2": ("ListRunsRequest",),
}


class OtherFlowerError(ValueError):
    """The Flower that is installed lacks a private name that the launcher uses."""


def check_flower(names: Mapping[str, Sequence[str]]) -> None:
    """Refuse a Flower that lacks a name.

    Args:
        names: By module; of a class's attribute, with the class.

    Raises:
        OtherFlowerError: With the name, and what to do instead: Flower's own processes do the same,
            slower.
    """
    for module, wanted in names.items():
        for name in wanted:
            try:
                pkgutil.resolve_name(f"{module}.{name}")  # imports it where it is a module
            except (ImportError, AttributeError):
                raise OtherFlowerError(
                    f"the launcher uses private parts of Flower, and flwr {version('flwr')} has no "
                    f"{module}.{name}: install a flwr that docs/launcher.md lists as tried, or run "
                    "flower-supernode and flower-superexec in place of it, which give the same "
                    "results more slowly"
                ) from None


class LoadClientAppError(Exception):
    """A bundle has no ClientApp where its pyproject.toml says."""


class RefusedError(ValueError):
    """A Runtime API does not let the launcher ask it for tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Address and certificate of a Runtime API: of a SuperNode, or of a SuperLink.

    Attributes:
        address: Host and port.
        certificates: PEM of the authority that its certificate is checked with; None for the
            system's.
        insecure: Without TLS.
    """

    address: str
    certificates: bytes | None = None
    insecure: bool = False

    def client(
        self, *, token: str | None = None, secret: bytes | None = None, name: str, tries: int = 0
    ) -> Any:
        """Return a client: of one task by its token, or one that asks for tasks.

        Args:
            token: Of the task.
            secret: Which the API shares with who may ask for tasks (Flower's SuperExec secret).
            name: Of the process that speaks, by which Flower compares versions.
            tries: Until an API that is not reached is given up; 0 for no end.
        """
        from flwr.supercore.interceptors import (
            RuntimeTokenHttpInterceptor,
            RuntimeVersionHttpInterceptor,
            SuperExecAuthHttpInterceptor,
        )
        from flwr.supercore.retry import make_simple_http_retry_invoker
        from flwr.supercore.runtime import RuntimeHttpClient

        interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name=name)]
        if token is not None:
            interceptors.append(RuntimeTokenHttpInterceptor(token))
        if secret is not None:
            interceptors.append(
                SuperExecAuthHttpInterceptor(
                    master_secret=secret, protected_methods=frozenset({_ACQUIRE})
                )
            )
        invoker = make_simple_http_retry_invoker()
        if token is None:
            invoker.should_giveup = partial(_gives_up, invoker.should_giveup)
        if tries:
            invoker.max_tries = tries
        tell_causes(invoker, self.address)
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.insecure,
            root_certificates=self.certificates,
            interceptors=interceptors,
            retry_invoker=invoker,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Task that a Runtime API hands out.

    Attributes:
        token: Opens the task, and nothing else.
        task_id: Of the task.
        run_id: Of its run.
        of_server: Whether it is a ServerApp; else it is one message for a ClientApp.
    """

    token: str
    task_id: int
    run_id: int
    of_server: bool


def tell_causes(invoker: Any, address: str) -> None:
    """Have an invoker of Flower's log whom it does not reach, and why: at first and each minute.

    Flower's own line has how long it waits, and neither.

    Args:
        invoker: Changed.
        address: Whom it asks.
    """
    before, waited = invoker.on_backoff, Every(first=0.0)

    def on_backoff(state: Any) -> None:
        nonlocal waited
        if state.tries == 1:
            waited = Every(first=0.0)
        if waited.due(state.elapsed_time):
            cause = plain(" ".join(str(state.exception).split()))[:200]
            _LOG.warning("%s is not reached (%s); it is asked again", address, cause)
        if before is not None:
            before(state)

    invoker.on_backoff = on_backoff


def _tell_causes_in(name: str, address: str) -> None:
    """Have the invokers that a module of Flower's makes log whom they do not reach."""
    module: Any = importlib.import_module(name)
    make = module.make_simple_http_retry_invoker

    def reporting() -> Any:
        invoker = make()
        tell_causes(invoker, f"the SuperLink {address}".strip())
        return invoker

    module.make_simple_http_retry_invoker = reporting


def _value_of(option: str, arguments: Sequence[str]) -> str:
    """Return what an option of Flower's is given; "" if nothing."""
    words = " ".join(arguments).replace("=", " ").split()
    return next(iter(words[words.index(option) + 1 :]), "") if option in words else ""


def _in_one_line(before: Callable[[Any], object], raised: Any) -> None:
    """Log in a line that a thread of Flower's has lost its SuperLink; it would be a traceback."""
    import httpx

    if isinstance(raised.exc_value, httpx.HTTPError):
        cause = plain(" ".join(str(raised.exc_value).split()))[:200]
        _LOG.warning("the SuperLink is gone, or has no such run: %s", cause)
    else:
        before(raised)


def _gives_up(before: Callable[[Exception], bool] | None, error: Exception) -> bool:
    """Give up where the secret is refused; Flower would interrupt this process, as if asked to."""
    if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
        return True
    return before is not None and before(error)


def acquire(client: Any) -> Task | None:
    """Claim the oldest task that waits, or return None.

    Raises:
        RefusedError: If the API does not let this process ask, or is not who it should be.
    """
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    kinds = [TaskType.SERVER_APP, TaskType.CLIENT_APP]
    try:
        found = client.AcquireTask(AcquireTaskRequest(supported_task_types=kinds))
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise RefusedError(
            f"the Runtime API refuses this launcher (status {status}); give it the API's "
            "SuperExec secret: --superexec-auth-secret-file"
        ) from error
    except httpx.HTTPError as error:
        reason = " ".join(str(error).split())
        raise RefusedError(
            f"the Runtime API cannot be asked: {reason:.200}; is --root-certificates of the "
            "authority that signed its certificate?"
        ) from error
    if not (found.HasField("task") and found.token):
        return None
    return Task(
        token=found.token,
        task_id=found.task.task_id,
        run_id=found.task.run_id,
        of_server=found.task.type == TaskType.SERVER_APP,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInput:
    """Context and bundle of a task.

    Attributes:
        context: Flower's, with the run's and the node's config.
        bundle: The app, as it was sent.
    """

    context: Context
    bundle: bytes


def pull_input(client: Any, node_config: Mapping[str, Any]) -> TaskInput:
    """Begin a task, once: return its input, with this machine's config over the SuperNode's."""
    from flwr.common.serde import context_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity

    found = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id = found.task_id
    TaskIdentity.run_id = found.run.run_id
    TaskIdentity.node_id = found.context.node_id
    context = context_from_proto(found.context)
    context.node_config = {**context.node_config, **node_config}
    return TaskInput(context=context, bundle=found.fab.content)


def identify(context: Any, task: Task) -> None:
    """Say whose task this process works on, where another process pulled its input."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run_id
    TaskIdentity.node_id = context.node_id


def pull_message(client: Any, run_id: int, node_id: int) -> Message | None:
    """Return the message of a task that has begun; None where it was pulled already."""
    from flwr.app import Message
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

    found = client.PullMessages(PullAppMessagesRequest())
    if not found.messages_list:
        return None
    tree, node = found.message_object_trees[0], Node(node_id=node_id)
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, node, run_id),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run_id),
        return_type=Message,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def sender_line(message: Message) -> bytes:
    """Return who sent a message to whom, without its content, as a line."""
    fields = {name.removeprefix("_"): value for name, value in vars(message.metadata).items()}
    fields.pop("delivered_at", None)  # which no answer repeats
    return json.dumps(fields).encode()


def read_sender(line: bytes) -> Message:
    """Return the message of `sender_line`, empty."""
    from flwr.app import Message, Metadata, RecordDict

    metadata = Metadata(**json.loads(line))
    return Message(content=RecordDict(), metadata=metadata)  # pyright: ignore[reportCallIssue]


def error_answer(code: str, reason: str, message: Message) -> Message:
    """Return the answer to a message that failed.

    Args:
        code: By Flower's name, such as CLIENT_APP_RAISED_EXCEPTION.
        reason: In words.
        message: That failed.
    """
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode

    return Message(Error(code=getattr(ErrorCode, code), reason=reason), reply_to=message)


def push_answer(client: Any, answer: Message, context: Any) -> None:
    """Hand an answer to the SuperNode, which sends it on."""
    from flwr.supernode.runtime.run_clientapp import push_message

    push_message(client, answer, context)


def push_output(client: Any, context: Context | None, failure: str) -> None:
    """End a task: with the context that it leaves, or with why it failed."""
    from flwr.common.constant import SubStatus
    from flwr.supernode.runtime.run_clientapp import push_task_output

    status = SubStatus.FAILED if failure else SubStatus.COMPLETED
    push_task_output(client=client, context=context, sub_status=status, details=failure)


def heartbeat(client: Any) -> Any:
    """Keep a task alive from another thread; return what stops that."""
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http

    sender = HeartbeatSender(make_task_heartbeat_fn_http(client))
    sender.start()
    return sender


def unpack(bundle: bytes, folder: Path) -> Path:
    """Unpack a bundle into a folder, unless it is there; return where the app lies."""
    from flwr.cli.install import install_from_fab

    return install_from_fab(bundle, install_dir=folder, skip_prompt=True)


def load_client_app(place: Path) -> ClientApp:
    """Import the ClientApp of an unpacked bundle.

    Raises:
        LoadClientAppError: If there is none where the bundle says.
        Exception: Whatever importing raises.
    """
    from flwr.clientapp import ClientApp

    document = tomllib.loads((place / "pyproject.toml").read_text("utf-8"))
    reference = str(document["tool"]["flwr"]["app"]["components"]["clientapp"])
    module, _, name = reference.partition(":")
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
    try:
        app = reduce(getattr, name.split("."), importlib.import_module(module))
    except AttributeError as error:
        raise LoadClientAppError(f"{reference} is not in the bundle ({error})") from error
    if not isinstance(app, ClientApp):
        raise LoadClientAppError(f"{reference} is {type(app).__name__}, not a ClientApp")
    return app


def parse_config(text: str) -> dict[str, Any]:
    """Return the keys and values of a node-config, as Flower's command line reads it.

    Raises:
        ValueError: If it cannot be read.
    """
    from flwr.common.config import parse_config_args

    try:
        return dict(parse_config_args([text])) if text else {}
    except Exception as error:
        raise ValueError(
            f"--node-config {text!r} cannot be read ({error}); write 'key=1 other=\"word\"'"
        ) from error


def flower_home() -> Path:
    """Return Flower's folder: FLWR_HOME, or the one in the user's home."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")


def run_server_app(arguments: Sequence[str], on_bundle: Callable[[Path], None]) -> None:
    """Run Flower's own process of a ServerApp, within this process.

    Args:
        arguments: Its own.
        on_bundle: Called with where the bundle was unpacked to, before it is imported.
    """
    from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

    module = importlib.import_module("flwr.superlink.runtime.run_serverapp")
    install = module.install_from_fab

    def installed(*given: Any, **named: Any) -> Path:
        place = install(*given, **named)
        on_bundle(place)
        return place

    module.install_from_fab = installed  # pyright: ignore[reportAttributeAccessIssue]
    _look_sooner("flwr.superlink.grid.http_grid")
    _tell_causes_in("flwr.superlink.grid.http_grid", _value_of("--runtime-api-address", arguments))
    threading.excepthook = partial(_in_one_line, threading.excepthook)
    sys.argv = [SERVER, *arguments]
    flwr_serverapp()


def run_supernode(
    arguments: Sequence[str],
    pause: Callable[[float], float],
    asked: Callable[[], None] = lambda: None,
    before: Callable[[], None] = lambda: None,
) -> None:
    """Run Flower's SuperNode within this process.

    Args:
        arguments: Of `flower-supernode`.
        pause: From the seconds that Flower would sleep between two looks to those it sleeps. What
            it raises ends the SuperNode, which says so to its SuperLink; of an `Exception` Flower
            logs no more than that.
        asked: Called whenever a client app asks for work.
        before: Called before it connects to its SuperLink, when client apps may ask already.
    """
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode
    from flwr.supernode.servicer.runtime import runtime_handlers

    acquire = runtime_handlers.acquire_task

    def acquired(*given: Any, **named: Any) -> Any:
        asked()
        return acquire(*given, **named)

    _tell_causes_in("flwr.supernode.fleet_http_connection", _value_of("--superlink", arguments))
    command: Any = importlib.import_module(flower_supernode.__module__)
    start = command.start_client_internal

    def started(*given: Any, **named: Any) -> None:
        try:
            before()
        except KeyboardInterrupt:
            os._exit(130)  # the thread that answers client apps would keep the process
        start(*given, **named)

    runtime_handlers.acquire_task = acquired
    command.start_client_internal = started

    class Time:
        """The module `time`, whose sleeps are shorter."""

        def __getattr__(self, name: str) -> Any:
            return getattr(time, name)

        @staticmethod
        def sleep(seconds: float) -> None:
            time.sleep(pause(seconds))

    _look_sooner(start_client_internal.__name__)
    setattr(start_client_internal, "time", Time())  # noqa: B010
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def run_operator(arguments: Sequence[str]) -> None:
    """Run `flwr`; where it follows a run's log, it fails unless the run has succeeded.

    Args:
        arguments: Of `flwr`.

    Raises:
        SystemExit: With its exit status.
    """
    from flwr.cli.app import app

    for name in ("flwr.cli.run.run", "flwr.cli.log"):
        module: Any = importlib.import_module(name)
        module.start_stream = partial(follow, module.start_stream)
    app(list(arguments), prog_name="flwr")


def follow(stream: Callable[[int, Any], None], run_id: int, client: Any) -> None:
    """Show a run's log to its end, and fail unless the run has succeeded.

    Args:
        stream: What shows it.
        run_id: The run's id.
        client: Of the SuperLink's control API.

    Raises:
        SystemExit: With status 1, after how it ended, or that it goes on.
    """
    from flwr.proto.control_pb2 import ListRunsRequest

    stream(run_id, client)
    found = client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id].status
    if (found.status, found.sub_status) != ("finished", "completed"):
        how = ":".join(word for word in (found.status, found.sub_status) if word)
        why = f" ({one})" if (one := plain(found.details)) else ""
        print(f"Error: run {run_id} is {how}{why}", file=sys.stderr)
        raise SystemExit(1)


def _look_sooner(name: str) -> None:
    """Let a module ask soon again for a message's part whose upload has not ended.

    Flower waits a second before it does, then two, and up to ten.
    """
    module = importlib.import_module(name)
    module.pull_objects = partial(  # pyright: ignore[reportAttributeAccessIssue]
        module.pull_objects,
        initial_backoff=_FIRST_BACKOFF,
        backoff_cap=_LAST_BACKOFF,
        max_tries_per_object=None,
    )
