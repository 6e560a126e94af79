"""A baseline that survives a rebuilding: what small runs release, by method.

    python -m tests.oracles.baseline record
    python -m tests.oracles.baseline compare [--only PATTERN] [--exact]

`record` writes tests/golden/baseline: of every case ε, noise multiplier and measured values, and of
each tensor after the first and the last round, and of the model that is returned, its length, four
projections and a SHA-256. Noise is of the seed alone (`runs.keep`), so that digests that keys are
made of may change. `compare` runs the cases again and exits with 1 if one is unlike: ε by 1e-4, the
first round's params by 1e-6 relative (1e-4 where sums are rounded to whole numbers, since a flipped
rounding moves one coordinate), all others and measured values by 1e-3, a share of examples by 0.02.
With `--exact` digests must be equal too, which holds on one kind of machine. Secure runs are
compared by their ε alone.

Names of cases are of methods. What is called otherwise since is renamed here, and in the other
modules of this folder; a case that can be said no more is a feature lost.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tqdm import tqdm

from tests.oracles import options, product, runs
from tests.oracles.combinations import APART, AXES, BASE, NOISELESS

FOLDER = Path(__file__).parents[1] / "golden" / "baseline"


# -- cases ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A small run.

    Attributes:
        experiment: Makes it; or the name of a ready-made one and its options.
        corpus: Whether it is on the synthetic corpus of posts.
        secure: Without a seed; compared by its ε alone.
        crashes: As of `runs.keep`.
        floats: Whether its sums are of floats, and not rounded to whole numbers.
        files: From a new folder and the corpus to options that name files written there.
    """

    experiment: Callable[[], Any] | tuple[str, Mapping[str, Any]]
    corpus: bool = False
    secure: bool = False
    crashes: tuple[int, ...] = ()
    floats: bool = False
    files: Callable[[Path, Callable[[], Path]], Mapping[str, Any]] | None = None


# Nine rounds: DP² first preconditions in its sixth.
SMALL = {"cohort": 6.0, "rounds": 9, "eval-every": 3}
TINY = {"cohort": 2.0, "rounds": 2, "eval-every": 2}
STEPS = {"steps": 2, "epochs": None, "batch-size": 20.0}
READY_MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "AdaDPS, local, on tags": ("adadps-tags", SMALL),
    "AdaDPS, local, on tags, little noise": ("adadps-tags-paper", {**SMALL, "users": None}),
    "AdaDPS, Algorithm 3, on tags": ("adadps-algorithm3-tags", SMALL),
    "AdaDPS, whole update, on tags": ("adadps-update-tags", SMALL),
    "AdaDPS, local, on words": ("adadps-words", TINY),
    "AdaDPS with correlated noise": ("adadps-ftrl-tags", {"cohort": None, "rounds": 22}),
    "AdaS on tags": ("adas-tags", SMALL),
    "DP-AGD by user on tags": ("agd-tags", {"iterations": 4}),
    "bolt-on by user on tags": ("bolt-on-tags", {"users-per-update": 8}),
    "DP-FedAdam on tags": ("dp-fedadam-tags", SMALL),
    "DP-FedAvg on tags": ("dp-fedavg-tags", SMALL),
    "DP-FedAvg on words": ("dp-fedavg-words", TINY),
    "DP-NormFedAvg on tags": ("dp-normfedavg-tags", SMALL),
    "DP² on tags": ("dp2-tags", SMALL),
    "FedAvg on tags": ("fedavg-tags", SMALL),
    "FedAvg on words": ("fedavg-words", TINY),
    "past releases on tags": ("past-releases-tags", SMALL),
    "DP-SGD on examples of users, on tags": ("example-sampling-tags", STEPS),
    "DP-FedAvg on CIFAR by users": ("cifar10-users", TINY),
    "DP-FedAvg on MNIST by users": ("mnist-users", TINY),
    "DP-FedAvg on FEMNIST": ("femnist-users", SMALL),
    "DP-FedAvg on Shakespeare": ("shakespeare-characters", SMALL),
    "DP-FedAvg on encoded sentences": ("encoder-tags", SMALL),
    "DP-SGD on CIFAR": ("dp-sgd-cifar", STEPS),
    "DP-SGD on conversions": ("dp-sgd-conversions", STEPS),
}
"""The method of every ready-made experiment: its name today, and options."""
FILES: dict[str, Callable[[Path, Callable[[], Path]], Mapping[str, Any]]] = {
    "DP-FedAvg on FEMNIST": lambda folder, _: {
        "task.path": str(runs.leaf_file(folder, runs.a_digit)), "task.public": 0.4,
    },
    "DP-FedAvg on Shakespeare": lambda folder, _: {
        "task.path": str(runs.leaf_file(folder, runs.a_line)), "task.public": 0.4,
    },
    "DP-FedAvg on encoded sentences": lambda folder, corpus: {
        "task.encoder": str(runs.embedded(corpus(), folder)),
    },
}  # fmt: skip
"""Of those whose data no machine need have: what is written for them."""

