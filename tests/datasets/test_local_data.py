"""A node's own files: what is read, what is refused, and by which name."""

import os
import re
import sqlite3
import stat
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpriv.datasets.local_data import BadRowError, NodeData, Table, local_users
from fedpriv.datasets.user_ids import read_key, read_roster, user_id, write_key
from tests.harness.refusals import refuses

TABLE = Table(columns={"x": float, "n": int, "word": str}, user="who")
ROWS = [("Ann", 1.5, 3, "a"), ("Bob", 2.0, -4, "b c"), ("Ann", 0.25, 5, "é")]
ANN = {"x": [1.5, 0.25], "n": [3, 5], "word": ["a", "é"]}


def folder(path):
    path.mkdir()
    for name in ("Ann", "Bob"):
        lines = [f"{x},{n},{word}" for who, x, n, word in ROWS if who == name]
        (path / f"{name}.csv").write_text("\n".join(["x,n,word", *lines, ""]), "utf-8")
    return path


def file(path, rows=ROWS):
    lines = [f'"{who}",{n},{word},more,{x}' for who, x, n, word in rows]
    path.write_text("\n".join(["who,n,word,other,x", *lines, "", ""]), "utf-8-sig")
    return path


def sqlite(path, rows=ROWS, name='a "table"'):
    quoted = name.replace('"', '""')
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f'CREATE TABLE "{quoted}" (who, x, n, word)')
        db.executemany(f'INSERT INTO "{quoted}" VALUES (?, ?, ?, ?)', rows)
    return path


MADE = {
    "folder": lambda path: folder(path / "people"),
    "file": lambda path: file(path / "people.csv"),
    "sqlite": lambda path: sqlite(path / "people.db"),
}


@pytest.fixture
def key(tmp_path):
    write_key(tmp_path / "key")
    return tmp_path / "key"


def opened(path, key, table=TABLE):
    return local_users(table, lambda columns: dict(columns), data=NodeData(path, key))


def named(users):
    """What each problem names: a file of a folder, a line or row, a column."""
    return [re.findall(r"\S+\.csv|\w+\.db|\d+(?=:)|'\w+'", one) for one in users.problems()]


@pytest.mark.parametrize("kind", MADE)
def test_every_form_of_file_gives_the_same_people_and_rows(kind, tmp_path, key):
    users = opened(MADE[kind](tmp_path), key)
    ann = user_id(read_key(key), "Ann")
    assert sorted(users) == sorted(user_id(read_key(key), name) for name in ("Ann", "Bob"))
    assert {name: column.tolist() for name, column in users[ann].items()} == ANN
    assert [users[ann][name].dtype.kind for name in ANN] == ["f", "i", "O"]
    assert ann in users and "Ann" not in users and list(users.problems()) == []


@pytest.mark.parametrize(
    ("bad", "columns"),
    [
        ("Ann,,3,a", ["'x'"]),
        ("Ann,1_0,3,a", ["'x'"]),
        ("Ann,1,3.5,a", ["'n'"]),
        ("Ann,1,9223372036854775808,a", ["'n'"]),
        ("Ann,1,3,", ["'word'"]),
        ("Ann,1,3", []),
        (",1,3,a", ["'who'"]),
        ("\udcff,1,3,a", ["'who'"]),
        ("Ann,1,3,\udcff", ["'word'"]),
        ('Ann,1,3,"a"b', []),
        ('Ann,1,3,"a', []),
        ('Ann,1,1,"', []),
        ('Ann,1,1,"a""', []),
        ('Ann,1,1,"\r', []),
    ],
)
def test_a_bad_row_is_named_and_stops_nobody_else(bad, columns, tmp_path, key):
    path = tmp_path / "people.csv"
    lines = ["who,x,n,word", bad, "Bob,2,2,b", "Cleo,3,3,c", 'Eve,5,5,"e"', 'Dan,4,4,5"', ""]
    path.write_text("\n".join(lines), "utf-8", errors="surrogateescape", newline="")
    users = opened(path, key)
    assert named(users)[0] == [str(path), "2", *columns]
    found = [users[user_id(read_key(key), name)] for name in ("Bob", "Cleo", "Eve", "Dan")]
    assert [rows["word"].tolist() for rows in found] == [["b"], ["c"], ["e"], ['5"']]


