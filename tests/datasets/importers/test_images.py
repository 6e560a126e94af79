"""MNIST's idx files and CIFAR-10's binary records: small made ones, hostile ones, the real ones."""

import gzip
import lzma
import struct
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.datasets import images
from fedpriv.datasets.images import load_cifar10, load_mnist, read_cifar_records
from tests.datasets.files.test_raw_files import make_tar
from tests.harness.refusals import refuses


def idx(values):
    return (
        bytes([0, 0, 8, values.ndim])
        + struct.pack(f">{values.ndim}I", *values.shape)
        + bytes(values.tobytes())
    )


IMAGES = np.random.default_rng(0).integers(0, 256, (7, 28, 28), np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2], np.uint8)


def write_mnist(folder, *, pack=True, **replaced):
    files = {
        "train-images-idx3-ubyte": idx(IMAGES),
        "train-labels-idx1-ubyte": idx(LABELS),
        "t10k-images-idx3-ubyte": idx(IMAGES[:2]),
        "t10k-labels-idx1-ubyte": idx(LABELS[:2]),
    }
    for name, content in files.items():
        content = replaced.get(name.partition("-idx")[0].replace("-", "_"), content)
        path = folder / (f"{name}.gz" if pack else name)
        path.write_bytes(gzip.compress(content) if pack else content)
    return folder


@pytest.mark.parametrize("pack", [True, False])
def test_mnist_is_read_as_written(tmp_path, pack):
    data = load_mnist(write_mnist(tmp_path, pack=pack))
    assert data.name == "mnist" and not data.synthetic
    assert data.x_train.dtype == np.uint8 and data.y_train.dtype == np.int64
    assert (data.x_train == IMAGES).all() and data.y_train.tolist() == LABELS.tolist()
    assert (data.x_test == IMAGES[:2]).all() and data.y_test.tolist() == [3, 1]
    assert len(data.provenance["source"]) == 4


@pytest.mark.parametrize(
    "file, content, name",
    [
        ("train_images", idx(LABELS), "00000801"),
        ("train_labels", b"", "00000801"),
        ("train_images", idx(IMAGES)[:9], "train-images-idx3-ubyte.gz"),
        ("train_images", idx(IMAGES)[:-1], "5,488"),
        ("t10k_images", idx(IMAGES), 7),
        ("train_images", idx(IMAGES[:, :27]), "(27, 28)"),
        ("train_labels", idx(LABELS + 1), 10),
        ("train_labels", b"\0\0\x08\1" + b"\xff" * 4 + LABELS.tobytes(), "4,294,967,295"),
    ],
)
def test_hostile_idx_files_are_refused(tmp_path, file, content, name):
    with refuses(ValueError, tmp_path, name):
        load_mnist(write_mnist(tmp_path, **{file: content}))


def test_mnist_itself(shared_data):
    data = load_mnist(shared_data / "mnist")
    assert data.x_train.shape == (60_000, 28, 28) and data.x_test.shape == (10_000, 28, 28)
    assert data.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.y_train).tolist() == counts
    assert data.y_test[:5].tolist() == [7, 2, 1, 0, 4]
    assert data.x_train.mean() / 255 == pytest.approx(0.1307, abs=5e-5)


