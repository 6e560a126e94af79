"""`fedpriv.bolt_on`: a permutation SGD that one has already, released once with noise at its end.

def train(walk):                                  # was: train(rows)
    w = walk.start["weights"]
    for positions, rate in walk:                  # was: for positions in shuffled(rows)
        x, y = walk.shortened(rows[positions]), labels[positions]
        w -= rate * (gradients(w, x, y).sum(axis=0) / walk.batch_size + 0.01 * w)
    return {"weights": w}

made = fp.bolt_on(train, fp.loss_constants("logistic", regulariser=0.01), 10,
                  fp.StronglyConvexStep(), num_rows=len(rows),
                  params={"weights": np.zeros(50)}, target_epsilon=1.0, out="runs/own")
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpriv import tree
from fedpriv.api.averaging import RosterTask, check_kept
from fedpriv.api.averaging import train as train_roster
from fedpriv.backends.backend import SerialBackend
from fedpriv.experiments.experiment import Components
from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.plan import Unit
from fedpriv.ranges import positive_float, positive_int
from fedpriv.training.bolt_on import BoltOn, output_noise, plan_of_release
from fedpriv.training.convex_losses import Constants
from fedpriv.training.per_example.example_sum import example_ids
from fedpriv.training.permutation_sgd import Passes, loss_constants
from fedpriv.training.step_schedules import ConstantStep, StepSchedule
from fedpriv.training.wrapped_sgd import Train, Wrapped
from fedpriv.tree import Params

_NOT_COVERED = (
    "a training that is not the permutation SGD that was stated (loss, steps, order, batches)",
    "whatever else your own code took from these rows",
)
_EMPTY = "how many rows there are: one that is not there leaves its place empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Sensitivity of a training: how far one row moves its end, in l2, as the relation has it.

    Attributes:
        sensitivity: Δ₂ of L₀, the Lipschitz constant of the data term; what noise is made of.
        lipschitz: L₀.
        paper_sensitivity: Δ₂ of L = L₀ + λR, which is remembered of the literature: the regulariser
            is the same in both runs and cancels where they differ, so that it is too much.
        paper_lipschitz: L; of R = 1/λ where there is no ball.
    """

    sensitivity: float
    lipschitz: float
    paper_sensitivity: float
    paper_lipschitz: float

    def __repr__(self) -> str:
        return (
            f"Δ₂ = {self.sensitivity:.6g} (L₀ = {self.lipschitz:.4g}; of L = L₀ + λR = "
            f"{self.paper_lipschitz:.4g} it would be {self.paper_sensitivity:.6g})"
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Perturbed:
    """Result of a training that was perturbed once.

    Attributes:
        params: Released, float32, by name.
        epsilon: Spent, with δ, relation, unit and accountant; printed, it says what it does not
            cover.
        moved: Δ₂, which the noise is in proportion to.
        simulated: Whether the noise came from a seed.
        path: The folder; None if nothing was kept.
    """

    params: Params = field(repr=False)
    epsilon: Epsilon
    moved: Moved
    simulated: bool
    path: Path | None

    def __repr__(self) -> str:
        return f"{'simulated ' if self.simulated else ''}{self.epsilon}; {self.moved}"


def bolt_on(
    train: Train,
    constants: Constants | str,
    passes: int,
    schedule: StepSchedule | float,
    *,
    num_rows: int,
    params: Mapping[str, np.ndarray],
    target_epsilon: float,
    delta: float | None = None,
    batch_size: int = 1,
    last_batch: Literal["dropped", "divided"] = "dropped",
    radius: float | None = None,
    average: bool = False,
    relation: str | Relation = "replace-one",
    unit: Unit = "example",
    out: str | Path | None = None,
    secure: bool = False,
    seed: int = 0,
    anchor: str | Path | None = None,
) -> Perturbed:
    """Run a training without noise, perturb its result once, and release that.

    Args:
        train: The whole training: takes a walk (`start`, row numbers and step sizes in order,
            `shortened`) and returns float64 params. It is called once; after a crash once more, on
            the same rows, with the same walk.
        constants: Of its loss, regulariser included: `loss_constants`, or of your own.
        passes: k, over all rows.
        schedule: Of the step sizes; a number for a constant step.
        num_rows: m; public.
        params: What training starts from, by name; made without looking at any row.
        target_epsilon: ε of the release.
        delta: None for pure ε (noise of uniform direction and Gamma length); else δ of Gaussian
            noise.
        batch_size: b, by which every batch's sum is divided.
        last_batch: "dropped", or "divided" by b all the same.
        radius: R, if params are projected onto that ball after every step.
        average: Whether the mean of all iterates is returned, and not the last.
        relation: "replace-one", or "add-remove": a row that is there or not, whose place in its
            batch is empty then.
        unit: What one row is all of: an "example", or a "user".
        out: The run folder: one that holds this run is continued after a crash, or read if it has
            released. Without it the same ledger is kept in memory.
        secure: Entropy from the operating system instead of a seed; needs `out`.
        seed: Of the simulation. What `train` reads is not known here: the noise is another one each
            time, whatever it is.
        anchor: As of `fedpriv.averaging`.

    Guarantees:
        * The charge is on the ledger, and synced where there is a folder, before a row is read.
        * The release after a crash is the identical one; a training that then ends elsewhere is
          refused.
        * (ε, δ)-DP if the training is the permutation SGD that was stated: nothing here sees a row.

    Raises:
        ValueError: If nothing bounds the training (a torch module, a hinge loss, steps that are
            too long), a value is out of range, the result is not such a training's, or the folder
            is another run's.
    """
    _check_train(train)
    number = positive_int("num_rows", num_rows)
    known: Any = loss_constants(constants) if isinstance(constants, str) else constants
    if not isinstance(known, Constants):
        raise ValueError(f"constants {known!r}: give loss_constants(...), or Constants of your own")
    if not isinstance(schedule, StepSchedule):
        schedule = ConstantStep(rate=schedule)
    kept = check_kept(out, secure, anchor)
    start = _float32(params)
    size = sum(array.size for array in start.values())
    if not size:
        raise ValueError(f"params {sorted(start)} hold no number; give what training starts from")
    work = Wrapped(
        train=train,
        constants=known,
        passes=Passes(
            passes=passes,
            batch_size=batch_size,
            schedule=schedule,
            last_batch=last_batch,
            radius=radius,
            average=average,
        ),
        num_examples=number,
    )
    length = tree.l2_norm(start)
    found = work.sensitivity(size, length)
    neighbours = Relation.of(relation)
    noise = output_noise(positive_float("target_epsilon", target_epsilon), delta, neighbours)
    plan = plan_of_release(number, found, noise, relation=neighbours, delta=delta, unit=unit)
    components = Components(
        plan=plan,
        algorithm=BoltOn(longest_start=length),
        task=RosterTask(roster=example_ids(number), params=start),
        trainer=work,
    )
    gaps = (*_NOT_COVERED, _EMPTY) if plan.relation is Relation.ADD_REMOVE else _NOT_COVERED
    described = _described(work)
    done = train_roster(
        components,
        SerialBackend(trainer=work),
        out=kept,
        secure=secure,
        seed=seed,
        anchor=anchor,
        gaps=gaps,
        stated={"bolt_on": described},
        described=described,
    )
    return Perturbed(
        params=dict(done.params),
        epsilon=done.epsilon,
        moved=_moved(known, found * plan.relation.moved, radius),
        simulated=done.simulated,
        path=done.path,
    )


def _float32(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what training starts from, float32.

    Raises:
        ValueError: If a number of it is not finite then.
    """
    with np.errstate(over="ignore"):
        start = {name: np.array(array, np.float32) for name, array in params.items()}
    for name, array in start.items():
        if not np.isfinite(array).all():
            raise ValueError(f"params {name!r} hold a number that is not finite as float32")
    return start


def _moved(constants: Constants, found: float, radius: float | None) -> Moved:
    convex = constants.convexity
    ball = radius if radius is not None else 1.0 / convex if convex else 0.0
    paper = constants.lipschitz_within(ball)
    return Moved(
        sensitivity=found,
        lipschitz=constants.lipschitz,
        paper_sensitivity=found * paper / constants.lipschitz,
        paper_lipschitz=paper,
    )


def _described(work: Wrapped) -> dict[str, Any]:
    """Return what is stated of a training, for the ledger's first line: all of it public."""
    constants, passes = asdict(work.constants), asdict(work.passes)
    schedule = passes.pop("schedule")
    del passes["reshuffled"]  # always
    return {
        "loss": constants.pop("name"),
        **constants,
        **passes,
        "schedule": work.passes.schedule.kind,
        **schedule,
        "num_rows": work.num_examples,
    }


def _check_train(train: Any) -> None:
    """Refuse what is no training that a proof speaks of.

    It is looked for in what the training is, or is bound to, and nowhere else: what it calls is not
    inspected.

    Raises:
        ValueError: If it cannot be called, or is an estimator's or a torch module's.
    """
    owner, torch = getattr(train, "__self__", train), sys.modules.get("torch")
    if torch is not None and isinstance(owner, torch.nn.Module):
        raise ValueError(
            f"train works on a torch module ({type(owner).__name__}): nothing shows that its loss "
            "is convex, and two runs of one that is not may drift apart without limit; use noise "
            "in every step (method averaging), or a linear model in NumPy"
        )
    if hasattr(owner, "partial_fit"):
        raise ValueError(
            "train is an estimator's, whose parameters say how it trains, and of which nothing is "
            "known; give a function of a walk that returns params"
        )
    if not callable(train):
        raise ValueError(
            f"train {type(train).__name__} cannot be called; give a function of a walk that "
            "returns params"
        )
