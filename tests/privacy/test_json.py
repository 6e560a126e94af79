"""What is kept as JSON comes back, and what could not have been written is refused.

Events, laws of trials, plans, records of mechanisms and lines of a ledger: they are read from files
that anyone may have edited, and nothing in them is imported or called.
"""

import math
import subprocess
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.mechanisms.event import Event
from fedpriv.privacy.ledger.state import Charge, Entry, Release, Row, as_ranges
from fedpriv.privacy.mechanism import Mechanism, Recorded
from fedpriv.privacy.plan import FilterPlan, Plan, read_plan
from fedpriv.privacy.trials import Trials
from tests.harness.refusals import refuses
from tests.privacy.costing import plan, through_json
from tests.privacy.selection.test_trials import LAWS
from tests.privacy.test_event import EVENTS
from tests.privacy.test_recorded import ORDINARY, OWN

INF, NAN = math.inf, math.nan
KINDS = {event.kind: event for event in EVENTS}
POISSON = KINDS["poisson-gaussian"]
FIXED = plan(cohort_cap=40, max_examples_per_user=256, roster_sha256="a" * 64)
ADAPTIVE = FilterPlan(num_users=400, rho=1.0, delta=1e-5)
OF_EXAMPLES = FilterPlan(
    num_users=400, rho=1.0, delta=1e-5, relation="replace-one", max_examples_per_user=9,
    roster_sha256="a" * 64, unit="example",
)  # fmt: skip
RECORD = OWN["examples"].mechanism
MADE = {name: made.mechanism for name, made in ORDINARY.items()}
RELEASE = Release(round_num=3, attempt=2, digest="ab" * 32)
MADE_OF = Release(round_num=3, attempt=2, digest="ab" * 32, charges=((1, 2), (4, 4)))
CHARGES = [Charge(round_num=3, attempt=2, event=event) for event in EVENTS]
LINES = [*CHARGES, Charge(round_num=3, attempt=2, event=POISSON, query="count"), RELEASE, MADE_OF]
WRITTEN = [
    *EVENTS,
    *LAWS,
    FIXED,
    ADAPTIVE,
    OF_EXAMPLES,
    *ORDINARY.values(),
    *MADE.values(),
    RECORD.recorded,
    *LINES,
]


def read(kind, value):
    if kind in (Plan, FilterPlan):
        return read_plan(value)
    return kind(**value) if issubclass(kind, Entry) else kind.from_json(value)


def written(made):
    return made.to_line() if isinstance(made, Entry) else made.to_json()


@pytest.mark.parametrize("made", WRITTEN, ids=lambda made: type(made).__name__)
def test_it_comes_back(made):
    value = through_json(written(made))
    found = read(type(made), value)
    assert found == made and type(found) is type(made)
    assert through_json(written(found)) == value


def test_the_ordinary_query_is_not_named():
    assert "query" not in CHARGES[0].to_line() and "charges" not in RELEASE.to_line()


POPEN = {"module_name": "subprocess", "class_name": "Popen", "args": ["true"]}
COUNTS, NUMBERS = [0, -1, 3.0, "3", True, None], ["1.0", None, True, 0.0, -1.0, INF, NAN]


def changed(name, part, **changes):
    """Yield a part of an ordinary mechanism with one field changed, or one more."""
    value = getattr(MADE[name], part).to_json()
    yield from ({**value, field: bad} for field, values in changes.items() for bad in values)


