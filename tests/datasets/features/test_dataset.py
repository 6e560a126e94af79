"""The data set of single examples, its public part, and arrays kept in the cache."""

import hashlib
import os

import numpy as np
import pytest
from scipy import sparse

from fedpriv.datasets.cache import cached_arrays
from fedpriv.datasets.dataset import Dataset, hold_out_public, limit_public, split_public
from fedpriv.datasets.digests import fingerprint, read_secret, write_secret
from tests.harness.refusals import refuses


def dataset(n=200, **given):
    x = np.arange(2 * n).reshape(n, 2)
    parts = {"x_train": x, "y_train": np.arange(n), "x_test": x[:5], "y_test": np.arange(5)}
    return Dataset(name="numbers", provenance={"source": "made"}, **{**parts, **given})


@pytest.mark.parametrize("n", [2, 50, 99, 25_000])
def test_a_split_is_whole_and_disjoint(n):
    private, public = split_public(n)
    assert len(public) == max(1, round(n / 100))
    assert (np.sort(np.concatenate([private, public])) == np.arange(n)).all()
    assert (np.diff(private) > 0).all() and (np.diff(public) > 0).all()


def test_a_split_is_fixed_for_ever():
    """Other positions would be another experiment: 250 of 25,000 by hash of the seed alone."""
    _, public = split_public(25_000)
    assert public[:8].tolist() == [19, 380, 406, 417, 537, 674, 744, 772]
    assert not np.array_equal(public, split_public(25_000, seed=1)[1])
    assert set(public) < set(split_public(25_000, 0.05)[1])


@pytest.mark.parametrize("n, share", [(10, 1.0), (10, float("nan")), (1, 0.5)])
def test_impossible_shares_are_refused(n, share):
    with refuses(ValueError, share):
        split_public(n, share)


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_matrix])
def test_public_examples_are_removed_from_the_training_set(convert):
    data = dataset()
    data = dataset(x_train=convert(data.x_train))
    held = hold_out_public(data, 0.1)
    assert (held.num_train, held.num_public) == (180, 20)
    rows = [
        np.asarray(x.todense() if sparse.issparse(x) else x) for x in (held.x_train, held.x_public)
    ]
    assert (rows[0][:, 0] == 2 * held.y_train).all() and (rows[1][:, 0] == 2 * held.y_public).all()
    assert sorted([*held.y_train, *held.y_public]) == list(range(200))
    assert held.provenance["source"] == "made" and held.provenance["public"]["size"] == 20
    with refuses(ValueError, "numbers", 20):
        hold_out_public(held)


def test_inputs_and_labels_must_fit():
    with refuses(ValueError, "numbers", 200, "(3,)"):
        dataset(y_train=np.arange(3))
    with refuses(ValueError, "numbers"):
        dataset(x_public=np.zeros((1, 2)))


def test_arrays_are_made_once_and_again_when_facts_change_and_damage_is_named(cache):
    calls = []
    cache /= "arrays"

    def make():
        calls.append(1)
        return {"a": np.arange(5, dtype=np.int32), "b": np.empty(0, np.float32)}

    cached_arrays("x", {"option": 1}, make)
    again = cached_arrays("x", {"option": 1}, make)
    assert len(calls) == 1 and again["a"].tolist() == [0, 1, 2, 3, 4]
    assert again["a"].dtype == np.int32 and again["b"].dtype == np.float32
    cached_arrays("x", {"option": 2}, make)
    assert len(calls) == 2
    for damage in (lambda file: os.truncate(file, 60), lambda file: file.unlink()):
        for file in cache.glob("x-*/*"):
            damage(file)
        with refuses(ValueError, cache):
            cached_arrays("x", {"option": 1}, make)
    assert len(calls) == 2


def test_nothing_half_made_is_left_or_taken(cache):
    def fail():
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        cached_arrays("x", {}, fail)
    cache /= "arrays"
    assert list(cache.glob("*")) == []
    cached_arrays("x", {}, lambda: {"a": np.arange(3)})
    (done,) = cache.glob("x-*")
    killed = cache / f".{done.name}.999"
    done.rename(killed)
    cached_arrays("x", {}, lambda: {"a": np.arange(3)})
    assert not killed.exists() and done.is_dir()


class TestFingerprint:
    X = np.arange(12, dtype=np.float32).reshape(4, 3) % 5

    def test_golden(self):
        """SHA-256 of b"<f4 (2,)\\n" and the eight bytes of two zeros."""
        expected = hashlib.sha256(b"<f4 (2,)\n" + bytes(8)).hexdigest()
        assert fingerprint(np.zeros(2, "<f4")) == expected

    def test_values_shape_dtype_and_order_count(self):
        x = self.X
        others = [x.reshape(3, 4), x[::-1], x.T, x[:3], sparse.csr_matrix(x)]
        others += [x.astype(np.float64), x.view(np.int32), x.astype(">f4")]
        found = [fingerprint(x), *map(fingerprint, others)]
        found += [fingerprint(x, x), fingerprint(x, x[:0]), fingerprint()]
        assert len(set(found)) == len(found)

    def test_memory_layout_does_not(self, tmp_path):
        np.save(tmp_path / "x.npy", self.X)
        mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
        wide = np.zeros((4, 6), np.float32)
        wide[:, ::2] = self.X
        for same in (np.asfortranarray(self.X), mapped, wide[:, ::2]):
            assert fingerprint(same) == fingerprint(self.X)

    def test_sparse_values_places_and_width_count_and_scipys_index_type_does_not(self):
        x = sparse.csr_matrix(self.X)
        same = x.copy()
        same.indices, same.indptr = same.indices.astype(np.int64), same.indptr.astype(np.int64)
        assert fingerprint(same) == fingerprint(x) == fingerprint(x.tocsc()) == fingerprint(x[:])
        wider = sparse.csr_matrix((x.data, x.indices, x.indptr), shape=(4, 7))
        moved = sparse.csr_matrix((x.data, x.indices[::-1].copy(), x.indptr), shape=x.shape)
        found = {fingerprint(m) for m in (x, wider, moved, x * 2, x.astype(np.float64), x[::-1])}
        assert len(found) == 6

    def test_empty_arrays_and_texts_have_one_and_objects_none(self):
        assert fingerprint(np.zeros((0, 3))) != fingerprint(np.zeros((3, 0)))
        assert fingerprint(np.array(["a", "b"])) != fingerprint(np.array(["a", "c"]))
        with refuses(ValueError, "object"):
            fingerprint(np.array([{}, 1]))

    def test_secrets_are_their_owners_and_damage_is_said(self, tmp_path):
        file = tmp_path / "data.key"
        for secret in (b"\x00" * 32, b"\xff" * 32):
            write_secret(file, secret)
            assert read_secret(file) == secret and file.stat().st_mode & 0o777 == 0o600
        for damage in (lambda: file.write_text("not hex"), file.unlink):
            damage()
            with refuses(ValueError, file):
                read_secret(file)


def test_the_digests_of_a_data_set_are_of_its_private_and_its_public_part():
    data = dataset()
    assert data.sha256().keys() == {"private"}
    held = hold_out_public(data, 0.1)
    assert held.sha256() == {
        "private": fingerprint(held.x_train, held.y_train),
        "public": fingerprint(held.x_public, held.y_public),
    }
    assert limit_public(held, 3).sha256()["private"] == held.sha256()["private"]
    assert dataset(x_test=data.x_test + 1).sha256() == data.sha256()
