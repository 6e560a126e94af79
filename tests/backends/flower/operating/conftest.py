"""A deployed run that an operator looks after, over a grid in this process."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from client import app as client_app
from server import app as server_app

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text("utf-8"))
DECLARED = PROJECT["tool"]["flwr"]["app"]["config"]
NUM_NODES, NUM_ROUNDS = 3, 3


class Gone(ConnectionError):
    """The SuperLink is not reached any more."""


@pytest.fixture
def deploy(stub, tiny_corpus):
    """Run the ServerApp; with `rounds_until_lost` the SuperLink is lost after so many rounds."""
    client_app._node.cache_clear()
    logger = logging.getLogger("fedpriv")
    before = logger.level, list(logger.handlers)

    def call(rounds_until_lost=None, nodes=NUM_NODES, look=None, **changes):
        run_config = DECLARED | {
            "experiment": "adadps-tags", "corpus": str(tiny_corpus), "noise-multiplier": 1.0,
            "rounds": NUM_ROUNDS, "cohort": 12, "eval-every": 1, "guard-users": False,
            **{
                key.replace("_", "-"): value if isinstance(value, int | float) else str(value)
                for key, value in changes.items()
            },
        }  # fmt: skip
        grid = stub.StubGrid(
            {n + 1: stub.AppNode(client_app.app, n, NUM_NODES, run_config) for n in range(nodes)}
        )
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
        return SimpleNamespace(grid=grid)

    yield call
    client_app._node.cache_clear()
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]
