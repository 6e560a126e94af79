"""A SuperNode that looks for messages as often as they come, and not every three seconds."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.deployment.flower_private import check_flower, run_supernode
from fedpriv.deployment.pauses import Pauses

# What Flower sleeps where its SuperLink has no message; shorter sleeps are where it waits for an
# answer that is being computed, or for the parts of one.
_IDLE = 3.0


def supernode(arguments: Sequence[str], idle_seconds: float) -> None:
    """Run `flower-supernode` until it ends.

    Args:
        arguments: Its own; unless they name an isolation, it is `process`.
        idle_seconds: The longest pause between two looks for a message.

    Raises:
        ValueError: If Flower is one that was never tried, or the pause is not positive.
    """
    check_flower()
    pauses = Pauses(longest=idle_seconds)
    idle = True

    def pause(seconds: float) -> float:
        nonlocal idle
        if idle != (seconds >= _IDLE):
            idle = not idle
            pauses.worked()
        return min(seconds, pauses.next())

    named = any(item.partition("=")[0] == "--isolation" for item in arguments)
    run_supernode([*arguments, *([] if named else ["--isolation", "process"])], pause)
