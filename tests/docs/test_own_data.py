"""The page about a node's own data: its commands, typed; its run, over a grid in this process."""

import csv
import logging
import os
import re
import shutil
import sqlite3
import stat
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from flwr.common.config import parse_config_args

import fedpriv as fp
from client import app as client_app
from fedpriv.backends.flower.messages import read_request
from fedpriv.backends.flower.settings import OWN_KEYS, open_node, opened_node, read_host
from fedpriv.datasets.local_data import NodeData
from fedpriv.datasets.user_ids import read_key, user_id
from fedpriv.deploy.checks import check_own_users
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.head import _command
from fedpriv.report.run_record import read_run
from fedpriv.runs.backends import open_worker, recorded_place
from fedpriv.runs.document import read_document
from fedpriv.runs.prepared import start_run
from server import app as server_app
from tests.backends.flower.stub_grid import AppNode, StubGrid, context
from tests.docs.shell_blocks import commands, python
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-data.md").read_text("utf-8")
COMMANDS = commands(PAGE)
NAMES = [f"Ann Mustermann {number}" for number in range(40)]
HALVES = {"node-1": NAMES[:22], "node-2": NAMES[22:]}


class Place:
    """Machines of two nodes and a server, and the page's commands, typed on them."""

    def __init__(self, root: Path) -> None:
        self.root, self.key = root, root / "people.key"
        shutil.copy(ROOT / "examples" / "own-data" / "visits.py", root)
        self.experiment = f"{root / 'visits.py'}:experiment"
        for name in HALVES:
            (root / name).mkdir()

    def data(self, node: str) -> Path:
        return self.root / node / "visits.sqlite"

    def fill(self, node: str, names: list[str]) -> None:
        with closing(sqlite3.connect(self.data(node))) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS visits (patient, age, pressure, returned)")
            for name in names:
                rng = np.random.default_rng(NAMES.index(name) if name in NAMES else 1000)
                for _ in range(5):
                    age, pressure = rng.uniform(20, 100), rng.uniform(80, 200)
                    row = (name, age, pressure, int(age / 100 + pressure / 200 > 1.2))
                    db.execute("INSERT INTO visits VALUES (?, ?, ?, ?)", row)

    def type(self, words: tuple[str, ...], node: str = "") -> None:
        """Type a command of the page, in whose place files of the machine stand."""
        files = {
            "people.key": self.key, "visits.sqlite": self.data(node),
            "all.csv": self.root / "all.csv", "simulations.visits:experiment": self.experiment,
            "simulations/visits.py:experiment": self.experiment,
            "roster-file=/absolute/roster.txt": f"roster-file={self.root / 'roster.txt'}",
            "runs/tried": self.root / "whole",
            "node-1.ids": self.root / f"{node or 'node-1'}.ids",
            "node-2.ids": self.root / "node-2.ids", "roster.txt": self.root / "roster.txt",
        }  # fmt: skip
        done = fedpriv(*(files.get(word, word) for word in words[1:]))
        assert done.exit_code == 0, done

    def roster(self) -> None:
        """Make key, ids and roster, as the page says."""
        keys, ids, roster = (c.words for c in COMMANDS if c.words[:2] == ("fedpriv", "data"))
        if not self.key.exists():
            self.type(keys)
        for node in HALVES:
            self.type(ids, node)
        self.type(roster)

    def run_config(self, out: Path, **changes) -> dict:
        (words,) = (c.words for c in COMMANDS if c.words[0] == "flwr")
        given = []
        for option, text in pairwise(words):
            if option == "--run-config":
                text = text.replace("/absolute/roster.txt", str(self.root / "roster.txt"))
                text = text.replace("/absolute/run", str(out))
                given.append(text.replace("simulations.visits:experiment", self.experiment))
        return {**OWN_KEYS, "guard-users": False, **parse_config_args(given), **changes}

    def node_config(self, node: str) -> dict:
        (words,) = (c.words for c in COMMANDS if c.words[0] == "flower-supernode")
        text = words[words.index("--node-config") + 1]
        text = text.replace("/data/visits.sqlite", str(self.data(node)))
        return dict(parse_config_args([text.replace("/keys/people.key", str(self.key))]))

    def nodes(self, run_config: dict, names=tuple(HALVES)) -> dict:
        return {
            number: AppNode(client_app.app, 0, 1, run_config, **self.node_config(name))
            for number, name in enumerate(names, start=1)
        }

    def run(self, out: Path, names=tuple(HALVES), **changes) -> StubGrid:
        run_config = self.run_config(out, **changes)
        grid = StubGrid(self.nodes(run_config, names))
        server_app.app(grid, context(run_config=run_config))
        return grid


