"""`fedpriv.averaging` in a folder: hardened runs stay so, and copies are found by an anchor."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import fedpriv as fp
from fedpriv.backends import Backend
from fedpriv.mechanisms import Clip
from fedpriv.privacy.statement.coverage import FLOATS, KEY
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.training.work import Users as DrawnUsers
from tests.harness.refusals import refuses
from tests.harness.tag_runs import unchanged
from tests.harness.toys_of_training import Given, Users

ROSTER = [f"u{i}" for i in range(40)]
PARAMS = {"w": np.zeros(5, np.float32)}
EXACT = fp.Rounds(users=40, cohort=10, rounds=3).plan(l2_clip_norm=1.0, noise_multiplier=1.0)


class Ones(Backend):
    """Users whose updates are all ones, until a round in which the process ends."""

    def __init__(self, ends_in=None):
        self.ends_in = ends_in

    def sum(self, request, attempt, cohort):
        if attempt.round_num == self.ends_in:
            raise KeyboardInterrupt
        updates = {user: {"w": np.ones(5, np.float32)} for user in cohort}
        return Given().answer(request, attempt, DrawnUsers(cohort, Users(updates)))


def train(plan, out, backend, secure=True, **options):
    given = {"roster": ROSTER, "params": PARAMS, "out": out, "secure": secure, **options}
    return fp.averaging(plan, **given)(backend)


@pytest.mark.parametrize(
    ("roster", "named"),
    [("".join(map(chr, range(40, 80))), "roster"), ([*ROSTER[:39], "u0 "], "u0 ")],
)
def test_a_roster_is_a_list_of_40_people(roster, named):
    with refuses(ValueError, named):
        fp.averaging(EXACT, roster=roster, params=PARAMS, secure=True)(Ones())


FLOAT_PLAN = replace(EXACT, mechanism=replace(EXACT.live_mechanism, bound=Clip(l2_clip_norm=1.0)))


@pytest.mark.parametrize(("first", "then"), [(EXACT, FLOAT_PLAN), (FLOAT_PLAN, EXACT)])
def test_a_run_goes_on_with_the_grid_that_it_began_with(first, then, tmp_path):
    """In a plan's file a bound on a grid and one in floating point are two."""
    assert first.to_json() != then.to_json()
    with pytest.raises(KeyboardInterrupt):
        train(first, tmp_path / "run", Ones(ends_in=2))
    with unchanged(tmp_path / "run"), refuses(ValueError, "ledger.jsonl"):
        train(then, tmp_path / "run", Ones())
    done = train(first, tmp_path / "run", Ones())
    assert done.rounds_done == 2 and (FLOATS in str(done.epsilon)) == (first is FLOAT_PLAN)


def test_a_run_in_floats_is_marked_wherever_its_epsilon_stands(tmp_path):
    done = train(FLOAT_PLAN, tmp_path / "run", Ones())
    lines = (tmp_path / "run" / "rounds.jsonl").read_text("utf-8").splitlines()
    stated = [line for line in map(json.loads, lines) if line["epsilon"] is not None]
    for said in (str(done.epsilon), *(str(line[KEY]) for line in stated)):
        assert said.count(FLOATS) == 1
    assert FLOATS in " ".join(repr(done).split())
    assert stated
    assert FLOATS in verify_run(tmp_path / "run").to_json()[KEY]


def test_an_exact_run_bears_no_mark(tmp_path):
    done = train(EXACT, tmp_path / "run", Ones())
    assert FLOATS not in str(done.epsilon)
    assert FLOATS not in verify_run(tmp_path / "run").to_json()[KEY]
    assert FLOATS not in (tmp_path / "run" / "rounds.jsonl").read_text("utf-8")


@pytest.mark.slow
def test_a_copy_and_a_backup_are_refused_and_charge_nothing(tmp_path):
    folder, anchor = tmp_path / "run", tmp_path / "elsewhere.anchor"
    with pytest.raises(KeyboardInterrupt):
        train(EXACT, folder, Ones(ends_in=2), anchor=anchor)
    copy = shutil.copytree(folder, tmp_path / "copy")
    with unchanged(folder), refuses(ValueError, "--anchor"):
        train(EXACT, folder, Ones())
    # The lost charge stays spent.
    assert train(EXACT, folder, Ones(), anchor=anchor).rounds_done == 2
    assert verify_run(folder, anchor=anchor).ok
    with unchanged(copy), refuses(ValueError, anchor):
        train(EXACT, copy, Ones(), anchor=anchor)
    assert not verify_run(copy, anchor=anchor).ok


@pytest.mark.parametrize(
    ("secure", "change", "named"),
    [
        (True, {"roster": ROSTER[::-1]}, "roster_sha256"),
        (False, {"roster": ROSTER[::-1]}, "roster_sha256"),
        (False, {"seed": 3}, "seed"),
    ],
)
def test_a_run_goes_on_with_its_roster_in_its_order_and_its_seed(secure, change, named, tmp_path):
    """Who took part is known by a place in the roster."""
    with pytest.raises(KeyboardInterrupt):
        train(EXACT, tmp_path / "run", Ones(ends_in=2), secure)
    with refuses(ValueError, named):
        train(EXACT, tmp_path / "run", Ones(), secure, **change)
    assert train(EXACT, tmp_path / "run", Ones(), secure).rounds_done


def test_what_cannot_be_anchored_is_refused_before_anything(tmp_path):
    anchor, inside = tmp_path / "elsewhere.anchor", tmp_path / "new" / "anchor"
    with refuses(ValueError, "anchor", "out"):
        fp.averaging(EXACT, roster=ROSTER, params=PARAMS, anchor=anchor)
    train(EXACT, tmp_path / "run", Ones(), secure=False)
    with pytest.raises(ValueError):
        train(EXACT, tmp_path / "run", Ones(), secure=False, anchor=anchor)
    with refuses(ValueError, inside):
        train(EXACT, tmp_path / "new", Ones(), anchor=inside)