def test_a_quote_that_is_not_closed_is_of_its_line_alone(tmp_path, key):
    """Where line breaks are declared; what is closed has several lines, others' quotes follow."""
    path = tmp_path / "people.csv"
    lines = [
        "who,x,n,word", 'Ann,1,1,"of two', 'lines, and ""more"""', 'Bob,2,2,"open', "Cleo,3,3,a",
        'Dan,4,4,"so', 'Eve,5,5,"so', '"Fay",6,6,"closed"',
        'Gus,7,7,"a', "Bob,9,9,spoof", 'b",more',
    ]  # fmt: skip
    path.write_text("\n".join([*lines, ""]), "utf-8")
    users = opened(path, key, replace(TABLE, line_breaks=True))
    found = {name: users.get(user_id(read_key(key), name)) for name in ("Ann", "Bob", "Eve", "Fay")}
    assert found["Ann"]["word"].tolist() == ['of two\nlines, and "more"']
    assert found["Fay"]["word"].tolist() == ["closed"] and found["Bob"] is found["Eve"] is None
    assert len(users) == 3
    assert [one[1] for one in named(users)] == ["4", "6", "7", "11"]


@pytest.mark.parametrize("column", ["word", "other"])
def test_a_long_text_is_one_like_others(column, tmp_path, key):
    path, long = tmp_path / "people.csv", "y" * 2**18
    given = {"word": "a", "other": "a", column: long}
    path.write_text(
        f"who,x,n,word,other\nAnn,1,1,{given['word']},{given['other']}\nBob,1,2,b,b\n", "utf-8"
    )
    users = opened(path, key)
    assert users[user_id(read_key(key), "Ann")]["word"].tolist() == [given["word"]]
    assert len(users) == 2 and not list(users.problems())


def test_texts_take_the_memory_of_their_letters():
    rows = [("here", ["a" * (2**17 if n == 0 else 1)]) for n in range(3000)]
    tracemalloc.start()
    words = Table(columns={"word": str}).parse(rows)["word"]
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 2**22 and (words == "a").sum() == 2999 and np.unique(words).size == 2
    assert Table(columns={"word": str}).parse([("here", ["a\0"])])["word"].tolist() == ["a\0"]


@pytest.mark.parametrize("twice", ["who", "x"])
def test_a_column_that_is_there_twice_is_refused_and_others_may_be(twice, tmp_path, key):
    path = tmp_path / "people.csv"
    path.write_text("who,x,n,word,,\nAnn,1,2,a,,\n", "utf-8")
    assert len(opened(path, key)) == 1
    path.write_text(f"who,x,n,word,{twice}\nAnn,1,2,a,Bob\n", "utf-8")
    with refuses(BadRowError, path, 1, repr(twice)):
        opened(path, key)


def test_bad_rows_and_names_of_a_folder_are_named_and_stop_nobody_else(tmp_path, key):
    people = folder(tmp_path / "people")
    given = {"Cleo": "x,n\n1,2\n", "Dan": "x,n,word\n1,2,a\n1\n", "\u200b": "x,n,word\n1,2,a\n"}
    for name, text in given.items():
        (people / f"{name}.csv").write_text(text, "utf-8")
    (people / "Eve.csv").write_bytes(b"x,n,word\n1,2,\xff\n")
    (people / os.fsdecode(b"C\xff.csv")).write_text("x,n,word\n1,2,a\n", "utf-8")
    users = opened(people, key)
    assert all(users[user_id(read_key(key), name)]["x"].size for name in ("Ann", "Bob"))
    found = {Path(file).name: rest for file, *rest in named(users)}
    assert "".join(users.problems()).encode() and len(found) == 5 and len(users) == 5
    assert found["Cleo.csv"] == ["1", "'word'"] and found["Dan.csv"] == ["3"]
    assert found["Eve.csv"] == ["2", "'word'"] and found["C\\xff.csv"] == []


