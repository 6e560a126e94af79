"""Digests that are written down stay what they are."""

from fedpriv.datasets.stackexchange.rosters import roster_sha256, training_set_sha256
from fedpriv.hashes import document_sha256, file_sha256

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_file_is_its_bytes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    (tmp_path / "empty").write_bytes(b"")
    seen = []
    assert file_sha256(tmp_path / "abc", lambda *told: seen.append(told)) == ABC
    assert seen == [(3, 3)]
    assert file_sha256(tmp_path / "empty") == EMPTY


def test_a_long_file_is_read_in_pieces(tmp_path):
    path, seen = tmp_path / "long", []
    path.write_bytes(bytes(2_500_000))
    whole = file_sha256(path)
    assert file_sha256(path, lambda done, total: seen.append((done, total))) == whole
    assert [total for _, total in seen] == [2_500_000] * 3 and seen[-1][0] == 2_500_000


def test_a_document_is_its_sorted_json():
    # printf '{"a": 1, "b": [2, null]}' | sha256sum
    expected = "c8caf5ad035ad1d6a15b14c79b2f86a75c47cb4eb04c32a063e979eb1849b3bb"
    assert document_sha256({"b": [2, None], "a": 1}) == expected


def test_rosters_and_training_sets_are_told_apart():
    # printf '["0", "1"]' | sha256sum, and printf '0\n1' | sha256sum
    assert (
        roster_sha256(("0", "1"))
        == "b35800e69f8197d44d9dc70a8e0cd7696ad17046e3dd50e20177d37d6b79aa63"
    )
    assert (
        training_set_sha256(("0", "1"))
        == "1e9987e996a1c529f61f4339797481b7b1138b15f18a44e06dde45eabbc67921"
    )
