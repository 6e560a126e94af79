"""Every stream through the door: the oracle's rows, after any kill, and none of them twice."""

from __future__ import annotations

import shutil
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from fedpriv.mechanisms.correlated.binary_tree import BinaryTree
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import optimised_bands, optimised_buffers
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.sampling import SeparatedSampler
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.runs.noise_root import noise_root
from fedpriv.sums import PartialSum
from tests.backends.door import toy_methods, toys
from tests.harness.combinations import each_once
from tests.harness.refusals import refuses

ROWS, APART, LIMIT = toy_methods.ROWS, toy_methods.APART, toy_methods.LIMIT
STRATEGIES = {
    "tree": BinaryTree(num_rows=ROWS),
    "trees": BinaryTree(num_rows=ROWS, restart=4, completion=True),
    "banded": optimised_bands(APART, LIMIT),
    "blt": optimised_buffers(2, LIMIT),
}


def method(name):
    """Return a toy that follows means under a stream."""
    return toy_methods.Stream(STRATEGIES[name])


@pytest.fixture
def seen(monkeypatch):
    """What was added to each sum that was released, and whom each cohort held."""
    noise, cohorts = [], []
    release, drawing = Correlated.release, SeparatedSampler.next

    def released(self, total, drawn, share):
        noise.append({name: np.array(array) for name, array in drawn.items()})
        return release(self, total, drawn, share)

    def drew(self, memory, key, roster):
        cohort, following = drawing(self, memory, key, roster)
        cohorts.append(cohort)
        return cohort, following

    monkeypatch.setattr(Correlated, "release", released)
    monkeypatch.setattr(SeparatedSampler, "next", drew)
    return noise, cohorts


def play(name, folder, kills=(), mode="simulation"):
    for kill in kills:
        toy_methods.killed(method(name), folder, kill, mode=mode)
    return toy_methods.play(method(name), folder, mode=mode)


@pytest.mark.parametrize(
    ("kills", "discarded", "name", "mode"),
    each_once(
        [
            pytest.param(*case, id=str(case[0]))
            for case in (
                *(([], []), ([2], [1]), ([5], [4]), ([10], [9])),
                *(([4, 2], [3, 5]), ([2, 1, 1], [1, 2, 3])),
            )
        ],
        list(STRATEGIES),
        ["simulation", "secure"],
    ),
)
def test_no_row_meets_two_sums_and_each_is_the_oracles(
    name, kills, discarded, mode, seen, tmp_path, monkeypatch
):
    noise, cohorts = seen
    keys, began = [], Correlated.draws
    monkeypatch.setattr(
        Correlated,
        "draws",
        lambda self, *, key, **given: (keys.append(key), began(self, key=key, **given))[1],
    )
    play(name, tmp_path, kills, mode)
    _, ledger, _ = read_ledger(tmp_path / "ledger.jsonl")
    assert [row.row for row in ledger.rows] == list(range(1, ROWS + 1))
    assert len(ledger.charges) == 1
    used = [release.attempt for release in ledger.releases]
    assert [row.row for row in ledger.discarded] == discarded
    assert used == [row for row in range(1, ROWS + 1) if row not in discarded]
    assert len(noise) == len(used) == len({row["w"].tobytes() for row in noise})
    verified = verify_run(tmp_path)
    assert verified.ok and verified.num_discarded == len(discarded)
    times = Counter(user for cohort in cohorts for user in cohort)
    assert max(times.values()) <= LIMIT.most
    for user in times:
        rows = [n for n, cohort in enumerate(cohorts) if user in cohort]
        assert all(late - early >= APART for early, late in pairwise(rows))
    assert len({key.to_bytes() for key in keys}) == 1
    oracle = rows_of(name, keys[0], mode)
    for row, found in zip(used, noise, strict=True):
        np.testing.assert_array_equal(found["w"], oracle[row - 1])


def rows_of(name, key, mode):
    """Return the rows of the run's own key, drawn in one go with nothing lost."""
    if mode == "simulation":
        noise = noise_root(Key.simulation(3), toy_methods.FACTS)
        assert key.to_bytes() == noise.fold("vault").fold("stream").to_bytes()
    made = method(name).plan.live_mechanism
    template = {"w": toys.TASK.init_params(Key.simulation(3).fold("init"))["w"]}
    found = []
    for draw in islice(made.draws(template, key), ROWS):
        drawn = draw.take(PartialSum(total=template, num_users=0), made)
        assert (drawn["w"].dtype == np.int64) == (mode == "secure")
        found.append(drawn["w"])
    return found


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_an_older_ledger_draws_no_row_again(mode, seen, tmp_path):
    """All but secret/ is put back as it was two rows ago: the next row has met a sum already."""
    (noise, _), folder = seen, tmp_path / "run"
    kept = kept_after(4, mode, folder)
    toy_methods.killed(method("banded"), folder, 3, mode=mode)
    put_back(kept, folder, secret=False)
    before = len(noise)
    with refuses(ValueError, 3, 5):
        toy_methods.play(method("banded"), folder, mode=mode)
    assert len(noise) == before
    _, ledger, _ = read_ledger(folder / "ledger.jsonl")
    assert len(ledger.rows) == 3


def test_older_secret_state_forgets_nobody(tmp_path):
    """secret/ alone is put back as it was: who took part since would be free to come again."""
    folder = tmp_path / "run"
    kept = kept_after(4, "secure", folder)
    toy_methods.killed(method("banded"), folder, 3, mode="secure")
    put_back(kept, folder, secret=True)
    with refuses(ValueError, "secret/", 2):
        toy_methods.play(method("banded"), folder, mode="secure")


@pytest.mark.parametrize("only", ["*", "cohorts-*", "rows*"])
def test_secret_state_of_one_released_row_ago_is_refused(only, tmp_path):
    """One row less than the ledger has is a crash, unless that row was released."""
    folder, before = tmp_path / "run", tmp_path / "before"
    toy_methods.play(method("banded"), folder, mode="secure", num_rounds=2)
    shutil.copytree(folder / "secret", before)
    toy_methods.play(method("banded"), folder, mode="secure", num_rounds=1)
    for path in before.glob(only):
        shutil.copy(path, folder / "secret")
    with refuses(ValueError, "secret/"):
        toy_methods.play(method("banded"), folder, mode="secure")


def kept_after(lines, mode, folder):
    """Play until so many charges and rows are written; return a copy of the folder."""
    toy_methods.killed(method("banded"), folder, lines, mode=mode)
    return Path(shutil.copytree(folder, folder.with_name("kept")))


def put_back(kept, folder, *, secret):
    """Put back the older secret/, or all that is not secret."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    shutil.copytree(aside if secret else kept, folder)
    shutil.rmtree(folder / "secret")
    shutil.copytree((kept if secret else aside) / "secret", folder / "secret")


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_what_would_take_the_noise_off_is_gone_once_the_run_has_ended(tmp_path, mode):
    """Neither the key of its noise nor who took part when; and no older state draws it anew."""
    folder = tmp_path / "run"
    kept = kept_after(4, mode, folder)
    toy_methods.play(method("banded"), folder, mode=mode)
    left = {path.name: path.stat().st_size for path in (folder / "secret").iterdir()}
    rows = left.pop("rows.safetensors")
    assert rows and left == ({"stream.key": 0} if mode == "secure" else {})
    assert verify_run(folder).ok
    put_back(kept, folder, secret=False)
    with pytest.raises(ValueError):
        toy_methods.play(method("banded"), folder, mode=mode)
