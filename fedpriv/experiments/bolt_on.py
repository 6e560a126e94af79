"""Bolt-on: training without noise, whose result is perturbed once (Wu et al., SIGMOD 2017)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fedpriv.experiments.averaging import trainer_on
from fedpriv.experiments.experiment import Components, Experiment, TaskFactory, Unit, register
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.mechanisms import SideInformation
from fedpriv.mechanisms.event import Relation
from fedpriv.mechanisms.perturbation import OutputGaussian, Unperturbed
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.parts import NonNegativeFloat, Part, PositiveFloat, PositiveInt
from fedpriv.privacy.epsilon import default_delta, format_delta
from fedpriv.training.algorithm import TRAIN, Algorithm
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.step_schedules import ConstantStep, StepSchedule
from fedpriv.training.work import Trainers, as_works

if TYPE_CHECKING:  # which loads scipy
    from fedpriv.training.permutation_sgd import Passes


@dataclass(frozen=True, slots=True, kw_only=True)
class SphereNoise(Part):
    """Noise of uniform direction and Gamma length: pure ε, δ = 0."""

    kind: ClassVar[str] = "sphere"

    def privatizer(self, experiment: Experiment, num_users: int) -> Privatizer:
        """Return the noise whose ε under the experiment's neighbouring relation is the target.

        Raises:
            ValueError: If there is no target; or a δ, which is not needed.
        """
        if experiment.target_epsilon is None:
            raise ValueError("output-noise 'sphere' needs target-epsilon")
        if experiment.delta is not None:
            raise ValueError(
                f"delta {format_delta(experiment.delta)}: output-noise 'sphere' is of pure ε; "
                "leave delta out, or use output-noise 'gaussian'"
            )
        from fedpriv.training.bolt_on import output_noise

        return output_noise(experiment.target_epsilon, None, experiment.neighbours())


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianOutput(Part):
    """Gaussian noise, of the least standard deviation that keeps ε at δ.

    Attributes:
        noise_multiplier: Stddev over sensitivity; none to calibrate.
    """

    kind: ClassVar[str] = "gaussian"

    noise_multiplier: PositiveFloat | None = None

    def privatizer(self, experiment: Experiment, num_users: int) -> Privatizer:
        """Return the noise, calibrated where there is a target.

        Raises:
            ValueError: If neither or both of the options are given.
        """
        from fedpriv.training.bolt_on import output_noise

        sigma, target, delta = self.noise_multiplier, experiment.target_epsilon, experiment.delta
        if sigma is not None and target is None:
            return OutputGaussian(noise_multiplier=sigma)
        if target is None or sigma is not None:
            raise ValueError("output-noise 'gaussian' needs target-epsilon or noise-multiplier")
        delta = default_delta(num_users) if delta is None else delta
        return output_noise(target, delta, experiment.neighbours())


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOutputNoise(Part):
    """The result as it is: not private."""

    kind: ClassVar[str] = "none"

    def privatizer(self, experiment: Experiment, num_users: int) -> Privatizer:
        """Return a privatizer that adds nothing.

        Raises:
            ValueError: If there is a target.
        """
        if experiment.target_epsilon is not None:
            raise ValueError(
                f"target-epsilon {experiment.target_epsilon:g} and output-noise 'none': without "
                "noise ε is infinite; leave one of them out"
            )
        return Unperturbed()


OutputNoise = SphereNoise | GaussianOutput | NoOutputNoise


@dataclass(frozen=True, kw_only=True)
class _BoltOn(Experiment):
    """Base of bolt-on over users and over examples: one charge for one perturbed result.

    Attributes:
        passes: k, passes over all of them.
        regulariser: λ of λ/2 ‖w‖².
        radius: R of the ball that params are projected onto; none for no ball.
        step: Step sizes of permutation SGD.
        output_noise: What is added to the result.
    """

    method: ClassVar[str] = "bolt-on"

    passes: PositiveInt = 1
    regulariser: NonNegativeFloat = 0.0
    radius: PositiveFloat | None = None
    step: StepSchedule = ConstantStep()
    output_noise: OutputNoise = SphereNoise()

    @abstractmethod
    def make_algorithm(self, task: Any, trainer: Any) -> tuple[Algorithm, float]:
        """Return the algorithm, and Δ: how far one user or example may move its result, in l2."""

    def make_components(self, task: Any) -> Components:
        """Return the components of bolt-on; see `Experiment.make_components`."""
        from fedpriv.training.bolt_on import plan_of_release

        trainer, number = self.make_trainer(task), len(task.roster)
        algorithm, sensitivity = self.make_algorithm(task, trainer)
        return Components(
            task=task,
            plan=plan_of_release(
                number,
                sensitivity,
                self.output_noise.privatizer(self, number),
                relation=self.neighbours(),
                delta=self.delta,
                roster_sha256=task.roster_sha256,
                unit=self.unit,
                max_examples_per_user=self.most_examples or None,
            ),
            algorithm=algorithm,
            trainer=trainer,
            start=self.start.make,
        )

    def _passes(self, batch_size: int, *, average: bool = False) -> Passes:
        from fedpriv.training.permutation_sgd import Passes

        return Passes(
            passes=self.passes,
            schedule=self.step,
            radius=self.radius,
            batch_size=batch_size,
            average=average,
        )


@register
@dataclass(frozen=True, kw_only=True)
class FederatedBoltOn(_BoltOn):
    """Bolt-on over users: a batch of users at a time, in random order, without noise.

    Attributes:
        users_per_update: b; users who do not fill a last update sit out.
        local_steps: K full gradient steps of a user; above 1 with a constant rate.
        server_rate: s in (0, 1], of a batch's mean update.
        longest_start: The longest start that Δ has room for rounding of, in l2; 0 of one at zero.
        max_examples_per_user: Cap of a user's work.
    """

    task: TaskFactory = field(default=TagPredictionTask(), repr=False)
    users_per_update: PositiveInt = 50
    local_steps: PositiveInt = 1
    server_rate: PositiveFloat = 1.0
    longest_start: NonNegativeFloat = 100.0
    max_examples_per_user: PositiveInt = 256

    @property
    def most_examples(self) -> int:
        """Most examples that a user trains on."""
        return self.max_examples_per_user

    def make_algorithm(self, task: Any, trainer: Any) -> tuple[Algorithm, float]:
        """Return what trains and releases once, and how far one user may move the result."""
        from fedpriv.training.bolt_on import BoltOnUsers

        algorithm = BoltOnUsers(
            passes=self._passes(self.users_per_update),
            constants=self._constants(task),
            local_steps=self.local_steps,
            server_rate=self.server_rate,
            longest_start=self.longest_start,
        )
        return algorithm, algorithm.sensitivity(len(task.roster))

    def make_trainer(
        self, task: Any, side: SideInformation | None = None, device: str | None = None
    ) -> Trainers:
        """Return users' full gradient steps; see `Experiment.make_trainer`."""
        self._constants(task)
        most, steps = self.max_examples_per_user, self.local_steps
        # At rate 1: each update's step size comes with its request.
        local = LocalSgd(
            learning_rate=1.0, batch_size=most, epochs=steps, max_examples_per_user=most
        )
        trainer = as_works(trainer_on(device, task, local, {}))
        for work in trainer.values():
            local.check_taken(work, rates=True)
        return {TRAIN: trainer[TRAIN]}

    def _constants(self, task: Any) -> Any:
        from fedpriv.training.bolt_on import KnowsConstants

        if not isinstance(task, KnowsConstants):
            raise ValueError(
                "method 'bolt-on' is of convex losses whose constants are known, and those of "
                f"{type(task).__name__} are not: give it constants(regulariser=...), or use method "
                "'averaging' or 'agd'"
            )
        return task.constants(regulariser=self.regulariser)


