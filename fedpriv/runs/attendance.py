"""Attendance of a round: what a simulation may diagnose, and an algorithm never sees."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fedpriv.sums import PartialSum
from fedpriv.training.failures import mostly_failed

_LOG = logging.getLogger(__name__)


FAILED_IN_A_ROW = 20
"""Users who failed one after another after which a run that has learnt something ends, too.

Where half of all users fail so many do by chance once in a million.
"""


FEWEST_WHO_MOSTLY_FAIL = 10
"""Users of a first round, of which more than half failed, after which a run ends, too."""


class AllUsersFailedError(ValueError):
    """All users that a simulation drew failed, or most of the first: it would learn noise."""


@dataclass(slots=True)
class Attendance:
    """Sizes of a round's last answer; they are private, and in secure mode they are not kept.

    Attributes:
        ends: Whether the run ends where no update is of use.
        has_learnt: Whether an update was of use in an earlier round.
        cohort_size: Users drawn.
        num_failed: Of these, users that contributed zero because they failed.
        first_error: What the first of them raised, a line and perhaps a traceback; None where
            no user failed or it is not known.
        absent: Why users contributed zero without an error, as far as that is known.
    """

    ends: bool = True
    has_learnt: bool = False
    cohort_size: int = 0
    num_failed: int = 0
    first_error: str | None = None
    absent: str | None = None
    _asked: bool = field(default=False, init=False)
    _useful: bool = field(default=False, init=False)
    _in_a_row: int = field(default=0, init=False)
    _warned: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Open an answer, which may take many passes."""
        self.cohort_size, self.num_failed, self.first_error, self.absent = 0, 0, None, None
        self._asked = self._useful = False

    def note(self, cohort_size: int, total: PartialSum) -> None:
        """Record the sizes and failures of a pass over this many users."""
        self._asked |= cohort_size > 0
        most = not self.has_learnt and cohort_size >= FEWEST_WHO_MOSTLY_FAIL
        most = most and mostly_failed(total.num_failed, cohort_size)
        most = most and total.first_error is not None and total.absent is None
        self._useful |= total.num_failed < cohort_size and not most
        self.cohort_size, self.num_failed = cohort_size, total.num_failed
        self.first_error = total.first_error or self.first_error
        self.absent = total.absent or self.absent

    def end_if_all_failed(self, round_num: int, unit: str) -> None:
        """End the run where all who were drawn failed; an empty cohort is no failure.

        Or where most of at least `FEWEST_WHO_MOSTLY_FAIL` did, before an update was of use.

        Once an update was of use, a small cohort of users who all fail may be chance: then a run
        ends when `FAILED_IN_A_ROW` have failed one after another. Users who are merely away, as
        those of a node that was stopped, raise no error, and may come back: their round is released
        as noise.

        Raises:
            AllUsersFailedError: With the first error.
        """
        if self._useful:
            self.has_learnt, self._in_a_row = True, 0
            return
        if not self._asked or self.first_error is None:
            return
        self._in_a_row += self.cohort_size
        if not self.ends or (self.has_learnt and self._in_a_row < FAILED_IN_A_ROW):
            return
        who = f"{self.num_failed} of" if self.num_failed < self.cohort_size else "all"
        raise AllUsersFailedError(
            f"round {round_num}: {who} {self.cohort_size} drawn {unit}s failed and add zero, so "
            "that the run learns little but noise; it ends here, before more is charged. "
            f"The first error: {self.first_error}"
        )

    def warn_once(self, round_num: int, unit: str) -> None:
        """Log the first time that more than half of those who were drawn failed, and why."""
        if self._warned or not mostly_failed(self.num_failed, self.cohort_size):
            return
        self._warned = True
        _LOG.warning(
            "round %d: %d of %d drawn %ss failed and contribute zero; what this run learns is "
            "mostly noise; %s",
            round_num,
            self.num_failed,
            self.cohort_size,
            unit,
            self._why().partition("\n")[0],
        )

    def _why(self) -> str:
        error = self.first_error and f"the first error: {self.first_error}"
        return "; ".join(filter(None, (self.absent, error))) or "no error of theirs came here"
