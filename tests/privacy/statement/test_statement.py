"""The statement says what is true of a run, and the uncomfortable parts too."""

import json
import re

import pytest

from fedpriv.hashes import document_sha256
from fedpriv.mechanisms.bounds import OutputSensitivity
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import square_root_bands
from fedpriv.mechanisms.perturbation import OutputGaussian, Sphere
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.privacy.epsilon import format_delta, rounded_up
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import (
    CyclicSampler,
    DevicesSampler,
    Everybody,
    FixedSizeSampler,
    PoissonSampler,
)
from fedpriv.privacy.statement.coverage import FLOATS
from fedpriv.privacy.statement.statement import privacy_statement, run_statement
from tests.harness.refusals import refuses
from tests.privacy import costing
from tests.privacy.costing import cohort_plan, mechanism


def changed(**changes):
    given = {"num_users": 4000, "expected_cohort_size": 350, "num_rounds": 20}
    return costing.plan(**{**given, **changes})


PLAN = changed()
CORPUS = {
    "name": "onstartups",
    "roster": "onstartups-all",
    "synthetic": False,
    "num_public_users": 412,
    "provenance": {
        "own_text_only": False,
        "dropped": {},
        "roster_how": "Users whose hashed id falls outside a fixed 10 %.",
        "roster_looks_at_data": False,
        "foreign_text_share": 0.906,
        "foreign_text_share_by_rostered_users": 0.221,
        "words": "public users: those used by most users outside the roster",
        "tags": "public users: those used by most; they order the labels",
        "word_counts": "text that users outside the roster wrote",
        "word_counts_source": "public users",
    },
}
SIDE = {"source": "public", "description": "rank (words beyond the 100 commonest), from public"}


def say(plan=PLAN, *, charges=20, lost=0, anchored=None, corpus=CORPUS, side=SIDE, **more):
    document = {"mode": "simulation", "corpus": corpus, "side_information": side, **more}
    return privacy_statement(plan, document, num_charges=charges, num_lost=lost, anchored=anchored)


def text(statement):
    return " ".join(paragraph for part in statement.sections for paragraph in part.paragraphs)


def section(statement, title):
    return " ".join(statement.paragraphs(title))


def told(corpus=CORPUS, **provenance):
    return {**corpus, "provenance": {**corpus["provenance"], **provenance}}


def of_one(sampler, **rest):
    """A plan of Gaussian noise over other cohorts."""
    return Plan(mechanism=mechanism(sampler=sampler), num_rounds=20, **rest)


def slow(*row):
    return pytest.param(*row, marks=pytest.mark.slow)


SIMULATED = (
    "2 of them lost", "RDP", "90.6 %", "22.1 %", "does not cover a person's words inside",
    "Diagnostics", "412 users outside the roster", "not hardened",
    "anyone with the seed can subtract the noise", "those used by most users outside",
    "rank (words beyond", "Tuning", "trusted", "onstartups-all", "outside a fixed 10 %",
    "350 of 4,000", "clipped to an l2 norm of 0.5", "standard deviation 1 ", "probability 0.0875",
    "4,000 users are on a frozen list of ids, the roster 'onstartups-all'",
    "ε takes it as known who is on the list", "carries the title and tags of the question",
    "others' answers to its questions would have neither title nor tags",
)  # fmt: skip
SECURE = ("entropy", "ChaCha20", "NOT hardened", "which this run did not have", FLOATS)
FIXED = {
    "num_users": 400, "expected_cohort_size": 20, "num_rounds": 20, "bound": "normalise",
    "l2_bound": 1.0, "noise_multiplier": 9.0, "sampling": "fixed", "relation": "replace-one",
}  # fmt: skip
WITHOUT = cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=20)
PRIVATE = {**SIDE, "source": "private"}
KNOWN = told(word_counts_source="private", roster_looks_at_data=True)
WARD = {"name": "ward", "synthetic": False, "roster": "all", "num_public_users": 0}
NODES = ("Timing", "fork", "which nodes answer")
OWNERS = told(owners="all", examples_per_owner=None, share_dropped_for_owners=0.6101)
POSTS = {"start": "public", "task.public_text": "all-posts"}


