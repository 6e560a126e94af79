"""Small runs release what they did when the baseline was recorded, and the comparison sees more."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache

import pytest

from tests.oracles import baseline, options, runs

RUNS = json.loads((baseline.FOLDER / "runs.json").read_text("utf-8"))
NAMES = json.loads((baseline.FOLDER / "names.json").read_text("utf-8"))
QUICK = ("by user, bound adaptive", "by example, DP-SGD", "by user, DP-AGD", "by user, bolt-on",
         "by user, tree, resumed", "by user, FTRL and UPA, resumed",
         "by user, momentum at aggregates, resumed",
         "by example, trained at aggregates with public gradients",
         "by example, DP-SGD, secure")  # fmt: skip
TRIED = list(options.tried())
# Of each option the first method that reads it by the same code.
QUICK += tuple(one.name for one in TRIED if one.first)
SMALL = [name for name, case in baseline.cases().items()
         if name in QUICK or not isinstance(case.experiment, tuple)]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The synthetic corpus, made when a case first asks for it."""
    return cache(lambda: runs.synthetic_corpus(tmp_path_factory.mktemp("base") / "corpus"))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in SMALL]
)
def test_a_run_releases_what_it_did(name, tmp_path, corpus):
    case = baseline.cases()[name]
    new = baseline.of_run(case, tmp_path / "run", corpus)
    assert list(baseline.differences(RUNS[name], new, exact=False, floats=case.floats)) == []


def test_every_ready_made_experiment_has_a_case():
    assert set(runs.ready_made()) == {name for name, _ in baseline.READY_MADE.values()}
    assert set(baseline.cases()) == set(RUNS)


@pytest.mark.parametrize("one", TRIED, ids=[one.name for one in TRIED])
def test_what_is_recorded_of_an_option_is_its_effect(one):
    case = baseline.cases()[one.name]
    with_it, without = RUNS[one.name], RUNS[one.base]
    assert list(baseline.differences(without, with_it, exact=False, floats=case.floats))


def test_every_option_is_tried_or_has_a_place_elsewhere():
    """An option that is added is tried, too."""
    known = {f"{' '.join(one.of)} {one.option.partition(' ')[0]}" for one in TRIED}
    for name in set(runs.public_names()["options"]) - known:
        unit, method, path = name.split()
        assert options.by_end(options.ELSEWHERE, (unit, method), path) is not None, name


@pytest.mark.parametrize("where", sorted(set(options.ELSEWHERE.values())))
def test_what_is_tried_elsewhere_is_there(where):
    file, _, function = where.partition("::")
    assert f"def {function}" in (baseline.FOLDER.parents[2] / file).read_text("utf-8")


def test_no_public_name_is_gone():
    """A name that goes on purpose goes from tests/golden/baseline/names.json too."""
    now = runs.public_names()
    for kind, known in NAMES.items():
        assert set(known) <= set(now[kind]), sorted(set(known) - set(now[kind]))


CHANGES = {
    "ε": lambda run: run["values"].update(epsilon=run["values"]["epsilon"] * 1.001),
    "charges": lambda run: run["values"].update(charges=3),
    "no value": lambda run: run["values"].pop("noise_multiplier"),
    "first round": lambda run: run["params"]["first"]["weight"].__setitem__(1, 9.0),
    "last round": lambda run: run["params"]["last"]["bias"].__setitem__(0, 9.0),
    "a tensor": lambda run: run["params"]["last"].pop("bias"),
    "failed": lambda run: run.update(failed="ValueError"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(change):
    old = RUNS["by user, bound adaptive"]
    new = deepcopy(old)
    assert list(baseline.differences(old, new, exact=True)) == []
    change(new)
    assert len(list(baseline.differences(old, new, exact=True))) == 1
