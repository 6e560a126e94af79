"""Who came to a round: what a simulation may diagnose, and an algorithm never sees."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fedpriv.training.failures import mostly_failed

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Turnout:
    """Sizes of a round's last answer; they are private, and in secure mode they are not kept.

    Attributes:
        cohort_size: Users drawn.
        num_failed: Of these, users that contributed zero because they failed.
    """

    cohort_size: int = 0
    num_failed: int = 0
    _warned: bool = field(default=False, init=False)

    def note(self, cohort_size: int, num_failed: int) -> None:
        """Keep what is true of the answer just made."""
        self.cohort_size, self.num_failed = cohort_size, num_failed

    def warn_once(self, round_num: int, unit: str) -> None:
        """Log the first time that more than half of those who were drawn failed."""
        if self._warned or not mostly_failed(self.num_failed, self.cohort_size):
            return
        self._warned = True
        _LOG.warning(
            "round %d: %d of %d drawn %ss failed and contribute zero; what this run learns is "
            "mostly noise",
            round_num,
            self.num_failed,
            self.cohort_size,
            unit,
        )