@register
@dataclass(frozen=True, kw_only=True)
class CentralBoltOn(_BoltOn):
    """Bolt-on: permutation SGD on a convex loss without noise, perturbed once.

    Attributes:
        batch_size: b; what does not fill a last batch sits out.
        average: Release the mean of all iterates, and not the last.
    """

    unit: ClassVar[Unit] = "example"

    batch_size: PositiveInt = 50
    average: bool = False

    def neighbours(self) -> Relation:
        """Return the neighbouring relation: replace-one, of which the sensitivity is proved."""
        # A set of one less has other batches, and moves further than one whose place stays empty.
        return Relation.of("replace-one" if self.relation is None else self.relation)

    def make_algorithm(self, task: Any, trainer: Any) -> tuple[Algorithm, float]:
        """Return what asks once, and how far one example may move the result."""
        from fedpriv.training.bolt_on import BoltOn
        from fedpriv.training.permutation_sgd import LONGEST_START

        moved = trainer.passes.sensitivity(trainer.constants, task.num_train, start=LONGEST_START)
        return BoltOn(longest_start=LONGEST_START), moved

    def make_trainer(
        self, task: Any, side: SideInformation | None = None, device: str | None = None
    ) -> Trainers:
        """Return permutation SGD over all examples; see `Experiment.make_trainer`."""
        if device is not None:
            raise ValueError(
                f"device {device!r}: bolt-on by example computes on the processor; leave the "
                "device out"
            )
        make = getattr(task.train, "permutation_sgd", None)
        if make is None:
            raise ValueError(
                "method 'bolt-on' is of convex losses whose constants are known, and those of "
                f"{type(task.train).__name__} are not; use a linear model, or method 'averaging'"
            )
        return make(
            self._passes(self.batch_size, average=self.average), regulariser=self.regulariser
        )
