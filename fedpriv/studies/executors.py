"""One trial, and where trials run: in this process, in worker processes, or as tasks of Ray."""

from __future__ import annotations

import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from fedpriv import json_lines
from fedpriv.backends.ray.cluster import Cluster, Request
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.experiments.start import PublicOnly
from fedpriv.experiments.user_code import one_line
from fedpriv.libraries import one_thread
from fedpriv.privacy.epsilon import rounded_up_to, target_label
from fedpriv.runs.backends import open_corpus, serial, serial_on
from fedpriv.runs.prepared import PreparedRun, start_or_resume
from fedpriv.studies.pool import Pool
from fedpriv.studies.record import RUNS
from fedpriv.studies.study import Resolver, Trial, load_study
from fedpriv.training.devices import use_one_thread
from fedpriv.training.stopping import end_if_interrupted

Outcome = tuple[float | None, str | None]
"""End of a trial: its seconds, or why it failed."""

#: What public examples alone made of the task of this process's last trial: of the next one, which
#: is another method's more often than not, it is the same.
_PUBLIC: dict[tuple[str | None, int], PublicOnly] = {}
#: Of a target ε, for what calibration leaves.
_SLACK = 1e-6


def _job(trial: Trial) -> dict[str, Any]:
    """Return what names a trial to a worker that has the study."""
    return {**trial.row, "searched": dict(trial.searched)}


class Here:
    """Runs trials in this process, one after the other.

    Args:
        out: The study's folder.
        device: As of `fedpriv.run`.
    """

    num_free = 1

    def __init__(self, out: Path, device: str | None) -> None:
        self._out, self._device = out, device
        self._trial: Trial | None = None

    def submit(self, trial: Trial) -> None:
        """Take the next trial."""
        self._trial, self.num_free = trial, 0

    def wait(self, timeout: float) -> list[tuple[str, Outcome]]:
        """Run it."""
        assert self._trial is not None
        trial, self._trial, self.num_free = self._trial, None, 1
        # As workers do: bits then do not depend on how many there are.
        with one_thread() if self._device in (None, "cpu") else nullcontext():
            return [(trial.key, _performed(trial, self._out, self._device))]


class Processes:
    """Runs trials in worker processes of this machine, which end with the context.

    Args:
        resolver: Of the study.
        out: Its folder.
        workers: How many.
        stack: Ends the workers.
    """

    def __init__(self, resolver: Resolver, out: Path, workers: int, stack: ExitStack) -> None:
        def work(job: dict[str, Any]) -> Outcome:
            return _performed(resolver.trial(**job), out, None)

        self._pool = stack.enter_context(Pool(work, workers))

    @property
    def num_free(self) -> int:
        """Number of free workers."""
        return self._pool.num_free

    def submit(self, trial: Trial) -> None:
        """Give a trial to a worker."""
        self._pool.submit(_job(trial))

    def wait(self, timeout: float) -> list[tuple[str, Outcome]]:
        """Return the trials that end next."""
        found = []
        for answer in self._pool.wait(timeout):
            died = answer.kind == "died"
            reason = f"its process died ({answer.value})" if died else str(answer.value)
            ended = answer.value if answer.kind == "done" else (None, reason)
            found.append((answer.job["key"], ended))
        return found


