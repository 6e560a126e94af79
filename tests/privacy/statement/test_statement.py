"""The statement says what is true of a run, and the uncomfortable parts too."""

import json
import math
import re

import pytest

from fedpriv.hashes import document_sha256
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import square_root_bands
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.privacy.epsilon import format_delta, rounded_up
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan, cohort_plan
from fedpriv.privacy.sampling import CyclicSampler, FixedSizeSampler
from fedpriv.privacy.statement.coverage import FLOATS
from fedpriv.privacy.statement.statement import privacy_statement, run_statement

PLAN = cohort_plan(
    num_users=4000,
    expected_cohort_size=350,
    num_rounds=20,
    bound="clip",
    l2_bound=0.5,
    noise="gaussian",
    noise_multiplier=2.0,
)
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


def say(
    plan=PLAN,
    *,
    charges=20,
    mode="simulation",
    corpus=CORPUS,
    side=SIDE,
    lost=0,
    anchored=None,
    **more,
):
    document = {"mode": mode, "corpus": corpus, "side_information": side, **more}
    return privacy_statement(plan, document, num_charges=charges, num_lost=lost, anchored=anchored)


def text(statement):
    return " ".join(paragraph for part in statement.sections for paragraph in part.paragraphs)


def section(statement, title):
    return " ".join(statement.paragraphs(title))


def changed(**changes):
    return cohort_plan(**{**PLAN.to_json(), **changes})


def told(**provenance):
    return {**CORPUS, "provenance": {**CORPUS["provenance"], **provenance}}


