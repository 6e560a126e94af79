"""Every pair of options of a federated run has both effects, or is refused with a reason.

Each value of an axis is run with each value of every other axis, for five rounds on five users. Its
effect is compared with the run that has the other value alone. All draws are of one key, also those
of secure runs, so that no option has an effect through the digest that keys are made of.

`python -m tests.oracles.combinations` prints how many pairs run, and why others are refused. With
`--record` it writes which ones are to tests/golden/refused_pairs.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tqdm import tqdm

from tests.oracles.runs import Outcome, outcome, write_start

REFUSED = Path(__file__).parents[1] / "golden" / "refused_pairs.json"
"""Names of the pairs that are refused, as recorded."""
BASE = {
    "rounds": 5, "cohort": 3.0, "l2-clip-norm": 0.5, "noise.multiplier": 1.0,
    "local.batch-size": 4, "local-steps": 3, "local.learning-rate": 0.3,
}  # fmt: skip


# -- effects: of a run with a value, and the one without it -----------------------------------


def close(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], rtol: float = 1e-6,
    atol: float = 1e-9,
) -> bool:  # fmt: skip
    """Whether the params that both have are equal, by default to a part in a million."""
    return all(np.allclose(one[n], other[n], rtol, atol) for n in one.keys() & other.keys())


def moves_params(run: Outcome, without: Outcome) -> bool:
    return not close(run.params[-1], without.params[-1])


def rounds_sums(run: Outcome, without: Outcome) -> bool:
    """Some bits differ, as those of whole numbers of a grid's units do."""
    return run.cohorts == without.cohorts and any(
        not np.array_equal(one[name], other[name])
        for one, other in zip(run.params, without.params, strict=True)
        for name in one
    )


def moves_first(run: Outcome, without: Outcome) -> bool:
    return not close(run.params[0], without.params[0])


def moves_later(run: Outcome, without: Outcome) -> bool:
    """The first round is as it was, and a later one is not."""
    return not moves_first(run, without) and moves_params(run, without)


def turns(run: Outcome, without: Outcome) -> bool:
    """Some round's update has another direction, and not only another length."""
    names = sorted(run.start.keys() & without.start.keys())
    for at in range(len(run.params)):
        steps = []
        for one in (run, without):
            before = one.params[at - 1] if at else one.start
            steps.append(np.concatenate([np.ravel(one.params[at][n] - before[n]) for n in names]))
        lengths = np.linalg.norm(steps[0]) * np.linalg.norm(steps[1])
        if lengths and steps[0] @ steps[1] / lengths < 1 - 1e-6:
            return True
    return False


def costs_other(run: Outcome, without: Outcome) -> bool:
    return run.plan != without.plan and moves_params(run, without)


def draws_others(run: Outcome, without: Outcome) -> bool:
    return run.plan != without.plan and run.cohorts != without.cohorts


def loses_users(run: Outcome, without: Outcome) -> bool:
    """The sum changes; who is drawn, the denominator and the cost do not."""
    same = run.plan == without.plan and run.cohorts == without.cohorts
    return same and moves_params(run, without)


def returns_other(run: Outcome, without: Outcome) -> bool:
    """The training is as it was, and the returned model is not."""
    return not moves_params(run, without) and not close(run.results[-1], without.results[-1])


def answers_other(run: Outcome, without: Outcome) -> bool:
    """The training is as it was, and the measured answers are not."""
    return not moves_params(run, without) and run.measured != without.measured


def leaves_out(run: Outcome, without: Outcome) -> bool:
    """A parameter is in no update."""
    return run.params[-1].keys() < without.params[-1].keys()


def starts_elsewhere(run: Outcome, without: Outcome) -> bool:
    return not close(run.start, without.start) and moves_first(run, without)


def computes_elsewhere(run: Outcome, without: Outcome) -> bool:
    """Another engine, and the same params but for their last bits."""
    return run.engines != without.engines and all(
        close(one, other, rtol=1e-4, atol=1e-5)
        for one, other in zip(run.params, without.params, strict=True)
    )


