"""pfl's worker: its FederatedAveraging, SimulatedBackend, PyTorch model and central Gaussian.

One process, or two under `torchrun` (pfl's own way: every process trains its share of the cohort,
then one all-reduce). For tag prediction the local steps are this folder's clients, between pfl's
own `get_parameters` and `get_model_difference`; for CIFAR-10 they are pfl's own. The gate is a
callback at the end of a central iteration; in a run of two, both processes wait at it.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Any

import cifar_job
import dense_client
import numpy as np
import sparse_client
import torch
import words_job.client
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from protocol import Gate, Job
from tag_data import TagUsers
from torch import nn

GATE = Gate() if os.environ.get("RANK", "0") == "0" else None
JOB = Job.from_json(sys.argv[1])


class GateCallback(TrainingProcessCallback):
    """Waits between central iterations, all processes together."""

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Wait before the first."""
        self._closed()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Wait after each."""
        return self._closed(), Metrics()

    def _closed(self) -> bool:
        go_on = torch.ones(1) if GATE is None or GATE.passes() else torch.zeros(1)
        (agreed,) = pytorch_ops.distributed.all_reduce([go_on])
        return bool(agreed.item() < pytorch_ops.distributed.world_size)


class ClientAveraging(FederatedAveraging):
    """pfl's FedAvg with the local steps of one of this folder's clients."""

    def train_one_user(
        self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Metrics]:
        """Train the resident model in place and return its difference."""
        if JOB.client != "echo":
            clients = {"dense": dense_client, "words": words_job.client}
            clients.get(JOB.client, sparse_client).local_sgd(
                model.pytorch_model,
                user_dataset.raw_data[1],
                learning_rate=JOB.learning_rate,
                batch_size=JOB.batch_size,
            )
        elif JOB.l2_clip_norm is not None:
            with torch.no_grad():
                model.pytorch_model.params[0, 0] += 1.0
        return model.get_model_difference(initial_model_state), Metrics()


class Echo(nn.Module):
    """A model that is nothing but its parameters."""

    def __init__(self, num_params: int) -> None:
        super().__init__()
        columns = min(500, num_params)
        self.params = nn.Parameter(torch.zeros(num_params // columns, columns))


def make_model(users: Any) -> nn.Module:
    """Return the job's module, with the two methods that pfl asks for."""
    if JOB.client == "echo":
        module: nn.Module = Echo(JOB.num_params)
    elif JOB.client == "cnn":
        module = cifar_job.make_cnn()
    elif JOB.client == "words":
        module = words_job.client.make_model()
    elif JOB.client == "dense":
        assert users is not None
        module = dense_client.make_model(users.num_words, users.num_tags)
    else:
        assert users is not None
        module = sparse_client.BagOfWords(users.num_words, users.num_tags)

    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        module.train()
        return nn.functional.cross_entropy(module(images), labels)

    module.loss = loss  # type: ignore[assignment]
    module.metrics = lambda *data: {}  # type: ignore[assignment]
    return module


def make_dataset(users: Any) -> FederatedDataset:
    """Return the users, drawn at random, balanced over processes by their examples."""
    if users is None and JOB.client == "cnn":
        data = {
            user: [torch.from_numpy(images), torch.from_numpy(labels)]
            for user, (images, labels) in cifar_job.load_users(JOB.data).items()
        }
        return FederatedDataset.from_slices(data, get_user_sampler("random", list(data)))

    def user_dataset(user: int) -> Dataset:
        if users is None:
            return Dataset([np.zeros(1)], user_id=str(user))
        examples = users.examples(user)
        # Raw data has to begin with one entry an example.
        first = examples[0] if JOB.client == "words" else examples.labels
        return Dataset([first, examples], user_id=str(user))

    weights = {u: 1 if users is None else users.num_examples(u) for u in range(JOB.num_users)}
    sampler = get_user_sampler("random", list(range(JOB.num_users)))
    return FederatedDataset(user_dataset, sampler, user_id_to_weight=weights)


def main() -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    users: Any = TagUsers(JOB.data) if JOB.client in ("dense", "sparse") else None
    if JOB.client == "words":
        users = words_job.client.WordUsers(JOB.data)
    module = make_model(users)
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    postprocessors: list[Any] = [WeightByUser()]
    if JOB.l2_clip_norm is not None:
        mechanism = GaussianMechanism(JOB.l2_clip_norm, JOB.noise_multiplier)
        postprocessors.append(CentrallyAppliedPrivacyMechanism(mechanism))
    dataset = make_dataset(users)
    backend = SimulatedBackend(
        training_data=dataset, val_data=dataset, postprocessors=postprocessors
    )
    if GATE is not None:
        GATE.ready(
            pfl=version("pfl"),
            torch=version("torch"),
            numpy=version("numpy"),
            python=sys.version.split()[0],
            processes=pytorch_ops.distributed.world_size,
            threads=torch.get_num_threads(),
        )
    algorithm = FederatedAveraging() if JOB.client == "cnn" else ClientAveraging()
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=1_000_000,
            # Never after the first: iteration 0 is the warm-up's, and `metrics` gives nothing.
            evaluation_frequency=10_000_000,
            train_cohort_size=JOB.cohort,
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=JOB.learning_rate,
            local_batch_size=JOB.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[GateCallback()],
    )


if __name__ == "__main__":
    main()
