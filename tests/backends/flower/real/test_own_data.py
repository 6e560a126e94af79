"""Two SuperNodes with SQLite files of their own (own-data.md), in real processes."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedpriv.datasets.user_ids import read_key, user_id, write_key
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.status import run_status
from tests.backends.flower.real import processes

VISITS = Path(__file__).parents[4] / "examples" / "own-data" / "visits.py"
NAMES = [f"Ann Mustermann {number}" for number in range(20)]


def fill(path: Path, names: list[str]) -> Path:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE visits (patient, age, pressure, returned)")
        for name in names:
            rng = np.random.default_rng(len(name))
            rows = [(name, *rng.uniform(20, 100, 2), number % 2) for number in range(4)]
            db.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", rows)
    return path


@pytest.mark.slow
@pytest.mark.flower
def test_nodes_host_their_own_people_and_are_told_who_waits(flower, tmp_path):
    code = VISITS.read_text("utf-8")
    app = processes.copy_app(tmp_path / "app", {"simulations/visits.py": code})
    write_key(tmp_path / "key")
    superlink = flower.start_superlink(simulation=False)
    for number, names in enumerate((NAMES[:12], [*NAMES[12:], "Somebody New", "A Second"])):
        data = fill(tmp_path / str(number) / "visits.sqlite", names)
        place = processes.run_config(data=str(data), data_key=str(tmp_path / "key"))
        flower.start_supernode(number, superlink, place)
    ids = sorted(user_id(read_key(tmp_path / "key"), name) for name in NAMES)
    (tmp_path / "roster.txt").write_text("\n".join(ids), "utf-8")
    config = processes.run_config(
        experiment="simulations.visits:experiment", rounds=2, cohort=20.0, out=str(tmp_path / "run")
    )
    more = f"options=\"roster-file = '{tmp_path / 'roster.txt'}'\""
    log = flower.run(app, f"{config} {more}")
    assert (tmp_path / "run" / "summary.json").is_file(), log[-4000:]
    assert verify_run(tmp_path / "run").ok
    status = run_status(tmp_path / "run")
    assert (status.state, status.round_num, status.nodes, status.users) == ("finished", 2, 2, 20)
    assert "2 hosted users are not on this plan's roster" in log
    assert "contributes zero" not in flower.log("supernode-0") + flower.log("supernode-1")
    said = (
        r"Z WARNING fedpriv\S+: 2 of this node's users are not on the roster of the run under way"
    )
    assert re.search(said, flower.log("supernode-1")), flower.log("supernode-1")[-4000:]
    assert not re.search(said, flower.log("supernode-0"))
    assert "Mustermann" not in log + flower.log("supernode-0") + flower.log("supernode-1")
