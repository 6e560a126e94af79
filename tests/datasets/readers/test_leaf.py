"""LEAF's JSON, written here as LEAF's scripts write it, and what is none of it."""

import gzip
import json
import string

import numpy as np
import pytest

from fedpriv.datasets.leaf import ALPHABET, read_leaf, read_leaf_femnist, read_leaf_shakespeare
from tests.harness.refusals import refuses

INK = [[round(float(grey), 4) for grey in row] for row in np.random.default_rng(0).random((3, 784))]
PLAY = "\"Then, when 't is done; Speak! [Exit ROMEO & 0123456789 (all) - why: quite a long line?>"


def document(**users):
    """What LEAF writes: users, their numbers, their examples."""
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }


def femnist():
    return document(f0001_41=(INK[:2], [0, 61]), f0002_07=(INK[2:], [10]))


def save(path, content):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["all_data_0.json", "all_data_0.json.gz"])
def test_femnist_by_writer(tmp_path, name):
    users = read_leaf_femnist(save(tmp_path / name, femnist()))
    assert list(users) == ["f0001_41", "f0002_07"]
    x, y = users["f0001_41"]
    assert (x.shape, x.dtype, y.dtype) == ((2, 28, 28), np.float32, np.int64)
    assert y.tolist() == [0, 61]
    assert x[1, 3, 5] == np.float32(INK[1][3 * 28 + 5])  # row after row


def test_a_folder_of_files_and_a_user_without_examples(tmp_path):
    save(tmp_path / "all_data_1.json", document(b=([], [])))
    save(tmp_path / "all_data_0.json", document(a=(INK, [1, 2, 3])))
    (tmp_path / "readme.txt").write_text("no data")
    users = read_leaf_femnist(tmp_path)
    assert list(users) == ["a", "b"] and users["b"][0].shape == (0, 28, 28)


def test_ones_own_numbers_and_texts(tmp_path):
    numbers = document(a=([[1, 2, 3]], [0]), b=([[0.5, 1, 2]] * 2, [1, 2]), c=([], []))
    users = read_leaf(save(tmp_path / "all_data.json", numbers))
    assert [u[0].shape for u in users.values()] == [(1, 3), (2, 3), (0, 3)]
    assert {(x.dtype, y.dtype) for x, y in users.values()} == {(np.dtype("f4"), np.dtype("i8"))}
    assert users["b"][0].tolist() == [[0.5, 1, 2]] * 2 and users["b"][1].tolist() == [1, 2]
    texts = document(a=(["one", "longer"], ["é", ""]), c=([], []))
    users = read_leaf(save(tmp_path / "texts.json.gz", texts))
    assert users["a"][0].tolist() == ["one", "longer"] and users["a"][1].tolist() == ["é", ""]
    assert users["c"][0].shape == (0,) and users["c"][0].dtype.kind == "U"


def test_shakespeare_by_role(tmp_path):
    windows = [PLAY[at : at + 80] for at in range(3)]
    path = save(tmp_path / "p.json", document(ROMEO=(windows, [PLAY[at + 80] for at in range(3)])))
    codes, following = read_leaf_shakespeare(path)["ROMEO"]
    assert codes.shape == (3, 80) and codes.dtype == following.dtype == np.int64
    assert codes[1, :-1].tolist() == codes[0, 1:].tolist() and following[0] == codes[1, -1]
    letters = [*ALPHABET, "?"]
    assert "".join(letters[code] for code in codes[0]) == PLAY[:80]


def test_the_alphabet_is_leafs():
    assert len(ALPHABET) == 80 == len(set(ALPHABET)) and set(string.ascii_letters) < set(ALPHABET)
    assert sorted(ALPHABET) == list(ALPHABET)


def test_characters_of_no_alphabet_have_the_last_code(tmp_path):
    text = "é\U0001f3ad$\ud800" + "a" * 76
    codes, _ = read_leaf_shakespeare(save(tmp_path / "p.json", document(a=([text], ["b"]))))["a"]
    assert codes[0, :5].tolist() == [80, 80, 80, 80, ALPHABET.index("a")]


@pytest.mark.parametrize(
    ("read", "content", "names"),
    [
        (read_leaf_femnist, b"", []),
        (read_leaf_femnist, json.dumps(femnist()).encode()[:-9], []),
        (read_leaf_femnist, b"[" * 100_000, []),
        (read_leaf_femnist, b"\x80\x04\x95 a pickle", []),
        (read_leaf_femnist, b"[1, 2]", ["user_data"]),
        (read_leaf_femnist, femnist() | {"users": ["f0001_41"]}, [1, 2]),
        (read_leaf_femnist, femnist() | {"users": ["f0001_41", "other"]}, [2, "num_samples"]),
        (read_leaf_femnist, femnist() | {"num_samples": [2, 2]}, ["'f0002_07'", 2]),
        (read_leaf_femnist, document(a=(INK, "abc")), ["'a'", 3]),
        (read_leaf_femnist, document(a=([INK[0][:-1]], [1])), ["'a'", "x", 784]),
        (read_leaf_femnist, document(a=([INK[0], [1.0]], [1, 2])), ["'a'", "x", 784]),
        (read_leaf_femnist, document(a=([[float("nan")] * 784], [1])), ["'a'", "x", 0, 1]),
        (read_leaf_femnist, document(a=([[255.0] * 784], [1])), ["'a'", "x", 0, 1]),
        (read_leaf_femnist, document(a=(INK[:1], [62])), ["'a'", "y", 61]),
        (read_leaf_femnist, document(a=(INK[:1], [0.5])), ["'a'", "y", 61]),
        (read_leaf_femnist, document(a=(INK[:1], [10**40])), ["'a'", "y"]),
        (read_leaf_femnist, document(a=(INK[:1], ["7"])), ["'a'", "y"]),
        (read_leaf, document(a=([[1], [1, 2]], [0, 1])), ["'a'", "x"]),
        (read_leaf, document(a=([1, "b"], [0, 1])), ["'a'", "x"]),
        (read_leaf, document(a=([None], [0])), ["'a'", "x"]),
        (read_leaf, document(a=([[float("nan")]], [0])), ["'a'", "float32"]),
        (read_leaf, document(a=([1e200], [0])), ["'a'", "float32"]),
        (read_leaf, document(a=([[1]], [0]), b=([[1, 2]], [0])), ["'a'", "'b'", "(2,)"]),
        (read_leaf, document(a=([1], [0]), b=(["t"], [0])), ["'a'", "'b'"]),
        (read_leaf, document(**{"ann": ([[1]], [0]), "ann\0": ([[2]], [1])}), ["'ann'"]),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, read, content, names):
    path = save(tmp_path / "all_data.json", content)
    with refuses(ValueError, path, *names) as error:
        read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("x", "y"), [("a" * 79, "b"), ("a" * 80, "bc"), (7, "b")])
def test_a_line_of_another_length_is_refused(tmp_path, x, y):
    path = save(tmp_path / "p.json", document(a=([x], [y])))
    with refuses(ValueError, path, "'a'", 1 if y == "bc" else 80):
        read_leaf_shakespeare(path)


def test_a_user_in_two_files_and_no_file_at_all(tmp_path):
    for name in ("one.json", "two.json"):
        save(tmp_path / name, femnist())
    with refuses(ValueError, "'f0001_41'"):
        read_leaf_femnist(tmp_path)
    (tmp_path / "none").mkdir()
    for path in (tmp_path / "none", tmp_path / "nowhere"):
        with refuses(ValueError, path):
            read_leaf_femnist(path)
