"""TFF's SQLite client data: the four schemas, packed or plain, and every way to be wrong."""

import lzma
import os
import shutil
import sqlite3
import tempfile

import numpy as np
import pytest

from fedpriv.datasets.tff_files import open_client_data
from tests.harness.refusals import refuses


@pytest.fixture
def clients(tff_writer):
    """Three clients, stored out of order, with 2, 1 and 3 examples."""
    sizes = {"b": 2, "a": 1, "c": 3}
    return {
        client: [
            tff_writer.stackoverflow_example(f"{client} {n}", "a title", "x|y") for n in range(size)
        ]
        for client, size in sizes.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["f.sqlite", "f.sqlite.lzma", "f.sqlite.xz"])
@pytest.mark.parametrize("index", [False, True])
def test_clients_and_examples(tmp_path, tff_writer, clients, name, index, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    path = tff_writer.write(tmp_path / name, clients, index=index)
    with open_client_data(path) as data:
        assert data.client_ids == ("a", "b", "c")
        assert dict(data.num_examples) == {"a": 1, "b": 2, "c": 3}
        assert (data.split_name, data.schema.name) == ("train", "stackoverflow")
        assert [row["tokens"] for _, row in data.stream({"c"})] == ["c 0", "c 1", "c 2"]
        streamed = [(client, row["tokens"]) for client, row in data.stream({"a", "b"})]
        assert sorted(streamed) == [("a", "a 0"), ("b", "b 0"), ("b", "b 1")]
        with refuses(ValueError, "'z'"):
            list(data.stream({"z"}))
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "names"),
    [
        ({}, ["'label'"]),
        ({"pixels": np.zeros(783, np.float32), "label": np.array([1])}, ["'pixels'", 783]),
        ({"pixels": np.zeros(784, np.int64), "label": np.array([1])}, ["'pixels'", "int64"]),
        ({"pixels": np.full(784, np.nan, np.float32), "label": np.array([1])}, ["'pixels'"]),
        ({"pixels": np.full(784, 2, np.float32), "label": np.array([1])}, ["'pixels'"]),
        ({"label": np.array([62])}, ["'label'"]),
        ({"label": np.array([-1])}, ["'label'"]),
        ({"label": np.array([], np.int64)}, ["'label'", 0]),
        ({"pixels": b"raw", "label": np.array([1])}, ["'pixels'", "bytes"]),
    ],
)
def test_examples_that_do_not_fit_the_schema_are_refused(tmp_path, tff_writer, features, names):
    blob = tff_writer.example(**{"pixels": np.zeros(784, np.float32)} | features)
    path = tff_writer.write(tmp_path / "e.sqlite", {"w": [blob]})
    with (
        open_client_data(path, schema="emnist", split_name="train") as data,
        refuses(ValueError, "example 1", "client 'w'", *names),
    ):
        list(data.stream({"w"}))


@pytest.mark.parametrize("value", [b"\xff\xfe", [b"one", b"two"], np.array([1])])
def test_text_that_is_not_one_text_is_refused(tmp_path, tff_writer, value):
    blob = tff_writer.example(snippets=value)
    path = tff_writer.write(tmp_path / "s.sqlite", {"LEAR": [blob]})
    with open_client_data(path) as data, refuses(ValueError, "'snippets'"):
        list(data.stream({"LEAR"}))


def test_unknown_fields_splits_and_schemas_are_refused(tmp_path, tff_writer, clients):
    path = tff_writer.write(tmp_path / "f.sqlite", {"a": [tff_writer.example(other="x")]})
    with refuses(ValueError, path, "['other']"):
        open_client_data(path)
    with refuses(ValueError, "'mnist'"):
        open_client_data(path, schema="mnist")
    two = tff_writer.write(tmp_path / "g.sqlite", clients, split="heldout")
    with refuses(ValueError, "'train'", "['heldout']"):
        open_client_data(two, split_name="train")
    with refuses(ValueError, tmp_path / "absent.sqlite"):
        open_client_data(tmp_path / "absent.sqlite")


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("planned", [1, 5])
def test_fewer_or_more_examples_than_the_metadata_says(
    tmp_path, tff_writer, clients, planned, index
):
    path = tff_writer.write(tmp_path / "f.sqlite", clients, counts={"b": planned}, index=index)
    with open_client_data(path) as data:
        for clients in ({"b"}, {"a", "b"}):
            with refuses(ValueError, path, "'b'", planned):
                list(data.stream(clients))


