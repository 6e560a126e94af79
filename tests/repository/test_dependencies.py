"""What the code imports is what pyproject.toml declares: no more, and no less."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("fedpriv", "server", "client", "simulations")
# Extras' packages at the top of modules: for types, or of modules that are loaded after `need`.
AFTER_NEED = {"pandas", "ray"}
# The distribution of an import whose name is not the distribution's.
DISTRIBUTIONS = {
    "absl": "absl-py",
    "yaml": "pyyaml",
    "google.protobuf": "protobuf",
    "mlflow": "mlflow-skinny",
    "PIL": "pillow",
}


def distribution(module: str) -> str | None:
    """The distribution that a dotted name comes from; None for the standard library and ours."""
    top = module.split(".")[0]
    if top in sys.stdlib_module_names or top in OURS:
        return None
    found = (d for name, d in DISTRIBUTIONS.items() if f"{module}.".startswith(f"{name}."))
    return next(found, top.replace("_", "-"))


def imported(source: str) -> tuple[set[str], set[str]]:
    """(Distributions imported with the module, those imported only once a function runs)."""
    tree = ast.parse(source)
    inside = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    always, late = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "library":
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        else:
            continue
        found = {d for name in names if (d := distribution(name)) is not None}
        (late if node in inside else always).update(found)
    return always, late


def declared(requirements: list[str]) -> set[str]:
    """The names of requirements, without versions and extras."""
    return {
        re.split(r"[^A-Za-z0-9._-]", each)[0].lower().replace("_", "-") for each in requirements
    }


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def needed() -> tuple[set[str], set[str]]:
    """As `imported`, of all the code."""
    paths = [path for top in OURS for path in (ROOT / top).rglob("*.py")]
    assert len(paths) > 100
    parts = [imported(path.read_text("utf-8")) for path in paths]
    return set().union(*(part[0] for part in parts)), set().union(*(part[1] for part in parts))


@pytest.mark.slow
def test_what_is_imported_is_declared(project, needed):
    always, late = needed
    core = declared(project["dependencies"])
    extras = project["optional-dependencies"]
    optional = declared([each for name in extras if name != "dev" for each in extras[name]])
    assert always - core - AFTER_NEED == set()
    assert late - core - optional == set()


@pytest.mark.slow
def test_what_is_declared_is_imported(project, needed):
    assert declared(project["dependencies"]) - needed[0] - needed[1] == set()


def test_every_declared_name_has_a_tried_version(project):
    pinned = declared((ROOT / "constraints.txt").read_text("utf-8").split())
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["ray"], *extras["pandas"], *extras["pretrained"]]
    assert declared(wanted) - pinned == set()
