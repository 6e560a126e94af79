"""Averaging of bounded updates under noise: of users (federated) and of examples (DP-SGD)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, ClassVar, Literal

from fedpriv.checkpoints.aggregates import Aggregate, Last
from fedpriv.experiments.experiment import Components, Experiment, TaskFactory, Unit, register
from fedpriv.experiments.noise import CorrelatedNoise, GaussianNoise, Noise
from fedpriv.experiments.options import check_effect
from fedpriv.experiments.preconditioning import (
    Nowhere,
    Precondition,
    PreconditionerRecipe,
    Surroundings,
    choose_preconditioner,
)
from fedpriv.experiments.sampling import PoissonSampling, Sampling, limit_of
from fedpriv.experiments.start import Fresh
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.mechanisms import Bound, Clip, Rounded, SideInformation, Unbounded
from fedpriv.mechanisms.event import Relation
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.preconditioners import Preconditioner
from fedpriv.optimizers import (
    Factor,
    Optimizer,
    Scheduled,
    Sgd,
    cyclic,
    inverse_root,
    stepwise,
)
from fedpriv.parts import NonNegativeInt, PositiveFloat, PositiveInt
from fedpriv.privacy.accounting import check_relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import BY_EXAMPLE, Plan
from fedpriv.privacy.sampling import FixedSizeSampler, Sampler
from fedpriv.rng import Key
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.task import Task
from fedpriv.training.devices import keep_freed_memory
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.per_example.example_sum import (
    CentralSum,
    gradients_on,
    warm_start,
)
from fedpriv.training.work import Trainers, as_works
from fedpriv.transform import Chain, Transform
from fedpriv.tree import Params

_MANY = 10**7
"""Users or examples with which parts are tried: enough for any cohort."""
_SHARE = 20
"""A cohort that is not given is one of so many parts of the roster."""


@dataclass(frozen=True, kw_only=True)
class Averaging(Experiment):
    """Base of averaging over users and over examples: one noisy sum a round, in one fixed plan.

    Attributes:
        sampling: How users, or examples, are drawn.
        bound: How each update, or gradient, is bounded.
        noise: What is added to the sum; tree, banded and blt are correlated over rounds.
        exact_sum: Sum on a grid: the same bits for any order, backend and workers; none for true by
            user where there is noise, false by example.
        aggregate: What is made of the released models.
    """

    sampling: Sampling = PoissonSampling()
    bound: Bound = Clip()
    noise: Noise = GaussianNoise()
    exact_sum: bool | None = None
    aggregate: Aggregate = Last()

    def __post_init__(self) -> None:
        """Check every option, and that there is no noise without a bound."""
        super().__post_init__()
        without_bound = isinstance(self.bound, Unbounded)
        if self.noise.kind != "none" and without_bound:
            raise ValueError(
                f"noise {self.noise.kind!r} without a bound protects no one; use bound 'clip' or "
                "'normalise', or noise 'none'"
            )
        if self.noise.kind == "none" and self.target_epsilon is not None:
            raise ValueError(
                f"target-epsilon {self.target_epsilon:g} and noise 'none': without noise ε is "
                "infinite; leave one of them out"
            )
        if self.exact_sum and without_bound:
            raise ValueError(
                "exact-sum true and bound 'none': the grid of a sum is a share of the bound; give "
                "a bound, or leave exact-sum out"
            )

    def neighbours(self) -> Relation:
        """Return the neighbouring relation: zero-out where sampling limits participation."""
        # Who takes part in which round is the same with a user's records and without them.
        usual = "zero-out" if self.sampling.kind in ("separated", "cyclic") else "add-remove"
        return Relation.of(usual if self.relation is None else self.relation)

    @abstractmethod
    def sampler_of(self, number: int) -> Sampler:
        """Return the sampler of so many users or examples."""

    def check(self) -> None:
        """Refuse noise, sampling and relation that cannot be accounted together."""
        if not isinstance(self.noise, GaussianNoise):  # of other noise the plan says it
            return
        try:
            sampler = self.sampler_of(_MANY)
        except ValueError:  # of sizes, which the data decide
            return
        if isinstance(sampler, FixedSizeSampler) and sampler.size != _MANY // _SHARE:
            return  # a cohort that was given may be everybody
        if isinstance(self.noise, CorrelatedNoise):
            if limit_of(sampler, 1) is None:
                self.noise.privatizer(bound=self.bound)  # which says why
        else:
            check_relation(sampler.event(Gaussian(noise_multiplier=1.0)), self.neighbours())

    def calibrated(self, plan: Plan) -> Plan:
        """Return a plan whose noise is calibrated to the target ε, or that is ended by it."""
        if self.target_epsilon is None:
            return plan
        if getattr(self.noise, "multiplier", None) is None:
            return plan.calibrated(self.target_epsilon)
        return replace(plan, target_epsilon=self.target_epsilon)

    def make_plan(
        self,
        *,
        sampler: Sampler,
        bound: Bound,
        num_rounds: int,
        micro_batch: int = 1,
        private: bool = True,
        server_momentum: float = 0.0,
        **rest: Any,
    ) -> Plan:
        """Return the plan, its noise calibrated where there is a target ε.

        Args:
            sampler: Draws cohorts.
            bound: Of each update; the mechanism holds this very object.
            num_rounds: T of the plan.
            micro_batch: As `Mechanism.micro_batch`.
            private: Whether releases are private, and so there is a target ε.
            server_momentum: β of an optimiser whose steps are along sums of the past, else 0.
            **rest: Every other field of a plan but the mechanism, the rounds, the relation and δ.

        Raises:
            ValueError: If neither a noise multiplier nor a target ε is given, there is a target and
                nothing is private, or the plan refuses.
        """
        if not private and self.target_epsilon is not None:
            raise ValueError(
                f"target-epsilon {self.target_epsilon:g}: without a guarantee there is no ε to "
                "calibrate to; give noise-multiplier instead"
            )
        mechanism = Mechanism(
            sampler=sampler,
            bound=bound,
            privatizer=self.noise.privatizer(
                bound=bound,
                limit=limit_of(sampler, num_rounds),
                calibrates=self.target_epsilon is not None,
                momentum=server_momentum,
            ),
            micro_batch=micro_batch,
        )
        plan = Plan(
            mechanism=mechanism,
            num_rounds=num_rounds,
            relation=self.neighbours(),
            delta=self.delta,
            **rest,
        )
        return self.calibrated(plan) if private else plan


@register
@dataclass(frozen=True, kw_only=True)
class FederatedExperiment(Averaging):
    """Federated averaging of users: local SGD, bounded updates, noise on their sum.

    Attributes:
        rounds: How many rounds are planned and paid for.
        cohort: Expected number of users a round; none for a twentieth of the roster.
        local: Local training of a user.
        precondition: Where A of side information acts: in local steps, on the update, or both.
        release_preconditioner: A preconditioner made of past releases.
        server: What the server makes of the released mean: momentum is FedAvgM; adam, yogi and
            adagrad are FedAdam, FedYogi and FedAdagrad.
    """

    task: TaskFactory = field(default=TagPredictionTask(), repr=False)
    rounds: PositiveInt = 100
    cohort: PositiveFloat | None = None
    local: LocalSgd = LocalSgd()
    precondition: Precondition = Nowhere()
    release_preconditioner: Preconditioner = Preconditioner()
    server: Optimizer = Sgd()

    @property
    def most_examples(self) -> int:
        """Most examples that a user trains on."""
        return self.local.max_examples_per_user

    def sampler_of(self, number: int) -> Sampler:
        """Return the sampler of so many users."""
        return self.sampling.sampler(number, self.cohort, self.rounds)

    def check(self) -> None:
        """Refuse what does not fit together, and what would have no effect."""
        super().check()
        self._check_effects()
        if not isinstance(self.noise, CorrelatedNoise):
            return
        kind, noise = self.release_preconditioner.kind, self.noise.kind
        if kind != "none":
            raise ValueError(
                f"release-preconditioner {kind!r} changes what rounds are preconditioned by, and "
                f"noise {noise!r} takes back what earlier rounds added; use noise "
                "'gaussian', or precondition by side information, which stays as it is"
            )
        if self.bound.start is not None:
            raise ValueError(
                f"bound 'adaptive' and noise {noise!r}: noise that is correlated over rounds would "
                "have to restart with every clip norm; use bound 'clip'"
            )

    def _check_effects(self) -> None:
        """Refuse options that no released value depends on.

        Raises:
            ValueError: If there is one.
        """
        place, releases = self.precondition.kind, self.release_preconditioner.kind
        scaled_back = {"precondition": place == "scale-then-privatise",
                       "release-preconditioner": releases == "past-releases"}  # fmt: skip
        for name, back in scaled_back.items():
            if back and isinstance(self.bound, Unbounded):
                value = place if name == "precondition" else releases
                raise ValueError(
                    f"{name} {value!r} has no effect with bound 'none': what is scaled is scaled "
                    "back, and nothing is bounded or added between; give a bound"
                )
        optimizer = self.local.client_optimizer.kind
        if place in ("local", "both") and optimizer == "adam":
            raise ValueError(
                f"precondition {place!r} has no effect on the steps of client-optimizer 'adam', "
                "which divides each coordinate by its own size; use client-optimizer 'sgd' or "
                "'momentum', or precondition 'update'"
            )
        if self.local.warmup_rounds == 1 and self.local.rate_schedule == "constant":
            raise ValueError(
                "warmup-rounds 1 has no effect with rate-schedule 'constant': the rate is whole in "
                "the first round; give 2 or more, or 0"
            )
        if self.local.rate_schedule == "cosine" and self.rounds - self.local.warmup_rounds == 1:
            raise ValueError(
                "rate-schedule 'cosine' has no effect in the single round after warmup-rounds "
                f"{self.local.warmup_rounds} of {self.rounds}: the rate is whole there; give fewer "
                "warm-up rounds, or rate-schedule 'constant'"
            )
        of_further_steps = {
            f"proximal-mu {self.local.proximal_mu:g}": self.local.proximal_mu != 0.0,
            f"client-optimizer {optimizer!r}": optimizer == "momentum",
        }
        for asked, given in of_further_steps.items():
            if given and self.local.most_steps == 1:
                raise ValueError(
                    f"{asked} has no effect on a user's first step, and with batch-size "
                    f"{self.local.batch_size}, epochs {self.local.epochs} and "
                    f"max-examples-per-user {self.local.max_examples_per_user} none takes another; "
                    "give local-steps above 1, or leave it out"
                )

    def make_side_information(self, task: Task) -> SideInformation | None:
        """Return 1/A and where it came from; None where nothing is preconditioned.

        Raises:
            ValueError: If the task does not know what it is to be made of.
        """
        part = getattr(self.precondition, "side_information", None)
        return None if part is None else part.make(task, self.name)

    def make_trainer(
        self, task: Task, side: SideInformation | None = None, device: str | None = None
    ) -> Trainers:
        """Return local training; see `Experiment.make_trainer`."""
        side = side or self.make_side_information(task)
        multiplier = self.precondition.in_steps(side)
        schedule = self.local
        trainer = trainer_on(device, task, schedule, multiplier)
        rates = self.local.rate_factor(self.rounds) is not None
        for work in as_works(trainer).values():
            schedule.check_taken(work, rates=rates)
        return trainer

    def make_components(self, task: Task) -> Components:
        """Return the components of federated averaging; see `Experiment.make_components`."""
        self.server.check_rounds(self.rounds)
        side = self.make_side_information(task)
        bound: Bound = self.bound
        adaptive = bound if bound.start is not None else None
        # Without noise a bound may be so high that it never binds, and its grid would be coarse.
        if self.noise.kind != "none" if self.exact_sum is None else self.exact_sum:
            bound = Rounded(bound=bound)
        return Components(
            task=task,
            plan=self.make_plan(
                sampler=self.sampler_of(len(task.roster)),
                bound=bound,
                num_rounds=self.rounds,
                max_examples_per_user=self.most_examples,
                server_momentum=self.server.past_of_sums,
                roster_sha256=task.roster_sha256,
            ),
            algorithm=FederatedAveraging(
                optimizer=self.server,
                preconditioner=self._preconditioner(side),
                bound=adaptive,
                rate=self.local.rate_factor(self.rounds),
                extra=task.round_tensors,
                aggregate=self.aggregate,
            ),
            trainer=self.make_trainer(task, side),
            side_information=side,
            start=self.start.make,
            dropout_rate=self.local.dropout_rate,
        )

    def _preconditioner(self, side: SideInformation | None) -> Preconditioner:
        """Return the preconditioner of updates: of side information, or of past releases.

        Raises:
            ValueError: If the updates would be preconditioned twice.
        """
        of_releases, known = self.release_preconditioner, self.precondition.on_updates(side)
        if type(of_releases) is Preconditioner:
            return known
        if type(known) is not Preconditioner:
            raise ValueError(
                f"release-preconditioner {of_releases.kind!r} preconditions updates, and so does "
                f"precondition {self.precondition.kind!r}; choose one, or precondition 'local'"
            )
        return of_releases


def trainer_on(
    device: str | None, task: Task, schedule: Any, multiplier: Mapping[str, Any]
) -> Trainers:
    """Return a task's trainer on a device, or its default one for None.

    The process is set to keep the memory that training frees (`fedpriv.training.devices`).

    Raises:
        ValueError: If the task's `trainer` takes no device, or this machine has not got it.
    """
    keep_freed_memory()
    if device is None:
        return task.trainer(schedule, multiplier)
    if "device" not in signature(task.trainer).parameters:
        raise ValueError(
            f"device {device!r}: trainer() of the task {type(task).__name__} takes no device; "
            "give it one (`device: str | None = None`), or leave the device out"
        )
    return task.trainer(schedule, multiplier, device=device)


#: From the number of steps to the factor of each step's learning rate.
_FACTORS: Mapping[str, Callable[[int], Factor]] = {
    "step": stepwise,
    "cyclic": cyclic,
    "inverse-root": lambda num_steps: inverse_root(),
}


@register
@dataclass(frozen=True, kw_only=True)
class CentralExperiment(Averaging):
    """DP-SGD on examples and its like: bounded gradients of a batch, noise on their sum.

    A method is a bound, a preconditioner and an optimiser:

    ==================  ========================================================================
    DP-SGD              bound clip, optimizer sgd
    DP-Adam             bound clip, optimizer adam (likewise rmsprop, adagrad)
    DP-NSGD, DP-NAdam   bound normalise, optimizer sgd or adam
    AdaDPS              preconditioner public-rmsprop, public-adam, public-adagrad or
                        side-information
    DP-R-Pub            preconditioner r-pub
    DP-Adam-Pub         preconditioner r-pub, optimizer ema-momentum
    PDA-DPMD            preconditioner mirror-descent
    DP²                 preconditioner delayed
    scale-then-priv.    preconditioner past-releases, optimizer adam or rmsprop
    warm start          warm-start-epochs above 0; start public chooses epochs and rate itself
    ideal               preconditioner ideal: not private, whatever the noise
    SGD, Adam, AdaS     noise none, bound none, with the preconditioner or optimizer of that name
    ==================  ========================================================================

    Attributes:
        batch_size: Expected examples a step; none for a twentieth of all.
        epochs: Passes over the training set, in expectation; sets the steps.
        steps: Steps; none takes them from epochs.
        micro_batch: Examples whose mean is bounded as one; above 1 sensitivity doubles.
        examples_per_user: Of a task of users, whose unit is a user (ELS; `fedpriv.tasks.central`):
            slots of each user in the training set, filled or empty, which batches are drawn of;
            more examples are left out. None for a task of examples.
        optimizer: What is made of the released mean gradient.
        schedule: Of the learning rate: a tenth from half and a hundredth from three quarters of the
            steps, one triangle, or α/√t.
        preconditioner: What public data or past releases add.
        warm_start_epochs: Epochs on the public set before, without noise.
        warm_start_rate: Their learning rate.
    """

    unit: ClassVar[Unit] = "example"

    batch_size: PositiveFloat | None = None
    epochs: PositiveFloat | None = None
    steps: PositiveInt | None = None
    micro_batch: PositiveInt = 1
    examples_per_user: PositiveInt | None = None
    optimizer: Optimizer = Sgd(learning_rate=0.1)
    schedule: Literal["constant", "step", "cyclic", "inverse-root"] = "constant"
    preconditioner: Preconditioner | PreconditionerRecipe = Preconditioner()
    warm_start_epochs: NonNegativeInt = 0
    warm_start_rate: PositiveFloat = 0.1

    def __post_init__(self) -> None:
        """Check every option, and that each has an effect."""
        super().__post_init__()
        check_effect(self, "warm_start_rate", "warm_start_epochs")
        bound = self.bound
        if bound.start is not None or bound.limits or bound.multiple_of:
            raise ValueError(
                f"bound {bound!r} follows norms, or limits or rounds coordinates; of single "
                "examples there is nothing but a norm: use bound 'clip' or 'normalise'"
            )

    def expected_batch(self, num_examples: int) -> float:
        """Return the expected number of examples a step, of so many."""
        given = self.batch_size
        return self.sampling.usual_size(num_examples) if given is None else given

    def num_steps(self, num_examples: int) -> int:
        """Return how many steps are planned.

        Raises:
            ValueError: If neither steps nor epochs are given, or both.
        """
        if self.steps is not None and self.epochs is None:
            return self.steps
        if self.epochs is not None and self.steps is None:
            size = self.expected_batch(num_examples)
            return max(1, math.ceil(self.epochs * num_examples / size - 1e-9))
        raise ValueError(
            f"steps {self.steps!r} and epochs {self.epochs!r}: give exactly one of them"
        )

    def sampler_of(self, number: int) -> Sampler:
        """Return the sampler of so many examples."""
        return self.sampling.sampler(number, self.batch_size, self.num_steps(number))

    def make_trainer(
        self, task: CentralTask, side: SideInformation | None = None, device: str | None = None
    ) -> Trainers:
        """Return sums of bounded gradients; see `Experiment.make_trainer`."""
        groups = None
        if self.micro_batch != 1:
            groups = max(1, round(self.expected_batch(task.num_train) / self.micro_batch))
        return CentralSum(
            gradients=gradients_on(device, task.train, rounded=bool(self.exact_sum)),
            num_examples=task.num_train,
            blank=None if task.owned is None else task.owned.blank,
            num_groups=groups,
        )

    def make_components(self, task: CentralTask) -> Components:
        """Return the components of DP-SGD; see `Experiment.make_components`."""
        task = self._warmed(task)
        steps = self.num_steps(task.num_train)
        chosen = choose_preconditioner(
            self.preconditioner,
            Surroundings(
                task=task,
                batch_size=self.expected_batch(task.num_train),
                num_steps=steps,
            ),
        )
        optimizer: Transform = self.optimizer
        self.optimizer.check_rounds(steps)
        if self.schedule != "constant":
            factor = _FACTORS[self.schedule](steps)
            optimizer = Chain(transforms=(optimizer, Scheduled(factor=factor)))
        return Components(
            task=task,
            plan=self._plan(task, steps, private=chosen.private),
            algorithm=FederatedAveraging(
                optimizer=optimizer,
                preconditioner=chosen.preconditioner,
                aggregate=self.aggregate,
            ),
            trainer=self.make_trainer(task),
            side_information=chosen.side_information,
            start=self.start.make,
        )

    def _plan(self, task: CentralTask, steps: int, *, private: bool) -> Plan:
        sampler = self.sampler_of(task.num_train)
        unit, most = "example", None
        if task.owned is not None:
            unit, most, sampler = task.owned.unit, task.owned.most, task.owned.sampler(sampler)
        bound: Bound = self.bound
        if self.exact_sum:
            bound = _rounded(bound, task)
        plan = self.make_plan(
            private=private,
            sampler=sampler,
            bound=bound,
            micro_batch=self.micro_batch,
            server_momentum=self.optimizer.past_of_sums,
            num_rounds=steps,
            roster_sha256=task.roster_sha256,
            max_examples_per_user=most if unit == BY_EXAMPLE else None,
            unit=unit,
        )
        if private:
            return plan
        # The preconditioner sees clean gradients: there is no guarantee, whatever noise is added.
        mechanism = plan.live_mechanism
        unprotected = Unprotected(stddev=mechanism.stddev)
        return replace(plan, mechanism=replace(mechanism, privatizer=unprotected))

    def _warmed(self, task: CentralTask) -> CentralTask:
        """Return the task with params that were trained on its public examples, without noise.

        Raises:
            ValueError: If it has none, or the start says something else.
        """
        if self.warm_start_epochs == 0:
            return task
        if not isinstance(self.start, Fresh):
            raise ValueError(
                f"warm-start-epochs {self.warm_start_epochs} and a start that is not 'fresh' both "
                "say what training starts from; leave one of them out"
            )
        public = task.public_examples()

        def init(key: Key) -> Params:
            return warm_start(
                public,
                task.num_public,
                task.init_params(key),
                key.fold("warm start"),
                epochs=self.warm_start_epochs,
                learning_rate=self.warm_start_rate,
            )

        return replace(task, init=init, cold=task.cold or task.init)


def _rounded(bound: Bound, task: CentralTask) -> Bound:
    """Return a bound of a sum on a grid.

    Raises:
        ValueError: If the model's updates are not exact.
    """
    if not task.train.exact:
        raise ValueError(
            f"exact-sum true: gradients of {type(task.train).__name__} depend on the batch in "
            "their last bits; leave it out (a secure run then says that its noise is not hardened)"
        )
    return Rounded(bound=bound)
