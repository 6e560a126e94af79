"""Arrays by user of TFF's files, which the tests' own writer of them makes."""

import numpy as np
import pytest

from fedpriv.datasets.leaf import ALPHABET, SEQUENCE
from fedpriv.datasets.tff_files import END, FILLING, NUM_CODES, START, read_tff_users
from tests.harness.refusals import refuses

RNG = np.random.default_rng(1)


def test_emnist_by_writer(tmp_path, tff_writer):
    pixels = RNG.random((3, 28, 28), np.float32)
    made = [
        tff_writer.example(pixels=pixels[n], label=np.array([label], np.int64))
        for n, label in enumerate([3, 61, 0])
    ]
    path = tff_writer.write(
        tmp_path / "e.sqlite.lzma", {"f1_2": made[:2], "f0_1": made[2:]}, split="all_train"
    )
    users = read_tff_users(path, split_name="all_train")
    assert list(users) == ["f0_1", "f1_2"]
    x, y = users["f1_2"]
    assert (x == pixels[:2]).all() and (x.dtype, y.dtype) == (np.float32, np.int64)
    assert y.tolist() == [3, 61]


@pytest.mark.parametrize("stored", [lambda image: image, lambda image: image.tobytes()])
def test_cifar100_by_user(tmp_path, tff_writer, stored):
    image = RNG.integers(0, 256, (32, 32, 3), np.uint8)
    labels = {"label": np.array([99]), "coarse_label": np.array([13])}
    made = tff_writer.example(image=stored(image), **labels)
    x, y = read_tff_users(tff_writer.write(tmp_path / "c.sqlite", {"0": [made]}))["0"]
    assert x.shape == (1, 3, 32, 32) and x.dtype == np.uint8 and y.tolist() == [99]
    assert x[0, 2, 4, 30] == image[4, 30, 2]


@pytest.mark.parametrize("length", [0, 1, 78, 79, 80, 159, 160])
def test_every_character_of_a_play_is_a_target_once(tmp_path, tff_writer, length):
    text = "".join(ALPHABET[place] for place in RNG.integers(0, 80, length))
    made = [tff_writer.example(snippets=text), tff_writer.example(snippets="% or")]
    x, y = read_tff_users(tff_writer.write(tmp_path / "s.sqlite", {"HAMLET": made}))["HAMLET"]
    assert x.shape == y.shape and x.shape[1] == SEQUENCE and x.max() < NUM_CODES
    counted = y[y >= 0]
    expected = [*map(ALPHABET.index, text), END, 80, *map(ALPHABET.index, " or"), END]
    assert counted.tolist() == expected
    assert (x == START).sum() == 2 and (y == FILLING).sum() == 0
    assert x[0, 0] == START and (x[0, 1:] == y[0, :-1])[y[0, :-1] >= 0].all()


def test_stack_overflow_and_damage_are_one_line(tmp_path, tff_writer):
    post = tff_writer.stackoverflow_example("a b", "a title", "x|y")
    path = tff_writer.write(tmp_path / "so.sqlite", {"1": [post]})
    with refuses(ValueError, path, "fedpriv data import"):
        read_tff_users(path)
    path.write_bytes(path.read_bytes()[:-4096])
    with refuses(ValueError, path) as error:
        read_tff_users(path)
    assert "\n" not in str(error.value)