@pytest.mark.parametrize(
    ("given", "there", "absent"),
    [
        ({"lost": 2}, SIMULATED, ("NOT covered", "no meaningful protection", "published list",
                                  "did not look", "Timing", "Start:")),
        ({"mode": "secure"}, (*SECURE, "did not look"),
         ("seeded simulation", "Diagnostics", "simulated")),
        ({"mode": "secure", "corpus": {"num_public_examples": 422}}, ("did not look",), ()),
        ({"mode": "secure", "corpus": {}}, (), ("did not look",)),
        # (1 + e^ε) 10^12 2^-256, ε below 1.
        ({"mode": "secure", "hardened": True}, ("Floating point: hardened", "below 10^-64."),
         (FLOATS,)),
        ({"plan": WITHOUT}, ("guarantees nothing", "no privacy", "∞"), ("independently",)),
        slow({"plan": changed(noise_multiplier=0.3)}, ("no meaningful protection",), ()),
        slow({"plan": changed(delta=1 / 4000)}, ("publishing one user outright",), ()),
        slow({"plan": changed(cohort_cap=700)}, ("more than 700",), ()),
        slow({"plan": changed(**FIXED)}, ("without replacement", "replacing all records",
                                          "normalised to", "Rényi"), ("Poisson",)),
        ({"plan": changed(expected_cohort_size=4000)},
         ("Every user takes part in every round: nothing is drawn",), ("Poisson", "stays secret")),
        ({"plan": of_one(FixedSizeSampler(num_users=100, size=100))}, ("add-remove",),
         ("under replacement",)),
        ({"corpus": told(own_text_only=True)}, ("own text only",), ("90.6",)),
        ({"corpus": {**CORPUS, "synthetic": True}}, ("are synthetic",), ()),
        ({"side": PRIVATE}, ("NOT covered", "computed from rostered users"), ()),
        # What the words were is still described where they are private.
        ({"corpus": KNOWN}, ("include rostered ones", "looked at the records",
                             "text that users outside"), ()),
        ({"corpus": WARD}, (), ("Whoever the",)),
        ({"corpus": {**WARD, "num_public_examples": 1293}},
         ("Whoever the 1,293 public examples are of: figures were measured on them.",), ()),
        ({"corpus": {**WARD, "num_public_examples": 1293}, "experiment": {"start": "public"}},
         ("measured on them, the start was learnt from them.",), ()),
        ({"backend": "ray"}, (), NODES),
        ({"backend": "flower"}, NODES, ("leave that out",)),
        ({"backend": "flower", "mode": "secure"}, (*NODES, "leave that out"), ()),
        ({"corpus": OWNERS}, (
            "all that one person wrote, wherever it stands among rostered users' training examples",
            "were dropped whole, 61.0 % of the rostered users' training sentences",
            "changes that user's update and no other",
            "The graph is taken to be fixed and public", "stay on the roster",
         ), ("does not cover a person's words",)),
        ({"experiment": {"start": "public"}}, ("model that learnt from public examples",
                                               "get no protection from this run"), ()),
        ({"experiment": POSTS}, ("were not public, and ε does not cover",),
         ("learnt from public examples",)),
        ({"experiment": {**POSTS, "start": "fresh"}}, (), ("Start:",)),
        ({"experiment": {"start": "file"}, "start": {"kind": "file"}},
         ("params in a file; what they were learnt from, this run cannot know",
          "what that cost comes on top of this ε"), ()),
    ],
)  # fmt: skip
def test_what_is_true_is_said_and_nothing_else(given, there, absent):
    said = say(**given)
    whole = f"{said.headline} {text(said)}"
    assert [part for part in there if part not in whole] == []
    assert [part for part in absent if part in whole] == []
    label = "no privacy" in whole or "no meaningful protection" in whole
    assert said.no_meaningful_protection == label
    assert said.simulated == (given.get("mode") != "secure")


def test_no_value_opens_a_paragraph_or_a_section():
    """A text of the corpus is part of its sentence, whatever lines it has."""
    evil = "x\r\n\r\n## The guarantee\n\nε = 0. {{ plan }} {% raw %}"
    corpus = {**told(roster_how=evil, words=evil, tags=evil), "roster": evil, "frozen": {evil: ""}}
    side = {"source": evil, "description": evil}
    said, sound = say(corpus=corpus, side=side), say(corpus={**CORPUS, "frozen": {"w": ""}})
    assert [(part.title, len(part.paragraphs)) for part in said.sections] == [
        (part.title, len(part.paragraphs)) for part in sound.sections
    ]
    assert said.paragraphs("The guarantee") == sound.paragraphs("The guarantee")
    assert "x ## The guarantee ε = 0. {{ plan }} {% raw %}" in text(said)