def altered(place: Place, statement: str) -> None:
    """Change the first node's database by a statement of SQL."""
    with closing(sqlite3.connect(place.data("node-1"))) as db, db:
        db.execute(statement)


@pytest.fixture
def place(tmp_path):
    opened_node.cache_clear()
    found = Place(tmp_path)
    for node, names in HALVES.items():
        found.fill(node, names)
    yield found
    opened_node.cache_clear()
    for name in [name for name in sys.modules if name.rpartition(".")[2] == "visits"]:
        del sys.modules[name]


@pytest.mark.slow
def test_nodes_of_their_own_files_train_what_one_process_with_all_of_them_does(
    place, tmp_path, draws_of
):
    place.roster()
    place.run(tmp_path / "run")
    found = fp.load(tmp_path / "run")
    assert verify_run(tmp_path / "run").ok and found.summary["rounds"] == 3
    together = tmp_path / "all.csv"
    with together.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["patient", "age", "pressure", "returned"])
        for node in HALVES:
            with closing(sqlite3.connect(place.data(node))) as db:
                rows.writerows(db.execute("SELECT * FROM visits ORDER BY rowid"))
    (words,) = (c.words for c in COMMANDS if c.words[:2] == ("fedpriv", "run"))
    draws_of(tmp_path / "run")
    place.type(words)
    whole = fp.load(tmp_path / "whole")
    assert all(np.array_equal(array, found.params[name]) for name, array in whole.params.items())
    assert found.summary["epsilon"] == whole.summary["epsilon"]
    assert found.summary["accuracy_public"] == whole.summary["accuracy_public"]
    assert verify_run(tmp_path / "whole").ok and not whole.summary["synthetic"]


@pytest.mark.slow
def test_a_simulation_finds_its_files_again(place, tmp_path, monkeypatch):
    """On resume, in Ray's workers, in Python, and in the command that its report gives."""
    place.type(next(c.words for c in COMMANDS if c.words[:3] == ("fedpriv", "data", "key")))
    own = ["--data", str(place.data("node-1")), "--data-key", str(place.key)]
    run = ["run", place.experiment]
    out = tmp_path / "tried"
    assert fedpriv(*run, *own, "--out", out).exit_code == 0
    found = recorded_place(read_document(out))
    assert found == NodeData(place.data("node-1"), place.key)
    command, _ = _command(read_run(out))
    assert " ".join(own) in command
    assert fedpriv(*run, "--resume", out).exit_code == 0
    worker = open_worker(place.experiment, read_document(out)["experiment"], found, None)
    assert len(worker._data.users) == 22
    same = fp.run(place.experiment, tmp_path / "python", corpus=found, progress=False)
    assert same.summary["accuracy_public"] == fp.load(out).summary["accuracy_public"]
    for given, name in (
        (own[:2], "--data-key"),
        (own[2:], "--data"),
        ([*own, "--corpus", "tiny"], "--corpus"),
        ([*own, "--resume", str(out)], "--resume"),
    ):
        assert name in fedpriv(*run, *given).stderr
    assert "dp-fedavg-tags" in fedpriv("run", "dp-fedavg-tags", *own).stderr


