"""Methods that bring a plan, an algorithm and works of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from fedpriv.experiments.composing.composition import Slot

# torch takes seconds to import, and declarations are read for `fedpriv --help`: what a method makes
# is imported where it is made, and typed as anything here.


class OwnMethod(Protocol):
    """A method with an experiment's options."""

    def plan(self, task: Any) -> Any:
        """Return the promise.

        Raises:
            ValueError: If the options do not fit together, or not the task.
        """
        ...

    def algorithm(self, task: Any) -> Any:
        """Return what asks and steps; errors are those of `plan`."""
        ...

    def works(self, task: Any, device: str = "cpu") -> Any:
        """Return what users do, or the sums over examples, by name.

        Raises:
            ValueError: If the task lacks what the method asks of it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """Bounded updates, averaged with noise: federated averaging, DP-SGD and their like."""

    def own(self, promise: Any, parts: Any) -> OwnMethod | None:
        """Return None: what averaging is made of are parts of their own."""
        return None


def method_slot(**choices: type) -> Slot:
    """Return the slot of methods; the first is averaging."""
    return Slot(
        name="method",
        help="What is asked of private data: averaging of noisy updates, gradient descent whose "
        "budget adapts (agd), or training without noise that is perturbed once (bolt-on).",
        choices={"averaging": Averaging, **{n.replace("_", "-"): c for n, c in choices.items()}},
        before="averaging",
    )
