"""The audit of a plan: its mechanism run on canary users, and whether that refutes its ε."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv import __version__
from fedpriv.audit.bounds import LowerBound, Scores, clopper_pearson, simultaneous
from fedpriv.audit.canaries import CanaryMaker, Trials, run_canaries, scores_of
from fedpriv.experiments.build import build, in_study
from fedpriv.experiments.load import from_anywhere
from fedpriv.privacy.epsilon import Epsilon, format_delta
from fedpriv.privacy.plan import AnyPlan, Plan
from fedpriv.privacy.statement.sealed import (
    SealedRun,
    audited_rounds,
    name_run,
    read_audit,
    read_sealed,
    refuse_second_audit,
    write_audit,
)
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.ranges import positive_int
from fedpriv.rng import Key
from fedpriv.runs.backends import open_corpus, recorded_place
from fedpriv.runs.document import read_document, restore_experiment

FALSE_ALARM = 0.001
"""Highest probability that a mechanism which keeps its ε is called refuted."""
_EACH = FALSE_ALARM / 2  # of the two bounds
TRIALS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Outcome of an audit of a plan.

    Attributes:
        name: What was audited.
        stated: The ε that the plan states after as many rounds.
        mode: "simulation" or "secure".
        num_rounds: Rounds of each run of the mechanism.
        num_runs: Runs.
        seed: Of inclusions, cohorts and noise; None of the operating system's.
        simultaneous: Lower bound of many one-coordinate canaries.
        clopper_pearson: Lower bound of one threshold chosen on half of them.
        scores: The likelihood ratios, for a plot.
    """

    name: str
    stated: Epsilon
    mode: str
    num_rounds: int
    num_runs: int
    seed: int | None
    simultaneous: LowerBound
    clopper_pearson: LowerBound
    scores: Scores = field(repr=False)

    @property
    def bound(self) -> LowerBound:
        """The larger of the two bounds, together wrong with `FALSE_ALARM` at most."""
        return max(self.simultaneous, self.clopper_pearson, key=lambda found: found.epsilon)

    @property
    def refuted(self) -> bool:
        """Whether the bound is above the stated ε."""
        return self.bound.epsilon > self.stated.value

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.refuted:
            return "REFUTED: the bound is above the stated ε"
        return "consistent: the bound is not above the stated ε"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "experiment": self.name,
            "stated": self.stated.to_json() | {"mode": self.mode},
            "rounds": self.num_rounds,
            "runs": self.num_runs,
            "seed": self.seed,
            "canaries": len(self.scores),
            "canaries_in": len(self.scores.inside),
            "bound": self.bound.epsilon,
            "confidence": 1.0 - FALSE_ALARM,
            "bounds": {
                "simultaneous": self.simultaneous.to_json(),
                "clopper_pearson": self.clopper_pearson.to_json(),
            },
            "refuted": self.refuted,
            "verdict": self.verdict,
        }


