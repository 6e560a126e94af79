"""The ports of the pages are those that Flower and the deployment listen on."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from flwr.cli.constant import LOCAL_SUPERLINK_HTTP_API_PORT
from flwr.supercore.constant import (
    SUPERLINK_UVICORN_DEFAULT_PORT,
    SUPERNODE_UVICORN_DEFAULT_PORT,
)

from fedpriv.cli import deploy as deploying
from tests.docs import shell_blocks
from tests.docs.shell_blocks import commands

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text("utf-8") for path in (ROOT / "README.md", *shell_blocks.PAGES)}
SUPERLINK = str(SUPERLINK_UVICORN_DEFAULT_PORT)


def test_a_deployment_listens_where_flower_does():
    port = inspect.signature(deploying.superlink).parameters["port"].default
    assert str(port) == SUPERLINK
    compose = (ROOT / "docker-compose.yml").read_text("utf-8")
    assert f'"--port", "{SUPERLINK}"' in compose
    assert f"--runtime-api-address superlink:{SUPERLINK}" in compose


def test_nodes_and_flwr_are_told_the_superlinks_port():
    told = []
    for name, page in PAGES.items():
        for command in commands(page):
            for option, value in zip(command.words, command.words[1:], strict=False):
                if option == "--superlink":
                    told.append((name, value.rpartition(":")[2]))
        told += [(name, port) for port in re.findall(r'address = "[\w.-]+:(\d+)"', page)]
        told += [(name, port) for port in re.findall(r"listens on port (\d+)", page)]
    assert {"three-nodes.md", "own-data.md", "flower-apps.md"} <= {name for name, _ in told}
    assert [item for item in told if item[1] != SUPERLINK] == []


def test_each_node_of_a_page_has_a_port_of_its_own():
    for name, page in PAGES.items():
        nodes = [c.words for c in commands(page) if c.words[:1] == ("flower-supernode",)]
        ports = [words[words.index("--port") + 1] for words in nodes if "--port" in words]
        first = SUPERNODE_UVICORN_DEFAULT_PORT
        assert ports == [str(first + number) for number in range(len(ports))], name
        assert len(nodes) == 1 or len(ports) == len(nodes), name


def test_what_a_simulation_leaves_running_is_found_by_its_port():
    assert f"--port {LOCAL_SUPERLINK_HTTP_API_PORT}'" in PAGES["flower-apps.md"]
