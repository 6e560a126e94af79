"""The comparison of recordings sees what it is meant to see; the recordings here are made up."""

import copy
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedpriv.rng import Key
from fedpriv.runs import loop
from fedpriv.runs import noise_root as roots

UNCHANGED = Path(__file__).resolve().parents[2] / "benchmarks" / "unchanged"


def run_of(compared, mode="simulation"):
    summary = {"epsilon": 2.5, "epsilon_rdp": 3.0, "delta": 0.01, "noise_multiplier": 0.8,
               "accuracy": 0.75}  # fmt: skip
    told = {"charges": 4, "users": 40, "relation": "add-remove", "unit": "user",
            "accountant": "PLD", "mode": mode}  # fmt: skip
    return {
        "compared": compared,
        "tensors": {"round-000001": {"bias": "ab", "weight": "cd"}},
        "summary": {key: value.hex() for key, value in summary.items()} | told,
        "rounds": [{"round_num": 1, "update_norm": (1.5).hex()}],
        "ledger": {"charge": 4, "release": 3},
        "keys": {"summary.json": ["delta", "epsilon"]},
        "verified": {"ok": True, "lost": 1},
    }


OLD = {
    "bits": run_of("bits"),
    "float": run_of("1e-6"),
    "secure": run_of("epsilon", "secure"),
    "calibrated": {"compared": "1e-4", "figures": {"noise_multiplier": (1.02).hex()}},
}
ARRAYS = {"float/weight": np.array([3.0, 4.0], np.float32)}


@pytest.fixture
def comparing(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(UNCHANGED))
    import comparing

    yield comparing
    del sys.modules["comparing"]


def differing(comparing, new, arrays=ARRAYS):
    outcomes = comparing.compare(OLD, new, ARRAYS, arrays)
    assert [outcome.name for outcome in outcomes] == list(OLD)
    return {outcome.name for outcome in outcomes if outcome.differences}


def changed(run, *path, to):
    new = copy.deepcopy(OLD)
    place = new[run]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return new


def test_nothing_differs_from_itself(comparing):
    assert differing(comparing, copy.deepcopy(OLD)) == set()


