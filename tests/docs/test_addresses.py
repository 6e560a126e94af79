"""Names that the documentation and the changelog give exist; ports are those of Flower."""

import inspect
import pkgutil
import re
from pathlib import Path

from flwr.cli.constant import LOCAL_SUPERLINK_HTTP_API_PORT
from flwr.supercore.constant import SUPERLINK_UVICORN_DEFAULT_PORT, SUPERNODE_UVICORN_DEFAULT_PORT

import fedpriv
from fedpriv.cli import deploy as deploying
from tests.docs import shell_blocks
from tests.docs.shell_blocks import commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *shell_blocks.PAGES]
DOTTED = re.compile(r"(?<![\w/.-])(?:fedpriv|fp)(?:\.[A-Za-z_]\w*)+")
#: Stands for any module, where it is told why no name of the API is that of a room.
ANY = "fedpriv.x"


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute (a field too) of something in one."""
    full = re.sub(r"^fp\b", "fedpriv", name)
    owner, _, last = full.rpartition(".")
    try:
        pkgutil.resolve_name(full)
    except (AttributeError, ImportError):
        found = pkgutil.resolve_name(owner)
        return last in getattr(found, "__dataclass_fields__", ())
    return name == full or hasattr(fedpriv, full.split(".")[1])


def test_what_a_page_names_exists(subtests):
    for page in PAGES:
        with subtests.test(page=page):
            named = {*DOTTED.findall(page.read_text("utf-8"))} - {ANY}
            # The names of files end like attributes: fedpriv.egg, run.sh.
            names = (name for name in sorted(named) if not name.endswith((".py", ".md")))
            assert [name for name in names if not exists(name)] == []


TEXTS = {path.name: path.read_text("utf-8") for path in PAGES if path.name != "CHANGELOG.md"}
SUPERLINK = str(SUPERLINK_UVICORN_DEFAULT_PORT)


def test_a_deployment_listens_where_flower_does():
    port = inspect.signature(deploying.superlink).parameters["port"].default
    assert str(port) == SUPERLINK
    compose = (ROOT / "docker-compose.yml").read_text("utf-8")
    assert f'"--port", "{SUPERLINK}"' in compose
    assert f"--runtime-api-address superlink:{SUPERLINK}" in compose


def test_nodes_and_flwr_are_told_the_superlinks_port():
    told = []
    for name, page in TEXTS.items():
        for command in commands(page):
            for option, value in zip(command.words, command.words[1:], strict=False):
                if option == "--superlink":
                    told.append((name, value.rpartition(":")[2]))
        told += [(name, port) for port in re.findall(r'address = "[\w.-]+:(\d+)"', page)]
        told += [(name, port) for port in re.findall(r"listens on port (\d+)", page)]
    assert {"three-nodes.md", "own-data.md", "flower-apps.md"} <= {name for name, _ in told}
    assert [item for item in told if item[1] != SUPERLINK] == []


def test_each_node_of_a_page_has_a_port_of_its_own():
    for name, page in TEXTS.items():
        nodes = [c.words for c in commands(page) if c.words[:1] == ("flower-supernode",)]
        ports = [words[words.index("--port") + 1] for words in nodes if "--port" in words]
        first = SUPERNODE_UVICORN_DEFAULT_PORT
        assert ports == [str(first + number) for number in range(len(ports))], name
        assert len(nodes) == 1 or len(ports) == len(nodes), name


def test_what_a_simulation_leaves_running_is_found_by_its_port():
    assert f"--port {LOCAL_SUPERLINK_HTTP_API_PORT}'" in TEXTS["flower-apps.md"]