def test_bad_rows_and_names_of_a_table_are_named_and_stop_nobody_else(tmp_path, key):
    rows = [*ROWS, ("Cleo", 1, 2.0, "a"), ("Dan", b"1", 2, "a"), (None, 1, 2, "a")]
    path = sqlite(tmp_path / "people.db", rows)
    with closing(sqlite3.connect(path)) as db, db:
        into = 'INSERT INTO "a ""table""" VALUES '
        db.execute(f"{into} (CAST(x'ff' AS TEXT), 1, 2, 'a')")
        db.execute(f"{into} ('Eve', 1, 2, CAST(x'ff' AS TEXT))")
    users = opened(path, key)
    assert len(users) == 5 and sorted(named(users)) == [
        ["people.db", "'who'"],
        ["people.db", "4", "'n'"],
        ["people.db", "5", "'x'"],
        ["people.db", "8", "'word'"],
    ]


def test_a_database_in_wal_mode_that_cannot_be_opened_is_said_to_be_one(tmp_path, key):
    path = sqlite(tmp_path / "people.db")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
    assert len(opened(path, key)) == 2
    for ending in ("-wal", "-shm"):  # as in a folder where nobody may write, root neither
        (tmp_path / f"people.db{ending}").unlink(missing_ok=True)
        (tmp_path / f"people.db{ending}").mkdir()
    with refuses(BadRowError, path, "WAL"):
        opened(path, key)


BINARY = Table(
    columns={"x": float, "n": int, "word": str},
    user="who",
    allowed={"x": (0, 2.5), "n": {0, 1}, "word": {"yes", "no"}},
)


@pytest.mark.parametrize("make", [file, sqlite])
def test_a_value_that_is_not_allowed_is_named_without_it(tmp_path, key, make):
    good = [("Ann", 0.0, 0, "yes"), ("Ann", 2.5, 1, "no")]
    bad = [("Bob", 2.0, 2, "no"), ("Cleo", 2.51, 1, "no"), ("Dan", -1e-9, 1, "no"),
           ("Eve", 2, 1, "maybe")]  # fmt: skip
    path = make(tmp_path / f"people.{'csv' if make is file else 'db'}", rows=[*good, *bad])
    users = opened(path, key, BINARY)
    assert users[user_id(read_key(key), "Ann")]["n"].tolist() == [0, 1]
    first = 4 if make is file else 3
    columns = (["'n'"], ["'x'"], ["'x'"], ["'word'", "'no'", "'yes'"])
    found = [[str(first + at), *names] for at, names in enumerate(columns)]
    assert sorted(one[1:] for one in named(users)) == found
    assert all(value not in "".join(users.problems()) for value in ("2.51", "1e-09", "maybe"))
    with refuses(BadRowError, path, first, "'n'"):
        users[user_id(read_key(key), "Bob")]


@pytest.mark.parametrize("given", [{"n": ()}, {"n": set()}, {"n": (3, 1)}, {"n": [0, 1]},
                                   {"word": (0, 1)}, {"other": {0}}])  # fmt: skip
def test_what_allows_nothing_is_refused(given):
    with refuses(ValueError, *map(repr, given)):
        Table(columns={"n": int, "word": str}, allowed=given)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda path: path / "nowhere.csv", "CSV"),
        (lambda path: folder(path / "people") / "Ann.csv", "'who'"),
        (lambda path: sqlite(path / "a.txt"), "a.txt"),
        (lambda path: folder(path / "people") / "..", "people/.."),
        (lambda path: sqlite(path / "a.db", [(7.0, 1, 2, "a")]), "float"),
    ],
)
def test_what_is_wrong_as_a_whole_is_refused(make, name, tmp_path, key):
    with refuses(ValueError, name):
        opened(make(tmp_path), key)


