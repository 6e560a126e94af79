"""Every declared option changes what three rounds of five users release or record, or is refused.

An effect is seen in the released params, the figures, the plan and its ε, the start or the side
information; the record of the option itself does not count. Noise is of one fixed key and everybody
is drawn, so that no option has an effect through the digest that keys are made of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
from scipy import sparse
from torch import nn

from fedpriv.checkpoints.tensor_files import AGGREGATE, write_tensors
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import classes
from fedpriv.experiments.options import entries, option
from fedpriv.experiments.ready_made.image_users import ImagesByUser
from fedpriv.experiments.tasks import NextWordsTask, TagPredictionTask
from fedpriv.mechanisms import SideInformation
from fedpriv.mechanisms.preconditioners import rmsprop
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import rounds
from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.per_example.linear import LogisticGradients, linear_metrics

USERS, ROUNDS = 5, 3
NOISE = Key.simulation(7)


def examples(number, rows=12):
    """Rows of three normals, and labels of two classes."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    return x, (x @ [1.0, -1.0, 0.5] > 0).astype(int)


def known(name, factor):
    multiplier = {"weight": np.array([0.2, 1.0, factor], np.float32)}
    return lambda: SideInformation(multiplier=multiplier, source="public", description=name)


class Five(ModuleTask):
    """Five users and a module of one layer."""

    def side_information(self):
        multiplier = {"weight": np.array([[0.2, 1.0, 5.0]], np.float32)}
        return SideInformation(multiplier=multiplier, source="public", description="known")


@cache
def five():
    return Five(
        name="five", module=lambda: nn.Linear(3, 2), loss=nn.functional.cross_entropy,
        users={f"u{n}": examples(n) for n in range(USERS)}, public=examples(99), synthetic=True,
    )  # fmt: skip


@cache
def sixty():
    """A training set of sixty examples."""
    (x, y), (public_x, public_y), (test_x, test_y) = (
        (sparse.csr_matrix(x), y) for x, y in (examples(0, 60), examples(1, 40), examples(2, 30))
    )
    return CentralTask(
        name="sixty", train=LogisticGradients(x, y), num_train=60,
        init=zeros({"weight": (3,), "bias": (1,)}),
        measure=lambda params: linear_metrics(params, test_x, test_y),
        public=LogisticGradients(public_x, public_y), num_public=40,
        public_measure=lambda params, at: linear_metrics(params, public_x[at], public_y[at]),
        side={"frequency": known("frequency", 5.0), "tf-idf": known("tf-idf", 3.0)},
        synthetic=True,
    )  # fmt: skip


ROUND = {"noise.multiplier": 1.0, "l2-clip-norm": 0.5}
FILTER = {"target-epsilon": 20.0, "iterations": 3}
ONCE = {"output-noise.target-epsilon": 2.0, "regulariser": 0.01, "radius": 10.0, "passes": 2}
BASES = {
    ("user", "averaging"): {
        **ROUND, "rounds": ROUNDS, "cohort": float(USERS), "local.batch-size": 4,
        "local.learning-rate": 0.5,
    },
    ("user", "agd"): FILTER,
    ("user", "bolt-on"): {**ONCE, "users-per-update": 2},
    ("example", "averaging"): {**ROUND, "steps": ROUNDS, "batch-size": 20.0},
    ("example", "agd"): FILTER,
    ("example", "bolt-on"): {**ONCE, "batch-size": 10},
}  # fmt: skip
"""Options of every experiment of a unit and method."""

