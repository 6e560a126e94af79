"""TFF's SQLite client data: the four schemas, packed or plain, and every way to be wrong."""

import lzma
import os
import sqlite3
import tempfile

import numpy as np
import pytest

from fedpriv.datasets.tff_files import open_client_data


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
        assert [row["tokens"] for row in data.examples("c")] == ["c 0", "c 1", "c 2"]
        streamed = [(client, row["tokens"]) for client, row in data.stream({"a", "b"})]
        assert sorted(streamed) == [("a", "a 0"), ("b", "b 0"), ("b", "b 1")]
        columns = data.create_dataset_for_client("b")
        assert columns["score"].tolist() == [1, 1]
        assert columns["tags"].tolist() == ["x|y", "x|y"]
        with pytest.raises(ValueError, match="no client 'z'"):
            list(data.examples("z"))
        with pytest.raises(ValueError, match="no client 'z'"):
            list(data.stream({"z"}))
    assert list(scratch.iterdir()) == []


def test_emnist(tmp_path, tff_writer):
    pixels = np.linspace(0, 1, 784, dtype=np.float32)
    blob = tff_writer.example(pixels=pixels, label=np.array([3]))
    path = tff_writer.write(tmp_path / "e.sqlite", {"w": [blob]}, split="digits_only_train")
    with open_client_data(path) as data:
        assert data.schema.name == "emnist"
        (row,) = data.examples("w")
        assert row["pixels"].shape == (28, 28)
        assert row["pixels"].dtype == np.float32
        assert np.array_equal(row["pixels"].ravel(), pixels)
        assert (row["label"], row["label"].dtype) == (3, np.int32)
        assert data.create_dataset_for_client("w")["pixels"].shape == (1, 28, 28)


@pytest.mark.parametrize("stored", ["int64", "bytes"])
def test_cifar100(tmp_path, tff_writer, stored):
    image = np.arange(3072) % 256
    blob = tff_writer.example(
        image=image if stored == "int64" else image.astype(np.uint8).tobytes(),
        label=np.array([99]),
        coarse_label=np.array([19]),
    )
    path = tff_writer.write(tmp_path / "c.sqlite.lzma", {"0": [blob]})
    with open_client_data(path) as data:
        (row,) = data.examples("0")
        assert row["image"].shape == (32, 32, 3)
        assert row["image"].dtype == np.uint8
        assert np.array_equal(row["image"].ravel(), image)
        assert (row["label"], row["coarse_label"]) == (99, 19)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"pixels": np.zeros(784, np.float32)}, "no field 'label'"),
        ({"pixels": np.zeros(783, np.float32), "label": np.array([1])}, "783 values"),
        ({"pixels": np.zeros(784, np.int64), "label": np.array([1])}, "int64 values"),
        ({"pixels": np.full(784, np.nan, np.float32), "label": np.array([1])}, "within"),
        ({"pixels": np.full(784, 2, np.float32), "label": np.array([1])}, "within"),
        ({"pixels": np.zeros(784, np.float32), "label": np.array([62])}, "within"),
        ({"pixels": np.zeros(784, np.float32), "label": np.array([-1])}, "within"),
        ({"pixels": np.zeros(784, np.float32), "label": np.array([], np.int64)}, "0 values"),
        ({"pixels": b"raw", "label": np.array([1])}, "holds bytes"),
    ],
)
def test_examples_that_do_not_fit_the_schema_are_refused(tmp_path, tff_writer, features, message):
    path = tff_writer.write(tmp_path / "e.sqlite", {"w": [tff_writer.example(**features)]})
    with (
        open_client_data(path, schema="emnist", split_name="train") as data,
        pytest.raises(ValueError, match=message) as error,
    ):
        list(data.examples("w"))
    assert "example 1 of client 'w'" in str(error.value)


@pytest.mark.parametrize("value", [b"\xff\xfe", [b"one", b"two"], np.array([1])])
def test_text_that_is_not_one_text_is_refused(tmp_path, tff_writer, value):
    blob = tff_writer.example(snippets=value)
    path = tff_writer.write(tmp_path / "s.sqlite", {"LEAR": [blob]})
    with open_client_data(path) as data, pytest.raises(ValueError, match="snippets"):
        list(data.examples("LEAR"))


