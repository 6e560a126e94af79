"""Federated averaging of users that a caller's own backend reaches, without an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from fedpriv.api.result import Run, TemporaryFolder, read
from fedpriv.backends.backend import Backend
from fedpriv.checkpoints.aggregates import Aggregate, Last
from fedpriv.checkpoints.tensor_files import params_sha256
from fedpriv.datasets.stackexchange.rosters import roster_sha256
from fedpriv.datasets.user_ids import check_distinct
from fedpriv.experiments.experiment import Components
from fedpriv.measures import Measure
from fedpriv.mechanisms.preconditioners import Preconditioner
from fedpriv.optimizers import Sgd
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.statement.coverage import FLOATS, KEY, Coverage
from fedpriv.rng import Key
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.loop import first_state, rounds
from fedpriv.runs.noise_root import NOISE, noise_root, training_digest
from fedpriv.runs.progress import (
    describe_beginning,
    describe_early_end,
    describe_folder,
    describe_plan,
    round_line,
)
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.work import Work
from fedpriv.transform import Transform
from fedpriv.tree import Params
from fedpriv.untrusted_text import check_ids

_NOT_COVERED = ("whatever else your own code took from these users",)


def averaging(
    plan: Plan,
    *,
    roster: Sequence[str],
    params: Params,
    out: str | Path | None = None,
    secure: bool = False,
    seed: int = 0,
    optimizer: Transform = Sgd(),
    aggregate: Aggregate = Last(),
    anchor: str | Path | None = None,
    on_round: Callable[[int, Params], None] = lambda round_num, params: None,
    stated: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Callable[[Backend], Run]:
    """Return a loop over a backend (`fedpriv.flower.connect`) that trains to the end of a plan.

    Args:
        plan: The plan, such as `fedpriv.Rounds(...).plan(...)`.
        roster: The frozen ids of the users, one for each person. They decide who may be drawn.
        params: What the first round starts from, float32; made without looking at any user.
        out: The run folder. One that holds a run of this plan is continued after a crash.
            Without it the run has the same ledger and files in a temporary folder, removed with
            the last `Run` that refers to it or with the process.
        secure: Entropy from the operating system instead of a seed; needs `out`.
        seed: Of the simulation. The users' data are not known here: without a folder that is
            continued, cohorts and noise are other ones each time, whatever it is.
        optimizer: What the server makes of a released mean; by default adds it to the params.
        aggregate: Made of the released params (`fedpriv.checkpoints.aggregates`), such as
            `Uniform(k=10)` or `OfLast(k=10, function=yours)`; it says whether training goes on
            from it.
        anchor: A file on another volume that keeps how far the ledger is; needs `out`. A copy of
            the folder that is continued besides, and an old backup, are then refused; who goes on
            with the run gives it again, and so does `fedpriv verify`.
        on_round: Called with each round's number and released params, to measure them on public
            data or to show progress.
        stated: One fact of how users are trained, by its name, as JSON: a simulation's noise is
            made of it too, and a folder that is continued must have the same.
        tell: Called with lines to print or log: the plan and its ε, the folder, each round.

    Guarantees:
        * A round is charged, and the charge synced where there is a folder, before its cohort and
          its noise are drawn. A lost attempt stays spent.
        * Nothing but noised means leaves the loop.

    Raises:
        ValueError: If the roster is not of the plan's size, an id is no string, two ids are one
            name, or a secure or anchored run is not kept. From the loop: if the folder's ledger is
            of another plan, or not as far as its anchor.
    """
    check_ids(roster, "the roster")
    check_distinct(roster)
    kept = check_kept(out, secure, anchor)
    components = Components(
        plan=plan,
        algorithm=FederatedAveraging(
            optimizer=optimizer,
            aggregate=aggregate,
            preconditioner=Preconditioner(),
        ),
        task=RosterTask(roster=tuple(roster), params=params),
        trainer=_ShapesOnly(),
    )
    # Also of the start: at one seed and plan two of them have other noise.
    made_of = {"stated": next(iter(stated.values())) or None if stated else None}
    return partial(
        train,
        components,
        out=kept,
        secure=secure,
        seed=seed,
        anchor=anchor,
        gaps=_NOT_COVERED,
        stated=stated or {},
        described={**made_of, "start": params_sha256(params)},
        on_round=on_round,
        tell=tell,
    )


def check_kept(out: str | Path | None, secure: bool, anchor: str | Path | None) -> Path | None:
    """Return the run folder, or None where nothing is kept.

    Raises:
        ValueError: If a secure or anchored run is not kept, or the folder's name is empty.
    """
    if out == "":
        raise ValueError("out is empty; give a folder, or None to keep nothing")
    if secure and out is None:
        raise ValueError(
            "secure=True needs out=...: the ledger of a secure run is the proof of what was "
            "spent, and must not be thrown away"
        )
    if anchor is not None and out is None:
        raise ValueError(
            f"anchor={str(anchor)!r} needs out=...: a ledger that is not kept is not resumed"
        )
    return None if out is None else Path(out)


def train(
    components: Components,
    backend: Backend,
    *,
    out: Path | None,
    secure: bool,
    seed: int,
    anchor: str | Path | None,
    gaps: tuple[str, ...],
    stated: Mapping[str, Any],
    described: Any,
    on_round: Callable[[int, Params], None] = lambda round_num, params: None,
    tell: Callable[[str], None] = lambda line: None,
) -> Run:
    """Train a `RosterTask` to the end of its plan, and return its run.

    Args:
        components: Of the training.
        backend: Brings the work to the users.
        out: The run folder; None for a temporary one.
        secure: As of `averaging`.
        seed: As of `averaging`.
        anchor: As of `averaging`.
        gaps: What its ε does not cover.
        stated: Further facts for the ledger's first line, by name; a folder that is continued must
            have the same.
        described: What a simulation's noise is made of besides plan, roster and shapes, as JSON. A
            folder that is continued has its own.
        on_round: Called with each round's number and released params.
        tell: Called with lines to print or log.

    Raises:
        ValueError: If the folder's ledger is of another plan, mode or training, or not as far as
            its anchor.
    """
    root = Key.secure() if secure else Key.simulation(seed)
    backend.check_mode(root.mode)  # before anything is written or charged
    plan, state = components.plan, first_state(components, root)
    # Who is who follows from a place in the roster, and a simulation's noise from its seed.
    fixed = {**stated, "roster_sha256": roster_sha256(components.task.roster)}
    if not secure:
        fixed["seed"] = seed
    facts: dict[str, Any] = {
        **fixed, KEY: list(gaps), "backend": backend.describe()["name"],
    }  # fmt: skip
    if not secure:
        facts[NOISE] = training_digest(plan, components.task.roster, state.params, described)
    temporary, path = None, out
    if path is None:
        temporary = TemporaryFolder()
        path = temporary.path
    folder = RunFolder.of_plan(path, plan, mode=root.mode, extra=facts, anchor=anchor)
    ledger, facts = folder.ledger, dict(folder.ledger.extra)
    with closing(folder):
        for name, fact in fixed.items():
            if facts.get(name) != fact:
                raise ValueError(
                    f"{path} holds a training of {name} {facts.get(name)}, and this is one of "
                    f"{fact}; give the same, or another folder"
                )
        state = folder.resume(state)
        in_floats = secure and not folder.is_hardened
        covers = Coverage(not_covered=(*gaps, FLOATS) if in_floats else gaps)
        guarantee, cautions = describe_plan(plan, covers, root.mode)
        for line in (guarantee, *cautions):
            tell(line)
        if out is not None:
            tell(describe_beginning(out, ledger, state.round_num))
        every = plan.planned_rounds
        played = rounds(
            components,
            backend,
            root,
            folder=folder,
            state=state,
            eval_every=10 if every is None else every + 1,
            noise=noise_root(root, facts),
        )
        for record, state in played:
            tell(round_line(record, ledger))
            on_round(state.round_num, state.params)
        folder.seal()
        if out is not None:
            if why := describe_early_end(ledger.state):
                tell(why)
            tell(describe_folder(out))
    return read(path, temporary)


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterTask:
    """A task whose users are trained by the backend: their ids and a start.

    Attributes:
        roster: Ids of users or examples.
        params: Where training starts.
        measures: None, for nothing is measured here.
        published: None, for of what users train on nothing is known here.
    """

    roster: tuple[str, ...]
    params: Params = field(repr=False)
    measures: tuple[Measure, ...] = ()
    published: None = None

    def init_params(self, key: Key) -> Params:
        """Return a copy of the start."""
        return {name: array.copy() for name, array in self.params.items()}


class _ShapesOnly(Work):
    """The shapes of a sum that the backend's own workers make."""

    def answer(self, *_: Any) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise AssertionError("users are trained by the backend")
