"""Images by user: MNIST and CIFAR divided among artificial users.

These are what methods are compared on. The field's tables of CIFAR-10 by 100 or 500 users have no
user-level ε that is small: noise that hides one of 500 users leaves little of what 500 can teach,
and accuracy at ε = 8 is near chance. pfl-research's benchmarks train on a cohort of hundreds with
noise as of a population of a million users: such a row is of a hypothetical population, not of the
users who are there. `mnist-users` has 5,000, enough for a signal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.options import check_effect
from fedpriv.mechanisms import Clip
from fedpriv.optimizers import Momentum
from fedpriv.parts import NonNegativeFloat, NonNegativeInt, Part, PositiveFloat, PositiveInt
from fedpriv.training.local.schedule import LocalSgd

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from torch import nn

    from fedpriv.datasets.dataset import Dataset
    from fedpriv.datasets.partitions import Partition
    from fedpriv.tasks.module_task import ModuleTask


# torch takes seconds to import, and experiments are listed for `fedpriv --help`.


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesByUser(Part):
    """Classification of images that are divided among artificial users.

    Public examples are of no user: they leave the training set before it is divided. The test
    examples are the data set's own test set.

    Attributes:
        images: Which data set.
        folder: Where its files lie; none to look around.
        users: How many users.
        partition: How images are divided: by labels (dirichlet, shards), at random (uniform), or at
            random in numbers of a law.
        alpha: Partition dirichlet: small for users of few classes each.
        shards: Partition shards: runs of the sorted images that a user has.
        skew: Partition log-normal: deviation of the numbers' logarithms; power-law: its exponent.
        partition_seed: Another division of the same kind.
        public: Images of no user that released models are measured on.
        public_train: And others, which public models learn from; 0 for none.
        network: linear: softmax regression; convolutions: a small network.
    """

    images: Literal["mnist", "cifar10", "cifar100"] = "mnist"
    folder: str | None = None
    users: PositiveInt = 5_000
    partition: Literal["dirichlet", "shards", "uniform", "log-normal", "power-law"] = "dirichlet"
    alpha: PositiveFloat = 0.3
    shards: PositiveInt = 2
    skew: NonNegativeFloat = 1.0
    partition_seed: int = 0
    public: PositiveInt = 1_000
    public_train: NonNegativeInt = 100
    network: Literal["linear", "convolutions"] = "linear"

    def check(self) -> None:
        """Refuse options without an effect."""
        check_effect(self, "alpha", "partition", "dirichlet")
        check_effect(self, "shards", "partition", "shards")
        check_effect(self, "skew", "partition", "log-normal", "power-law")

    def __call__(self, experiment: object) -> ModuleTask:
        """Return the task.

        Raises:
            ValueError: If the files are missing or damaged, or have too few images for the users.
        """
        import json
        from hashlib import sha256

        import numpy as np
        from torch.nn.functional import cross_entropy

        from fedpriv.datasets.images import load_cifar10, load_cifar100, load_mnist
        from fedpriv.datasets.partitions import UserRows
        from fedpriv.rng import Key
        from fedpriv.tasks.module_task import ModuleTask

        load = {"mnist": load_mnist, "cifar10": load_cifar10, "cifar100": load_cifar100}
        data = load[self.images](self.folder)
        held = self.public + self.public_train
        if held + self.users > data.num_train:
            raise ValueError(
                f"{self.users:,} users and {held:,} public examples are more than the "
                f"{data.num_train:,} training images of {data.name}; give fewer of either"
            )
        # By raw words, because only those are guaranteed to be the same in every version of NumPy;
        # of n alone: it says nothing of any image.
        words = Key.simulation(0).fold("public images").generator().bit_generator
        order = np.argsort(words.random_raw(data.num_train), kind="stable")
        measured, learnt = order[: self.public], order[self.public : held]
        private = np.sort(order[held:])
        pixels: Any = data.x_train
        public = [(_scaled(pixels[rows]), data.y_train[rows]) for rows in (measured, learnt)]
        divided = self._divided(data.y_train[private])
        users = {user: private[rows] for user, rows in divided.items()}
        source = json.dumps(data.provenance["source"], sort_keys=True)
        return ModuleTask(
            name=f"{data.name} by {self.users:,} users",
            module=_network(self.network, data),
            loss=cross_entropy,
            users=UserRows(pixels, data.y_train, users, _scaled),
            test=(_scaled(data.x_test), data.y_test),
            public=public[0],
            public_train=public[1] if self.public_train else None,
            provenance=data.provenance,
            data_sha256=lambda: {"private": sha256(source.encode()).hexdigest()},
        )

    def _divided(self, labels: np.ndarray) -> Partition:
        from fedpriv.datasets import partitions
        from fedpriv.rng import Key

        key, number = Key.simulation(self.partition_seed).fold("users"), len(labels)
        if self.partition == "dirichlet":
            return partitions.split_by_dirichlet(labels, self.users, alpha=self.alpha, key=key)
        if self.partition == "shards":
            return partitions.split_by_shards(labels, self.users, shards=self.shards, key=key)
        if self.partition == "uniform":
            return partitions.split_uniformly(number, self.users, key=key)
        return partitions.split_by_quantity(
            number, self.users, law=self.partition, skew=self.skew, key=key
        )


def _scaled(pixels: Any) -> np.ndarray:
    """Return float32 of bytes: from 0 to 1 of grey images, else from -1 to 1."""
    import numpy as np

    found = np.asarray(pixels).astype(np.float32) / np.float32(255.0)
    return found if found.ndim == 3 else found * np.float32(2.0) - np.float32(1.0)


def _network(kind: str, data: Dataset) -> Callable[[], nn.Module]:
    import numpy as np
    from torch import nn

    from fedpriv.models.images import (
        DigitClassifier,
        SmallPhotographClassifier,
        SoftmaxRegression,
    )

    images: Any = data.x_train
    shape = images.shape[1:]
    number = 100 if data.name == "cifar100" else 10
    if kind == "linear":
        return lambda: nn.Sequential(nn.Flatten(), SoftmaxRegression(int(np.prod(shape)), number))
    if len(shape) == 2:
        return lambda: DigitClassifier(number)
    return lambda: SmallPhotographClassifier(number)


def mnist_users() -> FederatedExperiment:
    """DP-FedAvg on MNIST by 5,000 users of Dirichlet mixtures of digits."""
    return FederatedExperiment(
        name="mnist-users",
        description="DP-FedAvg on MNIST divided among users, by Dirichlet mixtures of digits.",
        task=ImagesByUser(),
        cohort=500.0,
        rounds=50,
        local=LocalSgd(learning_rate=0.5, batch_size=12),
        server=Momentum(learning_rate=0.5, momentum=0.9),
        bound=Clip(l2_clip_norm=1.0),
        target_epsilon=8.0,
    )


def cifar10_users() -> FederatedExperiment:
    """DP-FedAvg on CIFAR-10 by 500 users (`-s users=100` for 100)."""
    return FederatedExperiment(
        name="cifar10-users",
        description="DP-FedAvg on CIFAR divided among users: few, and near chance under privacy.",
        task=ImagesByUser(images="cifar10", users=500, network="convolutions"),
        cohort=50.0,
        rounds=100,
        local=LocalSgd(learning_rate=0.1, batch_size=20, epochs=2),
        bound=Clip(l2_clip_norm=1.0),
        target_epsilon=8.0,
    )


EXPERIMENTS = (mnist_users, cifar10_users)
