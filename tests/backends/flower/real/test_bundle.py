"""The Flower bundle: what is in it, and that it runs where nothing else is."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.repository.test_import_floors import all_sources, imports

CHECKOUT = Path(__file__).parents[4]
ALLOWED = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
# Rooms that no app and no experiment of users imports: what a person calls at a keyboard,
# experiments of examples, and the studies of papers.
LEFT_OUT = {
    "fedpriv.__main__", "fedpriv.api.account", "fedpriv.api.bolt_on",
    "fedpriv.api.bolt_on_classifier", "fedpriv.api.custom_loop", "fedpriv.api.forecast",
    "fedpriv.api.result", "fedpriv.api.running", "fedpriv.api.stream_account",
    "fedpriv.api.uncertainty", "fedpriv.attacks", "fedpriv.audit", "fedpriv.cli", "fedpriv.deploy",
    "fedpriv.experiments.ready_made.conversions", "fedpriv.experiments.ready_made.images",
    "fedpriv.report.comparison", "fedpriv.report.export",
    "fedpriv.report.plots.noise", "fedpriv.report.plots.tradeoff",
    "fedpriv.tuning",
    "simulations.adadps", "simulations.agd", "simulations.bolt_on", "simulations.defaults",
    "simulations.dpnsgd", "simulations.evaluation", "simulations.linear_models",
    "simulations.reproduction", "simulations.scraps", "simulations.threads",
}  # fmt: skip
ONE_ROUND = {
    "experiment": "adadps-tags", "noise_multiplier": 0.5, "rounds": 1, "cohort": 4,
}  # fmt: skip


@pytest.fixture(scope="session")
def bundle(processes, tmp_path_factory) -> Path:
    """The bundle that `flwr build` makes of a checkout with tests, caches and all."""
    app = processes.copy_app(tmp_path_factory.mktemp("bundle") / "fedpriv")
    (app / "tests").mkdir()
    (app / "tests" / "helper.py").write_text("", encoding="utf-8")
    (app / "fedpriv" / "test_left_behind.py").write_text("", encoding="utf-8")
    (app / "runs").mkdir()
    (app / "runs" / "experiment.json").write_text("{}", encoding="utf-8")
    home = tmp_path_factory.mktemp("flower-home")
    done = subprocess.run(
        [processes.BIN / "flwr", "build"],
        cwd=app,
        env={**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0",
             "FLWR_DISABLE_UPDATE_CHECK": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (fab,) = app.glob("*.fab")
    return fab


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
    assert 'serverapp = "server.app:app"' in text and 'clientapp = "client.app:app"' in text


def test_nothing_that_is_left_out_can_be_reached_from_the_bundle(bundle):
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
    sources = all_sources()
    inside = {module for module in sources if path_of(module) in names}
    apps = {module for module in sources if module.split(".")[0] in ("server", "client")}
    assert apps | {"simulations", "fedpriv.experiments.ready_made.tags"} <= inside
    left_out = set(sources) - inside
    # What an experiment of one's own may be made of goes along, whether an app imports it or not.
    assert {room_of(module, inside) for module in left_out} == LEFT_OUT
    reached = reached_from(
        sources, apps | {"simulations"} | {name for name in inside if name.startswith("fedpriv")}
    )
    assert reached & left_out == set()
    named = {room_of(module, inside) for module in left_out if named_experiments(sources[module])}
    # Examples are not trained by nodes.
    examples = {f"fedpriv.experiments.ready_made.{task}" for task in ("conversions", "images")}
    assert named <= {*examples, "simulations.threads"}


def test_what_is_called_at_a_keyboard_says_in_a_bundle_where_it_is(bundle, tmp_path):
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path)
    script = "import fedpriv; assert fedpriv.Plan; assert fedpriv.averaging; fedpriv.tune"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(
        "ImportError: fedpriv.tune is not part of a Flower bundle, which holds what a run needs: "
        "call it where fedpriv is installed"
    )


def room_of(module: str, inside: set[str]) -> str:
    """Return the widest folder around a module of which nothing is in the bundle."""
    parts = module.split(".")
    for end in range(2, len(parts)):
        room = ".".join(parts[:end])
        if not any(f"{name}.".startswith(f"{room}.") for name in inside):
            return room
    return module


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


def named_experiments(source: str) -> list[str]:
    """Return the functions that `module:function` may name as an experiment."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and isinstance(node.returns, ast.Name)
        and node.returns.id == "Experiment"
        and not (node.args.posonlyargs or node.args.args)
    ]


def path_of(module: str) -> str:
    """Return where a module of the checkout lies, from its root."""
    stem = module.replace(".", "/")
    return f"{stem}/__init__.py" if (CHECKOUT / stem).is_dir() else f"{stem}.py"


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.ray
def test_one_round_from_the_bundle_in_an_empty_directory(
    processes, flower, bundle, tiny_corpus, tmp_path
):
    empty = tmp_path / "installed"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(empty)
    flower.start_superlink(simulation=True)
    run = tmp_path / "run"
    log = flower.run(
        empty,
        processes.run_config(**ONE_ROUND, corpus=str(tiny_corpus), out=str(run)),
        "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=1",
    )
    assert (run / "summary.json").is_file(), log[-4000:]
    assert json.loads((run / "summary.json").read_text("utf-8"))["rounds"] == 1