APART = {"sampling": "separated", "cohort": 2.0, "min-separation": 1}
WITH = {
    "sampling=fixed": {"relation": "replace-one"},
    "sampling=separated": {"noise": "tree", "min-separation": 1, "cohort": 2.0},
    "sampling=cyclic": {"noise": "tree", "min-separation": 1, "cohort": 2.0},
    "noise=tree": APART,
    "noise=banded": APART,
    "noise=blt": APART,
    "noise=none": {"noise.multiplier": None},
    "bound=none": {"noise": "none", "noise.multiplier": None, "l2-clip-norm": None},
    "release_preconditioner=delayed": {"delay-plain": 1},
    "preconditioner=delayed": {"delay-plain": 1},
    "output_noise=none": {"output-noise.target-epsilon": None},
    "clip_least": {"l2-clip-norm": 9.0},
    "clip_most": {"l2-clip-norm": 0.01},
    "cohort_cap": {"cohort": 2.0},
    "sampling.cohort": {"relation": "replace-one"},
    "bands": {"min-separation": 2},
    "noise.target_epsilon": {"noise.multiplier": None, "noise.target-epsilon": 8.0},
    "completion": {"noise.restart": 2},
    "aggregate.start": {"aggregate.training": "replace"},
    "user averaging aggregate.k": {"local.learning-rate": 2.0, "l2-clip-norm": 20.0},
    "epochs": {"steps": None, "epochs": 1.0},
    "local.epochs": {},
    "refresh": {"public-batch": 5},
    "warm_start_rate": {"warm-start-epochs": 1},
    "growth": {"num-steps": 1, "target-epsilon": 2.0, "iterations": 20},
    "estimates": {"num-steps": 1, "target-epsilon": 2.0, "iterations": 20},
    "user agd selection": {"target-epsilon": 50.0, "largest-step": 20.0},
    "local_steps": {"regulariser": 0.0},
    "local.local_steps": {},
    "user bolt-on delta": {"output-noise": "gaussian"},
    "example bolt-on delta": {"output-noise": "gaussian"},
    "noise_multiplier": {"output-noise.target-epsilon": None, "noise-multiplier": 1.0},
}
"""Further options, by the kind of a part, or by the last steps of the option that is tried."""

VALUES = {
    # Where a run begins, and how often it is measured.
    "start.learning_rate": 0.05, "start.passes": 1, "factor": 0.5, "which": "ema", "seed": 1,
    "eval_every": 2,
    # What is drawn, bounded and added.
    "delta": 1e-4, "relation": "replace-one", "cohort": 1.0, "cohort_cap": 4, "min_separation": 2,
    "max_participations": 1, "l2_clip_norm": 0.25, "clip_least": 8.9, "clip_most": 0.0101,
    "clip_quantile": 0.9, "clip_rate": 0.7, "clip_count_weight": 0.5, "normalise_regulariser": 0.3,
    "multiplier": 2.0, "target_epsilon": 3.0, "exact_sum": False, "noise.restart": 2,
    "estimate": "vanilla", "completion": True, "bands": 1, "coefficients": "square-root",
    "buffers": 1,
    "example averaging noise.exact_sum": True, "example bolt-on relation": "add-remove",
    # What is made of releases.
    "training": "replace", "aggregate.start": 2, "ema_decay": 0.5, "ema_warmup": True, "k": 1,
    "rounds": 2, "momentum": 0.3, "adaptivity": 0.1, "server.restart": 2, "decay": 0.3,
    "regulariser": 0.1, "delay_plain": 2, "delay_preconditioned": 1, "clip_ratio": 0.5,
    "rate_ratio": 0.5,
    # What users do.
    "learning_rate": 0.05, "batch_size": 2, "epochs": 2.0, "max_examples_per_user": 2,
    "local_steps": 2, "proximal_mu": 0.5, "client_decay": 0.3, "client_beta1": 0.3,
    "client_beta2": 0.3, "client_adaptivity": 0.1, "rate_schedule": "cosine", "warmup_rounds": 2,
    "dropout_rate": 0.7, "preconditioner_gain": 3.0, "preconditioner_top": 5,
    "preconditioner_power": 0.5,
    # Examples.
    "steps": 2, "micro_batch": 2, "schedule": "step", "side_information": "tf-idf",
    "public_batch": 5, "refresh": "epoch", "regulariser_inside": True, "warm_start_epochs": 1,
    "warm_start_rate": 0.01,
    # DP-AGD.
    "conversion": "plain", "prices": "paper", "iterations": 2, "gradient_share": 0.3,
    "gradient_clip": 0.05, "loss_cap": 0.3, "growth": 0.7, "estimates": "discard",
    "selection": "permute-and-flip", "largest_step": 0.5, "num_steps": 5, "adapt_every": 1,
    # Bolt-on.
    "passes": 1, "radius": 1e-3, "step_rate": 0.05, "step_exponent": 0.2, "noise_multiplier": 2.0,
    "users_per_update": 1, "server_rate": 0.5, "longest_start": 1.0, "average": True,
}  # fmt: skip
"""Another value of an option, by the last steps of its path."""

