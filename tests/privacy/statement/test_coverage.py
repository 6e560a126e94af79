"""What an ε does not cover is read from what a run folder records, whatever it holds."""

import pytest

from fedpriv.privacy.plan import cohort_plan
from fedpriv.privacy.statement.coverage import (
    Coverage,
    coverage,
    coverage_of,
    refuse_private_knowledge,
)

PARTS = {"num_users": 40, "expected_cohort_size": 4, "num_rounds": 2, "bound": "clip"}
PLAN = cohort_plan(**PARTS, l2_bound=0.5, noise="gaussian", noise_multiplier=2.0)
EXAMPLES = cohort_plan(**{**PLAN.to_json(), "unit": "example"})
PRIVATE = {"source": "private", "description": "counts"}
SILENT = cohort_plan(**PARTS, l2_bound=0.5)


def told(plan=PLAN, side=None, **provenance):
    found = coverage(plan, corpus={"provenance": provenance}, side_information=side)
    return found.not_covered


def test_nothing_known_is_nothing_uncovered():
    for corpus in (
        None,
        {},
        {"provenance": None},
        {"provenance": {"private_side_information": []}},
    ):
        assert coverage(PLAN, corpus=corpus) == Coverage()
    assert told(side={"source": "public", "description": "private parts"}) == ()
    assert told(word_counts_source="public users") == ()
    assert Coverage().mark == "" and Coverage().qualified("ε = 1") == "ε = 1"


def test_every_source_is_named_once_and_in_the_words_of_the_unit():
    known = {
        "private_side_information": ["vocabulary", "idf"],
        "word_counts_source": "private",
        "roster_looks_at_data": True,
    }
    assert told(side=PRIVATE, **known) == (
        "vocabulary taken from rostered users",
        "idf taken from rostered users",
        "vocabulary, tag list and word counts taken from rostered users",
        "side information taken from rostered users",
        "who is on the roster, a choice that looked at their records",
    )
    assert told(EXAMPLES, side=PRIVATE, private_side_information="scales") == (
        "scales taken from private examples",
        "side information taken from private examples",
    )


def test_the_mark_goes_beside_an_epsilon():
    found = coverage(EXAMPLES, side_information=PRIVATE)
    assert found.qualified("ε = 2.0") == (
        "ε = 2.0, does NOT cover: side information taken from private examples"
    )


def test_an_infinite_epsilon_is_explained_instead():
    found = coverage(SILENT, side_information=PRIVATE)
    assert found == Coverage(reason="no noise is added")
    loud = {"noise": "gaussian", "noise.multiplier": 2.0}
    found = coverage(SILENT, side_information=PRIVATE, options=loud)
    assert found.not_covered == ()
    assert "noise of standard deviation 1 is added" in found.reason
    assert found.reason.endswith("because the run looks at counts")
    assert "private data without noise" in coverage(SILENT, options=loud).reason
    assert found.explained(SILENT.epsilon(1)).reason == found.reason
    assert Coverage().explained(SILENT.epsilon(1)) == SILENT.epsilon(1)


def test_a_document_is_read_whole():
    document = {
        "plan": PLAN.to_json(),
        "corpus": {"provenance": {"private_side_information": ["vocabulary"]}},
        "side_information": PRIVATE,
        "experiment": {"noise": "gaussian"},
    }
    assert len(coverage_of(document).not_covered) == 2
    with pytest.raises(ValueError, match="is not a plan"):
        coverage_of({})


def test_a_secure_run_may_use_what_is_public_only():
    refuse_private_knowledge("user", {"provenance": {"roster_looks_at_data": True}}, None)
    refuse_private_knowledge("user", None, {"source": "public"})
    with pytest.raises(ValueError, match="side information taken from private examples: no ε"):
        refuse_private_knowledge("example", None, PRIVATE)