def records(labels, seed=0, fine=False):
    """Records as the binary version has them, and their pixels; of CIFAR-100 with fine labels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), np.uint8)
    columns = [np.array(labels, np.uint8), pixels]
    if fine:
        columns.insert(0, np.array(labels, np.uint8) // 5)
    return np.column_stack(columns).tobytes(), pixels


@pytest.mark.parametrize(
    "kind, content, names",
    [
        (images.CIFAR10, b"", (0, "3,073")),
        (images.CIFAR10, records([1, 2])[0][:-1], ("6,145", "3,073")),
        (images.CIFAR10, records([1, 10, 2])[0], (1, "[10]")),
        (images.CIFAR100, bytes([0, 100]) + bytes(3072), (0, "[0, 100]")),
        (images.CIFAR100, bytes([20, 3]) + bytes(3072), (0, "[20, 3]")),
        (images.CIFAR100, bytes(3073), ("3,073", "3,074")),
    ],
)
def test_hostile_records_are_refused(kind, content, names):
    with refuses(ValueError, *names):
        read_cifar_records(content, "x", kind)


def lay(folder, files, archive=None):
    """Write files, into an archive where it is named; their order in it must not matter."""
    folder.mkdir()
    if archive is None:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder
    names = sorted(files, reverse=True)
    make_tar(folder / archive, {f"in-a-folder/{name}": files[name] for name in names})
    return folder


BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
TEN = {name: records([at, 9], at)[0] for at, name in enumerate(BATCHES)}
HUNDRED = {
    "train.bin": records([0, 99, 7], fine=True)[0],
    "test.bin": records([5, 50], 1, fine=True)[0],
}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """As if CIFAR-10 had two images a file, and CIFAR-100 three and two."""
    monkeypatch.setattr(images, "CIFAR10", replace(images.CIFAR10, images=(2,) * 6))
    monkeypatch.setattr(images, "CIFAR100", replace(images.CIFAR100, images=(3, 2)))


@pytest.mark.parametrize("pack", [True, False])
def test_canonical_sets(tmp_path, pack):
    ten = load_cifar10(lay(tmp_path / "ten", TEN, "cifar-10-binary.tar.gz" if pack else None))
    assert ten.name == "cifar10" and "note" not in ten.provenance
    assert ten.x_train.shape == (10, 3, 32, 32) and ten.x_test.shape == (2, 3, 32, 32)
    assert ten.y_train.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert ten.y_test.tolist() == [5, 9]
    archive = "cifar-100-binary.tar.gz" if pack else None
    hundred = images.load_cifar100(lay(tmp_path / "hundred", HUNDRED, archive))
    assert hundred.name == "cifar100"
    assert hundred.y_train.tolist() == [0, 99, 7] and hundred.y_test.tolist() == [5, 50]
    expected = records([0, 99, 7], fine=True)[1].reshape(3, 3, 32, 32)
    np.testing.assert_array_equal(hundred.x_train, expected)


def test_a_canonical_set_with_missing_images_is_refused(tmp_path):
    files = {name: content for name, content in TEN.items() if "3" not in name}
    folder = lay(tmp_path / "files", files, "cifar-10-binary.tar.gz")
    with refuses(ValueError, "data_batch_3.bin"):
        load_cifar10(folder)
    archive = folder / "cifar-10-binary.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-30])
    with refuses(ValueError, archive):
        load_cifar10(folder)


def test_a_canonical_file_with_too_few_images_is_refused(tmp_path):
    folder = lay(tmp_path / "files", TEN | {"data_batch_1.bin": records([1])[0]})
    with refuses(ValueError, "data_batch_1.bin", 1, 2):
        load_cifar10(folder)


def test_the_reduced_set_never_passes_for_cifar10(tmp_path, caplog):
    for name, labels in (("train10k", [1, 2, 3]), ("test2k", [4])):
        packed = lzma.compress(records(labels)[0])
        (tmp_path / f"cifar10_jpeg_{name}.bin.xz").write_bytes(packed)
    data = load_cifar10(tmp_path)
    [warned] = caplog.messages
    assert "lossy" in warned and "fedpriv data fetch cifar10" in warned
    assert data.name == "cifar10-jpeg-10k" and "lossy" in data.provenance["note"]
    assert data.y_train.tolist() == [1, 2, 3] and data.y_test.tolist() == [4]
    load_cifar10(tmp_path)  # as each trial of a study does
    assert len(caplog.messages) == 1


@pytest.mark.slow
def test_the_reduced_set_itself(shared_data):
    data = load_cifar10(shared_data / "cifar10")
    assert data.name == "cifar10-jpeg-10k"
    assert data.x_train.shape == (10_000, 3, 32, 32) and data.x_test.shape == (2_000, 3, 32, 32)
    assert data.y_train[0] == 5
    train = [1004, 989, 984, 1034, 957, 1055, 1003, 1025, 976, 973]
    assert np.bincount(data.y_train).tolist() == train
    assert np.bincount(data.y_test).tolist() == [189, 190, 209, 204, 200, 215, 219, 186, 191, 197]


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_1"])
def test_pickled_cifar_is_refused_unread(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x80\x04")
    given = path if "python" in name else path.parent
    with refuses(ValueError, "cifar10", "cifar-10-binary.tar.gz"):
        load_cifar10(given)
