"""Tables with a user column: CSV and SQLite by the standard library, Parquet by pyarrow."""

import csv
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from fedpriv.datasets.local_data import Table
from fedpriv.datasets.tables import HuggingFaceUsers, read_table
from fedpriv.tasks.module_task import array_examples
from tests.harness.refusals import refuses

ROWS = [("zoe", 40.5, 1, "x"), (" ann", 50.0, 0, "y"), ("zoe", 41.0, 0, "")]
TABLE = Table(user="who", columns={"age": float, "back": int})
NAMES = ("who", "age", "back", "note")


def examples(row):
    return row["age"][:, None].astype(np.float32), row["back"]


def write_csv(path, rows=ROWS, names=NAMES):
    with path.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([names, *rows])
    return path


def write_sqlite(path, rows=ROWS, names=NAMES):
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"CREATE TABLE visits ({', '.join(names)})")
        db.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", rows)
    return path


def write_parquet(path, rows=ROWS, names=NAMES):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `data` is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    parquet.write_table(pyarrow.table(columns), path)
    return path


WRITERS = {"csv": write_csv, "sqlite": write_sqlite, "parquet": write_parquet}


@pytest.mark.parametrize("kind", WRITERS)
def test_users_of_a_file(tmp_path, kind):
    users = read_table(WRITERS[kind](tmp_path / f"visits.{kind}"), TABLE, examples)
    assert list(users) == ["ann", "zoe"]
    assert users["zoe"][0].tolist() == [[40.5], [41.0]] and users["zoe"][1].tolist() == [1, 0]
    assert users["ann"][1].dtype == np.int64


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"names": ("who", "age", "other", "note")}, ["'back'", "who", "age", "other", "note"]),
        ({"rows": [("zoe", float("nan"), 1, "x")]}, ["'age'"]),
        ({"rows": [("zoe", None, 1, "x")]}, ["'age'"]),
        ({"rows": [("", 1.0, 1, "x")]}, ["'who'"]),
        ({"rows": []}, []),
    ],
)
def test_bad_files_are_one_line_without_values(tmp_path, kind, change, names):
    path = WRITERS[kind](tmp_path / f"visits.{kind}", **change)
    with refuses(ValueError, path, *names) as error:
        read_table(path, TABLE, examples)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["gone.csv", "gone.parquet", "a.pkl", "a.npy"])
def test_what_is_not_there_or_of_another_kind(tmp_path, name):
    if "gone" not in name:
        (tmp_path / name).write_bytes(b"\x80\x04")
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="the extra `data` is not installed")
    with refuses(ValueError, tmp_path / name):
        read_table(tmp_path / name, TABLE, examples)


@pytest.mark.parametrize("cut", [0, 3, 60, -1])
def test_damaged_parquet_is_one_line(tmp_path, cut):
    path = write_parquet(tmp_path / "visits.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:cut] if cut != 60 else content[:40] + b"\xff" * 40 + content[80:])
    with refuses(ValueError, path) as error:
        read_table(path, TABLE, examples)
    assert "\n" not in str(error.value)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with refuses(ValueError, "'fedpriv[data]'"):
        read_table(tmp_path / "a.parquet", TABLE, examples)


class Rows:
    """The part of a Hugging Face data set that is asked for, and a record of what was."""

    def __init__(self, columns):
        self.columns, self.column_names, self.asked = columns, list(columns), []

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        self.asked.append(key)
        if isinstance(key, str):
            return self.columns[key]
        return {name: [column[row] for row in key] for name, column in self.columns.items()}


COLUMNS = {
    "writer": ["b", "a", "b"],
    "image": [np.full((2, 2), n, np.uint8) for n in range(3)],
    "text": ["one", "two words", "three"],
    "label": [5, 6, 7],
}


def pictures(row):
    return row["image"].astype(np.float32), row["label"]


def test_rows_of_a_data_set_are_read_when_they_are_asked_for():
    rows = Rows(COLUMNS)
    users = HuggingFaceUsers(rows, user="writer", examples=pictures)
    assert list(users) == ["a", "b"] and len(users) == 2 and "c" not in users
    assert rows.asked == ["writer"]  # and no row
    found = array_examples(users["b"], "examples")
    assert rows.asked == ["writer", [0, 2]]
    assert found.x[1, 0, 0] == 2 and found.y.tolist() == [5, 7]


def test_a_real_data_set(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")
    image = pytest.importorskip("PIL.Image")
    whole = datasets.Dataset.from_dict(
        COLUMNS | {"image": [image.fromarray(picture) for picture in COLUMNS["image"]]}
    ).cast_column("image", datasets.Image())
    whole.save_to_disk(tmp_path / "saved")
    users = HuggingFaceUsers(
        datasets.load_from_disk(tmp_path / "saved"), user="writer", examples=pictures
    )
    x, y = users["b"]
    assert x.shape == (2, 2, 2) and x[1].tolist() == [[2, 2], [2, 2]] and list(y) == [5, 7]
    with refuses(ValueError, "DatasetDict"):
        HuggingFaceUsers(datasets.DatasetDict(train=whole), user="writer", examples=pictures)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([1, 2], ["list"]),
        (Rows({"label": [1]}), ["'writer'", "label"]),
        (Rows({"writer": ["a", None]}), ["row 2", "'writer'"]),
        (Rows({"writer": [1.0, 2.0]}), ["row 1", "'writer'", "float"]),
        (Rows({"writer": []}), []),
    ],
)
def test_other_data_sets_are_refused(given, names):
    with refuses(ValueError, *names):
        HuggingFaceUsers(given, user="writer", examples=pictures)