EXAMPLE = {"steps": 6, "batch-size": 10.0, "noise.multiplier": 1.0, "l2-clip-norm": 0.5,
           "learning-rate": 0.3}  # fmt: skip
PUBLIC = ("public-rmsprop", "public-adam", "public-adagrad", "r-pub", "mirror-descent")
AGD = {"target-epsilon": 20.0, "iterations": 5, "gradient-clip": 0.8, "loss-cap": 1.5}
ONCE = {"target-epsilon": 2.0, "regulariser": 0.01, "radius": 10.0, "passes": 2,
        "step-rate": 0.02}  # fmt: skip
TWO_USERS, TEN_EXAMPLES = {**ONCE, "users-per-update": 2}, {**ONCE, "batch-size": 10}


def by_example(**options: Any) -> Case:
    return Case(partial(product.by_example, **{**EXAMPLE, **options}), floats=True)


def by_user(**options: Any) -> Case:
    return Case(partial(product.by_user, **{**BASE, **options}), floats=True)


METHODS: dict[str, Case] = {
    **{
        f"by user, {axis} {name}": by_user(**value.needs, **value.options)
        for axis, values in AXES.items()
        for name, value in values.items()
        if not value.keywords and axis != "start"
    },
    **{
        f"by user, {kind} to a target": by_user(
            **APART, noise=kind, **{"noise.multiplier": None, "target-epsilon": 8.0}
        )
        for kind in ("tree", "banded")
    },
    "by example, DP-SGD": by_example(),
    "by example, micro-batches of 4": by_example(**{"micro-batch": 4}),
    "by example, DP-NSGD": by_example(bound="normalise", **{"bound.regulariser": 0.1}),
    **{
        f"by example, {kind}": by_example(preconditioner=kind, **{"public-batch": 4})
        for kind in PUBLIC
    },
    **{
        f"by example, {kind}": by_example(preconditioner=kind)
        for kind in ("ideal", "past-releases")
    },
    "by example, DP²": by_example(
        preconditioner="delayed", **{"delay-plain": 2, "delay-preconditioned": 1}
    ),
    **{
        f"by example, DP-{name}": by_example(optimizer=kind)
        for name, kind in (("Adam", "adam"), ("RMSProp", "rmsprop"), ("AdaGrad", "adagrad"))
    },
    "by example, trained at aggregates with public gradients": by_example(
        preconditioner="public-rmsprop", aggregate="ema",
        **{"public-batch": 4, "ema-decay": 0.5, "training": "gradient-only"},
    ),
    "by example, warm start": by_example(**{"warm-start-epochs": 2, "warm-start-rate": 0.05}),
    "by example, without privacy": by_example(**NOISELESS, bound="none", **{"l2-clip-norm": None}),
    **{
        f"by {unit}, {name}": Case(partial(make, method=method, **options))
        for unit, make, once in (
            ("user", product.by_user, TWO_USERS),
            ("example", product.by_example, TEN_EXAMPLES),
        )
        for name, method, options in (
            ("DP-AGD", "agd", AGD),
            ("DP-AGD as published", "agd", {**AGD, "conversion": "plain", "prices": "paper"}),
            ("bolt-on", "bolt-on", {**once, "delta": None}),
            ("bolt-on, Gaussian", "bolt-on", {**once, "output-noise": "gaussian"}),
        )
    },
}  # fmt: skip