ONE_RELEASE = "of one release, which is always measured"
OF_KEYS = "it makes the keys, which are fixed here; `test_noise_root.py`"
ELSEWHERE = {
    "start.file": "`test_a_start_from_a_file`",
    "start.which": "`test_a_start_from_a_file`",
    "start.without_privacy": "a permission, which a secure run asks for",
    "start.brought_weights": "another one; `test_brought_weights.py`",
    "seed": OF_KEYS,
    "user bolt-on eval_every": ONE_RELEASE,
    "example bolt-on eval_every": ONE_RELEASE,
    "example averaging aggregate.k": "of no classes; tried by user",
}
"""What is not tried here, and why."""


def found_by_end(table, of, path):
    """The value of an option, or of the longest ending of its path that a table has; or None."""
    steps = path.split(".")
    ends = (".".join(steps[at:]) for at in range(len(steps)))
    return next((table[end] for end in (f"{' '.join(of)} {path}", *ends) if end in table), None)


def outcome(of, task, corpus, options):
    """Everything that three rounds release or record, but for the options themselves."""
    delta = None if of[1] == "bolt-on" else 1e-2
    made = classes()[of](
        name="own", description="", task=task, delta=delta, eval_every=1, statistics=rmsprop(0.5)
    ).with_options(options)
    components = build(made, corpus)
    key = Key.simulation(made.seed)
    seen = [str(components.begin(key.fold("init")).facts), str(components.plan.to_json())]
    side = components.side_information
    seen += [] if side is None else [side.description, str(side.multiplier)]
    played = rounds(
        components, serial(made, components), key, noise=NOISE, eval_every=made.eval_every
    )
    for record, state in islice(played, ROUNDS):
        for params in (state.params, components.algorithm.result(state)):
            seen += [array.tobytes() for array in params.values()]
        seen.append(str(record.released))
        seen.append(str(replace(record.diagnostics, seconds=0.0)))
    return seen


def tried(of, entry, kind):
    """Options without the value, and with it."""
    value = found_by_end(VALUES, of, entry.path) if kind is None else kind
    given = dict(entry.within)
    for place, chosen in entry.within:
        given |= WITH.get(f"{place}={chosen}", {})
    given |= found_by_end(WITH, of, entry.path) or {}
    changed = {**WITH.get(f"{entry.path}={kind}", {}), entry.path: value}
    if of[0] == "example":  # whose batches are of the base
        given, changed = ({n: v for n, v in o.items() if n != "cohort"} for o in (given, changed))
    return {**BASES[of], **given}, {**BASES[of], **given, **changed}


SLOW = ("start", "local.client_optimizer", "noise.buffers")


def cases():
    seen = set()
    for of, made in classes().items():
        for entry in entries(made):
            label = f"{' '.join(of)} {entry.path}"
            if ELSEWHERE.keys() & {entry.path, label}:
                continue
            kinds = [v for v in entry.choices if v != entry.default] if entry.is_choice else [None]
            for kind in kinds:
                # Quick is one place of each option of a unit.
                slow = (of[0], entry.path, kind) in seen or entry.path.startswith(SLOW)
                seen.add((of[0], entry.path, kind))
                name = f"{label} {kind or ''} {dict(entry.within) or ''}".strip()
                marks = [pytest.mark.slow] if slow else []
                yield pytest.param(of, entry, kind, id=name, marks=marks)


REFUSED = {
    "start file": "start-file",  # none is given
    "example averaging aggregate opa": "class_scores",
    "example averaging aggregate omv": "class_scores",
}
"""Kinds that are refused, and what the reason names."""


@pytest.mark.parametrize(("of", "entry", "kind"), list(cases()))
def test_it_changes_what_is_released_or_recorded(of, entry, kind, tiny_corpus):
    before, after = tried(of, entry, kind)
    task, corpus = TagPredictionTask(users=USERS), tiny_corpus
    torch_alone = entry.path.startswith(("local.client_optimizer", "local.proximal"))
    if of[0] == "example" or torch_alone or kind == "own":
        made = sixty() if of[0] == "example" else five()
        task, corpus = lambda experiment: made, None
    if kind == "own":
        before = BASES[of]  # words have no multipliers of their own
    named = found_by_end(REFUSED, of, f"{entry.path} {kind}")
    if named is not None:
        with pytest.raises(ValueError, match=named):
            outcome(of, task, corpus, after)
        return
    expected = outcome(of, task, corpus, before)
    assert outcome(of, task, corpus, after) != expected


