"""Components that an experiment is made into once its data are at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.experiments.start import PublicOnly, Start
from fedpriv.mechanisms import SideInformation
from fedpriv.privacy.plan import AnyPlan
from fedpriv.rng import Key
from fedpriv.training.algorithm import Algorithm
from fedpriv.training.evaluate import check_measurable
from fedpriv.training.work import Trainers
from fedpriv.tree import Params

if TYPE_CHECKING:
    from fedpriv.experiments.experiment import Experiment
    from fedpriv.experiments.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Components of a run.

    Attributes:
        task: The data, the model and its measures: a `Task`, or a `CentralTask` of examples.
        plan: Fixed, with the mechanism that runs, or adaptive, where each query brings its own.
        algorithm: What is asked of users, and what is made of the answers.
        trainer: Local training, or the sum of bounded updates over a batch of examples.
        side_information: Further knowledge and where it came from; None for none.
        start: Makes the params before the first round; None takes the task's own.
        experiment: Of which they are made, each option with its value; None where of none.
        settings: What was chosen from the data's size, and why; None where nothing was.

    Raises:
        ValueError: If the plan was made for another number of users than the task's roster has:
            cohorts would be drawn with another probability than its ε is of. If the clip norm
            adapts and noise is correlated over rounds. If outputs are
            to be aggregated, and the task's model is no classifier.
    """

    task: Any
    plan: AnyPlan
    algorithm: Algorithm
    trainer: Trainers
    side_information: SideInformation | None = None
    start: Callable[[Any, Key, PublicOnly | None], Start] | None = None
    experiment: Experiment | None = None
    settings: Settings | None = None

    def __post_init__(self) -> None:
        self.plan.check_roster(self.task.roster)
        self.algorithm.check_plan(self.plan)
        check_measurable(self.task, self.algorithm)

    def begin(self, key: Key, found: PublicOnly | None = None) -> Start:
        """Return the params before the first round, and where they came from.

        Args:
            key: For what is drawn.
            found: What public examples alone were found to make, where that is known.

        Raises:
            ValueError: If the task cannot give such a start.
        """
        if self.start is None:
            return Start(params=self.task.init_params(key), facts={"kind": "fresh"})
        return self.start(self.task, key, found)

    def init_params(self, key: Key) -> Params:
        """Return the params before the first round, float32."""
        return self.begin(key).params
