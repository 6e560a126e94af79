"""Seconds for a thousand sentences of a pretrained encoder, and of sentence-transformers' `encode`.

    OMP_NUM_THREADS=1 python benchmarks/encoding.py ENCODER --corpus onstartups --peer PYTHON

Both encode the same sentences of a corpus, evenly spread, by the same files on as many processes of
one thread. Starting processes and loading weights is not counted. Blocks of the two alternate.
`--peer` is a Python that has sentence-transformers and the PyTorch of this one; without it fedpriv
is timed alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from fedpriv.datasets.encoders import find_encoder
from fedpriv.datasets.importers.locate import resolve_corpus

WORKER = Path(__file__).parent / "jobs" / "encoding_worker.py"


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("encoder", help="an id of `fedpriv encoder list`, or a folder")
    arguments.add_argument("--corpus", help="whose sentences")
    arguments.add_argument("--sentences", type=int, default=4096)
    arguments.add_argument("--processes", type=int, default=2)
    arguments.add_argument("--blocks", type=int, default=3)
    arguments.add_argument("--peer", help="a Python with sentence-transformers")
    given = arguments.parse_args()
    folder = find_encoder(given.encoder).folder
    kept = resolve_corpus(given.corpus, allow_synthetic=True).texts("sentence")
    assert kept is not None, "the corpus keeps no sentences"
    places = np.linspace(0, len(kept) - 1, given.sentences).astype(np.int64)
    texts = [kept[place] for place in places.tolist()]
    pythons = {"fedpriv": sys.executable}
    if given.peer:
        pythons["sentence-transformers"] = given.peer
    seconds: dict[str, list[float]] = {tool: [] for tool in pythons}
    rows: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "texts.json").write_text(json.dumps(texts), "utf-8")
        for _ in range(given.blocks):
            for tool, python in pythons.items():
                command = [python, str(WORKER), tool, str(folder), made, str(given.processes)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                seconds[tool].append(1000 * float(done.stdout.split()[-1]) / len(texts))
                rows[tool] = np.load(Path(made) / "rows.npy")
    for tool, found in seconds.items():
        print(
            f"{tool}: {median(found):.3f} s for 1,000 sentences ({min(found):.3f} to "
            f"{max(found):.3f}), {given.processes} processes, {given.blocks} blocks"
        )
    if given.peer:
        ratio = median(seconds["fedpriv"]) / median(seconds["sentence-transformers"])
        apart = np.abs(rows["fedpriv"] - rows["sentence-transformers"]).max()
        print(f"fedpriv takes {ratio:.2f} times as long; numbers differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
