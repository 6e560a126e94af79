"""One step of an algorithm, played beforehand on synthetic examples; nothing is charged or kept.

An algorithm of one's own asks for works by name and gives them further tensors, which it makes of
earlier answers. So they cannot be tried one by one: the algorithm itself is played, through the
same door, with a ledger in memory and a backend on which a synthetic user stands for each cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from fedpriv.mechanisms.bounds import Bound
from fedpriv.privacy.ledger.ledger import BudgetSpentError, Ledger
from fedpriv.rng import Key
from fedpriv.running.door.door import RunDoor
from fedpriv.running.door.vault import Vault
from fedpriv.running.loop import Runnable
from fedpriv.sums import PartialSum
from fedpriv.tasks.trial import try_trainer, try_work
from fedpriv.tasks.users_apart import FreshWorks
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.work import TRAIN, LocalTrainer, Trainers, Work, as_works, find_work
from fedpriv.tree import Params


def try_components(
    components: Runnable, params: Params, batch: Any, again: Callable[[], Trainers]
) -> None:
    """Try what users do on a synthetic batch.

    Federated averaging asks for one trainer's updates of the params: that one trains. Of anything
    else the first step is played. In both each work is asked for synthetic users in
    turn, in several orders, each of a trainer that has seen nothing.

    Args:
        components: Of the experiment.
        params: Before the first round; not changed.
        batch: Examples in the form of one user's, of no one on the roster.
        again: Makes what a user does again, as another process would.

    Raises:
        Exception: What the algorithm, a work or a trainer raises.
        ValueError: If a contribution has other tensors than it should or is not finite, or a work
            fails and keeps to itself why.
        KeepsStateError: If one user's contribution depends on another user.
    """
    trainer, algorithm, task = components.trainer, components.algorithm, components.task
    fresh = FreshWorks.of(trainer, again, task, getattr(task, "data", None))
    if isinstance(algorithm, FederatedAveraging) and isinstance(trainer, LocalTrainer):
        try_trainer(trainer, params, batch, fresh)
    else:
        _play(components, params, batch, fresh)


def _play(components: Runnable, params: Params, batch: Any, fresh: FreshWorks) -> None:
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
            backend=_OnSyntheticUsers(works, batch, fresh),
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

    def __init__(self, works: Mapping[str, Work], batch: Any, fresh: FreshWorks) -> None:
        self._works, self._batch, self._fresh = works, batch, fresh
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
            fresh=None if work in self._apart else self._fresh,
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