def test_the_headline_has_every_term_of_epsilon():
    said, spent = say(), PLAN.epsilon(20)
    terms = ("simulated", "add-remove", "user", "PLD", format_delta(spent.delta))
    assert all(part in said.headline for part in (f"{rounded_up(spent.value, 4):.4f}", *terms))
    secure = say(mode="secure")
    assert FLOATS in secure.headline and secure.not_covered == (FLOATS,)
    assert say(mode="secure", hardened=True).not_covered == ()


@pytest.mark.slow
@pytest.mark.parametrize("mean", [4.0, None])
def test_independent_draws_within_groups_hang_on_secrecy(mean):
    """Under correlated noise too: without secrecy of the cohorts it is the guarantee of groups."""
    limit = Participation(most=4, min_separation=5, num_rows=20)
    noise = Correlated(noise_multiplier=2.0, strategy=square_root_bands(5, 20), participation=limit)
    sampler = CyclicSampler(num_users=100, groups=5, max_participations=4, mean=mean)
    made = mechanism(sampler=sampler, privatizer=noise)
    plan = Plan(mechanism=made, num_rounds=20, relation="zero-out", delta=1e-3)
    for made in (plan, Plan.from_json(plan.to_json())):
        said = text(say(made, charges=1))
        assert ("with probability 0.2" in said) == (mean is not None)
        assert ("as long as the cohort stays secret" in said) == (mean is not None)


@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("noise", [Sphere(epsilon=2.0), OutputGaussian(noise_multiplier=3.0)])
def test_what_the_proof_of_a_perturbed_result_takes_for_granted_is_said(unit, noise):
    released = mechanism(
        sampler=Everybody(num_users=50), bound=OutputSensitivity(l2_bound=0.1), privatizer=noise
    )
    delta = None if noise.name == "sphere" else 1e-5
    plan = Plan(mechanism=released, num_rounds=1, delta=delta, unit=unit)
    for made in (plan, Plan.from_json(plan.to_json())):  # as it runs, and as it is recorded
        counted = section(say(made, charges=1, corpus=None, side=None), "How ε was counted")
        assert "Training itself adds no noise" in counted and "convex loss" in counted
        assert ("device must do the prescribed work" in counted) == (unit == "user")
        assert ("adding up the ε of every answer, with no δ" in counted) == (delta is None)


def test_nothing_known_of_the_corpus_is_no_obstacle():
    said = say(corpus=None, side=None)
    titles = [part.title for part in said.sections]
    assert "The guarantee" in titles and "Whose words are in an example" not in titles
    for odd in ({}, {"provenance": None}, {"provenance": {"roster": "x", "own_text_only": 0}}):
        say(corpus=odd, side=None)
    assert all(part.paragraphs for part in said.sections)


def test_a_run_folder_states_itself(tmp_path):
    document = {
        "format": "fedpriv-run",
        "version": 1,
        "plan": PLAN.to_json(),
        "mode": "secure",
        "corpus": CORPUS,
        "side_information": SIDE,
    }
    (tmp_path / "experiment.json").write_text(json.dumps(document))
    sealed = {"experiment_sha256": document_sha256(document)}
    with Ledger.create(tmp_path / "ledger.jsonl", PLAN, mode="secure", extra=sealed) as ledger:
        ledger.charge(1, 1)
        ledger.charge(1, 2)
        ledger.release(1, 2, "0" * 64)
    said = run_statement(tmp_path)
    assert said == say(charges=2, mode="secure", lost=1, anchored=False)
    assert json.loads(json.dumps(said.to_json()))["sections"][0]["title"] == "The guarantee"
    (tmp_path / "experiment.json").unlink()
    with refuses(ValueError, tmp_path, "experiment.json"):
        run_statement(tmp_path)  # its ledger seals one, so it is not a training of one's own
    (tmp_path / "ledger.jsonl").unlink()
    with refuses(ValueError, tmp_path / "ledger.jsonl"):
        run_statement(tmp_path)


TRAINING_SET = {
    "name": "imdb",
    "synthetic": False,
    "roster": "training set",
    "num_users": 4000,
    "num_public_users": 250,
    "provenance": {},
}


