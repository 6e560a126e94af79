"""Who takes part in which comparison, and how each worker is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness import peers
from jobs import cifar_job
from jobs.protocol import Job

HERE = Path(__file__).resolve().parents[1]
JOBS = HERE / "jobs"
DATA = Path(os.environ.get("FEDPRIV_BENCHMARK_DATA") or HERE / ".data")
PLUMBING_SIZES = (1_000, 2_000_000, 5_000_000)

# Flower without its downloads, its telemetry and its update check.
_FLOWER = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_HOME": str(DATA / "flower-home"),
}
# This checkout's fedpriv, whichever is installed.
_OURS = os.pathsep.join([str(JOBS), str(HERE.parent)])
_QUIET = {"PYTHONPATH": str(JOBS), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One tool in one setting.

    Attributes:
        name: In tables.
        tool: "fedpriv", "flower", "pfl" or "none".
        command: Arguments of its Python, which start its worker.
        python: Returns that Python, once it has made the environment if there is none yet.
        environment: Added to the harness's own.
    """

    name: str
    tool: str
    command: list[str]
    python: Callable[[], Path] = lambda: Path(sys.executable)
    environment: dict[str, str] = field(default_factory=dict)


def _fedpriv(
    job: Job, backend: str, *options: str, threads: int = 1, named: str = ""
) -> Contestant:
    """Return fedpriv on a backend; `threads` share a cohort, or torch's operations."""
    name = "fedpriv" if backend == "serial" else f"fedpriv, {backend.capitalize()}"
    more = ["with checkpoints"] if "--checkpoints" in options else []
    workers = f", {job.workers} workers" if backend == "ray" else ""
    threaded = f", {threads} threads" if threads > 1 else ""
    command = [str(JOBS / "fedpriv_jobs.py"), job.to_json(), f"--backend={backend}"]
    command += [f"--threads={threads}"] if threads > 1 else []
    return Contestant(
        name=", ".join([name + workers + threaded + named, *more]),
        tool="fedpriv",
        command=[*command, *options],
        environment={**_QUIET, "PYTHONPATH": _OURS, "OMP_NUM_THREADS": str(threads)},
    )


def _bare(job: Job) -> Contestant:
    return Contestant(
        name="local steps alone, 1 process",
        tool="none",
        command=[str(JOBS / "bare_jobs.py"), job.to_json()],
        environment={**_QUIET, "PYTHONPATH": _OURS, "OMP_NUM_THREADS": "1"},
    )


def _flower(job: Job, client: str = "") -> Contestant:
    return Contestant(
        name=f"Flower{client}",
        tool="flower",
        command=[str(JOBS / "flower_jobs.py"), job.to_json()],
        python=partial(peers.environment, "flower"),
        environment={**_QUIET, **_FLOWER, "OMP_NUM_THREADS": "1"},
    )


def _pfl(job: Job, processes: int = 1, threads: int = 1, client: str = "") -> Contestant:
    start: list[str] = []
    if processes > 1:
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    setting = f"{processes} processes" if processes > 1 else f"1 process, {threads} thread"
    return Contestant(
        name=f"pfl, {setting}{'s' if processes == 1 and threads > 1 else ''}{client}",
        tool="pfl",
        command=[*start, str(JOBS / "pfl_jobs.py"), job.to_json()],
        python=partial(peers.environment, "pfl"),
        environment={**_QUIET, "OMP_NUM_THREADS": str(threads), "PFL_PYTORCH_DEVICE": "cpu"},
    )


def same(corpus: str | None, *, peers_too: bool = True) -> list[Contestant]:
    """Return who trains the dense torch client: the backend is all that differs."""
    job = Job(client="dense", data=str(tag_folder(corpus)), workers=_cores())
    cores = _cores()
    ours = [
        _fedpriv(job, "serial"),
        _fedpriv(job, "serial", threads=cores),
        _fedpriv(job, "ray"),
        _bare(job),
    ]
    if not peers_too:
        return ours
    return [
        *ours,
        _flower(job),
        _pfl(job),
        _pfl(job, threads=cores),
        _pfl(job, processes=cores),
    ]


def best(corpus: str | None, *, peers_too: bool = True) -> list[Contestant]:
    """Return who trains what its user would best write.

    For the peers that is the sparse torch client, at whose price their own work shows; fedpriv
    reads its own corpus, through the same roster. The peers with the dense client are next to
    them: it is what their own examples for such a model look like.
    """
    folder = tag_folder(corpus)
    job = Job(client="sparse", data=str(folder), workers=_cores())
    dense = Job(client="dense", data=str(folder), workers=_cores())
    about = json.loads((folder / "about.json").read_text("utf-8"))
    own = [f"--corpus={about['directory']}", f"--roster={about['roster']}"]
    ours = [
        _fedpriv(job, "serial", *own),
        _fedpriv(job, "serial", *own, "--checkpoints"),
        _fedpriv(job, "serial", *own, threads=_cores()),
        _fedpriv(job, "ray", *own),
    ]
    if not peers_too:
        return ours
    return [
        *ours,
        _flower(job),
        _pfl(job),
        _pfl(job, threads=_cores()),
        _pfl(job, processes=_cores()),
        _flower(dense, ", dense client"),
        _pfl(dense, processes=_cores(), client=", dense client"),
    ]


