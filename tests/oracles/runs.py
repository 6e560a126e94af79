"""The way to whole runs of the product: combinations of options, baseline, public names.

With `product` and `sums` it is all that this folder has of fedpriv.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np
from safetensors.numpy import load_file
from torch import nn

import fedpriv
from fedpriv.checkpoints.tensor_files import write_tensors
from fedpriv.cli import app, loaded
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import classes
from fedpriv.experiments.load import find_experiments, load_experiment
from fedpriv.experiments.noise import Noise
from fedpriv.experiments.options import entries, kind_of
from fedpriv.experiments.preconditioning import PreconditionerRecipe
from fedpriv.experiments.sampling import Sampling
from fedpriv.mechanisms import Bound
from fedpriv.mechanisms.preconditioners import Preconditioner
from fedpriv.rng import Key
from fedpriv.runs import loop
from fedpriv.runs.backends import open_corpus, serial, serial_on
from fedpriv.runs.door import RunDoor
from fedpriv.runs.loop import rounds
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.tasks.module_task import PersonalLayers
from fedpriv.training.local.schedule import PlainSteps
from fedpriv.training.step_schedules import StepSchedule
from fedpriv.training.work import Trainer
from fedpriv.transform import Transform
from simulations.reproduction.command import app as studies
from tests.harness.command_line import CliRunner
from tests.harness.tiny_bert import write_tiny_bert
from tests.oracles.problems import CLASSES, FEATURES, USERS, examples
from tests.oracles.product import Round, Users, recorded

# -- combinations of options ------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a run of five users releases and records, and what its plan says.

    Attributes:
        start: Params before round 1.
        params: After each round.
        results: What the run would return after each round.
        cohorts: Users drawn in each round.
        measured: Values on held-out examples after each round; of a secure run on public ones.
        diagnosed: Whether a round has diagnostics, which a secure run must not keep.
        plan: As JSON.
        engines: Names of the classes that trained users.
    """

    start: dict[str, np.ndarray]
    params: list[dict[str, np.ndarray]]
    results: list[dict[str, np.ndarray]]
    cohorts: list[Sequence[str]]
    measured: list[dict[str, Any]]
    diagnosed: bool
    plan: str
    engines: set[str]


def outcome(
    options: Mapping[str, Any], *, personal: bool = False, device: str | None = None,
    secure: bool = False,
) -> Outcome:  # fmt: skip
    """Run options on five users; all private draws are of one key, also those of a secure run.

    Raises:
        ValueError: If the product refuses the options together.
    """
    task = Users(
        name="five users",
        module=lambda: nn.Linear(FEATURES, CLASSES),
        loss=nn.functional.cross_entropy,
        users=USERS,
        public=examples(600, 99),
        public_train=None if personal else examples(12, 98),
        test=None if personal else examples(1500, 97),
        personal=PersonalLayers(names=("bias",)) if personal else None,
        synthetic=True,
    )
    made = FederatedExperiment(name="oracle", description="", task=lambda _: task, delta=1e-3)
    components = build(made.with_options({"exact-sum": False, **options}))
    key = _secure_key() if secure else Key.simulation(0)
    carry = serial if device is None else serial_on(device)
    backend = carry(components.experiment, components)
    start = {n: np.array(a, float) for n, a in components.init_params(key.fold("init")).items()}
    found = Outcome(start, [], [], [], [], False, json.dumps(components.plan.to_json()), set())
    steps = rounds(
        components, backend, key, eval_every=1, noise=None if secure else Key.simulation(7)
    )
    while True:
        round_ = Round()
        with recorded(round_), patch.object(Key, "secure", _secure_key), _engines(found.engines):
            try:
                record, state = next(steps)
            except StopIteration:
                return found
        found.params.append({n: np.array(a, float) for n, a in state.params.items()})
        result = components.algorithm.result(state)
        found.results.append({n: np.array(a, float) for n, a in result.items()})
        found.cohorts.append(tuple(round_.cohort))
        diagnosed = {} if record.diagnostics is None else record.diagnostics.measured
        known = {name: value for name, value in diagnosed.items() if value is not None}
        found.measured.append({**record.released.measured, **known})
        found = found._replace(diagnosed=record.diagnostics is not None)


