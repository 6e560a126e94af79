"""Predicted conversion rates of clicks by DP-SGD: a log in Criteo's form, or a synthetic one.

The pCVR data of Shejwalkar et al., "Recycling Scraps" (2025), are proprietary; a log in Criteo's
published form (`-s log=FILE`) is of the same kind. Without one the log is synthetic, and everything
that is made of it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.mechanisms import Clip
from fedpriv.optimizers import Sgd
from fedpriv.parts import Part, PositiveInt

if TYPE_CHECKING:
    from fedpriv.tasks.central import CentralTask


# SciPy takes long to import, and experiments are listed for `fedpriv --help`.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionTask(Part):
    """Conversions of clicks, by a logistic model.

    Attributes:
        log: A log in Criteo's form; none for a synthetic one.
        log_rows: Lines of it at most.
        buckets: Columns that categories are hashed into.
    """

    log: str | None = None
    log_rows: PositiveInt = 5_000
    buckets: PositiveInt = 2_000

    def __call__(self, experiment: object) -> CentralTask:
        """Return the task.

        Raises:
            ValueError: If the log is missing or not of that form.
        """
        from fedpriv.datasets.criteo import load_criteo, synthetic_criteo
        from fedpriv.tasks.dataset_tasks import conversion_task

        if self.log is None:
            return conversion_task(synthetic_criteo(self.log_rows, buckets=self.buckets))
        return conversion_task(load_criteo(self.log, rows=self.log_rows, buckets=self.buckets))


def dp_sgd_conversions() -> CentralExperiment:
    """DP-SGD with a running average of checkpoints."""
    return CentralExperiment(
        name="dp-sgd-conversions",
        description="DP-SGD on conversions of clicks, measured by AUC loss.",
        task=ConversionTask(),
        batch_size=250.0,
        epochs=5.0,
        bound=Clip(l2_clip_norm=0.5),
        optimizer=Sgd(learning_rate=4.0),
        target_epsilon=6.0,
        delta=1e-5,
    )


EXPERIMENTS = (dp_sgd_conversions,)
