"""The recurrent client as a fedpriv task: fedpriv's own trainer, or the peers' torch client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from protocol import Job
from torch import nn

from fedpriv.models.text import WordLSTM, next_word_loss
from fedpriv.rng import Key
from fedpriv.tasks.task import Task, TaskDescription
from fedpriv.training.algorithm import Context
from fedpriv.training.devices import usable_device
from fedpriv.training.local.module import (
    ArrayExamples,
    ModuleTrainer,
    load_params,
    module_params,
)
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.local.words import WordTrainer
from fedpriv.training.work import Trainer, UserTrainer
from fedpriv.tree import Params, Tree
from words_job import client


@dataclass(frozen=True, slots=True)
class TorchTrainer(UserTrainer):
    """The peers' client between fedpriv's params in and update out."""

    model: nn.Module
    job: Job

    def train(self, params: Params, context: Context, examples: ArrayExamples, key: Key) -> Tree:
        """Return local - global, dense."""
        model = load_params(self.model, params)
        client.local_sgd(
            model,
            (examples.x, examples.y),
            learning_rate=self.job.learning_rate,
            batch_size=self.job.batch_size,
        )
        return {n: p.detach().numpy() - params[n] for n, p in model.named_parameters()}


class _Users:
    def __init__(self, users: client.WordUsers) -> None:
        self._users = users

    def examples(self, user_id: str) -> ArrayExamples:
        return ArrayExamples(*self._users.examples(int(user_id)))

    def num_examples(self, user_id: str) -> int:
        return self._users.num_examples(int(user_id))


def _arrays(examples: ArrayExamples) -> tuple[np.ndarray, np.ndarray]:
    return examples.x, examples.y


class WordsTask(Task):
    """Next words as a fedpriv task."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._users = client.WordUsers(job.data)
        self._synthetic = bool(self._users.about["synthetic"])
        self._roster = tuple(str(user) for user in range(job.num_users))

    @property
    def roster(self) -> tuple[str, ...]:
        """The users' numbers."""
        return self._roster

    @property
    def data(self) -> _Users:
        """Their sentences."""
        return _Users(self._users)

    def init_params(self, key: Key) -> Params:
        """Return the network's initial params."""
        if self._job.client == "words-torch":
            return module_params(client.make_model())
        return module_params(WordLSTM())

    def trainer(
        self,
        schedule: LocalSgd,
        multiplier: Mapping[str, np.ndarray],
        device: str | None = None,
    ) -> Trainer:
        """Return the client.

        Raises:
            ValueError: If the torch client is asked for on a device.
        """
        if self._job.client == "words-torch":
            if device is not None:
                raise ValueError(
                    f"device {device!r}: the peers' client is trained on the processor"
                )
            return TorchTrainer(client.make_model(), self._job)
        if device is None:
            return WordTrainer(schedule=schedule, encode=_arrays)
        module = WordLSTM()
        module.fused = False
        alone = ModuleTrainer(
            module=module,
            loss=next_word_loss,
            schedule=schedule,
            device=usable_device(device),
            encode=_arrays,
        )
        return VectorisedTrainer(alone=alone)

    def evaluate(self, params: Params, *, public: bool, part: Any = None) -> None:
        """Measure nothing: evaluation is timed apart."""

    def describe(self) -> TaskDescription:
        """Return what the run folder records."""
        return TaskDescription(
            name="benchmark-words",
            synthetic=self._synthetic,
            roster="all",
            num_users=len(self.roster),
        )