SIMULATED = (
    "2 of them lost", "RDP", "90.6 %", "22.1 %", "does not cover a person's words inside",
    "Diagnostics", "412 users outside the roster", "not hardened",
    "anyone with the seed can subtract the noise", "those used by most users outside",
    "rank (words beyond", "Tuning", "trusted", "onstartups-all", "outside a fixed 10 %",
    "350 of 4,000", "clipped to an l2 norm of 0.5", "standard deviation 1 ",
)  # fmt: skip
SECURE = ("entropy", "ChaCha20", "NOT hardened", "which this run did not have")
FIXED = {
    "num_users": 400, "expected_cohort_size": 20, "num_rounds": 20, "bound": "normalise",
    "l2_bound": 1.0, "noise_multiplier": 9.0, "sampling": "fixed", "relation": "replace-one",
}  # fmt: skip
WITHOUT = cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=20)
PRIVATE = {**SIDE, "source": "private"}
KNOWN = told(word_counts_source="private", roster_looks_at_data=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "there", "absent"),
    [
        ({"lost": 2}, SIMULATED, ("NOT covered", "no meaningful protection")),
        ({"mode": "secure"}, SECURE, ("seeded simulation", "Diagnostics", "simulated")),
        ({"plan": WITHOUT}, ("guarantees nothing", "no privacy", "∞"), ("independently",)),
        ({"plan": changed(noise_multiplier=0.3)}, ("no meaningful protection",), ()),
        ({"plan": changed(delta=1 / 4000)}, ("publishing one user outright",), ()),
        ({"plan": changed(cohort_cap=700)}, ("more than 700",), ()),
        ({"plan": changed(**FIXED)}, ("without replacement", "replacing all records",
                                      "normalised to", "Rényi"), ("Poisson",)),
        ({"corpus": told(own_text_only=True)}, ("own text only",), ("90.6",)),
        ({"corpus": {**CORPUS, "synthetic": True}}, ("are synthetic",), ()),
        ({"side": PRIVATE}, ("NOT covered", "computed from rostered users"), ()),
        # What the words were is still described where they are private.
        ({"corpus": KNOWN}, ("include rostered ones", "looked at the records",
                             "text that users outside"), ()),
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


@pytest.mark.parametrize("corpus", [CORPUS, {"num_public_examples": 422}, {}])
def test_a_secure_run_says_that_it_did_not_compare_public_examples(corpus):
    said = {mode: str(say(corpus=corpus, mode=mode)) for mode in ("simulation", "secure")}
    assert ("did not look" in said["secure"]) == bool(corpus)
    assert "did not look" not in said["simulation"]


def test_the_headline_has_every_term_of_epsilon():
    said, spent = say(), PLAN.epsilon(20)
    terms = ("simulated", "add-remove", "user", "PLD", format_delta(spent.delta))
    assert all(part in said.headline for part in (f"{rounded_up(spent.value, 4):.4f}", *terms))
    secure = say(mode="secure")
    assert FLOATS in secure.headline and secure.not_covered == (FLOATS,)


def test_a_hardened_run_says_what_its_sampler_adds_to_delta():
    said = say(mode="secure", hardened=True)
    assert said.not_covered == () and "Floating point: hardened" in text(said)
    # (1 + e^ε) 10^12 2^-256, ε below 1.
    assert "below 10^-64." in text(said)
    assert (1 + math.e) * 1e12 * 2.0**-256 < 1e-64


@pytest.mark.slow
def test_independent_draws_within_groups_hang_on_secrecy():
    """Under correlated noise too: without secrecy of the cohorts it is the guarantee of groups."""
    limit = Participation(most=4, min_separation=5, num_rows=20)
    noise = Correlated(noise_multiplier=2.0, strategy=square_root_bands(5, 20), participation=limit)
    for mean in (4.0, None):
        sampler = CyclicSampler(num_users=100, groups=5, max_participations=4, mean=mean)
        mechanism = Mechanism(sampler=sampler, bound=Clip(l2_clip_norm=1.0), privatizer=noise)
        plan = Plan(mechanism=mechanism, num_rounds=20, relation="zero-out", delta=1e-3)
        for made in (plan, Plan.from_json(plan.to_json())):
            said = text(say(made, charges=1))
            assert ("with probability 0.2" in said) == (mean is not None)
            assert ("as long as the cohort stays secret" in said) == (mean is not None)


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
    with pytest.raises(ValueError, match=r"has lost its experiment\.json"):
        run_statement(tmp_path)  # its ledger seals one, so it is not a training of one's own
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(ValueError, match="cannot read the ledger"):
        run_statement(tmp_path)


TRAINING_SET = {
    "name": "imdb",
    "synthetic": False,
    "roster": "training set",
    "num_users": 4000,
    "num_public_users": 250,
    "provenance": {},
}


def test_a_list_of_ids_is_not_said_to_be_published():
    said = text(say())
    assert "4,000 users are on a frozen list of ids, the roster 'onstartups-all'" in said
    assert "ε takes it as known who is on the list" in said and "published list" not in said
    assert "even odds on whether a given user's records were used" in said


def test_where_everybody_comes_to_every_round_nothing_is_said_to_be_drawn():
    counted = section(say(changed(expected_cohort_size=4000)), "How ε was counted")
    assert "Every user takes part in every round: nothing is drawn" in counted
    assert "Poisson" not in counted and "stays secret" not in counted
    assert "probability 0.0875" in section(say(), "How ε was counted")


def test_public_examples_of_nobody_known_are_among_what_no_epsilon_covers():
    own = {"name": "ward", "synthetic": False, "roster": "all", "num_public_users": 0}
    title = "What no ε covers"
    assert "public examples" not in section(say(corpus=own), title)
    found = section(say(corpus={**own, "num_public_examples": 1293}), title)
    assert "Whoever the 1,293 public examples are of" in found


class TestExamples:
    """Centralised training: what holds of examples is said of examples, and nothing of users."""

    def say(self, *, data=TRAINING_SET, side=None, mode="simulation", **changes):
        plan = changed(unit="example", **changes)
        return say(plan, mode=mode, corpus=data, side=side)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("given", "title", "there"),
        [
            ({}, "The guarantee", ("whether one example of the training set was there or not",
                                   "whether a given example was used")),
            ({"sampling": "fixed", "relation": "replace-one", "expected_cohort_size": 40,
              "noise_multiplier": 9}, "The guarantee",
             ("replacing one example of the training set by any other",)),
            ({"noise": "none", "noise_multiplier": 0.0}, "The guarantee",
             ("anything about any example in it",)),
            ({}, "Who is protected", ("The unit is an example", "holds 4,000",
                                      "protected for each of them alone, not for all together")),
            ({"data": {**TRAINING_SET, "synthetic": True}}, "Who is protected", ("are synthetic",)),
            ({}, "How ε was counted", ("draws each example independently of the others",
                                       "Each example's update is clipped to an l2 norm of 0.5",
                                       "before its examples and its noise were drawn")),
            ({"micro_batch": 4}, "How ε was counted",
             ("Means over about 4 examples", "each drawn into its own by chance",
              "standard deviation 2 (noise multiplier 2)",
              "by up to twice the bound, 1: the noise multiplier is taken to that",
              "divided by the planned number of means")),
            ({"side": SIDE}, "What was taken to be public",
             ("the 250 public examples get no protection from this run",)),
            ({}, "What no ε covers", ("The test set",)),
        ],
    )  # fmt: skip
    def test_what_is_said(self, given, title, there):
        said = self.say(**given)
        assert [part for part in there if part not in section(said, title)] == []
        assert "user" not in text(said)
        assert ("twice the bound" in text(said)) == ("micro_batch" in given)
        assert ("are synthetic" in text(said)) == ("data" in given)

    def test_private_side_information_is_of_examples(self):
        said = text(self.say(side={"source": "private", "description": "counts"}))
        assert "computed from private examples" in said and "NOT covered by ε" in said
        assert "public beforehand" not in said

    def test_what_the_data_set_took_from_them(self):
        provenance = {
            "words": 2000,
            "features": {"vocabulary": {"source": "private", "words": 2000}},
            "private_side_information": ["vocabulary"],
        }
        said = self.say(data={**TRAINING_SET, "provenance": provenance})
        mark = "does NOT cover: vocabulary taken from private examples"
        assert mark in said.headline and f"It {mark}." in section(said, "The guarantee")
        taken = section(said, "What was taken from private examples")
        assert "2,000 words chosen by private examples" in taken and "NOT covered by ε" in taken
        assert "Vocabulary: 2000." not in text(said)

    def test_a_public_vocabulary(self):
        provenance = {
            "features": {"vocabulary": {"source": "public", "words": 40}},
            "private_side_information": [],
        }
        said = self.say(data={**TRAINING_SET, "provenance": provenance})
        assert said.not_covered == () and "NOT" not in said.headline + text(said)
        public = section(said, "What was taken to be public")
        assert "Vocabulary: 40 words chosen by public examples." in public

    @pytest.mark.parametrize("mode", ["simulation", "secure"])
    def test_steps_and_batches(self, mode):
        whole = text(self.say(mode=mode))
        for part in ("Every step draws", "the trainer draws", "the batch stays secret"):
            assert part in whole, part
        assert re.search(r"\b(rounds?|cohorts?|server|network)\b", whole) is None


def test_a_cohort_of_everybody_is_not_called_one_of_fixed_size():
    """Red when size n of n under add-remove was said to be accounted under replacement."""
    sampler = FixedSizeSampler(num_users=100, size=100)
    mechanism = Mechanism(
        sampler=sampler, bound=Clip(l2_clip_norm=1.0), privatizer=Gaussian(noise_multiplier=2.0)
    )
    said = text(say(Plan(mechanism=mechanism, num_rounds=20, relation="add-remove"), charges=1))
    assert "under replacement" not in said and "add-remove" in said


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_a_run_on_nodes_names_timing_and_no_other_run_does(mode):
    told = section(say(mode=mode, backend="flower"), "What no ε covers")
    assert "Timing" in told and "late" in told and "fork" in told
    assert "Timing" not in text(say(mode=mode, backend="ray"))


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_a_run_on_nodes_names_what_the_servers_operator_sees(mode):
    told = section(say(mode=mode, backend="flower"), "What no ε covers")
    assert "which nodes answer" in told and ("leave that out" in told) == (mode == "secure")
    assert "which nodes answer" not in text(say(mode=mode, backend="ray"))