TAGS = ("adadps-tags", {**SMALL, "noise.multiplier": 0.6, "target-epsilon": None})
RESUMED: dict[str, Case] = {
    "AdaDPS, resumed after charge 2": Case(TAGS, corpus=True, crashes=(2,)),
    "AdaDPS, resumed after charges 3 and 5": Case(TAGS, corpus=True, crashes=(3, 2)),
    **{
        f"by user, {name}, resumed": Case(partial(product.by_user, **{**BASE, **APART, **more}),
                                          crashes=(3,))
        for name, more in (
            ("tree", {"noise": "tree"}), ("banded", {"noise": "banded", "bands": 2}),
            ("FTRL and UPA", {"noise": "tree", "server": "ftrl", "server.restart": 3,
                              "aggregate": "upa", "aggregate.k": 4}),
            ("momentum at aggregates", {"noise": "tree", "server": "momentum", "aggregate": "ema",
                                        "training": "replace"}),
        )
    },
    "by user, DP-AGD, resumed": Case(partial(product.by_user, method="agd", **AGD), crashes=(3,)),
    "by user, bolt-on, replayed": Case(
        partial(product.by_user, method="bolt-on", delta=None, **TWO_USERS), crashes=(1,)
    ),
}  # fmt: skip
SECURE: dict[str, Case] = {
    "AdaDPS, secure": Case(TAGS, corpus=True, secure=True),
    "AdaDPS, secure, resumed": Case(TAGS, corpus=True, secure=True, crashes=(2,)),
    "by user, tree, secure": Case(
        partial(product.by_user, **{**BASE, **APART, "noise": "tree", "exact-sum": True}),
        secure=True,
    ),
    "by user, bolt-on, secure": Case(
        partial(product.by_user, method="bolt-on", delta=None, **TWO_USERS), secure=True
    ),
    "by example, DP-SGD, secure": Case(partial(product.by_example, **EXAMPLE), secure=True),
}  # fmt: skip


def of_option(one: options.Tried, given: Mapping[str, Any]) -> Case:
    if one.words:
        return Case(("adadps-tags", given), corpus=True)
    make = product.by_user if one.of[0] == "user" else product.by_example
    # What a search finds for buffers ends, on another processor, with other digits.
    floats = one.of[1] == "averaging" and given.get("noise") != "blt"
    return Case(partial(make, method=one.of[1], **given), floats=floats)


@cache
def cases() -> dict[str, Case]:
    """Return every run by its method."""
    named = {
        name: Case(
            made, corpus=made[0].endswith(("tags", "words", "tags-paper")), files=FILES.get(name)
        )
        for name, made in READY_MADE.items()
    }
    every = list(options.tried())
    bases = {one.base: of_option(one, one.without) for one in every}
    away = {one.name: of_option(one, one.given) for one in every}
    return {**named, **METHODS, **RESUMED, **SECURE, **bases, **away}


PRINTED: dict[str, tuple[str, ...]] = {
    f"{command}: {name}": (command, "--users", "400", "--cohort", "20", "--rounds", "100", *more,
                           *given)
    for command, given in (("account", ("--noise-multiplier", "1")),
                           ("calibrate", ("--target-epsilon", "4")))
    for name, more in (("Poisson cohorts", ()), ("replace-one", ("--relation", "replace-one")),
                       ("fixed cohorts", ("--sampling", "fixed")), ("capped", ("--cap", "60")))
}  # fmt: skip
"""Commands whose printed values are recorded, by what they price."""

STUDIES: dict[str, tuple[str, float]] = {
    "AdaDPS, Figure 2": ("adadps-figure2", 0.5),
    "AdaDPS, Figure 3": ("adadps-figure3", 0.2),
    "DP-AGD, MNIST 3 against 8": ("agd-mnist-3-8", 0.5),
    "bolt-on, MNIST": ("bolt-on-mnist", 0.3),
    "bolt-on, MNIST one against all": ("bolt-on-mnist-ova", 0.3),
    "bolt-on, SVM by pairs": ("bolt-on-pair-svm", 0.3),
    "DP-NSGD, Figure 2": ("dpnsgd-figure2-mnist", 1),
    "DP-NSGD, Figure 3": ("dpnsgd-figure3-mnist", 1),
    "Recycling Scraps, convex": ("recycling-convex", 0.5),
    "Recycling Scraps, pCVR": ("recycling-pcvr", 0.2),
    "Recycling Scraps, shift": ("recycling-pds", 1),
    "Recycling Scraps, StackOverflow": ("recycling-stackoverflow", 1),
    "AdaDPS, Figure 1": ("adadps-figure1-imdb", 4),
    "AdaDPS, Table 7": ("adadps-table7-imdb", 4),
    "AdaDPS, auto-encoder": ("adadps-table1-autoencoder", 6),
    "AdaDPS, LSTM": ("adadps-table6-lstm", 5),
    "AdaDPS, tags": ("adadps-table6-tags", 5),
    "AdaDPS, MNIST": ("adadps-table6-mnist", 5),
    "tags": ("tags", 6),
    "AdaDPS, Figure 6": ("adadps-figure6", 8),
    "Recycling Scraps, CIFAR-10": ("recycling-cifar10", 10),
    "ablation on tags": ("ablation-tags", 10),
}
"""Of each study its name today and about how many minutes its smallest size takes."""
_ON_CORPUS = ("recycling-pds", "recycling-stackoverflow", "tags", "ablation-tags")
_PRINTED = ("adadps-figure2",)
_SEEDLESS = ("adadps-figure2", "adadps-figure3", "recycling-convex", "dpnsgd-figure3-mnist")


