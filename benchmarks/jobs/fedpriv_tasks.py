"""The jobs as fedpriv tasks: the same users and clients as the peers have, or fedpriv's own best.

"dense" and "echo" bring the update back as dense tensors, like any peer. "sparse" is the main job
as `fedpriv run` does it, from fedpriv's own corpus: touched rows only. "cnn" is a `ModuleTask`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cifar_job
import dense_client
import numpy as np
from protocol import Job
from tag_data import Examples, TagUsers
from torch import nn
from words_job.task import WordsTask

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import load_experiment
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.tasks.task import Task, TaskDescription
from fedpriv.training.algorithm import Context
from fedpriv.training.local.module import ArrayExamples, load_params, module_params
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.work import UserTrainer
from fedpriv.tree import Params, Tree

ROUNDS = 100_000


@dataclass(frozen=True, slots=True)
class DenseTrainer(UserTrainer):
    """The dense client between fedpriv's params in and update out."""

    model: nn.Linear
    job: Job

    def train(self, params: Params, context: Context, examples: Examples, key: Key) -> Tree:
        """Return local - global, dense."""
        model = load_params(self.model, params)
        dense_client.local_sgd(
            self.model,
            examples,
            learning_rate=self.job.learning_rate,
            batch_size=self.job.batch_size,
        )
        return {n: p.detach().numpy() - params[n] for n, p in model.named_parameters()}


@dataclass(frozen=True, slots=True)
class EchoTrainer(UserTrainer):
    """A client that returns its params, all of them moved a little.

    An update of zeros would leave its worker as no rows at all, where the peers send every number.
    """

    job: Job

    def train(self, params: Params, context: Context, examples: Any, key: Key) -> Tree:
        """Return local - global, dense."""
        local = {name: array + np.float32(1e-3) for name, array in params.items()}
        return {name: array - params[name] for name, array in local.items()}


class _Users:
    """The exported users, or users without examples."""

    def __init__(self, users: TagUsers | None) -> None:
        self._users = users

    def examples(self, user_id: str) -> Any:
        return () if self._users is None else self._users.examples(int(user_id))

    def num_examples(self, user_id: str) -> int:
        return 1 if self._users is None else self._users.num_examples(int(user_id))


class ClientTask(Task):
    """A client of this folder as a fedpriv task.

    Args:
        job: What to do.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._users = TagUsers(job.data) if job.client == "dense" else None
        self._roster = tuple(str(user) for user in range(job.num_users))

    @property
    def roster(self) -> tuple[str, ...]:
        """The users' numbers."""
        return self._roster

    @property
    def data(self) -> _Users:
        """Their examples."""
        return _Users(self._users)

    def init_params(self, key: Key) -> Params:
        """Return zeros."""
        if self._users is not None:
            return module_params(dense_client.make_model(*self._sizes()))
        columns = min(500, self._job.num_params)
        return {"params": np.zeros((self._job.num_params // columns, columns), np.float32)}

    def trainer(self, schedule: LocalSgd, multiplier: Mapping[str, np.ndarray]) -> UserTrainer:
        """Return the client."""
        if self._users is None:
            return EchoTrainer(self._job)
        return DenseTrainer(dense_client.make_model(*self._sizes()), self._job)

    def evaluate(self, params: Params, *, public: bool, part: Any = None) -> None:
        """Measure nothing: evaluation is timed apart."""

    def describe(self) -> TaskDescription:
        """Return what the run folder records."""
        about = {} if self._users is None else self._users.about
        return TaskDescription(
            name=f"benchmark-{self._job.client}",
            synthetic=bool(about.get("synthetic", True)),
            roster="all",
            num_users=len(self.roster),
        )

    def _sizes(self) -> tuple[int, int]:
        assert self._users is not None
        return self._users.num_words, self._users.num_tags


@dataclass(frozen=True, slots=True)
class TaskOf:
    """Makes a job's task; picklable, so that another process can make it again."""

    job: Job = field(repr=False)

    def __call__(self, experiment: Experiment, corpus: Corpus | None) -> Any:
        """Return the task."""
        if self.job.client.startswith("words"):
            return WordsTask(self.job)
        if self.job.client != "cnn":
            return ClientTask(self.job)
        users = cifar_job.load_users(self.job.data)
        return ModuleTask(
            name="benchmark-cnn",
            module=cifar_job.make_cnn,
            loss=nn.functional.cross_entropy,
            users={user: ArrayExamples(x, y) for user, (x, y) in users.items()},
        )


def make_experiment(job: Job, **options: Any) -> Experiment:
    """Return the experiment of a job: a fixed cohort, so that every round has as many users."""
    private = job.l2_clip_norm is not None
    common = {
        "sampling": "fixed",
        "relation": "replace-one",
        "cohort": float(job.cohort),
        "rounds": ROUNDS,
        "eval-every": ROUNDS,
        "local-learning-rate": job.learning_rate,
        "local-batch-size": job.batch_size,
        "bound": "clip" if private else "none",
        "noise": "gaussian" if private else "none",
        **({"l2-clip-norm": job.l2_clip_norm} if private else {}),
        **({"noise-multiplier": job.noise_multiplier} if private else {}),
        **options,
    }
    if job.client == "sparse":
        return load_experiment("dp-fedavg-tags").with_options(common)
    experiment = FederatedExperiment(name="benchmark", description="A benchmark.", task=TaskOf(job))
    return experiment.with_options(common)


def open_worker(
    job: Job, options: Mapping[str, Any], corpus_path: str | None, device: str | None
) -> Any:
    """Return what a worker of the Ray backend works with; called in the worker."""
    from fedpriv.backends import SerialBackend

    experiment = make_experiment(job).with_options(options)
    corpus = None if corpus_path is None else Corpus.open(Path(corpus_path))
    components = build(experiment, corpus)
    trainer = components.trainer
    if device is not None:
        trainer = experiment.make_trainer(components.task, components.side_information, device)
    return SerialBackend(
        trainer=trainer, data=components.task.data, measure=components.task.evaluate
    )