class RayTasks:
    """Runs each trial as one task of Ray, whose workers find the study by its file.

    Args:
        reference: The study's file.
        out: Its folder, which every machine of a cluster shares.
        request: Of the resources.
        stack: Stops what was started.

    Raises:
        ValueError: If the study has no file, or the resources cannot be had.
    """

    def __init__(
        self, reference: str | None, out: Path, request: Request, stack: ExitStack
    ) -> None:
        if reference is None:
            raise ValueError(
                "Ray's workers find a study by its file, and this one was made here; write it into "
                "a TOML file, or give 'path.py:function' of one that returns it"
            )
        cluster = stack.enter_context(Cluster(request))
        cluster.start(0)
        import ray

        self._ray, self._share = ray, cluster.share
        self._task = ray.remote(
            num_cpus=self._share.num_cpus, num_gpus=self._share.num_gpus, max_retries=0
        )(_perform_on_ray)
        self._arguments = (reference, str(out.resolve()), self._share.num_gpus > 0)
        self._keys: dict[Any, str] = {}

    @property
    def num_free(self) -> int:
        """Number of tasks that can be submitted now."""
        return self._share.num_workers - len(self._keys)

    def submit(self, trial: Trial) -> None:
        """Begin a task."""
        self._keys[self._task.remote(_job(trial), *self._arguments)] = trial.key

    def wait(self, timeout: float) -> list[tuple[str, Outcome]]:
        """Return the trials that end next."""
        ready, _ = self._ray.wait(list(self._keys), timeout=timeout, num_returns=1)
        return [(self._keys.pop(one), self._ended(one)) for one in ready]

    def _ended(self, task: Any) -> Outcome:
        try:
            return self._ray.get(task)
        except Exception as error:  # the worker died, or never found the study
            end_if_interrupted(error)
            return None, f"its process died ({str(error) or type(error).__name__})"


def _perform_on_ray(job: dict[str, Any], reference: str, out: str, gpu: bool) -> Outcome:
    """Run a trial in a worker of Ray's."""
    use_one_thread()
    trial = Resolver(load_study(reference)).trial(**job)
    return _performed(trial, Path(out), "cuda:0" if gpu else None)


def _performed(trial: Trial, out: Path, device: str | None) -> Outcome:
    """Run a trial."""
    try:
        return perform(trial, out, device), None
    except Exception as error:
        end_if_interrupted(error)
        return None, one_line(error) or f"{type(error).__name__}: {error}"


def perform(trial: Trial, out: Path, device: str | None = None) -> float:
    """Run a trial to its end and return its seconds, those of attempts that were killed included.

    A run folder that is there is gone on with by the rules of a resumed run: an attempt that was
    lost stays charged.

    Args:
        trial: The trial.
        out: The study's folder.
        device: As of `fedpriv.run`.

    Raises:
        ValueError: As `fedpriv.run`; or if the plan's ε is above the trial's.
        Exception: What user-defined code raises.
    """
    started = time.perf_counter()
    folder = out / RUNS / trial.key
    make = serial if device is None else serial_on(device)
    before = sum(r.get("seconds") or 0.0 for r in json_lines.read(folder / "diagnostics.jsonl"))
    prepared = start_or_resume(
        trial.experiment,
        trial.reference,
        None if trial.corpus is None else open_corpus(str(trial.corpus)),
        folder,
        make_backend=make,
        keep_last=1,
        label=trial.method,
        public=_PUBLIC.get((trial.task_key, trial.seed)),
    )
    if trial.task_key is not None and prepared.public is not None:
        _PUBLIC.clear()  # it holds two models
        _PUBLIC[trial.task_key, trial.seed] = prepared.public
    _check_level(trial, prepared)
    prepared.run()
    CheckpointStore(folder / "checkpoints", keep_last=1, keep_every=None).prune()
    return round(before + time.perf_counter() - started, 3)


def _check_level(trial: Trial, prepared: PreparedRun) -> None:
    """Refuse a run that guarantees less than its row says.

    Raises:
        ValueError: If its ε is above the trial's.
    """
    plan = prepared.components.plan
    if trial.epsilon is None:
        return
    found = plan.guaranteed().value
    if not found <= trial.epsilon * (1.0 + _SLACK):
        prepared.folder.close()
        raise ValueError(
            f"its plan has ε {rounded_up_to(found, 4):.4g}, above the "
            f"{target_label(trial.epsilon)} of the trial: its noise is not calibrated by "
            "target-epsilon; let it be, or give the method `epsilons` of its own"
        )
