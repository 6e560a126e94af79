"""The lines of a ledger as values: written, read back, and refused when they are anything else."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.privacy.event import NONPRIVATE, Event, cohort_event
from fedpriv.privacy.ledger.state import UPDATE, Charge, Release, Row, as_ranges
from tests.harness.refusals import refuses

NOISE = cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=2.0)
DIGEST = "ab" * 32
CHARGE = {"round_num": 3, "attempt": 2, "event": NOISE.to_json()}
RELEASE = {"round_num": 3, "attempt": 2, "digest": DIGEST, "charges": [[1, 2], [4, 4]]}


def through_json(fields):
    return json.loads(json.dumps(fields, allow_nan=False))


class TestCharge:
    @pytest.mark.parametrize(
        "event",
        [
            NOISE,
            Event(kind="gaussian", noise_multiplier=1.0),
            Event(kind="pure", epsilon=0.5),
            Event(kind="zcdp", rho=0.5),
            NONPRIVATE,
        ],
        ids=lambda event: event.kind,
    )
    @pytest.mark.parametrize("query", [UPDATE, "count"])
    def test_it_comes_back(self, event, query):
        made = Charge(round_num=3, attempt=2, event=event, query=query)
        fields = through_json(made.to_json())
        assert Charge.from_json(fields) == made
        assert fields["event"] == event.to_json()
        # The ordinary query is not named: ledgers with one query a round are as they always were.
        named = set() if query == UPDATE else {"query"}
        assert set(fields) == {"round_num", "attempt", "event"} | named

    def test_equal_numbers_of_another_type_are_not_taken_for_a_known_event(self):
        """Events are checked once and known again: 1 == 1.0 == True, and True is no noise."""

        def read(**event):
            return Charge.from_json({**CHARGE, "event": event}).event

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


class TestRow:
    def test_it_comes_back(self):
        made = Row(row=4, round_num=7)
        assert Row(**through_json(made.to_json())) == made

    @pytest.mark.parametrize("bad", [0, -1, 1.0, "1", True, None, [1]], ids=repr)
    def test_bad_numbers_are_refused(self, bad):
        for fields in ({"row": bad, "round_num": 1}, {"row": 1, "round_num": bad}):
            with pytest.raises(ValueError):
                Row(**fields)


class TestRelease:
    def test_it_comes_back_with_its_charges(self):
        made = Release(round_num=3, attempt=2, digest=DIGEST, charges=((1, 2), (4, 4)))
        assert through_json(made.to_json()) == RELEASE
        assert Release.from_json(through_json(made.to_json())) == made


REFUSED = {
    (Charge, "round_num"): [0, "3", 3.0, True, None, ...],
    (Charge, "attempt"): [0, 1.5],
    (Charge, "query"): ["", None],
    (Charge, "event"): [
        None,
        {},
        {"kind": ["gaussian"], "noise_multiplier": 1.0},
        {"kind": "gaussian", "noise_multiplier": [1.0]},
        ...,
    ],
    (Charge, "gift"): [1],
    (Release, "round_num"): [0],
    (Release, "attempt"): [True],
    (Release, "digest"): ["short", "G" * 64, "AB" * 32, None, ...],
    (Release, "charges"): [
        *([], [[2, 1]], [[0, 1]], [[1, 2], [2, 3]], [[4, 5], [1, 2]], [[1, 1], [1, 1]]),
        *([[1.0, 2.0]], [["1", "2"]], [[True, 2]], [[1]], [[1, 2, 3]], [1, 2], "12", [None]),
    ],
    (Release, "gift"): [1],
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(*where, value) for where, values in REFUSED.items() for value in values],
)
def test_anything_else_is_refused(kind, name, value):
    """The replay of a ledger turns each of these into a refusal of the line."""
    fields = {**(CHARGE if kind is Charge else RELEASE), name: value}
    if value is ...:
        del fields[name]
    with pytest.raises((ValueError, TypeError, KeyError)):
        kind.from_json(fields)


class TestRanges:
    @given(st.sets(st.integers(1, 60)))
    def test_they_hold_the_numbers_and_no_others_and_are_as_few_as_can_be(self, numbers):
        ranges = as_ranges(sorted(numbers))
        held = [n for first, last in ranges for n in range(first, last + 1)]
        assert held == sorted(numbers)
        assert all(one[1] + 1 < two[0] for one, two in pairwise(ranges))
        if numbers:
            made = Release(round_num=1, attempt=1, digest=DIGEST, charges=ranges)
            assert Release.from_json(through_json(made.to_json())) == made