def keeps_secret(run: Outcome, without: Outcome) -> bool:
    """No diagnostics, and draws that are no simulation's."""
    return without.diagnosed and not run.diagnosed and moves_params(run, without)


# -- values: options, what they need besides, and their effect --------------------------------


@dataclass(frozen=True)
class Value:
    """A value of an axis; what it needs gives way to what the other value of a pair says."""

    effect: Callable[[Outcome, Outcome], bool]
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)
    keywords: Mapping[str, Any] = field(default_factory=dict)


APART = {"sampling": "separated", "cohort": 2.0, "min-separation": 2}
PUBLIC = {"precondition.side-information": "own"}
NOISELESS = {"noise": "none", "noise.multiplier": None}


def correlated(kind: str, **options: Any) -> Value:
    return Value(costs_other, {"noise": kind, **options}, needs=APART)


AXES: dict[str, dict[str, Value]] = {
    "bound": {
        "normalise": Value(turns, {"bound": "normalise", "bound.regulariser": 0.1}),
        "adaptive": Value(moves_params, {"bound": "adaptive"}),
        "none": Value(turns, {"bound": "none", "l2-clip-norm": None}, needs=NOISELESS),
    },
    "noise": {
        "none": Value(costs_other, NOISELESS),
        "grid": Value(rounds_sums, {"exact-sum": True}),
        "tree": correlated("tree"),
        "banded": correlated("banded", bands=2),
        "blt": correlated("blt", buffers=1),
    },
    "sampling": {
        "fixed": Value(costs_other, {"sampling": "fixed", "relation": "replace-one"}),
        "capped": Value(draws_others, {"cohort": 2.0, "cohort-cap": 4}),
        "separated": Value(draws_others, APART, needs={"noise": "tree"}),
        "cyclic": Value(
            draws_others, {"sampling": "cyclic", "cohort": 2.0, "min-separation": 2},
            needs={"noise": "tree"},
        ),
    },
    "rate schedule": {"cosine": Value(moves_later, {"rate-schedule": "cosine"})},
    "warm-up": {"3 rounds": Value(moves_params, {"warmup-rounds": 3})},
    "aggregate": {
        "ema": Value(returns_other, {"aggregate": "ema"}),
        "upa": Value(returns_other, {"aggregate": "upa", "aggregate.k": 3}),
        "opa": Value(answers_other, {"aggregate": "opa", "aggregate.k": 3}),
        "omv": Value(answers_other, {"aggregate": "omv", "aggregate.k": 3}),
        "ema, trained over": Value(moves_later, {"aggregate": "ema", "training": "replace"}),
        "upa, gradients": Value(
            moves_later, {"aggregate": "upa", "aggregate.k": 3, "training": "gradient-only"}
        ),
    },
    "preconditioner": {
        **{
            place: Value(turns, {"precondition": place, **PUBLIC})
            for place in ("local", "update", "both", "scale-then-privatise")
        },
    },
    "preconditioner of releases": {
        "past releases": Value(turns, {"release-preconditioner": "past-releases"}),
        "delayed": Value(
            turns,
            {"release-preconditioner": "delayed", "delay-plain": 1, "delay-preconditioned": 2},
        ),
    },
    "server": {
        "momentum": Value(moves_later, {"server": "momentum"}),
        "ema-momentum": Value(moves_first, {"server": "ema-momentum"}),
        **{
            kind: Value(turns, {"server": kind, "server.learning-rate": 0.1})
            for kind in ("adam", "yogi", "adagrad")
        },
        "ftrl": Value(moves_later, {"server": "ftrl"}),
    },
    "local optimiser": {
        "momentum": Value(turns, {"client-optimizer": "momentum"}),
        "adam": Value(turns, {"client-optimizer": "adam"}),
    },
    "FedProx": {"0.5": Value(moves_params, {"proximal-mu": 0.5})},
    "dropouts": {"0.4": Value(loses_users, {"dropout-rate": 0.4})},
    "personal layers": {"bias": Value(leaves_out, keywords={"personal": True})},
    "start": {
        "public": Value(starts_elsewhere, {"start": "public"}),
        "file": Value(starts_elsewhere, {"start": "file"}),
    },
    "device": {"cpu": Value(computes_elsewhere, keywords={"device": "cpu"})},
    "mode": {
        "secure": Value(
            keeps_secret, {"exact-sum": True}, keywords={"secure": True}
        )
    },
}  # fmt: skip


