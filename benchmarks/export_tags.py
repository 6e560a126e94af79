"""Writes the rostered users of a corpus as plain arrays, for tools that are not fedpriv.

    python benchmarks/export_tags.py benchmarks/.data/tags --corpus onstartups

At most 256 training examples a user, a fixed random subset in a fixed random order; inputs of
unit l2 norm. Runs in fedpriv's own environment; `compare.py` calls it when the folder is missing.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
from harness.main_job import roster_of_400

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from fedpriv.rng import Key

MAX_EXAMPLES = 256


def export(folder: Path, *, corpus_name: str | None, roster: str | None, inputs: str) -> None:
    """Write the users of a roster to a folder that does not exist yet, whole or not at all."""
    corpus = resolve_corpus(corpus_name, allow_synthetic=True)
    view = corpus.view(roster=roster or roster_of_400(corpus), split=BY_SENTENCE)
    key = Key.simulation(0).fold("export")
    starts, lengths = [0], [np.zeros(1, np.int64)]
    indices, values, labels = [], [], []
    for user in view.roster:
        every = view.examples(user, "train")
        order = key.fold(user).generator().permutation(len(every))[:MAX_EXAMPLES]
        chosen = every.take(order)
        starts.append(starts[-1] + len(chosen))
        lengths.append(np.diff(chosen.indptr))
        indices.append(chosen.indices.astype(np.int64))
        values.append(chosen.values(inputs))
        labels.append(chosen.labels.astype(np.int64))
    arrays = {
        "user_starts": np.array(starts, np.int64),
        "indptr": np.cumsum(np.concatenate(lengths)),
        "indices": np.concatenate(indices),
        "values": np.concatenate(values),
        "labels": np.concatenate(labels),
    }
    about = {
        "corpus": corpus.name,
        "directory": str(corpus.directory.resolve()),
        "synthetic": corpus.synthetic,
        "roster": view.roster_name,
        "num_users": len(view.roster),
        "num_examples": starts[-1],
        "inputs": inputs,
        "max_examples": MAX_EXAMPLES,
        "num_words": len(view.words),
        "num_tags": len(view.tags),
    }
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(part / f"{name}.npy", array)
    (part / "about.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    part.rename(folder)
    print(f"{starts[-1]} examples of {len(view.roster)} users of {corpus.name} in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Export tag prediction as plain arrays.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corpus", default=None)
    parser.add_argument("--roster", default=None)
    parser.add_argument("--inputs", default="unit-norm", choices=("unit-norm", "tff"))
    arguments = parser.parse_args()
    export(
        arguments.folder,
        corpus_name=arguments.corpus,
        roster=arguments.roster,
        inputs=arguments.inputs,
    )


if __name__ == "__main__":
    main()
