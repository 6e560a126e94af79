"""What privatizers share whose answers have nothing to do with each other."""

from __future__ import annotations

from fedpriv.noise.privatizer import AfterCrash, Memory
from fedpriv.rng import Key
from fedpriv.tree import Tree


class Memoryless:
    """Half of a privatizer: it carries nothing on, and a lost attempt is charged anew."""

    __slots__ = ()

    @property
    def after_crash(self) -> AfterCrash:
        """A lost attempt is charged anew, with noise of its own."""
        return "retry"

    def init(self, template: Tree, key: Key) -> Memory:
        """Return nothing: answers have nothing to do with each other."""
        return {}


class MadeAgain(Memoryless):
    """The same half where a release that was cut off is made again, bit for bit."""

    __slots__ = ()

    @property
    def after_crash(self) -> AfterCrash:
        """A release that was cut off is made again, the same, and is charged once."""
        return "replay"
