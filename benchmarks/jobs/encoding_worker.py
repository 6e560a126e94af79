"""The worker of `encoding.py`: encodes the texts of a folder by one tool, and prints the seconds.

Runs in fedpriv's environment, or in that of sentence-transformers.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np


def by_fedpriv(folder: Path, texts: list[str], processes: int) -> tuple[float, np.ndarray]:
    """Return the seconds that the texts take, and their rows.

    Processes start with every call: what all texts take longer than a quarter of them has no start
    in it.
    """
    from fedpriv.datasets.encoders import Encoder, check_files, encode_texts

    encoder, taken = Encoder(check_files(folder, "benchmark")), []
    rows = np.empty((len(texts), encoder.width), np.float32)
    for some in (texts[::4], texts):
        begun = time.perf_counter()
        encode_texts(encoder, some, rows[: len(some)], processes=processes)
        taken.append(time.perf_counter() - begun)
    return (taken[1] - taken[0]) * len(texts) / (len(texts) - len(texts[::4])), rows


def by_sentence_transformers(
    folder: Path, texts: list[str], processes: int
) -> tuple[float, np.ndarray]:
    """Return the seconds that the texts take, and their rows."""
    from sentence_transformers import SentenceTransformer  # pyright: ignore

    model = SentenceTransformer(str(folder), device="cpu")
    pool = model.start_multi_process_pool(["cpu"] * processes)
    try:
        model.encode(texts[: 2 * processes], pool=pool, chunk_size=1)  # processes are there
        begun = time.perf_counter()
        rows = model.encode(texts, pool=pool)
        return time.perf_counter() - begun, np.asarray(rows)
    finally:
        model.stop_multi_process_pool(pool)


if __name__ == "__main__":
    tool, folder, made, processes = sys.argv[1:]
    texts = json.loads((Path(made) / "texts.json").read_text("utf-8"))
    work = by_fedpriv if tool == "fedpriv" else by_sentence_transformers
    seconds, rows = work(Path(folder), texts, int(processes))
    np.save(Path(made) / "rows.npy", rows)
    print(seconds)
