"""Imports only go down: the picture in docs/architecture.md, checked against the code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = (
    "libraries tree rng ranges hashes json_lines output_paths untrusted_text measures models "
    "kernels",
    "parts transform sums datasets checkpoints mechanisms.event",
    "mechanisms optimizers",
    "privacy",
    "training",
    "tasks",
    "experiments",
    "backends",
    "runs",
    "trackers",
    "report",
    "audit attacks",
    "studies",
    "api",
    "deploy",
    "cli",
    "__main__",
)
BELOW_BACKENDS = 7
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS, 1) for room in rooms.split()}
DOORS = ("server", "client", "simulations")


def room_of(rest: str) -> str:
    """The room of a name within fedpriv: a package, or a module that has a floor of its own."""
    module = ".".join(rest.split(".")[:2])
    return module if module in FLOOR else rest.split(".")[0]


def imports(source: str, module: str) -> set[str]:
    """Every dotted name that a module may load, lazy imports in functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            base += [node.module] if node.module else []
            names |= {".".join([*base, alias.name]) for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "library":
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return names


def broken_rules(sources: dict[str, str]) -> list[str]:
    """The rules that modules (dotted name to source) break."""
    broken = []
    for module, source in sources.items():
        top, _, rest = module.partition(".")
        room = room_of(rest)
        if top == "fedpriv" and room and room not in FLOOR:
            broken.append(f"{module}: room {room!r} has no floor")
        for name in imports(source, module):
            to_top, _, to_rest = name.partition(".")
            to_room = room_of(to_rest)
            floor, to_floor = FLOOR.get(room, 99), FLOOR.get(to_room, 0)
            inside = top == "fedpriv" and to_top == "fedpriv"
            rules = {
                "imports up": inside and to_floor > floor,
                "imports sideways on floor 3": inside and floor == to_floor == 3 != room != to_room,
                "fedpriv imports a door": top == "fedpriv" and to_top in DOORS,
                "flwr or ray below the backends": inside is False
                and to_top in ("flwr", "ray")
                and floor <= BELOW_BACKENDS
                and top == "fedpriv",
                "post-processing sees users": room in ("checkpoints", "report")
                and to_room in ("datasets", "training", "tasks"),
                "client imports the loop or a backend": top == "client"
                and (
                    to_room in ("runs", "cli", "report", "api")
                    or (to_room == "backends" and to_rest.split(".")[1:2] != ["flower"])
                ),
                "pickle": to_top in ("pickle", "dill", "cloudpickle", "joblib", "shelve"),
            }
            broken += [f"{module}: {rule} ({name})" for rule, hit in rules.items() if hit]
    return broken


def all_sources() -> dict[str, str]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path.read_text("utf-8")
        for top in ("fedpriv", *DOORS)
        for path in (ROOT / top).rglob("*.py")
    }


@pytest.mark.slow
def test_the_code_keeps_the_floors():
    sources = all_sources()
    assert len(sources) > 30 and "fedpriv.tree" in sources
    assert broken_rules(sources) == []


#: By module, lines that break a rule, and lines that are allowed.
PLANTED = {
    "fedpriv.tree": ["from fedpriv.privacy import plan"],
    "fedpriv.datasets.stackexchange.tag_view": [
        "def lazy():\n    from fedpriv.training.local.schedule import LocalSgd"
    ],
    "fedpriv.privacy.plan": [
        "from ..training import local",
        "from fedpriv.libraries import library\nlibrary('ray')",
    ],
    "fedpriv.optimizers": ["from fedpriv.mechanisms import Clip"],
    "fedpriv.mechanisms.gaussian": [
        "import fedpriv.optimizers",
        "from fedpriv.privacy.sampling import Sampler",
    ],
    "fedpriv.mechanisms.event": ["from fedpriv.privacy.epsilon import Epsilon"],
    "fedpriv.training.local.schedule": ["import ray"],
    "fedpriv.experiments.experiment": ["from flwr.common import Message", "import simulations"],
    "fedpriv.report.page": ["from fedpriv.training.evaluate import Metrics"],
    "fedpriv.cli.run": ["from server.app import app"],
    "client.app": ["from fedpriv.backends import SerialBackend", "from fedpriv import runs"],
    "fedpriv.datasets.stackexchange.sentence_store": ["import pickle"],
    "fedpriv.helpers": ["import math"],
}
ALLOWED = {
    "fedpriv.backends.flower.strategy": ["import flwr"],
    "fedpriv.backends.workers": ["import ray"],
    "server.app": ["from fedpriv.runs.prepared import start_run"],
    "fedpriv.experiments.ready_made.tags": [
        "from fedpriv.experiments.experiment import Experiment"
    ],
    "fedpriv.mechanisms.privatizer": ["from fedpriv.mechanisms.event import Event"],
    "fedpriv.mechanisms.matrix": ["from fedpriv.mechanisms.gaussian import gaussian"],
    "fedpriv.cli.run": ["from fedpriv.training.federated_averaging import FederatedAveraging"],
}


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        (module, line, broken)
        for table, broken in ((PLANTED, True), (ALLOWED, False))
        for module, lines in table.items()
        for line in lines
    ],
)
def test_a_planted_violation_is_seen_and_nothing_else(module, line, broken):
    assert bool(broken_rules({module: line})) == broken
