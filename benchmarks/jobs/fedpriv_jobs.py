"""fedpriv's worker: its own run loop, with every charge and release synced to the ledger.

The run folder keeps the ledger and the round records. Checkpoints, which no peer writes, are kept
too with `--checkpoints`. Extra options go to the experiment by name: `--set precondition=local`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from fedpriv_tasks import make_experiment, open_worker
from ledger_only import LedgerOnly
from protocol import Gate, Job

from fedpriv.backends import Backend, SerialBackend
from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.rng import Key
from fedpriv.runs.document import make_document
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.loop import rounds

GATE = Gate()


@contextmanager
def carried(
    name: str,
    job: Job,
    experiment: Experiment,
    components: Components,
    corpus: str | None,
    device: str | None = None,
    threads: int = 1,
) -> Iterator[Backend]:
    """Yield the backend of a name, on a device or as is usual, and stop what it needed.

    In this process so many threads share a cohort where they may.

    Raises:
        ImportError: If this fedpriv has no such backend.
    """
    if name == "serial":
        trainer = components.trainer
        if device is not None:
            side = components.side_information
            trainer = experiment.make_trainer(components.task, side, device)
        backend = SerialBackend(trainer=trainer, data=components.task.data, threads=threads)
        with closing(backend):
            yield backend
        return
    from fedpriv.backends.ray.backend import RayBackend
    from fedpriv.backends.ray.cluster import Cluster, Request

    num_bytes = sum(
        array.nbytes for array in components.task.init_params(Key.simulation(0)).values()
    )
    log: Any = partial(print, file=sys.stderr)
    request = Request(workers=job.workers)
    if device is not None:
        logical = job.workers if device == "cpu" else 0
        request = replace(request, gpus_per_worker=1.0, logical_gpus=logical)
    with Cluster(request, tell=log) as cluster:
        cluster.start(num_bytes)
        backend = RayBackend(
            share=cluster.share,
            open_backend=partial(open_worker, job, experiment.options(), corpus),
            data=components.task.data,
            max_examples=experiment.most_examples,
        )
        try:
            yield backend
        finally:
            backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="A worker of the comparison.")
    parser.add_argument("job")
    parser.add_argument("--backend", default="serial")
    parser.add_argument("--corpus", default=None)
    parser.add_argument("--roster", default=None)
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--device", default=None, help="of serial; of ray a GPU each, or cpu")
    parser.add_argument("--threads", type=int, default=1, help="of serial")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    job = Job.from_json(arguments.job)
    options: dict[str, Any] = dict(item.split("=", 1) for item in arguments.set)
    corpus = None
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if job.client == "sparse":
        corpus = resolve_corpus(arguments.corpus, allow_synthetic=True)
        options["roster"] = arguments.roster
    experiment = make_experiment(job, **options)
    components = build(experiment, corpus)
    root = Key.simulation(experiment.seed)
    path = None if corpus is None else str(corpus.directory.resolve())
    try:
        with (
            carried(
                arguments.backend,
                job,
                experiment,
                components,
                path,
                arguments.device,
                arguments.threads,
            ) as backend,
            tempfile.TemporaryDirectory() as out,
        ):
            begun, files = components.begin(root.fold("init")), components.task.files()
            document = make_document(
                components,
                files,
                None,
                begun,
                reference=experiment.name,
                place=path,
                backend=arguments.backend,
            )
            folder = RunFolder.create(
                Path(out) / "run", components, document, begun=begun, files=files, keep_last=2
            )
            GATE.ready(**about(corpus))
            kept: Any = folder if arguments.checkpoints else LedgerOnly(folder)
            running = rounds(
                components, backend, root, folder=kept, eval_every=experiment.eval_every
            )
            with closing(folder), closing(running):
                while GATE.passes():
                    next(running)
    except ImportError as error:
        GATE.skip(f"this fedpriv cannot run the backend {arguments.backend!r}: {error}")


def about(corpus: Corpus | None) -> dict[str, Any]:
    """Return the versions that run, and whether the corpus is synthetic."""
    names = ("fedpriv", "torch", "numpy", "ray")
    return {
        **{name: version(name) for name in names},
        "python": sys.version.split()[0],
        "synthetic": corpus is not None and corpus.synthetic,
    }


if __name__ == "__main__":
    main()
