"""Backends of a run by name: serial (this process) and Ray's workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.backends import Backend, SerialBackend
from fedpriv.backends.ray.cluster import Cluster, Request
from fedpriv.datasets.local_data import NodeData
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.build import make_task
from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.options import Option
from fedpriv.rng import Key
from fedpriv.training.devices import device_description, usable_device
from fedpriv.training.evaluate import measure_of
from fedpriv.training.work import Trainers

Place = str | NodeData | None
"""Of a corpus: its absolute path, or own files in its place; None for tasks without one."""
BackendFactory = Callable[[Experiment, Components], Backend]
"""Makes the backend of a run."""
NamedFactories = Callable[[str | None, Place], BackendFactory]
"""From the name under which workers find the experiment (None if it has none) and the place of its
corpus to what makes the backend of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFactory:
    """A backend factory that checks beforehand what it cannot run.

    Attributes:
        make: The factory itself.
        check: Raises `ValueError` where `make`, or a worker that it hires, would; it is asked
            before a run folder is made or opened.
    """

    make: BackendFactory
    check: Callable[[Experiment, Components], None]

    def __call__(self, experiment: Experiment, components: Components) -> Backend:
        """Return the backend."""
        return self.make(experiment, components)


def check_supported(experiment: Experiment, backend: str) -> None:
    """Refuse a backend that an experiment does not run on.

    Raises:
        ValueError: If it is not one of the experiment's.
    """
    if experiment.unit == "example":
        raise ValueError(
            f"{experiment.name} is centralised, and centralised training runs in one process; "
            f"leave the backend {backend!r} out"
        )
    if not experiment.runs_on(backend):
        known = ", ".join(backends_of(experiment))
        raise ValueError(f"{experiment.name} does not run on {backend}; use one of {known}")


def serial(
    experiment: Experiment, components: Components, *, threads: int | None = None
) -> Backend:
    """Return the in-process backend, of so many threads; None for its own default."""
    return SerialBackend(
        trainer=components.trainer,
        data=components.task.data,
        measure=measure_of(components.task),
        threads=threads,
    )


def serial_on(device: str) -> BackendFactory:
    """Return what makes the in-process backend that trains on a device, such as "cuda:0"."""

    def trainer_of(experiment: Experiment, components: Components) -> Trainers:
        return experiment.make_trainer(components.task, components.side_information, device)

    def check(experiment: Experiment, components: Components) -> None:
        trainer_of(experiment, components)

    def make(experiment: Experiment, components: Components) -> Backend:
        return SerialBackend(
            trainer=trainer_of(experiment, components),
            data=components.task.data,
            measure=measure_of(components.task),
            device=device_description(usable_device(device)),
            asked=device,
        )

    return CheckedFactory(make=make, check=check)


def on_ray(cluster: Cluster, reference: str | None, place: Place) -> BackendFactory:
    """Return what starts Ray and its workers, each of which opens the corpus for itself.

    Args:
        cluster: What the workers run on; its maker closes it.
        reference: The name under which a worker finds the experiment.
        place: Where it finds the corpus.

    Raises:
        ValueError: If it has no name.
    """
    if reference is None:
        raise ValueError(
            "Ray's workers find an experiment by its name, and this one was made here; put the "
            "function that makes it into a module, and give 'module:function'"
        )

    def check(experiment: Experiment, components: Components) -> None:
        check_supported(experiment, "ray")
        # Whether a GPU is there, and works, only the worker that gets it can say: this machine may
        # have none, or should not spend memory of it. That the task trains on devices, any can.
        if cluster.share.num_gpus or cluster.share.device is not None:
            experiment.make_trainer(components.task, components.side_information, "cpu")

    def make(experiment: Experiment, components: Components) -> Backend:
        params = components.task.init_params(Key.simulation(0))
        cluster.start(sum(array.nbytes for array in params.values()))
        from fedpriv.backends.ray.backend import RayBackend

        began = time.perf_counter()
        backend = RayBackend(
            share=cluster.share,
            open_backend=partial(open_worker, reference, experiment.options(), place),
            data=components.task.data,
            max_examples=experiment.most_examples,
        )
        cluster.tell(f"its workers took {time.perf_counter() - began:.1f} s to open the data")
        return backend

    return CheckedFactory(make=make, check=check)


