"""What an ε covers by what a run records, and what it adds up to with the model it started from."""

from dataclasses import replace

import pytest

from fedpriv.mechanisms.event import Relation
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.statement.coverage import (
    FLOATS,
    TRAINED,
    Coverage,
    TrainedBefore,
    coverage,
    coverage_of,
    refuse_private_knowledge,
    refuse_start_without_privacy,
    with_start,
)
from tests.harness.refusals import refuses
from tests.privacy.costing import plan

ROSTER = "0" * 64
GIVEN = {"num_rounds": 30, "delta": 1e-4, "roster_sha256": ROSTER}
PLAN, EXAMPLES = plan(**GIVEN), plan(**GIVEN, unit="example")
SILENT = plan(**GIVEN, noise="none", noise_multiplier=0.0)
SPENT = Epsilon(value=2.0, delta=1e-4, relation=PLAN.relation, accountant="PLD", unit="user")
BEFORE = TrainedBefore(
    ledger_head="h", mode="secure", unit="user", relation="add-remove", roster_sha256=ROSTER,
    epsilon=3.0, delta=1e-5, accountant="PLD",
)  # fmt: skip
PRIVATE = {"source": "private", "description": "counts"}
VOCABULARY = {"provenance": {"private_side_information": ["vocabulary"]}}
POSTS = {"start": "public", "task.public_text": "all-posts"}


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
    with refuses(ValueError, "start-without-privacy"):
        refuse_start_without_privacy(PLAN, start(**changes), {})
    refuse_start_without_privacy(PLAN, start(**changes), {"start.without_privacy": True})
    refuse_start_without_privacy(PLAN, start(), {})


@pytest.mark.parametrize(
    ("facts", "about"),
    [
        ({"corpus": {"provenance": {"roster_looks_at_data": True}}}, "roster"),
        ({"corpus": {"public_of_rostered": 3}}, "public examples"),
        ({"corpus": {"public_train_of_rostered": 3}}, "start"),
        ({"corpus": VOCABULARY}, "vocabulary"),
        ({"corpus": {"provenance": {"word_counts_source": "private"}}}, "word counts"),
        ({"side_information": PRIVATE}, "side information taken from rostered users"),
        ({"options": POSTS}, "titles"),
        ({"options": {"start": "file"}}, "unknown"),
        ({"start": start()}, "ε = 3"),
        ({"start": start(not_covered=("the weather",))}, "the weather"),
        ({"in_floats": True}, FLOATS),
    ],
    ids=str,
)  # fmt: skip
def test_each_gap_is_named_where_its_fact_is_known(facts, about):
    found = coverage(PLAN, **facts)
    assert any(about in phrase for phrase in found.not_covered)
    assert "does NOT cover" in found.mark and about in found.mark
    assert found.qualified("ε = 2.0") == f"ε = 2.0, {found.mark}"
    assert about in str(found.marked(SPENT))


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"corpus": {}},
        {"corpus": {"provenance": None}},
        {"corpus": {"provenance": {"private_side_information": []}}},
        {"corpus": {"provenance": {"word_counts_source": "public users"}}},
        {"side_information": {"source": "public", "description": "private parts"}},
    ],
    ids=str,
)
def test_nothing_known_is_nothing_uncovered(facts):
    found = coverage(PLAN, **facts)
    assert found == Coverage() and found.mark == "" and found.qualified("ε = 1") == "ε = 1"


@pytest.mark.parametrize("listed", [["scales", "idf"], "scales"])
def test_every_source_is_named_once_and_in_the_words_of_the_unit(listed):
    corpus = {"provenance": {"private_side_information": listed}}
    found = coverage(EXAMPLES, corpus=corpus, side_information=PRIVATE).not_covered
    sources = [*([listed] if isinstance(listed, str) else listed), "side information"]
    assert found == tuple(f"{source} taken from private examples" for source in sources)


def test_an_infinite_epsilon_is_explained_instead():
    found = coverage(SILENT, side_information=PRIVATE)
    assert found == Coverage(reason="no noise is added")
    loud = {"noise": "gaussian", "noise.multiplier": 2.0}
    found = coverage(SILENT, side_information=PRIVATE, options=loud)
    assert found.not_covered == ()
    assert "noise of standard deviation 1 is added" in found.reason and "counts" in found.reason
    assert "counts" not in coverage(SILENT, options=loud).reason
    assert found.explained(SILENT.epsilon(1)).reason == found.reason
    assert Coverage().explained(SILENT.epsilon(1)) == SILENT.epsilon(1)


def test_a_document_is_read_whole():
    document = {
        "plan": PLAN.to_json(),
        "corpus": VOCABULARY,
        "side_information": PRIVATE,
        "experiment": {"noise": "gaussian"},
    }
    assert len(coverage_of(document).not_covered) == 2
    with refuses(ValueError, None):
        coverage_of({})


@pytest.mark.parametrize(
    ("said", "gaps"), [({"hardened": True}, ()), ({}, (FLOATS,)), ({"hardened": "yes"}, (FLOATS,))]
)
def test_a_secure_run_that_does_not_say_that_it_is_hardened_is_not(said, gaps):
    """So it is with the folders of versions that drew noise in floating point."""
    assert coverage_of({"plan": PLAN.to_json(), "mode": "secure", **said}).not_covered == gaps


@pytest.mark.parametrize(
    "facts", [(VOCABULARY, None), (None, PRIVATE), (None, None, POSTS)], ids=str
)
def test_a_secure_run_may_use_what_is_public_only(facts):
    refuse_private_knowledge("user", {"provenance": {"roster_looks_at_data": True}}, None)
    refuse_private_knowledge("user", None, {"source": "public"})
    with pytest.raises(ValueError):
        refuse_private_knowledge("user", *facts)
