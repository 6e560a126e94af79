"""Every option of every method, away from its default: cases of the baseline.

The baseline has a run with the option's other value, and one without it, of small problems by user
and by example. What is recorded of the two differs, so an option that is ignored is unlike it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.oracles import runs

Method = tuple[str, str]
"""A unit and a method."""

ROUNDS = 3
ROUND = {"noise.multiplier": 1.0, "l2-clip-norm": 0.5}
FILTER = {"target-epsilon": 20.0, "iterations": 3, "loss-cap": 3.0}
ONCE = {"target-epsilon": 2.0, "regulariser": 0.01, "radius": 10.0, "passes": 2,
        "step-rate": 0.02, "delta": None}  # fmt: skip
BASES: dict[Method, dict[str, Any]] = {
    ("user", "averaging"): {
        **ROUND, "rounds": ROUNDS, "cohort": 4.0, "local.batch-size": 4,
        "local.learning-rate": 0.3,
    },
    ("user", "agd"): FILTER,
    ("user", "bolt-on"): {**ONCE, "users-per-update": 2},
    ("example", "averaging"): {**ROUND, "steps": ROUNDS, "batch-size": 20.0},
    ("example", "agd"): FILTER,
    ("example", "bolt-on"): {**ONCE, "batch-size": 10},
}  # fmt: skip
"""Options of every run of a unit and method."""
WORDS = {"cohort": 6.0, "rounds": ROUNDS, "noise.multiplier": 0.6, "target-epsilon": None}
"""Options of AdaDPS on tags, which has what needs public words."""

APART = {"sampling": "separated", "min-separation": 2}
FEW: dict[str, dict[str, Any]] = {
    "user": {"cohort": 1.0, "rounds": 5},
    "example": {"batch-size": 8.0, "steps": 5},
}
"""Of a unit, what leaves room between two participations: else no correlation is worth it."""
OWN = {"precondition.side-information": "own"}
ONE_STEP = {"num-steps": 1, "target-epsilon": 2.0, "iterations": 20}
WITH: dict[str, dict[str, Any]] = {
    "sampling=fixed": {"relation": "replace-one"},
    "sampling=separated": {"noise": "tree", "min-separation": 2},
    "sampling=cyclic": {"noise": "tree", "min-separation": 2},
    "noise=tree": APART,
    "noise=banded": APART,
    "noise=blt": APART,
    "noise=none": {"noise.multiplier": None},
    "bound=none": {"noise": "none", "noise.multiplier": None, "l2-clip-norm": None},
    "bound=normalise": {"bound.regulariser": 0.1},
    "precondition=local": OWN,
    "precondition=update": OWN,
    "precondition=both": OWN,
    "precondition=scale-then-privatise": OWN,
    "release_preconditioner=delayed": {"delay-plain": 1},
    "preconditioner=delayed": {"delay-plain": 1},
    "preconditioner=side-information": {"preconditioner.side-information": "given"},
    "output_noise=none": {"target-epsilon": None},
    "output_noise=gaussian": {"delta": 1e-3},
    "step=strongly-convex": {"step-rate": None},
    "step=decreasing": {"step-rate": None},
    "step=square-root": {"step-rate": None},
    "bound.least": {"l2-clip-norm": 9.0, "noise.multiplier": 0.1},
    "bound.most": {"l2-clip-norm": 0.01, "noise.multiplier": 0.1},
    "user averaging sampling.cohort_cap": {"cohort": 2.0},
    "example averaging sampling.cohort_cap": {"batch-size": 2.0},
    "coefficients": {"bands": 2},
    "averaging target_epsilon": {"noise.multiplier": None, "target-epsilon": 8.0},
    "completion": {"noise.restart": 3, "rounds": 7},
    "example averaging noise.completion": {"noise.restart": 3, "steps": 7},
    "aggregate.start": {"aggregate.training": "replace"},
    "aggregate=opa": {"aggregate.k": 2},
    "aggregate=omv": {"aggregate.k": 2},
    "epochs": {"steps": None, "epochs": 1.0},
    "schedule": {"steps": 4},  # of a step that is at one of the step schedule's places
    "local.epochs": {},
    "refresh": {"public-batch": 5},
    "warm_start_rate": {"warm-start-epochs": 1},
    "growth": ONE_STEP,
    "estimates": ONE_STEP,
    "agd selection": {"target-epsilon": 50.0, "largest-step": 20.0, "loss-cap": 2.0},
    "local_steps": {"regulariser": 0.0},
    "local.local_steps": {},
    "delta": {"output-noise": "gaussian"},
    "averaging delta": {},
    "agd delta": {},
    "noise_multiplier": {"target-epsilon": None, "noise-multiplier": 1.0},
}
"""Further options, by the kind of a part, or by the last steps of the option that is tried."""

VALUES: dict[str, Any] = {
    # Where a run begins.
    "start.learning_rate": 0.05, "start.passes": 3, "factor": 0.5,
    # What is drawn, bounded and added.
    "delta": 1e-4, "relation": "replace-one", "cohort": 2.0, "cohort_cap": 4, "min_separation": 3,
    "max_participations": 1, "l2_clip_norm": 0.25, "bound.least": 8.9, "bound.most": 0.0101,
    "bound.quantile": 0.9, "bound.rate": 0.7, "bound.count_weight": 0.5, "bound.regulariser": 0.3,
    "multiplier": 2.0, "target_epsilon": 3.0, "noise.restart": 2,
    "estimate": "vanilla", "completion": True, "bands": 1, "coefficients": "square-root",
    "buffers": 0, "example bolt-on relation": "add-remove",
    # What is made of releases.
    "training": "replace", "aggregate.start": 2, "ema_decay": 0.5, "ema_warmup": True, "k": 1,
    "rounds": 2, "momentum": 0.3, "adaptivity": 0.1, "server.restart": 2,
    "optimizer.restart": 2, "decay": 0.3, "regulariser": 0.1, "delay_plain": 2,
    "delay_preconditioned": 1, "clip_ratio": 0.5,
    "rate_ratio": 0.5,
    # What users do.
    "learning_rate": 0.05, "batch_size": 2, "epochs": 2.0, "max_examples_per_user": 2,
    "local_steps": 2, "proximal_mu": 0.5, "client_decay": 0.3, "client_beta1": 0.3,
    "client_beta2": 0.3, "client_adaptivity": 0.1, "rate_schedule": "cosine", "warmup_rounds": 2,
    "dropout_rate": 0.7, "preconditioner_gain": 3.0, "preconditioner_top": 5,
    "preconditioner_power": 0.5,
    # Examples.
    "steps": 2, "micro_batch": 2, "schedule": "step", "public_batch": 5, "refresh": "epoch",
    "regulariser_inside": True, "warm_start_epochs": 1, "warm_start_rate": 0.01,
    # DP-AGD.
    "conversion": "plain", "prices": "paper", "iterations": 2, "gradient_share": 0.3,
    "gradient_clip": 0.05, "loss_cap": 1.3, "user agd loss_cap": 1.0, "growth": 0.7,
    "estimates": "discard", "selection": "permute-and-flip", "largest_step": 0.5, "num_steps": 12,
    "adapt_every": 1,
    # Bolt-on.
    "passes": 1, "radius": 1e-3, "step.rate": 0.01, "step.exponent": 0.2, "noise_multiplier": 2.0,
    "users_per_update": 1, "server_rate": 0.5, "longest_start": 4.0, "average": True,
}  # fmt: skip
"""Another value of an option, by the last steps of its path."""

FILE = "tests/experiments/test_refused_options.py::test_a_start_from_a_file"
ELSEWHERE = {
    "start file": FILE,
    "start.file": FILE,
    "start.which": FILE,
    "start.without_privacy": "tests/running/public_start/test_trained_before.py",  # a permission
    "start.brought_weights": "tests/tasks/test_brought_weights.py",  # another one
    "seed": "tests/running/loop/test_noise_root.py",  # of keys, which are forced here
    "eval_every": "tests/running/central/test_runs.py",
    "exact_sum": "tests/laws/test_exact_sum.py",  # some bits differ
    "preconditioner.side_information": "tests/oracles/test_adadps.py",  # names of a task
    "precondition.side_information own": "tests/oracles/test_combinations.py",
    "examples_per_user": "tests/laws/owners/test_by_example.py",  # of a task of users
    **dict.fromkeys(  # is refused
        (
            "example averaging bound adaptive",
            *(
                f"example averaging bound.{name}"
                for name in ("least", "most", "quantile", "rate", "count_weight")
            ),
        ),
        "tests/experiments/test_experiment.py",
    ),
    # A loss's last bit, which is the machine's, may turn the draws of a choice.
    "user agd num_steps": "tests/oracles/test_dp_agd.py",
    "example averaging aggregate opa": "tests/oracles/test_recycling.py::test_outputs",
    "example averaging aggregate omv": "tests/oracles/test_recycling.py::test_outputs",
}
"""What is not tried here, and the tests that hold it."""


@dataclass(frozen=True)
class Tried:
    """A value of an option beside the run without it.

    Attributes:
        of: Unit and method.
        option: Its path and, of a part, the kind; in brackets the parts that it is an option of.
        without: Options of the run without it.
        given: Options of the run with it.
        words: Whether it is of AdaDPS on tags.
        first: Whether no other method of the unit that reads it by the same code has it before.
    """

    of: Method
    option: str
    without: Mapping[str, Any]
    given: Mapping[str, Any]
    words: bool
    first: bool

    @property
    def name(self) -> str:
        return f"{' '.join(self.of)}, {self.option}"

    @property
    def base(self) -> str:
        """Name of the run without it."""
        common = WORDS if self.words else BASES[self.of]
        more = [f"{n}={v}" for n, v in self.without.items() if common.get(n, ...) != v]
        of = "tags" if self.words else " ".join(self.of)
        return f"{of}, with {', '.join(more) or 'nothing else'}"


def by_end(table: Mapping[str, Any], of: Method, path: str) -> Any:
    """Return the value of an option, or of the longest ending that a table has; or None."""
    steps = path.split(".")
    ends = [".".join(steps[at:]) for at in range(len(steps))]
    keys = [f"{' '.join(of)} {path}", *(f"{of[1]} {end}" for end in ends[-1:]), *ends]
    return next((table[key] for key in keys if key in table), None)


def tried() -> Iterator[Tried]:
    """Yield every option of every method, a part once for each kind that is not its default."""
    seen = set[tuple[Any, ...]]()
    for of, entry in runs.options():
        default = entry.default
        kinds = [v for v in entry.choices if v != default] if entry.is_choice else [None]
        for kind in kinds:
            label = f"{entry.path} {kind or ''}".strip()
            places = [label, *(f"{place} {chosen}" for place, chosen in entry.within)]
            if any(by_end(ELSEWHERE, of, place) for place in places):
                continue
            given = dict[str, Any]()
            for place, chosen in entry.within:
                given |= WITH.get(f"{place}={chosen}", {})
            given |= dict(entry.within)
            given |= by_end(WITH, of, entry.path) or {}
            value = by_end(VALUES, of, entry.path) if kind is None else kind
            changed = {**WITH.get(f"{entry.path}={kind}", {}), entry.path: value}
            words = of[0] == "user" and "side_information" in f"{entry.path} {entry.within}"
            if words:
                given = dict(entry.within)
            elif "min-separation" in {**given, **changed}:
                given = {**FEW[of[0]], **given}
            before = {**(WORDS if words else BASES[of]), **given}
            within = f" ({', '.join(str(chosen) for _, chosen in entry.within)})"
            # What every method of a unit reads by the same code is quick once.
            shared = entry.path.startswith(("start", "local.client_optimizer"))
            key = (of[0] if shared else of, entry.path, kind, entry.within)
            yield Tried(
                of, label + (within if entry.within else ""), before, {**before, **changed},
                words, key not in seen,
            )  # fmt: skip
            seen.add(key)