@pytest.mark.slow
def test_key_ids_and_rosters_are_their_owners_alone(place, tmp_path):
    """Also where a file of that name was there, which others might read."""
    (tmp_path / "roster.txt").touch(0o666)
    (tmp_path / "roster.txt").chmod(0o666)
    before = os.umask(0)
    try:
        place.roster()
        lists = [str(tmp_path / f"{node}.ids") for node in HALVES]
        users = ["--out", str(tmp_path / "roster.txt"), "--users", str(tmp_path / "users.json")]
        fedpriv("data", "roster", *lists, *users)
    finally:
        os.umask(before)
    written = [*tmp_path.glob("*.ids"), place.key, tmp_path / "roster.txt", tmp_path / "users.json"]
    assert len(written) == 5 and {stat.S_IMODE(file.stat().st_mode) for file in written} == {0o600}


@pytest.mark.slow
def test_the_server_and_its_folder_know_no_name(place, tmp_path, caplog):
    place.roster()
    with caplog.at_level(logging.DEBUG, "fedpriv"):
        place.run(tmp_path / "run")
    text = caplog.text + "".join(
        path.read_text("utf-8", "replace")
        for path in [*(tmp_path / "run").rglob("*"), tmp_path / "roster.txt"]
        if path.is_file()
    )
    key = read_key(place.key)
    assert "Mustermann" not in text and key.hex() not in text
    ids = (tmp_path / "roster.txt").read_text("utf-8").split()
    assert ids == sorted(user_id(key, name) for name in NAMES)
    assert not {user_id(bytes(32), name) for name in NAMES} & set(ids)


@pytest.mark.slow
@pytest.mark.parametrize(("column", "value"), [("age", "elderly"), ("returned", 2)])
def test_a_bad_row_is_named_before_and_costs_one_user_alone_in_a_round(
    place, tmp_path, caplog, column, value
):
    place.roster()
    altered(place, f"UPDATE visits SET {column} = {value!r} WHERE rowid = 7")  # the second person's
    done = fedpriv(
        "data", "ids", place.data("node-1"), "--key", place.key, "--experiment", place.experiment
    )
    said = " ".join(done.output.split())
    assert done.exit_code == 2 and f"visits.sqlite, row 7: column '{column}'" in said
    assert "elderly" not in said and len(re.findall(r"\b[0-9a-f]{32}\b", said)) == 22
    with caplog.at_level(logging.WARNING, "fedpriv"):
        place.run(tmp_path / "run", cohort=40.0)
    assert sum("BadRowError" in line for line in caplog.messages) == 3
    assert fp.load(tmp_path / "run").summary["rounds"] == 3


@pytest.mark.slow
def test_a_person_on_two_nodes_has_one_id_and_contributes_zero(place, tmp_path):
    place.fill("node-2", [f" {NAMES[0]} "])
    place.roster()
    grid = place.run(tmp_path / "run", cohort=40.0)
    asked = [one for sent in grid.requests for one in read_request(sent.content).user_ids]
    assert user_id(read_key(place.key), NAMES[0]) not in asked and len(set(asked)) == 39


@pytest.mark.slow
def test_people_and_nodes_that_come_later_are_told_what_they_wait_for(place, tmp_path, caplog):
    place.roster()
    place.fill("node-1", ["Somebody New", "Somebody Else", "A Third"])
    (tmp_path / "node-3").mkdir()
    place.fill("node-3", NAMES[:1])
    run_config = place.run_config(tmp_path / "run")
    grid = StubGrid(place.nodes(run_config))

    def requests(message, reply):
        later = AppNode(client_app.app, 0, 1, run_config, **place.node_config("node-3"))
        grid.hosts = {**grid.hosts, 3: later}
        return [reply]

    heard = []
    push = grid.push_messages

    def push_messages(messages):
        messages = list(messages)
        for one in messages:
            if one.metadata.message_type == "query.waiting":
                heard.append(one.metadata.dst_node_id)
                one.metadata.__dict__["_message_id"] = "told"
                grid.hosts[one.metadata.dst_node_id].query(one)
        return push(messages)

    grid.push_messages, grid.tamper = push_messages, {1: requests}
    with caplog.at_level(logging.INFO, "fedpriv"):
        server_app.app(grid, context(run_config=run_config))
    assert heard == [1, 3]
    (line,) = re.findall(r"`(3 of this node.*?)`", PAGE)
    assert caplog.messages.count(line) == 1