def audit_plan(
    plan: AnyPlan,
    *,
    name: str,
    trials: int = TRIALS,
    seed: int = 0,
    secure: bool = False,
    make: CanaryMaker | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Run a plan's mechanism on canary users until there are enough, and bound its ε from below.

    What is run: sampler, bound, sum over users or examples, privatizer and denominator of the
    plan's mechanism, each round charged to a ledger in memory. What is not: what users do on their
    data, whose outcome the bound is there to limit.

    Args:
        plan: Fixed, with Gaussian noise.
        name: Of what is audited.
        trials: Canaries in all, in and out; each run has at most as many as the plan has users.
        seed: Of inclusions, cohorts and noise.
        secure: Cohorts, noise and inclusions from the operating system instead, as a secure run's.
        make: As `run_canaries`.
        progress: Called with rounds done and rounds in all.

    Guarantees:
        * A mechanism that keeps its ε is refuted with probability at most `FALSE_ALARM`, if
          canaries' scores are independent: their cohorts are drawn independently of each other and
          the noise is independent in every coordinate.

    Raises:
        ValueError: If the plan states no ε that Gaussian noise is behind, or trials are few.
    """
    trials = positive_int("trials", trials)
    if trials < 100:
        raise ValueError(f"trials {trials}: a bound needs at least 100 canaries; give 20000")
    plan = _auditable(plan)
    num_rounds = audited_rounds(plan)
    assert num_rounds is not None
    # The size of runs is fixed beforehand, by public numbers.
    num_runs = math.ceil(trials / plan.num_users)
    sizes = [len(part) for part in np.array_split(np.arange(trials), num_runs)]
    root = Key.secure() if secure else Key.simulation(seed).fold("audit")
    present = root.fold("present").words(trials) >> np.uint64(63) == 1
    done, found = 0, list[Trials]()

    def after_round() -> None:
        nonlocal done
        done += 1
        progress(done, num_runs * num_rounds)

    for number, size in enumerate(sizes):
        start = sum(sizes[:number])
        found.append(
            run_canaries(
                plan,
                root.fold("run").fold(number),
                present[start : start + size],
                num_rounds=num_rounds,
                make=make,
                after_round=after_round,
            )
        )
    stated = plan.epsilon(num_rounds)
    kinds = scores_of(found)
    if num_rounds == 1:
        kinds = kinds[:1]  # there is no other round to stand out from
    return Audit(
        name=name,
        stated=stated,
        mode=root.mode,
        num_rounds=num_rounds,
        num_runs=num_runs,
        seed=None if secure else seed,
        simultaneous=simultaneous(kinds, delta=stated.delta, alpha=_EACH),
        clopper_pearson=clopper_pearson(kinds, delta=stated.delta, alpha=_EACH),
        scores=kinds[0],
    )


def describe_audit(audit: Audit) -> list[tuple[str, str]]:
    """Return the outcome as names and texts, one for each line."""
    stated = "simulated " if audit.mode == "simulation" else "secure "
    canaries = (
        f"{len(audit.scores):,} ({len(audit.scores.inside):,} in, each by an independent fair draw)"
        f", {audit.num_runs:,} x {audit.num_rounds:,} rounds"
    )
    delta = f"at δ = {format_delta(audit.stated.delta)}"
    return [
        ("stated", f"{stated}{audit.stated}"),
        ("canaries", canaries),
        ("bound, many canaries", _bound_text(audit.simultaneous, delta)),
        ("bound, Clopper-Pearson", _bound_text(audit.clopper_pearson, delta)),
        ("verdict", audit.verdict),
    ]


def _bound_text(found: LowerBound, delta: str) -> str:
    shown = math.floor(found.epsilon * 1000) / 1000  # a lower bound is rounded down
    return f"ε ≥ {shown:.3f} {delta}, confidence {100 * found.confidence:g} %"


def _auditable(plan: AnyPlan) -> Plan:
    if not isinstance(plan, Plan):
        raise ValueError(
            f"a {type(plan).__name__} lets prices be decided on the way; the audit is of fixed "
            "plans, whose every round is the same"
        )
    mechanism = plan.live_mechanism
    if not plan.is_private:
        raise ValueError("there is no ε to audit: no noise is added (give noise=gaussian)")
    if not mechanism.noise_multiplier > 0:
        raise ValueError(
            f"{mechanism.privatizer.name} noise is no Gaussian; the audit is of Gaussian noise"
        )
    if mechanism.micro_batch > 1:
        raise ValueError(
            f"micro-batches of {mechanism.micro_batch} are bounded together; the audit is of "
            "mechanisms that bound each contribution alone (micro-batch 1)"
        )
    return plan


def _terms(plan: AnyPlan) -> dict[str, Any]:
    """Return all that a plan says, by name: of its event first, of its mechanism, and the rest."""
    plain = plan.to_json()
    mechanism = plain.pop("mechanism", {})
    recorded = mechanism.pop("recorded", {})
    return {**recorded.pop("event", {}), **recorded, **mechanism, **plain}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A mechanism that may be audited.

    Attributes:
        name: Of its experiment.
        plan: With the mechanism as objects.
        seed: Of the simulation.
    """

    name: str
    plan: AnyPlan
    seed: int


def open_unaudited(folder: Path) -> SealedRun:
    """Return the run of a folder, finished or under way.

    Raises:
        ValueError: If it does not verify or holds an audit.
    """
    refuse_second_audit(folder)
    if not verify_run(folder).ok:
        raise ValueError(f"{folder} does not verify, so it is not audited: fedpriv verify")
    return read_sealed(folder)


def is_named(run: SealedRun, name: str) -> bool:
    """Return whether the run's experiment is found by this name."""
    return from_anywhere(name) == read_document(run.folder)["reference"]


def candidate_of(run: SealedRun, name: str | None = None) -> Candidate:
    """Return a run's mechanism, made again from its experiment and corpus.

    Args:
        run: The run.
        name: Of the experiment, where the run names user-defined code.

    Raises:
        ValueError: If the run has no experiment that is found by name, or that is code which is not
            named again.
    """
    document = read_document(run.folder)
    experiment = restore_experiment(document, run.folder, name)
    made = build(experiment, open_corpus(recorded_place(document)))
    made = in_study(experiment, made, run.state.plan.trials)
    return Candidate(name=experiment.name, plan=made.plan, seed=experiment.seed)


def check_audited(run: SealedRun, candidate: Candidate, mode: str) -> None:
    """Refuse to audit for a run what is not its mechanism.

    Raises:
        ValueError: Naming both, and what they differ in.
    """
    of = run.identity
    ours = {"experiment": of["experiment"], "mode": of["mode"], **_terms(run.state.plan)}
    theirs = {"experiment": candidate.name, "mode": mode, **_terms(candidate.plan)}
    differing = [
        f"{name} {theirs.get(name)!r} instead of {ours.get(name)!r}"
        for name in (ours | theirs)
        if ours.get(name) != theirs.get(name)
    ]
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise ValueError(
            f"the audit of {candidate.name} ({mode}) is not one of {run.folder}, a run of "
            f"{name_run(of)}: {'; '.join(differing[:3])}{more}; give the options of the run, or "
            "--into alone"
        )


def keep_audit(run: SealedRun, audit: Audit) -> dict[str, Any]:
    """Write an outcome into a run's folder and return it as a statement has it.

    Raises:
        ValueError: If it is not of this run, or the folder holds one by now.
    """
    write_audit(run.folder, audit.to_json(), run.identity, version=__version__)
    kept = read_audit(read_sealed(run.folder))  # as every reader will
    assert kept is not None
    return kept.to_json()