@pytest.mark.parametrize("keep", [0, 50, 100, 4096, 8000])
def test_a_truncated_database_is_refused(tmp_path, tff_writer, clients, keep):
    path = tff_writer.write(tmp_path / "f.sqlite", clients)
    path.write_bytes(path.read_bytes()[:keep])
    with refuses(ValueError, path):
        open_client_data(path)


@pytest.mark.parametrize("suffix", [".lzma", ".xz"])
@pytest.mark.parametrize("harm", ["cut", "flip", "tail", "text", "empty"])
def test_a_damaged_archive_is_refused_and_leaves_nothing(
    tmp_path, tff_writer, clients, suffix, harm, monkeypatch
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    path = tff_writer.write(tmp_path / f"f.sqlite{suffix}", clients)
    data = path.read_bytes()
    harmed = {
        "cut": data[: len(data) * 2 // 3],
        "flip": data[:20] + os.urandom(40) + data[60:],  # legacy .lzma has no checksum
        "tail": data + b"something else",
        "text": lzma.compress(b"hello " * 1000),
        "empty": b"",
    }
    path.write_bytes(harmed[harm])
    with refuses(ValueError, path):
        open_client_data(path)
    assert list(scratch.iterdir()) == []


def test_concatenated_and_padded_xz_streams_are_one_file(tmp_path, tff_writer, clients):
    plain = tff_writer.write(tmp_path / "f.sqlite", clients).read_bytes()
    half = len(plain) // 2
    packed = lzma.compress(plain[:half]) + bytes(8) + lzma.compress(plain[half:]) + bytes(4)
    (tmp_path / "f.xz").write_bytes(packed)
    with open_client_data(tmp_path / "f.xz") as data:
        assert data.client_ids == ("a", "b", "c")


def test_a_full_disk_is_a_clear_message(tmp_path, tff_writer, clients, monkeypatch):
    path = tff_writer.write(tmp_path / "f.sqlite.xz", clients)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with refuses(ValueError, path):
        open_client_data(path)


def _database(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


_META = "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)"
_EXAMPLES = "CREATE TABLE examples (split_name, client_id, serialized_example_proto BLOB)"
_VIEW = (
    "CREATE VIEW examples AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) "
    "SELECT 'train' split_name, 'a' client_id, n serialized_example_proto FROM r"
)
_MADE = (
    "CREATE TABLE examples (split_name, client_id, n, serialized_example_proto AS (zeroblob(n)))"
)
_ROW = "INSERT INTO examples VALUES ('train', 'a', {})"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statements", "name"),
    [
        (["CREATE TABLE t (x)"], "'client_metadata'"),
        ([_META], "'examples'"),
        ([_META, "CREATE TABLE examples (split_name, client_id)"], "'serialized_example_proto'"),
        ([_META, _VIEW], "'examples'"),
        ([_META, _MADE], "'serialized_example_proto'"),
        ([_META, _EXAMPLES], "x.sqlite"),
        ([_META, _EXAMPLES, _ROW.format("'text'")], "str"),
        ([_META, _EXAMPLES, _ROW.format("x'0b'")], 1),
        ([_META, _EXAMPLES, _ROW.format("zeroblob(50000000)")], "x.sqlite"),
    ],
)
def test_other_databases_are_refused(tmp_path, statements, name):
    path = _database(tmp_path / "x.sqlite", *statements)
    with refuses(ValueError, path, name):
        open_client_data(path)


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("('a', 'train', -1)", "num_examples -1"),
        ("('a', 'train', 'many')", "num_examples 'many'"),
        ("('', 'train', 1)", "''"),
        ("(x'00', 'train', 1)", r"b'\x00'"),
        ("('a', x'00', 1)", "split_name"),
        ("('a', 'train', 1), ('a', 'train', 1)", "'a'"),
        ("(CAST(x'ff' AS TEXT), 'train', 1)", "UTF-8"),
    ],
)
def test_bad_metadata_is_refused(tmp_path, tff_writer, row, name):
    path = tff_writer.write(tmp_path / "x.sqlite", {})
    blob = tff_writer.example(snippets="x").hex()
    _database(
        path,
        f"INSERT INTO client_metadata VALUES {row}",
        f"INSERT INTO examples VALUES ('train', 'a', x'{blob}')",
    )
    with refuses(ValueError, path, name):
        open_client_data(path)