def open_worker(
    reference: str, options: Mapping[str, Option], place: Place, device: str | None
) -> SerialBackend:
    """Return what a worker works with, made from what can be named; called in the worker.

    Raises:
        ValueError: If the experiment or the corpus is not found there.
    """
    experiment = load_experiment(reference).with_options(options)
    check_supported(experiment, "ray")
    task = make_task(experiment, open_corpus(place))
    return SerialBackend(
        trainer=experiment.make_trainer(task, device=device),
        data=task.data,
        measure=measure_of(task),
    )


def open_corpus(place: Place) -> Corpus | NodeData | None:
    """Return the corpus at a place; None for none."""
    return Corpus.open(Path(place)) if isinstance(place, str) else place


def place_of(corpus: Corpus | NodeData | None) -> Place:
    """Return where a corpus is opened again."""
    return str(corpus.directory.resolve()) if isinstance(corpus, Corpus) else corpus


def recorded_place(document: Mapping[str, Any]) -> Place:
    """Return where the corpus of a run was, by its experiment.json."""
    path, key = document["corpus"]["path"], document["corpus"].get("data_key")
    return path if key is None else NodeData(Path(path), Path(key))


Tell = Callable[[str], None]


@contextmanager
def _serial(request: Request, tell: Tell) -> Generator[NamedFactories]:
    made = serial if request.device is None else serial_on(request.device)
    yield lambda reference, place: made


@contextmanager
def _ray(request: Request, tell: Tell) -> Generator[NamedFactories]:
    with Cluster(request, tell=tell) as cluster:
        yield partial(on_ray, cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBackend:
    """A backend that `--backend` names.

    Attributes:
        open: Yields what makes the backend of a run, and stops what it has started at its end.
        takes: Options of `named_backends` that it has a use for.
    """

    open: Callable[[Request, Tell], AbstractContextManager[NamedFactories]]
    takes: tuple[str, ...] = ()


#: A new backend is one entry here; the Flower app is started otherwise.
BACKENDS = {
    "serial": NamedBackend(open=_serial, takes=("device",)),
    "ray": NamedBackend(open=_ray, takes=("workers", "gpus_per_worker", "ray_address", "device")),
}


def backends_of(experiment: Experiment) -> list[str]:
    """Return the names of the backends that an experiment runs on."""
    return [name for name in (*BACKENDS, "flower") if experiment.runs_on(name)]


@contextmanager
def named_backends(
    name: str,
    *,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    ray_address: str | None = None,
    device: str | None = None,
    tell: Tell = lambda line: None,
) -> Generator[NamedFactories]:
    """Yield what makes a run's backend; what it has started is stopped at the end.

    What cannot be had is said here, before a run folder is made.

    Args:
        name: One of `BACKENDS`.
        workers: How many processes Ray starts; None for one a core.
        gpus_per_worker: Part of a GPU for each worker of Ray's.
        ray_address: Of a running Ray cluster to join.
        device: On which many users are trained at once, such as "cpu" or "cuda:0"; of Ray's
            workers "cpu" alone, since they get GPUs by `gpus_per_worker`. None for what is
            quickest on a processor.
        tell: Given lines about the start.

    Raises:
        ValueError: If the name is unknown, or an option is of another backend.
    """
    if name not in BACKENDS:
        known = ", ".join(map(repr, BACKENDS))
        raise ValueError(
            f"backend {name!r} is not known; use one of {known}, or run the Flower app"
        )
    asked = {
        "workers": workers,
        "gpus_per_worker": gpus_per_worker,
        "ray_address": ray_address,
        "device": device,
    }
    for option, value in asked.items():
        if value is not None and option not in BACKENDS[name].takes:
            raise ValueError(
                f"{option} {value} is for worker processes; use backend ray instead of {name}"
            )
    if name == "ray" and device not in (None, "cpu"):
        raise ValueError(
            f"device {device} names no device of a worker's; Ray hands out GPUs by gpus_per_worker"
        )
    if name == "serial" and device is not None:
        usable_device(device)
    request = Request(
        workers=workers, gpus_per_worker=gpus_per_worker or 0.0, address=ray_address, device=device
    )
    with BACKENDS[name].open(request, tell) as factories:
        yield factories
