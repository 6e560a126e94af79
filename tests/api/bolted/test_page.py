"""The page about wrapping: its two loops run as they stand there; their lines are counted."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from tests.docs.shell_blocks import execute, python_files

PAGE = (Path(__file__).parents[3] / "docs" / "methods" / "bolt-on.md").read_text("utf-8")
NUMBER = 1000


@pytest.fixture
def loops():
    return {name: execute([code], {}) for name, code in python_files(PAGE).items()}


@pytest.fixture
def db():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(NUMBER, 3)) / 2
    labels = np.where(rows @ [2.0, -1.0, 0.0] + rng.normal(0, 0.2, NUMBER) > 0, 1, -1)
    with sqlite3.connect(":memory:") as made:
        made.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, a, b, c, y)")
        lines = np.column_stack([np.arange(NUMBER), rows, labels]).tolist()
        made.executemany("INSERT INTO people VALUES (?, ?, ?, ?, ?)", lines)
        yield made


def right(w, db):
    rows = np.array(db.execute("SELECT a, b, c, y FROM people").fetchall())
    return float(np.mean((rows[:, :3] @ w > 0) == (rows[:, 3] > 0)))


@pytest.mark.slow
@pytest.mark.parametrize("delta", [None, 1e-6])
def test_rows_out_of_sqlite(loops, db, tmp_path, delta):
    plain = loops["before"]["train"](db, NUMBER, 5, 0.2, 0.01)
    made = loops["after"]["release"](
        db, NUMBER, tmp_path / "run", target_epsilon=4.0, delta=delta, seed=3
    )
    assert right(plain, db) > 0.9 and right(made.params["w"], db) > 0.85
    assert str(made.moved) in PAGE


def test_the_projection_on_the_page(loops):
    made = loops["fewer"]
    assert made["rows"].shape == (10, 50) and made["again"] == made["projection"]
    assert (np.linalg.norm(made["rows"].astype(float), axis=1) <= 1).all()