def test_unknown_fields_splits_and_schemas_are_refused(tmp_path, tff_writer, clients):
    path = tff_writer.write(tmp_path / "f.sqlite", {"a": [tff_writer.example(other="x")]})
    with pytest.raises(ValueError, match=r"none of stackoverflow, emnist"):
        open_client_data(path)
    with pytest.raises(ValueError, match="unknown schema 'mnist'"):
        open_client_data(path, schema="mnist")
    two = tff_writer.write(tmp_path / "g.sqlite", clients, split="heldout")
    with pytest.raises(ValueError, match=r"no split 'train'; it has \['heldout'\]"):
        open_client_data(two, split_name="train")
    with pytest.raises(ValueError, match="no file"):
        open_client_data(tmp_path / "absent.sqlite")


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("planned", [1, 5])
def test_fewer_or_more_examples_than_the_metadata_says(
    tmp_path, tff_writer, clients, planned, index
):
    path = tff_writer.write(tmp_path / "f.sqlite", clients, counts={"b": planned}, index=index)
    with open_client_data(path) as data:
        with pytest.raises(ValueError, match=f"metadata says {planned}"):
            list(data.examples("b"))
        with pytest.raises(ValueError, match="file is incomplete, fetch"):
            list(data.stream({"a", "b"}))


@pytest.mark.parametrize("keep", [0, 50, 100, 4096, 8000])
def test_a_truncated_database_is_refused(tmp_path, tff_writer, clients, keep):
    path = tff_writer.write(tmp_path / "f.sqlite", clients)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r" is truncated| cannot be read| not unpack to"):
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
    data = bytearray(path.read_bytes())
    if harm == "flip" and suffix == ".lzma":
        data[20:60] = os.urandom(40)  # legacy .lzma has no checksum, so harm it visibly
    elif harm == "flip":
        data[len(data) // 2] ^= 0xFF
    data = {
        "cut": data[: len(data) * 2 // 3],
        "flip": data,
        "tail": data + b"something else",
        "text": bytearray(lzma.compress(b"hello " * 1000)),
        "empty": bytearray(),
    }[harm]
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r" is truncated| is damaged or| not unpack to"):
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
    import shutil

    path = tff_writer.write(tmp_path / "f.sqlite.xz", clients)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(ValueError, match=r"no room in .* set TMPDIR"):
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["CREATE TABLE t (x)"], "no plain table 'client_metadata'"),
        ([_META], "no plain table 'examples'"),
        ([_META, "CREATE TABLE examples (split_name, client_id)"], "serialized_example_proto"),
        (
            [
                _META,
                "CREATE VIEW examples AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 "
                "FROM r) SELECT 'train' split_name, 'a' client_id, n serialized_example_proto "
                "FROM r",
            ],
            "no plain table 'examples'",
        ),
        (
            [
                _META,
                "CREATE TABLE examples (split_name, client_id, n, serialized_example_proto "
                "AS (zeroblob(n)))",
            ],
            "serialized_example_proto",
        ),
        ([_META, _EXAMPLES], "has no examples"),
        ([_META, _EXAMPLES, "INSERT INTO examples VALUES ('train', 'a', 'text')"], "not str"),
        (
            [_META, _EXAMPLES, "INSERT INTO examples VALUES ('train', 'a', x'0b')"],
            "1 bytes are not",
        ),
        (
            [_META, _EXAMPLES, "INSERT INTO examples VALUES ('train', 'a', zeroblob(50000000))"],
            "too big",
        ),
    ],
)
def test_other_databases_are_refused(tmp_path, statements, message):
    path = _database(tmp_path / "x.sqlite", *statements)
    with pytest.raises(ValueError, match=message):
        open_client_data(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("('a', 'train', -1)", "num_examples -1"),
        ("('a', 'train', 'many')", "num_examples 'many'"),
        ("('', 'train', 1)", "client id ''"),
        ("(x'00', 'train', 1)", "client id b'"),
        ("('a', x'00', 1)", "split_name"),
        ("('a', 'train', 1), ('a', 'train', 1)", "twice"),
        ("(CAST(x'ff' AS TEXT), 'train', 1)", "cannot be read"),
    ],
)
def test_bad_metadata_is_refused(tmp_path, tff_writer, row, message):
    path = tff_writer.write(tmp_path / "x.sqlite", {})
    blob = tff_writer.example(snippets="x").hex()
    _database(
        path,
        f"INSERT INTO client_metadata VALUES {row}",
        f"INSERT INTO examples VALUES ('train', 'a', x'{blob}')",
    )
    with pytest.raises(ValueError, match=message):
        open_client_data(path)
