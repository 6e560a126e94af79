"""How long to wait between two looks for work: the shorter, the sooner it came last time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fedpriv.ranges import positive_float

SHORTEST = 0.04
#: In the folder of bundles; its time is that of the last answer to a look for work.
ASKED = "asked"
_SHARE = 0.15


@dataclass(slots=True, kw_only=True)
class Pauses:
    """Pauses that grow with the time without work.

    Work that comes in after t seconds has waited for three twentieths of that at most, and for
    `longest` at most, while whoever is idle looks for it every `longest` seconds only.

    Attributes:
        longest: Seconds between two looks; above 0.
        clock: Seconds, monotonic.
    """

    longest: float
    clock: Callable[[], float] = time.monotonic
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        positive_float("idle-seconds", self.longest)
        self._since = self.clock()

    def worked(self) -> None:
        """Note that there was work."""
        self._since = self.clock()

    def next(self) -> float:
        """Return the seconds until the next look."""
        waited = self.clock() - self._since
        return min(self.longest, max(SHORTEST, _SHARE * waited))