ONE_BIT = np.nextafter(2.5, 3).hex()
CHANGES = {
    "a tensor": ("bits", "tensors", "round-000001", "bias", "ef"),
    "a checkpoint that is gone": ("bits", "tensors", {}),
    "a figure's last bit": ("bits", "summary", "epsilon", ONE_BIT),
    "a round's last bit": ("bits", "rounds", 0, "update_norm", np.nextafter(1.5, 2).hex()),
    "a lost attempt": ("bits", "verified", {"ok": True, "lost": 0}),
    "a folder that does not verify": ("bits", "verified", {"ok": False, "lost": 1}),
    "a key of a file": ("bits", "keys", {"summary.json": ["delta"]}),
    "a figure without privacy": ("bits", "summary", "epsilon", None),
    "a float sum's figure": ("float", "rounds", 0, "update_norm", (1.5 * (1 + 3e-6)).hex()),
    "a float sum's accuracy": ("float", "summary", "accuracy", (0.72).hex()),
    "a secure run's charges": ("secure", "ledger", {"charge": 5, "release": 3}),
    "a secure run's ε": ("secure", "summary", "epsilon", ONE_BIT),
    "a calibration": ("calibrated", "figures", "noise_multiplier", (1.0203).hex()),
    "a failure": ("bits", {"compared": "bits", "failed": "it died"}),
    "a looser comparison": ("bits", "compared", "1e-6"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_difference_is_seen_in_its_run_alone(comparing, change):
    run, *path, to = change
    new = changed(run, *path, to=to) if path else {**OLD, run: to}
    assert differing(comparing, new) == {run}


def test_a_run_or_an_array_that_is_gone_is_seen(comparing):
    assert differing(comparing, {n: run for n, run in OLD.items() if n != "bits"}) == {"bits"}
    assert differing(comparing, OLD, {}) == {"float"}
    moved = {"float/weight": ARRAYS["float/weight"] * np.float32(1 + 3e-6)}
    assert differing(comparing, OLD, moved) == {"float"}


ALLOWED = {
    "a float sum's last bits": ("float", "rounds", 0, "update_norm", (1.5 * (1 + 3e-7)).hex()),
    "a float sum's digests": ("float", "tensors", {}),
    "a float sum's accuracy": ("float", "summary", "accuracy", (0.755).hex()),
    "a secure run's tensors": ("secure", "tensors", {}),
    "a secure run's accuracy": ("secure", "summary", "accuracy", (0.1).hex()),
    "a calibration": ("calibrated", "figures", "noise_multiplier", (1.02005).hex()),
    "a further key": ("bits", "keys", {"summary.json": ["delta", "epsilon", "more"]}),
}


@pytest.mark.parametrize("change", ALLOWED.values(), ids=ALLOWED)
def test_what_may_differ_is_no_difference(comparing, change):
    run, *path, to = change
    assert differing(comparing, changed(run, *path, to=to)) == set()


def test_a_name_that_changed_is_no_difference(comparing, monkeypatch):
    """Without the map ε is gone from the summary."""
    monkeypatch.setattr(comparing, "KEYS", {"epsilon": "privacy_loss"})
    new = {}
    for name, run in copy.deepcopy(OLD).items():
        new[name] = comparing.with_new_names(run)
    assert ("privacy_loss" in new["bits"]["summary"]) and "epsilon" not in new["bits"]["summary"]
    monkeypatch.setattr(comparing, "_PROMISE", ("privacy_loss", "delta"))
    assert differing(comparing, new) == set()


def test_a_study_is_its_numbers_whatever_its_words(comparing, tmp_path):
    from run_figures import read_study

    first, second = tmp_path / "first", tmp_path / "second"
    for folder, key in ((first, "accuracy"), (second, "correct")):
        folder.mkdir()
        line = {"spec": {"ε": 2.0, "name": key}, key: 0.25, "seconds": 3.0}
        (folder / "rows.jsonl").write_text(json.dumps(line) + "\n")
    old = read_study("Accuracy 24.6 % at ε = 2 (1,000 users)", first)
    assert old == read_study("24.6 % of answers, ε 2, 1,000 people", second)
    assert old == {"page": ["24.6", "2", "1,000"], "stored": [[(0.25).hex(), (2.0).hex()]]}
    assert old != read_study("24.7 % of answers, ε 2, 1,000 people", second)


def test_an_option_that_is_new_changes_no_noise(monkeypatch):
    """The digest of an experiment counts for nothing while two checkouts are compared."""
    for name in ("noise_root", "unkept_noise_root"):
        found = getattr(roots, name)
        for module in [m for m in list(sys.modules.values()) if vars(m).get(name) is found]:
            monkeypatch.setattr(module, name, found)  # put back after the test
    monkeypatch.syspath_prepend(str(UNCHANGED))
    old, new, seed = {roots.NOISE: "a" * 64}, {roots.NOISE: "b" * 64}, Key.simulation(0)
    assert loop.noise_root(seed, old) != loop.noise_root(seed, new)
    runpy.run_path(str(UNCHANGED / "same_noise.py"))["draw_same_noise"]()
    assert loop.noise_root(seed, old) == loop.noise_root(seed, new) != seed
    assert loop.noise_root(seed, old) != loop.noise_root(Key.simulation(1), old)
    assert loop.noise_root(seed, {}) == seed == loop.unkept_noise_root(seed, None, {})
    secure = Key.secure()
    assert loop.noise_root(secure, old) == secure


SCRIPT = """
import os
with open("ledger.jsonl", "w") as file:
    for number in range(5):
        file.write('{"kind": "charge"}\\n{"kind": "release"}\\n')
        file.flush()
        os.fsync(file.fileno())
"""


@pytest.mark.parametrize("charges", [1, 3])
def test_a_process_dies_at_its_charge(tmp_path, charges):
    (tmp_path / "writes_a_ledger.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(UNCHANGED / "dying.py"), str(charges), "writes_a_ledger"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 9
    assert (tmp_path / "ledger.jsonl").read_text().count("charge") == charges
