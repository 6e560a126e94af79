"""`fedpriv new`: the project that it writes runs at once, in simulation and on SuperNodes."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fedpriv import cli
from fedpriv.backends.flower.settings import OWN_KEYS, SHORT_KEYS
from fedpriv.cli.new import write_project
from fedpriv.privacy.statement.verify import verify_run
from tests.backends.flower.real.processes import CHECKOUT, run_config
from tests.deployment.layout import broken, nodes_of, read
from tests.deployment.test_compose import check_form
from tests.docs.shell_blocks import commands
from tests.examples.projects import copied
from tests.harness.command_line import CliRunner
from tests.harness.refusals import refuses


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.app, ["new", "my-app", "--nodes", "2"])
    assert done.exit_code == 0, (done.output, done.exception)
    _, enter, alone, on_flower = done.output.splitlines()
    assert enter == "cd my-app" and alone == "fedpriv run my_app.experiment:experiment"
    assert on_flower.endswith(f"flwr run . --stream --run-config 'out=\"{tmp_path}/my-app-run\"'")
    return tmp_path / "my-app"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my-app", "flower-app", "own-data"])
def test_run_folders_stay_out_of_flowers_bundle(project, name):
    app = project if name == "my-app" else copied(name, project.parent)
    run = app / "runs" / "first"
    run.mkdir(parents=True)
    for file in ("diagnostics.jsonl", "summary.json", "resume.toml"):
        (run / file).write_text("{}\n", "utf-8")
    done = subprocess.run(
        [Path(sys.executable).parent / "flwr", "build"],
        cwd=app, capture_output=True, text=True, check=False,
    )  # fmt: skip
    (bundle,) = app.glob("*.fab")
    held = zipfile.ZipFile(bundle).namelist()
    assert "pyproject.toml" in held and not [file for file in held if "runs" in file]
    assert "missing" not in done.stdout, done.stdout  # a property that Flower warns of


@pytest.fixture
def typed(project):
    """Runs a module in the project's folder."""

    def run(*words):
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "MPLBACKEND": "agg"}
        return subprocess.run(
            [sys.executable, "-m", *words], cwd=project, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_its_own_test_passes_in_simulation_and_its_code_is_clean(typed):
    for command in ("pytest -q -p no:cacheprovider .", "ruff check --isolated --ignore=I ."):
        done = typed(*command.split())
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_it_takes_a_file_of_ones_own_as_its_readme_has_it(project, typed):
    rows = [f"p{n % 40},{n % 7 - 3},{n % 5 - 2},{n % 2}" for n in range(200)]
    (project / "people.csv").write_text("person,x1,x2,label\n" + "\n".join(rows), "utf-8")
    key, run = [c for c in commands((project / "README.md").read_text("utf-8")) if "data" in str(c)]
    assert typed(*key.words).returncode == 0
    done = typed(*run.words, "--rounds", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert verify_run(project / "runs" / "own").ok and "40 users" in done.stdout
    (project / "people.csv").write_text("person,x1,x2,label\np,1,1,2\n", "utf-8")
    done = typed("fedpriv", "data", "ids", "people.csv", "--key", "people.key",
                 "--experiment", "my_app.experiment:experiment")  # fmt: skip
    assert done.returncode == 2
    assert "line 2" in done.stderr and "'label'" in done.stderr


def test_its_files(project):
    declared = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]
    assert set(declared["config"]) == {*OWN_KEYS, *SHORT_KEYS, "options"}
    assert declared["config"]["experiment"] == "my_app.experiment:experiment"
    for app in declared["components"].values():
        assert (project / app.partition(":")[0].replace(".", "/")).with_suffix(".py").is_file()
    compose = read(project / "docker-compose.yml")
    check_form(compose)
    assert broken(compose) == [] and nodes_of(compose) == ["1", "2"]
    for mounted in re.findall(r"\./(\S+):/project/", (project / "docker-compose.yml").read_text()):
        assert (project / mounted).exists()
    assert "synthetic" in (project / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["my-app", "numpy", "My App", "../up", "class"])
def test_what_is_there_or_is_no_name_is_refused(project, name):
    before = sorted(project.rglob("*"))
    with refuses(ValueError, name):
        write_project(project.parent, name)
    assert sorted(project.rglob("*")) == before and not (project.parent / "up").exists()


def test_nothing_is_left_where_the_compose_file_cannot_be_made(tmp_path):
    with refuses(ValueError, "nodes", 0):
        write_project(tmp_path, "other", nodes=0)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.flower
def test_it_runs_on_supernodes(project, flower, tmp_path):
    flower.start_nodes(2)
    log = flower.run(project, run_config(rounds=2, out=str(tmp_path / "run")))
    assert (tmp_path / "run" / "summary.json").is_file(), log[-4000:]
    found = verify_run(tmp_path / "run")
    assert found.ok and found.num_releases == 2
