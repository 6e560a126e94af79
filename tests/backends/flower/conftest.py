"""Fixtures of the Flower tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import app as client_app
from fedpriv.backends import guard
from fedpriv.backends.flower.client import _log_once
from fedpriv.backends.flower.settings import opened_node
from fedpriv.datasets.importers.synthetic import Shape, synthesize
from server import app as server_app
from tests.backends.flower import stub_grid as stub
from tests.backends.flower.real.processes import DECLARED


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Undo what a ServerApp does to the log of this process."""
    logger = logging.getLogger("fedpriv")
    before = logger.level, list(logger.handlers)
    _log_once.cache_clear()
    guard._log_once.cache_clear()
    yield
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic corpus of 24 users, 150 words and 10 tags."""
    path = tmp_path_factory.mktemp("corpora") / "tiny"
    shape = Shape(
        num_users=24, num_sentences=500, public_users=6, num_words=200, num_tags=12, num_topics=4
    )
    synthesize(path, shape=shape, max_words=150, max_tags=10)
    return path


class Gone(ConnectionError):
    """The SuperLink is not reached any more."""


@pytest.fixture
def deploy(tiny_corpus) -> Iterator:
    """Run the bundle's ServerApp on nodes of its ClientApp, in this process; return the grid.

    With `rounds_until_lost` the SuperLink is lost after so many rounds; `look` is called at each.
    `node_config` is the first node's.
    """
    opened_node.cache_clear()

    def call(nodes=3, of=3, rounds_until_lost=None, look=None, node_config=None, parts=None,
             **changes):  # fmt: skip
        run_config = DECLARED | {
            "experiment": "adadps-tags", "corpus": str(tiny_corpus), "noise-multiplier": 1.0,
            "rounds": 3, "cohort": 12, "eval-every": 1,
            "guard-users": False,  # a child would load again what this process keeps
            **{
                key.replace("_", "-"): value if isinstance(value, int | float) else str(value)
                for key, value in changes.items()
            },
        }  # fmt: skip
        hosts = {
            n + 1: stub.AppNode(client_app.app, n, of, run_config)
            if parts is None
            else stub.AppNode(client_app.app, 0, 1, run_config, corpus=f"{parts}/node-{n + 1}")
            for n in range(nodes)
        }
        hosts[1].context.node_config.update(node_config or {})
        grid = stub.StubGrid(hosts)
        push = grid.push_messages

        def push_messages(messages):
            messages = list(messages)
            seen = {sent.metadata.group_id for sent in [*grid.requests, *messages]}
            rounds = {group.partition(".")[0] for group in seen if group[0].isdigit()}
            if rounds_until_lost is not None and len(rounds) > rounds_until_lost:
                raise Gone("the SuperLink is gone")
            if look is not None and rounds:
                look()
            return push(messages)

        grid.push_messages = push_messages
        server_app.app(grid, stub.context(run_config=run_config))
        return grid

    yield call
    opened_node.cache_clear()
