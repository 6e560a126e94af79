"""One step of an algorithm, played beforehand on synthetic examples; nothing is charged or kept.

An algorithm of one's own asks for works by name and gives them further tensors, which it makes of
earlier answers. So they cannot be tried one by one: the algorithm itself is played, through the
same door, with a ledger in memory and a backend on which a synthetic user stands for each cohort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from fedpriv.mechanisms.bound import Bound
from fedpriv.privacy.ledger.ledger import BudgetSpentError, Ledger
from fedpriv.rng import Key
from fedpriv.running.door.door import RunDoor
from fedpriv.running.door.vault import Vault
from fedpriv.running.loop import Runnable
from fedpriv.sums import PartialSum
from fedpriv.tasks.trial import try_trainer, try_work
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.work import TRAIN, LocalTrainer, Work, as_works, find_work
from fedpriv.tree import Params


def try_components(components: Runnable, params: Params, batch: Any) -> None:
    """Try what users do on a synthetic batch.

    Federated averaging asks for one trainer's updates of the params: that one trains. Of anything
    else the first step is played. In both each work is asked for two synthetic users in turn.

    Args:
        components: Of the experiment.
        params: Before the first round; not changed.
        batch: Examples in the form of one user's, of no one on the roster.

    Raises:
        Exception: What the algorithm, a work or a trainer raises.
        ValueError: If a contribution has other tensors than it should or is not finite, or a work
            fails and keeps to itself why.
        KeepsStateError: If one user's contribution depends on another user.
    """
    trainer, algorithm = components.trainer, components.algorithm
    if isinstance(algorithm, FederatedAveraging) and isinstance(trainer, LocalTrainer):
        try_trainer(trainer, params, batch)
    else:
        _play(components, params, batch)


def _play(components: Runnable, params: Params, batch: Any) -> None:
    plan, algorithm, root = (
        components.plan,
        components.algorithm,
        Key.simulation(0).fold("rehearsal"),
    )
    works = as_works(components.trainer)
    # Where the run itself starts: another start may be longer, and refused.
    state = algorithm.init({name: array.copy() for name, array in params.items()})
    with ThreadPoolExecutor(1, thread_name_prefix="noise") as noise_thread:
        door = RunDoor(
            plan=plan,
            ledger=Ledger.in_memory(plan, mode=root.mode),
            backend=_OnSyntheticUsers(works, batch),
            works=works,
            roster=components.task.roster,
            root=root,
            vault=Vault(None, root),
            noise_thread=noise_thread,
        )
        door.begin(state.round_num + 1)
        try:
            algorithm.step(state, door)
        except BudgetSpentError:
            if plan.planned_rounds is not None:  # else the run ends here, and is allowed to
                raise


class _OnSyntheticUsers:
    """A `fedpriv.backends.backend.Backend` where one synthetic user stands for each cohort."""

    def __init__(self, works: Mapping[str, Work], batch: Any) -> None:
        self._works, self._batch = works, batch
        self._apart: set[str] = set()

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        cohort: Sequence[str],
        key: Key,
        round_num: int,
        attempt: int,
        work: str = TRAIN,
        template: Params | None = None,
    ) -> PartialSum:
        """Return the sum of one synthetic user; an empty cohort has one too."""
        asked = find_work(self._works, work)
        # A program asks in many passes: of the first it is known that users are apart.
        found = try_work(
            asked,
            params=params,
            bound=bound,
            batch=self._batch,
            name=work,
            apart=work not in self._apart,
        )
        self._apart.add(work)
        return replace(found, num_users=len(cohort))

    def evaluate(self, params: Params, *, public: bool) -> None:
        """Return that nothing is measured."""

    def describe(self) -> dict[str, Any]:
        """Return that no user is asked."""
        return {"name": "synthetic users"}

    def close(self) -> None:
        """Nothing is held."""
