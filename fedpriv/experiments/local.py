"""Local training of a user, as a part."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.experiments.options import Part, option
from fedpriv.ranges import Range
from fedpriv.training.local.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd(Part):
    """Local SGD on a user's examples."""

    learning_rate: float = option(1.0, "Step size of local SGD.", Range.ABOVE_ZERO)
    batch_size: int = option(100, "Examples a local step.", Range.AT_LEAST_ONE)
    epochs: int = option(1, "Local passes.", Range.AT_LEAST_ONE)
    max_examples_per_user: int = option(256, "Cap of a user's work.", Range.AT_LEAST_ONE)

    def schedule(self) -> Schedule:
        """Return the schedule of local steps."""
        return Schedule(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            epochs=self.epochs,
            max_examples=self.max_examples_per_user,
        )