@dataclass(frozen=True, kw_only=True)
class Inert(TagPredictionTask):
    """A task with an option that nobody reads."""

    unread: int = option(1, "Nothing.")


def test_an_option_that_does_nothing_is_seen(tiny_corpus):
    of, task = ("user", "averaging"), Inert(users=USERS)
    found = [outcome(of, task, tiny_corpus, {**BASES[of], **o}) for o in ({}, {"unread": 2})]
    assert found[0] == found[1]


def test_a_start_from_a_file(tiny_corpus, tmp_path):
    of, task = ("user", "averaging"), TagPredictionTask(users=USERS)
    plain = {**BASES[of], "start": "file"}
    found = []
    for number in range(2):
        params = task(None, tiny_corpus).init_params(Key.simulation(0))
        moved = {name: array + np.float32(number) for name, array in params.items()}
        average = {AGGREGATE + name: array + np.float32(5.0) for name, array in params.items()}
        path = tmp_path / f"{number}.safetensors"
        write_tensors(path, {**moved, **average})
        for which in ("last", "ema"):
            given = {**plain, "start.file": str(path), "start.which": which}
            found.append(outcome(of, task, tiny_corpus, given)[2:])
    assert len({str(seen) for seen in found}) == 3  # both files have the same average


WORDS = {"noise.multiplier": 1.0, "l2-clip-norm": 0.5, "rounds": ROUNDS, "cohort": 5.0}


@pytest.mark.parametrize(
    ("of", "task", "options", "named"),
    [
        (("user", "averaging"), TagPredictionTask(tf_idf_power=1.0), WORDS, "tf-idf-power 1.0"),
        (("user", "averaging"), TagPredictionTask(pair_weight=1.0), WORDS, "pair-weight 1.0"),
        (("user", "averaging"), NextWordsTask(shift_period=4), WORDS, "shift-period 4"),
        (("user", "averaging"), NextWordsTask(word_gain=4.0), WORDS, "word-gain 4"),
        (("user", "averaging"), ImagesByUser(alpha=1.0, partition="uniform"), WORDS, "alpha 1.0"),
        (("user", "averaging"), ImagesByUser(shards=3), WORDS, "shards 3"),
        (("user", "averaging"), ImagesByUser(skew=0.5), WORDS, "skew 0.5"),
        (
            ("user", "averaging"), TagPredictionTask(),
            {**WORDS, "release-preconditioner": "delayed", "delay-plain": 3}, "delay-plain 3",
        ),
        (
            ("user", "averaging"), TagPredictionTask(),
            {**WORDS, "server": "ftrl", "server.restart": 3}, "restart 3",
        ),
        (
            ("user", "averaging"), TagPredictionTask(),
            {**WORDS, "noise": "tree", **APART, "noise.restart": 3}, "restart 3",
        ),
        (
            ("user", "agd"), TagPredictionTask(), {"target-epsilon": 8.0, "prices": "paper",
            "gradient-share": 0.3}, "gradient-share 0.3",
        ),
        (
            ("example", "averaging"), sixty, {**BASES["example", "averaging"],
            "warm-start-rate": 0.2}, "warm-start-rate 0.2",
        ),
        (
            ("example", "averaging"), sixty, {**BASES["example", "averaging"],
            "preconditioner": "delayed", "delay-plain": 3}, "delay-plain 3",
        ),
    ],
)  # fmt: skip
def test_what_would_have_none_is_refused(of, task, options, named, tiny_corpus):
    corpus = tiny_corpus if of[0] == "user" else None
    given = task if corpus is not None else lambda experiment: task()
    with pytest.raises(ValueError, match=named):
        outcome(of, given, corpus, options)


@pytest.mark.parametrize("method", ["agd", "bolt-on"])
def test_tensors_of_rounds_that_a_method_does_not_send_are_refused(method):
    class Rounds(Five):
        @property
        def round_tensors(self):
            return lambda round_num: {"round": np.array([round_num], np.float32)}

    made = Rounds(
        name="five", module=lambda: nn.Linear(3, 2), loss=nn.functional.cross_entropy,
        users={"a": examples(0), "b": examples(1)}, synthetic=True,
    )  # fmt: skip
    with pytest.raises(ValueError, match="round_tensors"):
        outcome(("user", method), lambda experiment: made, None, BASES["user", method])