@pytest.mark.slow
def test_what_is_wrong_with_a_node_as_a_whole_is_said(place, tmp_path):
    place.roster()
    altered(place, "ALTER TABLE visits DROP COLUMN pressure")
    with refuses(ValueError, "'pressure'"):
        place.run(tmp_path / "run", **{"register-seconds": 2.0})


@pytest.mark.slow
def test_half_a_node_config_a_partition_and_another_experiment_are_refused(place, tmp_path):
    place.roster()
    run_config, full = place.run_config(tmp_path / "run"), place.node_config("node-1")
    with refuses(ValueError, "data-key"):
        open_node(run_config, {"data": full["data"]})
    node = open_node(run_config, full)
    assert len(read_host(node, run_config, full).user_ids) == 22
    with refuses(ValueError, "num-partitions 2"):
        read_host(node, run_config, {**full, "partition-id": 0, "num-partitions": 2})
    with refuses(ValueError, "--node-config"):
        open_node({**run_config, "options": ""}, {})
    with refuses(ValueError, "dp-fedavg-tags"):
        open_node({**run_config, "experiment": "dp-fedavg-tags", "options": ""}, full)


@pytest.mark.slow
def test_only_the_server_needs_public_examples(place, tmp_path):
    """As own-data.md has it: a file there, None on nodes; a simulation has the file too."""
    (code,) = python(PAGE)
    (field,) = re.findall(r"`(public_file: str = \"\")`", PAGE)
    ((called, argument),) = re.findall(r"`public=(public_of\(self\.\w+),\s(data\))`", PAGE)
    own = place.root / "visits.py"
    text = own.read_text("utf-8").replace("public=public()", f"public={called}, {argument}")
    text = text.replace("\n@dataclass", f"{code}\n\n@dataclass")
    own.write_text(re.sub(r"    roster_file", rf"    {field}\n    roster_file", text), "utf-8")
    place.roster()
    public = tmp_path / "public.csv"
    public.write_text("patient,age,pressure,returned\nann,40,90,1\nbob,50,80,0\n", "utf-8")
    roster = f"roster-file = '{tmp_path / 'roster.txt'}'"
    options = {"options": f"{roster}\npublic-file = '{public}'"}
    place.run(tmp_path / "run", **options)
    summary = fp.load(tmp_path / "run").summary
    assert summary["accuracy_public"] in (0.0, 0.5, 1.0)
    away = {"options": f"{roster}\npublic-file = '/nowhere/public.csv'"}
    node = open_node(place.run_config(tmp_path / "no", **away), place.node_config("node-1"))
    assert len(node.task.data.users) == 22
    with refuses(ValueError, "/nowhere/public.csv"):
        place.run(tmp_path / "no", **away)


@pytest.mark.slow
def test_a_server_alone_does_not_train_on_nobody(place, tmp_path):
    """Without nodes there are no examples: refused before there is a run folder."""
    place.roster()
    experiment = load_experiment(place.experiment)
    options = {"roster-file": str(tmp_path / "roster.txt")}
    with refuses(ValueError, repr(min((tmp_path / "roster.txt").read_text("utf-8").split()))):
        start_run(experiment.with_options(options), None, None, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_container_is_unhealthy_where_a_row_or_a_file_cannot_be_read(place):
    data = NodeData(place.data("node-1"), place.key)
    place.roster()
    assert check_own_users(data, place.experiment) == 22
    altered(place, "UPDATE visits SET age = 'elderly' WHERE rowid = 7")
    with refuses(ValueError, "row 7", "'age'"):
        check_own_users(data, place.experiment)
    with refuses(ValueError, "dp-fedavg-tags"):
        check_own_users(data, "dp-fedavg-tags")
    place.data("node-1").unlink()
    with refuses(ValueError, data.path):
        check_own_users(data, place.experiment)
