"""Backends by the names that people give them: serial, threads, ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

# torch takes seconds to import: it is loaded once a backend is asked for.
if TYPE_CHECKING:
    from fedpriv.running.engines.factories import BackendFactory

Factories = Callable[[str | None, str | None], "BackendFactory"]
"""From the name under which workers find the experiment (None if it has none) and the absolute path
of its corpus (None without one) to what makes the backend of a run."""


def as_flag(name: str, value: object) -> str:
    """Return an option as the command line has it.

    >>> as_flag("gpus_per_worker", 0.5)
    '--gpus-per-worker 0.5'
    """
    return f"--{name.replace('_', '-')} {value}"


@contextmanager
def named_backends(
    name: str,
    *,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    ray_address: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
    spelled: Callable[[str, object], str] = as_flag,
) -> Iterator[Factories]:
    """Yield what makes a run's backend; Ray is stopped at the end.

    What cannot be had is said here, before a run folder is made.

    Args:
        name: "serial", "threads" or "ray".
        workers: How many of them; None for one a core.
        gpus_per_worker: Part of a GPU for each worker of Ray's.
        ray_address: Of a running Ray cluster to join.
        tell: Given lines about Ray's start.
        spelled: Writes an option, by field name, and its value as whoever asks typed them.

    Raises:
        ValueError: If the name is unknown, or an option is of another backend.
    """
    from fedpriv.backends.ray.cluster import Cluster
    from fedpriv.backends.resources import Request, usable_cores
    from fedpriv.running.engines.factories import on_ray, on_threads, serial

    asked = {"workers": workers, "gpus_per_worker": gpus_per_worker, "ray_address": ray_address}
    given = {option: value for option, value in asked.items() if value is not None}
    ray = spelled("backend", "ray")
    if name == "serial":
        for option, value in given.items():
            raise ValueError(f"{spelled(option, value)} is for several workers; add {ray}")
        yield lambda reference, corpus_path: serial
    elif name == "threads":
        for option in ("gpus_per_worker", "ray_address"):
            if option in given:
                raise ValueError(
                    f"{spelled(option, given[option])} is for worker processes; use {ray}"
                )
        chosen = usable_cores() if workers is None else workers
        if chosen < 1:
            raise ValueError(f"{spelled('workers', chosen)} must be at least 1")
        yield lambda reference, corpus_path: on_threads(chosen)
    elif name == "ray":
        request = Request(
            workers=workers, gpus_per_worker=gpus_per_worker or 0.0, address=ray_address
        )
        with Cluster(request, tell=tell) as cluster:
            yield partial(_on_ray, on_ray, cluster)
    else:
        raise ValueError(
            f"{spelled('backend', name)} is not known; use 'serial', 'threads' or 'ray', or run "
            "the Flower app"
        )


def _on_ray(
    on_ray: Callable[..., BackendFactory],
    cluster: object,
    reference: str | None,
    corpus_path: str | None,
) -> BackendFactory:
    if reference is None:
        raise ValueError(
            "Ray's workers find an experiment by its name, and this one was made here; put the "
            "function that makes it into a module, and give 'module:function'"
        )
    return on_ray(cluster, reference, corpus_path)