# -- what is recorded of a run ----------------------------------------------------------------


def sketch(array: np.ndarray) -> list[float]:
    """Return a tensor's length, and four projections on random signs."""
    flat = np.ravel(array).astype(np.float64)
    signs = np.random.default_rng(flat.size).choice([-1.0, 1.0], size=(4, flat.size))
    return [float(np.linalg.norm(flat)), *map(float, signs @ flat)]


def digest(array: np.ndarray) -> str:
    """Return the SHA-256 of a tensor's dtype, shape and bytes."""
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def of_run(case: Case, folder: Path, corpus: Callable[[], Path]) -> dict[str, Any]:
    made = case.experiment if isinstance(case.experiment, tuple) else case.experiment()
    if case.files is not None:
        name, given = made
        made = name, {**given, **case.files(folder.with_suffix(".files"), corpus)}
    kept = runs.keep(
        made, folder, corpus=corpus() if case.corpus else None, secure=case.secure,
        crashes=case.crashes,
    )  # fmt: skip
    if case.secure:
        return {"values": {name: kept.values[name] for name in runs.VALUES}}
    ends = {"first": kept.params[0], "last": kept.params[-1], "result": kept.result}
    return {
        "values": kept.values,
        "params": {at: {n: sketch(a) for n, a in params.items()} for at, params in ends.items()},
        "sha256": {n: digest(a) for n, a in sorted(kept.params[-1].items())},
    }


def of_command(argv: tuple[str, ...]) -> dict[str, Any]:
    printed = json.loads(runs.fedpriv_command(*argv, "--json"))
    return {"values": {n: v for n, v in printed.items() if isinstance(v, float | int)}}


_NUMERAL = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
_PROGRESS = re.compile(r"minutes on \d+ cores|min left|\d+ of \d+ ")


def of_study(name: str, folder: Path, corpus: Callable[[], Path]) -> dict[str, Any]:
    """Return the numbers of a study's page in order."""
    argv = [name, "--reduced"]
    argv += [] if name in _SEEDLESS else ["--seeds", "1"]
    argv += ["--corpus", str(corpus())] if name in _ON_CORPUS else []
    folder.mkdir()
    out = folder / "page.md"
    argv += [] if name in _PRINTED else ["--out", str(out)]
    page = runs.study_command(*argv)
    if out.exists():
        page = out.read_text("utf-8").replace(str(folder), "")
    shown = "\n".join(line for line in page.splitlines() if not _PROGRESS.search(line))
    numerals = (n.replace(",", "").replace("−", "-") for n in _NUMERAL.findall(shown))
    return {"numbers": [float(numeral) for numeral in numerals]}


# -- recording and comparing ------------------------------------------------------------------


