"""The Flower bundle: what is in it, and that it runs where nothing else is."""

from __future__ import annotations

import json
import os
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.backends.flower.real import processes
from tests.repository.test_import_floors import all_sources, imports

CHECKOUT = Path(__file__).parents[4]
ALLOWED = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
# What a person calls at a keyboard; besides, the studies of papers.
LEFT_OUT = ("attacks", "audit", "cli", "deploy", "studies")
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
ONE_ROUND = {
    "experiment": "adadps-tags", "noise_multiplier": 0.5, "rounds": 1, "cohort": 4,
}  # fmt: skip


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Path:
    """The bundle that `flwr build` makes of a checkout with tests, caches and all."""
    app = processes.copy_app(tmp_path_factory.mktemp("bundle") / "fedpriv")
    (app / "tests").mkdir()
    (app / "tests" / "helper.py").write_text("", encoding="utf-8")
    (app / "fedpriv" / "test_left_behind.py").write_text("", encoding="utf-8")
    (app / "runs").mkdir()
    (app / "runs" / "experiment.json").write_text("{}", encoding="utf-8")
    home = tmp_path_factory.mktemp("flower-home")
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return processes.build(app, {**os.environ, "FLWR_HOME": str(home), **quiet})


@pytest.mark.slow
def test_the_bundle_holds_the_apps_and_the_library_and_nothing_else(bundle):
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
        text = archive.read("pyproject.toml").decode()
    tops = {name.split("/")[0] for name in names}
    assert {"server", "client", "fedpriv", "simulations", "pyproject.toml", "LICENSE"} <= tops
    assert not tops & {"tests", "benchmarks", "docs", "runs", ".venv", "shared"}
    assert not [name for name in names if "test_" in name or "__pycache__" in name]
    strange = {name for name in names if Path(name).suffix not in ALLOWED}
    assert {name for name in strange if not name.startswith(".info/")} == {"LICENSE"}
    templates = {str(p.relative_to(CHECKOUT)) for p in (CHECKOUT / "fedpriv").rglob("*.md")}
    left = ("fedpriv/cli/", "fedpriv/deploy/")  # commands stay behind, and their templates
    needed = {name for name in templates if not name.startswith(left)}
    assert needed and needed <= names
    assert 'serverapp = "server.app:app"' in text and 'clientapp = "client.app:app"' in text


@pytest.mark.slow
def test_nothing_that_is_left_out_can_be_reached_from_the_bundle(bundle):
    assert len(PROJECT["tool"]["flwr"]["app"]["fab-include"]) <= 12
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
    sources = all_sources()
    inside = {module for module in sources if path_of(module) in names}
    left_out = {
        name.removeprefix("fedpriv.datasets.").removeprefix("fedpriv.").split(".")[0]
        for name in set(sources) - inside
        if name.startswith("fedpriv.")
    }
    assert left_out == {*LEFT_OUT, "api", "importers"}  # of `api` there is `fedpriv.flower`
    assert not [name for name in inside if name.startswith("simulations.")]
    reached = reached_from(sources, inside - {"fedpriv.__main__"})
    assert not [name for name in reached if name not in inside]


def reached_from(sources: dict[str, str], start: set[str]) -> set[str]:
    """Return the modules that others import, late or by the name of a room of the library.

    Names of reproductions do not count: only the command line, which is left out, loads them. Nor
    do the names that `fedpriv` itself holds, loaded when somebody first asks for one.
    """
    reached, ahead = set(), set(start) - {"fedpriv"}
    sources = {**sources, "fedpriv": ""}
    while ahead:
        module = ahead.pop()
        reached.add(module)
        named = set(re.findall(r'"(fedpriv\.[\w.]+)"', sources[module]))
        for name in imports(sources[module], module) | named:
            parts = name.split(".")
            parents = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
            ahead |= (parents & set(sources)) - reached
    return reached


def path_of(module: str) -> str:
    """Return where a module of the checkout lies, from its root."""
    stem = module.replace(".", "/")
    return f"{stem}/__init__.py" if (CHECKOUT / stem).is_dir() else f"{stem}.py"


@pytest.mark.slow
@pytest.mark.flower
def test_two_nodes_run_the_bundle_that_is_built_from_the_unpacked_one(
    flower, bundle, tiny_corpus, tmp_path
):
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(unpacked)
    flower.start_nodes(2)
    run = tmp_path / "run"
    config = processes.run_config(**ONE_ROUND, corpus=str(tiny_corpus), out=str(run))
    log = flower.run(unpacked, config)
    assert (run / "summary.json").is_file(), log[-4000:]
    assert json.loads((run / "summary.json").read_text("utf-8"))["rounds"] == 1
