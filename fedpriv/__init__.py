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
    from fedpriv.api import flower as flower
    from fedpriv.api.averaging import averaging as averaging
    from fedpriv.api.bolt_on import Perturbed as Perturbed
    from fedpriv.api.bolt_on import bolt_on as bolt_on
    from fedpriv.api.forecast import Forecast as Forecast
    from fedpriv.api.forecast import forecast as forecast
    from fedpriv.api.result import Run as Run
    from fedpriv.api.result import compare as compare
    from fedpriv.api.result import load as load
    from fedpriv.api.rounds import Account as Account
    from fedpriv.api.rounds import Rounds as Rounds
    from fedpriv.api.rounds import bounded_sum as bounded_sum
    from fedpriv.api.running import experiment as experiment
    from fedpriv.api.running import resume as resume
    from fedpriv.api.running import run as run
    from fedpriv.api.running import tune as tune
    from fedpriv.api.studying import StudyResult as StudyResult
    from fedpriv.api.studying import study as study
    from fedpriv.api.uncertainty import RunUncertainty as RunUncertainty
    from fedpriv.api.uncertainty import run_uncertainty as run_uncertainty
    from fedpriv.experiments import CentralExperiment as CentralExperiment
    from fedpriv.experiments import Experiment as Experiment
    from fedpriv.experiments import FederatedExperiment as FederatedExperiment
    from fedpriv.privacy.ledger.ledger import Ledger as Ledger
    from fedpriv.privacy.mechanism import Mechanism as Mechanism
    from fedpriv.privacy.noise_grid import NoiseGrid as NoiseGrid
    from fedpriv.privacy.plan import Plan as Plan
    from fedpriv.rng import Key as Key
    from fedpriv.runs.callbacks import Callback as Callback
    from fedpriv.runs.folder import RunFolder as RunFolder
    from fedpriv.studies.search import Search as Search
    from fedpriv.studies.study import Method as Method
    from fedpriv.studies.study import Study as Study
    from fedpriv.tasks.checks import check_task as check_task
    from fedpriv.training.algorithm import ArrayState as ArrayState
    from fedpriv.training.convex_losses import Constants as Constants
    from fedpriv.training.local.module import load_params as load_params
    from fedpriv.training.local.module import module_params as module_params
    from fedpriv.training.permutation_sgd import loss_constants as loss_constants
    from fedpriv.training.step_schedules import ConstantStep as ConstantStep
    from fedpriv.training.step_schedules import DecreasingStep as DecreasingStep
    from fedpriv.training.step_schedules import PowerStep as PowerStep
    from fedpriv.training.step_schedules import SquareRootStep as SquareRootStep
    from fedpriv.training.step_schedules import StepSchedule as StepSchedule
    from fedpriv.training.step_schedules import StronglyConvexStep as StronglyConvexStep

__version__ = "0.1.0"

_ROOMS = {
    "fedpriv.api.bolt_on": ("Perturbed", "bolt_on"),
    "fedpriv.api.forecast": ("Forecast", "forecast"),
    "fedpriv.api.result": ("Run", "compare", "load"),
    "fedpriv.api.rounds": ("Account", "Rounds", "bounded_sum"),
    "fedpriv.api.running": ("experiment", "resume", "run", "tune"),
    "fedpriv.api.studying": ("StudyResult", "study"),
    "fedpriv.api.uncertainty": ("RunUncertainty", "run_uncertainty"),
    "fedpriv.experiments": ("CentralExperiment", "Experiment", "FederatedExperiment"),
    "fedpriv.privacy.ledger.ledger": ("Ledger",),
    "fedpriv.privacy.mechanism": ("Mechanism",),
    "fedpriv.privacy.noise_grid": ("NoiseGrid",),
    "fedpriv.privacy.plan": ("Plan",),
    "fedpriv.rng": ("Key",),
    "fedpriv.runs.callbacks": ("Callback",),
    "fedpriv.runs.folder": ("RunFolder",),
    "fedpriv.api.averaging": ("averaging",),
    "fedpriv.studies.search": ("Search",),
    "fedpriv.studies.study": ("Method", "Study"),
    "fedpriv.tasks.checks": ("check_task",),
    "fedpriv.training.algorithm": ("ArrayState",),
    "fedpriv.training.local.module": ("load_params", "module_params"),
    "fedpriv.training.convex_losses": ("Constants",),
    "fedpriv.training.permutation_sgd": ("loss_constants",),
    "fedpriv.training.step_schedules": (
        "ConstantStep",
        "DecreasingStep",
        "PowerStep",
        "SquareRootStep",
        "StepSchedule",
        "StronglyConvexStep",
    ),
}
_ROOM = {name: room for room, names in _ROOMS.items() for name in names}
_MODULES = {"flower": "fedpriv.api.flower"}

__all__ = [  # noqa: RUF022 - by what they are for
    # Describe, run, and look at runs.
    "CentralExperiment",
    "Experiment",
    "FederatedExperiment",
    "experiment",
    "run",
    "resume",
    "tune",
    "load",
    "compare",
    "Run",
    "run_uncertainty",
    "RunUncertainty",
    # Studies of many runs.
    "study",
    "Study",
    "Method",
    "Search",
    "StudyResult",
    # Called with what a run releases.
    "Callback",
    # What it costs.
    "Rounds",
    "Account",
    "NoiseGrid",
    "forecast",
    "Forecast",
    # A task of one's own.
    "check_task",
    # A training loop of one's own.
    "bounded_sum",
    "Plan",
    "Mechanism",
    "Ledger",
    "Key",
    "RunFolder",
    "ArrayState",
    # A permutation SGD of one's own, perturbed once.
    "bolt_on",
    "loss_constants",
    "Constants",
    "ConstantStep",
    "DecreasingStep",
    "PowerStep",
    "SquareRootStep",
    "StepSchedule",
    "StronglyConvexStep",
    "Perturbed",
    # Flower apps of one's own.
    "flower",
    "averaging",
    "module_params",
    "load_params",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = _room(_MODULES[name], name)
    elif name in _ROOM:
        value = getattr(_room(_ROOM[name], name), name)
    else:
        raise AttributeError(f"module 'fedpriv' has no attribute {name!r}")
    globals()[name] = value
    return value


def _room(room: str, name: str) -> Any:
    """Import a room of the API, or say that a Flower bundle holds only what a run needs."""
    try:
        return importlib.import_module(room)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{room}.".startswith(f"{missing.name}."):
            raise
        raise ImportError(
            f"fedpriv.{name} is not part of a Flower bundle, which holds what a run needs: "
            "call it where fedpriv is installed"
        ) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
