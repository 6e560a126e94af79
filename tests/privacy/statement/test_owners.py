"""What a statement says where a person's words count wherever they stand."""

import dataclasses

import pytest

from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import DevicesSampler, PoissonSampler
from fedpriv.privacy.statement.statement import privacy_statement
from tests.privacy.statement.test_statement import CORPUS, PLAN, text

SHARE = "share_dropped_for_owners"


def owners_plan(most):
    draws = PoissonSampler(num_users=5000, expected_cohort_size=100)
    return Plan(
        mechanism=Mechanism(
            sampler=DevicesSampler(draws=draws, devices=most),
            bound=Clip(l2_clip_norm=1.0),
            privatizer=Gaussian(noise_multiplier=2.0),
        ),
        num_rounds=20,
        unit="owner",
    )


def said(plan, most=None, **more):
    provenance = {"owners": "all", "examples_per_owner": most, SHARE: 0.6101, **more}
    corpus = {**CORPUS, "provenance": {**CORPUS["provenance"], **provenance}}
    return privacy_statement(plan, {"mode": "secure", "corpus": corpus}, num_charges=20)


def test_of_users_the_unit_is_a_persons_words():
    statement = said(PLAN)
    for words in (
        "all that one person wrote, wherever it stands among rostered users' training examples",
        "were dropped whole, 61.0 % of the rostered users' training sentences",
        "changes that user's update and no other",
        "The graph is taken to be fixed and public",
        "stay on the roster",
    ):
        assert words in text(statement)
    assert "does not cover a person's words" not in text(statement)
    assert statement.to_json()["protects"] == {
        "unit": "user",
        "relation": "add-remove",
        "neighbours": "one person's words, wherever they stand, blanked or not",
        "words": "person",
        "public_by_assumption": [
            "the graph: which account wrote how many sentences in which thread, and who asked it"
        ],
        "dropped": 0.6101,
    }


def test_without_it_the_unit_is_an_account_and_says_so():
    statement = privacy_statement(PLAN, {"mode": "secure", "corpus": CORPUS}, num_charges=20)
    assert "does not cover a person's words inside other accounts' examples" in text(statement)
    assert statement.protects == {
        "unit": "user",
        "relation": "add-remove",
        "neighbours": "one user's records there or not",
        "words": "account",
    }


@pytest.mark.parametrize("most", [1, 8])
def test_of_examples_the_unit_is_an_owner(most):
    plan = Plan.from_json(owners_plan(most).to_json())  # as verify and reports read it
    statement = said(plan, most)
    for words in (
        "per owner",
        "The unit is an owner",
        "Neighbours blank one owner's examples",
        "5,000 examples are on a fixed list of ids",
        f"An owner has at most {most} of them",
        f"No owner has more than {most} training examples: 61.0 % ",
        "mixture of Gaussians",
        "as under add-remove",
        "were blanked or not",
        "20 of 20 planned steps",
    ):
        assert words in f"{statement.headline} {text(statement)}"
    assert statement.protects["neighbours"] == "blank one owner's examples"
    assert statement.protects["examples_per_owner"] == most


def test_without_noise_it_promises_nothing():
    statement = said(dataclasses.replace(PLAN, mechanism=_unprotected(), target_epsilon=None))
    assert statement.protects == {"unit": "user", "relation": "add-remove"}


def _unprotected():
    from fedpriv.privacy.mechanism import named_mechanism

    return named_mechanism(num_users=4000, expected_cohort_size=350)
