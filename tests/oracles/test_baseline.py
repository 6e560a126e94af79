"""Small runs release what they did when the baseline was recorded, and the comparison sees more."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from tests.oracles import baseline, runs

RUNS = json.loads((baseline.FOLDER / "runs.json").read_text("utf-8"))
NAMES = json.loads((baseline.FOLDER / "names.json").read_text("utf-8"))
QUICK = ("by user, bound adaptive", "by example, DP-SGD", "by user, DP-AGD", "by user, bolt-on",
         "by user, tree, resumed", "by example, DP-SGD, secure")  # fmt: skip
OF_NO_CORPUS = [
    name for name, case in baseline.cases().items() if not isinstance(case.experiment, tuple)
]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in OF_NO_CORPUS],
)
def test_a_run_releases_what_it_did(name, tmp_path):
    new = baseline.of_run(baseline.cases()[name], tmp_path / "run", lambda: tmp_path)
    assert list(baseline.differences(RUNS[name], new, exact=False)) == []


def test_every_ready_made_experiment_has_a_case():
    assert set(runs.ready_made()) == {name for name, _ in baseline.READY_MADE.values()}
    assert set(baseline.cases()) == set(RUNS)


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
