"""Prepared runs: one experiment on one corpus in one folder, started or resumed, then run.

Before a run folder is made a task is tried once, on examples of users outside the roster. Of an
algorithm other than federated averaging the first step is played: it asks for client work by name
and gives it further tensors, made of earlier answers, so that they cannot be tried one by one.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv import tree
from fedpriv.backends.backend import Backend
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.checkpoints.tensor_files import (
    BY_USER,
    SELECTED,
    START_FILE,
    params_sha256,
    read_sealed_model,
    released_models,
    write_tensors,
)
from fedpriv.datasets.local_data import NodeData
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.build import build, in_study
from fedpriv.experiments.experiment import LONGEST_NOISE, Components, Experiment, Settings
from fedpriv.experiments.load import from_anywhere
from fedpriv.experiments.start import PublicOnly, Start, public_only
from fedpriv.experiments.user_code import user_code
from fedpriv.measures import PUBLIC_ONLY, UserSums
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.perturbation import relative_length
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import BudgetSpentError
from fedpriv.privacy.plan import unit_words
from fedpriv.privacy.statement.coverage import (
    BROUGHT,
    TRAINED,
    refuse_brought_weights,
    refuse_private_knowledge,
    refuse_start_without_privacy,
)
from fedpriv.privacy.statement.sealed import DOCUMENT, read_sealed
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.runs.backends import (
    BackendFactory,
    CheckedFactory,
    open_corpus,
    place_of,
    recorded_place,
    serial,
)
from fedpriv.runs.callbacks import Callback, Notifier, check_callbacks
from fedpriv.runs.document import (
    check_label,
    describe_unused,
    experiment_of,
    make_document,
    restore_experiment,
)
from fedpriv.runs.door import RunDoor
from fedpriv.runs.folder import RunFolder, read_task_files
from fedpriv.runs.loop import rounds
from fedpriv.runs.records import RoundRecord
from fedpriv.runs.secret_state import SecretState
from fedpriv.runs.selection import Selection, select
from fedpriv.runs.summary import make_summary
from fedpriv.sums import PartialSum
from fedpriv.tasks.checks import (
    FIRST,
    SyntheticUsers,
    Works,
    ask_synthetic,
    check_metrics,
    check_users,
    check_work,
    describe_untried,
    find_cautions,
    fresh_works,
    measure_few,
    refuse_unsaved,
    refuse_unused,
    try_central_task,
)
from fedpriv.tasks.task import Task, has_public_folds
from fedpriv.training.algorithm import ArrayState, SumRequest
from fedpriv.training.failures import counted_failures
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.stopping import end_if_interrupted, interruptible
from fedpriv.training.work import Attempt, Work, as_works
from fedpriv.tree import Params
from fedpriv.untrusted_text import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """Everything a run needs, in one place.

    Attributes:
        components: Made from the experiment.
        folder: Where it is kept.
        state: The last released one.
        root: The root key.
        make_backend: Brings the work to the users.
        begun: The params before round 1, and where they came from.
        public: What public examples alone make, where that is known already.
        cautions: What could not be tried of the task beforehand, and what was noticed of it, in a
            line each.
        callbacks: Called with what is released (`fedpriv.runs.callbacks`).
    """

    components: Components
    folder: RunFolder
    state: Any
    root: Key
    make_backend: BackendFactory
    begun: Start
    public: PublicOnly | None = None
    cautions: tuple[str, ...] = ()
    callbacks: tuple[Callback, ...] = ()

    @property
    def experiment(self) -> Experiment:
        """The experiment that is run."""
        return experiment_of(self.components)

    @property
    def ledger(self) -> Ledger:
        """The folder's ledger."""
        return self.folder.ledger

    def with_callbacks(self, callbacks: Iterable[Callback]) -> PreparedRun:
        """Return the run with these callbacks.

        Raises:
            ValueError: If one is no callback, or asks for diagnostics of a secure run.
        """
        secure = self.ledger.mode != "simulation"
        return replace(self, callbacks=check_callbacks(callbacks, secure=secure))

    def run(
        self,
        on_round: Callable[[RoundRecord], None] = lambda record: None,
        tell: Callable[[str], None] = lambda text: None,
        *,
        ends_if_all_fail: bool = True,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> dict[str, Any]:
        """Run what is left of the plan and return the summary.

        Args:
            on_round: Called with each record, for progress bars only.
            tell: Called with what is done before the first round and after the last one, likewise.
            ends_if_all_fail: As of `fedpriv.runs.loop.rounds`.
            within: Makes what is entered before the backend is made, and left before the folder is
                let go.

        Raises:
            AllUsersFailedError: A ValueError; in a simulation, if all who were drawn failed.
        """
        state, record, folder = self.state, None, self.folder
        with Notifier(self.callbacks, folder) as notifier, closing(folder), within():
            with interruptible(), counted_failures() as failures:
                with closing(self.make_backend(self.experiment, self.components)) as backend:
                    described = backend.describe()
                    folder.note_backend(described, first_round=state.round_num + 1)
                    played = rounds(
                        self.components,
                        backend,
                        self.root,
                        folder=folder,
                        state=state,
                        eval_every=self.experiment.eval_every,
                        ends_if_all_fail=ends_if_all_fail,
                    )
                    with closing(played):
                        for record, state in played:  # noqa: B007 - the last are summarised
                            on_round(record)
                    selection = self._selected(state.round_num, tell)
                if selection is None:
                    returned = self.components.algorithm.measured(state)
                else:
                    returned, record = selection.params, None
                summary = make_summary(
                    self.components, folder, returned, record, failures.cause, selection, described
                )
                self._write_by_user(returned, summary, tell)
                folder.summarise(summary)
            notifier.end(summary)
        return {**summary, "run_dir": str(folder.path)}

    def _write_by_user(
        self, params: Params, summary: Mapping[str, Any], tell: Callable[[str], None]
    ) -> None:
        """Write what the returned model and the public-only one are for each rostered user.

        A diagnostic of a simulation, which no ε covers. There is none where the task does not tell
        users apart, several models answer together, or users' sums are not the headline's: an error
        here ends no run.
        """
        task, names = self.components.task, self.begun.params.keys()
        if self.root.mode != "simulation" or not isinstance(task, Task) or not task.measures:
            return
        reached, path = summary.get(task.measures[0].name), self.folder.path / BY_USER
        path.unlink(missing_ok=True)  # of an earlier end of the run
        if reached is None or not names <= params.keys():
            return
        try:
            found = task.held_out_by_user({name: params[name] for name in names})
            if found is None or not found[0].sum():
                return
            public = self.public or public_only(task, self.root.fold("init"))
            alone = None if public is None else task.held_out_by_user(public.model)
            sums = UserSums(
                count=found[0].astype(np.int64),
                value=found[1].astype(np.float64),
                public_value=None if alone is None else alone[1].astype(np.float64),
            )
            sums.check(task.measures[0], reached)
        except Exception as error:
            end_if_interrupted(error)
            tell(f"no intervals over users: {type(error).__name__} ({plain(error)})")
            return
        write_tensors(path, sums.tensors(), {"covered_by_epsilon": "false"}, mode=0o600)

    def _selected(self, round_num: int, tell: Callable[[str], None]) -> Selection | None:
        """Select and write the model that the run returns; None where it is the last."""
        able = has_public_folds(self.components.task)
        if not able or self.experiment.options().get("task.select") != "public" or not round_num:
            return None
        store = CheckpointStore(self.folder.path / "checkpoints")
        released = released_models(store.load(round_num)[0])
        # As where the run was started; a secure root is another one after a resume.
        key = self.root.fold("init") if self.root.mode == "simulation" else None
        found = select(self.components, self.begun, self.public, released, key=key, tell=tell)
        trained = read_sealed(self.folder.path).trained().to_json()
        metadata = {"format": "fedpriv-selected", TRAINED: json.dumps(trained)}
        write_tensors(self.folder.path / SELECTED, found.params, metadata)
        return found


def start_run(
    experiment: Experiment,
    reference: str | None,
    corpus: Corpus | NodeData | None,
    out: Path,
    *,
    secure: bool = False,
    backend: str = "serial",
    make_backend: BackendFactory = serial,
    keep_last: int | None = 10,
    anchor: str | os.PathLike[str] | None = None,
    trials: Trials | None = None,
    label: str | None = None,
    public: PublicOnly | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> PreparedRun:
    """Return a new prepared run in a new run folder.

    Args:
        experiment: What to run.
        reference: The name under which it is found again on resume; None if it has none, and
            give it again when resuming.
        corpus: Its corpus, or own files in its place; None for tasks that bring their own users.
        out: The run folder.
        secure: Entropy from the operating system instead of the experiment's seed.
        backend: The backend's name, recorded.
        make_backend: Makes the backend.
        keep_last: Newest checkpoints to keep; None keeps all.
        anchor: A file outside the folder where the ledger's lines are marked; None for none.
        trials: The law of how many such runs a study makes, where it is one of them.
        label: What the run is called wherever it is shown; None for the experiment's name.
        public: What `public_only` made of an equal task with the same root before, as in another
            trial of a study; None to make it.
        tell: Called with what is done before the first round, in a few words.

    Raises:
        ValueError: If the options do not fit together, the backend cannot carry this task, a
            secure run would know private things, or the folder holds a run already. Nothing is
            written then.
        Exception: What the experiment's user-defined code raises, also where its task is tried once
            on examples of no rostered user (`fedpriv.tasks.checks`). Nothing is written then.
    """
    label = check_label(label)
    if experiment.automatic:
        tell("choosing settings from the data's size")
    components = _built(experiment, reference, corpus, trials, make_backend)
    experiment = experiment_of(components)
    if experiment.unit == "user" and backend != "flower":  # whose nodes have the users
        with user_code("while rostered users were looked for"):
            check_users(components.task, experiment.name)
    if secure:
        side = components.side_information
        known = side and {"source": side.source}
        described = components.task.describe().to_json()
        unit, options = components.plan.unit, experiment.options()
        refuse_private_knowledge(unit, described, known, options)
        if components.dropout_rate:
            raise ValueError(
                f"dropout-rate {components.dropout_rate:g} simulates users who do not answer, and "
                "in a secure run users do so by themselves; leave it out"
            )
    root = Key.secure() if secure else Key.simulation(experiment.seed)
    if has_public_folds(components.task):
        tell("learning from public examples alone")
    public, baseline = _measure_public_only(components, root, public)
    state, begun, cautions = _try(components, root, public=public)
    if secure:
        refuse_start_without_privacy(components.plan, begun.facts, experiment.options())
        refuse_brought_weights(components.plan, begun.facts, experiment.options())
        if components.plan.replays:  # from the very same params, which another root draws otherwise
            begun = replace(begun, facts={"sha256": params_sha256(begun.params), **begun.facts})
    files, secret = read_task_files(components.task), secrets.token_bytes(32) if secure else None
    document = make_document(
        components,
        files,
        secret,
        begun,
        reference=reference and from_anywhere(reference),
        place=place_of(corpus),
        backend=backend,
        baseline=baseline,
        label=label,
    )
    return PreparedRun(
        components=components,
        folder=RunFolder.create(
            out,
            components,
            document,
            begun=begun,
            files=files,
            secret=secret,
            keep_last=keep_last,
            anchor=anchor,
        ),
        state=state,
        root=root,
        make_backend=make_backend,
        begun=begun,
        public=public,
        cautions=cautions,
    )


def resume_run(
    path: Path,
    *,
    experiment: Experiment | str | None = None,
    make_backend: BackendFactory = serial,
    keep_last: int | None = 10,
    anchor: str | os.PathLike[str] | None = None,
) -> PreparedRun:
    """Return the prepared run that a run folder holds, ready to go on.

    A secure run goes on with fresh entropy: its old root was never written down, and every
    attempt has streams of its own anyway.

    Args:
        path: The run folder.
        experiment: What was run, or its name, where that is not one of the experiments that are
            installed here; its options are those of the run folder, whatever it says.
        make_backend: Makes the backend.
        keep_last: Newest checkpoints to keep; None keeps all.
        anchor: That with which the run was started.

    Raises:
        ValueError: If there is no run, its files do not verify, its corpus or training set
            changed, its experiment is user-defined code or has no name and is not given, or the
            backend cannot carry its task.
    """
    # First of all: the ledger's chain and its seal on experiment.json, so that a file somebody
    # edited cannot choose what is opened. What is imported, `restore_experiment` says.
    folder = RunFolder.open(path, keep_last=keep_last, anchor=anchor)
    try:
        document, given = folder.document, experiment
        experiment = restore_experiment(document, path, given)
        corpus, trials = open_corpus(recorded_place(document)), folder.ledger.plan.trials
        components = _built(experiment, document["reference"], corpus, trials, make_backend)
        if components.plan.to_json() != folder.ledger.plan.to_json():
            raise ValueError(
                f"the corpus or the experiment changed since {path} was started: its plan is no "
                "longer the ledger's; restore them, or start a new run"
            )
        secure = folder.ledger.mode == "secure"
        root = Key.secure() if secure else Key.simulation(experiment.seed)
        folder.check_data(components.task)
        begun, facts = None, document["start"]
        if "sha256" in facts:
            begun = Start(params=read_sealed_model(path / START_FILE, facts["sha256"]), facts=facts)
        first, begun, cautions = _try(components, root, begun)
        if isinstance(given, Experiment) and (unused := describe_unused(document, given)):
            cautions = (*cautions, unused)
        state = folder.resume(first, components.algorithm.decided)
        if document["settings"] is not None:  # the options are settled now, and choose nothing
            components = replace(components, settings=Settings.from_json(document["settings"]))
    except BaseException:
        folder.close()
        raise
    return PreparedRun(
        components=components,
        folder=folder,
        state=state,
        root=root,
        make_backend=make_backend,
        begun=begun,
        cautions=cautions,
    )


def start_or_resume(
    experiment: Experiment,
    reference: str | None,
    corpus: Corpus | NodeData | None,
    out: Path,
    *,
    make_backend: BackendFactory = serial,
    keep_last: int | None = 10,
    **new: Any,
) -> PreparedRun:
    """Return the run of a folder that is a study's own: the one that is there, or else a new one.

    What a process left that was killed before there was a run is removed.

    Args:
        experiment: As of `start_run`, and so are all others.
        reference: The name under which it is found again.
        corpus: Its corpus; of a run that is there its own is opened.
        out: The run folder.
        make_backend: Makes the backend.
        keep_last: Newest checkpoints to keep; None keeps all.
        **new: Of a new run.

    Raises:
        ValueError: As of `start_run` and `resume_run`.
    """
    kept: dict[str, Any] = {"make_backend": make_backend, "keep_last": keep_last}
    if (out / DOCUMENT).is_file():
        return resume_run(out, experiment=experiment, **kept)
    ledger = out / "ledger.jsonl"
    if not ledger.is_file() or b'"charge"' not in ledger.read_bytes():  # else it is refused
        shutil.rmtree(out, ignore_errors=True)
    return start_run(experiment, reference, corpus, out, **kept, **new)


def _built(
    experiment: Experiment,
    reference: str | None,
    corpus: Corpus | NodeData | None,
    trials: Trials | None,
    make_backend: BackendFactory,
) -> Components:
    """Return components that a backend can carry."""
    with user_code(f"while the task of {reference or experiment.name} was made"):
        components = build(experiment, corpus)
    experiment = experiment_of(components)
    components = in_study(experiment, components, trials)
    if isinstance(make_backend, CheckedFactory):
        make_backend.check(experiment, components)
    return components


def _measure_public_only(
    components: Components, root: Key, known: PublicOnly | None
) -> tuple[PublicOnly | None, dict[str, float]]:
    """Return what public examples alone make, and what that reaches where the run is measured.

    That is on rostered users' held-out examples, a diagnostic, and so of simulations alone; on
    public ones where a task has no others; and of single examples on the test set.
    """
    task = components.task
    if root.mode != "simulation" or not task.measures:
        return None, {}
    with user_code("while public examples alone were learnt from"):
        found = known or public_only(task, root.fold("init"))
        if found is None:
            return None, {}
        measured = task.evaluate(found.model, public=False)
        if measured is None:
            measured = task.evaluate(found.model, public=True)
    headline = task.measures[0].name
    value = None if measured is None else measured.get(headline)
    return found, {} if value is None else {f"{headline}{PUBLIC_ONLY}": value}


def _try(
    components: Components,
    root: Key,
    begun: Start | None = None,
    *,
    public: PublicOnly | None = None,
) -> tuple[ArrayState, Start, tuple[str, ...]]:
    """Try a task once, before anything is charged.

    Args:
        components: Of the experiment that is run.
        root: The root key.
        begun: The params before, where they are known; None to make them.
        public: What public examples alone make, where that is known.

    Returns:
        The state before round 1, what it was made of, and what to beware of, in a line each.
    """
    experiment = experiment_of(components)
    when = (
        "while the task was tried on public or synthetic examples, before anything was charged; if "
        "its model takes no such examples, give the task a synthetic_batch of some that it takes"
    )
    task, cautions = components.task, tuple[str, ...]()
    with user_code(when):
        begun = components.begin(root.fold("init"), public) if begun is None else begun
        replaced = begun.params if begun.facts["kind"] == "file" else ()
        if brought := sorted(name for name in task.brought() if name not in replaced):
            begun = replace(begun, facts={**begun.facts, BROUGHT: brought})
    with user_code("while what is made of released models was tried, before anything was charged"):
        components.algorithm.check_params(begun.params)
    with user_code(when, refusals=False):
        state = components.algorithm.init(begun.params)
        if experiment.unit == "example":
            found = try_central_task(task, state.params)
        else:
            batch = task.synthetic_batch()
            if batch is None:
                cautions = (describe_untried(task),)
            else:
                _train_synthetic_users(components, state.params, SyntheticUsers(batch), root.mode)
            found = measure_few(task, state.params)
    check_metrics(task, found)
    with user_code("while the model was saved and loaded, before anything was charged"):
        refuse_unsaved(components.algorithm, begun.params, task.outputs)
        refuse_unused(task, begun.params)
    if found is not None and (loss := found.get("loss")) is not None:
        components.algorithm.check_start(loss)
    cautions += _describe_noise_length(components, tree.num_elements(state.params))
    if components.settings is not None:
        selects = experiment.options().get("task.select") == "public"
        cautions += tuple(filter(None, [components.settings.caution(selects=selects)]))
    if experiment.unit == "user":
        with user_code("while public examples were compared with rostered users'"):
            cautions += find_cautions(task, found, simulated=root.mode == "simulation")
    return state, begun, cautions


def _describe_noise_length(components: Components, num_params: int) -> tuple[str, ...]:
    """Return how long the noise on a finished result is, in a line; nothing of other plans.

    Of averaging, where a round's mean moves the model by the clip norm C at most, and the noise of
    T rounds adds up to √(Td) times its standard deviation: only where that is far more than TC.
    """
    plan, mechanism = components.plan, components.plan.mechanism
    if mechanism is None:
        return ()
    noise, rounds = mechanism.privatizer, plan.affordable_rounds
    found = relative_length(noise, num_params=num_params, num_users=plan.num_users)
    if isinstance(components.algorithm, FederatedAveraging) and isinstance(noise, Gaussian):
        known = components.settings is not None or not rounds  # settings have a caution of theirs
        length = math.sqrt(num_params / (rounds or 1)) * mechanism.noise_multiplier
        length /= mechanism.denominator
        found = None if known or length <= LONGEST_NOISE else length
    if found is None:
        return ()
    noun = unit_words(plan.unit).contributor
    much = (
        f": expect noise alone; train fewer params, of more {noun}s, or at a higher ε"
        if found > 1.0
        else ""
    )
    times = f"{found:,.0f}" if found > 10.0 else f"{found:.2g}"
    return (
        f"the noise on the result is about {times} times as long as the furthest that training "
        f"can go ({num_params:,} params, {plan.num_users:,} {noun}s){much}",
    )


def _train_synthetic_users(
    components: Components, params: Params, data: SyntheticUsers, mode: str
) -> None:
    """Play an algorithm's first step on synthetic users, on a door as runs have.

    Nothing is charged or kept. Each work is checked when it is first asked.

    Args:
        components: Of the experiment.
        params: Before the first round; not changed.
        data: Of users on no roster.
        mode: Of the run, whose noise is drawn as there.

    Raises:
        Exception: What the algorithm, a work or a trainer raises.
        ValueError: If a contribution has other tensors than it should or is not finite, or a work
            fails and keeps to itself why.
        KeepsStateError: If one user's contribution depends on another user.
    """
    task = components.task
    again = partial(experiment_of(components).make_trainer, task, components.side_information)
    fresh = fresh_works(components.trainer, again, task, getattr(task, "data", None))
    plan, algorithm = components.plan, components.algorithm
    root = Key.simulation(0).fold("rehearsal")
    # Where the run itself starts: another start may be longer, and refused.
    state = algorithm.init({name: array.copy() for name, array in params.items()})
    with ThreadPoolExecutor(1, thread_name_prefix="noise") as noise_thread:
        door = RunDoor(
            plan=plan,
            ledger=Ledger.in_memory(plan, mode=root.mode),
            backend=_OnSyntheticUsers(fresh, data, params),
            works=as_works(components.trainer),
            roster=components.task.roster,
            root=root,
            noise=root if mode == "simulation" else Key.secure(),
            secret_state=SecretState(None, root),
            noise_thread=noise_thread,
            named=algorithm.mechanisms(),
        )
        door.begin(state.round_num + 1)
        try:
            algorithm.step(state, door)
        except BudgetSpentError:
            if plan.planned_rounds is not None:  # else the run ends here, and is allowed to
                raise


class _OnSyntheticUsers(Backend):
    """Backend where one synthetic user replaces each cohort."""

    def __init__(self, fresh: Works, data: SyntheticUsers, trained: Collection[str]) -> None:
        self._fresh, self._data, self._trained = fresh, data, trained
        self._works: dict[str, Work] = {}

    def sum(self, request: SumRequest, attempt: Attempt, cohort: Sequence[str]) -> PartialSum:
        """Return the sum of one synthetic user; an empty cohort has one too."""
        name = request.work
        if name not in self._works:  # a program asks in many passes: the first tells all
            self._works[name] = self._fresh(name)
            check_work(self._fresh, request, attempt, self._data, trained=self._trained)
        found = ask_synthetic(self._works[name], request, attempt, self._data, FIRST)
        return replace(found, num_users=len(cohort))
