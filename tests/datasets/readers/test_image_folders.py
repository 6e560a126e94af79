"""Images in folders: PNG files written here byte by byte, and what is no image."""

import struct
import zlib

import numpy as np
import pytest

from fedpriv.datasets.image_folders import read_image_folders
from tests.harness.refusals import refuses

pytest.importorskip("PIL", reason="the extra `data` is not installed")


def png(pixels, width=None):
    """A PNG file as its specification has it, of grey or RGB pixels (height, width[, 3])."""

    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    height, colour = len(pixels), 2 if pixels.ndim == 3 else 0
    header = struct.pack(">IIBBBBB", width or pixels.shape[1], height, 8, colour, 0, 0, 0)
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


RED = np.random.default_rng(0).integers(0, 256, (3, 5, 3), np.uint8)


def lay(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(content) if isinstance(content, np.ndarray) else content)
    return root


def test_a_folder_a_label(tmp_path):
    files = {"dog/b.png": RED, "cat/a.PNG": RED[::-1], "cat/.hidden.png": b"", "cat/note.txt": b""}
    found = read_image_folders(lay(tmp_path, files), size=(3, 5))
    assert found.labels == ("cat", "dog") and found.y.tolist() == [0, 1]
    assert found.x.shape == (2, 3, 3, 5) and found.x.dtype == np.uint8
    assert (found.x[1].transpose(1, 2, 0) == RED).all()
    with refuses(ValueError, "'user'"):
        found.by_user()


@pytest.mark.parametrize("levels", [("user", "label"), ("label", "user")])
def test_users_and_labels(tmp_path, levels):
    triples = (("ann", "cat", 1), ("bob", "dog", 2), ("ann", "dog", 3))
    files = {}
    for user, label, grey in triples:
        folders = {"user": user, "label": label}
        path = "/".join(folders[level] for level in levels)
        files[f"{path}/x.png"] = np.full((4, 4), grey, np.uint8)
    found = read_image_folders(lay(tmp_path, files), size=(2, 2), levels=levels, grey=True)
    users = found.by_user()
    x, y = users["ann"]
    assert sorted(users) == ["ann", "bob"] and x.shape == (2, 1, 2, 2)
    named = zip(x[:, 0, 0, 0].tolist(), (found.labels[label] for label in y), strict=True)
    assert set(named) == {(1, "cat"), (3, "dog")}


def test_a_folder_a_user(tmp_path):
    found = read_image_folders(lay(tmp_path, {"ann/1.png": RED}), size=(3, 5), levels=("user",))
    assert found.labels == () and list(found.by_user()) == ["ann"] and found.y.tolist() == [0]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"", []),
        (png(RED)[:-30], []),
        (b"\x80\x04\x95 a pickle", []),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", []),
        (png(RED, width=1 << 24)[:60], []),
        (png(np.zeros((1, 1), np.uint8), width=70_000_000), ["70,000,000", 1]),
    ],
)
def test_what_is_no_image_is_one_line_with_its_name(tmp_path, content, names):
    lay(tmp_path, {"cat/a.png": RED, "cat/b.png": content})
    with refuses(ValueError, tmp_path / "cat" / "b.png", *names) as error:
        read_image_folders(tmp_path, size=(3, 5))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("levels", [(), ("label", "label"), ("class",), ("user", "label")])
def test_other_layouts_are_refused(tmp_path, levels):
    root = lay(tmp_path, {"cat/a.png": RED})
    with refuses(ValueError, root if levels == ("user", "label") else levels):
        read_image_folders(root, size=(3, 5), levels=levels)
    with refuses(ValueError, root / "gone") as gone:
        read_image_folders(root / "gone", size=(3, 5))
    assert ".png" not in str(gone.value)  # as where a folder has no image
