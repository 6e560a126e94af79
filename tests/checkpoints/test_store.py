"""The checkpoint store: whole files, the pruning rule, and refusals."""

import errno
import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedpriv.checkpoints import tensor_files
from fedpriv.checkpoints.store import CheckpointStore, keep_last_from, load_state, save_state
from tests.harness.disks import failing, noted
from tests.harness.refusals import refuses

PARAMS = {
    "kernel": np.arange(12, dtype=np.float32).reshape(4, 3),
    "bias": np.array([1.5, -2.0, 0.0], np.float32),
}


def _same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return set(left) == set(right) and all(
        np.array_equal(left[n], right[n])
        and left[n].dtype == right[n].dtype
        and left[n].shape == right[n].shape
        for n in left
    )


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    path = store.save(7, PARAMS, {"head": "abc", "round_num": "7"})
    tensors, metadata = store.load(7, PARAMS)
    assert _same(tensors, PARAMS)
    assert metadata == {"head": "abc", "round_num": "7"}
    assert path.name == "round-000007.safetensors"
    assert _same(load_file(path), PARAMS)
    state = PARAMS | {"count": np.array(3, np.int64)}
    save_state(tmp_path / "state.safetensors", state, metadata)
    found, kept = load_state(tmp_path / "state.safetensors", state)
    assert _same(found, state) and kept == metadata  # without the checksum that is written


@pytest.mark.parametrize("dtype", sorted(tensor_files.CODES))
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 1)])
def test_every_dtype_and_shape_reads_back_with_the_library(tmp_path, dtype, shape) -> None:
    tensor = np.ones(shape, dtype)
    tensors = {"b": tensor, "a": np.float32([1, 2, 3]), "c": np.arange(12.0).reshape(4, 3).T[::2]}
    tensor_files.write_tensors(tmp_path / "x.safetensors", tensors)
    assert _same(load_file(tmp_path / "x.safetensors"), tensors)


def test_bytes_depend_on_content_alone(tmp_path: Path) -> None:
    metadata = {str(i): str(i) for i in range(20)}
    left, right = CheckpointStore(tmp_path / "a"), CheckpointStore(tmp_path / "b")
    left.save(1, PARAMS, metadata)
    right.save(1, dict(reversed(PARAMS.items())), dict(reversed(metadata.items())))
    assert left.digest(1) == right.digest(1)
    assert left.digest(1) == hashlib.sha256(left.path(1).read_bytes()).hexdigest()
    right.save(1, PARAMS, metadata | {"0": "other"})
    assert left.digest(1) != right.digest(1)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"keep_last": 3, "keep_every": 5}, (0, 5, 10, 11, 12)),
        ({"keep_last": None}, tuple(range(13))),
    ],
    ids=["some", "all"],
)
def test_the_last_ones_and_every_so_many_are_kept(tmp_path, options, kept) -> None:
    store = CheckpointStore(tmp_path, **options)
    for round_num in range(13):
        store.save(round_num, {"w": np.zeros(1, np.float32)})
        store.prune()
    assert store.rounds() == kept


def test_leftovers_of_a_kill_are_not_checkpoints_and_go(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, PARAMS)
    (tmp_path / ".round-000002.safetensors.part").write_bytes(b"half")
    (tmp_path / "round-000003.safetensors.bak").write_bytes(b"other")
    assert store.rounds() == (1,)
    store.save(2, PARAMS)
    store.prune()
    assert store.rounds() == (1, 2)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("fail_at", ["_pieces", "fsync", "replace"])
def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch, fail_at) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, PARAMS)
    before = store.digest(1)

    with monkeypatch.context() as patch:
        module = tensor_files if fail_at == "_pieces" else os
        patch.setattr(module, fail_at, failing(errno.ENOSPC))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            store.save(1, {"w": np.zeros(3, np.float32)})
    assert store.digest(1) == before


def test_a_checkpoint_is_forced_to_disk_before_it_has_its_name(tmp_path, monkeypatch) -> None:
    calls = noted(monkeypatch, "fsync", "replace")
    state, durable = tmp_path / "state.safetensors", ["fsync", "replace", "fsync"]
    CheckpointStore(tmp_path).save(1, PARAMS)
    save_state(state, PARAMS)
    assert calls == durable * 2


FLOAT8 = b'{"w":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'  # NumPy has none


@pytest.mark.parametrize("damage", ["truncated", "empty", "pickle", "huge header", "float8"])
def test_what_is_not_safetensors_is_refused(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save(1, PARAMS)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "truncated": whole[:-1],
            "empty": b"",
            "pickle": pickle.dumps(PARAMS),
            "huge header": b"\xff" * 8 + whole[8:],
            "float8": len(FLOAT8).to_bytes(8, "little") + FLOAT8 + b"\0",
        }[damage]
    )
    with refuses(ValueError, "round-000001.safetensors"):
        store.load(1)


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ({"kernel": PARAMS["kernel"]}, ["'bias'"]),
        (PARAMS | {"extra": PARAMS["bias"]}, ["'extra'"]),
        (PARAMS | {"bias": np.zeros(4, np.float32)}, ["'bias'", "float32[3]", "float32[4]"]),
        (PARAMS | {"bias": np.zeros((3, 1), np.float32)}, ["'bias'", "float32[3, 1]"]),
        (PARAMS | {"bias": np.zeros(3)}, ["'bias'", "float64[3]"]),
    ],
)
def test_another_models_checkpoint_is_refused(tmp_path, template, names) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, PARAMS)
    with refuses(ValueError, *names):
        store.load(1, template)
    save_state(tmp_path / "state.safetensors", PARAMS)
    with refuses(ValueError, *names):
        load_state(tmp_path / "state.safetensors", template)


@pytest.mark.parametrize("dtype", [object, "U4", np.complex64, ">f4", np.float32], ids=str)
def test_what_cannot_be_stored_is_refused_before_writing(tmp_path: Path, dtype) -> None:
    name = "__metadata__" if dtype is np.float32 else "w"
    with refuses(ValueError, repr(name)):
        CheckpointStore(tmp_path).save(1, {name: np.zeros(2, dtype)})
    assert not list(tmp_path.iterdir())


def test_keep_option() -> None:
    assert keep_last_from("all") is None and keep_last_from(" 12 ") == 12
    for bad in ("0", "-1", "some", "", "1.5", "²"):
        with refuses(ValueError, repr(bad), "'all'"):
            keep_last_from(bad)


def test_a_damaged_state_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_state(path, PARAMS)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with refuses(ValueError, path):
        load_state(path)
    save_file(PARAMS, path)
    with refuses(ValueError, path):
        load_state(path)
