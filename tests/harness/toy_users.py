"""Synthetic users with a handful of points each, and experiments of small modules on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.tasks.module_task import ModuleTask


def person(number: int, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Return points of four coordinates, and whether the first of each is positive."""
    x = np.random.default_rng(number).normal(size=(size, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def toy_experiment(task: dict[str, Any] | None = None, **options: Any) -> FederatedExperiment:
    """Return four rounds of a linear model on twelve users.

    Args:
        task: What the `ModuleTask` is given besides.
        **options: Of the experiment; it has noise unless they say otherwise.
    """
    given = {
        "module": lambda: nn.Linear(4, 2),
        "loss": nn.functional.cross_entropy,
        "users": {f"u{n:02d}": person(n) for n in range(12)},
        "public": person(98, 60),
        "synthetic": True,
        **(task or {}),
    }
    made = FederatedExperiment(
        name="own",
        description="",
        task=lambda experiment: ModuleTask(name="own", **given),
        rounds=4,
        delta=0.01,
    )
    usual = {} if options.get("noise") == "none" else {"noise_multiplier": 1.0}
    return made.with_options({"cohort": 6.0, **usual, **options})