# -- pairs ------------------------------------------------------------------------------------

Place = tuple[str, str]
"""Names of an axis and of a value."""


def value_of(place: Place) -> Value:
    return AXES[place[0]][place[1]]


def pairs() -> Iterator[tuple[Place, Place]]:
    """Yield each pair of values of two axes."""
    for one, other in itertools.combinations(AXES, 2):
        for value, beside in itertools.product(AXES[one], AXES[other]):
            yield (one, value), (other, beside)


def name_of(one: Place, other: Place) -> str:
    return f"{': '.join(one)} beside {': '.join(other)}"


@cache
def start_folder() -> TemporaryDirectory[str]:
    """Return a folder with a start in it, which goes with the process."""
    folder = TemporaryDirectory(prefix="start-")
    write_start(Path(folder.name) / "start.safetensors")
    return folder


@cache
def run(*places: Place, beside: Place | None = None) -> Outcome | str:
    """Return what values do together, or the reason for which they are refused.

    Args:
        places: Of the values.
        beside: Of a value that is left out, but for what it needs.
    """
    values = [value_of(place) for place in places]
    options, keywords = dict[str, Any](BASE), dict[str, Any]()
    for value in [*values, *([] if beside is None else [value_of(beside)])]:
        options |= value.needs
    for value in values:
        options |= value.options
        keywords |= value.keywords
    if ("start", "file") in places:
        options["start.file"] = str(Path(start_folder().name) / "start.safetensors")
    try:
        return outcome(options, **keywords)
    except ValueError as error:
        return str(error)


def alone(place: Place, other: Place) -> Outcome:
    """Return what a value does without the other one, and with what that one needs if it can."""
    found = run(place, beside=other) if value_of(other).needs else run(place)
    if isinstance(found, str):
        found = run(place)
    if isinstance(found, Outcome):
        return found
    raise AssertionError(f"{place} is refused by itself: {found}")


def words(value: Value) -> set[str]:
    """Return what a reason for refusing a value may name: what is a word of English is left out."""
    names = {name.rpartition(".")[2] for name in value.options}
    given = {str(one) for one in value.options.values() if isinstance(one, str)}
    return {*names, *given, *value.keywords} - {"k", "own", "none"}


def check(one: Place, other: Place) -> str | None:
    """Return the reason for which a pair is refused, or None.

    What another value has or needs has its effect through that one, and is not looked for again.

    Raises:
        AssertionError: If a value has no effect beside the other, or the reason names neither.
    """
    found = run(one, other)
    if isinstance(found, str):
        named = words(value_of(one)) | words(value_of(other))
        said = set(re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", found))
        assert said & named, f"{one}, {other}: refused by {found!r}"
        return found
    for place, beside in ((one, other), (other, one)):
        options, other_value = value_of(place).options, value_of(beside)
        implied = {**other_value.needs, **other_value.options}
        if not options or not options.items() <= implied.items():
            effect = value_of(place).effect
            seen = effect(found, alone(beside, place))
            assert seen, f"{place} beside {beside}: {effect.__name__}"
    return None


def main() -> None:
    """Print how many pairs there are, and each one that is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write which pairs are refused")
    given = parser.parse_args()
    refused, broken, number = dict[tuple[Place, Place], str](), list[str](), 0
    for one, other in tqdm(list(pairs())):
        number += 1
        try:
            if (reason := check(one, other)) is not None:
                refused[one, other] = reason
        except AssertionError as error:
            broken.append(str(error))
    for (one, other), reason in refused.items():
        print(f"{': '.join(one)} | {': '.join(other)} | {reason}")
    print(*broken, sep="\n")
    print(f"{number} pairs, {len(refused)} refused with a reason, {len(broken)} broken")
    if given.record:
        names = sorted(name_of(*pair) for pair in refused)
        REFUSED.write_text(json.dumps(names, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
