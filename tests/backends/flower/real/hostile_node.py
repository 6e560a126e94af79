"""A SuperNode written by hand, whose uploads trickle or never end.

It speaks to a SuperLink's Fleet API as a SuperNode does, says which users it hosts, and misbehaves
once it is asked to train.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedpriv.backends.flower.registry import registration

KINDS = ("trickles", "sends a byte at a time", "never sends")


def part(salt: str, number: int) -> bytes:
    """Return an object as Flower writes the parts of an array; no other salt has the same."""
    body = f"{salt} {number}".encode().ljust(1000, b"\0")
    return b"ArrayChunk  %d\0" % len(body) + body


@dataclass
class HostileNode:
    """One node, in a thread of its own.

    Attributes:
        superlink: Its address, without TLS.
        kind: Of `KINDS`.
        user_ids: The users that it says it hosts.
        over: Ends it.
        asked: Training requests.
        failed: What went wrong in its threads.
    """

    superlink: str
    kind: str
    user_ids: tuple[str, ...]
    over: threading.Event = field(default_factory=threading.Event)
    asked: int = 0
    failed: list[Exception] = field(default_factory=list)
    _started: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Register, and answer from now on."""
        private, public = generate_key_pairs()
        self.client = FleetHttpClient.from_server_address(
            self.superlink, True, None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, public),
            ],
        )  # fmt: skip
        key = public_key_to_bytes(public)
        self.client.RegisterNode(RegisterNodeFleetRequest(public_key=key))
        active = ActivateNodeRequest(public_key=key, heartbeat_interval=1000.0)
        self.node = Node(node_id=self.client.ActivateNode(active).node_id)
        self._in_thread(self._serve)

    def stop(self) -> None:
        """End it and wait for its threads."""
        self.over.set()
        for thread in self._started:
            thread.join(60)
        self.client.close()
        with warnings.catch_warnings():  # of sockets whose uploads were cut off, now and not later
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def _in_thread(self, work, *given) -> None:
        def kept() -> None:
            try:
                work(*given)
            except Exception as error:
                self.failed.append(error)

        self._started.append(threading.Thread(target=kept, daemon=True))
        self._started[-1].start()

    def _serve(self) -> None:
        while not self.over.wait(1.0):
            found = self.client.PullMessages(PullMessagesRequest(node=self.node))
            for proto in found.messages_list:
                request = message_from_proto(proto)
                if request.metadata.message_type.startswith("query"):
                    self._reply(request, registration(self.user_ids))
                else:
                    self.asked += 1
                    self._in_thread(self._misbehave, request)

    def _reply(self, request, content, before=(), objects=True) -> tuple[int, str]:
        """Push a message, its tree with further objects in front, and its own objects."""
        message = Message(content, reply_to=request)
        message.metadata.__dict__["_message_id"] = message.object_id
        tree = get_object_tree(message)
        whole = ObjectTree(
            object_id=tree.object_id,
            children=[*(ObjectTree(object_id=name) for name in before), *tree.children],
        )
        bare = remove_content_from_message(message)
        answer = self.client.PushMessages(
            PushMessagesRequest(
                node=self.node, messages_list=[message_to_proto(bare)],
                message_object_trees=[whole], clientapp_runtime_list=[1.0],
            )
        )  # fmt: skip
        run_id, session = request.metadata.run_id, answer.session_id
        for name, item in get_all_nested_objects(message).items() if objects else ():
            self._push(run_id, session, name, item.deflate())
        return run_id, session

    def _push(self, run_id: int, session: str, name: str, content: bytes) -> bool:
        request = PushObjectRequest(
            node=self.node, run_id=run_id, object_id=name, object_content=content,
            session_id=session,
        )  # fmt: skip
        try:
            return self.client.PushObject(request).stored
        except httpx.HTTPStatusError:
            return False  # the run is over

    def _misbehave(self, request) -> None:
        salt = f"{self.kind} {self.asked}"  # objects are stored once, whoever sends them
        small = RecordDict({"report": ConfigRecord({"nothing": 1})})
        contents = {get_object_id(each): each for each in (part(salt, n) for n in range(100))}
        run_id, session = self._reply(request, small, contents, objects=False)
        for name, content in contents.items():
            if self.kind == "never sends" or self.over.wait(2.0):
                return
            if self.kind == "sends a byte at a time":
                self._push_slowly(run_id, session, name, content)
            elif not self._push(run_id, session, name, content):
                return

    def _push_slowly(self, run_id: int, session: str, name: str, content: bytes) -> None:
        """Send one object's request a byte at a time, ten a second, until it is over."""
        request = PushObjectRequest(
            node=self.node, run_id=run_id, object_id=name, object_content=content,
            session_id=session,
        ).SerializeToString()  # fmt: skip

        def body() -> Iterator[bytes]:
            for place in range(len(request)):
                if self.over.wait(0.1):
                    return
                yield request[place : place + 1]

        sent = httpx.Request(
            "POST", f"http://{self.superlink}/v1/fleet/push-object", content=body(),
            headers={"content-type": "application/protobuf", "accept": "application/protobuf"},
        )  # fmt: skip
        with httpx.Client(timeout=600) as client, contextlib.suppress(httpx.HTTPError):
            client.send(sent).close()
