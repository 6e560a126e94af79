"""Seconds a round takes in one process on one core, with ledger and checkpoints.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/round_time.py --corpus onstartups
    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/round_time.py --corpus onstartups \
        --experiment encoder-tags --roster onstartups-all --cohort 2015

20 users of `onstartups-400` a round, 5,000,500 parameters, one local epoch, clip and Gaussian
noise; or 0.3 of 6,716 users on an encoder's rows, 138,240 parameters. Prints the median and
quartiles of steady rounds, without evaluation.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from harness.main_job import about, open_job, parser

from fedpriv import json_lines
from fedpriv.runs.prepared import start_run


def main() -> None:
    arguments = parser("Time the rounds of the main experiment.", rounds=30).parse_args()
    experiment, corpus = open_job(arguments, rounds=arguments.rounds, eval_every=arguments.rounds)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        prepared = start_run(experiment, arguments.experiment, corpus, run, keep_last=2)
        started = time.process_time()
        prepared.run()
        cpu = time.process_time() - started
        seconds = [line["seconds"] for line in json_lines.read(run / "diagnostics.jsonl")][3:]
    low, _, high = quantiles(seconds, n=4)
    print(
        f"{about(arguments, corpus)}: median {median(seconds):.3f} s "
        f"(quartiles {low:.3f} to {high:.3f}) over {len(seconds)} rounds; "
        f"{cpu / arguments.rounds:.3f} CPU s a round with evaluation spread over them"
    )


if __name__ == "__main__":
    main()
