"""Of an answer that is too large no more is read than of an honest one, by Flower's client."""

from __future__ import annotations

import hashlib
import itertools
import logging

import httpx
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid.http_grid import HttpGrid

from fedpriv.backends.flower import exchange, messages
from fedpriv.backends.flower.pulls import TooLargeError, TooLateError, counted
from tests.backends.flower import stub_grid as stub

MB = 1 << 20
GIGANTIC = 256 * MB  # as large as a test may become if nothing stops it


def reply(content: RecordDict) -> Message:
    """A node's answer as the SuperLink hands it on."""
    metadata = Metadata(
        run_id=1, message_id="", src_node_id=7, dst_node_id=1, reply_to_message_id="asked",
        group_id="", created_at=1.0, ttl=60.0, message_type="train",
    )  # fmt: skip
    message = make_message(metadata=metadata, content=content)
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


class SuperLink:
    """Answers a grid's requests for one reply, and counts what was taken of it.

    `objects` are by their ids; one is bytes, or how many bytes it has, which then nobody made.
    """

    def __init__(self, proto, tree, objects):
        self.proto, self.tree, self.objects = proto, tree, objects
        self.taken, self.confirmed = 0, []

    @classmethod
    def of(cls, message):
        objects = {key: item.deflate() for key, item in get_all_nested_objects(message).items()}
        bare = Message.__new__(Message)
        bare.__dict__.update(message.__dict__)
        return cls(message_to_proto(bare), get_object_tree(message), objects)

    def grid(self):
        grid = HttpGrid(token="t", insecure=True)
        grid.set_run(Run.create_empty(1))
        client = RuntimeHttpClient("http://superlink")
        client._client = httpx.Client(transport=httpx.MockTransport(self.answer))
        grid._client = client
        return grid

    def answer(self, request):
        path = request.url.path.rpartition("/")[2]
        if path == "pull-messages":
            found = PullAppMessagesResponse(
                messages_list=[self.proto], message_object_trees=[self.tree]
            )
            return httpx.Response(200, content=found.SerializeToString())
        if path == "confirm-message-received":
            asked = ConfirmMessageReceivedRequest.FromString(request.content)
            self.confirmed.append(asked.message_object_id)
            return httpx.Response(200, content=ConfirmMessageReceivedResponse().SerializeToString())
        assert path == "pull-object"
        content = self.objects[PullObjectRequest.FromString(request.content).object_id]
        if content is None:
            later = PullObjectResponse(object_found=True, object_available=False)
            return httpx.Response(200, content=later.SerializeToString())
        if isinstance(content, int):
            return httpx.Response(200, content=self.parts(content))
        found = PullObjectResponse(object_found=True, object_available=True, object_content=content)
        return httpx.Response(200, content=found.SerializeToString())

    def parts(self, size):
        for _ in range(size // MB):
            self.taken += MB
            yield bytes(MB)


def made_up(*objects):
    """A SuperLink whose reply consists of objects of these sizes; None is never complete."""
    names = [hashlib.sha256(bytes([n])).hexdigest() for n in range(len(objects) + 1)]
    proto = message_to_proto(reply(RecordDict()))
    proto.metadata.message_id = names[0]
    tree = ObjectTree(object_id=names[0], children=[ObjectTree(object_id=n) for n in names[1:]])
    return SuperLink(proto, tree, {names[0]: b"", **dict(zip(names[1:], objects, strict=True))})


def test_an_honest_answer_comes_as_it_was_sent():
    tree = {"w": np.arange(2_000_000, dtype=np.int64)}
    content = RecordDict({"total": messages.encode(tree), "report": ConfigRecord({"n": 1})})
    superlink = SuperLink.of(reply(content))
    most = messages.most_bytes({"w": np.zeros(2_000_000, np.float32)})
    (found,) = counted(superlink.grid(), most, lambda: True)(["asked"])
    np.testing.assert_array_equal(messages.decode(found.content["total"], tree, whole=True)["w"],
                                  tree["w"])  # fmt: skip
    assert len(superlink.confirmed) == 1


@pytest.mark.parametrize("objects", [[GIGANTIC], [8 * MB] * 32], ids=["one object", "many"])
def test_a_larger_one_is_read_no_further_and_let_go(objects):
    superlink = made_up(*objects)
    with pytest.raises(TooLargeError):
        counted(superlink.grid(), 4 * MB, lambda: True)(["asked"])
    # Two objects are pulled at a time, and what is read of each before it counts is a part.
    assert superlink.taken <= 7 * MB
    assert superlink.confirmed == [superlink.proto.metadata.message_id]


def test_so_is_one_whose_list_of_objects_is_too_large():
    superlink = made_up()
    superlink.proto.error.reason = "x" * (8 * MB)
    with pytest.raises(TooLargeError):
        counted(superlink.grid(), 4 * MB, lambda: True)(["asked"])


def test_an_upload_that_does_not_end_is_given_up_and_let_go():
    superlink, looks = made_up(None), itertools.count()
    with pytest.raises(TooLateError):  # a second later: so long Flower waits before it asks again
        counted(superlink.grid(), 4 * MB, lambda: next(looks) < 2)(["asked"])
    assert superlink.confirmed == [superlink.proto.metadata.message_id]


def test_an_exchange_counts_it_and_goes_on(caplog):
    caplog.set_level(logging.WARNING)
    superlink = made_up(GIGANTIC)
    grid = superlink.grid()
    grid.push_messages = lambda messages: ["asked"]
    asked = exchange.Exchange(grid=grid)
    stub.StubGrid({})  # without the identity that it sets there are no messages
    question = Message(RecordDict(), 7, "train")
    assert list(asked.answers([question], seconds=60.0, most_bytes=4 * MB)) == []
    assert asked.dropped == {"too-large": 1} and superlink.taken <= 7 * MB
    assert "TooLargeError" in caplog.text


def test_a_grid_without_a_network_is_pulled_as_it_is():
    class Grid:
        def pull_messages(self, ids):
            return iter(ids)

    assert counted(Grid(), 1, lambda: False)(["a", "b"]) == ["a", "b"]  # type: ignore[arg-type]
