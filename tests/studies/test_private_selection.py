"""The number of trials: drawn once, from its law, whatever crashes; losers leave nothing."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest

from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.studies import private_selection
from fedpriv.studies.private_selection import Score, SecretState, _bits, private_study
from tests.harness.kills import ROOT
from tests.harness.refusals import refuses
from tests.privacy.selection.test_trials import p_value

LAW = Trials(mean=4.0)
NUM_STUDIES = 300
"""Studies whose trials are counted; chi-square over cells of at least 20 expected studies."""
FALSE_ALARM = 1e-6
"""Chance that right code is called wrong. Roots are seeds: it was seen once."""


class Crash(Exception):
    """Where a test lets a study stop."""


class Trial:
    """A trial that writes its settings, counts its calls, and crashes where it is told to."""

    def __init__(self, crash_at=(), scores=None):
        self.calls, self.crash_at, self.scores, self.drawn = 0, set(crash_at), scores, []

    def draw(self, key):
        self.drawn.append({"rate": int(key.generator().integers(100))})
        return self.drawn[-1]

    def run(self, settings, folder, key):
        folder.mkdir(parents=True, exist_ok=True)
        self.calls += 1
        (folder / "settings.json").write_text(json.dumps(settings))
        if self.calls in self.crash_at:
            raise Crash

    def score(self, folder):
        rate = json.loads((folder / "settings.json").read_text())["rate"]
        value = rate if self.scores is None else self.scores[self.calls - 1]
        return Score(value=value, source="public")


def root_of(seed):
    return Key.simulation(seed).fold("study")


def go(out, trial, seed=0, law=LAW, **changes):
    parts = {"draw": trial.draw, "run": trial.run, "score": trial.score}
    given = {"trials": law, "root": root_of(seed), "facts": {"name": "a test"}, **parts}
    return private_study(out, **{**given, **changes})


def until_done(out, trial, tries=50, **changes):
    """Go on after every crash; how often it crashed."""
    for crashes in range(tries):
        try:
            return go(out, trial, **changes), crashes
        except Crash:
            continue
    raise AssertionError("it never ended")


@pytest.fixture
def unsynced(monkeypatch):
    """Nothing is waited for on disk: what is counted is not about crashes."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def counted(tmp_path, seeds, **changes):
    """How many trials studies of these seeds make."""
    found = []
    for seed in seeds:
        trial = Trial()
        go(tmp_path / str(seed), trial, seed=seed, **changes)
        found.append(trial.calls)
    return found


@pytest.mark.slow
def test_so_many_trials_are_made_as_the_law_says(tmp_path, unsynced):
    found = counted(tmp_path, range(NUM_STUDIES))
    assert min(found) == 1 and p_value(found, LAW) > FALSE_ALARM


def kept_through_crashes(out, crashes):
    """What is on disk of a secure study that crashes in its first trial so many times.

    Keys of a secure study are fresh each time: a number or settings drawn again would be others,
    with a probability of 1 - 10^-10 in 40 crashes (the law's most likely number has 1/4).
    """
    seen = set()
    for _ in range(crashes):
        with pytest.raises(Crash):
            go(out, Trial(crash_at={1}), root=Key.secure())
        secret = out / "secret"
        settings = (secret / "trial" / "settings.json").read_text()
        seen.add(((secret / "number").read_text(), settings))
    return seen


def test_the_number_is_drawn_once(tmp_path):
    assert len({number for number, _ in kept_through_crashes(tmp_path / "secure", 40)}) == 1


def test_a_trial_that_crashed_keeps_its_settings(tmp_path):
    assert len({settings for _, settings in kept_through_crashes(tmp_path / "secure", 5)}) == 1


def test_a_twin_that_draws_again_after_a_crash_is_red(tmp_path, monkeypatch):
    kept = SecretState.keep_number

    def again(self, draw):
        (self.path / "number").unlink(missing_ok=True)
        return kept(self, draw)

    monkeypatch.setattr(SecretState, "keep_number", again)
    monkeypatch.setattr(SecretState, "has_number", property(lambda self: True))
    assert len({number for number, _ in kept_through_crashes(tmp_path / "secure", 40)}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_crashes_change_neither_the_number_nor_the_best(tmp_path, seed):
    whole = Trial()
    best = go(tmp_path / "whole", whole, seed=seed)
    broken = Trial(crash_at=range(1, 60, 2))
    again, crashes = until_done(tmp_path / "broken", broken, seed=seed)
    assert broken.calls == whole.calls + crashes and crashes > 0
    assert (again / "settings.json").read_text() == (best / "settings.json").read_text()
    assert sorted(os.listdir(tmp_path / "broken")) == ["run", "study.json"]


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 30))
def test_a_kill_at_any_change_of_the_state_loses_nothing(tmp_path, monkeypatch, at):
    seed = next(seed for seed in range(99) if LAW.number(_bits(root_of(seed))) == 4)
    whole = go(tmp_path / "whole", Trial(), seed=seed)
    real, calls = os.fsync, 0

    def failing(handle):
        nonlocal calls
        calls += 1
        if calls == at:
            raise Crash
        real(handle)

    trial = Trial()
    monkeypatch.setattr(os, "fsync", failing)
    found, crashes = until_done(tmp_path / "killed", trial, seed=seed)
    assert crashes <= 1 and 4 <= trial.calls <= 5
    assert (found / "settings.json").read_text() == (whole / "settings.json").read_text()
    assert sorted(os.listdir(tmp_path / "killed")) == ["run", "study.json"]


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from tests.studies.test_private_selection import Trial, go
    from fedpriv.rng import Key
    class Killed(Trial):
        def run(self, settings, folder, key):
            super().run(settings, folder, key)
            if self.calls == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
    go(Path(sys.argv[1]), Killed(), root=Key.secure())
