"""fedpriv: federated learning with user-level differential privacy.

The same plan, the same round and the same users, simulated in one process or deployed on Flower.

    import fedpriv as fp

    run = fp.run("dp-fedavg-tags", out="runs/first", rounds=10)
    print(run)               # figures, and the privacy statement
    run.rounds()             # a pandas data frame

Every name of the API is loaded when it is first used, so that importing fedpriv stays instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Type checkers and editors read this block; what runs is `_ROOMS`, and a test holds the two equal.
if TYPE_CHECKING:
    from fedpriv.api.account import Account as Account
    from fedpriv.api.account import account as account
    from fedpriv.api.account import calibrate as calibrate
    from fedpriv.api.result import Run as Run
    from fedpriv.api.result import compare as compare
    from fedpriv.api.result import load as load
    from fedpriv.api.running import experiment as experiment
    from fedpriv.api.running import resume as resume
    from fedpriv.api.running import run as run
    from fedpriv.experiments.experiment import Experiment as Experiment

__version__ = "0.1.0"

_ROOMS = {
    "fedpriv.api.account": ("Account", "account", "calibrate"),
    "fedpriv.api.result": ("Run", "compare", "load"),
    "fedpriv.api.running": ("experiment", "resume", "run"),
    "fedpriv.experiments.experiment": ("Experiment",),
}
_ROOM = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [  # noqa: RUF022 - by what they are for
    "Experiment",
    "experiment",
    "run",
    "resume",
    "load",
    "compare",
    "Run",
    "account",
    "calibrate",
    "Account",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOM:
        raise AttributeError(f"module 'fedpriv' has no attribute {name!r}")
    value = getattr(importlib.import_module(_ROOM[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOM})