#: Of a value: by field, what it never is.
HOSTILE = [
    (KINDS["gaussian"], {
        "kind": ["laplace", ["gaussian"], "poisson-gaussian", "pure"], "noise_multiplier": NUMBERS,
        "sampling_prob": [0.5], "shift": [0.02],
    }),
    (POISSON, {"sampling_prob": [*NUMBERS, 1.5]}),
    (KINDS["fixed-size-gaussian"], {"size": [401, *COUNTS], "num_users": [400.0]}),
    (KINDS["poisson-devices-gaussian"], {"devices": [1001, *COUNTS]}),
    (KINDS["objective-gaussian"], {"shift": NUMBERS}),
    (KINDS["pure"], {"epsilon": NUMBERS, "rho": [0.125]}),
    (KINDS["zcdp"], {"rho": NUMBERS, "epsilon": [0.5]}),
    (KINDS["nonprivate"], {"epsilon": [0.5], "noise_multiplier": [None]}),
    (LAWS[0], {"mean": [0.5, *NUMBERS], "shape": ["inf", "1", None, True, 0.0]}),
    (ADAPTIVE, {
        "rho": NUMBERS, "unit": [{}, None], "relation": [None, ["add-remove"]],
        "kind": ["fixed", ["FilterPlan"]], "num_rounds": [3], "num_users": ["400"],
        "delta": [2.0], "roster_sha256": [3],
    }),
    (ORDINARY["clip"], {"mechanism": [None, {}, POPEN, "clip"], "num_users": [400]}),
    (MADE["clip"], {
        "sampler": [3, [], "PoissonSampler", *changed("clip", "sampler", num_users=COUNTS,
                    expected_cohort_size=NUMBERS, cap=[39, 401, *COUNTS[:-1]], more=[1])],
        "privatizer": [3, *changed("clip", "privatizer", noise_multiplier=NUMBERS, more=[1])],
        "bound": [3, *changed("clip", "bound", l2_clip_norm=NUMBERS, regulariser=[0.1])],
    }),
    (MADE["fixed"], {"sampler": [*changed("fixed", "sampler", size=COUNTS, num_users=[401])]}),
    (MADE["normalise"], {"bound": [*changed("normalise", "bound", regulariser=[-1.0, None])]}),
    (MADE["unprotected"], {
        "privatizer": [*changed("unprotected", "privatizer", stddev=[-1.0, INF, None, "1"])],
    }),
    (RECORD, {"micro_batch": COUNTS, "bound": [3], "recorded": [None, {}, POPEN]}),
    (RECORD.recorded, {
        "noise": [3, None], "num_users": COUNTS,
        "expected_cohort_size": NUMBERS, "description": [3, None],
        "after_crash": ["stop", None, ["retry"]],
        "event": [None, {}, POPEN, {"kind": "pure", "epsilon": -1.0}],
    }),
    (CHARGES[0], {
        "round_num": COUNTS, "attempt": [0, 1.5], "query": ["", None],
        "event": [None, {}, POPEN, {"kind": ["gaussian"], "noise_multiplier": 1.0},
                  {"kind": "gaussian", "noise_multiplier": [1.0]}],
    }),
    (MADE_OF, {
        "round_num": [0], "attempt": [True], "digest": ["short", "G" * 64, "AB" * 32, None],
        "charges": [
            [], [[2, 1]], [[0, 1]], [[1, 2], [2, 3]], [[4, 5], [1, 2]], [[1, 1], [1, 1]],
            [[1.0, 2.0]], [["1", "2"]], [[True, 2]], [[1]], [[1, 2, 3]], [1, 2], "12", [None],
        ],
    }),
]  # fmt: skip
FORGED = [
    *((type(one), {**written(one), name: value}) for one, changes in HOSTILE
      for name, values in changes.items() for value in values),
    *((type(one), {**written(one), "module_name": "os"}) for one in WRITTEN),
    *((type(one), {n: v for n, v in written(one).items() if n != left})
      for one in [*EVENTS, LAWS[0], FIXED, ADAPTIVE, RECORD, RECORD.recorded, CHARGES[0], RELEASE]
      for left in written(one)),
    *((kind, value) for kind in (Event, Trials, Plan, Mechanism, Recorded)
      for value in (None, [], 3, "gaussian", {}, {"kind": "FilterPlan"}, POPEN)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), FORGED)
def test_anything_else_is_refused(kind, value, monkeypatch):
    """The replay of a ledger turns each error of a line into its refusal."""
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("it was executed"))
    of_a_line = (ValueError, TypeError, KeyError)
    with pytest.raises(of_a_line if kind in (Charge, Release) else ValueError):
        read(kind, value)


@pytest.mark.parametrize("bad", COUNTS)
def test_a_row_of_other_numbers_is_refused(bad):
    made = Row(row=4, round_num=7)
    assert Row(**through_json(made.to_line())) == made
    for name in ("row", "round_num"):
        with pytest.raises(ValueError):
            Row(**{**made.to_line(), name: bad})


def test_equal_numbers_of_another_type_are_not_taken_for_a_known_event():
    """Events of a ledger are checked once and known again: 1 == 1.0 == True, and True is none."""

    def read(**event):
        return Charge(**{**CHARGES[0].to_line(), "event": event}).event

    for value in (1.0, 1, 1.0):
        found = read(kind="gaussian", noise_multiplier=value)
        assert found == Event(kind="gaussian", noise_multiplier=1.0)
    with refuses(ValueError, True):
        read(kind="gaussian", noise_multiplier=True)
    swapped = {"kind": "fixed-size-gaussian", "noise_multiplier": 1, "num_users": 9, "size": 1}
    read(**swapped)
    for name in ("num_users", "size"):
        for other in (float(swapped[name]), True):
            with refuses(ValueError, name, other):
                read(**{**swapped, name: other})


@given(st.sets(st.integers(1, 60)))
def test_ranges_hold_the_numbers_and_no_others_and_are_as_few_as_can_be(numbers):
    ranges = as_ranges(sorted(numbers))
    held = [n for first, last in ranges for n in range(first, last + 1)]
    assert held == sorted(numbers)
    assert all(one[1] + 1 < two[0] for one, two in pairwise(ranges))
    if numbers:
        made = replace(RELEASE, charges=ranges)
        assert Release(**through_json(made.to_line())) == made