def found(only: str, minutes: float) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Run what a pattern names; yield file, name and what is recorded of each.

    Args:
        only: Of names.
        minutes: Of a study, at most.
    """
    # A short name: sockets may lie below it.
    with TemporaryDirectory(prefix="base-") as scratch:
        place = Path(scratch)
        corpus = cache(lambda: runs.synthetic_corpus(place / "corpus"))
        made: dict[str, dict[str, Callable[[Path], dict[str, Any]]]] = {
            "runs": {n: partial(of_run, case, corpus=corpus) for n, case in cases().items()},
            "commands": {n: lambda _, argv=argv: of_command(argv) for n, argv in PRINTED.items()},
            "studies": {
                n: partial(of_study, name, corpus=corpus)
                for n, (name, taken) in STUDIES.items()
                if taken <= minutes
            },
        }
        chosen = [
            (file, name) for file, named in made.items() for name in named
            if fnmatch.fnmatch(name, only)
        ]  # fmt: skip
        for number, (file, name) in enumerate(tqdm(chosen, mininterval=5)):
            try:
                yield file, name, made[file][name](place / f"run-{number}")
            except Exception as error:  # whatever is broken, the other cases are compared
                tqdm.write(f"{name}: {error}")
                yield file, name, {"failed": type(error).__name__}


def public_names() -> dict[str, list[str]]:
    """Return names of the API, of commands with their flags, and of the run-config."""
    return runs.public_names()


_SHARES = ("accuracy", "recall")


def apart(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other), 1e-12)


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, exact: bool, floats: bool = False
) -> Iterator[str]:
    """Yield in what a case is unlike what is recorded of it.

    Args:
        old: What is recorded.
        new: What is now.
        exact: Whether digests must be equal.
        floats: As of `Case`.
    """
    if "failed" in new or "failed" in old:
        if new.get("failed") != old.get("failed"):
            yield f"failed: {old.get('failed')} became {new.get('failed')}"
        return
    for name, value in old.get("values", {}).items():
        now = new["values"].get(name)
        if not isinstance(value, float) or now is None:
            same = value == now
        elif any(word in name for word in _SHARES):
            same = abs(value - now) <= 0.02
        else:
            costs = name.startswith("epsilon") or name in ("delta", "noise_multiplier")
            same = apart(value, now) <= (1e-4 if costs else 1e-3)
        if not same:
            yield f"{name}: {value!r} became {now!r}"
    for at, tensors in old.get("params", {}).items():
        for name, was in tensors.items():
            now = new["params"][at].get(name)
            if now is None:
                yield f"{at}: {name} is gone"
                continue
            most = np.abs(np.subtract(was, now)).max() / max(was[0], 1e-12)
            exactly = floats and at == "first"
            if most > (1e-6 if exactly else 1e-3 if at != "first" else 1e-4):
                yield f"{at}: {name} is {most:.1g} of its length apart"
    if exact and old.get("sha256") != new.get("sha256"):
        yield "not bit for bit"
    was, now = old.get("numbers", []), new.get("numbers", [])
    if len(was) != len(now):
        yield f"{len(was)} numbers became {len(now)}"
    unlike = [(a, b) for a, b in zip(was, now, strict=False) if apart(a, b) > 0.02]
    if len(unlike) > 0.02 * len(was):
        yield f"{len(unlike)} of {len(was)} numbers differ, such as {unlike[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("--only", default="*", help="pattern of names")
    parser.add_argument("--exact", action="store_true", help="digests must be equal too")
    parser.add_argument("--minutes", type=float, default=1, help="of a study, at most")
    given = parser.parse_args()
    recorded: dict[str, dict[str, Any]] = {}
    for file in ("runs", "commands", "studies", "names"):
        path = FOLDER / f"{file}.json"
        recorded[file] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    unlike = 0
    for file, name, new in found(given.only, given.minutes):
        if given.what == "record":
            recorded[file][name] = new
            note = [new["failed"]] if "failed" in new else []
        elif name not in recorded[file]:
            note = ["not recorded"]
        else:
            case = cases().get(name)
            floats = case is not None and case.floats
            note = list(differences(recorded[file][name], new, exact=given.exact, floats=floats))
        unlike += bool(note)
        if note:
            tqdm.write(f"{name}: {'; '.join(note)}")
    names = public_names()
    if given.what == "record":
        recorded["names"] = names
        kept = recorded["runs"]
        recorded["runs"] = {name: kept[name] for name in cases() if name in kept}
        FOLDER.mkdir(parents=True, exist_ok=True)
        for file, content in recorded.items():
            text = json.dumps(content, indent=None, ensure_ascii=False, sort_keys=True)
            lines = re.sub(r'(?<=[}\\]]), "', ',\n"', text)
            (FOLDER / f"{file}.json").write_text(lines + "\n", "utf-8")
    else:
        for kind, known in recorded["names"].items():
            gone = sorted(set(known) - set(names[kind]))
            if gone:
                unlike += 1
                print(f"{kind}: gone are {', '.join(gone)}")
    print(f"{unlike} unlike")
    sys.exit(min(1, unlike))


if __name__ == "__main__":
    main()
