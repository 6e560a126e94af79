"""pfl's own CIFAR-10 benchmark in these benchmarks' words: the users and the network.

1,000 users of 50 images drawn alike, two convolutions and two dense layers (1,626,442
parameters), Glorot weights. The data file has the canonical binary layout: one label byte and
3,072 pixel bytes a record, channel by channel. Fewer than 50,000 records are repeated in order
until there are as many; the order is then shuffled with a fixed seed.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
from torch import nn

NUM_USERS, IMAGES_A_USER = 1000, 50
RECORD = 1 + 3 * 32 * 32


def export(file: Path | None, folder: Path, num_users: int = NUM_USERS) -> str:
    """Write `images.npy` float32 (n, 3, 32, 32) and `labels.npy`; return what they are.

    Args:
        file: Records in the canonical layout, `.xz` or plain; None for random pixels.
        folder: Made if missing.
        num_users: Of 50 images each.
    """
    total = num_users * IMAGES_A_USER
    if file is None:
        rng = np.random.default_rng(0)
        raw = rng.integers(0, 256, (total // 5, RECORD), np.uint8)
        raw[:, 0] %= 10
        source = "SYNTHETIC random pixels"
    else:
        content = file.read_bytes()
        if file.suffix == ".xz":
            content = lzma.decompress(content)
        if not content or len(content) % RECORD:
            raise ValueError(f"{file} is not a whole number of {RECORD}-byte CIFAR-10 records")
        raw = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
        source = f"{len(raw):,} CIFAR-10 images of {file.name}, repeated to {total:,}"
    order = np.random.default_rng(0).permutation(total)
    pixels = raw[np.arange(total) % len(raw)][order]
    images = pixels[:, 1:].reshape(total, 3, 32, 32).astype(np.float32)
    images -= images.mean(axis=(0, 2, 3), keepdims=True, dtype=np.float64).astype(np.float32)
    images /= images.std(axis=(0, 2, 3), keepdims=True, dtype=np.float64).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", pixels[:, 0].astype(np.int64))
    (folder / "about.txt").write_text(source + "\n", "utf-8")
    return source


def load_users(folder: str | Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return (images float32 (50, 3, 32, 32), labels int64 (50,)) by user id, memory-mapped."""
    images = np.load(Path(folder) / "images.npy", mmap_mode="c")
    labels = np.load(Path(folder) / "labels.npy", mmap_mode="c")
    users = {}
    for user in range(len(labels) // IMAGES_A_USER):
        own = slice(user * IMAGES_A_USER, (user + 1) * IMAGES_A_USER)
        users[f"{user:04d}"] = (images[own], labels[own])
    return users


def make_cnn() -> nn.Sequential:
    """Return the network, newly initialised from torch's generator."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(14 * 14 * 64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
    return model
