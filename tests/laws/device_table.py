"""Write how far a round on the device path is from the default one, for every task.

python -m tests.laws.device_table > device-path.md
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch

from fedpriv.datasets.importers.synthetic import Shape, synthesize
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.options import Option
from fedpriv.experiments.tasks import EncodedTagPredictionTask
from fedpriv.tree import num_elements
from tests.harness.tiny_bert import embed_tiny
from tests.laws import test_device_path as laws
from tests.laws import test_example_devices as examples
from tests.simulations.photographs.records import write_records


def page(folder: Path) -> str:
    """Return the table; the corpus is made in the folder."""
    shape = Shape(num_users=60, num_sentences=1_500, public_users=12)
    corpus = synthesize(folder / "corpus", shape=shape, max_words=800, max_tags=40)
    lines = [
        "# The device path beside the default one",
        "",
        "One round's sum over every user of a SYNTHETIC corpus of 60 users of unequal sizes, "
        "clipped and not rounded: the l2 norm of the difference between `--device cpu` and the "
        "default path, over the norm of the sum. Not measured on a GPU. By "
        "`python -m tests.laws.device_table`, "
        f"torch {torch.__version__.split('+')[0]}.",
        "",
        "| experiment | parameters | trainer | relative difference |",
        "|---|---:|---|---:|",
    ]
    for name in laws.OF_USERS:
        fit: dict[str, Option] = {}
        if isinstance(load_experiment(name).task, EncodedTagPredictionTask):  # needs transformers
            fit = embed_tiny(corpus, folder / "tiny")
        experiment, task = laws.made(name, corpus, **fit)
        params = laws.trained_params(task)
        usual, batched = (experiment.make_trainer(task, device=each) for each in (None, "cpu"))
        sums = [laws.total(each, task, params, laws.BOUND) for each in (batched, usual)]
        kind = type(laws.inner_trainer(batched)).__name__
        found = laws.difference(*sums)
        lines.append(f"| {name} | {num_elements(params):,} | {kind} | {found:.1e} |")
    lines += [
        "",
        "## Single examples",
        "",
        f"The sums of a run's first {examples.STEPS} steps on small SYNTHETIC data sets, as each "
        "method bounds them; DP-AGD's losses after rounding to their grid. The largest difference "
        "of a run is shown.",
        "",
        "| data | method | work | relative difference |",
        "|---|---|---|---:|",
    ]
    (folder / "pictures").mkdir()
    pictures = str(write_records(folder / "pictures", 24, 8))
    for row in examples.table():
        gaps: dict[str, float] = {}
        for work, expected, found in examples.compared(row, pictures, "cpu"):
            gaps[work] = max(gaps.get(work, 0.0), examples.relative_gap(found, expected))
        lines += [f"| {row.data} | {row.method} | {work} | {g:.1e} |" for work, g in gaps.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDPRIV_CACHE"] = str(Path(folder) / "cache")
        sys.stdout.write(page(Path(folder)))
