"""Writes 400 rostered users' sentences as plain arrays of tokens, for every tool alike.

    python benchmarks/export_words.py benchmarks/.data/words --corpus onstartups

At most 64 training sentences a user, as pfl's own StackOverflow benchmark has it, in a fixed random
order; 20 words a sentence. The network has 10,004 tokens whatever the corpus's vocabulary is. Runs
in fedpriv's own environment; `compare.py` calls it when the folder is missing.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
from harness.main_job import roster_of_400

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.word_view import open_word_view
from fedpriv.rng import Key
from fedpriv.tasks.next_words import Encoding

MAX_SENTENCES = 64


def export(folder: Path, *, corpus_name: str | None, most: int = MAX_SENTENCES) -> None:
    """Write the users to a folder that does not exist yet, whole or not at all."""
    corpus = resolve_corpus(corpus_name, allow_synthetic=True)
    view = open_word_view(corpus, roster_of_400(corpus))
    encode = Encoding(num_words=10_000)
    key = Key.simulation(0).fold("export")
    starts, xs, ys = [0], [], []
    for user in view.roster:
        every = view.examples(user, "train")
        order = key.fold(user).generator().permutation(len(every))[:most]
        x, y = encode(every.take(order))
        starts.append(starts[-1] + len(x))
        xs.append(x.astype(np.int32))
        ys.append(y.astype(np.int32))
    about = {
        "corpus": corpus.name,
        "synthetic": corpus.synthetic,
        "roster": view.roster_name,
        "num_users": len(view.roster),
        "max_examples": most,
        "num_examples": starts[-1],
        "words_a_sentence": float(np.mean(np.concatenate(ys) != -100) * encode.length),
    }
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, array in (("user_starts", np.array(starts)), ("x", np.concatenate(xs)),
                        ("y", np.concatenate(ys))):  # fmt: skip
        np.save(part / f"{name}.npy", array)
    (part / "about.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    part.rename(folder)
    print(f"{starts[-1]} sentences of {len(view.roster)} users of {corpus.name} in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Export next-word prediction as plain arrays.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corpus", default=None)
    parser.add_argument("--sentences", type=int, default=MAX_SENTENCES, help="a user at most")
    arguments = parser.parse_args()
    export(arguments.folder, corpus_name=arguments.corpus, most=arguments.sentences)


if __name__ == "__main__":
    main()
