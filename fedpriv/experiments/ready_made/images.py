"""CIFAR-10 and CIFAR-100 by DP-SGD with several views of each image, as De et al. train them.

`-s network=wide` is WRN-16-4, and `--device cuda:0` trains it on a GPU: not measured on a GPU.
`reduced` is for two cores. A start from a public pre-training run is `--start FILE`,
`-s start-which=ema`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedpriv.checkpoints.aggregates import Average
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.mechanisms import Clip
from fedpriv.optimizers import Sgd
from fedpriv.parts import Part, PositiveInt

if TYPE_CHECKING:
    import numpy as np

    from fedpriv.datasets.dataset import Dataset
    from fedpriv.tasks.central import CentralTask


# torch takes seconds to import, and experiments are listed for `fedpriv --help`.


@dataclass(frozen=True, slots=True, kw_only=True)
class CifarTask(Part):
    """Small photographs, classified.

    Attributes:
        photographs: Which data set.
        folder: Where its files lie; none to look around.
        classes: Half of the classes alone, numbered from 0: to train on what another half taught.
        network: reduced: WRN-10-1, 78,186 parameters with ten classes; wide: WRN-16-4.
        multiplicity: Views of an image, whose gradients are averaged before the bound.
    """

    photographs: Literal["cifar10", "cifar100"] = "cifar10"
    folder: str | None = None
    classes: Literal["all", "first-half", "last-half"] = "all"
    network: Literal["reduced", "wide"] = "reduced"
    multiplicity: PositiveInt = 4

    def __call__(self, experiment: object) -> CentralTask:
        """Return the task.

        Raises:
            ValueError: If the files are missing or damaged.
        """
        from fedpriv.datasets.images import load_cifar10, load_cifar100
        from fedpriv.models.wide import Views, WideResNet, views_loss
        from fedpriv.tasks.dataset_tasks import module_task

        fine = self.photographs == "cifar100"
        data = (load_cifar100 if fine else load_cifar10)(self.folder)
        number = 100 if fine else 10
        if self.classes != "all":
            number //= 2
            data = _of_classes(data, number if self.classes == "last-half" else 0, number)
        depth, width = (16, 4) if self.network == "wide" else (10, 1)

        def make() -> Views:
            network = WideResNet(number, depth=depth, width=width)
            return Views(network, self.multiplicity)

        return module_task(data, make, views_loss, _centred)


def _of_classes(data: Dataset, first: int, number: int) -> Dataset:
    """Return the examples of some classes, which are numbered from 0."""
    train, test = (
        (labels >= first) & (labels < first + number)
        for labels in (data.y_train, data.y_test)
    )  # fmt: skip
    return replace(
        data,
        name=f"{data.name}, classes {first} to {first + number - 1}",
        x_train=data.x_train[train],
        y_train=data.y_train[train] - first,
        x_test=data.x_test[test],
        y_test=data.y_test[test] - first,
    )


def _centred(images: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.asarray(images).astype(np.float32) / np.float32(127.5) - np.float32(1.0)


def dp_sgd_cifar() -> CentralExperiment:
    """DP-SGD with augmentation multiplicity and a running average of checkpoints."""
    return CentralExperiment(
        name="dp-sgd-cifar",
        description="DP-SGD on CIFAR: views of each image averaged before the bound, EMA.",
        task=CifarTask(),
        batch_size=200.0,
        epochs=2.0,
        bound=Clip(l2_clip_norm=1.0),
        optimizer=Sgd(learning_rate=2.0),
        target_epsilon=8.0,
        delta=1e-5,
        aggregate=Average(ema_decay=0.9),
    )


EXPERIMENTS = (dp_sgd_cifar,)
