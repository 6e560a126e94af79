"""Runs that could differ in a user's data, or in what is done, share neither cohorts nor noise."""

import threading
from collections import UserDict
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from operator import itemgetter
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from torch import nn

import fedpriv as fp
from fedpriv.experiments.own_code import describe_code
from fedpriv.privacy.event import Event
from fedpriv.privacy.sampling import PoissonSampler
from fedpriv.runs import prepared
from fedpriv.runs.noise_root import NOISE
from fedpriv.runs.prepared import start_run
from fedpriv.studies.runner import composed
from tests.harness import combinations
from tests.harness.refusals import refuses
from tests.harness.tag_runs import stopping
from tests.privacy.plans.clipped import clipped
from tests.tasks.people import USERS, experiment, person, task

NOISY = {"noise_multiplier": 50.0, "local_learning_rate": 1e-6}


@pytest.fixture
def cohorts(monkeypatch):
    """The keys that runs' cohorts are drawn from, in order; those of rehearsals are of nobody."""
    keys, draw, rehearse = [], PoissonSampler.next, prepared._train_synthetic_user

    def noted(self, memory, key, roster):
        keys.append(key.to_bytes())
        return draw(self, memory, key, roster)

    def rehearsed(*asked, **more):
        before = len(keys)
        rehearse(*asked, **more)
        del keys[before:]

    monkeypatch.setattr(PoissonSampler, "next", noted)
    monkeypatch.setattr(prepared, "_train_synthetic_user", rehearsed)
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


def in_a_notebook(source):
    return {"module": eval(source, {"nn": nn})}


#: Changes of the task and options that two runs of one seed differ by.
OTHERS = {
    **{
        name: ({}, {name: value})
        for name, value in (
            *(("noise_multiplier", 2.0), ("l2_clip_norm", 0.5), ("cohort", 5.0)),
            ("local_learning_rate", 0.2),
        )
    },
    "loss": ({"loss": negative}, {}),
    "module": ({"module": lambda: nn.Linear(4, 2, bias=False)}, {}),
    "optimiser": ({"client_optimizer": torch.optim.Adam}, {}),
    "option of an optimiser": ({"client_optimizer": partial(torch.optim.SGD, momentum=0.5)}, {}),
    "code that no module holds": (in_a_notebook("lambda: nn.Linear(4, 2, bias=False)"), {}),
}


@pytest.mark.parametrize(("changes", "options"), OTHERS.values(), ids=OTHERS)
def test_at_one_seed_another_mechanism_or_code_draws_cohorts_of_its_own(changes, options, cohorts):
    first = in_a_notebook("lambda: nn.Linear(4, 2)") if "module" in changes else {}
    fp.run(experiment(task(**first)))
    fp.run(experiment(task(**changes), **options))
    assert len(set(cohorts)) == len(cohorts) == 4


def weighing(weight):
    return lambda outputs, targets: nn.functional.cross_entropy(outputs, targets) * float(weight)


def acting(act):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(act(x))

    return Net


class Slotted:
    __slots__ = ("weight",)

    def __call__(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets) * self.weight


class Scale(float):
    """A float with an attribute, of a class that has a static method."""

    def __new__(cls, value):
        return super().__new__(cls, value)


class Named(list):
    """A list with an attribute."""


def having(made, **attributes):
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


SCALE = 1.0


def by_global(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets) * SCALE


def executed(scale, name):
    code = f"""class Net(nn.Linear):
    scale = {scale}
    def forward(self, x):
        return super().forward(x) * self.scale"""
    known = {"nn": nn, "__name__": name}
    exec(code, known)
    return partial(known["Net"], 4, 2)


entropy = nn.functional.cross_entropy
TWICE = [lambda o, t: entropy(o, t), lambda o, t: 2 * entropy(o, t)]
PAIRS = {
    "option of a torch loss": (
        {"loss": nn.CrossEntropyLoss()}, {"loss": nn.CrossEntropyLoss(label_smoothing=0.3)},
    ),
    "weights of a torch loss": (
        {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0]))},
        {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]))},
    ),
    "enclosed tensor": tuple({"loss": weighing(torch.tensor(w))} for w in (1.0, 2.0)),
    "enclosed NumPy scalar": ({"loss": weighing(np.float32(1))}, {"loss": weighing(np.float32(2))}),
    "enclosed built-in": ({"module": acting(torch.sigmoid)}, {"module": acting(torch.tanh)}),
    "slots": tuple({"loss": having(Slotted(), weight=w)} for w in (1.0, 2.0)),
    **{
        kind: ({"loss": weighing(one)}, {"loss": weighing(other)})
        for kind, one, other in (
            ("fraction", Fraction(1, 2), Fraction(1, 3)),
            ("float of a class", *(having(Scale(1.0), name=n) for n in "ab")),
            ("generator of numbers", Random(1), Random(2)),
            ("getter", itemgetter(1), itemgetter(2)),
            ("cached function", cache(weighing(1.0)), cache(weighing(2.0))),
            ("list of a class", *(having(Named(), name=n) for n in "ab")),
        )
    },
    "one line": ({"loss": TWICE[0]}, {"loss": TWICE[1]}),
    "NumPy scalar of an optimiser": tuple(
        {"client_optimizer": partial(torch.optim.SGD, momentum=np.float32(m))} for m in (0.9, 0.1)
    ),
    **{
        f"class executed in {name}": tuple({"module": executed(by, name)} for by in (1.0, 0.1))
        for name in ("__main__", "no.such.module", "builtins")
    },
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_what_code_encloses_tells_it_apart(pair):
    one, other, again = (describe_code(task(**one).trained_code) for one in (*pair, pair[0]))
    assert one == again != other


def test_a_global_that_a_function_names_tells_it_apart(monkeypatch):
    one = describe_code([by_global])
    monkeypatch.setattr(f"{__name__}.SCALE", 2.0)
    assert describe_code([by_global]) != one


@pytest.mark.parametrize(
    "value",
    [(n for n in [1]), list(range(2000)), threading.Lock(), np.array([object()])],
    ids=["generator", "large", "lock", "objects"],
)
def test_what_is_not_known_is_drawn_for_anew(value):
    assert describe_code([lambda: value]) != describe_code([lambda: value])


def nested(deep):
    """A function that encloses a tuple of so many levels."""
    held = ()
    for _ in range(deep):
        held = (held,)
    return lambda: held


def asked_of_all_globals():
    return globals()["SCALE"]


def of_a_module_as_a_whole():
    return combinations


@pytest.mark.parametrize("code", [asked_of_all_globals, of_a_module_as_a_whole, nested(40)])
def test_what_is_out_of_sight_is_drawn_for_anew(code):
    """By a name that code makes, in a user-written module, or far down."""
    assert describe_code([code]) != describe_code([code])


def test_what_is_in_sight_is_not(monkeypatch):
    assert describe_code([by_global, nested(3)]) == describe_code([by_global, nested(3)])


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
    event = Event.of("poisson-gaussian", sigma, 0.05)
    plan = replace(PLAN, delta=delta)
    charges = [SimpleNamespace(event=event)] * (rounds + lost)
    state = SimpleNamespace(plan=plan, charges=charges, extra={NOISE: digest or str(sigma)})
    return SimpleNamespace(sealed=SimpleNamespace(state=state), options={"seed": seed})


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