@contextmanager
def _engines(found: set[str]) -> Iterator[None]:
    """Add the names of the classes that train users meanwhile."""
    answer = Trainer.answer

    def noted(self: Trainer, *given: Any) -> Any:
        found.add(type(self).__name__)
        return answer(self, *given)

    with patch.object(Trainer, "answer", noted):
        yield


def _secure_key() -> Key:
    """Return one key for all of a secure run, where each would be of the operating system."""
    return Key.from_bytes(bytes(range(32)), "secure")


def write_start(path: Any) -> None:
    """Write the params of another model of the five users' shapes."""
    rng = np.random.default_rng(5)
    shapes = {"weight": (CLASSES, FEATURES), "bias": (CLASSES,)}
    write_tensors(path, {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()})


# -- runs that are kept -----------------------------------------------------------------------


class Crash(BaseException):
    """What stands for a killed process."""


@contextmanager
def _forced(crash_after: int | None) -> Iterator[None]:
    """Make all private draws of one key of the seed, and crash at a charge, counted from 1."""
    cohort, charges = RunDoor._cohort, count(1)

    def crashing(self: Any, *given: Any) -> Any:
        if next(charges) == crash_after:
            raise Crash
        return cohort(self, *given)

    def forced(root: Key, *_: Any) -> Key:
        return root if root.mode == "secure" else root.fold("baseline")

    with (
        patch.object(RunDoor, "_cohort", crashing),
        patch.object(loop, "noise_root", forced),
        patch.object(loop, "unkept_noise_root", forced),
    ):
        yield


class Kept(NamedTuple):
    """What a run leaves: params after each round that is kept, what it returns, and values."""

    params: list[dict[str, np.ndarray]]
    result: dict[str, np.ndarray]
    values: dict[str, float | None]


VALUES = ("epsilon", "epsilon_rdp", "delta", "noise_multiplier", "rounds", "charges", "users")
"""Values of every run; the task's own measures are added to them."""


def keep(
    experiment: Any, folder: Path, *, corpus: Path | None = None, secure: bool = False,
    crashes: Sequence[int] = (),
) -> Kept:  # fmt: skip
    """Run an experiment into a folder.

    Args:
        experiment: Itself, or the name of a ready-made one and its options.
        folder: A new one.
        corpus: Of a ready-made experiment that wants one.
        secure: Without a seed.
        crashes: Charges, counted since the run was last started, at which it crashes and goes on.
    """
    opened = None if corpus is None else open_corpus(str(corpus))
    if isinstance(experiment, tuple):
        name, options = experiment
        experiment = load_experiment(name).with_options(options)
    prepared = None
    for crash_after in (*crashes, None):
        if prepared is None:
            prepared = start_run(experiment, None, opened, folder, secure=secure, keep_last=None)
        else:
            prepared = resume_run(folder, experiment=experiment, keep_last=None)
        with _forced(crash_after):
            try:
                summary = prepared.run()
            except Crash:
                continue
    files = sorted((folder / "checkpoints").glob("*.safetensors"))
    measures = [measure["name"] for measure in summary["measures"]]
    names = [*VALUES, *measures, *(f"{name}_public" for name in measures)]
    return Kept(
        [{n: np.array(a) for n, a in load_file(file).items()} for file in files],
        fedpriv.load(folder).params,
        {name: summary.get(name) for name in names},
    )


def ready_made() -> list[str]:
    """Names of the ready-made experiments."""
    return sorted(find_experiments())