"""


@pytest.mark.slow
def test_a_sigkill_keeps_the_number(tmp_path):
    code, out, seen = textwrap.dedent(KILLED), tmp_path / "s", set()
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code, str(out), "1"], cwd=ROOT, check=False)
        assert done.returncode == -signal.SIGKILL
        seen.add((out / "secret" / "number").read_text())
    assert len(seen) == 1
    trial = Trial()
    go(out, trial, root=Key.secure())
    assert seen == {str(trial.calls)}


def test_the_best_is_released_and_no_loser(tmp_path, unsynced, capfd):
    for seed in range(12):
        trial = Trial(scores=[math.nan, 3.0, None, 7.0, -math.inf, 5.0, *range(-9, -200, -1)])
        out = tmp_path / str(seed)
        found = go(out, trial, seed=seed)
        assert [path.name for path in found.iterdir()] == ["settings.json"]
        assert sorted(os.listdir(out)) == ["run", "study.json"]
        stated = json.loads((out / "study.json").read_text())
        assert set(stated) == {"format", "trials", "mode", "name"}
    assert capfd.readouterr() == ("", "")


def test_times_of_files_do_not_tell_when_the_best_was_run(tmp_path, unsynced):
    """As many trials are made as the law drew: the best one's age would be one of them."""

    class Old(Trial):
        def run(self, settings, folder, key):
            super().run(settings, folder, key)
            for path in (*folder.rglob("*"), folder):
                os.utime(path, (1e9, 1e9))

    found = go(tmp_path / "study", Old())
    times = {path.stat().st_mtime for path in (found, *found.rglob("*"))}
    assert min(times) > 1.7e9


@pytest.mark.parametrize(
    ("number", "most"), [(40, 34), pytest.param(200, 140, marks=pytest.mark.slow)]
)
def test_equal_scores_do_not_favour_the_first(number, most, tmp_path, unsynced):
    """Of 200 studies of several trials that score alike, the first wins half the time or less.

    Were it always the first, or the last, it would win all of them, or none. With chance 1/k of
    k >= 2 trials it wins more than 140 with probability below 10^-8; of 40 studies it wins more
    than 34 with probability below 10^-6.
    """
    first = several = 0
    seed = 0
    while several < number:
        trial, seed = Trial(scores=[1.0] * 200), seed + 1
        found = go(tmp_path / str(seed), trial, seed=seed)
        if len(trial.drawn) > 1:
            several += 1
            first += json.loads((found / "settings.json").read_text()) == trial.drawn[0]
    assert 0 < first <= most


@pytest.mark.parametrize("source", ["rostered", "private", "diagnostics", "", None])
def test_a_score_that_was_not_charged_is_refused(tmp_path, source):
    trial = Trial()
    trial.score = lambda folder: Score(value=1.0, source=source)
    with refuses(ValueError, repr(source)):
        go(tmp_path / "s", trial)
    assert not (tmp_path / "s" / "run").exists()


def test_another_study_is_not_gone_on_with(tmp_path):
    with pytest.raises(Crash):
        go(tmp_path / "s", Trial(crash_at={1}))
    others = {"trials": Trials(mean=5.0), "name": {"name": "b"}, "mode": Key.secure()}
    for odd, value in others.items():
        changes = {{"name": "facts", "mode": "root"}.get(odd, odd): value}
        with refuses(ValueError, odd):
            go(tmp_path / "s", Trial(), **changes)


def test_a_lost_number_is_not_drawn_again(tmp_path):
    with pytest.raises(Crash):
        go(tmp_path / "s", Trial(crash_at={1}))
    (tmp_path / "s" / "secret" / "number").unlink()
    with refuses(ValueError, tmp_path / "s"):
        go(tmp_path / "s", Trial())
    (tmp_path / "s" / "secret" / "number").write_text("many")
    with refuses(ValueError, "number"):
        go(tmp_path / "s", Trial())


def test_two_processes_do_not_run_one_study(tmp_path):
    class Again(Trial):
        def run(self, settings, folder, key):
            with refuses(ValueError, tmp_path / "s"):
                go(tmp_path / "s", Trial())
            super().run(settings, folder, key)

    trial = Again()
    assert go(tmp_path / "s", trial).is_dir() and trial.calls


def test_a_study_that_another_process_ended_is_not_evaluated_again(tmp_path, monkeypatch):
    """Which began and ended it after this one had looked, and before it had the lock."""
    held, other, late = private_selection.held, Trial(), Trial()

    @contextmanager
    def waited_for(path, mode):
        monkeypatch.setattr(private_selection, "held", held)
        go(tmp_path / "s", other)
        with held(path, mode):
            yield

    monkeypatch.setattr(private_selection, "held", waited_for)
    assert go(tmp_path / "s", late) == tmp_path / "s" / "run"
    assert other.calls and not late.calls
    assert sorted(os.listdir(tmp_path / "s")) == ["run", "study.json"]


def test_a_folder_that_is_no_study_is_left_alone(tmp_path):
    (tmp_path / "s" / "run").mkdir(parents=True)
    with refuses(ValueError, tmp_path / "s" / "run"):
        go(tmp_path / "s", Trial())