def plumbing(num_params: int, *, private: bool) -> list[Contestant]:
    """Return who sends params there and back, with clipping and noise or without."""
    clip = 20.0 if private else None
    job = Job(client="echo", num_params=num_params, l2_clip_norm=clip, workers=_cores())
    return [
        _fedpriv(job, "serial"),
        _fedpriv(job, "ray"),
        _flower(job),
        _pfl(job),
        _pfl(job, processes=_cores()),
    ]


def cifar(file: Path | None, num_users: int, cohort: int) -> list[Contestant]:
    """Return who trains pfl's CIFAR-10 network, without privacy, as pfl's baseline does."""
    job = Job(
        client="cnn",
        data=str(cifar_folder(file, num_users)),
        num_users=num_users,
        cohort=cohort,
        batch_size=10,
        learning_rate=0.1,
        l2_clip_norm=None,
        workers=_cores(),
    )
    return [
        _fedpriv(job, "serial"),
        _fedpriv(job, "ray"),
        _bare(job),
        _pfl(job),
        _pfl(job, threads=_cores()),
        _pfl(job, processes=_cores()),
    ]


def words(corpus: str | None, cohort: int) -> list[Contestant]:
    """Return who trains the recurrent network of Stack Overflow: peers with the torch client."""
    settings = {
        "data": str(words_folder(corpus)),
        "cohort": cohort,
        "batch_size": 16,
        "learning_rate": 0.5,
        "l2_clip_norm": 1.0,
        "workers": _cores(),
    }
    job, torch_client = Job(client="words", **settings), Job(client="words-torch", **settings)
    return [
        _fedpriv(job, "serial"),
        _fedpriv(job, "serial", threads=_cores()),
        _fedpriv(job, "ray"),
        _fedpriv(torch_client, "serial", named=", torch client"),
        _flower(job),
        _pfl(job),
        _pfl(job, processes=_cores()),
    ]


def small(corpus: str | None) -> list[Contestant]:
    """Return fedpriv's own jobs: a network of one's own, single examples, the main job secure."""
    own = [f"--corpus={corpus}"] if corpus else []
    return [
        Contestant(
            name=name,
            tool="fedpriv",
            command=[str(JOBS / "small_jobs.py"), name, *own],
            environment={**_QUIET, "PYTHONPATH": _OURS, "OMP_NUM_THREADS": "1"},
        )
        for name in ("own-cnn", "by-example", "secure")
    ]


def on_device(
    part: str, device: str, num_gpus: int, options: Mapping[str, Any]
) -> list[Contestant]:
    """Return who trains a part's job on a device, besides fedpriv and the quickest peer without.

    Args:
        part: "best" (called tags there), "cifar" or "words".
        device: Such as "cuda:0", or "cpu".
        num_gpus: Workers of Ray with a device each; 1 leaves Ray out.
        options: Arguments of the part's function.
    """
    people = {"best": best, "cifar": cifar, "words": words}[part](**options)
    usual = next(person for person in people if person.name == "fedpriv")
    job = Job.from_json(usual.command[1])
    more = [each for each in usual.command[3:] if not each.startswith("--checkpoints")]
    found = [usual, _fedpriv(job, "serial", *more, f"--device={device}", named=f" on {device}")]
    if num_gpus > 1:
        wide = replace(job, workers=num_gpus)
        found.append(_fedpriv(wide, "ray", *more, f"--device={device}", named=f" on {device}"))
    peer = _pfl(job)
    where = {**peer.environment, "PFL_PYTORCH_DEVICE": device.split(":")[0]}
    found.append(replace(peer, name=f"pfl on {device}", environment=where))
    return found


def words_folder(corpus: str | None) -> Path:
    """Return the exported users of next-word prediction, exporting them first if need be."""
    folder = _folder("words", corpus)
    return _made(folder, lambda: _export("export_words.py", folder, corpus))


def tag_folder(corpus: str | None) -> Path:
    """Return the exported users of tag prediction, exporting them first if need be."""
    folder = _folder("tags", corpus)
    return _made(folder, lambda: _export("export_tags.py", folder, corpus))


def cifar_folder(file: Path | None, num_users: int) -> Path:
    """Return the CIFAR-10 users, making them first if need be."""
    folder = DATA / ("cifar" if num_users == cifar_job.NUM_USERS else f"cifar-{num_users}")
    return _made(folder, lambda: cifar_job.export(file or _beside("cifar10"), folder, num_users))


def _folder(job: str, corpus: str | None) -> Path:
    """Return where a job's users of a corpus are exported to."""
    return DATA / (f"{job}-{Path(corpus).name}" if corpus else job)


def _export(script: str, folder: Path, corpus: str | None) -> None:
    command = [sys.executable, str(HERE / script), str(folder)]
    command += [f"--corpus={corpus}"] if corpus else []
    subprocess.run(command, check=True, stdout=sys.stderr)


def _made(folder: Path, make: Callable[[], object]) -> Path:
    if not folder.exists():
        make()
    return folder


def _beside(name: str) -> Path | None:
    """Return the training file of a data folder where fedpriv looks for one, if there is any."""
    from fedpriv.datasets.cache import data_folders

    found = [f for folder in data_folders() for f in sorted((folder / name).glob("*train*.bin*"))]
    return found[0] if found else None


def _cores() -> int:
    return len(os.sched_getaffinity(0))