def synthetic_corpus(folder: Path) -> Path:
    """Write a corpus of 40 rostered and 20 public users."""
    fedpriv_command("data", "synthesize", "--users", "40", "--sentences", "1200",
                    "--public-users", "20", "--out", str(folder))  # fmt: skip
    return folder


def leaf_file(folder: Path, inputs: Callable[[np.random.Generator], tuple[Any, Any]]) -> Path:
    """Write 40 users of six examples each in LEAF's JSON.

    Args:
        folder: A new one.
        inputs: From a generator to an example and what is to be predicted.
    """
    folder.mkdir()
    rng, users = np.random.default_rng(0), dict[str, Any]()
    for number in range(40):
        x, y = zip(*(inputs(rng) for _ in range(6)), strict=True)
        users[f"u{number:02d}"] = {"x": x, "y": y}
    whole = {"users": list(users), "num_samples": [6] * len(users), "user_data": users}
    path = folder / "all_data.json"
    path.write_text(json.dumps(whole), "utf-8")
    return path


def a_digit(rng: np.random.Generator) -> tuple[list[float], int]:
    return rng.random(28 * 28).round(2).tolist(), int(rng.integers(10))


def a_line(rng: np.random.Generator) -> tuple[str, str]:
    text = "".join(rng.choice(list("abc def"), size=81))
    return text[:80], text[80]


def embedded(corpus: Path, folder: Path) -> Path:
    """Write an encoder of random weights, and embed a corpus's titles with it."""
    write_tiny_bert(folder)
    fedpriv_command("encoder", "embed", str(folder), "--corpus", str(corpus), "--texts", "title",
                    "--processes", "1")  # fmt: skip
    return folder


def fedpriv_command(*argv: str) -> str:
    """Run a command of fedpriv as `_output` does."""
    return _output(app, *argv)


def study_command(*argv: str) -> str:
    """Run a command of the studies as `_output` does."""
    return _output(studies, *argv)


def _output(program: Any, *argv: str) -> str:
    """Run a command in this process, with draws of the seed alone, and return what it prints.

    Raises:
        RuntimeError: If it fails.
    """
    with _forced(None):
        done = CliRunner().invoke(program, argv)
    if done.exit_code:
        raise RuntimeError(f"{argv[0]}: {done.output[-500:]} {done.exception!r}")
    return done.stdout


def options() -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield unit and method, and each option of theirs, as the product declares it.

    Without kinds of parts that tests define.
    """
    bases = (
        Bound, Transform, Preconditioner, PreconditionerRecipe, Noise, Sampling, PlainSteps,
        StepSchedule,
    )  # fmt: skip
    foreign = {
        kind_of(part)
        for base in bases
        for part in base.kinds.values()
        if not part.__module__.startswith("fedpriv.")
    } - {
        kind_of(part)
        for base in bases
        for part in base.kinds.values()
        if part.__module__.startswith("fedpriv.")
    }
    for of, made in classes().items():
        for entry in entries(made):
            if entry.is_choice:
                kept = tuple(kind for kind in entry.choices if kind not in foreign)
                entry = replace(entry, hint=Literal[kept])  # pyright: ignore
            if foreign.isdisjoint(kind for _, kind in entry.within):
                yield of, entry


def public_names() -> dict[str, list[str]]:
    """Names of the API, of commands and flags, of options by method, and of the run-config."""

    def flags(command: Any, path: str) -> Iterator[str]:
        yield path
        yield from (f"{path} {flag}" for one in command.params for flag in one.opts)
        for name, inner in getattr(command, "commands", {}).items():
            yield from flags(inner, f"{path} {name}")

    pyproject = tomllib.loads((Path(fedpriv.__file__).parents[1] / "pyproject.toml").read_text())
    return {
        "python": sorted(fedpriv.__all__),
        "commands": sorted(flags(loaded(), "fedpriv")),
        "options": sorted({f"{' '.join(of)} {entry.path}" for of, entry in options()}),
        "run-config": sorted(pyproject["tool"]["flwr"]["app"]["config"]),
    }
