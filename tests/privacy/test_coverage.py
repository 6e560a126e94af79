"""What an ε covers, and what it adds up to with the model that a run started from."""

from dataclasses import replace

import pytest

from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.event import Relation
from fedpriv.privacy.plan import cohort_plan
from fedpriv.privacy.statement.coverage import (
    FLOATS,
    TRAINED,
    TrainedBefore,
    coverage,
    refuse_private_knowledge,
    refuse_start_without_privacy,
    with_start,
)

PLAN = cohort_plan(
    num_users=400, expected_cohort_size=20, num_rounds=30, bound="clip", l2_bound=1.0,
    noise="gaussian", noise_multiplier=1.0, delta=1e-4, roster_sha256="0" * 64,
)  # fmt: skip
SPENT = Epsilon(value=2.0, delta=1e-4, relation=PLAN.relation, accountant="PLD", unit="user")
BEFORE = TrainedBefore(
    ledger_head="h", mode="secure", unit="user", relation="add-remove", roster_sha256="0" * 64,
    epsilon=3.0, delta=1e-5, accountant="PLD",
)  # fmt: skip


def start(**changes):
    return {"kind": "file", TRAINED: replace(BEFORE, **changes).to_json()}


@pytest.mark.parametrize("secure", [True, False])
def test_epsilons_and_deltas_of_the_same_users_add_up(secure):
    both = with_start(PLAN, SPENT, start(), secure=secure)
    assert both is not None and both.value == 5.0
    assert both.delta == pytest.approx(1.1e-4, rel=1e-12)
    assert (both.relation, both.unit) == (Relation.ADD_REMOVE, "user")


@pytest.mark.parametrize(
    ("changes", "secure"),
    [
        ({"relation": "replace-one"}, False), ({"relation": "zero-out"}, True),
        ({"roster_sha256": "1" * 64}, False), ({"roster_sha256": None}, False),
        ({"unit": "example"}, False), ({"epsilon": None, "delta": None}, False),
        ({"mode": "simulation"}, True),
    ],
    ids=str,
)  # fmt: skip
def test_others_do_not(changes, secure):
    assert with_start(PLAN, SPENT, start(**changes), secure=secure) is None
    found = coverage(PLAN, start=start(**changes), secure=secure).not_covered
    assert found and "adds to this ε" not in found[0]


@pytest.mark.parametrize("changes", [{"mode": "simulation"}, {"epsilon": None, "delta": None}])
def test_a_secure_run_starts_from_no_model_that_protects_no_one(changes):
    with pytest.raises(ValueError, match="start-without-privacy"):
        refuse_start_without_privacy(PLAN, start(**changes), {})
    refuse_start_without_privacy(PLAN, start(**changes), {"start.without_privacy": True})
    refuse_start_without_privacy(PLAN, start(), {})


@pytest.mark.parametrize(
    ("facts", "about"),
    [
        ({"corpus": {"provenance": {"roster_looks_at_data": True}}}, "roster"),
        ({"corpus": {"public_of_rostered": 3}}, "public examples"),
        ({"corpus": {"public_train_of_rostered": 3}}, "start"),
        ({"corpus": {"provenance": {"private_side_information": ["vocabulary"]}}}, "vocabulary"),
        ({"corpus": {"provenance": {"word_counts_source": "private"}}}, "word counts"),
        ({"side_information": {"source": "private"}}, "side information"),
        ({"options": {"start": "public", "task.public_text": "all-posts"}}, "titles"),
        ({"options": {"start": "file"}}, "unknown"),
        ({"start": start()}, "ε = 3"),
        ({"start": start(not_covered=("the weather",))}, "the weather"),
        ({"in_floats": True}, FLOATS),
    ],
    ids=str,
)  # fmt: skip
def test_each_gap_is_named_where_its_fact_is_known(facts, about):
    assert coverage(PLAN).not_covered == ()
    found = coverage(PLAN, **facts)
    assert any(about in phrase for phrase in found.not_covered)
    assert "NOT cover" in found.mark and about in found.mark
    plain = replace(SPENT, not_covered=())
    assert about in str(found.marked(plain))


@pytest.mark.parametrize(
    "facts",
    [
        {"corpus": {"provenance": {"private_side_information": ["vocabulary"]}}},
        {"side_information": {"source": "private"}},
        {"options": {"start": "public", "task.public_text": "all-posts"}},
    ],
    ids=str,
)
def test_a_secure_run_may_know_nothing_private(facts):
    given = {"corpus": None, "side_information": None, "options": None, **facts}
    with pytest.raises(ValueError, match="secure"):
        refuse_private_knowledge("user", *given.values())