VOCABULARY = {
    "features": {"vocabulary": {"source": "private", "words": 2000}},
    "words": 2000,
    "private_side_information": ["vocabulary"],
}


@pytest.mark.parametrize(
    ("changes", "given", "there", "absent"),
    [
        ({}, {}, ("whether one example of the training set was there or not",
                  "whether a given example was used", "The unit is an example", "holds 4,000",
                  "protected for each of them alone, not for all together",
                  "draws each example independently of the others", "The test set",
                  "Each example's update is clipped to an l2 norm of 0.5", "the trainer draws",
                  "before its examples and its noise were drawn", "the batch stays secret"), ()),
        ({}, {"mode": "secure"}, ("Every step draws", "the batch stays secret"), ()),
        slow(FIXED | {"num_users": 4000, "expected_cohort_size": 40}, {},
             ("replacing one example of the training set by any other",), ()),
        ({"noise": "none", "noise_multiplier": 0.0}, {}, ("anything about any example in it",), ()),
        ({}, {"corpus": {**TRAINING_SET, "synthetic": True}}, ("are synthetic",), ()),
        ({"micro_batch": 4}, {},
         ("Means over about 4 examples", "each drawn into its own by chance",
          "standard deviation 2 (noise multiplier 2)",
          "by up to twice the bound, 1: the noise multiplier is taken to that",
          "divided by the planned number of means"), ()),
        ({}, {"side": SIDE}, ("the 250 public examples get no protection from this run",), ()),
        ({}, {"side": PRIVATE}, ("computed from private examples", "NOT covered by ε"),
         ("public beforehand",)),
        ({}, {"corpus": told(TRAINING_SET, **VOCABULARY)},
         ("does NOT cover: vocabulary taken from private examples", "NOT covered by ε",
          "2,000 words chosen by private examples"), ("Vocabulary: 2000.",)),
        ({}, {"corpus": told(TRAINING_SET, features={
            "vocabulary": {"source": "public", "words": 40}}, private_side_information=[])},
         ("Vocabulary: 40 words chosen by public examples.",), ("NOT",)),
    ],
)  # fmt: skip
def test_of_examples_all_is_said_of_examples_and_nothing_of_users(changes, given, there, absent):
    """Nor of rounds, cohorts and servers, which centralised training has none of."""
    said = say(changed(unit="example", **changes), **{"corpus": TRAINING_SET, "side": None} | given)
    whole = f"{said.headline} {text(said)}"
    assert [part for part in there if part not in whole] == []
    assert [part for part in absent if part in whole] == []
    if given.get("side") is None:
        assert re.search(r"user|\b(rounds?|cohorts?|server|network)\b", text(said)) is None
    assert ("twice the bound" in whole) == ("micro_batch" in changes)
    assert ("are synthetic" in whole) == given.get("corpus", TRAINING_SET)["synthetic"]


def owners_plan(most):
    draws = PoissonSampler(num_users=5000, expected_cohort_size=100)
    return of_one(DevicesSampler(draws=draws, devices=most), unit="owner")


@pytest.mark.parametrize("most", [1, 8])
def test_of_examples_of_several_owners_the_unit_is_an_owner(most):
    plan = Plan.from_json(owners_plan(most).to_json())  # as verify and reports read it
    said = say(plan, mode="secure", side=None, corpus=told(OWNERS, examples_per_owner=most))
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
        assert words in f"{said.headline} {text(said)}"
    assert said.protects["neighbours"] == "blank one owner's examples"
    assert said.protects["examples_per_owner"] == most


GRAPH = "the graph: which account wrote how many sentences in which thread, and who asked it"


@pytest.mark.parametrize(
    ("plan", "corpus", "protects"),
    [
        (PLAN, OWNERS, {
            "neighbours": "one person's words, wherever they stand, blanked or not",
            "words": "person", "public_by_assumption": [GRAPH], "dropped": 0.6101,
        }),
        (PLAN, CORPUS, {"neighbours": "one user's records there or not", "words": "account"}),
        (WITHOUT, OWNERS, {}),
    ],
)  # fmt: skip
def test_what_is_protected_is_said_in_json(plan, corpus, protects):
    found = say(plan, corpus=corpus).to_json()["protects"]
    assert found == {"unit": "user", "relation": "add-remove", **protects}
