"""No module needs itself, by any way round: not for types only, and not within functions either."""

import ast
import graphlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.repository.test_import_floors import all_sources, imports

ROOT = Path(__file__).parents[2]
#: Types that a package's `__init__` gives editors and that nothing loads: everything in fedpriv may
#: import the package (for its version, or to ask for a name that is then loaded when it is used),
#: and what runs there is a table of strings.
DOOR = "fedpriv"


def needs(module: str, source: str, known: Mapping[str, object]) -> set[str]:
    """The modules that one imports: under TYPE_CHECKING and within functions too."""
    names = {name if name in known else name.rpartition(".")[0] for name in imports(source, module)}
    return names & set(known)


def needed(modules: Mapping[str, str]) -> dict[str, set[str]]:
    return {
        name: set() if name == DOOR else needs(name, source, modules)
        for name, source in modules.items()
    }


def folders(edges: Mapping[str, set[str]], packages: set[str]) -> dict[str, set[str]]:
    """The same arrows between folders.

    Left out is what one file of a folder needs of another, and what a package's `__init__` gives
    on from the folders within it.
    """
    room = {name: name if name in packages else name.rpartition(".")[0] for name in edges}
    between: dict[str, set[str]] = {folder: set() for folder in room.values()}
    for name, others in edges.items():
        if name in packages:
            others = {other for other in others if not other.startswith(f"{name}.")}
        between[room[name]] |= {room[other] for other in others} - {room[name], DOOR}
    return between


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """A ring of names that need each other, or nothing."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_neither_modules_nor_folders_need_each_other():
    modules = {n: source for n, source in all_sources().items() if n.split(".")[0] == DOOR}
    edges = needed(modules)
    assert len(modules) > 100
    assert circle(edges) == []
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "fedpriv").rglob("__init__.py")
    }
    between = folders(edges, packages)
    assert len(between) > 20
    assert circle(between) == []


def test_the_door_loads_nothing_by_itself():
    """The reason for the one exception: its imports of rooms are all for type checkers."""
    tree = ast.parse((ROOT / "fedpriv" / "__init__.py").read_text("utf-8"))
    (typing_only,) = (n for n in tree.body if isinstance(n, ast.If))
    assert isinstance(typing_only.test, ast.Name) and typing_only.test.id == "TYPE_CHECKING"
    typed = set(map(id, ast.walk(typing_only)))
    loaded = (node for node in ast.walk(tree) if id(node) not in typed)
    modules = {node.module for node in loaded if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "typing"}


LAZY = "def later():\n    from fedpriv.a import thing"
TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fedpriv.a import thing"


@pytest.mark.parametrize(
    "back", ["import fedpriv.a", "from fedpriv import a", "from fedpriv.a import x", LAZY, TYPED]
)
def test_a_circle_is_seen_however_it_is_closed(back):
    rooms = {"fedpriv": "", "fedpriv.a": "from fedpriv.b import x", "fedpriv.b": "import fedpriv.c"}
    ring = {"fedpriv.a", "fedpriv.b", "fedpriv.c"}
    assert set(circle(needed({**rooms, "fedpriv.c": back}))) == ring
    assert circle(needed({**rooms, "fedpriv.c": ""})) == []


def test_a_circle_of_folders_is_seen_where_modules_have_none():
    edges = {name: set[str]() for name in ("fedpriv.a", "fedpriv.a.inner", "fedpriv.a.leaf")}
    edges["fedpriv.a.top"] = {"fedpriv.a.inner.one"}
    edges["fedpriv.a.inner.one"] = {"fedpriv.a.leaf"}
    packages = {"fedpriv.a", "fedpriv.a.inner"}
    assert circle(edges) == []
    assert set(circle(folders(edges, packages))) == packages
    edges["fedpriv.a.inner.one"] = set()
    assert circle(folders(edges, packages)) == []
