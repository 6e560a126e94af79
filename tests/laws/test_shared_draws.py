"""Runs that could differ in a user's data, or in what is done, share neither cohorts nor noise."""

from collections import UserDict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from torch import nn

import fedpriv as fp
from fedpriv.mechanisms.event import Event
from fedpriv.privacy.sampling import PoissonSampler
from fedpriv.runs import prepared
from fedpriv.runs.noise_root import NOISE
from fedpriv.runs.prepared import start_run
from fedpriv.studies.runner import composed
from tests.harness.refusals import refuses
from tests.harness.tag_runs import stopping
from tests.privacy.plans.clipped import clipped
from tests.tasks.people import USERS, experiment, person, task

NOISY = {"noise_multiplier": 50.0, "local_learning_rate": 1e-6}


@pytest.fixture
def cohorts(monkeypatch):
    """The keys that runs' cohorts are drawn from, in order; those of rehearsals are of nobody."""
    keys, draw, rehearse = [], PoissonSampler.next, prepared._train_synthetic_users

    def noted(self, memory, key, roster):
        keys.append(key.to_bytes())
        return draw(self, memory, key, roster)

    def rehearsed(*asked, **more):
        before = len(keys)
        rehearse(*asked, **more)
        del keys[before:]

    monkeypatch.setattr(PoissonSampler, "next", noted)
    monkeypatch.setattr(prepared, "_train_synthetic_users", rehearsed)
    return keys


def weights(made, **options):
    return fp.run(experiment(made, **options)).params["weight"]


def test_the_same_run_draws_the_same(cohorts):
    first, again = (weights(task(), **NOISY) for _ in range(2))
    assert cohorts[:2] == cohorts[2:]
    np.testing.assert_array_equal(first, again)


def label_changed():
    x, y = person(3)
    return USERS | {"u03": (x, np.where(np.arange(6) == 2, 1 - y, y))}


DATA = {
    "another label": label_changed,
    "another input": lambda: USERS | {"u03": (person(3)[0] + 1e-3, person(3)[1])},
    "an example less": lambda: USERS | {"u03": tuple(a[:-1] for a in person(3))},
    "two users swapped": lambda: USERS | {"u03": USERS["u04"], "u04": USERS["u03"]},
}


@pytest.mark.parametrize("change", DATA)
def test_at_one_seed_two_data_sets_add_noise_of_their_own(change, cohorts):
    """Their difference would be one user's change, bare: two independent draws have √2 σ C / k."""
    one, other = (weights(task(users=users), **NOISY) for users in (USERS, DATA[change]()))
    assert len(set(cohorts)) == 4
    alone = np.abs(one - other).max()
    assert alone > 0.1 * 50.0 * 0.5 / 6.0, alone


class Files(UserDict):
    """Users that are read when they are asked for; one of them cannot be."""

    broken = ""

    def __getitem__(self, user_id):
        if user_id == self.broken:
            raise OSError("gone")
        return super().__getitem__(user_id)


def negative(outputs, targets):
    return -nn.functional.cross_entropy(outputs, targets)


OTHERS = {
    "noise_multiplier": 2.0,
    "l2_clip_norm": 0.5,
    "cohort": 5.0,
    "local_learning_rate": 0.2,
    "seed": 1,
}


@pytest.mark.parametrize("option", OTHERS)
def test_at_one_seed_another_mechanism_draws_cohorts_of_its_own(option, cohorts):
    fp.run(experiment(task()))
    fp.run(experiment(task(), **{option: OTHERS[option]}))
    assert len(set(cohorts)) == len(cohorts) == 4


def test_experiments_of_another_code_and_name_draw_cohorts_of_their_own(cohorts):
    """Code is not read: under one name both draw alike, and are not composed."""
    one, other = experiment(task()), experiment(task(loss=negative))
    for made in (one, other, replace(other, name="another")):
        fp.run(made)
    assert cohorts[:2] == cohorts[2:4] and not {*cohorts[:2]} & {*cohorts[4:]}


def test_of_a_mapping_that_reads_files_every_user_is_hashed():
    digests = [task(users=Files(users)).data_sha256() for users in (USERS, label_changed())]
    assert digests[0] != digests[1]
    assert digests[0] == task(users=USERS).data_sha256()
    some = Files(USERS)
    some.broken = "u03"
    assert task(users=some).data_sha256() not in digests


def test_where_the_data_are_not_known_nothing_is_drawn_twice(cohorts):
    made = task()
    made.data_sha256 = None
    one, other = (weights(made, **NOISY) for _ in range(2))
    assert len(set(cohorts)) == 4 and not np.array_equal(one, other)


def test_a_run_goes_on_with_its_own_data_only(tmp_path):
    made = experiment(task(), rounds=3)
    with pytest.raises(KeyboardInterrupt):
        start_run(made, None, None, tmp_path / "run", make_backend=stopping(2)).run()
    changed = experiment(task(users=label_changed()), rounds=3)
    with refuses(ValueError, "private"):
        fp.resume(tmp_path / "run", experiment=changed)
    assert fp.resume(tmp_path / "run", experiment=made).summary["rounds"] == 2


def test_a_secure_folder_has_no_digest_that_others_can_make(tmp_path):
    made = experiment(task(), rounds=1)
    for name in ("a", "b"):
        fp.run(made, out=tmp_path / name, secure=True)
    texts = [(tmp_path / name / "experiment.json").read_text("utf-8") for name in ("a", "b")]
    assert task().data_sha256()["private"] not in texts[0]
    assert texts[0] != texts[1]
    assert (tmp_path / "a" / "data.key").stat().st_mode & 0o777 == 0o600


# -- ε of several runs together ---------------------------------------------------------------

PLAN = clipped(
    num_users=400, expected_cohort_size=20, num_rounds=30, l2_bound=1.0, noise_multiplier=1.0,
    delta=1e-4, roster_sha256="0" * 64,
)  # fmt: skip


def charged(sigma, rounds, lost=0, delta=1e-4, digest=None, seed=0):
    """A finished run's record, as far as `composed` reads it."""
    event = Event(kind="poisson-gaussian", noise_multiplier=sigma, sampling_prob=0.05)
    plan = replace(PLAN, delta=delta)
    charges = [SimpleNamespace(event=event)] * (rounds + lost)
    state = SimpleNamespace(plan=plan, charges=charges, extra={NOISE: digest or str(sigma)})
    return SimpleNamespace(state=state, options={"seed": seed})


def by_dp_accounting(*parts, delta=1e-4):
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for sigma, rounds in parts:
        drawn = dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(sigma))
        accountant.compose(drawn, rounds)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("lost", [0, 7])
def test_composition_is_that_of_all_charges_at_the_smallest_delta(lost):
    runs = [charged(1.0, 30, lost), charged(2.0, 10), charged(1.5, 20, delta=1e-6)]
    expected = by_dp_accounting((1.0, 30 + lost), (2.0, 10), (1.5, 20), delta=1e-6)
    assert composed(runs).value == pytest.approx(expected, rel=3e-3)
    assert composed(runs).delta == 1e-6


def test_runs_that_draw_alike_are_not_composed():
    """Released under one cohort and other noise, they would cost more than their events say."""
    one = charged(1.0, 30, digest="same")
    with pytest.raises(ValueError):
        composed([one, one])
    assert composed([one, charged(1.0, 30, digest="same", seed=1)])
