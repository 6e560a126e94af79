"""Seconds a round takes in one process on one core, with ledger and checkpoints.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/round_time.py --corpus onstartups

20 users of `onstartups-400` a round, 5,000,500 parameters, one local epoch, clip and Gaussian
noise. Prints the median and quartiles of steady rounds, without evaluation.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from fedpriv.catalogue import load_experiment
from fedpriv.data.locate import resolve_corpus
from fedpriv.job import start_job
from fedpriv.run_folder import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the rounds of the main job.")
    parser.add_argument("--corpus", default=None)
    parser.add_argument("--roster", default="onstartups-400")
    parser.add_argument("--cohort", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    experiment = load_experiment("adadps-tags").with_options(
        {
            "roster": arguments.roster,
            "cohort": arguments.cohort,
            "rounds": arguments.rounds,
            "eval-every": arguments.rounds,
        }
    )
    corpus = resolve_corpus(arguments.corpus, allow_synthetic=True)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        job = start_job(experiment, "adadps-tags", corpus, run, keep_last=2)
        started = time.process_time()
        job.run()
        cpu = time.process_time() - started
        seconds = [line["seconds"] for line in read_lines(run, "diagnostics")][3:]
    low, _, high = quantiles(seconds, n=4)
    label = "SYNTHETIC corpus" if corpus.synthetic else "corpus"
    print(
        f"{label} {corpus.name}, {arguments.cohort:g} users a round: median {median(seconds):.3f} s"
        f" (quartiles {low:.3f} to {high:.3f}) over {len(seconds)} rounds; "
        f"{cpu / arguments.rounds:.3f} CPU s a round with evaluation spread over them"
    )


if __name__ == "__main__":
    main()
