"""The examples: small complete projects, each run by the commands of its README."""

import json
import runpy

import pytest

import fedpriv as fp
from fedpriv.privacy.statement.verify import verify_run
from tests.deployment.layout import broken, nodes_of, read
from tests.deployment.test_compose import check_form
from tests.examples.projects import EXAMPLES, NAMES, ROOT, commands_of, copied, typed


def test_these_are_the_examples():
    """And the manifests, of which tests/deployment/test_kubernetes.py is."""
    found = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert found == {*NAMES, "kubernetes"}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_own_model(number, tmp_path):
    folder = copied("own-model", tmp_path)
    command = commands_of("own-model")[number]
    said = typed(command, folder)
    run = fp.load(folder / command.words[-1])
    assert "synthetic" in said.lower() and run.summary["synthetic"]
    assert verify_run(run.path).ok and run.summary["rounds"] == run.summary["rounds_planned"]


@pytest.mark.slow
def test_own_loop_is_run_again_for_nothing(tmp_path):
    folder = copied("own-loop", tmp_path)
    loop, verify = commands_of("own-loop")
    first = typed(loop, folder)
    assert first.startswith("synthetic users: [") and "add-remove, per user, by PLD" in first
    assert typed(loop, folder) == first and "ok" in typed(verify, folder).lower()
    assert verify_run(folder / "runs" / "loop").num_charges == 10


@pytest.mark.slow
def test_study(tmp_path):
    folder = copied("study", tmp_path)
    dry, run = commands_of("study")
    assert "12" in typed(dry, folder)
    typed(run, folder)
    page = (folder / "halves" / "index.html").read_text("utf-8")
    assert "synthetic" in page.lower() and "small steps" in page and "large steps" in page
    trials = (folder / "halves" / "trials.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["failure"] for line in trials] == [None] * 12


@pytest.fixture
def prepared(tmp_path):
    """Three nodes' synthetic CSV files, the roster of their keyed ids, and the compose file."""
    folder = copied("own-data", tmp_path)
    for command in commands_of("own-data"):
        typed(command, folder)
    return folder


@pytest.mark.slow
def test_own_data_has_a_roster_and_a_compose_file_for_three_nodes(prepared):
    ids = (prepared / "deploy" / "parts" / "server" / "roster.txt").read_text("utf-8")
    assert len(ids.split()) == 36 and "Ann" not in ids
    compose = read(prepared / "compose.yml")
    check_form(compose)
    assert broken(compose) == [] and nodes_of(compose) == ["1", "2", "3"]
    mounted = [line.split(":") for line in compose["services"]["operator"]["volumes"]]
    project = [(prepared / source, target) for source, target, *_ in mounted if "project" in target]
    assert all(source.is_file() for source, _ in project)
    assert {target for _, target in project} >= {"/project/pyproject.toml", "/project/visits.py"}


def test_the_pages_show_the_examples_files():
    """A page includes them, or has them as blocks that `make options` writes and GitHub shows."""
    with_code = runpy.run_path(str(ROOT / "docs" / "write_options.py"))["with_code"]
    pages = [path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")]
    assert [with_code(page) for page in pages] == pages
    for name in (
        "own-model/own.py -->\n```py\n",
        "own-loop/loop.py -->\n```py\n",
        "flower-app/plain_server_app.py server_app.py -->\n```diff\n",
        "flower-app/plain_client_app.py client_app.py -->\n```diff\n",
        "own-data/visits.py",
    ):
        assert f"examples/{name}" in "".join(pages)