def test_a_table_is_found_by_name_and_never_written_to(tmp_path, key):
    path = sqlite(sqlite(tmp_path / "two.db"), name="second")
    with refuses(ValueError, path, "second"):
        opened(path, key)
    named = Table(columns={"x": float}, user="who", name="second")
    before = path.read_bytes()
    path.chmod(0o444)
    assert len(opened(path, key, named)) == 2 and path.read_bytes() == before
    with refuses(ValueError, "second", "third"):
        opened(path, key, Table(columns={"x": float}, user="who", name="third"))
    with refuses(ValueError, "'second'", "'y'"):
        opened(path, key, Table(columns={"y": float}, user="who", name="second"))
    path.chmod(0o644)
    path.write_bytes(b"no database at all, whatever it is called" * 100)
    with refuses(BadRowError, path, "DatabaseError"):
        opened(path, key)


def test_the_same_name_is_the_same_person_however_it_is_encoded(tmp_path, key):
    rows = [("Zoé", 1, 1, "a"), (" Zoe\u0301", 2, 2, "b"), ("Zoe", 3, 3, "c"), (7, 4, 4, "d")]
    users = opened(sqlite(tmp_path / "people.db", rows), key)
    secret = read_key(key)
    assert len(users) == 3
    assert users[user_id(secret, "Zoé")]["x"].tolist() == [1.0, 2.0]
    assert users[user_id(secret, "7")]["x"].tolist() == [4.0]


def test_ids_are_the_keys_and_are_what_they_were(key):
    """By the definition: HMAC-SHA-256 over a prefix of ours and the name, 128 bits of it."""
    import hashlib
    import hmac

    secret = read_key(key)
    message = b"fedpriv user id\0" + "Zoé".encode()
    assert user_id(secret, "Zoé") == hmac.new(secret, message, hashlib.sha256).hexdigest()[:32]
    assert user_id(secret, "Zoé") != user_id(bytes(32), "Zoé")
    assert user_id(bytes(32), "Ann") == "9d9c295863318393cd0535dbdf63ec26"
    # Of categories Cf and Cc, and of others that are not seen.
    for unseen in "\u200b\u00ad\ufeff\u2060\0\x7f\x9b\u034f\ufe0f":
        for name in (f"Zo{unseen}é", f" {unseen} Zoé", f"Zoe{unseen}\u0301 {unseen}"):
            assert user_id(secret, name) == user_id(secret, "Zoé")


def test_a_key_is_its_owners_alone_and_never_replaced(tmp_path, key):
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600 and len(read_key(key)) == 32
    with refuses(FileExistsError, key):
        write_key(key)
    for mode in (0o640, 0o604, 0o660):
        key.chmod(mode)
        with refuses(PermissionError, key, f"{mode:04o}"):
            read_key(key)
    key.chmod(0o600)
    for text in ("", "ab", "no hex"):
        key.write_text(text, "ascii")
        with refuses(ValueError, key):
            read_key(key)


@pytest.mark.parametrize(
    ("text", "name"), [("", "roster.txt"), ("b\na\nb\n", "'b'"), (None, "FileNotFoundError")]
)
def test_a_roster_lists_everybody_once(text, name, tmp_path):
    path = tmp_path / "roster.txt"
    if text is not None:
        path.write_text(text, "utf-8")
    with refuses(ValueError, path, name):
        read_roster(path)


def test_a_server_knows_ids_and_nothing_else(tmp_path):
    (tmp_path / "roster.txt").write_text("b\n\na\n", "utf-8")
    users = local_users(TABLE, dict, roster=tmp_path / "roster.txt")
    assert list(users) == ["a", "b"] and "a" not in users
    with pytest.raises(KeyError):
        users["a"]
    with refuses(ValueError, "--node-config"):
        local_users(TABLE, dict)


@pytest.mark.parametrize("columns", [{"x": np.ndarray}, {"user": str}])
def test_columns_are_of_three_kinds_and_none_is_the_users(columns):
    with refuses(ValueError, *map(repr, columns)):
        Table(columns=columns)
