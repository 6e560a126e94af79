"""What the loop runs of a linear model on examples, put together by hand, and what it charges."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.training.per_example.example_sum import example_ids


def components(
    plan: Any, algorithm: Any, trainer: Any, *, number: int, inputs: int = 3, **task: Any
) -> Any:
    """Return what the loop runs on so many examples, from params of zero.

    Args:
        task: What a task has besides its examples' ids and no measures.
    """
    return SimpleNamespace(
        dropout_rate=0.0,
        task=SimpleNamespace(roster=example_ids(number), measures=(), **task),
        plan=plan,
        plan_sha256="",
        algorithm=algorithm,
        trainer=trainer,
        init_params=lambda key: {
            "weight": np.zeros(inputs, np.float32),
            "bias": np.zeros(1, np.float32),
        },
    )


@contextmanager
def charges_noted() -> Iterator[list[tuple[int, Any]]]:
    """Yield the rounds and events of the charges that a ledger did not refuse."""
    charges, charge = [], Ledger.charge

    def noted(self: Any, round_num: int, attempt: int, event: Any, **rest: Any) -> None:
        charge(self, round_num, attempt, event, **rest)
        charges.append((round_num, event))

    with mock.patch.object(Ledger, "charge", noted):
        yield charges
