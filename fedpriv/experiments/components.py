"""Components that an experiment is made into once its data are at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
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


LONGEST_NOISE = 2.0
"""Of `Settings.noise_length`: above, gains over public examples were small or none."""
FEWEST_PUBLIC_EXAMPLES = 50
"""Below, public examples seldom show a gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings, and what they follow from.

    Attributes:
        chosen: Names of the options that were not given.
        cohort: Expected number of users a round.
        rounds: T.
        l2_clip_norm: C.
        start_factor: What is kept of a public start; None for what the public search chooses, or
            where training does not start from one.
        update_norm: Median l2 norm of public users' updates; None where it was not measured.
        noise_on_mean: s, of one release of everybody over C.
        noise_on_logit: τ that these settings come to.
        noise_length: s √d for d parameters: l2 norm of the noise on the mean of one release of
            everybody, over C.
        num_public_examples: Of the training threads that public users asked.
    """

    chosen: tuple[str, ...]
    cohort: float
    rounds: int
    l2_clip_norm: float
    start_factor: float | None
    update_norm: float | None
    noise_on_mean: float
    noise_on_logit: float
    noise_length: float
    num_public_examples: int

    @property
    def expects_gain(self) -> bool:
        """Whether private training is expected to beat public examples alone."""
        return self.noise_length <= LONGEST_NOISE

    @property
    def can_show_gain(self) -> bool:
        """Whether there are enough public examples to show that it does."""
        return self.num_public_examples >= FEWEST_PUBLIC_EXAMPLES

    def __str__(self) -> str:
        norm = (
            ""
            if self.update_norm is None
            else (f"; the median norm of public users' updates is {self.update_norm:.3g}")
        )
        start = (
            "" if self.start_factor is None else f", {self.start_factor:g} of the public start kept"
        )
        return (
            f"cohort {self.cohort:,.0f}, {self.rounds:,} rounds, l2 clip norm "
            f"{self.l2_clip_norm:.3g}{start} "
            f"(noise on a logit at the end: {self.noise_on_logit:.2g}{norm})"
        )

    def caution(self, *, selects: bool) -> str:
        """Return that no gain is to be expected, or none can be shown, with what would help.

        Args:
            selects: Whether the returned model is selected on public examples.

        Returns:
            A sentence; "" where a gain is expected.
        """
        if not self.expects_gain:
            return (
                "little or no gain over public examples alone is to be expected: the noise of one "
                f"release of everybody is {self.noise_length:.2g} times as long as a clipped "
                "update; more users, a larger ε or a smaller model would help"
            )
        if selects and not self.can_show_gain:
            return (
                f"{self.num_public_examples} public examples are hardly enough to show that "
                "private training helps, and what is returned will likely be the model of public "
                "examples alone; give more of them, or set select last"
            )
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **asdict(self),
            "chosen": list(self.chosen),
            "expects_gain": self.expects_gain,
            "can_show_gain": self.can_show_gain,
        }


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
